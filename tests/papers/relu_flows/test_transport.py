"""Transport, polar maps and neurons by ReLU flows: rates, reference numbers, tails, wrong input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.stats import cauchy, gamma, kstest, norm, t, uniform

import otflow as of
from otflow.base.errors import InputError
from otflow.papers import relu_flows as rf
from otflow.reproduce.fits import slope

Array = np.ndarray
MIXTURE = rf.Mixture1d([0.3, 0.7], [norm(-2, 0.5), norm(1, 0.8)])


def curved(j: int, y: Array) -> Any:
    if j == 0:
        return norm(np.zeros(len(y)), 1)
    return norm(0.6 * (y[:, 0] ** 2 - 1), 0.5 + 0.2 * np.tanh(y[:, 0]))


# --- mixtures ------------------------------------------------------------------------------------------


def test_quantiles_of_a_mixture_invert_its_distribution_function_into_the_tails() -> None:
    u = np.array([1e-200, 1e-30, 1e-9, 0.2, 0.5, 0.9, 1 - 1e-9])
    assert np.abs(MIXTURE.cdf(MIXTURE.ppf(u)) / u - 1).max() < 1e-10
    assert np.abs(MIXTURE.sf(MIXTURE.isf(u)) / u - 1).max() < 1e-10
    assert MIXTURE.ppf([0.0, 1.0]).tolist() == MIXTURE.isf([1.0, 0.0]).tolist() == [-math.inf, math.inf]
    gap = rf.Mixture1d([0.5, 0.5], [uniform(0, 1), uniform(5, 1)])
    assert gap.ppf([0.0, 1.0]).tolist() == gap.isf([1.0, 0.0]).tolist() == [0, 6]
    assert quad(lambda y: math.exp(MIXTURE.logpdf(y)), -12, 12, points=[-2, 1])[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("weights", "laws"),
    [([0.5, 0.6], [norm(), norm()]), ([1.0], [norm(), norm()]), ([], []), ([-1, 2], [norm(), norm()]),
     ([1.0], [3]), ([1.0], [rf.Mixture1d]), ([math.nan, 1.0], [norm(), norm()])],
)  # fmt: skip
def test_mixtures_that_are_none_are_refused(weights: Any, laws: Any) -> None:
    with pytest.raises(InputError):
        rf.Mixture1d(weights, laws)


# --- on the line ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kl_and_tv_on_the_line_have_the_reference_values_and_rates() -> None:
    K = [4, 8, 16, 32, 64, 128]
    runs = [rf.transport_1d(norm(), MIXTURE, k) for k in K]
    kl, tv = [r.kl for r in runs], [r.tv for r in runs]
    assert [r.pieces for r in runs] == [k + 2 for k in K]
    assert np.allclose(kl, [7.94e-2, 2.00e-2, 1.30e-2, 3.07e-3, 8.13e-4, 2.42e-4], rtol=0.15)
    assert np.allclose(tv, [0.138, 0.065, 0.043, 0.0202, 0.0099, 0.0051], rtol=0.05)
    assert slope(K[2:], kl[2:]) == pytest.approx(-2, abs=0.15)
    assert slope(K[2:], tv[2:]) == pytest.approx(-1, abs=0.15)


@pytest.mark.slow
def test_kl_and_tv_are_those_of_an_adaptive_quadrature() -> None:
    run = rf.transport_1d(norm(), MIXTURE, 8)

    def log_image(y: float) -> float:
        return run.flow.log_density([[y]], lambda x: norm.logpdf(x[..., 0])).item()

    def integrand(y: float) -> float:
        return math.exp(MIXTURE.logpdf(y)) * (MIXTURE.logpdf(y) - log_image(y))

    nodes = MIXTURE.ppf(np.linspace(2e-4, 1 - 2e-4, 9)).tolist()
    assert run.kl == pytest.approx(quad(integrand, -8, 9, points=nodes, limit=200)[0], rel=1e-5)
    y = np.linspace(-8, 9, 400_001)
    image = np.exp(run.flow.log_density(y[:, None], lambda x: norm.logpdf(x[..., 0])).numpy())
    tv = 0.5 * np.abs(np.exp(MIXTURE.logpdf(y)) - image).sum() * (y[1] - y[0])
    assert run.tv == pytest.approx(tv, rel=1e-4)


def test_samples_of_base_are_carried_to_samples_of_the_target() -> None:
    z = np.random.default_rng(0).standard_normal((4000, 1))
    run = rf.transport_1d(norm(), MIXTURE, 256)
    assert kstest(run.flow(z).numpy()[:, 0], MIXTURE.cdf).pvalue > 0.01


@pytest.mark.parametrize("law", [cauchy(), t(1.5), t(2)])
def test_a_target_without_second_moment_is_out_of_reach_of_a_gaussian(law: Any) -> None:
    for K in (4, 64):
        run = rf.transport_1d(norm(), law, K)
        assert run.kl == math.inf
        assert run.tv < 0.5
        assert run.obstruction is not None
        assert "too heavy" in run.obstruction
        assert "obstructed" in repr(run)


@pytest.mark.parametrize("law", [t(2.5), t(3), norm(1, 3), uniform(0, 1), gamma(3), MIXTURE])
def test_a_target_with_second_moment_is_within_reach(law: Any) -> None:
    run = rf.transport_1d(norm(), law, 32)
    assert run.obstruction is None
    assert 0 <= run.kl < 0.1


SPIKES = rf.Mixture1d([0.5, 0.5], [norm(0, 1e-4), norm(3, 1e-4)])
GAPPED = rf.Mixture1d([0.5, 0.5], [uniform(0, 1), uniform(5, 1)])


@pytest.mark.parametrize(
    ("base", "law"),
    [(norm(), stats.beta(2, 2)), (norm(), stats.arcsine()), (norm(), stats.triang(0.3)), (norm(), SPIKES),
     (norm(), gamma(0.2)), (norm(), GAPPED), (norm(), stats.semicircular()), (uniform(), stats.arcsine()),
     (uniform(), uniform(2, 3)), (stats.expon(), stats.lomax(1.5)), (stats.laplace(), t(1.8))],
)  # fmt: skip
def test_kl_and_tv_are_means_under_the_target_whatever_its_density_and_support(base: Any, law: Any) -> None:
    """Densities that are 0, infinite, spiked or underflow; affine maps of supports are no obstruction."""
    run = rf.transport_1d(base, law, 9)
    assert run.obstruction is None
    n = 20_000 if law in (SPIKES, GAPPED) else 200_000
    y = law.ppf((np.arange(n) + 0.5) / n)
    g = law.logpdf(y) - run.flow.log_density(y[:, None], lambda x: base.logpdf(x[..., 0])).numpy()
    assert run.kl == pytest.approx(g.mean(), rel=5e-3, abs=1e-9)
    assert run.tv == pytest.approx((-np.expm1(-np.maximum(g, 0))).mean(), rel=5e-3, abs=1e-9)


@pytest.mark.parametrize("law", [stats.skewcauchy(0.3), stats.f(3, 3), stats.pareto(1.9), stats.levy()])
def test_heavy_tails_are_seen_where_quantiles_fail_far_out(law: Any) -> None:
    run = rf.transport_1d(norm(), law, 8)
    assert run.kl == math.inf
    assert "too heavy" in str(run.obstruction)


def test_a_density_that_is_zero_where_the_target_has_mass_is_named() -> None:
    run = rf.transport_1d(rf.Mixture1d([0.5, 0.5], [uniform(0, 1), uniform(5, 1)]), uniform(), 5)
    assert run.kl == math.inf
    assert "density 0" in str(run.obstruction)
    run = rf.knothe_rosenblatt([uniform()] * 2, lambda j, y: uniform(0.3 * y.sum(-1), 1), 4)
    assert (run.kl, run.kl_error) == (math.inf, 0)
    assert "density 0" in str(run.obstruction)


def test_heavy_tails_are_within_reach_of_heavy_tails_and_support_counts() -> None:
    assert rf.transport_1d(cauchy(), cauchy(1, 2), 16).kl < 1e-10
    assert rf.transport_1d(t(2), cauchy(), 16).obstruction is None
    run = rf.transport_1d(uniform(0, 1), norm(), 16)
    assert run.kl == math.inf
    assert "support" in str(run.obstruction)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: rf.transport_1d(norm(), MIXTURE, 0), "K = 0"),
        (lambda: rf.transport_1d(norm(), MIXTURE, 2.5), "K = 2.5"),
        (lambda: rf.transport_1d(norm(), MIXTURE, 4, tail=0.5), "tail"),
        (lambda: rf.transport_1d(norm(), MIXTURE, 4, tail=math.nan), "tail"),
        (lambda: rf.transport_1d("normal", MIXTURE, 4), "lacks"),
        (lambda: rf.transport_1d(norm(), rf.Mixture1d, 4), "instance"),
        (lambda: rf.transport_1d(norm(), norm([0, 1], 1), 4), "one law"),
        (lambda: rf.transport_1d(gamma, norm(), 4), "parameters"),
        (lambda: rf.knothe_rosenblatt(norm(), curved, 4), "list of laws"),
        (lambda: rf.knothe_rosenblatt([], curved, 4), "list of laws"),
        (lambda: rf.knothe_rosenblatt([norm()] * 2, 3, 4), "function"),
        (lambda: rf.knothe_rosenblatt([norm()] * 2, lambda j, y: 3, 4), "lacks"),
        (lambda: rf.knothe_rosenblatt([norm()] * 2, curved, 0), "K = 0"),
        (lambda: rf.knothe_rosenblatt([norm()] * 2, curved, 4, nodes=1), "nodes"),
        (lambda: rf.knothe_rosenblatt([norm()] * 9, curved, 40), "too many"),
        (lambda: rf.knothe_rosenblatt([norm()] * 2, curved, 4, samples=2**31), "samples"),
        (lambda: rf.knothe_rosenblatt([norm()] * 2, curved, 9, delta=2.0), "overlap"),
        (lambda: rf.knothe_rosenblatt([norm()] * 2, lambda j, y: norm(np.zeros(7), 1), 4), "broadcast"),
        (lambda: rf.maurey(([[1.0]], [[1.0]], [0.0]), 0, rng=0), "M = 0"),
        (lambda: rf.maurey(([[1.0]], [[1.0]], [0.0]), 5, rng=None), "rng"),
        (lambda: rf.maurey(([[0.0]], [[1.0]], [0.0]), 5, rng=0), "moves something"),
        (lambda: rf.maurey(([[1e200, 0.0]], [[0.0, 1e200]], [0.0]), 5, rng=0), "floating point"),
        (lambda: rf.maurey("abc", 5, rng=0), "neurons"),
        (lambda: rf.lie_trotter(([[1.0]], [[1.0, 2.0]], [0.0]), 5), "shape"),
        (lambda: rf.lie_trotter(([[1.0]], [[1.0]], [0.0]), 5, T=-1.0), "T = -1"),
        (lambda: rf.polar(lambda x: x, 0), "mesh"),
        (lambda: rf.polar(3, 4), "function"),
        (lambda: rf.polar(lambda x: 1e6 * x, 4), "tall"),
        (lambda: rf.Mixture1d([1.0], None), "list of laws"),
        (lambda: rf.polar(lambda x: x[:, :1], 4), "map"),
        (lambda: rf.polar(lambda x: x * [1.0, -1.0], 4), "orientation"),
        (lambda: rf.polar(lambda x: x * np.nan, 4), "finite"),
        (lambda: rf.polar(lambda x: x, 4, delta=0.5), "delta"),
    ],
)
def test_what_makes_no_sense_is_refused(build: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build()


# --- Knothe and Rosenblatt -----------------------------------------------------------------------------

TABLE = {9: (51, 0.375, 0.356), 18: (105, 0.0907, 0.176), 36: (213, 0.0232, 0.088),
         72: (429, 0.0060, 0.047), 144: (861, 0.0020, 0.029)}  # fmt: skip
CENTRED = {9: (89, 0.00667), 18: (179, 0.00178), 36: (359, 0.00059)}


@pytest.mark.parametrize("K", [9, 18, 36, *(pytest.param(k, marks=pytest.mark.slow) for k in (72, 144))])
def test_knothe_rosenblatt_has_the_reference_values(K: int) -> None:
    pieces, kl, l2 = TABLE[K]
    run = rf.knothe_rosenblatt([norm(), norm()], curved, K, samples=2**16 if K < 40 else 2**20)
    assert run.pieces == pieces == 6 * K - 3
    assert run.kl == pytest.approx(kl, rel=0.2)
    assert run.kl_error < 0.1 * kl
    assert run.l2 == pytest.approx(l2, rel=0.2)


@pytest.mark.slow(but_for=["36"])
@pytest.mark.parametrize("K", [9, 18, 36])
def test_with_medians_off_first_far_less_is_lost(K: int) -> None:
    pieces, kl = CENTRED[K]
    run = rf.knothe_rosenblatt([norm(), norm()], curved, K, centre=True, samples=2**20)
    assert run.pieces == pieces == 10 * K - 1
    assert run.kl == pytest.approx(kl, rel=0.2)


def test_the_rates_of_knothe_rosenblatt_are_two_and_one() -> None:
    K = [9, 18, 36, 72]
    runs = [rf.knothe_rosenblatt([norm(), norm()], curved, k, delta=1e-9) for k in K]
    assert slope(K, [r.kl for r in runs]) == pytest.approx(-2, abs=0.15)
    assert slope(K, [r.l2 for r in runs]) == pytest.approx(-1, abs=0.15)
    assert slope(K, [r.tv for r in runs]) == pytest.approx(-1, abs=0.15)


def test_the_image_under_knothe_rosenblatt_has_mass_one_and_is_invertible() -> None:
    flow = rf.knothe_rosenblatt([norm(), norm()], curved, 9, delta=1e-3, samples=64).flow
    axis = np.linspace(-5, 5, 801), np.linspace(-6, 16, 1601)
    grid = np.stack(np.meshgrid(*axis, indexing="ij"), -1)
    density = flow.log_density(grid, lambda x: norm.logpdf(x.numpy()).sum(-1)).exp()
    assert density.sum().item() * (10 / 800) * (22 / 1600) == pytest.approx(1, abs=5e-3)
    x = np.random.default_rng(0).standard_normal((5000, 2))
    assert (flow.inverse(flow(x)) - torch.from_numpy(x)).abs().max() < 1e-9


def test_knothe_rosenblatt_in_three_dimensions_without_gaussians() -> None:
    def target(j: int, y: Array) -> Any:
        if j == 0:
            return gamma(np.full(len(y), 4.0), scale=0.3)
        return t(8, 0.4 * y[:, 0] + (0.3 * y[:, 1] if j == 2 else 0.0), 1 + 0.1 * np.tanh(y[:, -1]))

    runs = [rf.knothe_rosenblatt([norm()] * 3, target, K, centre=True, delta=1e-8) for K in (4, 8)]
    assert runs[1].kl < 0.5 * runs[0].kl
    assert runs[1].tv < 0.6 * runs[0].tv
    x = np.random.default_rng(0).standard_normal((2000, 3))
    flow = runs[1].flow
    assert (flow.inverse(flow(x)) - torch.from_numpy(x)).abs().max() < 1e-9


def test_heavy_conditional_laws_are_told_apart() -> None:
    run = rf.knothe_rosenblatt([norm()] * 2, lambda j, y: cauchy(y.sum(-1), 1) if j else norm(y.sum(-1)), 4)
    assert run.kl == math.inf
    assert str(run.obstruction).startswith("coordinate 1: the lower tail")


# --- polar maps ----------------------------------------------------------------------------------------


def twist(x: Any) -> Array:
    """A swirl, then a stretch along x_1; its inverse is `untwist`."""
    c = np.asarray(x) - 0.5
    angle = 2 * np.exp(-6 * (c**2).sum(-1))
    y1 = np.cos(angle) * c[:, 0] - np.sin(angle) * c[:, 1] + 0.5
    y2 = np.sin(angle) * c[:, 0] + np.cos(angle) * c[:, 1] + 0.5
    return np.stack([y1 + 0.12 * np.sin(2 * np.pi * y1), y2], -1)


@pytest.mark.slow
def test_polar_maps_converge_like_the_mesh_and_have_the_jacobians_of_the_cells() -> None:
    K, x = [4, 8, 16, 24], np.random.default_rng(0).random((20_000, 2))
    errors = []
    for k in K:
        run = rf.polar(twist, k)
        y, gain = run.flow.with_log_det(x)
        cell = np.minimum((x * k).astype(int), k - 1)
        same = np.abs(gain.numpy() - np.log(run.jacobians[cell[:, 0], cell[:, 1]])) < 1e-10
        assert same.mean() > 0.9995
        errors.append(math.sqrt(((y.numpy() - twist(x)) ** 2).sum(-1).mean()))
        assert errors[-1] == pytest.approx(run.l2, rel=0.05)
        assert (run.flow.inverse(y) - torch.from_numpy(x)).abs().quantile(0.999) < 1e-10
    assert slope(K, errors) == pytest.approx(-1, abs=0.15)


def test_jacobians_of_a_polar_map_are_means_over_cells() -> None:
    run = rf.polar(lambda x: torch.stack([x[:, 0].exp(), x[:, 1]], -1), 5)
    edges = np.exp(np.linspace(0, 1, 6))
    assert np.abs(run.jacobians - 5 * np.diff(edges)[:, None]).max() < 1e-12


def test_a_polar_map_of_the_identity_is_the_identity_off_strips() -> None:
    x = np.random.default_rng(0).random((1000, 2))
    run = rf.polar(lambda x: x, 6)
    assert (run.flow(x) - torch.from_numpy(x)).abs().max() < 1e-12
    assert run.slivers == 36


# --- many neurons --------------------------------------------------------------------------------------


def field(d: int, P: int = 50, seed: int = 0) -> tuple[rf.Piece, Array, Array]:
    """Neurons, points and where the exact flow takes them."""
    rng = np.random.default_rng(seed)
    w, a = rng.standard_normal((2, P, d)) / math.sqrt(d)
    neurons = rf.Piece(2 * w / P, 2 * a, rng.standard_normal(P))
    x = rng.standard_normal((40, d)) / math.sqrt(d)
    exact = of.Perceptron(W=neurons.w.T, U=neurons.a, b=neurons.b)
    end = of.flow(of.Particles(x), exact, of.Dopri5(rtol=1e-9, atol=1e-11), t1=1.0).final.x
    return neurons, x, end.numpy()


def rms(flows: list[rf.PiecewiseFlow], x: Array, end: Array) -> float:
    return math.sqrt(np.mean([((f(x).numpy() - end) ** 2).sum(-1).mean() for f in flows]))


@pytest.mark.slow
def test_maurey_has_rate_one_half_in_every_dimension() -> None:
    M, errors = [25, 100, 400], {}
    for d in (2, 40):
        neurons, x, end = field(d)
        errors[d] = [rms([rf.maurey(neurons, m, rng=s) for s in range(16)], x, end) for m in M]
        assert slope(M, errors[d]) == pytest.approx(-0.5, abs=0.1)
    constants = [errors[d][-1] * math.sqrt(M[-1]) for d in errors]
    assert max(constants) < 2 * min(constants)


def test_lie_trotter_has_rate_one() -> None:
    neurons, x, end = field(10)
    M = [4, 8, 16, 32]
    assert slope(M, [rms([rf.lie_trotter(neurons, m)], x, end) for m in M]) == pytest.approx(-1, abs=0.1)


def test_steep_neurons_may_act_for_a_short_time() -> None:
    for flow in (
        rf.lie_trotter(([[1000.0]], [[1.0]], [0.0]), 4, T=0.01),
        rf.maurey(([[1000.0]], [[1.0]], [0.0]), 4, T=0.01, rng=0),
    ):
        assert flow([1.0]).item() == pytest.approx(math.exp(10))


def test_maurey_is_reproducible_and_right_on_average() -> None:
    neurons, _, _ = field(3)
    assert torch.equal(rf.maurey(neurons, 50, rng=4).w, rf.maurey(neurons, 50, rng=4).w)
    flow = rf.maurey(neurons, 40_000, rng=0)
    x = np.array([0.3, -0.2, 0.5])
    pull = np.maximum(neurons.a @ x + neurons.b, 0)
    drawn = flow.w.numpy() * np.maximum(flow.a.numpy() @ x + flow.b.numpy(), 0)[:, None]
    error = drawn.std(0) / math.sqrt(len(drawn))
    assert (np.abs(drawn.mean(0) - neurons.w.T @ pull) < 4 * error).all()
