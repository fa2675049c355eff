"""Interactions of scores: their descent is attention without softmax, on clouds and on Gaussians."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import k0

import otflow as of
from otflow.energies.kernel_interactions import ExponentialInteraction, SigmoidInteraction
from tests import zoo
from tests.samples import Largest, largest, normal, rate, slope, unit

W2 = of.Wasserstein()
KINDS = [ExponentialInteraction, SigmoidInteraction]
FIELDS: dict[type, Any] = {
    ExponentialInteraction: of.UnnormalisedAttention,
    SigmoidInteraction: of.SigmoidAttention,
}
SCALARS: dict[type, Callable[[float], float]] = {
    ExponentialInteraction: math.exp,
    SigmoidInteraction: lambda s: math.log1p(math.exp(s)),
}


def symmetric(seed: int, d: int, values: Any = None) -> np.ndarray:
    """A symmetric matrix, indefinite unless its eigenvalues are given."""
    q, _ = np.linalg.qr(normal(d, d, seed=seed))
    return (q * np.asarray(np.linspace(-0.8, 1.1, d) if values is None else values, float)) @ q.T


MATRICES = {
    "indefinite": symmetric(1, 3),
    "positive": symmetric(2, 3, [0.2, 0.7, 1.3]),
    "negative": symmetric(3, 3, [-0.2, -0.7, -1.3]),
    "singular": symmetric(4, 3, [0.0, 0.0, 1.0]),
    "zero": np.zeros((3, 3)),
}
GAUSSIANS = {
    "line": lambda: of.Gaussian([0.4], root=[[0.6]]),
    "centred": lambda: of.Gaussian(np.zeros(3), root=0.4 * normal(3, 3)),
    "shifted": lambda: of.Gaussian(0.5 * normal(3, seed=1), root=0.3 * normal(3, 3, seed=2)),
    "of_rank_one": lambda: of.Gaussian(0.5 * normal(3, seed=1), root=0.5 * normal(3, 1, seed=2)),
    "wide_root": lambda: of.Gaussian(0.5 * normal(3, seed=1), root=0.25 * normal(3, 5, seed=2)),
    "batched": lambda: of.Gaussian(0.5 * normal(2, 4, seed=1), root=0.2 * normal(2, 4, 4, seed=2)),
    "dirac": lambda: of.Gaussian(normal(3, seed=1), root=np.zeros((3, 1))),
}


# --- clouds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", zoo.CLOUDS)
@pytest.mark.parametrize("matrix", MATRICES)
def test_the_descent_is_attention_without_softmax(kind: Any, name: str, matrix: str) -> None:
    A, mu = MATRICES[matrix], zoo.MEASURES[name]()
    v = of.SteepestDescent(kind(A), W2)(0.0, mu)[0]
    attention = FIELDS[kind](A, np.eye(3), -A)(0.0, mu)[0]
    assert largest(v - attention) <= 1e-12 * max(1.0, largest(attention))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["weighted", "sphere"])
def test_the_value_is_half_the_double_sum(kind: Any, name: str) -> None:
    mu, A = zoo.MEASURES[name](), MATRICES["indefinite"]
    x, w = (a.numpy() for a in mu.nodes())
    n = len(w)
    expected = 0.5 * sum(w[i] * w[j] * SCALARS[kind](x[i] @ A @ x[j]) for i in range(n) for j in range(n))
    assert kind(A)(mu).item() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_members_of_a_batch_do_not_see_each_other(kind: Any) -> None:
    mu, F = zoo.MEASURES["batched_labelled"](), kind(MATRICES["indefinite"])
    alone = [mu[i] for i in range(2)]
    torch.testing.assert_close(F(mu), torch.stack([F(one) for one in alone]), rtol=1e-13, atol=0)
    each = torch.stack([F.differential(one)[0] for one in alone])
    torch.testing.assert_close(F.differential(mu)[0], each, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_an_atom_without_mass_changes_nothing(kind: Any) -> None:
    x, F = normal(3, 3), kind(MATRICES["positive"])
    mu = of.Particles(x, [0.3, 0.7, 0.0])
    less = of.Particles(x[:2], [0.3, 0.7])
    assert F(mu).item() == pytest.approx(F(less).item(), rel=1e-14)
    c = F.differential(mu)[0]
    torch.testing.assert_close(c[:2], F.differential(less)[0])
    assert largest(c[2]) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["weighted", "batched", "sphere"])
def test_the_energy_of_a_cloud_falls_by_the_squared_speed(kind: Any, name: str) -> None:
    mu, F = zoo.MEASURES[name](), kind(MATRICES["indefinite"])
    v = of.SteepestDescent(F, W2)(0.0, mu)
    torch.testing.assert_close(rate(F, mu, v), -mu.inner(v, v), rtol=1e-8, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_equal_dense_sums_and_autograd(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mu, F = zoo.MEASURES["batched_labelled"](), kind(MATRICES["indefinite"])
    x = mu.coords[0].clone().requires_grad_()
    value = F(mu.at([x]))
    (expected,) = torch.autograd.grad(value.sum(), x)
    monkeypatch.setattr("otflow.base.kernels.DENSE", 0)
    monkeypatch.setattr("otflow.base.kernels.TILE", 1)
    torch.testing.assert_close(F(mu), value.detach(), rtol=1e-13, atol=0)
    torch.testing.assert_close(F.differential(mu)[0], expected, rtol=1e-12, atol=1e-14)
    (streamed,) = torch.autograd.grad(F(mu.at([x])).sum(), x)
    torch.testing.assert_close(streamed, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_no_array_is_larger_than_the_cloud_or_a_tile(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    n, mu, F = 3000, of.Particles(normal(3000, 2)), kind(0.3 * np.eye(2))
    monkeypatch.setattr("otflow.base.kernels.TILE", 4 * n)
    with Largest() as mode:
        F(mu)
        F.differential(mu)
    assert mode.size <= 8 * n  # fused attention pads two coordinates and the weights to four


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units elsewhere")
def test_twenty_thousand_tokens_take_little_memory() -> None:
    """All pairs at once would take 3.2 GB."""
    resource = pytest.importorskip("resource")
    mu, F = of.Particles(normal(20_000, 2)), ExponentialInteraction(0.3 * np.eye(2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    c, value = F.differential(mu)[0], F(mu)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 300 * 1024
    # Euler's identity: <dF, x> = int int Ax.y exp(Ax.y), the derivative of F in the scale of A, doubled.
    h = 1e-4
    ahead, behind = (ExponentialInteraction(0.3 * (1 + s) * np.eye(2))(mu) for s in (h, -h))
    assert float((c * mu.x).sum()) == pytest.approx(float(ahead - behind) / h, rel=1e-6)
    assert value > 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_stays_single(kind: Any) -> None:
    A, mu = MATRICES["indefinite"], zoo.MEASURES["weighted"]()
    single = of.Particles(mu.x.float(), mu.w.float())
    F, c = kind(A.astype(np.float32)), kind(A.astype(np.float32)).differential(single)[0]
    assert F(single).dtype == c.dtype == torch.float32
    assert F(single).item() == pytest.approx(kind(A)(mu).item(), rel=1e-5)
    torch.testing.assert_close(c.double(), kind(A).differential(mu)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_differential_have_derivatives_in_points_and_matrix(kind: Any) -> None:
    x, S = torch.tensor(normal(4, 2), requires_grad=True), torch.tensor(normal(2, 2), requires_grad=True)

    def value(x: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
        return kind(S + S.mT)(of.Particles(x))

    def differential(x: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
        return kind(S + S.mT).differential(of.Particles(x))[0]

    assert torch.autograd.gradcheck(value, (x, S))
    assert torch.autograd.gradcheck(differential, (x, S))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mu", [zoo.MEASURES["cloud"](), GAUSSIANS["shifted"]()], ids=["cloud", "gaussian"])
def test_a_graph_is_kept_for_a_matrix_that_learns_and_only_then(kind: Any, mu: of.Measure) -> None:
    A = torch.tensor(MATRICES["positive"], requires_grad=True)
    assert kind(A).differential(mu)[0].requires_grad
    assert not kind(A.detach()).differential(mu)[0].requires_grad
    with torch.no_grad():
        assert not kind(A).differential(mu)[0].requires_grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mu", [zoo.MEASURES["sphere"](), GAUSSIANS["shifted"]()], ids=["sphere", "gaussian"])
def test_the_field_has_directional_derivatives(kind: Any, mu: of.Measure) -> None:
    field = of.SteepestDescent(kind(MATRICES["indefinite"]), W2)
    u = mu.coords.map(lambda c: torch.tensor(normal(*c.shape, seed=5)))
    h = 1e-4
    ahead, behind = (field(0.0, mu.at(mu.coords + s * u)) for s in (h, -h))
    for found, wanted in zip(field.jvp(0.0, mu, u), (ahead - behind) / (2 * h), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)


# --- large scores --------------------------------------------------------------------------------------


def test_the_logarithm_does_not_overflow() -> None:
    mu, F = of.Particles(30.0 * normal(4, 2), [0.1, 0.2, 0.3, 0.4]), ExponentialInteraction(np.eye(2))
    x, w = mu.x.numpy(), mu.w.numpy()
    with mpmath.workdps(30):
        total = sum(
            mpmath.mpf(w[i]) * mpmath.mpf(w[j]) * mpmath.exp(mpmath.fdot(x[i], x[j]))
            for i in range(4)
            for j in range(4)
        )
        expected = float(mpmath.log(total / 2))
    assert expected > 710
    assert F.log_value(mu).item() == pytest.approx(expected, rel=1e-14)
    assert F(mu).item() == math.inf


def test_a_slope_beyond_the_largest_number_is_an_error_that_names_the_remedy() -> None:
    mu, F = of.Particles([[30.0, 0.0], [0.0, 1.0]]), ExponentialInteraction(np.eye(2))
    assert not bool(torch.isfinite(F.differential(mu)[0]).all())
    with pytest.raises(of.errors.NotFiniteError, match="rescale"):
        of.SteepestDescent(F, W2)(0.0, mu)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_beyond_the_largest_number_have_no_value(kind: Any) -> None:
    with pytest.raises(of.errors.NotFiniteError, match="rescale"):
        kind([[1.0, 0.3], [0.3, -1.0]])(of.Particles([[1e160, -1e160], [1e160, 1e160]]))


@pytest.mark.thorough
def test_an_ascent_blows_up_like_attention_while_other_members_go_on() -> None:
    x = np.array([[[1.0, 0.2], [0.5, 1.0]], [[0.01, 0.0], [0.0, 0.02]]])
    eye = np.eye(2)
    ascent = of.SteepestDescent(-ExponentialInteraction(eye), W2)
    traj = of.flow(of.Particles(x), ascent, of.Dopri5(), t1=1.0)
    other = of.flow(of.Particles(x), of.UnnormalisedAttention(eye, eye, eye), of.Dopri5(), t1=1.0)
    assert list(traj.status) == list(other.status) == ["blow_up", "ok"]
    assert traj.blow_up_time[0].item() == pytest.approx(other.blow_up_time[0].item(), rel=1e-6)


@pytest.mark.parametrize("s", [-800.0, -40.0, -1e-3, 0.0, 15.0, 19.9, 25.0, 36.0, 800.0])
def test_softplus_is_exact_for_every_score(s: float) -> None:
    """One token at 1 in one dimension has the score A; torch's softplus is off by 1e-9 beyond 20."""
    with mpmath.workdps(30):
        expected = float(mpmath.log1p(mpmath.exp(mpmath.mpf(s))) / 2)
    assert SigmoidInteraction([[s]])(of.Particles([[1.0]])).item() == pytest.approx(expected, rel=1e-15)


