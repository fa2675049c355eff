"""Atoms of attention with a perceptron: reference counts, stationarity, second order, bounds on masses."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import otflow as of
from otflow.papers import perceptron as sp

A = ((1.0, 0.3), (-0.4, 1.0))
OMEGA = np.array([0.8, -0.6])
N = 300
RELU, GELU = sp.ReLU(), sp.GELU()

# Reference numbers of atoms of 300 particles: activation, size of the perceptron, beta, count, and starts.
COUNTS = [
    (RELU, 0.05, 1.0, 7, (None, 0, 1)),
    (RELU, 0.05, 4.0, 10, (None, 0, 3)),
    (RELU, 0.05, 9.0, 13, (6, 11, 12)),
    (RELU, 0.05, 25.0, 12, (8, 11, 12)),
    (RELU, 0.3, 1.0, 4, (None, 0, 1)),
    (RELU, 0.3, 4.0, 6, (None, 1, 2)),
    (RELU, 0.3, 9.0, 7, (0, 1, 3)),
    (RELU, 0.3, 25.0, 4, (0, 1, 2)),
    (RELU, 1.0, 1.0, 3, (None, 0, 1)),
    (RELU, 1.0, 4.0, 5, (None, 0, 1)),
    (RELU, 1.0, 9.0, 3, (2, 8, 9)),
    (RELU, 1.0, 25.0, 4, (0, 3, 4)),
    (GELU, 0.3, 4.0, 6, (None, 0, 1)),
    (GELU, 0.3, 9.0, 5, (None, 0, 1)),
    (GELU, 0.3, 25.0, 5, (None, 0, 1)),
]
RARE = [(RELU, 0.05, 9.0), (RELU, 0.05, 25.0), (RELU, 1.0, 9.0)]  # reached by one start in four or less
CELLS = [(act, c, beta, seeds[0]) for act, c, beta, _, seeds in COUNTS]


def circle(theta: Any, w: Any = None) -> of.Particles:
    t = np.asarray(theta)
    return of.Particles(np.stack([np.cos(t), np.sin(t)], -1), w=w, space=of.Sphere())


def start(seed: int | None, n: int = N) -> of.Particles:
    """Equispaced, or drawn uniformly on the circle."""
    if seed is None:
        return circle(2 * np.pi * np.arange(n) / n)
    return circle(np.random.default_rng(seed).uniform(0, 2 * np.pi, n))


def on_sphere(n: int, d: int, seed: int = 0) -> of.Particles:
    x = np.random.default_rng(seed).standard_normal((n, d))
    return of.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=of.Sphere())


@cache
def found(act: sp.Activation, c: float, beta: float, seed: int | None) -> sp.Atoms:
    return sp.find_atoms(start(seed), beta, A, c * OMEGA, act)


def angles(atoms: sp.Atoms) -> torch.Tensor:
    x = atoms.measure.x
    return torch.atan2(x[:, 1], x[:, 0])


# --- the reference counts ------------------------------------------------------------------------------


@pytest.mark.slow(but_for=["1.0"])
@pytest.mark.parametrize("beta", [1.0, 4.0, 9.0, 25.0])
def test_without_perceptron_nearly_all_particles_stay_apart(beta: float) -> None:
    atoms = sp.find_atoms(start(0), beta, A, 0 * OMEGA, radius=1e-3)
    assert 285 <= atoms.n <= 289
    own = found(RELU, 0.0, beta, 0)
    assert own.n >= 298  # where no radius is given
    assert own.status == "ok"
    # The uniform law is the minimiser, with energy 1/(2 beta) e^-beta I_0(beta).
    assert atoms.energy == pytest.approx(
        torch.special.i0e(torch.tensor(beta).double()).item() / (2 * beta), rel=1e-9
    )


@pytest.mark.parametrize(
    ("act", "c", "beta", "count", "seeds"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[:3] in RARE)) for row in COUNTS],
)
def test_the_reference_number_of_atoms_is_reached_from_some_start(
    act: sp.Activation, c: float, beta: float, count: int, seeds: tuple[int | None, ...]
) -> None:
    # Rounding decides between basins, so that a start may lead elsewhere on another machine.
    assert any(found(act, c, beta, seed).n == count for seed in (*seeds, *range(40, 60)))


@pytest.mark.slow
@pytest.mark.parametrize(("act", "c", "beta", "count", "seeds"), COUNTS)
def test_from_every_start_there_are_about_as_many_atoms(
    act: sp.Activation, c: float, beta: float, count: int, seeds: tuple[int | None, ...]
) -> None:
    counts = {found(act, c, beta, seed).n for seed in (None, *range(10))}
    assert min(counts) - 2 <= count <= max(counts) + 2
    assert max(counts) <= min(counts) + 4


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_for_gelu_at_beta_one_there_are_four_atoms_not_five(seed: int | None) -> None:
    """The one reference number that no start reaches: five are seen only before all particles have met."""
    assert found(GELU, 0.3, 1.0, seed).n == 4


@pytest.mark.parametrize("beta", [1.0, 4.0, 9.0, 25.0])
def test_a_large_perceptron_leaves_half_the_circle_empty(beta: float) -> None:
    seed = next(cell[3] for cell in CELLS if cell[:3] == (RELU, 1.0, beta))
    assert sp.empty_arcs(angles(found(RELU, 1.0, beta, seed)))[0].item() == pytest.approx(3.1, abs=0.2)


# --- what atoms are ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("act", "c", "beta", "seed"), CELLS)
def test_atoms_are_stationary_second_order_and_do_not_split(
    act: sp.Activation, c: float, beta: float, seed: int | None
) -> None:
    atoms, E = found(act, c, beta, seed), sp.energy(beta, A, c * OMEGA, act)
    mu = atoms.measure
    assert atoms.status == "ok"
    assert atoms.gradient == sp.residual(mu, beta, A, c * OMEGA, act).item() <= 1e-8
    assert atoms.energy == pytest.approx(E(mu).item(), rel=1e-9, abs=1e-12)
    assert atoms.energy < E(start(seed)).item()
    second = sp.second_variation(mu, beta, A, c * OMEGA, act)
    assert second.least.item() >= -1e-6
    assert (second.splitting[mu.w > 1.5 / N] >= -1e-6).all()
    assert (second.splitting >= -1 / N - 1e-6).all()  # an atom of one particle had no freedom to split
    assert mu.w.sum().item() == pytest.approx(1)
    assert (mu.w * N - (mu.w * N).round()).abs().max() < 1e-9
    assert (mu.w.diff() <= 0).all()


@pytest.mark.slow(but_for=["act0-*", "act1-*"])
@pytest.mark.parametrize(("act", "c", "beta", "seed"), CELLS[1::5])
def test_any_radius_inside_the_gap_gives_the_same_atoms(
    act: sp.Activation, c: float, beta: float, seed: int | None
) -> None:
    atoms = found(act, c, beta, seed)
    low, high = atoms.gap
    assert high > 50 * low
    assert low < atoms.radius < high
    for radius in (low * 1.01, high * 0.99):
        again = sp.find_atoms(start(seed), beta, A, c * OMEGA, act, radius=radius)
        assert again.n == atoms.n
        assert again.radius == radius
        torch.testing.assert_close(again.measure.x, atoms.measure.x, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_descent_of_the_flow_ends_where_the_minimisation_says() -> None:
    """An integrator that knows nothing of the minimiser comes to rest with the same energy."""
    mu, beta, c = start(None, 40), 2.0, 0.5
    field = sp.descent(beta, A, c * OMEGA)
    flow = of.flow(mu, field, of.Dopri5(), t1=600.0, save_at=[0.0, 600.0])
    rest = sp.find_atoms(flow.final, beta, A, c * OMEGA)
    assert sp.residual(flow.final, beta, A, c * OMEGA).item() < 1e-6
    assert rest.n <= 6
    moved = of.Sphere().pairwise(flow.final.nodes()[0], rest.measure.x).amin(-1)
    assert moved.max().item() < 1e-2
    assert rest.energy == pytest.approx(sp.energy(beta, A, c * OMEGA)(flow.final).item(), rel=1e-6)


def test_masses_of_the_start_are_kept() -> None:
    rng = np.random.default_rng(3)
    w = rng.dirichlet(np.ones(50))
    theta = rng.uniform(0, 2 * np.pi, 50)
    atoms = sp.find_atoms(circle(theta, w), 4.0, A, 0.3 * OMEGA)
    assert atoms.n < 10
    assert atoms.status == "ok"
    assert atoms.measure.w.sum().item() == pytest.approx(1, abs=1e-12)


def test_one_particle_goes_to_the_least_v() -> None:
    atoms = sp.find_atoms(circle([-1.0]), 3.0, [[1.0, 0.0]], [-1.0])
    assert atoms.n == 1
    torch.testing.assert_close(
        atoms.measure.x, torch.tensor([[1.0, 0.0]], dtype=torch.float64), rtol=0, atol=1e-7
    )
    assert atoms.energy == pytest.approx(1 / 6 - 0.5)


def test_particles_that_start_together_stay_one_atom() -> None:
    atoms = sp.find_atoms(circle([0.5] * 5), 3.0, [[1.0, 0.0]], [-9.0])
    assert atoms.n == 1


def test_a_descent_that_is_cut_short_says_so() -> None:
    atoms = sp.find_atoms(start(0), 9.0, A, 0.05 * OMEGA, max_iter=3)
    assert atoms.status == "max_iter"
    assert atoms.iterations <= 3
    assert atoms.gradient > 1e-8


def test_no_beta_is_too_large_for_the_descent() -> None:
    atoms = sp.find_atoms(start(None, 60), 3000.0, A, 0.3 * OMEGA)
    assert math.isfinite(atoms.energy)
    assert sp.second_variation(atoms.measure, 3000.0, A, 0.3 * OMEGA).least.isfinite()


# --- higher dimension ----------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [3, 4])
@pytest.mark.parametrize("act", [RELU, GELU])
def test_atoms_on_spheres_are_stationary_and_second_order(d: int, act: sp.Activation) -> None:
    rng = np.random.default_rng(1)
    a, omega = np.eye(d) + 0.4 * rng.standard_normal((d, d)), 0.4 * np.array([0.8, -0.6, 0.5, -0.3])[:d]
    atoms = sp.find_atoms(on_sphere(150, d), 2.0, a, omega, act)
    assert atoms.n < 30
    assert atoms.status == "ok"
    assert sp.descent(2.0, a, omega, act)(0.0, atoms.measure)[0].norm(dim=-1).max() < 1e-8
    assert sp.second_variation(atoms.measure, 2.0, a, omega, act).least.item() > -1e-7


def scattered(seed: int, d: int, n: int = 100) -> tuple[of.Particles, np.ndarray, np.ndarray]:
    """Particles and neurons from one stream."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    a = np.eye(d) + 0.4 * rng.standard_normal((d, d))
    mu = of.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=of.Sphere())
    return mu, a, 0.4 * np.array([0.8, -0.6, 0.5, -0.3])[:d]


