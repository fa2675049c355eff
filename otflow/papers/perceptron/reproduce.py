"""A perceptron turns the uniform law of repelling tokens into a handful of atoms

Tokens on a circle that repel each other by attention spread uniformly: the uniform law is the one minimiser
of the energy. Add a perceptron to every layer, and stationary laws are no longer spread. With a ReLU every
stationary law is a finite number of atoms, and with an analytic activation every strict second-order one
(Alvarez-Lopez, Geshkovski and Ruiz-Balet 2026). Here three hundred particles of equal mass descend the energy
from several starts until the gradient is below 1e-8. Particles that have met are merged, and Newton's method
finishes. Between distances within an atom and distances between atoms there is a wide gap, so that it is
clear how many atoms there are.

How many depends on where the descent starts, since there are many local minimisers; the figure of counts
shows the spread. Weak perceptrons leave more atoms than strong ones. Strong ones leave half of the circle
empty.

One bound is checked: atoms within a distance of 1 / (2 sqrt(beta)) have a mass of 0.5742 at most for large
beta, if they are two or more. The bound on the number of heavy atoms that follows is drawn and not checked,
since it lies above 1 / eps, the most atoms of mass eps that there can be. Both need a beta that is not small:
two antipodal atoms are a second-order stationary law of attention alone for every beta, and for beta up to
1 / (4 pi^2) they are within that distance. Moving the lightest atom of a cluster alone proves the bound from
beta = 0.7978 on, see `otflow.papers.perceptron.kernel_mass_bound`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import i0e

from otflow.papers import perceptron as sp
from otflow.papers.perceptron import runs
from otflow.papers.perceptron.runs import CASES, OMEGA, STRONG, WEAK, A, Array, Cell
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

UNIFORM = Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2025: the uniform law is the minimiser")


def run(frame: Frame) -> Result:
    """All descents, all claims, all figures."""
    from otflow.papers.perceptron import draw

    betas, starts = frame.size(((1.0, 4.0, 9.0), 2), ((1.0, 2.0, 4.0, 9.0, 16.0, 25.0), 12))
    cells = []
    for i, case in enumerate(CASES):
        for j, beta in enumerate(betas):
            frame.stage(0.75 * (i + j / len(betas)) / len(CASES), f"{case.name}, beta = {beta:g}")
            cells.append(runs.descents(case, beta, starts))
    frame.stage(0.75, "no perceptron")
    spread = {
        beta: sp.find_atoms(runs.start(0), beta, A, 0 * OMEGA, max_iter=20_000)
        for beta in (betas[0], betas[-1])
    }
    frame.stage(0.8, "a sphere")
    spheres: dict[sp.Activation, sp.Atoms] = {act: runs.on_sphere(act) for act in (sp.ReLU(), sp.GELU())}
    frame.stage(0.9, "claims")
    claims = [
        *_uniform_claims(spread),
        *_atom_claims(cells),
        *_sphere_claims(spheres),
        *_mass_claims([cell for cell in cells if cell.case == WEAK]),
        *_maximiser_claims(),
        _erratum(),
    ]
    figures = {
        "landscapes": draw.landscapes(cells, spread),
        "counts": draw.counts(cells),
        "masses": draw.masses([cell for cell in cells if cell.case == WEAK]),
        "spheres": draw.globes(spheres),
    }
    return Result(claims, figures, _data(cells))


def _paper(what: str) -> Source:
    """A part of the paper; its numbers of theorems are not known to us."""
    return Source(f"Alvarez-Lopez, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366: {what}")


def _ours(name: str) -> Source:
    return Source(f"otflow.papers.perceptron.{name}")


def _uniform_claims(spread: dict[float, sp.Atoms]) -> list[Claim]:
    *_, (beta, atoms) = spread.items()
    return [
        UNIFORM("no perceptron: the longest empty arc of 300 particles at rest").at_most(
            0.2, max(map(runs.longest_arc, spread.values()))
        ),
        UNIFORM(
            f"no perceptron, beta = {beta:g}: energy e^-beta I_0(beta) / (2 beta) of the uniform law"
        ).equal(i0e(beta) / (2 * beta), atoms.energy, rtol=1e-9),
    ]


def _atom_claims(cells: list[Cell]) -> list[Claim]:
    relu, gelu = (
        max(cell.counts.max() for cell in cells if isinstance(cell.case.activation, kind))
        for kind in (sp.ReLU, sp.GELU)
    )
    least, splitting = np.min([cell.stability for cell in cells], axis=0)
    return [
        _paper("on the circle every stationary law is finitely atomic")(
            "ReLU: atoms that 300 particles end in (most over weights, beta and starts)"
        ).at_most(20, relu),
        _paper("on the circle every strict second-order law is finitely atomic")(
            "GELU: atoms that 300 particles end in (most over beta and starts)"
        ).at_most(20, gelu),
        _paper("the equation of stationary laws")("the atoms are stationary: largest residual").at_most(
            1e-8, max(atoms.gradient for cell in cells for atoms in cell.runs)
        ),
        _paper("definition of second-order laws")(
            "the atoms are second-order: least eigenvalue of the Hessian, with its sign turned"
        ).at_most(1e-9, -least),
        _ours("second_variation")(
            "atoms of several particles do not split: least eigenvalue of Hess dE/dmu, with its sign turned"
        ).at_most(1e-9, -splitting),
        _paper("localisation")(
            f"{STRONG.name}: the longest empty arc (shortest over beta and starts)"
        ).within(3.0, 3.3, min(cell.arcs.min() for cell in cells if cell.case == STRONG)),
    ]


def _sphere_claims(spheres: dict[sp.Activation, sp.Atoms]) -> list[Claim]:
    how = "countably many atoms where a neuron is active", "finitely many atoms for generic parameters"
    return [
        _paper(f"zero uniform measure, and {what}")(
            f"{type(act).__name__} on the sphere in three dimensions: atoms of 200 particles"
        ).at_most(40, atoms.n)
        for (act, atoms), what in zip(spheres.items(), how, strict=True)
    ]


def _mass_claims(weak: list[Cell]) -> list[Claim]:
    source, heavy = _paper("masses of clusters"), [(cell.heaviest, cell.beta, cell.constant) for cell in weak]
    return [
        source("the bound on the mass of a cluster as beta grows").equal(
            0.574192, sp.mass_bound(1e3, 1.0), atol=5e-7
        ),
        source(
            f"{WEAK.name}: mass of two or more atoms within 1/(2 sqrt(beta)) over its bound (largest)"
        ).at_most(1.0, max(mass / sp.mass_bound(beta, C).item() for mass, beta, C in heavy)),
        _ours("kernel_mass_bound")(
            f"{WEAK.name}: that mass over the bound from the kernel (largest)"
        ).at_most(1.0, max(mass / sp.kernel_mass_bound(beta, C).item() for mass, beta, C in heavy)),
    ]


def _maximiser_claims() -> list[Claim]:
    diameter, energy, best = runs.ascended()
    return [
        _paper("maximisers are Diracs")("ascent: the diameter of the tokens at the end").at_most(
            1e-6, diameter
        ),
        _paper("maximisers are Diracs at the maximisers of v")(
            "ascent: its energy at the end is the largest of a Dirac, 1/(2 beta) + max v / 2"
        ).equal(best, energy, atol=1e-6),
    ]


def _erratum() -> Claim:
    return _paper("a single cluster is excluded for every beta > 0")(
        "the largest beta at which two antipodal atoms, a second-order law, are a cluster of diameter "
        "1/(2 sqrt(beta)) or less (printed: none are)"
    ).erratum(printed=0.0, corrected=1 / (4 * math.pi**2), measured=runs.antipodal_cluster(), rtol=1e-9)


def _data(cells: list[Cell]) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for case in CASES:
        key = f"{type(case.activation).__name__}_{case.c:g}".replace(".", "_")
        own = [cell for cell in cells if cell.case == case]
        out[f"beta_{key}"] = np.array([cell.beta for cell in own])
        out[f"atoms_{key}"] = np.stack([cell.counts for cell in own])
        out[f"empty_arc_{key}"] = np.stack([cell.arcs for cell in own])
    return out
