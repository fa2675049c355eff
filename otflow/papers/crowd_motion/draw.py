"""The figures of the experiment `crowd-motion`."""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow.papers.crowd_motion.runs import Crowd, CrowdOnLine
from otflow.plot.densities import density

BLUE, RED = of.plot.COLOURS[:2]
INK, FAINT = of.plot.INK, of.plot.FAINT
SHOWN = (0.0, 0.12, 0.27, 0.5, 1.0)  # parts of a run


def scene(crowd: Crowd) -> Any:
    """Five moments: the density, contours of V in grey, and in red where the crowd must end."""
    fig, (row,) = of.plot.figure(1, len(SHOWN), size=(12.4, 2.9))
    x, V, limit = crowd.densities[0].axes[0].numpy(), crowd.potential.numpy(), crowd.scene.limit
    edge = np.quantile(V, 1 / (limit * 4.0))  # the room has the area 4
    for ax, part in zip(row, SHOWN, strict=True):
        k = round(part * (len(crowd.t) - 1))
        density(crowd.densities[k], ax=ax, top=limit)
        ax.contour(x, x, V.T, levels=12, colors=[FAINT], linewidths=0.5)
        ax.contour(x, x, V.T, levels=[edge], colors=[RED], linewidths=1.1)
        title = f"$t = {crowd.t[k]:.3g}$,  {crowd.full_share(k):.0%} at the limit"
        of.plot.panel(ax, title, xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    return fig


def certificates(crowds: dict[str, Crowd], sharp: Crowd, halos: dict[float, float], line: CrowdOnLine) -> Any:
    """Energies above the least one, the congested share of the mass, the halo of blur, and the line."""
    fig, (row,) = of.plot.figure(1, 4, size=(14.0, 3.4))
    _energies(row[0], crowds, sharp)
    _congestion(row[1], crowds)
    _halo(row[2], halos)
    _line(row[3], line)
    return fig


def _energies(ax: Any, crowds: dict[str, Crowd], sharp: Crowd) -> None:
    runs, looks = {**crowds, "bowl, without blur": sharp}, (("o-", 3, BLUE), ("o-", 3, RED), ("x", 5, INK))
    for (name, crowd), (style, size, colour) in zip(runs.items(), looks, strict=True):
        # A start above the limit has no energy, the bound being part of it.
        start = int(crowd.densities[0].density.max() > crowd.scene.limit)
        above = np.maximum(crowd.energy - crowd.least, 1e-6)
        ax.plot(crowd.t[start:], above[start:], style, ms=size, lw=1, color=colour, label=name)
    title = "energies fall to the least one under the bound"
    of.plot.panel(ax, title, "$t$", "energy above the least one", legend="upper right", yscale="log")


def _congestion(ax: Any, crowds: dict[str, Crowd]) -> None:
    for (name, crowd), colour in zip(crowds.items(), (BLUE, RED), strict=True):
        share = [crowd.full_share(k) for k in range(len(crowd.t))]
        ax.plot(crowd.t, share, "o-", ms=3, lw=1, color=colour, label=name)
    of.plot.panel(
        ax, "congestion", "$t$", "part of the mass at the limit", legend="lower right", ylim=(0, 1.02)
    )


def _halo(ax: Any, halos: dict[float, float]) -> None:
    eps, far = np.array(list(halos)), list(halos.values())
    ax.plot(eps, far, "o-", ms=4, color=BLUE, label=r"bowl, $64\times64$ cells")
    for power, style in ((0.5, ":"), (1.0, "--")):
        ax.plot(eps, far[0] * (eps / eps[0]) ** power, style, color=INK, lw=1, label=f"slope {power:g}")
    scales = {"xscale": "log", "yscale": "log", "xticks": eps, "yticks": (0.01, 0.02, 0.05, 0.1)}
    of.plot.panel(
        ax, "blur leaves a halo", r"$\varepsilon$", "$L^1$ to the packed crowd", legend="upper left", **scales
    )


def _line(ax: Any, line: CrowdOnLine) -> None:
    picks = [0, 3, 6, len(line.t) - 1]
    for k, colour in zip(picks, of.plot.SEQUENCE(np.linspace(0, 1, len(picks))), strict=True):
        density(line.runs[k], ax=ax, color=colour, label=f"$t = {line.t[k]:g}$")
        edges, levels = line.projected[k], line.runs[k].levels.numpy()
        middle, every = (edges[1:] + edges[:-1]) / 2, max(1, len(levels) // 40)
        ax.plot(middle[::every], (np.diff(levels) / np.diff(edges))[::every], ".", ms=4, color=colour)
    ax.plot([], [], ".", ms=4, color=INK, label="isotonic regression")
    ax.axhline(1.0, color=RED, lw=1)
    tight = {"loc": "upper right", "ncols": 2}
    of.plot.panel(
        ax,
        "on the line: densities in the bowl",
        "",
        "",
        legend=tight,
        ylim=(0, 1.6),
    )