# --- the sphere ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.5, 4.0])
def test_the_energy_of_the_sphere_is_a_multiple(beta: float) -> None:
    """Two tokens at the angle t: E_beta = (e^beta + e^(beta cos t)) / (4 beta), and t' = -2 dE/dt / w."""
    t = 0.9
    mu = of.Particles([[1.0, 0.0], [math.cos(t), math.sin(t)]], space=of.Sphere())
    F = ExponentialInteraction(beta * np.eye(2)) / beta
    expected = (math.exp(beta) + math.exp(beta * math.cos(t))) / (4 * beta)
    assert F(mu).item() == pytest.approx(expected, rel=1e-14)
    v = of.SteepestDescent(-F, W2)(0.0, mu)[0]
    assert v[0, 0].item() == pytest.approx(0.0, abs=1e-14)
    assert v[0, 1].item() == pytest.approx(math.exp(beta * math.cos(t)) * math.sin(t) / 2, rel=1e-13)


def test_softmax_attention_descends_in_its_own_metric() -> None:
    A, mu = MATRICES["indefinite"], of.Particles(unit(6, 3), space=of.Sphere())
    metric = of.Twisted(lambda mu, x: (torch.exp(x @ torch.tensor(A) @ mu.x.mT) * mu.w).sum(-1))
    v = of.SteepestDescent(ExponentialInteraction(A), metric)(0.0, mu)[0]
    torch.testing.assert_close(v, of.SoftmaxAttention(A, np.eye(3), -A)(0.0, mu)[0], rtol=1e-12, atol=1e-14)


