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
from scipy.optimize import brentq
from scipy.special import i0e

import otflow as of
from otflow.papers import perceptron as sp
from otflow.papers.perceptron.runs import (
    CASES,
    OMEGA,
    STRONG,
    WEAK,
    A,
    Array,
    Cell,
    N,
    angles,
    descents,
    heaviest,
    on_sphere,
    start,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

PAPER = Source("Alvarez-Lopez, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366")
OURS = Source("otflow.papers.perceptron")


def run(frame: Frame) -> Result:
    """All descents, all claims, all figures."""
    from otflow.papers.perceptron.draw import counts, globes, landscapes, masses

    betas, starts = ((1.0, 4.0, 9.0), 2) if frame.quick else ((1.0, 2.0, 4.0, 9.0, 16.0, 25.0), 12)
    cells = []
    for i, case in enumerate(CASES):
        for j, beta in enumerate(betas):
            frame.stage(0.75 * (i + j / len(betas)) / len(CASES), f"{case.name}, beta = {beta:g}")
            cells.append(descents(case, beta, starts))
    frame.stage(0.75, "no perceptron")
    spread = {beta: sp.find_atoms(start(0), beta, A, 0 * OMEGA) for beta in (betas[0], betas[-1])}
    frame.stage(0.8, "a sphere")
    spheres: dict[sp.Activation, sp.Atoms] = {act: on_sphere(act) for act in (sp.ReLU(), sp.GELU())}
    frame.stage(0.9, "claims")
    claims = [
        *_uniform_claims(spread),
        *_atom_claims(cells),
        *_sphere_claims(spheres),
        *_mass_claims(cells),
        *_maximiser_claims(),
        _erratum(),
    ]
    figures = {
        "landscapes": landscapes(cells, spread),
        "counts": counts(cells),
        "masses": masses(cells),
        "spheres": globes(spheres),
    }
    return Result(claims, figures, _data(cells))


# --- what is computed ----------------------------------------------------------------------------------


# --- claims --------------------------------------------------------------------------------------------


def _uniform_claims(spread: dict[float, sp.Atoms]) -> list[Claim]:
    beta, atoms = list(spread.items())[-1]
    return [
        Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2025: the uniform law is the minimiser")(
            "no perceptron: the longest empty arc of 300 particles at rest"
        ).at_most(0.2, max(sp.empty_arcs(angles(a.measure))[0].item() for a in spread.values())),
        Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2025: the uniform law is the minimiser")(
            f"no perceptron, beta = {beta:g}: energy e^-beta I_0(beta) / (2 beta) of the uniform law"
        ).equal(float(i0e(beta)) / (2 * beta), atoms.energy, rtol=1e-9),
    ]


def _atom_claims(cells: list[Cell]) -> list[Claim]:
    relu = [cell for cell in cells if isinstance(cell.case.activation, sp.ReLU)]
    gelu = [cell for cell in cells if isinstance(cell.case.activation, sp.GELU)]
    strong = [arc for cell in cells if cell.case == STRONG for arc in cell.arcs]
    return [
        Source(f"{PAPER}: on the circle every stationary law is finitely atomic")(
            "ReLU: atoms that 300 particles end in (most over weights, beta and starts)"
        ).at_most(20, max(int(cell.counts.max()) for cell in relu)),
        Source(f"{PAPER}: on the circle every strict second-order law is finitely atomic")(
            "GELU: atoms that 300 particles end in (most over beta and starts)"
        ).at_most(20, max(int(cell.counts.max()) for cell in gelu)),
        Source(f"{PAPER}: the equation of stationary laws")(
            "the atoms are stationary: largest residual"
        ).at_most(1e-8, max(atoms.gradient for cell in cells for atoms in cell.runs)),
        Source(f"{PAPER}: definition of second-order laws")(
            "the atoms are second-order: least eigenvalue of the Hessian, with its sign turned"
        ).at_most(1e-9, max(-_least(cell, atoms) for cell in cells for atoms in cell.runs)),
        Source(f"{OURS}.second_variation")(
            "atoms of several particles do not split: least eigenvalue of Hess dE/dmu, with its sign turned"
        ).at_most(1e-9, max(-_splitting(cell, atoms) for cell in cells for atoms in cell.runs)),
        Source(f"{PAPER}: localisation")(
            f"{STRONG.name}: the longest empty arc (shortest over beta and starts)"
        ).within(3.0, 3.3, min(strong)),
    ]


def _second(cell: Cell, atoms: sp.Atoms) -> sp.SecondVariation:
    case = cell.case
    return sp.second_variation(atoms.measure, cell.beta, A, case.c * OMEGA, case.activation)


