"""Energies of Gaussians: means of functions with kinks, jumps and bumps are right, and their slopes too."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from scipy.stats import norm
from torch import Tensor

import otflow as of
from otflow.base.integrals import quadrature
from tests.energies.bumps import CASES, bump

W2 = of.Wasserstein()
LAWS = [(0.0, 1.0), (0.31, 0.7)]


@pytest.mark.parametrize("law", LAWS, ids=["standard", "shifted"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_slopes_on_the_line_are_those_of_scipy(name: str, law: tuple[float, float]) -> None:
    m, s = law
    F, mu = of.Potential(CASES[name].U), of.Gaussian([m], root=[[s]])
    value, in_mean, in_root = CASES[name].truth(m, s)
    assert F(mu).item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    v = of.SteepestDescent(F, W2)(0.0, mu)
    size = abs(in_mean) + abs(in_root)
    assert [-v[0].item(), -v[1].item()] == pytest.approx([in_mean, in_root], rel=1e-8, abs=1e-8 * size)


@pytest.mark.parametrize("k", [30.0, 300.0])
def test_waves_on_the_line_have_their_closed_form(k: float) -> None:
    m, s = 0.2, 1.5 / k
    F, mu = of.Potential(lambda x: torch.cos(k * x[..., 0])), of.Gaussian([m], root=[[s]])
    damped = math.exp(-((k * s) ** 2) / 2)
    assert F(mu).item() == pytest.approx(damped * math.cos(k * m), abs=1e-12)
    found = [c.item() for c in F.differential(mu)]
    exact = [-k * damped * math.sin(k * m), -k * k * s * damped * math.cos(k * m)]
    assert found == pytest.approx(exact, abs=1e-9 * k)
    assert F(of.Gaussian([m], root=[[1.0]])).item() == pytest.approx(0.0, abs=1e-12)  # exp(-k^2 / 2)


def test_tails_are_followed_as_far_as_they_matter() -> None:
    mu = of.Gaussian([0.0], root=[[1.0]])
    heavy = of.Potential(lambda x: torch.exp(0.45 * x[..., 0].square()))
    assert heavy(mu).item() == pytest.approx(1 / math.sqrt(1 - 0.9), rel=1e-9)
    far = of.Potential(lambda x: torch.exp(20 * x[..., 0]))
    assert far(mu).item() == pytest.approx(math.exp(200), rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_an_energy_without_an_expectation_is_refused_in_words(d: int) -> None:
    mu = of.Gaussian(np.zeros(d), root=np.eye(d))
    F = of.Potential(lambda x: torch.exp(x.square().sum(-1)))
    for ask in (F, F.differential):
        with pytest.raises(of.InputError, match="no expectation: its tails outgrow"):
            ask(mu)


def test_tails_that_may_have_an_expectation_are_not_said_to_have_none() -> None:
    mu = of.Gaussian([0.0], root=[[1.0]])
    with pytest.raises(
        of.InputError, match="have not vanished against the law within 37 standard deviations"
    ):
        of.Potential(lambda x: torch.exp(0.49 * x[..., 0].square()))(mu)  # 7.07


@pytest.mark.parametrize("d", [1, 2])
def test_where_a_function_is_not_a_number_is_said(d: int) -> None:
    laws = of.Gaussian(np.stack([np.full(d, 50.0), np.full(d, 0.4)]), root=np.stack([np.eye(d)] * 2))
    with pytest.raises(of.InputError, match=r"is not a number at x = \[-0\."):
        of.Potential(lambda x: x[..., 0].sqrt())(laws)


def test_a_pole_is_refused_in_words() -> None:
    with pytest.raises(of.InputError, match=r"error of .* is left"):
        of.Potential(lambda x: 1 / x[..., 0])(of.Gaussian([0.0], root=[[1.0]]))


def test_members_of_a_batch_get_what_they_get_alone() -> None:
    m, s = [0.0, 50.0, 0.3, 2.0], [1.0, 1.0, 0.0, 1e-3]
    F = of.Potential(lambda x: x[..., 0].abs())
    laws = of.Gaussian(np.array(m)[:, None], root=np.array(s)[:, None, None])
    values, slopes = F(laws), F.differential(laws)
    for k, mu in enumerate(laws):
        torch.testing.assert_close(values[k], F(mu), rtol=1e-11, atol=0)
        for got, own in zip(slopes, F.differential(mu), strict=True):
            torch.testing.assert_close(got[k], own, rtol=1e-9, atol=1e-12)
    assert values.tolist()[1:] == pytest.approx([50.0, 0.3, 2.0], rel=1e-12)


def test_roots_with_more_columns_than_rows_are_the_same_law() -> None:
    F = of.Potential(lambda x: x[..., 0].abs())
    wide, slim = (of.Gaussian([0.3], root=[root]) for root in ([0.6, 0.8], [1.0]))
    assert F(wide).item() == pytest.approx(F(slim).item(), rel=1e-11)
    g, h = F.differential(wide), F.differential(slim)
    assert g[0].item() == pytest.approx(h[0].item(), rel=1e-9)
    np.testing.assert_allclose(g[1], h[1].item() * np.array([[0.6, 0.8]]), rtol=1e-9)


def test_values_are_differentiable_twice_also_where_the_function_is_not() -> None:
    m = torch.tensor([0.2], dtype=torch.float64, requires_grad=True)
    mu = of.Gaussian(m, root=[[1.0]])
    second = {
        "modulus": (lambda x: x[..., 0].abs(), 2 * norm.pdf(0.2)),
        "indicator": (lambda x: (x[..., 0] > 0).to(x.dtype), -0.2 * norm.pdf(0.2)),
        "cube": (lambda x: x[..., 0] ** 3, 6 * 0.2),
    }
    for name, (U, exact) in second.items():
        F = of.Potential(U)
        (slope,) = torch.autograd.grad(F(mu), m, create_graph=True)
        for first in (slope, F.differential(mu)[0]):
            found = torch.autograd.grad(first.sum(), m)[0].item()
            assert found == pytest.approx(exact, rel=1e-9), name


def test_parameters_of_a_potential_learn_through_a_mesh() -> None:
    a = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    F = of.Potential(lambda x: a * (x[..., 0] - 1).abs())
    mu = of.Gaussian([0.0], root=[[1.0]])
    F(mu).backward()
    assert a.grad.item() == pytest.approx(2 * norm.pdf(1) + 2 * norm.cdf(1) - 1, rel=1e-10)
    (b,) = torch.autograd.grad(F.differential(mu)[0].sum(), a)
    assert b.item() == pytest.approx(1 - 2 * norm.cdf(1), rel=1e-10)


def test_single_precision_is_answered_in_single_precision() -> None:
    mu = of.Gaussian(torch.zeros(1), root=torch.ones(1, 1))
    F = of.Potential(lambda x: x[..., 0].abs())
    assert F(mu).dtype == torch.float32
    assert F(mu).item() == pytest.approx(math.sqrt(2 / math.pi), rel=100 * 2**-23)


def test_a_law_far_from_the_origin_and_narrow_is_not_refused_for_its_rounding() -> None:
    mu = of.Gaussian([1e8], root=[[1e-3]])
    F = of.Potential(lambda x: x[..., 0].square())
    assert F(mu).item() == pytest.approx(1e16, rel=1e-12)
    assert F.differential(mu)[0].item() == pytest.approx(2e8, rel=1e-12)


def test_the_rules_of_kronrod_and_gauss_are_exact_as_far_as_they_should_be() -> None:
    x = np.array([mpmath.mpf(a) for a in quadrature.NODES])
    for weights, degree in ((quadrature.KRONROD, 22), (quadrature.GAUSS, 12)):
        for k in range(0, degree + 1, 2):
            half = sum(w * a**k for w, a in zip(weights[:-1], x[:-1], strict=True))
            assert float(2 * half + weights[-1] * (k == 0)) == pytest.approx(2 / (k + 1), rel=1e-15)


@pytest.mark.parametrize(
    ("stepper", "dt"),
    [(of.Euler(), 0.5), (of.Dopri5(), None), (of.JKO(), 0.5)],
    ids=["euler", "dopri5", "jko"],
)
def test_a_trajectory_tells_how_good_its_integrals_were(stepper: of.Stepper, dt: float | None) -> None:
    field = of.SteepestDescent(of.Potential(lambda x: x[..., 0].abs()), W2)
    traj = of.flow(of.Gaussian([1.0], root=[[1.0]]), field, stepper, t1=1.0, dt=dt, save_at=[0.0, 0.5, 1.0])
    worst = traj.certificates["quadrature"]
    assert worst[0] == 0
    assert bool(((worst[1:] > 0) & (worst[1:] <= 1e-6)).all())
    cloud = of.flow(of.Particles([[1.0]]), field, of.Euler(), t1=1.0, dt=0.5)
    assert "quadrature" not in cloud.certificates


# --- two and three dimensions --------------------------------------------------------------------------

TILTED = torch.tensor([0.8, 0.6], dtype=torch.float64)
PLANAR = {
    # value and slope in the mean at the standard law, all in closed form
    "bump": (bump(0.05, 0.02), None),
    "half plane": (lambda x: (x @ TILTED > 0.3).to(x.dtype), (norm.sf(0.3), norm.pdf(0.3) * TILTED)),
    "relu": (lambda x: torch.relu(x @ TILTED - 2), (norm.pdf(2) - 2 * norm.sf(2), norm.sf(2) * TILTED)),
    "maximum": (lambda x: x.amax(-1), (1 / math.sqrt(math.pi), torch.tensor([0.5, 0.5]))),
    "distance": (lambda x: x.square().sum(-1).sqrt(), (math.sqrt(math.pi / 2), torch.zeros(2))),
    "logarithm": (lambda x: x.square().sum(-1).log(), (math.log(2) - np.euler_gamma, torch.zeros(2))),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANAR)
def test_values_and_slopes_in_the_plane_are_closed_forms(name: str) -> None:
    U, truth = PLANAR[name]
    F, mu = of.Potential(U), of.Gaussian(np.zeros(2), root=np.eye(2))
    if truth is None:  # E[U] = w^2 / (w^2 + 1) exp(-|c|^2 / (2 + 2 w^2)), and its slope c E[U] / (w^2 + 1)
        value = 0.0025 / 1.0025 * math.exp(-0.0008 / 2 / 1.0025)
        truth = (value, value * torch.full((2,), 0.02) / 1.0025)
    assert F(mu).item() == pytest.approx(truth[0], rel=1e-6)
    np.testing.assert_allclose(F.differential(mu)[0], truth[1], rtol=2e-6, atol=2e-6 * abs(truth[0]))


@pytest.mark.parametrize("d", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_waves_in_more_dimensions_have_their_closed_form(d: int) -> None:
    s, m = 0.1, 0.2
    F = of.Potential(lambda x: torch.cos(30 * x).sum(-1))
    narrow = of.Gaussian(np.full(d, m), root=s * np.eye(d))
    assert F(narrow).item() == pytest.approx(d * math.exp(-4.5) * math.cos(6), rel=1e-6)
    slope = -30 * math.exp(-4.5) * math.sin(6)
    np.testing.assert_allclose(F.differential(narrow)[0], np.full(d, slope), rtol=1e-6)
    assert abs(F(of.Gaussian(np.zeros(d), root=np.eye(d))).item()) < 1e-6  # exp(-450)


def test_a_singular_covariance_moves_off_its_range_by_the_path() -> None:
    """The law is flat in y, so that the slope in y is E[dU/dy]; along x the indicator has one by its jump."""
    mu = of.Gaussian([0.0, 0.5], root=[[1.0], [0.0]])
    F = of.Potential(lambda x: (x[..., 0] > 0.3).to(x.dtype) * x[..., 1].square())
    assert F(mu).item() == pytest.approx(norm.sf(0.3) / 4, rel=1e-9)
    found = F.differential(mu)[0].tolist()
    assert found == pytest.approx([norm.pdf(0.3) / 4, norm.sf(0.3)], rel=1e-9)


@pytest.mark.slow
def test_jumps_and_kinks_in_space_are_resolved() -> None:
    mu = of.Gaussian(np.zeros(3), root=np.eye(3))
    kink = of.Potential(lambda x: x[..., 0].abs())
    assert kink(mu).item() == pytest.approx(math.sqrt(2 / math.pi), rel=1e-6)
    jump = of.Potential(lambda x: (x[..., 0] > 0.3).to(x.dtype), rtol=1e-4)
    assert jump(mu).item() == pytest.approx(norm.sf(0.3), rel=1e-4)
    assert jump.differential(mu)[0].tolist() == pytest.approx([norm.pdf(0.3), 0, 0], abs=1e-4)


def test_zero_is_zero_and_not_something_unseen() -> None:
    mu = of.Gaussian(np.zeros(2), root=np.eye(2))
    assert of.Potential(lambda x: 0 * x.sum(-1))(mu).item() == 0.0


def test_another_tolerance_can_be_asked_for() -> None:
    with pytest.raises(of.InputError, match="rtol"):
        of.Potential(bump(1.0), rtol=0.0)
    mu = of.Gaussian(np.zeros(2), root=np.eye(2))
    loose = of.Potential(lambda x: x[..., 0].abs(), rtol=0.1)(mu).item()
    assert loose == pytest.approx(math.sqrt(2 / math.pi), rel=0.1)


# --- interactions --------------------------------------------------------------------------------------

S = 0.8
WIDE = math.sqrt(2) * S  # the standard deviation of x - y
# W on the line, with F = E[W] / 2 on N(m, S^2) and its derivative in the root
KERNELS = {
    "modulus": (lambda z: z.abs(), S / math.sqrt(math.pi), 1 / math.sqrt(math.pi)),
    "bump": (lambda z: torch.exp(-200 * z**2), 0.025 / math.sqrt(0.0025 + WIDE**2), None),
    "window": (
        lambda z: (z.abs() < 0.5).to(z.dtype),
        0.5 - norm.sf(0.5 / WIDE),
        -norm.pdf(0.5 / WIDE) * 0.5 / WIDE / S,
    ),
}


@pytest.mark.parametrize("d", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KERNELS)
def test_interactions_through_differences_are_closed_forms(name: str, d: int) -> None:
    W, value, in_root = KERNELS[name]
    in_root = -2 * S * value / (0.0025 + WIDE**2) if in_root is None else in_root
    F = of.Interaction(lambda x, y: W(x[..., 0] - y[..., 0]), rtol=1e-3 if d == 3 else 1e-6)
    mu = of.Gaussian(np.full(d, 0.3), root=S * np.eye(d))
    assert F(mu).item() == pytest.approx(value, rel=F.rtol)
    mean, root = F.differential(mu)
    assert mean.abs().max() < 1e-12
    assert root[0, 0].item() == pytest.approx(in_root, rel=3 * F.rtol)


def test_an_interaction_of_rank_one_may_have_kinks_off_the_diagonal() -> None:
    F = of.Interaction(lambda x, y: torch.maximum(x, y)[..., 0])
    for mu in (of.Gaussian([0.3], root=[[S]]), of.Gaussian([0.3, 2.0], root=[[S], [0.0]])):
        assert F(mu).item() == pytest.approx((0.3 + S / math.sqrt(math.pi)) / 2, rel=1e-6)
        assert F.differential(mu)[0][0].item() == pytest.approx(0.5, rel=1e-6)


def test_an_interaction_that_is_of_differences_but_for_far_away_is_not_taken_for_one() -> None:
    """Pairs within three standard deviations see |x - y|^2 / 2, the mean sees what there is beyond."""
    mu = of.Gaussian([0.0], root=[[1.0]])
    beyond = norm.pdf(3.5) - 3.5 * norm.sf(3.5)
    F = of.Interaction(lambda x, y: ((x - y).square() / 2 + 1e3 * torch.relu(x - 3.5)).sum(-1))
    assert F(mu).item() == pytest.approx(0.5 + 500 * beyond, rel=1e-6)  # was 2.03
    assert F.differential(mu)[0].item() == pytest.approx(500 * norm.sf(3.5), rel=1e-6)
    with pytest.raises(of.InputError, match="does not depend on x - y only"):
        F(of.Gaussian([0.0, 0.0], root=np.eye(2)))


def test_what_pairs_have_not_seen_is_seen_by_the_mesh_of_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    mu = of.Gaussian([0.0], root=[[1.0]])
    F = of.Interaction(lambda x, y: ((x - y).abs() + torch.relu(x + y)).sum(-1))
    exact = (2 / math.sqrt(math.pi) + 1 / math.sqrt(math.pi)) / 2
    assert F(mu).item() == pytest.approx(exact, rel=1e-6)
    monkeypatch.setattr(of.Interaction, "_of_differences", lambda self, mu: True)
    assert F(mu).item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("width", [0.1, 1e-3, 1e-5])
def test_a_window_of_differences_may_be_narrow_on_the_line(width: float) -> None:
    F = of.Interaction(lambda x, y: ((x - y).norm(dim=-1) < width).to(x.dtype))
    value = norm.cdf(width / math.sqrt(2)) - 0.5
    assert F(of.Gaussian([0.3], root=[[1.0]])).item() == pytest.approx(value, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("width", [0.05, 0.005])
def test_a_window_of_differences_may_be_narrow_in_the_plane(width: float) -> None:
    F = of.Interaction(lambda x, y: ((x - y).norm(dim=-1) < width).to(x.dtype), rtol=1e-3)
    mu = of.Gaussian([0.3, 0.1], root=np.eye(2))
    assert F(mu).item() == pytest.approx(-math.expm1(-(width**2) / 4) / 2, rel=1e-3)


def test_an_interaction_that_product_rules_do_not_resolve_is_refused() -> None:
    mu = of.Gaussian([0.3, 0.3], root=S * np.eye(2))
    for W in (lambda x, y: torch.maximum(x, y)[..., 0], lambda x, y: (x * y)[..., 0].sign()):
        F = of.Interaction(W)
        for ask in (F, F.differential):
            with pytest.raises(of.InputError, match="not resolved by product rules"):
                ask(mu)


def test_a_smooth_interaction_of_scores_is_a_closed_form() -> None:
    """E exp(x.y / 4) over standard normal laws in the plane is 1 / (1 - 1/16)."""
    mu = of.Gaussian(np.zeros(2), root=np.eye(2))
    F = of.Interaction(lambda x, y: torch.exp((x * y).sum(-1) / 4))
    assert F(mu).item() == pytest.approx(0.5 / (1 - 1 / 16), rel=1e-9)
    np.testing.assert_allclose(F.differential(mu)[1], np.eye(2) / 16 / (1 - 1 / 16) ** 2, atol=1e-9)


def test_projected_fields_tell_how_good_their_integrals_were() -> None:
    field = of.GaussianProjection(of.Perceptron([[-1.0]], [[1.0]]))
    traj = of.flow(of.Gaussian([0.5], root=[[1.0]]), field, of.Euler(), t1=0.2, dt=0.1)
    assert traj.certificates["quadrature"].max() <= 1e-6


def test_forward_derivatives_on_a_mesh_are_those_of_the_law() -> None:
    """d E|X| / dm = erf(m / (s 2^(1/2))), by tangents and by torch.func, which found 0 there."""

    def f(m: Tensor) -> Tensor:
        return of.Potential(lambda x: x.abs().sum(-1))(of.Gaussian(m, root=[[2.0]]))

    m, one = torch.tensor([0.7], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    truth = math.erf(0.7 / (2.0 * math.sqrt(2.0)))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(m, one))).tangent
    assert tangent.item() == pytest.approx(truth, rel=1e-9)
    assert torch.func.jvp(f, (m,), (one,))[1].item() == pytest.approx(truth, rel=1e-9)
    assert torch.func.grad(f)(m).item() == pytest.approx(truth, rel=1e-9)
