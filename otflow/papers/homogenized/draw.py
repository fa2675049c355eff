"""Pictures of the experiment `homogenized`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import otflow as of
from otflow.papers import homogenized as hom
from otflow.papers.homogenized.runs import CROWD, HEADS, LENGTHS, REDUCED, U0, Band, LayerRuns, brownian

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK = of.plot.INK
CLOCK = r"clock $\eta^2 L/H$"


def _band(ax: Any, band: Band, colour: str, label: str) -> None:
    """A mean, and one deviation on either side."""
    low, high = band.mean - band.spread, band.mean + band.spread
    ax.fill_between(band.t, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.plot(band.t, band.mean, color=colour, label=label)


def _dots(ax: Any, band: Band, label: str) -> None:
    """Means, and two standard errors on either side."""
    ax.errorbar(band.t, band.mean, 2 * band.error, fmt="o", color=INK, markersize=3.5, label=label)


def limits(runs: LayerRuns) -> Any:
    """A chain beside the SDE, and chains of more and more heads beside the ODE."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.6, 3.7))
    _band(left, runs.sde, BLUE, "SDE by flow: mean and deviation")
    _dots(left, a := runs.chain, "chain, two heads")
    for end in (a.mean - a.spread, a.mean + a.spread):
        left.plot(a.t, end, "_", color=INK, markersize=8)
    for heads, colour in zip(HEADS, (PINK, GREEN, BLUE), strict=True):
        _band(right, runs.heads[heads], colour, f"{heads} head{'s' * (heads > 1)}")
    right.plot(*runs.ode, "--", color=INK, linewidth=1.5, label="ODE")
    centred, many = "Centred values: noise that is shared", "Values $I$ + noise: many heads follow the ODE"
    of.plot.panel(left, centred, CLOCK, "overlap of two tokens", legend="lower right")
    of.plot.panel(right, many, r"depth $\eta L$", "mean overlap", legend="lower right")
    return fig


def simplices(runs: LayerRuns) -> Any:
    """Orthonormal tokens in two dimensions, and the logistic law."""
    fig, (axes,) = of.plot.figure(1, 3, size=(11.4, 3.5))
    titles = [f"{c.n} orthonormal tokens, $d = {c.d}$" for c in runs.simplex]
    for ax, curves in zip(axes, runs.simplex, strict=False):
        _dots(ax, curves.chain, r"chain, $\eta=0.2$")
        ax.plot(curves.chain.t, curves.exact, color=BLUE, label="ODE of this dimension")
        ax.plot(curves.chain.t, curves.large, "--", color=RED, label=r"ODE as printed, $d=\infty$")
    _dots(axes[2], runs.hot, "chain, $d = 256$")
    t = np.linspace(0, runs.hot.t[-1], 200)
    axes[2].plot(t, hom.logistic(t, runs.hot.mean[0]), color=GREEN, label="logistic law")
    for ax, title in zip(axes, [*titles, "High temperature: the mean overlap"], strict=True):
        of.plot.panel(ax, title, CLOCK, legend="lower right", ylim=(-0.02, 1.0))
    axes[0].set_ylabel(r"overlap $\gamma$")
    return fig


def low_temperature(runs: LayerRuns) -> Any:
    """Paths of overlaps, where they end, and what few tokens do."""
    fig, ((left, middle, right),) = of.plot.figure(1, 3, size=(11.4, 3.5))
    t = np.linspace(0, CROWD, len(runs.paths), endpoint=False)
    for path in runs.paths.T:
        left.plot(t, path, color=RED if path[-1] > 0 else BLUE, linewidth=0.6, alpha=0.6)
    of.plot.panel(left, "Pairs in a uniform crowd, $A$ a rotation", "clock$\\,/\\,d$", "overlap $u$")
    _parallel(middle, runs)
    n = list(runs.few)
    right.semilogx(n, list(runs.few.values()), "o-", color=PINK, label="$n$ tokens, $d = 4$")
    right.axhline(0.5, color=INK, linewidth=1, linestyle="--", label="uniform crowd")
    title = "Few tokens: most pairs end parallel"
    of.plot.panel(right, title, "number of tokens $n$", legend="lower left", xticks=n, ylim=(0.4, 1.03))
    return fig


