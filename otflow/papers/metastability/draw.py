"""The figures of the experiment `metastability`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow.papers.metastability.runs import APART, COLD, KINDS, MOVIE

if TYPE_CHECKING:
    from otflow.papers.metastability.runs import MergeTimes, StaircaseRun

BLUE, ORANGE = of.plot.COLOURS[:2]
INK, FAINT = of.plot.INK, of.plot.FAINT


def staircases(authors: dict[float, StaircaseRun], cold: dict[tuple[str, str], StaircaseRun]) -> Any:
    """Energies against log t / beta, with the predicted steps."""
    fig, axes = of.plot.figure(1, 2, size=(10.6, 4.0))
    shades = _shades(len(authors))
    for colour, (beta, steps) in zip(shades, authors.items(), strict=True):
        _climb(axes[0, 0], steps, colour, f"β = {beta:g}")
        _predicted(axes[0, 0], steps, colour)
    axes[0, 0].plot([], [], ":", color=INK, label="predicted")
    axes[0, 0].set_title("the authors' start, five equal tokens, USA")
    first = next(iter(cold))[0]
    for colour, kind in zip((BLUE, ORANGE), KINDS, strict=True):
        _climb(axes[0, 1], cold[first, kind], colour, kind)
        _predicted(axes[0, 1], cold[first, kind], INK)
    axes[0, 1].plot([], [], ":", color=INK, label="predicted")
    axes[0, 1].set_title(f"{first}, β = {COLD:g}")
    for ax in axes.flat:
        ax.set(xlabel="log t / β", ylim=(0, 1.06))
        ax.legend(loc="upper left", fontsize=8)
    axes[0, 0].set_ylabel("energy")
    return fig


def _shades(count: int) -> list[Any]:
    return [of.plot.SEQUENCE(v) for v in np.linspace(0.15, 0.95, count)]


def _climb(ax: Any, steps: StaircaseRun, colour: Any, label: str) -> None:
    """The simulation, with its first plateau drawn from t = 1 on."""
    s, energy = steps.run.s.numpy(), steps.run.energy.numpy()
    begin, end = min(0.0, s[0]), 1.08 * s[-1]
    ax.plot([begin, *s, end], [energy[0], *energy, energy[-1]], color=colour, linewidth=1.6, label=label)


def _predicted(ax: Any, steps: StaircaseRun, colour: Any) -> None:
    jumps, levels = steps.predicted.log_times.numpy(), steps.predicted.levels.numpy()
    s = np.concatenate([[0.0], np.repeat(jumps, 2), [1.08 * jumps[-1]]])
    ax.plot(s, np.repeat(levels, 2), ":", color=colour, linewidth=1.4)


def paths(cold: dict[str, StaircaseRun]) -> Any:
    """Angles against log t / beta, with the predicted merges."""
    fig, axes = of.plot.figure(1, len(cold), size=(10.6, 4.0))
    for ax, (kind, steps) in zip(axes.flat, cold.items(), strict=True):
        s, theta = steps.run.s.numpy(), steps.run.theta.numpy()
        for token, colour in zip(theta.T, of.plot.COLOURS, strict=False):
            ax.plot([0.0, *s, 1.08 * s[-1]], [token[0], *token, token[-1]], color=colour, linewidth=1.6)
        predicted = steps.predicted
        ax.plot(
            predicted.log_times, predicted.merge_points, "o", color=INK, fillstyle="none", label="predicted"
        )
        ax.set(xlabel="log t / β", title=f"{kind}, β = {COLD:g}: from saddle to saddle")
        ax.legend(loc="lower right", fontsize=8)
    axes[0, 0].set_ylabel("angle")
    return fig


def circles(movie: np.ndarray) -> Any:
    """Five tokens at beta = 4, at four times."""
    fig, axes = of.plot.figure(1, len(MOVIE), size=(10.6, 2.9))
    ring = np.linspace(0, 2 * np.pi, 200)
    for ax, t, theta in zip(axes.flat, MOVIE, movie, strict=True):
        ax.plot(np.cos(ring), np.sin(ring), color=FAINT, linewidth=1)
        ax.scatter(
            np.cos(theta), np.sin(theta), s=46, color=of.plot.COLOURS[: len(theta)], alpha=0.75, zorder=3
        )
        ax.set(title=f"β = 4, t = {t:g}", xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
        ax.set_axis_off()
    return fig


def scales(times: list[MergeTimes]) -> Any:
    """Bounds and measured times against beta."""
    fig, axes = of.plot.figure(1, 1, size=(6.6, 4.2))
    ax, own = axes[0, 0], [t for t in times if t.kind == "SA"]
    beta = [t.beta for t in own]
    ax.plot(beta, [t.bounds.log_T2 for t in own], "-", color=INK, label="T₂: tokens stay until then")
    ax.plot(beta, [t.bounds.log_T1 for t in own], "--", color=INK, label="T₁: collapsed from then on")
    for kind, colour, mark in zip(KINDS, (BLUE, ORANGE), ("o", "x"), strict=True):
        mine = [t for t in times if t.kind == kind]
        ax.plot(beta, [t.exit for t in mine], mark, color=colour, label=f"caps are left, {kind}")
        ax.plot(beta, [t.collapse for t in mine], mark, color=colour, alpha=0.5, label=f"collapse, {kind}")
    ax.set(xlabel="β", ylabel="log t", title=f"two caps at an angle of {APART:g}: bounds and measured times")
    ax.legend(loc="upper left", fontsize=8)
    return fig