# --- Gaussians -----------------------------------------------------------------------------------------


def normal_density(x: Any) -> Any:
    return mpmath.exp(-(x**2) / 2) / mpmath.sqrt(2 * mpmath.pi)


@pytest.mark.parametrize(
    ("m", "r", "a"), [(0.0, 0.8, 0.9), (0.4, 0.6, 0.7), (-1.1, 0.5, -1.9), (2.0, 0.9, -1.0)]
)
def test_the_exponential_of_a_gaussian_on_the_line_is_its_integral(m: float, r: float, a: float) -> None:
    """The inner integral is the Laplace transform exp(q m + q^2 r^2 / 2) of the law, at q = a x."""

    def inner(z: Any) -> Any:
        q = a * (m + r * z)
        return mpmath.exp(q * m + q**2 * r**2 / 2) * normal_density(z)

    expected = mpmath.quad(inner, [-60, -20, -5, 0, 5, 20, 60]) / 2
    F = ExponentialInteraction([[a]])
    assert F(of.Gaussian([m], root=[[r]])).item() == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("m", "r", "a"), [(0.0, 1.0, 1.0), (0.7, 1.3, -1.2), (1.5, 2.0, 3.0), (9.0, 0.3, 1.0)]
)
def test_the_softplus_of_a_gaussian_on_the_line_is_its_integral(m: float, r: float, a: float) -> None:
    z = np.linspace(-9.0, 9.0, 1801)  # the trapezoidal rule is exponentially accurate here
    w = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    x = m + r * z
    expected = w @ np.logaddexp(0.0, a * np.outer(x, x)) @ w / 2
    F = SigmoidInteraction([[a]])
    assert F(of.Gaussian([m], root=[[r]])).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gaussian_in_the_plane_agrees_with_its_quadrature(kind: Any) -> None:
    mu, A = of.Gaussian([0.3, -0.5], root=[[0.4, 0.1], [-0.2, 0.5]]), symmetric(5, 2)
    expected = kind(A)(of.Particles(*mu.nodes()))
    assert kind(A)(mu).item() == pytest.approx(expected.item(), rel=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GAUSSIANS)
