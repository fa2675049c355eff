"""The figures of the experiment `kde-modes`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow.papers import kde_modes
from otflow.papers.kde_modes.runs import CURVE, HISTOGRAM, TIMES, Array

if TYPE_CHECKING:
    from otflow.papers.kde_modes.runs import CircleModes, ModeGrowth

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT


def curve(x: Array) -> Any:
    """The estimator, its modes and the belt; below, the same on a logarithmic scale."""
    n, beta = CURVE
    low, high = (edge.item() for edge in kde_modes.belt(n, beta))
    top = kde_modes.mode_positions(x, beta).numpy()
    t = np.linspace(-4.6, 4.6, 2001)
    fig, axes = of.plot.figure(2, 1, size=(9.6, 5.2))
    for ax in axes.flat:
        for side in (-1, 1):
            ax.axvspan(*sorted((side * low, side * high)), color=FAINT, alpha=0.4, linewidth=0)
        ax.plot(t, estimator(x, t, beta), color=BLUE, linewidth=1.2)
        ax.plot(top, estimator(x, top, beta), "o", color=RED, markersize=3.5)
        ax.set_xlim(-4.6, 4.6)
    axes[1, 0].set(yscale="log", ylim=(1e-6, 1), xlabel="t", title="the same, logarithmically")
    inside = int(((np.abs(top) >= low) & (np.abs(top) <= high)).sum())
    axes[0, 0].set_title(f"n = {n}, beta = {beta:g}: {len(top)} modes (red), {inside} in the belt (grey)")
    for ax in axes.flat:
        ax.set_ylabel("density")
    return fig


def estimator(x: Array, t: Array, beta: float) -> Array:
    """The density of the tokens, smoothed."""
    values = [np.exp(-beta / 2 * (x - s) ** 2).mean() for s in t]
    return math.sqrt(beta / (2 * math.pi)) * np.array(values)


def histogram(counts: Array) -> Any:
    """How many modes there are in independent runs."""
    n, beta, runs = HISTOGRAM
    fig, axes = of.plot.figure(1, 1, size=(6.4, 3.6))
    ax, ks = axes[0, 0], np.arange(counts.min() - 0.5, counts.max() + 1.5)
    ax.hist(counts, ks, color=BLUE, alpha=0.7, rwidth=0.9)
    ax.axvline(counts.mean(), color=BLUE, linewidth=1.6, label=f"mean {counts.mean():.2f}")
    expected = kde_modes.expected_modes(n, beta).item()
    ax.axvline(expected, color=RED, linestyle="--", linewidth=1.6, label=f"expected {expected:.2f}")
    ax.set(xlabel="number of modes", ylabel="runs", title=f"n = {n}, beta = {beta:g}, {runs} runs")
    ax.legend()
    return fig


def growth(found: dict[int, ModeGrowth]) -> Any:
    """Numbers of modes against beta, and as shares of sqrt(beta log beta)."""
    fig, axes = of.plot.figure(1, 2, size=(10.6, 4.0))
    colours = of.plot.SEQUENCE(np.linspace(0.2, 0.8, len(found)))
    for colour, (n, g) in zip(colours, found.items(), strict=True):
        beta = np.geomspace(g.beta[0], g.beta[-1], 80)
        expected = kde_modes.expected_modes(n, beta).numpy()
        for ax, power in zip(axes.flat, (0, 1), strict=True):
            unit = law(g.beta) ** power
            ax.plot(beta, expected / law(beta) ** power, color=colour, linewidth=1.2)
            ax.errorbar(g.beta, g.mean / unit, 2 * g.error / unit, fmt="o", color=colour, markersize=4)
        axes[0, 0].plot([], [], "o-", color=colour, markersize=4, label=f"n = {n}")
        b = np.linspace(0.32, 1.6, 100)
        axes[0, 1].plot(float(n) ** b, kde_modes.asymptotic_constant(b), ":", color=colour, linewidth=1.2)
    axes[0, 0].set(xscale="log", yscale="log", xlabel="beta", ylabel="number of modes")
    axes[0, 0].set_title("simulated (points) and expected (lines)")
    beta = np.geomspace(3, 1e8, 50)
    axes[0, 0].plot(beta, 0.39 * law(beta), "--", color=INK, linewidth=1, label="0.39 sqrt(beta log beta)")
    axes[0, 0].legend(loc="upper left")
    axes[0, 1].set(xscale="log", xlabel="beta", ylabel="modes / sqrt(beta log beta)", ylim=(0, 0.7))
    axes[0, 1].set_title("the law and its constant for large n (dotted)")
    return fig


def law(beta: Array) -> Array:
    """sqrt(beta log beta)."""
    return np.sqrt(beta * np.log(beta))


def density(t: Array, runs: int) -> Any:
    """Where modes are."""
    n, beta = CURVE
    fig, axes = of.plot.figure(1, 1, size=(7.4, 4.0))
    ax, edges = axes[0, 0], np.linspace(0, 5, 51)
    count = np.histogram(np.abs(t), edges)[0] / (2 * runs * np.diff(edges))
    ax.stairs(count, edges, fill=True, color=BLUE, alpha=0.45, label=f"{runs} runs")
    s = np.linspace(0, 5, 400)
    ax.plot(s, kde_modes.mode_density(s, n, beta), color=RED, label="expected")
    ax.plot(s, kde_modes.kac_rice_density(s, n, beta), "--", color=INK, label="Kac and Rice, Gaussian noise")
    for edge in kde_modes.belt(n, beta):
        ax.axvline(edge.item(), color=GREEN, linestyle=":", linewidth=1.4)
    ax.plot([], [], ":", color=GREEN, label="ends of the belt")
    ax.set(xlabel="|t|", ylabel="modes per unit length", ylim=(0, 5.4))
    ax.set_title(f"n = {n}, beta = {beta:g}: where the modes are")
    ax.legend(loc="upper right", ncols=2)
    return fig


def circle(found: dict[float, CircleModes]) -> Any:
    """Clusters over modes of the start, against time."""
    fig, axes = of.plot.figure(1, 2, size=(10.6, 3.8))
    for colour, (beta, c) in zip((BLUE, RED), found.items(), strict=False):
        for values, mark, name in ((c.clusters, "o-", "attention"), (c.frozen, "s--", "frozen")):
            label = f"{name}, beta = {beta:g}"
            style = {"color": colour, "markersize": 4, "linewidth": 1.2, "label": label}
            axes[0, 0].plot(TIMES, values.mean(1) / c.modes.mean(), mark, **style)
            axes[0, 1].plot(TIMES, (values == c.modes).mean(1), mark, **style)
    axes[0, 0].axhline(1, color=INK, linewidth=0.8)
    axes[0, 0].set(ylabel="clusters / modes of the start", title="64 tokens on the circle: means")
    axes[0, 1].set(ylabel="share of runs", ylim=(0, 1.02), title="as many clusters as modes")
    for ax in axes.flat:
        ax.set(xscale="log", xlabel="time")
    axes[0, 0].legend()
    return fig
