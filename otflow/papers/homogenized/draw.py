"""The figures of the experiment `homogenized`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow.papers import homogenized as hom
from otflow.papers.homogenized.claims import brownian
from otflow.papers.homogenized.runs import CROWD, HEADS, LENGTHS, REDUCED, U0

if TYPE_CHECKING:
    from otflow.papers.homogenized.runs import Band, LayerRuns

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK, FAINT = of.plot.INK, of.plot.FAINT


def limits(runs: LayerRuns) -> Any:
    """A chain beside the SDE, and chains of more and more heads beside the ODE."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.6, 3.7))
    _band(left, runs.sde, BLUE, "SDE by flow: mean and deviation")
    a = runs.chain
    left.errorbar(a.t, a.mean, 2 * a.error, fmt="o", color=INK, markersize=3.5, label="chain, two heads")
    for sign in (-1, 1):
        left.plot(a.t, a.mean + sign * a.spread, "_", color=INK, markersize=8)
    left.set(
        xlabel="clock η² L / H", ylabel="overlap of two tokens", title="Centred values: noise that is shared"
    )
    left.legend(loc="lower right", fontsize=7.5)
    for heads, colour in zip(HEADS, (PINK, GREEN, BLUE), strict=True):
        _band(right, runs.heads[heads], colour, f"{heads} head{'s' * (heads > 1)}")
    right.plot(*runs.ode, "--", color=INK, linewidth=1.5, label="ODE")
    right.set(xlabel="depth η L", ylabel="mean overlap", title="Values I + noise: many heads follow the ODE")
    right.legend(loc="lower right", fontsize=7.5)
    return fig


def _band(ax: Any, band: Band, colour: str, label: str) -> None:
    ax.fill_between(
        band.t, band.mean - band.spread, band.mean + band.spread, color=colour, alpha=0.18, linewidth=0
    )
    ax.plot(band.t, band.mean, color=colour, label=label)


def simplices(runs: LayerRuns) -> Any:
    """Orthonormal tokens in two dimensions, and the logistic law."""
    fig, (axes,) = of.plot.figure(1, 3, size=(11.4, 3.5))
    for ax, curves in zip(axes, runs.simplex, strict=False):
        a = curves.chain
        ax.errorbar(a.t, a.mean, 2 * a.error, fmt="o", color=INK, markersize=3.5, label="chain, η = 0.2")
        ax.plot(a.t, curves.exact, color=BLUE, label="ODE of this dimension")
        ax.plot(a.t, curves.large, "--", color=RED, label="ODE as printed, d = ∞")
        ax.set(xlabel="clock η² L / H", title=f"{curves.n} orthonormal tokens, d = {curves.d}")
    a, hot = runs.hot, axes[2]
    hot.errorbar(a.t, a.mean, 2 * a.error, fmt="o", color=INK, markersize=3.5, label="chain, d = 256")
    t = np.linspace(0, a.t[-1], 200)
    hot.plot(t, hom.logistic(t, a.mean[0]), color=GREEN, label="logistic law")
    hot.set(xlabel="clock η² L / H", title="High temperature: the mean overlap")
    axes[0].set_ylabel("overlap γ")
    for ax in axes:
        ax.set_ylim(-0.02, 1.0)
        ax.legend(loc="lower right", fontsize=7.5)
    return fig