def assert_sound(atoms: sp.Atoms, beta: float, a: np.ndarray, omega: np.ndarray, act: sp.Activation) -> None:
    second = sp.second_variation(atoms.measure, beta, a, omega, act)
    several = atoms.measure.w > 1.5 / 100
    assert atoms.status == "ok"
    assert (second.splitting[several] >= -1e-8).all()
    assert second.least.item() > -1e-8


@pytest.mark.slow
def test_particles_that_are_merely_close_are_not_merged() -> None:
    """Here the widest gap is beyond the true spacings, and merging up to it would leave two atoms."""
    mu, a, omega = scattered(102, 4)
    atoms = sp.find_atoms(mu, 100.0, a, omega)
    assert atoms.n > 80
    assert atoms.energy == pytest.approx(-0.0607611, abs=1e-7)  # of a merge within 1e-6 only
    assert_sound(atoms, 100.0, a, omega, RELU)
    wide = sp.find_atoms(mu, 100.0, a, omega, radius=0.5)
    assert wide.n == 2
    assert wide.energy > atoms.energy + 1e-3
    assert wide.status == "degenerate"


@pytest.mark.slow(but_for=["3-act1-*", "4-act0-30.0", "4-act1-30.0"])
@pytest.mark.parametrize("beta", [30.0, 100.0, 1000.0])
@pytest.mark.parametrize("act", [RELU, GELU])
@pytest.mark.parametrize("d", [3, 4])
def test_merging_neither_raises_the_energy_nor_leaves_atoms_that_split(
    d: int, act: sp.Activation, beta: float
) -> None:
    mu, a, omega = scattered(0, d)
    atoms = sp.find_atoms(mu, beta, a, omega, act)
    apart = sp.find_atoms(mu, beta, a, omega, act, radius=1e-12)
    assert atoms.energy <= apart.energy + 1e-10
    assert_sound(atoms, beta, a, omega, act)


