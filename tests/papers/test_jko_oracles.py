"""What `jko-oracles`, `porous-medium` and `crowd-motion` compare with, against what they did not compute."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, ndimage, optimize, stats

import otflow as of
from otflow import closed_forms
from otflow.papers import REGISTRY
from otflow.papers.crowd_motion import runs as crowd_runs
from otflow.papers.jko import grid_oracles as grids
from otflow.papers.jko import runs as oracles_runs
from otflow.papers.porous_medium import runs as porous_runs
from otflow.plot.densities import density
from otflow.reproduce.claim import Source, Verdict
from otflow.reproduce.frame import Frame
from otflow.reproduce.oracle import Oracle, distance, order


def oracle(solver: float, rate: float) -> Oracle:
    taus = (0.1, 0.05)
    return Oracle(
        "name", "W2", Source("source"), dict.fromkeys(taus, solver), {t: t**rate for t in taus}, 1e-3
    )


@pytest.mark.parametrize(
    ("solver", "rate", "verdicts"),
    [(1e-4, 1.0, ["holds", "holds"]), (1e-2, 1.0, ["fails", "holds"]), (1e-4, 0.5, ["holds", "fails"])],
)
def test_an_oracle_tells_a_bad_solver_from_a_bad_scheme(
    solver: float, rate: float, verdicts: list[str]
) -> None:
    assert [claim.verdict for claim in oracle(solver, rate).claims()] == verdicts


def test_the_order_is_a_slope() -> None:
    assert order({0.1: 3e-2, 0.2: 12e-2, 0.4: 48e-2}) == pytest.approx(2.0)


def test_the_laws_on_gaussians_commute_with_nothing() -> None:
    one = oracles_runs.law()
    S = one.mu.cov.numpy()
    for a, b in ((one.A, one.K), (one.A, S), (one.K, S)):
        assert np.abs(a @ b - b @ a).max() > 0.05


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_the_implicit_steps_of_attention_solve_their_equation(tau: float) -> None:
    """S = (I + tau S' H) S' (I + tau H S') by a general root finder, step by step."""
    S = oracles_runs.S0
    for _ in range(round(oracles_runs.ATTENTION_END / tau)):

        def rest(v: np.ndarray, S: np.ndarray = S) -> np.ndarray:
            T = np.array([[v[0], v[1]], [v[1], v[2]]])
            step = np.eye(2) + tau * T @ oracles_runs.H
            return np.asarray((step @ T @ step.T - S)[np.triu_indices(2)])

        v = optimize.fsolve(rest, S[np.triu_indices(2)], xtol=1e-13)
        S = np.array([[v[0], v[1]], [v[1], v[2]]])
    np.testing.assert_allclose(oracles_runs.attention_scheme(tau), S, atol=1e-10)


def test_the_profile_from_a_point_has_the_second_moment_that_defines_its_radius() -> None:
    """2/3 R^2 for the density (1 - r^2)^(-1/2) / (2 pi) on the unit disc."""
    moment = integrate.quad(lambda r: r**3 / math.sqrt(1 - r**2), 0, 1)[0]
    mass = integrate.quad(lambda r: r / math.sqrt(1 - r**2), 0, 1)[0]
    assert mass == pytest.approx(1.0)
    assert moment == pytest.approx(2 / 3)


def test_particles_that_leave_a_point_have_the_radius_of_the_flow() -> None:
    found = oracles_runs.spread(60, 0.125)
    exact = float(closed_forms.riesz_radius(1.0, 1.0, 2))
    assert found.radius[-1] == pytest.approx(exact, rel=2e-3)
    assert found.jko == pytest.approx(exact, rel=2e-3)
    # at constant speed
    np.testing.assert_allclose(found.radius[1:] / found.t[1:], found.radius[-1], rtol=1e-3)


def test_distances_on_the_line_are_those_of_scaled_laws() -> None:
    mu = of.Quantiles.from_ppf(stats.norm.ppf, 4000)
    assert distance(mu, stats.norm(0.5, 1.2).ppf) == pytest.approx(math.hypot(0.5, 0.2), rel=1e-6)
    assert oracles_runs.root_mean_square(stats.norm.ppf) == pytest.approx(1.0, rel=1e-6)


def test_a_square_sees_its_own_mean_of_the_logarithm() -> None:
    mean = integrate.dblquad(lambda x, y: math.log(math.hypot(x, y)), 0, 0.5, 0, 0.5, epsabs=1e-8)[0] * 4
    assert math.log(grids.OWN) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_second_moment_of_a_step_obeys_the_virial_theorem(share: float) -> None:
    assert grids.keller_rate(share, 48) == pytest.approx(4 * (1 - share), abs=0.15)


def test_blur_shows_against_the_scheme() -> None:
    sharp, blurred = (
        grids.l1(grids.spread(64, s, 1e-3), grids.profile(64, grids.radius(1e-3)))
        for s in (of.JKO(), of.EntropicJKO(2e-3))
    )
    assert sharp < 2e-3
    assert blurred > 20 * sharp


@pytest.mark.parametrize("m", [2.0, 4.0])
def test_the_energy_of_barenblatts_profile_is_its_integral(m: float) -> None:
    edge = closed_forms.barenblatt_radius(1.0, m, 2).item() * 0.3
    F = integrate.quad(
        lambda r: 2 * math.pi * r * closed_forms.barenblatt_profile(r, 0.3, m, 2).item() ** m / (m - 1),
        0,
        edge,
    )[0]
    assert porous_runs.exact_energy(np.array(0.3), m) == pytest.approx(F, rel=1e-7)


def test_bumps_have_their_mass_and_their_centre() -> None:
    rho = porous_runs.bump(64, 0.4, (0.2, 0.13), 0.15).numpy()
    assert rho.mean() == pytest.approx(0.4, rel=1e-5)
    centre = (np.array(ndimage.center_of_mass(rho)) + 0.5) / 64 - 0.5
    np.testing.assert_allclose(centre, (0.2, 0.13), atol=1e-4)


def test_the_packed_crowd_is_the_solution_of_a_linear_program() -> None:
    found = crowd_runs.follow(crowd_runs.SCENES["pillar"], 16, of.EntropicJKO(0.04), 1)
    V, cell = found.potential.flatten().numpy(), found.densities[0].cell
    program = optimize.linprog(V, A_eq=np.ones((1, len(V))), b_eq=[1.0], bounds=(0, found.scene.limit * cell))
    assert found.least == pytest.approx(program.fun, rel=1e-9)
    assert float(found.packed.max()) == pytest.approx(found.scene.limit)


@pytest.mark.parametrize("limit", [1.0, 3.0])
def test_the_packed_crowd_in_a_bowl_is_a_disc_of_area_one_over_the_limit(limit: float) -> None:
    scene = crowd_runs.SCENES["bowl"]._replace(limit=limit)
    found = crowd_runs.follow(scene, 64, of.EntropicJKO(0.04), 1)
    r = (2 * found.potential).sqrt()
    edge = (math.pi * limit) ** -0.5
    assert (found.packed[r < edge - 0.05] == limit).all()
    assert (found.packed[r > edge + 0.05] == 0).all()


def test_a_picture_of_a_density_is_the_right_way_round() -> None:
    """The first axis goes to the right, the second one up."""
    rho = np.zeros((4, 6))
    rho[3, 0] = 1.0
    x, y = np.arange(4) + 0.5, np.arange(6) + 0.5
    _, axes = of.plot.figure()
    image = density(of.Grid(rho, [x, y]), ax=axes[0, 0]).get_images()[0]
    assert tuple(image.get_extent()) == (0.0, 4.0, 0.0, 6.0)
    shown = image.get_array()
    assert shown is not None
    assert shown.argmax() == 3  # in the lowest row, the last column
    assert image.origin == "lower"


def test_pictures_refuse_what_has_no_density() -> None:
    _, axes = of.plot.figure()
    with pytest.raises(of.InputError, match="no density"):
        density(of.Particles([[0.0]]), ax=axes[0, 0])
    with pytest.raises(of.InputError, match="one measure"):
        density(of.Grid(np.ones((2, 4)) / 4, [np.arange(4.0)]), ax=axes[0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jko-oracles", "porous-medium", "crowd-motion"])
def test_every_claim_holds_in_the_quick_version(name: str) -> None:
    result = REGISTRY.load(name).run(Frame(quick=True))
    assert [claim.statement for claim in result.claims if claim.verdict is not Verdict.HOLDS] == []
    assert result.figures
