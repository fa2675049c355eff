"""Draws the figures of the experiment `perceptron`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import otflow as of
from otflow.papers import perceptron as sp
from otflow.papers.perceptron.runs import CASES, OMEGA, SPATIAL, A, AtomsCase, Cell

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
COLOUR = dict(zip(CASES, (GREEN, BLUE, PINK, RED), strict=True))
INK, FAINT = of.plot.INK, of.plot.FAINT
SHOWN = (CASES[1], CASES[3])  # ReLU and GELU of the same size


def landscapes(cells: list[Cell], spread: dict[float, sp.Atoms]) -> Any:
    """A circle for each of two betas and for none, ReLU and GELU: v as a curve around it, atoms on it."""
    fig, axes = of.plot.figure(len(spread), 1 + len(SHOWN), size=(9.3, 6.3))
    for row, (beta, uniform) in zip(axes, spread.items(), strict=True):
        _ring(row[0], uniform.measure, FAINT, rf"none, $\beta={beta:g}$: {uniform.n} places")
        for ax, case in zip(row[1:], SHOWN, strict=True):
            (atoms,) = (cell.runs[0] for cell in cells if cell.case == case and cell.beta == beta)
            _around(ax, case)
            _ring(ax, atoms.measure, COLOUR[case], rf"{case.name}, $\beta={beta:g}$: {atoms.n} atoms")
    of.plot.panel(axes[0, 1], legend="center")
    return fig


def _around(ax: Any, case: AtomsCase) -> None:
    """v, drawn outwards where it is high."""
    t = np.linspace(0, 2 * np.pi, 721)
    x = np.stack([np.cos(t), np.sin(t)], -1)
    v = case.activation.primitive(torch.from_numpy(x @ A.T)).numpy() @ OMEGA
    r = (1 + 0.35 * v / np.abs(v).max())[:, None] * x
    ax.plot(*r.T, color=INK, linewidth=1, linestyle="--", label="$v$, outwards if $> 0$")


def _ring(ax: Any, mu: of.Particles, colour: str, title: str) -> None:
    """The circle with its atoms."""
    t, limits = np.linspace(0, 2 * np.pi, 361), (-1.5, 1.5)
    ax.plot(np.cos(t), np.sin(t), color=FAINT, linewidth=1, zorder=0)
    style = {"color": colour, "edgecolor": INK if mu.n > 100 else "white", "linewidth": 0.4, "zorder": 3}
    ax.scatter(*mu.x.numpy().T, s=np.maximum(900 * mu.w.numpy(), 8), label="atoms, by mass", **style)
    of.plot.panel(ax, title, xlim=limits, ylim=limits, aspect="equal")
    ax.axis("off")


def counts(cells: list[Cell]) -> Any:
    """Atoms and longest empty arcs against beta, a point for each start and a line through the medians."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.2, 3.7))
    for case, colour in COLOUR.items():
        own = [cell for cell in cells if cell.case == case]
        beta = [cell.beta for cell in own]
        for ax, columns in ((left, [cell.counts for cell in own]), (right, [cell.arcs for cell in own])):
            for b, values in zip(beta, columns, strict=True):
                ax.plot(np.full(len(values), b), values, "o", color=colour, markersize=3, alpha=0.5)
            ax.plot(beta, [np.median(v) for v in columns], color=colour, linewidth=1.3, label=case.name)
    right.axhline(np.pi, color=FAINT, linewidth=1, zorder=0)
    axis: Any = {"xscale": "log", "xticks": beta}
    of.plot.panel(left, "300 particles end in a few atoms", r"$\beta$", "atoms", ylim=(0, None), **axis)
    axis |= {"ylim": (0, 3.9), "yticks": {0: "0", np.pi / 2: r"$\pi/2$", np.pi: r"$\pi$"}}
    of.plot.panel(right, "the longest empty arc", r"$\beta$", "angle", legend="lower right", **axis)
    return fig


def masses(weak: list[Cell]) -> Any:
    """The heaviest clusters beside the bounds, and the number of heavy atoms beside theirs."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.2, 3.7))
    _clusters(left, weak)
    _heavy(right, weak[-1])
    return fig


def _clusters(ax: Any, own: list[Cell]) -> None:
    beta, case = [cell.beta for cell in own], own[0].case
    ax.plot(beta, [cell.heaviest for cell in own], "o-", color=COLOUR[case], label="heaviest found")
    fine = np.geomspace(min(beta), max(beta), 200)
    C = sp.perceptron_constant(A, case.c * OMEGA).item() * np.exp(fine)
    ax.plot(fine, sp.mass_bound(fine, C), color=RED, label="bound, as printed")
    ax.plot(fine, sp.kernel_mass_bound(fine, C), "--", color=INK, label="bound from the kernel")
    ax.axhline(sp.mass_bound(1e3).item(), color=FAINT, linewidth=1, zorder=0, label="0.5742: no perceptron")
    free = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.22)}
    title = rf"{case.name}: two or more atoms within $1/(2\sqrt{{\beta}})$"
    of.plot.panel(ax, title, r"$\beta$", "mass", legend=free, xscale="log", xticks=beta, ylim=(0, 1))


def _heavy(ax: Any, cell: Cell) -> None:
    eps, arc = np.geomspace(0.005, 0.5, 200), 2 * np.pi - cell.arcs.min()
    most = np.max([(a.measure.w.numpy()[:, None] >= eps).sum(0) for a in cell.runs], axis=0)
    bound = [sp.atom_bound(1, arc, cell.beta, e, C=cell.constant).item() for e in eps]
    ax.plot(eps, most, color=COLOUR[cell.case], label="most found")
    ax.plot(eps, bound, color=RED, label="bound")
    ax.plot(eps, 1 / eps, "--", color=INK, label=r"$1/\varepsilon$: trivial")
    title = rf"{cell.case.name}, $\beta={cell.beta:g}$: heavy atoms"
    ax.loglog()
    of.plot.panel(
        ax,
        title,
        r"$\varepsilon$",
        r"atoms of mass $\varepsilon$ or more",
        legend="upper right",
        ylim=(0.8, None),
    )


def globes(spheres: dict[sp.Activation, sp.Atoms]) -> Any:
    """Atoms on the sphere in three dimensions, and the directions of the neurons."""
    fig, axes = of.plot.figure(1, len(spheres), size=(7.6, 3.9), spatial=True)
    for ax, (act, atoms), colour in zip(axes.flat, spheres.items(), (BLUE, RED), strict=True):
        of.plot.particles(atoms.measure, ax=ax, color=colour, size=40)
        for a in SPATIAL / np.linalg.norm(SPATIAL, axis=1, keepdims=True):
            ax.plot(*np.stack([a, 1.35 * a], 1), color=INK, linewidth=1.5)
        of.plot.panel(ax, rf"{type(act).__name__}, $\beta=4$: {atoms.n} atoms; lines: neurons")
    return fig
