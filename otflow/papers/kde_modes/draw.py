"""Draws the figures of the experiment `kde-modes`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import otflow as of
from otflow.papers import kde_modes
from otflow.papers.kde_modes.runs import CURVE, HISTOGRAM, TIMES, Array, CircleModes, ModeGrowth, in_belt

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT


def curve(x: Array) -> Any:
    """The estimator, its modes and the belt; below, the same on a logarithmic scale."""
    (n, beta), ends = CURVE, (-4.6, 4.6)
    belt, top = [edge.item() for edge in kde_modes.belt(n, beta)], kde_modes.mode_positions(x, beta).numpy()
    t = np.linspace(*ends, 2001)
    fig, ((upper,), (lower,)) = of.plot.figure(2, 1, size=(9.6, 5.2))
    for ax in (upper, lower):
        for side in (-1, 1):
            ax.axvspan(*sorted(side * edge for edge in belt), color=FAINT, alpha=0.4, linewidth=0)
        ax.plot(t, estimator(x, t, beta), color=BLUE, linewidth=1.2)
        ax.plot(top, estimator(x, top, beta), "o", color=RED, markersize=3.5)
    title = rf"$n={n}$, $\beta={beta:g}$: {len(top)} modes (red), {in_belt(top).sum()} in the belt (grey)"
    of.plot.panel(upper, title, "", "density", xlim=ends)
    of.plot.panel(
        lower, "the same, logarithmically", "$t$", "density", xlim=ends, yscale="log", ylim=(1e-6, 1)
    )
    return fig


def estimator(x: Array, t: Array, beta: float) -> Array:
    """The density of the tokens, smoothed."""
    values = [np.exp(-beta / 2 * (x - s) ** 2).mean() for s in t]
    return math.sqrt(beta / (2 * math.pi)) * np.array(values)


def histogram(counts: Array) -> Any:
    """How many modes there are in independent runs."""
    (n, beta, runs), mean = HISTOGRAM, counts.mean()
    fig, ((ax,),) = of.plot.figure(1, 1, size=(6.4, 3.6))
    ax.hist(counts, np.arange(counts.min() - 0.5, counts.max() + 1.5), color=BLUE, alpha=0.7, rwidth=0.9)
    ax.axvline(mean, color=BLUE, linewidth=1.6, label=f"mean {mean:.2f}")
    expected = kde_modes.expected_modes(n, beta).item()
    ax.axvline(expected, color=RED, linestyle="--", linewidth=1.6, label=f"expected {expected:.2f}")
    of.plot.panel(ax, rf"$n={n}$, $\beta={beta:g}$, {runs} runs", "number of modes", "runs", legend=True)
    return fig


def growth(found: dict[int, ModeGrowth]) -> Any:
    """Numbers of modes against beta, and as shares of sqrt(beta log beta)."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.6, 4.0))
    b, long = np.linspace(0.32, 1.6, 100), np.geomspace(3, 1e8, 50)
    for colour, (n, g) in zip(
        of.plot.SEQUENCE(np.linspace(0.2, 0.8, len(found))), found.items(), strict=True
    ):
        beta = np.geomspace(g.beta[0], g.beta[-1], 80)
        expected = kde_modes.expected_modes(n, beta).numpy()
        for ax, power in ((left, 0), (right, 1)):
            unit = law(g.beta) ** power
            ax.plot(beta, expected / law(beta) ** power, color=colour, linewidth=1.2)
            ax.errorbar(g.beta, g.mean / unit, 2 * g.error / unit, fmt="o", color=colour, markersize=4)
        left.plot([], [], "o-", color=colour, markersize=4, label=f"$n = {n}$")
        right.plot(float(n) ** b, kde_modes.asymptotic_constant(b), ":", color=colour, linewidth=1.2)
    left.plot(long, 0.39 * law(long), "--", color=INK, linewidth=1, label=r"$0.39\sqrt{\beta\log\beta}$")
    title = "simulated (points) and expected (lines)"
    of.plot.panel(left, title, r"$\beta$", "number of modes", legend="upper left", xscale="log", yscale="log")
    title, words = "the law and its constant for large $n$ (dotted)", r"modes$\,/\sqrt{\beta\log\beta}$"
    of.plot.panel(right, title, r"$\beta$", words, xscale="log", ylim=(0, 0.7))
    return fig


def law(beta: Array) -> Array:
    """sqrt(beta log beta)."""
    return np.sqrt(beta * np.log(beta))


def density(t: Array, runs: int) -> Any:
    """Where modes are."""
    (n, beta), edges, s = CURVE, np.linspace(0, 5, 51), np.linspace(0, 5, 400)
    fig, ((ax,),) = of.plot.figure(1, 1, size=(7.4, 4.0))
    count = np.histogram(np.abs(t), edges)[0] / (2 * runs * np.diff(edges))
    ax.stairs(count, edges, fill=True, color=BLUE, alpha=0.45, label=f"{runs} runs")
    ax.plot(s, kde_modes.mode_density(s, n, beta), color=RED, label="expected")
    ax.plot(s, kde_modes.kac_rice_density(s, n, beta), "--", color=INK, label="Kac and Rice, Gaussian noise")
    for edge in kde_modes.belt(n, beta):
        ax.axvline(edge.item(), color=GREEN, linestyle=":", linewidth=1.4)
    ax.plot([], [], ":", color=GREEN, label="ends of the belt")
    title, legend = rf"$n={n}$, $\beta={beta:g}$: where the modes are", {"loc": "upper center"}
    of.plot.panel(ax, title, "$|t|$", "modes per unit length", legend=legend, ylim=(0, 5.4))
    return fig


def circle(found: dict[float, CircleModes]) -> Any:
    """Clusters over modes of the start, against time."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.6, 3.8))
    for colour, (beta, c) in zip((BLUE, RED), found.items(), strict=False):
        for values, mark, name in ((c.clusters, "o-", "attention"), (c.frozen, "s--", "frozen")):
            style: Any = {
                "color": colour,
                "markersize": 4,
                "linewidth": 1.2,
                "label": rf"{name}, $\beta={beta:g}$",
            }
            left.plot(TIMES, values.mean(1) / c.modes.mean(), mark, **style)
            right.plot(TIMES, (values == c.modes).mean(1), mark, **style)
    left.axhline(1, color=INK, linewidth=0.8)
    title, words = "64 tokens on the circle: means", "clusters / modes of the start"
    of.plot.panel(left, title, "time", words, xscale="log", legend=True)
    of.plot.panel(right, "as many clusters as modes", "time", "share of runs", xscale="log", ylim=(0, 1.02))
    return fig