def _parallel(ax: Any, runs: LayerRuns) -> None:
    """The share of pairs that become parallel, by both laws and as it is found."""
    u, inner = np.linspace(-1, 1, 400), np.linspace(-0.99, 0.99, 200)
    ax.plot(u, hom.aligned_probability(u), color=INK, linewidth=1.2, label=r"$1/2+\arcsin(u_0)/\pi$")
    law = brownian(inner, CROWD)
    ax.plot(inner, law, "--", color=BLUE, linewidth=1.2, label=r"$\mathrm{artanh}\,u$ Brownian, time 2")
    later = hom.aligned_probability(runs.crowd.clip(-1, 1)).numpy()  # what becomes of pairs not yet decided
    for values, colour, mark, label in (
        (runs.ends > 0, GREEN, "o", "diffusion"),
        (later, RED, "s", r"chain, $A$ a rotation, by $\arcsin u(2)$"),
        (runs.product > 0, BLUE, "v", "chain, $A = WW'^T$, at time 2"),
    ):
        bars = 2 * values.std(0) / math.sqrt(len(values))
        ax.errorbar(U0, values.mean(0), bars, fmt=mark, color=colour, markersize=4, label=label)
    title, x = "Pairs that become parallel", "overlap $u_0$ at the beginning"
    of.plot.panel(ax, title, x, "share", legend="upper left", ylim=(None, 1.35))


def freezing() -> Any:
    """Participation ratios beside their limit, and the rate of collapse that they leave."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.6, 3.7))
    for k, n in enumerate(LENGTHS):
        f = hom.participation(REDUCED * hom.critical_scale(n).item(), n).numpy()
        colour, power = of.plot.SEQUENCE(k / (len(LENGTHS) - 1)), int(math.log10(n))
        label = f"$n = {n}$" if n < 1e4 else rf"$n = {n / 10**power:g}\cdot 10^{{{power}}}$"
        left.plot(REDUCED, f, color=colour, label=label)
        right.plot(REDUCED, math.log(n) / (1 - f), color=colour)
    left.plot(REDUCED, np.maximum(1 - 1 / REDUCED, 0), "--", color=INK, label=r"$n=\infty$: $1-b_c/b$")
    for ax in (left, right):
        ax.axvline(1, color=of.plot.FAINT, linewidth=1, zorder=0)
    x, few = r"$b/b_c$,  $b_c=\sqrt{2\log n}$", "A head looks at few tokens beyond $b_c$"
    of.plot.panel(left, few, x, "participation ratio $f$", legend="lower right")
    of.plot.panel(right, "Time to collapse", x, r"$\log n\,/\,(1-f)$", yscale="log")
    return fig


def collapse(size: int, d: int = 64) -> Any:
    """Time to collapse over temperature and length of context, in dimension 64."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.8, 3.9))
    beta, n = np.geomspace(2.0, 200.0, size), np.unique(np.geomspace(4, 100_000, size).astype(int))
    diagram = hom.collapse_diagram(beta, n, d)
    critical = hom.critical_scale(n).numpy() * math.sqrt(d)  # beta with b = b_c
    frozen, slow = "$d = 64$: heads that freeze", "Time until orthonormal tokens collapse"
    for ax, values, label, title in (
        (left, diagram.f, "participation ratio $f(0)$", frozen),
        (right, diagram.time.log10(), r"$\log_{10}$ of the time", slow),
    ):
        mesh = ax.pcolormesh(n, 1 / beta, values, cmap=of.plot.SEQUENCE, shading="nearest", rasterized=True)
        ax.plot(n, 1 / critical, color="white", linewidth=1.6)
        ax.annotate("$b = b_c$", (n[-1] / 60, 1.4 / critical[-1]), color="white", fontsize=8)
        ax.loglog()
        of.plot.panel(ax, title, "length of context $n$", ylim=(1 / beta[-1], 1 / beta[0]))
        fig.colorbar(mesh, ax=ax, label=label).ax.set_title(" ")
    left.set_ylabel(r"temperature $1/\beta$")
    return fig
