"""Draws the figures of the experiment `metastability`."""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow.papers.metastability.runs import APART, COLD, KINDS, MOVIE, Array, CapTimes, StaircaseRun

BLUE, ORANGE = of.plot.COLOURS[:2]
INK = of.plot.INK
END = 1.08  # of the axis of log t / beta, over the last jump


def staircases(authors: dict[float, StaircaseRun], cold: dict[tuple[str, str], StaircaseRun]) -> Any:
    """Energies against log t / beta, with the predicted steps."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.6, 4.0))
    shades = of.plot.SEQUENCE(np.linspace(0.15, 0.95, len(authors)))
    for colour, (beta, steps) in zip(shades, authors.items(), strict=True):
        _climb(left, steps, colour, rf"$\beta={beta:g}$", colour)
    first = next(iter(cold))[0]
    for colour, kind in zip((BLUE, ORANGE), KINDS, strict=True):
        _climb(right, cold[first, kind], colour, kind, INK)
    titles = {left: "the authors' start, five equal tokens, USA", right: rf"{first}, $\beta={COLD:g}$"}
    for ax, title in titles.items():
        ax.plot([], [], ":", color=INK, label="predicted")
        of.plot.panel(ax, title, r"$\log t\,/\,\beta$", ylim=(0, 1.06), legend="upper left")
    left.set_ylabel("energy")
    return fig


def _climb(ax: Any, steps: StaircaseRun, colour: Any, label: str, dots: Any) -> None:
    """The simulation, with its first plateau drawn from t = 1 on, and dotted the predicted staircase."""
    s, energy = steps.run.s.numpy(), steps.run.energy.numpy()
    places, values = [min(0.0, s[0]), *s, END * s[-1]], [energy[0], *energy, energy[-1]]
    ax.plot(places, values, color=colour, linewidth=1.6, label=label)
    jumps, levels = steps.predicted.log_times.numpy(), steps.predicted.levels.numpy()
    corners = [0.0, *np.repeat(jumps, 2), END * jumps[-1]]
    ax.plot(corners, np.repeat(levels, 2), ":", color=dots, linewidth=1.4)


def paths(cold: dict[str, StaircaseRun]) -> Any:
    """Angles against log t / beta, with the predicted merges."""
    fig, axes = of.plot.figure(1, len(cold), size=(10.6, 4.0))
    for ax, (kind, (run, predicted)) in zip(axes.flat, cold.items(), strict=True):
        s = run.s.numpy()
        for token, colour in zip(run.theta.numpy().T, of.plot.COLOURS, strict=False):
            ax.plot([0.0, *s, END * s[-1]], [token[0], *token, token[-1]], color=colour, linewidth=1.6)
        merges = predicted.log_times, predicted.merge_points
        ax.plot(*merges, "o", color=INK, fillstyle="none", label="predicted")
        title = rf"{kind}, $\beta={COLD:g}$: from saddle to saddle"
        of.plot.panel(ax, title, r"$\log t\,/\,\beta$", legend="lower right")
    axes[0, 0].set_ylabel("angle")
    return fig


def circles(movie: Array) -> Any:
    """Five tokens at beta = 4, at four times."""
    fig, axes = of.plot.figure(1, len(MOVIE), size=(10.6, 2.9))
    ring, limits = np.linspace(0, 2 * np.pi, 200), (-1.2, 1.2)
    for ax, t, theta in zip(axes.flat, MOVIE, movie, strict=True):
        ax.plot(np.cos(ring), np.sin(ring), color=of.plot.FAINT, linewidth=1)
        colours = of.plot.COLOURS[: len(theta)]
        ax.scatter(np.cos(theta), np.sin(theta), s=46, color=colours, alpha=0.75, zorder=3)
        of.plot.panel(ax, rf"$\beta=4$, $t={t:g}$", xlim=limits, ylim=limits, aspect="equal").set_axis_off()
    return fig


def scales(times: dict[str, list[CapTimes]]) -> Any:
    """Bounds and measured times against beta."""
    fig, ((ax,),) = of.plot.figure(1, 1, size=(6.6, 4.2))
    beta, log_T1, _, log_T2, *_ = zip(*times["SA"], strict=True)
    ax.plot(beta, log_T2, "-", color=INK, label="$T_2$: tokens stay until then")
    ax.plot(beta, log_T1, "--", color=INK, label="$T_1$: collapsed from then on")
    for (kind, own), colour, mark in zip(times.items(), (BLUE, ORANGE), ("o", "x"), strict=True):
        ax.plot(beta, [t.exit for t in own], mark, color=colour, label=f"caps are left, {kind}")
        ax.plot(beta, [t.collapse for t in own], mark, color=colour, alpha=0.5, label=f"collapse, {kind}")
    title = f"two caps at an angle of {APART:g}: bounds and measured times"
    of.plot.panel(ax, title, r"$\beta$", r"$\log t$", legend="upper left")
    return fig
