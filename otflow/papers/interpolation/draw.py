"""Pictures of the experiment `interpolation`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import otflow as of
from otflow.papers.interpolation.runs import MASSES, TARGETS, Counts, InterpolationRuns, mass_error, masses

COLOUR = of.plot.COLOURS[:3]
KINDS = ("single gates", "gather, corridor, restore")
VIEW: Any = {"elev": 25, "azim": -50}


def threading(runs: InterpolationRuns) -> Any:
    """Eight moments of the path: clouds, and crosses at their targets."""
    frames = [runs.path.trajectory(mu) for mu in runs.clouds]
    phases = frames[0].phases
    fig, axes = of.plot.figure(2, 4, size=(11.5, 6.2), spatial=True)
    for ax, k in zip(axes.flat, _moments(phases, 8), strict=True):
        ax.view_init(**VIEW)
        for colour, f, y in zip(COLOUR, frames, TARGETS, strict=True):
            of.plot.particles(f.measures[k], ax=ax, color=colour, size=14)
            ax.scatter(*(1.02 * y), marker="x", s=45, color=colour, linewidth=1.6)
        *words, last = phases[k].split()
        name = " ".join([*words, f"cloud {int(last) + 1}"]) if last.isdigit() else phases[k]
        of.plot.panel(ax, f"{k}: {name}")
    return fig


def _moments(phases: tuple[str, ...], n: int) -> list[int]:
    """The start, one step of disentangling in full, the end, and moments between."""
    first = next(k for k, phase in enumerate(phases) if phase.startswith("disentangle"))
    rest = np.linspace(first + 2, len(phases) - 1, n - 3).round().astype(int)
    return [0, first, first + 1, *rest.tolist()]


def phases(runs: InterpolationRuns) -> Any:
    """Distance to the target and diameter of each cloud along the two paths; with attention, shaded."""
    fig, axes = of.plot.figure(2, 2, size=(10.5, 6.0))
    for (top, bottom), path, name in zip(axes.T, (runs.path, runs.paper), KINDS, strict=True):
        for k, (mu, y) in enumerate(zip(runs.clouds, torch.from_numpy(TARGETS), strict=True)):
            measures = path.trajectory(mu, 8).measures
            at = np.linspace(0, len(path.pieces), len(measures))
            away = [m.space.distance(m.x, y).max() for m in measures]
            wide = [of.observables.diameter(m) for m in measures]
            top.plot(at, np.maximum(away, 1e-6), color=COLOUR[k], label=f"cloud {k + 1}")
            bottom.plot(at, np.maximum(wide, 1e-6), color=COLOUR[k])
        for ax in (top, bottom):
            for k in (k for k, piece in enumerate(path.pieces) if piece.gain):
                ax.axvspan(k, k + 1, color=of.plot.FAINT, alpha=0.35, linewidth=0)
        even, title = range(0, len(path.pieces) + 1, 2), f"{name}: {len(path.pieces)} pieces"
        of.plot.panel(top, title, "", "largest angle to the target", xticks=even, yscale="log")
        of.plot.panel(bottom, "diameters of the clouds", "piece", "diameter", xticks=even, yscale="log")
    of.plot.panel(axes[0, 0], legend="lower left")
    return fig


def atoms(runs: InterpolationRuns) -> Any:
    """A cloud cut into three, where it ends, and the masses of a fresh sample."""
    fig, ((*planes, last),) = of.plot.figure(1, 4, size=(12.5, 3.5))
    for k, (plane, mu, nu) in enumerate(zip(planes, runs.fresh, runs.targets, strict=True)):
        ax, end = of.plot.spatial(plane), runs.atoms(mu)
        which = mu.space.pairwise(end.x, nu.x).argmin(1).numpy()[:400]
        some, colours = of.Particles(mu.x[:400], space=of.Sphere()), list(np.array(COLOUR)[which])
        ax.view_init(**VIEW)  # before points are drawn: the outline of the sphere depends on it
        of.plot.particles(some, ax=ax, color=colours, size=7)
        above = 1.02 * nu.x.numpy().T  # a little above the sphere, which would hide them
        marks: Any = {"s": 400 * MASSES, "color": COLOUR, "edgecolor": of.plot.INK, "linewidth": 0.8}
        ax.scatter(*above, depthshade=False, **marks)
        of.plot.panel(ax, f"cloud {k + 1}: which points go to which atom")
        at, bars = np.arange(3) + 0.2 * (k - 1), 3 * mass_error(mu.n)
        dots: Any = {"fmt": "o", "color": of.plot.INK, "markersize": 4 + k, "capsize": 2, "linewidth": 1}
        last.errorbar(at, masses(end, nu), bars, **dots)
    last.bar(np.arange(3), MASSES, width=0.75, color=COLOUR, alpha=0.35)
    title = r"masses, fresh samples, $\pm 3$ errors"
    of.plot.panel(last, title, "atom", "mass", xticks={0: "1", 1: "2", 2: "3"})
    return fig


def counts(found: Counts) -> Any:
    """Pieces against the number of measures."""
    fig, (axes,) = of.plot.figure(1, 2, size=(8.6, 3.5))
    for ax, d in zip(axes, (3, 4), strict=True):
        Ns = sorted(N for dim, N in found if dim == d)
        for which, (name, colour) in enumerate(zip(KINDS, COLOUR, strict=False)):
            pieces = [[c[which] for c in found[d, N]] for N in Ns]
            ax.plot(Ns, pieces, "o", color=colour, markersize=3)
            ax.plot(Ns, np.median(pieces, axis=1), color=colour, label=name)
        ax.plot(Ns, [6 * N for N in Ns], "--", color=of.plot.FAINT, label="$6N$", zorder=0)
        of.plot.panel(ax, f"$d = {d}$", "measures $N$", "pieces", xticks=Ns, ylim=(0, None))
    of.plot.panel(axes[0], legend="upper left")
    return fig