def low_temperature(runs: LayerRuns) -> Any:
    """Paths of overlaps, where they end, and what few tokens do."""
    fig, (axes,) = of.plot.figure(1, 3, size=(11.4, 3.5))
    t = np.linspace(0, CROWD, len(runs.paths), endpoint=False)
    for k, path in enumerate(runs.paths.T):
        up = runs.paths[-1, k] > 0
        axes[0].plot(t, path, color=RED if up else BLUE, linewidth=0.6, alpha=0.6)
    axes[0].set(xlabel="clock / d", ylabel="overlap u", title="Pairs in a uniform crowd, A a rotation")
    u = np.linspace(-1, 1, 400)
    axes[1].plot(u, hom.aligned_probability(u), color=INK, linewidth=1.2, label="1/2 + arcsin(u0) / π")
    inner = np.linspace(-0.99, 0.99, 200)
    axes[1].plot(
        inner, brownian(inner, CROWD), "--", color=BLUE, linewidth=1.2, label="artanh u Brownian, time 2"
    )
    later = hom.aligned_probability(runs.crowd.clip(-1, 1)).numpy()  # what becomes of pairs not yet decided
    for values, colour, mark, label in (
        (runs.ends > 0, GREEN, "o", "diffusion"),
        (later, RED, "s", "chain, A a rotation, by arcsin u(2)"),
        (runs.product > 0, BLUE, "v", "chain, A = W W'ᵀ, at time 2"),
    ):
        bars = 2 * values.std(0) / math.sqrt(len(values))
        axes[1].errorbar(U0, values.mean(0), bars, fmt=mark, color=colour, markersize=4, label=label)
    axes[1].set(xlabel="overlap u0 at the beginning", ylabel="share", title="Pairs that become parallel")
    axes[1].set_ylim(top=1.35)
    axes[1].legend(loc="upper left", fontsize=7.5)
    n = list(runs.few)
    axes[2].semilogx(n, list(runs.few.values()), "o-", color=PINK, label="n tokens, d = 4")
    axes[2].axhline(0.5, color=INK, linewidth=1, linestyle="--", label="uniform crowd")
    axes[2].set(xlabel="tokens n", ylim=(0.4, 1.03), title="Few tokens: most pairs end parallel")
    axes[2].set_xticks(n, [str(k) for k in n])
    axes[2].minorticks_off()
    axes[2].legend(loc="lower left", fontsize=7.5)
    return fig


def freezing() -> Any:
    """Participation ratios beside their limit, and the rate of collapse that they leave."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.6, 3.7))
    for k, n in enumerate(LENGTHS):
        f = hom.participation(REDUCED * hom.critical_scale(n).item(), n).numpy()
        colour = of.plot.SEQUENCE(k / (len(LENGTHS) - 1))
        label = f"n = {n}" if n < 1e4 else f"n = {n / 10 ** int(math.log10(n)):g}·10^{int(math.log10(n))}"
        left.plot(REDUCED, f, color=colour, label=label)
        right.plot(REDUCED, math.log(n) / (1 - f), color=colour)
    left.plot(REDUCED, np.maximum(1 - 1 / REDUCED, 0), "--", color=INK, label="n = ∞: 1 - b_c / b")
    for ax in (left, right):
        ax.axvline(1, color=FAINT, linewidth=1, zorder=0)
        ax.set_xlabel("b / b_c,  b_c = sqrt(2 log n)")
    left.set(ylabel="participation ratio f", title="A head looks at few tokens beyond b_c")
    left.legend(loc="lower right", fontsize=7.5)
    right.set(ylabel="log n / (1 - f)", title="Time to collapse", yscale="log")
    return fig


def collapse(size: int, d: int = 64) -> Any:
    """Time to collapse over temperature and length of context, in dimension 64."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.8, 3.9))
    beta, n = np.geomspace(2.0, 200.0, size), np.unique(np.geomspace(4, 100_000, size).astype(int))
    diagram = hom.collapse_diagram(beta, n, d)
    critical = hom.critical_scale(n).numpy() * math.sqrt(d)  # beta with b = b_c
    pictures = (
        (left, diagram.f, "participation ratio f(0)"),
        (right, diagram.time.log10(), "log10 of the time"),
    )
    for ax, values, label in pictures:
        mesh = ax.pcolormesh(
            n, 1 / beta, values.numpy(), cmap=of.plot.SEQUENCE, shading="nearest", rasterized=True
        )
        ax.plot(n, 1 / critical, color="white", linewidth=1.6)
        ax.annotate("b = b_c", (n[-1] / 60, 1.4 / critical[-1]), color="white", fontsize=8)
        ax.set(xscale="log", yscale="log", xlabel="length of context n", ylim=(1 / beta[-1], 1 / beta[0]))
        fig.colorbar(mesh, ax=ax, label=label).ax.set_title(" ")
    left.set(ylabel="temperature 1/β", title="d = 64: heads that freeze")
    right.set(title="Time until orthonormal tokens collapse")
    return fig