@pytest.mark.slow
def test_a_long_step_in_the_coordinates_is_not_taken_for_rest() -> None:
    """In y with x = y / |y| the slopes of a particle far out are small; here one is thrown there."""
    rng = np.random.default_rng(1074)
    x = rng.standard_normal((300, 4))
    a = np.eye(4) + 0.4 * rng.standard_normal((4, 4))
    mu = of.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=of.Sphere())
    atoms = sp.find_atoms(mu, 4.0, a, 0.4 * np.array([0.8, -0.6, 0.5, -0.3]))
    assert atoms.gradient < 1e-6
    assert atoms.energy == pytest.approx(-0.20498790, abs=1e-8)


def test_particles_that_cannot_part_are_called_degenerate() -> None:
    atoms = sp.find_atoms(circle([0.5] * 5), 3.0, A, 0 * OMEGA)
    assert atoms.n == 1
    assert atoms.status == "degenerate"
    assert sp.find_atoms(circle([0.5]), 3.0, A, 0 * OMEGA).status == "ok"


def test_tensors_with_derivatives_are_taken() -> None:
    a = torch.tensor(A, dtype=torch.float64, requires_grad=True)
    omega = torch.tensor(OMEGA, requires_grad=True)
    mu = of.Particles(start(None, 60).x.clone().requires_grad_(), space=of.Sphere())
    atoms = sp.find_atoms(mu, 4.0, a, omega)
    assert atoms.n == sp.find_atoms(start(None, 60), 4.0, A, OMEGA).n
    assert not atoms.measure.x.requires_grad


