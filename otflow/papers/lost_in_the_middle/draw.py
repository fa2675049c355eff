"""Pictures of the experiment `lost-in-the-middle`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

import otflow as of
from otflow.papers import lost_in_the_middle as causal
from otflow.papers.lost_in_the_middle import runs
from otflow.papers.lost_in_the_middle.runs import BETA, GRID, LAM, TIMES, M, N, middle, profile

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
PLACE = r"position $\sigma$ of the token"


def profiles() -> Any:
    """The score at the paper's times, and its hops."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.4, 4.0))
    for k, t in enumerate(TIMES):
        S, colour = profile(GRID, t), of.plot.SEQUENCE(k / (len(TIMES) - 1))
        label = f"$t = {t:g}$" if t in (0.25, 0.5, 1.0, 2.0, 5.0) else None
        left.plot(GRID, S, color=colour, linewidth=1.2, label=label)
        if S.argmin() < len(S) - 1:
            left.plot(GRID[S.argmin()], S.min(), "o", color=colour, markersize=3.5)
    title = f"A U until $t = {causal.critical_time(BETA, LAM, M):.3f}$, minima as dots"
    legend = {"ncols": 3, "loc": "upper right"}
    of.plot.panel(left, title, PLACE, "score $S$", legend=legend, yscale="log", ylim=(None, 60))
    for m in (1, 2, 3):
        part, name = causal.hop(m, GRID, 1.0, BETA, LAM, M), f"{m} hop{'s' * (m > 1)}"
        right.plot(GRID, part, color=of.plot.COLOURS[m - 1], label=name)
    right.plot(GRID, profile(GRID, 1.0), color=of.plot.INK, linewidth=1.6, label="all")
    title = "$t = 1$: one hop favours the end, more the beginning"
    of.plot.panel(right, title, PLACE, legend="center right")
    return fig


def phases(phase: runs.Phases) -> Any:
    """Where the minimum is, over time and temperature."""
    fig, ((ax,),) = of.plot.figure(size=(6.4, 4.2))
    beta = np.linspace(phase.beta[0], phase.beta[-1], 200)
    mesh = ax.pcolormesh(*phase, cmap=of.plot.SEQUENCE, shading="nearest", rasterized=True)
    fig.colorbar(mesh, ax=ax, label="position of the minimum").ax.set_title(" ")
    ax.plot(causal.critical_time(beta, LAM, M), beta, color=RED, linewidth=2, label="critical time")
    ax.plot(causal.u_shape_time(beta, LAM), beta, "--", color=PINK, linewidth=1.6, label="theorem's time")
    title = "The U ends where its minimum reaches the last token"
    legend = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 2}
    ends = {"xlim": (phase.t[0], phase.t[-1]), "ylim": (phase.beta[0], phase.beta[-1])}
    of.plot.panel(ax, title, "time $t$", r"$\beta$", legend=legend, xscale="log", **ends)
    return fig


def simulations(prompts: int, plain: list[runs.Blocks], sharp: list[runs.Blocks]) -> Any:
    """Correlations and the score by both estimators, with theory."""
    fig, (axes,) = of.plot.figure(1, 3, size=(12.0, 3.7))
    titles = (
        r"mode 1: $N\times$ correlation",
        r"mode 2: $N\times$ correlation",
        "score from the soft accuracy",
    )
    for ax, curve, *both, title in zip(axes, runs.theory(), plain, sharp, titles, strict=True):
        x, g = runs.blocks(middle(N)), runs.blocks(curve)
        ax.plot(middle(N), curve, color=of.plot.INK)
        ax.plot(x, g, "_", color=of.plot.INK, markersize=10, label="theory, and its block means")
        # One a little to the left and one to the right, so that bars do not cover each other.
        looks = ((-0.008, "o", BLUE, f"{prompts:,} prompts"), (0.008, "s", RED, "by slopes, from fewer"))
        for b, (shift, mark, colour, name) in zip(both, looks, strict=True):
            style = {"color": colour, "markersize": 4, "elinewidth": 1, "capsize": 2}
            ax.errorbar(x + shift, b.value, 2 * b.error, fmt=mark, linestyle="none", label=name, **style)
        of.plot.panel(ax, f"$N = {N}$, {title}", PLACE, legend="upper right", ylim=(0, 1.75 * g[0]))
    return fig


def finite(scores: dict[str, Tensor], errors: np.ndarray) -> Any:
    """Profiles of other causal weights at N = 512, and the limit of long prompts."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.4, 3.9))
    looks = ((BLUE, "-"), (GREEN, "-"), (PINK, "-"), (RED, "--"))
    for (name, S), (colour, line) in zip(scores.items(), looks, strict=True):
        left.plot(middle(512), S.clamp(min=1e-3), line, color=colour, linewidth=1.3, label=name)
    of.plot.panel(
        left,
        "A window removes primacy, a second head restores it",
        f"{PLACE} ($N = 512$)",
        "score $S$",
        legend="upper center",
        yscale="log",
        ylim=(1e-2, 100),
    )
    right.plot(runs.SIZES, errors, "o-", color=BLUE, markersize=4, label=r"largest for $\sigma\geq 0.02$")
    right.plot(runs.SIZES, 0.84 / np.array(runs.SIZES), ":", color=of.plot.INK, label="$0.84/N$")
    of.plot.panel(right, "Matrix exponential less closed form", "number of tokens $N$", legend=True)
    right.loglog()
    return fig


def trajectories(ts: np.ndarray, theta: np.ndarray) -> Any:
    """Every token of one prompt, coloured by its position."""
    fig, ((ax,),) = of.plot.figure(size=(7.0, 4.0))
    for j, path in enumerate(theta.T):
        ax.plot(ts, path, color=of.plot.SEQUENCE(j / (len(theta.T) - 1)), linewidth=0.9)
    ax.plot(ts, theta[:, 0], color=RED, linewidth=1.8, label="the first token, which never moves")
    turns = range(math.floor(theta.min() / np.pi), math.ceil(theta.max() / np.pi) + 1)
    ticks = {k * np.pi: {0: "0", 1: r"$\pi$", -1: r"$-\pi$"}.get(k, rf"${k}\pi$") for k in turns}
    title = f"{N} tokens in four clusters (first: dark, last: light)"
    of.plot.panel(ax, title, "time $t$", "angle, not wrapped", legend="upper right", yticks=ticks)
    return fig
