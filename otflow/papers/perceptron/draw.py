"""The figures of the experiment `perceptron`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import otflow as of
from otflow.papers import perceptron as sp
from otflow.papers.perceptron.runs import CASES, OMEGA, SPATIAL, A, heaviest

if TYPE_CHECKING:
    from otflow.papers.perceptron.runs import AtomsCase, Cell

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
COLOUR = dict(zip(CASES, (GREEN, BLUE, PINK, RED), strict=True))
INK, FAINT = of.plot.INK, of.plot.FAINT
SHOWN = (CASES[1], CASES[3])  # ReLU and GELU of the same size


def landscapes(cells: list[Cell], spread: dict[float, sp.Atoms]) -> Any:
    """A circle for each of two betas and for none, ReLU and GELU: v as a curve around it, atoms on it."""
    fig, axes = of.plot.figure(len(spread), 1 + len(SHOWN), size=(9.3, 6.3))
    for row, (beta, uniform) in zip(axes, spread.items(), strict=True):
        _ring(row[0], uniform.measure, FAINT)
        _title(row[0], f"none, beta = {beta:g}: {uniform.n} places")
        for ax, case in zip(row[1:], SHOWN, strict=True):
            (cell,) = (c for c in cells if c.case == case and c.beta == beta)
            _around(ax, case)
            _ring(ax, cell.runs[0].measure, COLOUR[case])
            _title(ax, f"{case.name}, beta = {beta:g}: {cell.runs[0].n} atoms")
    axes[0, 1].legend(loc="center", fontsize=7.5)
    return fig


def _around(ax: Any, case: AtomsCase) -> None:
    """v, drawn outwards where it is high."""
    t = np.linspace(0, 2 * np.pi, 721)
    x = np.stack([np.cos(t), np.sin(t)], -1)
    v = case.activation.primitive(torch.from_numpy(x @ A.T)).numpy() @ OMEGA
    r = (1 + 0.35 * v / np.abs(v).max())[:, None] * x
    ax.plot(*r.T, color=INK, linewidth=1, linestyle="--", label="v, outwards if > 0")


def _ring(ax: Any, mu: of.Particles, colour: str) -> None:
    t = np.linspace(0, 2 * np.pi, 361)
    ax.plot(np.cos(t), np.sin(t), color=FAINT, linewidth=1, zorder=0)
    edge = INK if mu.n > 100 else "white"
    size = np.maximum(900 * mu.w.numpy(), 8)
    ax.scatter(
        *mu.x.numpy().T, s=size, color=colour, edgecolor=edge, linewidth=0.4, zorder=3, label="atoms, by mass"
    )
    ax.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    ax.axis("off")


def counts(cells: list[Cell]) -> Any:
    """Atoms and longest empty arcs against beta, a point for each start and a line through the medians."""
    fig, axes = of.plot.figure(1, 2, size=(9.2, 3.7))
    left, right = axes.flat
    for case in CASES:
        own = [cell for cell in cells if cell.case == case]
        _spread(left, case, [(cell.beta, cell.counts) for cell in own])
        _spread(right, case, [(cell.beta, cell.arcs) for cell in own])
    right.axhline(np.pi, color=FAINT, linewidth=1, zorder=0)
    left.set(ylabel="atoms", ylim=(0, None))
    right.set(ylabel="angle", yticks=[0, np.pi / 2, np.pi], yticklabels=["0", "π/2", "π"])
    _title(left, "300 particles end in a few atoms")
    _title(right, "the longest empty arc")
    right.set_ylim(0, 3.9)
    right.legend(loc="lower right", fontsize=7.5)
    return fig


def _spread(ax: Any, case: AtomsCase, columns: list[tuple[float, np.ndarray]]) -> None:
    beta = [b for b, _ in columns]
    for b, values in columns:
        ax.plot(np.full(len(values), b), values, "o", color=COLOUR[case], markersize=3, alpha=0.5)
    ax.plot(beta, [np.median(v) for _, v in columns], color=COLOUR[case], linewidth=1.3, label=case.name)
    ax.set(xscale="log", xlabel="beta")
    ax.set_xticks(beta, [f"{b:g}" for b in beta])
    ax.minorticks_off()


def masses(cells: list[Cell]) -> Any:
    """The heaviest clusters beside the bounds, and the number of heavy atoms beside theirs."""
    fig, axes = of.plot.figure(1, 2, size=(9.2, 3.7))
    _clusters(axes[0, 0], [cell for cell in cells if cell.case == CASES[0]])
    last = [cell for cell in cells if cell.case == CASES[0]][-1]
    _heavy(axes[0, 1], last)
    return fig


def _clusters(ax: Any, own: list[Cell]) -> None:
    beta = [cell.beta for cell in own]
    ax.plot(beta, [heaviest(cell) for cell in own], "o-", color=COLOUR[own[0].case], label="heaviest found")
    fine = np.geomspace(min(beta), max(beta), 200)
    C = sp.perceptron_constant(A, own[0].case.c * OMEGA).item() * np.exp(fine)
    ax.plot(fine, sp.mass_bound(fine, C), color=RED, label="bound, as printed")
    ax.plot(fine, sp.kernel_mass_bound(fine, C), "--", color=INK, label="bound from the kernel")
    ax.axhline(sp.mass_bound(1e3).item(), color=FAINT, linewidth=1, zorder=0, label="0.5742: no perceptron")
    ax.set(xscale="log", xlabel="beta", ylabel="mass", ylim=(0, 1))
    ax.set_xticks(beta, [f"{b:g}" for b in beta])
    ax.minorticks_off()
    _title(ax, f"{own[0].case.name}: two or more atoms within 1/(2 sqrt(beta))")
    ax.legend(loc="center right", fontsize=7.5)


def _heavy(ax: Any, cell: Cell) -> None:
    eps = np.geomspace(0.005, 0.5, 200)
    most = np.max([(a.measure.w.numpy()[:, None] >= eps).sum(0) for a in cell.runs], axis=0)
    arc = 2 * np.pi - cell.arcs.min()
    bound = [sp.atom_bound(1, arc, cell.beta, e, C=cell.constant).item() for e in eps]
    ax.plot(eps, most, color=COLOUR[cell.case], label="most found")
    ax.plot(eps, bound, color=RED, label="bound")
    ax.plot(eps, 1 / eps, "--", color=INK, label="1 / eps: trivial")
    ax.set(xscale="log", yscale="log", xlabel="eps", ylabel="atoms of mass eps or more")
    ax.set_ylim(bottom=0.8)
    _title(ax, f"{cell.case.name}, beta = {cell.beta:g}: heavy atoms")
    ax.legend(loc="upper right", fontsize=7.5)


def globes(spheres: dict[sp.Activation, sp.Atoms]) -> Any:
    """Atoms on the sphere in three dimensions, and the directions of the neurons."""
    fig, axes = of.plot.figure(1, len(spheres), size=(7.6, 3.9), spatial=True)
    for ax, (act, atoms), colour in zip(axes.flat, spheres.items(), (BLUE, RED), strict=True):
        of.plot.particles(atoms.measure, ax=ax, color=colour, size=40)
        for a in SPATIAL / np.linalg.norm(SPATIAL, axis=1, keepdims=True):
            ax.plot(*np.stack([a, 1.35 * a], 1), color=INK, linewidth=1.5)
        _title(ax, f"{type(act).__name__}, beta = 4: {atoms.n} atoms; lines: neurons")
    return fig


def _title(ax: Any, words: str) -> None:
    ax.set_title(words, fontsize=9.5)
