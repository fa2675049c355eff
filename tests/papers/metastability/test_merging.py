"""Merge times, merge points and staircases against closed forms, plain attention and the slow flow."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import otflow as of
from otflow.base.errors import InputError
from otflow.papers.metastability import Arclength, energy, merge_point, merge_time, slow_flow, staircase

AUTHORS = np.array([0, 0.5, 2, 4, 7]) / 2 * math.log(2000) / math.sqrt(2000)
PAIR = ([0.0, 1.2], [0.3, 0.7])
STARTS: list[tuple[list[float], list[float] | None]] = [
    ([0.0, 0.5, 2.0, 3.3], None),
    ([0.0, 0.6, 1.5, 3.2], [0.1, 0.4, 0.3, 0.2]),
    ([6.0, 0.5, 2.1, 3.3, 4.6], [0.3, 0.1, 0.15, 0.25, 0.2]),  # across angle 0, and more than half the circle
]


def gap_velocity(theta: float, beta: float, p: float, q: float, normalised: bool) -> float:
    """-d theta / dt for two clusters alone, from the equations of both."""
    E = math.exp(beta * (math.cos(theta) - 1))
    Zp, Zq = (p + q * E, q + p * E) if normalised else (1.0, 1.0)
    return (q / Zp + p / Zq) * E * math.sin(theta)


def attention(beta: float, normalised: bool) -> of.VelocityField:
    """SA, or USA in the time of the kernel exp(beta (<x, y> - 1)), on the sphere."""
    eye = torch.eye(2, dtype=torch.float64)
    A = beta**0.5 * eye
    return (
        of.SoftmaxAttention(A, A, eye)
        if normalised
        else math.exp(-beta) * of.UnnormalisedAttention(A, A, eye)
    )


def on_circle(theta: Any, masses: Any = None) -> of.Particles:
    theta = np.asarray(theta)
    return of.Particles(np.stack([np.cos(theta), np.sin(theta)], -1), w=masses, space=of.Sphere())


# --- two clusters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.1, 5.0, 60.0, 700.0, 4000.0])
@pytest.mark.parametrize("theta", [0.3, 1.2, 2.9, math.pi - 1e-9])
def test_the_merge_time_of_usa_is_one_of_exponential_integrals(theta: float, beta: float) -> None:
    # With u = 1 - cos the integral is that of exp(beta u) / (u (2 - u)), between the gap and half the energy.
    with mpmath.workdps(40):
        b, t = mpmath.mpf(beta), mpmath.mpf(theta)
        u = 1 - mpmath.cos(t)
        v = -mpmath.log((1 + mpmath.exp(-b * u)) / 2) / b
        near = mpmath.ei(b * u) - mpmath.ei(b * v)
        far = mpmath.exp(2 * b) * (mpmath.e1(b * (2 - u)) - mpmath.e1(b * (2 - v)))
        exact = float(mpmath.log((near + far) / 2))
    assert merge_time(theta, beta, [0.4, 0.6]).item() == pytest.approx(exact, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("normalised", [False, True])
def test_the_merge_time_is_that_of_the_equation_of_the_gap(normalised: bool) -> None:
    theta, beta, (p, q) = 1.4, 12.0, (0.2, 0.5)
    half = math.acos(1 + math.log((1 + math.exp(beta * (math.cos(theta) - 1))) / 2) / beta)

    def rate(t: float, y: Any) -> list[float]:
        return [-gap_velocity(y[0], beta, p, q, normalised)]

    def closed(t: float, y: Any) -> float:
        return float(y[0] - half)

    closed.terminal = True  # type: ignore[attr-defined]
    found = solve_ivp(rate, (0, 1e9), [theta], events=closed, rtol=1e-11, atol=1e-13, method="LSODA")
    T = merge_time(theta, beta, [p, q], normalised=normalised).exp().item()
    assert found.t_events[0][0] == pytest.approx(T, rel=1e-7)


def test_two_clusters_have_the_merge_time_of_the_reference() -> None:
    theta, beta, (p, q) = 1.2, 60.0, PAIR[1]
    formula = math.exp(beta * (1 - math.cos(theta))) / ((p + q) * beta * math.sin(theta) ** 2)
    quadrature = merge_time(theta, beta, [p, q]).exp().item()
    simulated = math.exp(slow_flow(PAIR[0], beta, masses=PAIR[1]).merges[0].log_t)
    assert formula == pytest.approx(7.92e14, abs=0.005e14)
    assert quadrature == pytest.approx(8.03e14, abs=0.005e14)
    assert simulated == pytest.approx(8.05e14, rel=0.002)  # found with a rule of first order for time
    assert simulated == pytest.approx(quadrature, rel=5e-4)


@pytest.mark.parametrize("normalised", [False, True])
def test_the_asymptotic_formula_is_approached_like_one_over_beta(normalised: bool) -> None:
    beta, theta, (p, q) = torch.tensor([200.0, 400.0, 800.0]).double(), 0.9, (0.3, 0.7)
    c = p / q + q / p if normalised else p + q
    formula = beta * (1 - math.cos(theta)) - torch.log(c * beta * math.sin(theta) ** 2)
    error = merge_time(theta, beta, [p, q], normalised=normalised) - formula
    assert (error[:-1] / error[1:]).tolist() == pytest.approx([2.0, 2.0], rel=0.02)


@pytest.mark.slow
def test_merge_points_are_those_of_the_reference() -> None:
    theta, masses = PAIR
    leading = 1.2 * 0.7**2 / (0.3**2 + 0.7**2)
    for beta, off in ((20.0, 0.048), (60.0, 0.027)):
        point = merge_point(1.2, beta, masses, normalised=True).item()
        assert leading - point == pytest.approx(off, abs=0.0005)
        run = slow_flow(theta, beta, masses=masses, normalised=True)
        assert run.merges[0].theta == pytest.approx(point, abs=6e-4)  # the last of the gap is jumped over
        assert slow_flow(theta, beta, masses=masses).merges[0].theta == pytest.approx(0.84, abs=1e-12)
    assert merge_point(1.2, 1e6, masses, normalised=True).item() == pytest.approx(leading, abs=3e-4)
    assert merge_point(1.2, 20.0, masses).item() == pytest.approx(0.84, abs=1e-15)


def test_sa_merges_where_an_integration_of_both_clusters_says() -> None:
    p, q, beta = 0.3, 0.7, 15.0

    def rate(t: float, y: Any) -> list[float]:
        E, s = math.exp(beta * (math.cos(y[1] - y[0]) - 1)), math.sin(y[1] - y[0])
        return [q * E * s / (p + q * E), -p * E * s / (q + p * E)]

    found = solve_ivp(rate, (0, 1e5), [0.0, 1.2], rtol=1e-10, atol=1e-12, method="LSODA").y[:, -1]
    assert found[1] - found[0] < 1e-9
    assert found[0] == pytest.approx(merge_point(1.2, beta, [p, q], normalised=True).item(), abs=1e-7)


# --- the field and the clock of the slow flow ----------------------------------------------------------


@pytest.mark.parametrize("normalised", [False, True])
def test_arclength_has_the_direction_and_the_speed_of_attention(normalised: bool) -> None:
    rng = np.random.default_rng(0)
    theta, masses = rng.uniform(0, 7, (3, 6)), rng.dirichlet(np.ones(6))
    mu, field = of.Particles(theta[..., None], w=masses), Arclength(5.0, normalised=normalised)
    v = attention(5.0, normalised)(0.0, on_circle(theta, masses))[0]
    tangent = torch.from_numpy(np.stack([-np.sin(theta), np.cos(theta)], -1))
    speed = (v * tangent).sum(-1)
    top = speed.abs().amax(-1)
    torch.testing.assert_close(field.log_speed(mu), top.log(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(field(0.0, mu)[0][..., 0], speed / top[:, None], rtol=1e-11, atol=1e-12)


def test_a_token_alone_stays_where_it_is() -> None:
    assert Arclength(5.0)(0.0, of.Particles([[1.0]]))[0].item() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("normalised", [False, True])
def test_the_slow_flow_agrees_with_plain_attention_in_plain_time(normalised: bool) -> None:
    theta, masses, beta = [0.0, 0.8, 1.9], [0.2, 0.5, 0.3], 8.0
    run = slow_flow(theta, beta, masses=masses, normalised=normalised, merge_gap=0.02)
    first, last = run.merges[0].log_t, run.merges[1].log_t
    ts = np.exp([first - 0.3, first - 0.1, last - 0.2, last - 0.1])
    traj = of.flow(
        on_circle(theta, masses),
        attention(beta, normalised),
        of.Dopri5(1e-8, 1e-10),
        t1=float(ts[-1]),
        save_at=[0.0, *ts],
    )
    x = traj.stacked.nodes()[0][1:]
    plain = torch.atan2(x[..., 1], x[..., 0])
    k = torch.searchsorted(run.log_t, torch.from_numpy(np.log(ts)))
    w = ((torch.from_numpy(np.log(ts)) - run.log_t[k - 1]) / (run.log_t[k] - run.log_t[k - 1]))[:, None]
    slow = run.theta[k - 1] * (1 - w) + run.theta[k] * w
    torch.testing.assert_close(plain, slow, rtol=0, atol=2e-3)  # collisions are enforced at 0.02


@pytest.mark.slow
@pytest.mark.parametrize("normalised", [False, True])
def test_the_clock_is_of_second_order(normalised: bool) -> None:
    exact = merge_time(1.2, 60.0, PAIR[1], normalised=normalised).item()
    errors = [
        slow_flow(PAIR[0], 60.0, masses=PAIR[1], normalised=normalised, step=h).merges[0].log_t - exact
        for h in (1.0, 0.5, 0.25)
    ]
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.05)
    assert abs(errors[0]) < 5e-4


@pytest.mark.slow(but_for=["*-30.0"])
@pytest.mark.parametrize("beta", [30.0, 300.0])
@pytest.mark.parametrize("eta", [1e-2, 1e-5, 1e-9])
def test_the_clock_is_right_next_to_antipodes(eta: float, beta: float) -> None:
    exact = merge_time(math.pi - eta, beta, [0.5, 0.5]).item()
    assert slow_flow([0.0, math.pi - eta], beta).merges[0].log_t == pytest.approx(exact, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("normalised", [False, True])
def test_the_clock_is_right_where_pulls_nearly_cancel(normalised: bool) -> None:
    theta, beta = np.arange(4) * math.pi / 2 + np.array([0.0, 1e-3, 0.0, 0.0]), 6.0
    run = slow_flow(theta, beta, normalised=normalised, merge_gap=0.05)

    def near(t: torch.Tensor, mu: Any) -> bool:
        x = mu.nodes()[0]
        return bool(torch.pdist(x).min() <= 2 * math.sin(0.025))

    plain = of.flow(
        on_circle(theta), attention(beta, normalised), of.Dopri5(), t1=1e6, save_at=[1e6], stop=near
    )
    assert run.merges[0].log_t == pytest.approx(math.log(float(plain.ended)), abs=0.01)


def test_energy_is_a_double_sum_and_grows_along_the_flow() -> None:
    theta, m = np.array([0.0, 0.7, 2.0]), np.array([0.5, 0.2, 0.3])
    double = sum(
        m[i] * m[j] * math.exp(9 * (math.cos(theta[i] - theta[j]) - 1)) for i in range(3) for j in range(3)
    )
    assert energy(theta, 9.0, m).item() == pytest.approx(double, rel=1e-14)
    run = slow_flow(theta, 30.0, masses=m)
    assert bool((run.energy.diff() > -1e-12).all())
    assert bool((run.log_t.diff() >= 0).all())
    assert run.energy[-1].item() == pytest.approx(1.0, abs=1e-12)
    centre = (run.theta @ torch.from_numpy(m)).numpy()  # USA conserves it
    assert np.abs(centre - theta @ m).max() < 1e-12


# --- the staircase -------------------------------------------------------------------------------------


@pytest.mark.slow(but_for=["theta1-masses1-True", "theta2-masses2-False"])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("theta", "masses"), STARTS)
def test_jumps_of_the_simulation_are_predicted_within_one_per_cent(
    theta: list[float], masses: list[float] | None, normalised: bool
) -> None:
    steps = staircase(theta, 200.0, masses, normalised=normalised)
    run = slow_flow(theta, 200.0, masses=masses, normalised=normalised)
    assert steps.margins.min() > 10
    assert len(run.merges) == len(theta) - 1
    assert run.jumps.tolist() == pytest.approx(steps.log_times.tolist(), rel=2e-4)
    assert [m.theta for m in run.merges] == pytest.approx(steps.merge_points.tolist(), abs=1e-3)
    assert [set(m.clusters) for m in run.merges] == [set(pair) for pair in steps.pairs]
    # between the jumps the energy is that of the plateau
    between = (steps.log_times[:-1] + steps.log_times[1:]) / 2
    k = torch.searchsorted(run.s, between)
    torch.testing.assert_close(run.energy[k], steps.levels[1:-1], rtol=0, atol=1e-6)
    torch.testing.assert_close(steps.energy(between), steps.levels[1:-1])


@pytest.mark.slow(but_for=["1000.0"])
@pytest.mark.parametrize("beta", [1000.0, 4000.0])
def test_the_staircase_of_the_authors(beta: float) -> None:
    steps, run = staircase(AUTHORS, beta), slow_flow(AUTHORS, beta)
    assert steps.levels.tolist() == pytest.approx([0.2, 0.28, 0.44, 0.52, 1.0], abs=1e-15)
    assert steps.pairs == (((0,), (1,)), ((0, 1), (2,)), ((3,), (4,)), ((0, 1, 2), (3, 4)))
    assert run.jumps[1:].tolist() == pytest.approx(steps.log_times[1:].tolist(), rel=0.002)
    # beta (1 - cos) of the first gap is 0.9 and 3.6: not metastable, and only the order of t is known
    assert abs(run.merges[0].log_t - steps.log_t[0].item()) < 1.0


@pytest.mark.slow(but_for=["500.0"])
@pytest.mark.parametrize("beta", [500.0, 2000.0])
def test_the_staircase_of_the_authors_at_other_temperatures(beta: float) -> None:
    steps, run = staircase(AUTHORS, beta), slow_flow(AUTHORS, beta)
    assert run.jumps[1:].tolist() == pytest.approx(
        steps.log_times[1:].tolist(), rel=0.02 if beta < 1000 else 1e-3
    )
    assert float(run.energy[-1]) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("normalised", [False, True])
def test_errors_for_nearly_equal_gaps_are_of_the_order_of_exp_minus_margin(normalised: bool) -> None:
    for eta in (0.01, 0.03):
        theta = [0.0, 0.6, 1.2 + eta]
        steps = staircase(theta, 200.0, normalised=normalised)
        run = slow_flow(theta, 200.0, normalised=normalised)
        error = max(abs(m.log_t - t) for m, t in zip(run.merges, steps.log_t.tolist(), strict=True))
        share = error / math.exp(-steps.margins[0].item())
        assert 0.2 < share < 1.5
        assert run.jumps.tolist() == pytest.approx(steps.log_times.tolist(), rel=0.01)


def test_rotations_turns_reflections_and_the_order_of_tokens_do_not_matter() -> None:
    theta, masses = (np.array(a) for a in STARTS[2])
    steps = staircase(theta, 50.0, masses, normalised=True)
    order = np.array([3, 0, 4, 1, 2])
    for other, mass in (
        (theta + 1.7, masses),
        (theta + 2 * np.pi * np.array([1, -2, 0, 3, 5]), masses),
        (-theta, masses),
        (theta[order], masses[order]),
    ):
        found = staircase(other, 50.0, mass, normalised=True)
        torch.testing.assert_close(found.log_t, steps.log_t, rtol=1e-12, atol=1e-10)
        torch.testing.assert_close(found.levels, steps.levels)
    turned = torch.remainder(steps.merge_points + 1.7, 2 * math.pi)
    found = staircase(theta + 1.7, 50.0, masses, normalised=True)
    torch.testing.assert_close(found.merge_points, turned, rtol=0, atol=1e-10)


def test_tokens_may_merge_across_angle_zero() -> None:
    run, steps = slow_flow([6.1, 0.2, 3.0], 60.0), staircase([6.1, 0.2, 3.0], 60.0)
    middle = (6.1 - 2 * math.pi + 0.2) / 2
    assert run.merges[0].theta == pytest.approx(middle, abs=1e-9)
    assert steps.merge_points[0].item() == pytest.approx(middle, abs=1e-12)
    assert (run.theta.diff(dim=0).abs().max()) < 0.1  # no token jumps by a turn
    assert torch.cos(run.theta[-1, 0] - run.theta[-1, 1]).item() == pytest.approx(1.0)


def test_a_mass_counts_like_tokens_that_share_a_place() -> None:
    # close tokens first merge among themselves, in a time that is nothing to what follows
    many = staircase([0.0, 1e-4, 1.0], 40.0)
    one = staircase([0.5e-4, 1.0], 40.0, [2 / 3, 1 / 3])
    assert many.log_t[1].item() == pytest.approx(one.log_t[0].item(), abs=1e-3)
    assert many.levels[1:].tolist() == pytest.approx(one.levels.tolist())


def test_antipodes_are_an_end() -> None:
    theta = [-0.5, 0.5, math.pi - 0.5, math.pi + 0.5]
    steps, run = staircase(theta, 50.0), slow_flow(theta, 50.0)
    assert steps.levels.tolist() == pytest.approx([0.25, 0.375, 0.5])
    assert run.status == "equilibrium"
    assert len(run.merges) == len(steps.pairs) == 2
    assert staircase([0.0, math.pi], 50.0).levels.tolist() == [0.5]
    with pytest.raises(InputError, match="equilibrium"):
        slow_flow([0.0, math.pi], 50.0)
    even = np.arange(5) * 2 * math.pi / 5
    with pytest.raises(InputError, match="equilibrium"):
        slow_flow(even, 50.0)
    assert staircase(even, 50.0).levels.tolist() == pytest.approx([0.2])
    assert len(staircase(even + np.array([0.1, 0, 0, 0, 0]), 50.0).pairs) == 4


def test_the_staircase_of_one_token_is_flat() -> None:
    steps = staircase([1.0], 10.0)
    assert steps.levels.tolist() == [1.0]
    assert steps.energy([0.0, 5.0]).tolist() == [1.0, 1.0]


def test_merge_times_broadcast() -> None:
    theta, beta = torch.tensor([[0.5], [1.0]]), torch.tensor([10.0, 20.0, 30.0])
    out = merge_time(theta, beta, [0.5, 0.5], normalised=True)
    assert out.shape == (2, 3)
    assert out[1, 2].item() == pytest.approx(merge_time(1.0, 30.0, [0.5, 0.5], normalised=True).item())
    assert merge_point(theta, beta, [0.5, 0.5], normalised=True)[0].tolist() == pytest.approx([0.25] * 3)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: staircase([0.0, 1.0], 0.0), "beta = 0.0"),
        (lambda: staircase([0.0, 1.0, 2 * math.pi], 5.0), "masses="),
        (lambda: staircase([0.0, 1.0], 5.0, [0.5, 0.6]), "sum to 1"),
        (lambda: staircase([0.0, 1.0], 5.0, [1.0, 0.0]), "> 0"),
        (lambda: staircase([0.0, 1.0], 5.0, [1.0]), "masses.shape"),
        (lambda: staircase([[0.0, 1.0]], 5.0), "theta0.shape"),
        (lambda: staircase([0.0, math.nan], 5.0), "finite"),
        (lambda: slow_flow([0.0, 1.0], -1.0), "beta = -1.0"),
        (lambda: slow_flow([0.0, 1.0], 2.0), "merge_gap"),
        (lambda: slow_flow([0.0], 20.0), "n >= 2"),
        (lambda: slow_flow([0.0, 0.05, 2.0], 20.0), "smaller merge_gap"),
        (lambda: slow_flow([0.0, 1.0], 20.0, step=0.0), "step"),
        (lambda: slow_flow([0.0, 1.0], 20.0, step=3.0), "step <= 2"),
        (lambda: merge_time(math.pi, 20.0, [0.5, 0.5]), "antipodes"),
        (lambda: merge_time(1.0, 0.0, [0.5, 0.5]), "beta"),
        (lambda: merge_time(1.0, 1e308, [0.5, 0.5]), "beta / 10"),
        (lambda: merge_time([1.0, 1.2], [1.0, 2.0, 3.0], [0.5, 0.5]), "do not broadcast"),
        (lambda: merge_point([1.0, 1.2], 1.0, np.ones((3, 2))), "do not broadcast"),
        (lambda: merge_point(1.0, 20.0, [0.5, 0.0]), "masses"),
        (lambda: merge_point(1.0, 20.0, [0.5]), "two masses"),
        (lambda: Arclength(5.0)(0.0, of.Particles([[0.0, 1.0]])), "angles"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        call()