def test_the_descent_of_a_gaussian_is_projected_attention(kind: Any, name: str) -> None:
    mu = GAUSSIANS[name]()
    A = symmetric(6, mu.d)
    projected = of.GaussianProjection(FIELDS[kind](A, np.eye(mu.d), -A))
    for found, wanted in zip(of.SteepestDescent(kind(A), W2)(0.0, mu), projected(0.0, mu), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["shifted", "batched", "of_rank_one"])
def test_the_energy_of_a_gaussian_falls_by_the_squared_speed(kind: Any, name: str) -> None:
    mu = GAUSSIANS[name]()
    F = kind(symmetric(6, mu.d))
    v = of.SteepestDescent(F, W2)(0.0, mu)
    torch.testing.assert_close(rate(F, mu, v), -mu.inner(v, v), rtol=1e-8, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_remainder_of_taylor_has_slope_two_on_gaussians(kind: Any) -> None:
    mu, F = GAUSSIANS["batched"](), kind(symmetric(6, 4))
    u = mu.coords.map(lambda c: torch.tensor(normal(*c.shape, seed=7)))
    linear = sum((a * b).sum() for a, b in zip(F.differential(mu), u, strict=True))
    steps = 2.0 ** -np.arange(8, 14)
    rests = [abs(float((F(mu.at(mu.coords + h * u)) - F(mu)).sum() - h * linear)) for h in steps.tolist()]
    assert slope(steps, rests) == pytest.approx(2.0, abs=0.05)


def test_a_law_that_is_too_wide_has_infinite_energy_and_no_slope_but_others_of_the_batch_have() -> None:
    roots = np.array([1.1, 0.9, 1.0])[:, None, None]
    mu, F = of.Gaussian(np.full((3, 1), 0.3), root=roots), ExponentialInteraction([[-1.0]])
    values, good = F(mu), mu[1]
    assert values[[0, 2]].tolist() == [math.inf, math.inf]
    assert values[1].item() == pytest.approx(F(good).item(), rel=1e-14)
    for found, own in zip(F.differential(mu), F.differential(good), strict=True):
        torch.testing.assert_close(found[1], own)
        assert not bool(torch.isfinite(found[[0, 2]]).any())
    with pytest.raises(of.errors.NotFiniteError):
        of.SteepestDescent(F, W2)(0.0, mu)


def test_a_wide_law_has_a_softplus_but_not_without_end() -> None:
    """log(1 + exp(s)) = max(s, 0) + log(1 + exp(-|s|)), s = 900 zw, and |zw| has the density 2 K_0 / pi."""
    F = SigmoidInteraction([[1.0]])
    tail, _ = quad(lambda t: np.log1p(np.exp(-900 * t)) * 2 / np.pi * k0(t), 0.0, 0.05, epsrel=1e-12)
    assert F(of.Gaussian([0.0], root=[[30.0]])).item() == pytest.approx((900 / math.pi + tail) / 2, rel=1e-12)
    with pytest.raises(of.InputError, match="score of a pair"):
        F(of.Gaussian([0.0], root=[[300.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_gaussians_in_single_precision(kind: Any) -> None:
    A = symmetric(6, 3)
    mu = GAUSSIANS["shifted"]()
    single = of.Gaussian(mu.mean.float(), root=mu.root.float())
    F = kind(A.astype(np.float32))
    assert F(single).dtype == F.differential(single)[1].dtype == torch.float32
    assert F(single).item() == pytest.approx(kind(A)(mu).item(), rel=1e-5)


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("A", "match"),
    [
        ([[0.0, 1.0], [0.0, 0.0]], "symmetric A only"),
        ([[1.0, 0.0]], r"A\.shape"),
        ([1.0], r"A\.shape"),
        ([[np.nan]], "A"),
    ],
)
def test_matrices_that_make_no_energy_are_refused(kind: Any, A: Any, match: str) -> None:
    with pytest.raises(of.InputError, match=match):
        kind(A)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mu", "match"),
    [
        (of.Particles(np.zeros((2, 2))), r"A\.shape"),
        (of.Gaussian(np.zeros(2), root=np.eye(2)), r"A\.shape"),
        (of.Particles(np.zeros((2, 3), np.float32)), "A = a tensor of dtype"),
        (of.Particles(np.zeros((2, 3)), space=of.Torus()), "space"),
        (of.Grid([1.0, 1.0], [[0.25, 0.75]]), "between tokens"),
    ],
)
def test_measures_without_such_scores_are_refused(kind: Any, mu: of.Measure, match: str) -> None:
    for f in (kind(np.eye(3)), kind(np.eye(3)).differential):
        with pytest.raises(of.InputError, match=match):
            f(mu)


def test_energies_print_their_dimension() -> None:
    assert repr(ExponentialInteraction(np.eye(3))) == "ExponentialInteraction(d=3)"
    assert repr(SigmoidInteraction(np.eye(2))) == "SigmoidInteraction(d=2)"