def test_a_circle_in_space_is_the_circle() -> None:
    """The charts of a circle and of a sphere agree on what is stationary."""
    flat = sp.find_atoms(start(None, 60), 2.0, A, OMEGA)
    a = np.concatenate([np.asarray(A), np.zeros((2, 1))], 1)
    pad = torch.nn.functional.pad
    inside = of.Particles(pad(flat.measure.x, (0, 1)), w=flat.measure.w, space=of.Sphere())
    assert sp.residual(inside, 2.0, a, OMEGA).item() < 1e-14
    lifted = sp.find_atoms(of.Particles(pad(start(None, 60).x, (0, 1)), space=of.Sphere()), 2.0, a, OMEGA)
    assert lifted.measure.x[:, 2].abs().max() < 1e-12
    back = of.Particles(lifted.measure.x[:, :2], w=lifted.measure.w, space=of.Sphere())
    assert sp.residual(back, 2.0, A, OMEGA).item() < 1e-8


# --- bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.0, 4.0, 9.0, 25.0])
def test_clusters_weigh_no_more_than_the_bounds(beta: float) -> None:
    for c in (0.05, 0.3):
        seed = next(cell[3] for cell in CELLS if cell[:3] == (RELU, c, beta))
        atoms = found(RELU, c, beta, seed)
        clusters = sp.cluster_masses(angles(atoms), atoms.measure.w, 1 / (2 * math.sqrt(beta)))
        C = sp.perceptron_constant(A, sp.printed_weights(beta, c * OMEGA))
        sharp, printed = sp.kernel_mass_bound(beta, C).item(), sp.mass_bound(beta, C).item()
        assert sharp <= printed
        assert (clusters.mass[clusters.size >= 2] <= sharp).all()


@pytest.mark.parametrize("beta", [1.0, 4.0, 9.0, 25.0])
def test_the_bound_on_heavy_atoms_is_above_the_trivial_one(beta: float) -> None:
    """All pieces of the arc weigh one together: the bound never says more than 1 / eps."""
    atoms = found(RELU, 0.05, beta, next(cell[3] for cell in CELLS if cell[:3] == (RELU, 0.05, beta)))
    arc = 2 * math.pi - sp.empty_arcs(angles(atoms))[0].item()
    assert sp.atom_bound(1, arc, beta, 0.1).item() > 1 / 0.1