def _least(cell: Cell, atoms: sp.Atoms) -> float:
    return _second(cell, atoms).least.item()


def _splitting(cell: Cell, atoms: sp.Atoms) -> float:
    several = atoms.measure.w > 1.5 / N
    return _second(cell, atoms).splitting[several].min().item()


def _sphere_claims(spheres: dict[sp.Activation, sp.Atoms]) -> list[Claim]:
    return [
        Source(f"{PAPER}: zero uniform measure, and {how}")(
            f"{type(act).__name__} on the sphere in three dimensions: atoms of 200 particles"
        ).at_most(40, spheres[act].n)
        for act, how in (
            (sp.ReLU(), "countably many atoms where a neuron is active"),
            (sp.GELU(), "finitely many atoms for generic parameters"),
        )
    ]


def _mass_claims(cells: list[Cell]) -> list[Claim]:
    heavy = [(cell, heaviest(cell)) for cell in cells if cell.case == WEAK]
    return [
        Source(f"{PAPER}: masses of clusters")("the bound on the mass of a cluster as beta grows").equal(
            0.574192, sp.mass_bound(1e3, 1.0).item(), atol=5e-7
        ),
        Source(f"{PAPER}: masses of clusters")(
            f"{WEAK.name}: mass of two or more atoms within 1/(2 sqrt(beta)) over its bound (largest)"
        ).at_most(1.0, max(mass / sp.mass_bound(cell.beta, cell.constant).item() for cell, mass in heavy)),
        Source(f"{OURS}.kernel_mass_bound")(
            f"{WEAK.name}: that mass over the bound from the kernel (largest)"
        ).at_most(
            1.0, max(mass / sp.kernel_mass_bound(cell.beta, cell.constant).item() for cell, mass in heavy)
        ),
    ]


def _maximiser_claims() -> list[Claim]:
    """Ascent, the side on which tokens attract each other."""
    beta, c = 1.0, 1.0
    E, field = sp.energy(beta, A, c * OMEGA), sp.ascent(beta, A, c * OMEGA)
    theta = np.random.default_rng(2).uniform(0, 2 * np.pi, 24)
    tokens = of.Particles(np.stack([np.cos(theta), np.sin(theta)], -1), space=of.Sphere())
    end = of.flow(tokens, field, of.Dopri5(), t1=60.0, save_at=[0.0, 60.0]).final
    grid = 2 * np.pi * np.arange(3600) / 3600
    diracs = E(of.Particles(np.stack([np.cos(grid), np.sin(grid)], -1)[:, None], space=of.Sphere()))
    return [
        Source(f"{PAPER}: maximisers are Diracs")("ascent: the diameter of the tokens at the end").at_most(
            1e-6, of.observables.diameter(end).item()
        ),
        Source(f"{PAPER}: maximisers are Diracs at the maximisers of v")(
            "ascent: its energy at the end is the largest of a Dirac, 1/(2 beta) + max v / 2"
        ).equal(diracs.max().item(), E(end).item(), atol=1e-6),
    ]


def _erratum() -> Claim:
    """Two antipodal atoms without perceptron: how large may beta be such that they are one cluster?"""
    mu = of.Particles([[1.0, 0.0], [-1.0, 0.0]], space=of.Sphere())

    def room(beta: float) -> float:
        """> 0 while they are second-order and within the distance."""
        second = sp.second_variation(mu, beta, A, 0 * OMEGA).least.item() > -1e-12
        still = sp.residual(mu, beta, A, 0 * OMEGA).item() < 1e-12
        gap = 0.5 / math.sqrt(beta) - of.observables.diameter(mu).item()
        return gap if second and still else -1.0

    return Source(f"{PAPER}: a single cluster is excluded for every beta > 0")(
        "the largest beta at which two antipodal atoms, a second-order law, are a cluster of diameter "
        "1/(2 sqrt(beta)) or less (printed: none are)"
    ).erratum(printed=0.0, corrected=1 / (4 * math.pi**2), measured=float(brentq(room, 1e-3, 1.0)), rtol=1e-9)


def _data(cells: list[Cell]) -> dict[str, Array]:
    out: dict[str, Array] = {}
    for case in CASES:
        key = f"{type(case.activation).__name__}_{case.c:g}".replace(".", "_")
        own = [cell for cell in cells if cell.case == case]
        out[f"beta_{key}"] = np.array([cell.beta for cell in own])
        out[f"atoms_{key}"] = np.stack([cell.counts for cell in own])
        out[f"empty_arc_{key}"] = np.stack([cell.arcs for cell in own])
    return out
