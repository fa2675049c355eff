"""The figures of the experiment `interpolation`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import otflow as of
from otflow.papers.interpolation.runs import MASSES, TARGETS, masses

if TYPE_CHECKING:
    from otflow.papers.interpolation import Frames, Path
    from otflow.papers.interpolation.runs import InterpolationRuns

COLOUR = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT
VIEW = {"elev": 25, "azim": -50}


def threading(runs: InterpolationRuns) -> Any:
    """Eight moments of the path: clouds, and crosses at their targets."""
    frames = [runs.path.trajectory(mu) for mu in runs.clouds]
    shown = _moments(frames[0].phases, 8)
    fig, axes = of.plot.figure(2, 4, size=(11.5, 6.2), spatial=True)
    for ax, k in zip(axes.flat, shown, strict=True):
        ax.view_init(**VIEW)
        for colour, f, y in zip(COLOUR, frames, TARGETS, strict=True):
            of.plot.particles(f.measures[k], ax=ax, color=colour, size=14)
            ax.scatter(*(1.02 * y), marker="x", s=45, color=colour, linewidth=1.6)
        _title(ax, f"{k}: {_words(frames[0].phases[k])}")
    return fig


def _moments(phases: tuple[str, ...], n: int) -> list[int]:
    """The start, one step of disentangling in full, the end, and moments between."""
    first = next(k for k, phase in enumerate(phases) if phase.startswith("disentangle"))
    rest = np.linspace(first + 2, len(phases) - 1, n - 3).round().astype(int)
    return [0, first, first + 1, *rest.tolist()]


def _words(phase: str) -> str:
    """Clouds counted from one, as people do."""
    *words, last = phase.split()
    return " ".join([*words, f"cloud {int(last) + 1}"]) if last.isdigit() else phase


def phases(runs: InterpolationRuns) -> Any:
    """Distance to the target and diameter of each cloud along the two paths."""
    fig, axes = of.plot.figure(2, 2, size=(10.5, 6.0))
    for (top, bottom), path, name in zip(
        axes.T, (runs.path, runs.paper), ("single gates", "gather, corridor, restore"), strict=True
    ):
        for k, (mu, y) in enumerate(zip(runs.clouds, TARGETS, strict=True)):
            frames = path.trajectory(mu, 8)
            at = np.linspace(0, len(path.pieces), len(frames.times))
            top.plot(at, _distances(frames, y), color=COLOUR[k], label=f"cloud {k + 1}")
            wide = [of.observables.diameter(m).item() for m in frames.measures]
            bottom.plot(at, np.maximum(wide, 1e-6), color=COLOUR[k])
        _strips(top, path)
        _strips(bottom, path)
        top.set(yscale="log", ylabel="largest angle to the target")
        bottom.set(yscale="log", ylabel="diameter", xlabel="piece")
        for ax in (top, bottom):
            ax.set_xticks(range(0, len(path.pieces) + 1, 2))
        _title(top, f"{name}: {len(path.pieces)} pieces")
        _title(bottom, "diameters of the clouds")
    axes[0, 0].legend(loc="lower left", fontsize=8)
    return fig


def _distances(frames: Frames, y: np.ndarray) -> list[float]:
    aim = torch.from_numpy(y)
    return [max(m.space.distance(m.x, aim).max().item(), 1e-6) for m in frames.measures]


def _strips(ax: Any, path: Path) -> None:
    """Pieces with attention are shaded."""
    for k, piece in enumerate(path.pieces):
        if piece.gain:
            ax.axvspan(k, k + 1, color=FAINT, alpha=0.35, linewidth=0)


def atoms(runs: InterpolationRuns) -> Any:
    """A cloud cut into three, where it ends, and the masses of a fresh sample."""
    fig, axes = of.plot.figure(1, 4, size=(12.5, 3.5))
    space = [of.plot.spatial(ax) for ax in axes[0, :3]]
    ends = [runs.atoms(mu) for mu in runs.fresh]
    for k, ax in enumerate(space):
        mu, nu = runs.fresh[k], runs.targets[k]
        which = mu.space.pairwise(ends[k].x, nu.x).argmin(1).numpy()
        ax.view_init(**VIEW)
        some = slice(0, 400)
        colours = np.array(COLOUR)[which[some]]
        of.plot.particles(of.Particles(mu.x[some], space=of.Sphere()), ax=ax, color=list(colours), size=7)
        for y, colour, mass in zip(nu.x.numpy(), COLOUR, MASSES, strict=True):
            ax.scatter(*(1.02 * y), s=400 * mass, color=colour, edgecolor=INK, linewidth=0.8)
        _title(ax, f"cloud {k + 1}: which points go to which atom")
    last, se = axes[0, 3], np.sqrt(2 * MASSES * (1 - MASSES) / runs.fresh[0].n)
    for k, (end, nu) in enumerate(zip(ends, runs.targets, strict=True)):
        at = np.arange(3) + 0.2 * (k - 1)
        last.errorbar(
            at, masses(end, nu), 3 * se, fmt="o", color=INK, markersize=4 + k, capsize=2, linewidth=1
        )
    last.bar(np.arange(3), MASSES, width=0.75, color=COLOUR, alpha=0.35)
    last.set(xlabel="atom", ylabel="mass", xticks=range(3), xticklabels=["1", "2", "3"])
    _title(last, "masses, fresh samples, ± 3 errors")
    return fig


def counts(found: dict[tuple[int, int], list[tuple[int, int, float]]]) -> Any:
    """Pieces against the number of measures."""
    fig, axes = of.plot.figure(1, 2, size=(8.6, 3.5))
    for ax, d in zip(axes.flat, (3, 4), strict=True):
        Ns = sorted(N for dim, N in found if dim == d)
        for which, (name, colour) in enumerate(
            zip(("single gates", "gather, corridor, restore"), COLOUR, strict=False)
        ):
            for N in Ns:
                ax.plot(
                    [N] * len(found[d, N]), [c[which] for c in found[d, N]], "o", color=colour, markersize=3
                )
            ax.plot(Ns, [np.median([c[which] for c in found[d, N]]) for N in Ns], color=colour, label=name)
        ax.plot(Ns, [6 * N for N in Ns], "--", color=FAINT, label="6 N", zorder=0)
        ax.set(xlabel="measures N", ylabel="pieces", ylim=(0, None), xticks=Ns)
        _title(ax, f"d = {d}")
    axes[0, 0].legend(loc="upper left", fontsize=8)
    return fig


def _title(ax: Any, words: str) -> None:
    ax.set_title(words, fontsize=9.5)
