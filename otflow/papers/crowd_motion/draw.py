"""The figures of the experiment `crowd-motion`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow.plot.densities import density

if TYPE_CHECKING:
    from otflow.papers.crowd_motion.runs import Crowd, CrowdOnLine

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT
SHOWN = (0.0, 0.12, 0.27, 0.5, 1.0)  # parts of a run


def scene(crowd: Crowd) -> Any:
    """Five moments: the density, contours of V in grey, and in red where the crowd must end."""
    fig, axes = of.plot.figure(1, len(SHOWN), size=(12.4, 2.9))
    x, V, last = crowd.densities[0].axes[0].numpy(), crowd.potential.numpy(), len(crowd.t) - 1
    edge = np.quantile(V, 1 / (crowd.scene.limit * 4.0))  # the room has the area 4
    for ax, part in zip(axes[0], SHOWN, strict=True):
        k = round(part * last)
        density(crowd.densities[k], ax=ax, top=crowd.scene.limit)
        ax.contour(x, x, V.T, levels=12, colors=[FAINT], linewidths=0.5)
        ax.contour(x, x, V.T, levels=[edge], colors=[RED], linewidths=1.1)
        ax.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        title = f"t = {crowd.t[k]:.3g},  {_full(crowd, k):.0%} at the limit"
        ax.set_title(title, fontsize=8.5, color=INK)
    return fig


def _full(crowd: Crowd, k: int) -> float:
    from otflow.papers.crowd_motion.runs import full_share

    return full_share(crowd.densities[k], crowd.scene.limit)


def certificates(crowds: dict[str, Crowd], sharp: Crowd, halos: dict[float, float], line: CrowdOnLine) -> Any:
    """Energies above the least one, the congested share of the mass, the halo of blur, and the line."""
    fig, axes = of.plot.figure(1, 4, size=(14.0, 3.4))
    _energies(axes[0, 0], crowds, sharp)
    for (name, crowd), colour in zip(crowds.items(), (BLUE, RED), strict=True):
        share = [_full(crowd, k) for k in range(len(crowd.t))]
        axes[0, 1].plot(crowd.t, share, "o-", ms=3, lw=1, color=colour, label=name)
    axes[0, 1].set(xlabel="t", ylabel="part of the mass at the limit", ylim=(0, 1.02))
    axes[0, 1].legend(loc="lower right", fontsize=8, frameon=False)
    axes[0, 1].set_title("congestion", fontsize=9, color=INK)
    _halo(axes[0, 2], halos)
    _line(axes[0, 3], line)
    return fig


def _energies(ax: Any, crowds: dict[str, Crowd], sharp: Crowd) -> None:
    from otflow.papers.crowd_motion.runs import least

    runs = {"bowl": crowds["bowl"], "pillar": crowds["pillar"], "bowl, without blur": sharp}
    for (name, crowd), style in zip(runs.items(), ("o-", "o-", "x"), strict=True):
        start = 1 if crowd.densities[0].density.max() > crowd.scene.limit else 0
        colour = RED if name == "pillar" else INK if crowd is sharp else BLUE
        above = np.maximum(crowd.energy - least(crowd), 1e-6)[start:]
        ax.plot(crowd.t[start:], above, style, ms=5 if style == "x" else 3, lw=1, color=colour, label=name)
    ax.set(yscale="log", xlabel="t", ylabel="energy above the least one")
    ax.legend(loc="upper right", fontsize=8, frameon=False)
    ax.set_title("energies fall to the least one under the bound", fontsize=9, color=INK)


def _halo(ax: Any, halos: dict[float, float]) -> None:
    eps = np.array(list(halos))
    ax.plot(eps, list(halos.values()), "o-", ms=4, color=BLUE, label="bowl, 64 x 64 cells")
    for power, style in ((0.5, ":"), (1.0, "--")):
        ax.plot(
            eps, halos[eps[0]] * (eps / eps[0]) ** power, style, color=INK, lw=1, label=f"slope {power:g}"
        )
    ax.set(xscale="log", yscale="log", xlabel=r"$\varepsilon$", ylabel="L1 to the packed crowd")
    ax.minorticks_off()
    ax.set_xticks(eps, [f"{e:g}" for e in eps])
    ax.set_yticks(ticks := [0.01, 0.02, 0.05, 0.1], [f"{k:g}" for k in ticks])
    ax.legend(loc="upper left", fontsize=8, frameon=False)
    ax.set_title("blur leaves a halo", fontsize=9, color=INK)


def _line(ax: Any, line: CrowdOnLine) -> None:
    picks = [0, 3, 6, len(line.t) - 1]
    for k, colour in zip(picks, of.plot.SEQUENCE(np.linspace(0, 1, len(picks))), strict=True):
        density(line.runs[k], ax=ax, color=colour, label=f"t = {line.t[k]:g}")
        edges, levels = line.projected[k], line.runs[k].levels.numpy()
        middle, every = (edges[1:] + edges[:-1]) / 2, max(1, len(levels) // 40)
        ax.plot(middle[::every], (np.diff(levels) / np.diff(edges))[::every], ".", ms=4, color=colour)
    ax.plot([], [], ".", ms=4, color=INK, label="isotonic regression")
    ax.axhline(1.0, color=RED, lw=1)
    ax.set_ylim(0, 1.6)
    ax.legend(loc="upper right", fontsize=7.5, ncols=2, frameon=False)
    ax.set_title("on the line: densities in the bowl", fontsize=9, color=INK)
