"""The figures of the experiment `lost-in-the-middle`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import otflow as of
from otflow.papers import lost_in_the_middle as causal
from otflow.papers.lost_in_the_middle.runs import (
    BETA,
    GRID,
    LAM,
    SIZES,
    TIMES,
    M,
    N,
    blocks,
    middle,
    profile,
    theory,
)

if TYPE_CHECKING:
    from otflow.papers.lost_in_the_middle.runs import Phases, Simulation

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK, FAINT = of.plot.INK, of.plot.FAINT


def profiles() -> Any:
    """The score at the paper's times, and its hops."""
    fig, (axes,) = of.plot.figure(1, 2, size=(10.4, 4.0))
    for k, t in enumerate(TIMES):
        S, colour = profile(GRID, t), of.plot.SEQUENCE(k / (len(TIMES) - 1))
        label = f"t = {t:g}" if t in (0.25, 0.5, 1.0, 2.0, 5.0) else None
        axes[0].semilogy(GRID, S, color=colour, linewidth=1.2, label=label)
        if S.argmin() < len(S) - 1:
            axes[0].semilogy(GRID[S.argmin()], S.min(), "o", color=colour, markersize=3.5)
    crit = causal.critical_time(BETA, LAM, M).item()
    axes[0].set(
        xlabel="position σ of the token", ylabel="score S", title=f"A U until t = {crit:.3f}, minima dotted"
    )
    axes[0].set_ylim(top=60)
    axes[0].legend(ncols=3, fontsize=7.5, loc="upper right")
    _hops(axes[1])
    return fig


def _hops(ax: Any) -> None:
    rest = profile(GRID, 1.0)
    for m, colour in ((1, BLUE), (2, RED), (3, GREEN)):
        part = causal.hop(m, GRID, 1.0, BETA, LAM, M).numpy()
        ax.plot(GRID, part, color=colour, label=f"{m} hop{'s' * (m > 1)}")
    ax.plot(GRID, rest, color=INK, linewidth=1.6, label="all")
    ax.set(xlabel="position σ of the token", title="t = 1: one hop favours the end, more the beginning")
    ax.legend(loc="center right", fontsize=7.5)


def phases(phase: Phases) -> Any:
    """Where the minimum is, over time and temperature."""
    fig, axes = of.plot.figure(1, 1, size=(6.4, 4.2))
    ax, beta = axes[0, 0], np.linspace(phase.beta[0], phase.beta[-1], 200)
    mesh = ax.pcolormesh(
        phase.t, phase.beta, phase.where, cmap=of.plot.SEQUENCE, shading="nearest", rasterized=True
    )
    fig.colorbar(mesh, ax=ax, label="position of the minimum").ax.set_title(" ")
    ax.plot(causal.critical_time(beta, LAM, M), beta, color=RED, linewidth=2, label="critical time")
    ax.plot(
        causal.u_shape_time(beta, LAM),
        beta,
        "--",
        color=PINK,
        linewidth=1.6,
        label="theorem's time",
    )
    ax.set(
        xscale="log",
        xlabel="time t",
        ylabel="β",
        title="The U ends where its minimum reaches the last token",
        xlim=(phase.t[0], phase.t[-1]),
        ylim=(phase.beta[0], phase.beta[-1]),
    )
    ax.legend(loc="lower left", facecolor=of.plot.PAPER, frameon=True)
    return fig


def simulations(sim: Simulation) -> Any:
    """Correlations and the score by both estimators, with theory."""
    fig, (axes,) = of.plot.figure(1, 3, size=(12.0, 3.7))
    curves = [causal.response(1.0, 1.0, middle(N), causal.coupling(n, BETA), LAM) for n in (1, 2)]
    x, all_curves = blocks(middle(N)), [*curves, profile(middle(N), 1.0)]
    titles = ("mode 1: N × correlation", "mode 2: N × correlation", "score from the soft accuracy")
    for ax, curve, g, plain, sharp, title in zip(
        axes, all_curves, theory(), sim.plain, sim.slopes, titles, strict=True
    ):
        ax.plot(middle(N), curve, color=INK)
        ax.plot(x, g, "_", color=INK, markersize=10, label="theory, and its block means")
        for b, shift, mark, colour, name in (
            (plain, -0.008, "o", BLUE, f"{sim.prompts:,} prompts"),
            (sharp, 0.008, "s", RED, "by slopes, from fewer"),
        ):
            style = {"color": colour, "markersize": 4, "elinewidth": 1, "capsize": 2}
            ax.errorbar(x + shift, b.value, 2 * b.error, fmt=mark, linestyle="none", label=name, **style)
        ax.set(xlabel="position σ of the token", title=f"N = {N}, {title}", ylim=(0, 1.75 * g[0]))
        ax.legend(fontsize=7.5, loc="upper right")
    return fig


def finite(errors: np.ndarray) -> Any:
    """Profiles of other causal weights at N = 512, and the limit of long prompts."""
    fig, (axes,) = of.plot.figure(1, 2, size=(10.4, 3.9))
    n, ax = 512, axes[0]
    near, wide = causal.alibi_matrix(n, LAM, window=32), causal.alibi_matrix(n, 0.0)
    cases = (
        ("ALiBi, λ = 1", causal.alibi_matrix(n, LAM), 1.0, BLUE, "-"),
        ("window of 128", causal.alibi_matrix(n, LAM, window=128), 1.0, GREEN, "-"),
        ("window of 32", near, 1.0, PINK, "-"),
        ("window of 32, and a head of λ = 0", torch.stack([near, wide]), 0.5, RED, "--"),
    )
    for name, Omega, t, colour, line in cases:
        S = causal.finite_profile(Omega, t, BETA, M).clamp(min=1e-3)
        ax.semilogy(middle(n), S, line, color=colour, linewidth=1.3, label=name)
    ax.set(xlabel=f"position σ of the token (N = {n})", ylabel="score S", ylim=(1e-2, 100))
    ax.set_title("A window removes primacy, a second head restores it")
    ax.legend(fontsize=7.5, loc="upper center")
    axes[1].loglog(SIZES, errors, "o-", color=BLUE, markersize=4, label="largest for σ ≥ 0.02")
    axes[1].loglog(SIZES, 0.84 / np.array(SIZES), ":", color=INK, label="0.84 / N")
    axes[1].set(xlabel="number of tokens N", title="Matrix exponential less closed form")
    axes[1].legend()
    return fig


def trajectories(ts: np.ndarray, theta: np.ndarray) -> Any:
    """Every token of one prompt, coloured by its position."""
    fig, axes = of.plot.figure(1, 1, size=(7.0, 4.0))
    ax = axes[0, 0]
    for j, path in enumerate(theta.T):
        ax.plot(ts, path, color=of.plot.SEQUENCE(j / (len(theta.T) - 1)), linewidth=0.9)
    ax.plot(ts, theta[:, 0], color=RED, linewidth=1.8, label="the first token, which never moves")
    ax.set(
        xlabel="time t",
        ylabel="angle, not wrapped",
        title=f"{N} tokens in four clusters (first: dark, last: light)",
    )
    ticks = np.arange(math.floor(theta.min() / np.pi), math.ceil(theta.max() / np.pi) + 1)
    ax.set_yticks(ticks * np.pi, [{0: "0", 1: "π", -1: "-π"}.get(k, f"{k}π") for k in ticks])
    ax.legend(loc="upper right")
    return fig
