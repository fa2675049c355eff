"""Measures on the line by their quantile function: mesh, metric, tails, energies."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, interpolate, stats
from torch import Tensor

import otflow as of
from otflow.base.errors import DerivativeError, InputError, StepError
from otflow.energies import quantiles
from otflow.energies.internal import DensityBound, Entropy, Internal, PorousMedium
from otflow.measures.quantiles import Quantiles, Tridiagonal, graded_levels, richardson
from tests.samples import slope

LEVELS = [0.0, 0.1, 0.4, 0.5, 0.9, 1.0]


def sample(*batch: int, seed: int = 0) -> Quantiles:
    gaps = np.random.default_rng(seed).uniform(0.3, 2.0, (*batch, len(LEVELS)))
    return Quantiles(gaps.cumsum(-1) - 3, LEVELS)


def tangent(mu: Quantiles, seed: int = 1) -> of.Tangent:
    return of.Tangent([torch.from_numpy(np.random.default_rng(seed).standard_normal(mu.x.shape))])


ENERGIES: dict[str, of.Energy] = {
    "entropy": Entropy(),
    "porous": PorousMedium(2.5),
    "fast": PorousMedium(0.6),
    "well": of.Potential(lambda x: (x.square() - 1).square().sum(-1)),
    "line": of.Potential(lambda x: 3 * x.sum(-1)),
    "bell": of.Interaction(lambda x, y: -torch.exp(-(x - y).square().sum(-1))),
    "log": of.Interaction(lambda x, y: -(x - y).abs().sum(-1).log(), diagonal=False),
}


def test_the_density_is_mass_by_length() -> None:
    mu = Quantiles([0.0, 1.0, 4.0], [0.0, 0.25, 1.0])
    edges, heights = mu.density()
    assert edges.tolist() == [0.0, 1.0, 4.0]
    assert heights.tolist() == [0.25, 0.25]
    assert (heights * torch.diff(edges)).sum().item() == 1.0


def test_it_says_what_it_is() -> None:
    assert repr(sample()) == "Quantiles(n=5)"
    assert repr(sample(2, 3)) == "Quantiles(n=5, batch=(2, 3))"
    assert sample(2, 3)[1].batch == (3,)
    assert sample().at([torch.zeros(4, 6)]).batch == (4,)


def test_later_changes_of_the_input_change_nothing() -> None:
    x, s = torch.arange(3.0), torch.tensor([0.0, 0.5, 1.0])
    mu = Quantiles(x, s)
    x += 1
    s += 1
    assert mu.x.tolist() == [0.0, 1.0, 2.0]
    assert mu.levels.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("power", range(6))
def test_nodes_integrate_polynomials_up_to_degree_five(power: int) -> None:
    mu = sample(2)
    x, w = mu.nodes()
    a, b = mu.x[:, :-1], mu.x[:, 1:]
    k = power + 1
    exact = (mu.mass * (b**k - a**k) / (k * (b - a))).sum(-1)
    torch.testing.assert_close((w * x[..., 0] ** power).sum(-1), exact)
    assert x.shape == (2, 15, 1)


def test_the_inner_product_is_the_integral_of_the_product() -> None:
    mu = sample()
    u, v = tangent(mu, 1), tangent(mu, 2)

    def product(s: float) -> float:
        return float(np.interp(s, LEVELS, u[0].numpy()) * np.interp(s, LEVELS, v[0].numpy()))

    exact = sum(integrate.quad(product, a, b)[0] for a, b in pairwise(LEVELS))
    assert mu.inner(u, v).item() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_sharp_is_the_riesz_map(batch: tuple[int, ...]) -> None:
    mu = sample(*batch)
    c, u = tangent(mu, 3), tangent(mu, 4)
    torch.testing.assert_close(mu.inner(mu.sharp(c), u), (c[0] * u[0]).sum(-1))


def test_sharp_takes_many_levels_and_inverts_the_dense_matrix() -> None:
    mu = Quantiles.from_ppf(lambda s: s, 300, grading=2.0)
    c = tangent(mu)[0]
    expected = np.linalg.solve(mu.gram.dense().numpy(), c.numpy())
    np.testing.assert_allclose(mu.gram.solve(c), expected, rtol=1e-9)
    long = Quantiles.from_ppf(lambda s: s, 50_000, grading=1.0)
    one = torch.ones_like(long.x)
    torch.testing.assert_close(long.gram.solve(long.gram @ one), one)


def test_sharp_has_derivatives_of_any_kind() -> None:
    mu = sample(2)
    c = tangent(mu)[0].requires_grad_()
    assert torch.autograd.gradcheck(mu.gram.solve, c, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(mu.gram.solve, c)


def test_definite_tells_members_apart() -> None:
    diag = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0], [math.nan, 1.0]])
    off = torch.tensor([[0.5], [2.0], [0.0], [0.0]])
    A = Tridiagonal(diag, off)
    assert A.definite().tolist() == [True, False, False, False]
    assert bool(torch.isnan(A.solve(diag)).all())


def test_moves_add_and_stop_before_quantiles_cross() -> None:
    mu = Quantiles([0.0, 1.0, 3.0], [0.0, 0.5, 1.0])
    u = of.Tangent([torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)])
    assert mu.move(0.25 * u).x.tolist() == [0.25, 0.75, 3.0]
    with pytest.raises(StepError, match=r"less than 0\.5 times") as caught:
        mu.move(u)
    assert caught.value.status == "degenerate"
    assert mu.move(0.49999 * u).x[0] < mu.move(0.49999 * u).x[1]


def test_an_explicit_flow_carries_quantiles_along() -> None:
    mu = sample(2)
    field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    end = of.flow(mu, field, of.RK4(), t1=1.0, dt=0.05).measures[-1]
    torch.testing.assert_close(end.coords[0], mu.x * math.exp(-1.0), rtol=1e-6, atol=1e-6)


# --- meshes and tails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 4000])
def test_graded_levels_increase_and_are_symmetric(n: int) -> None:
    s = graded_levels(n)
    assert s[0] == 0
    assert s[-1] == 1
    assert bool((torch.diff(s) > 0).all())
    torch.testing.assert_close(s, 1 - s.flip(0), rtol=0, atol=1e-15)
    torch.testing.assert_close(graded_levels(2 * n)[::2], s, rtol=1e-12, atol=0)


def test_grading_is_the_exponent_of_the_mesh() -> None:
    torch.testing.assert_close(graded_levels(10, grading=1.0), torch.linspace(0, 1, 11, dtype=torch.float64))
    s = graded_levels(100, grading=3.0)
    assert (s[2] / s[1]).item() == pytest.approx(2**3, rel=0.05)
    expected = stats.beta(3, 3).cdf(np.arange(101) / 100)
    np.testing.assert_allclose(s, expected, atol=1e-9)


def test_infinite_tails_keep_their_mean() -> None:
    mu = Quantiles.from_ppf(stats.norm.ppf, 40, grading=2.0)
    np.testing.assert_allclose(mu.x[1:-1], stats.norm.ppf(mu.levels[1:-1].numpy()), rtol=1e-14)
    s = mu.levels[1].item()
    mean = -stats.norm.pdf(stats.norm.ppf(s)) / s  # of the normal law below its quantile at s
    assert (mu.x[:2].sum() / 2).item() == pytest.approx(mean, rel=1e-5)
    assert (mu.x[-2:].sum() / 2).item() == pytest.approx(-mean, rel=1e-5)


def test_finite_ends_are_kept_and_batches_come_from_the_function() -> None:
    mu = Quantiles.from_ppf(lambda s: np.stack([s, 3 * s - 1]), 10)
    assert mu.batch == (2,)
    assert mu.x[:, [0, -1]].tolist() == [[0.0, 1.0], [-1.0, 2.0]]


def test_parameters_of_a_quantile_function_have_derivatives() -> None:
    sigma = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    mu = Quantiles.from_ppf(lambda s: sigma * torch.special.ndtri(torch.from_numpy(s)), 50)
    (mu.inner(mu.coords, mu.coords)).backward()
    assert sigma.grad is not None
    assert sigma.grad.item() == pytest.approx(4.0, rel=2e-2)


def test_quantiles_between_the_levels_lie_on_lines() -> None:
    mu = sample(2)
    s = np.linspace(0, 1, 23)
    np.testing.assert_allclose(mu.ppf(s)[1], np.interp(s, LEVELS, mu.x[1].numpy()), rtol=1e-14)


# --- distances -----------------------------------------------------------------------------------------


def test_the_distance_is_exact_on_different_levels() -> None:
    mu, nu = sample(), Quantiles([-1.0, 0.5, 2.0], [0.0, 0.3, 1.0])

    def squared(s: float) -> float:
        return float(
            (np.interp(s, LEVELS, mu.x.numpy()) - np.interp(s, nu.levels.numpy(), nu.x.numpy())) ** 2
        )

    exact = integrate.quad(squared, 0, 1, points=[0.1, 0.3, 0.4, 0.5, 0.9])[0]
    assert mu.distance(nu).item() == pytest.approx(math.sqrt(exact), rel=1e-10)
    assert nu.distance(mu).item() == pytest.approx(math.sqrt(exact), rel=1e-10)


def test_the_distance_between_gaussians_is_that_of_bures() -> None:
    mu, nu = (Quantiles.from_ppf(stats.norm(m, s).ppf, 1000) for m, s in ((0, 1), (1, 3)))
    assert mu.distance(nu).item() == pytest.approx(math.sqrt(1 + 4), abs=3e-5)


def test_the_distance_has_derivatives_also_at_zero() -> None:
    mu = sample(2)
    x = mu.x.clone().requires_grad_()
    mu.distance(mu.at([x])).sum().backward()
    assert x.grad is not None
    assert bool((x.grad == 0).all())
    y = (mu.x + 0.1 * tangent(mu)[0]).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: mu.distance(mu.at([y])), y)


# --- refinement ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 5])
def test_refinement_is_monotone_cubic_interpolation(k: int) -> None:
    mu = sample(3)
    fine = mu.refined(k)
    expected = interpolate.PchipInterpolator(LEVELS, mu.x.numpy(), axis=-1)(fine.levels.numpy())
    np.testing.assert_allclose(fine.x, expected, atol=1e-13)
    torch.testing.assert_close(fine.levels[::k], mu.levels, rtol=0, atol=0)
    assert fine.n == 5 * k


def test_one_interval_can_be_refined() -> None:
    torch.testing.assert_close(
        Quantiles([1.0, 2.0], [0.0, 1.0]).refined(4).x, torch.linspace(1, 2, 5, dtype=torch.float64)
    )


def test_refinement_has_derivatives() -> None:
    x = sample(2).x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sample().at([x]).refined(3).x, x)


def test_richardson_removes_the_second_order() -> None:
    def perturbed(n: int) -> Quantiles:
        return Quantiles.from_ppf(lambda s: np.exp(s) + np.sin(3 * s) / n**2, n, grading=1.5)

    exact = Quantiles.from_ppf(np.exp, 4000, grading=1.5)
    errors = [richardson(perturbed(n // 2), perturbed(n)).distance(exact).item() for n in (40, 80)]
    assert errors[1] < 0.05 * perturbed(80).distance(exact).item()
    assert errors[1] < errors[0] / 3


def test_richardson_wants_nested_levels() -> None:
    one = Quantiles.from_ppf(np.exp, 8)
    with pytest.raises(InputError, match="every second level"):
        richardson(Quantiles.from_ppf(np.exp, 4, grading=2.0), one)
    with pytest.raises(InputError, match="every second level"):
        richardson(one, one)


# --- energies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("energy", "m"), [(Entropy(), 1.0), (PorousMedium(2.0), 2.0), (PorousMedium(0.5), 0.5)]
)
def test_internal_energies_integrate_the_density(energy: Internal, m: float) -> None:
    mu = sample()
    edges, heights = (a.numpy() for a in mu.density())
    U = heights * np.log(heights) if m == 1 else heights**m / (m - 1)
    assert energy(mu).item() == pytest.approx((U * np.diff(edges)).sum(), rel=1e-13)


def test_the_entropy_of_a_gaussian_is_known() -> None:
    mu = Quantiles.from_ppf(stats.norm.ppf, 2000)
    assert Entropy()(mu).item() == pytest.approx(-stats.norm.entropy(), abs=1e-4)


def test_a_density_bound_has_two_values_and_no_differential() -> None:
    mu = Quantiles([[0.0, 1.0, 2.0], [0.0, 0.5, 2.0]], [0.0, 0.5, 1.0])
    assert DensityBound(0.5)(mu).tolist() == [0.0, math.inf]
    with pytest.raises(DerivativeError):
        DensityBound(0.5).differential(mu)


@pytest.mark.parametrize("name", [name for name in ENERGIES if name != "line"])
def test_the_remainder_of_the_first_order_has_slope_two(name: str) -> None:
    mu, F = sample(2), ENERGIES[name]
    u, steps = tangent(mu), 2.0 ** -np.arange(8, 14)
    first = (F.differential(mu)[0] * u[0]).sum()
    found = [abs(float((F(mu.at(mu.coords + h * u)) - F(mu)).sum() - h * first)) for h in steps.tolist()]
    assert slope(steps, np.array(found)) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("name", ["entropy", "porous", "well"])
def test_a_differential_can_be_differentiated_again(name: str) -> None:
    mu = sample()
    x = mu.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ENERGIES[name].differential(mu.at([x]))[0], x)


class Spread(of.Energy):
    """An energy that is no sum over points or pairs."""

    def __call__(self, mu: of.Measure) -> Tensor:
        x, w = mu.nodes()
        return (w * x[..., 0].square()).sum(-1).square()


@pytest.mark.parametrize("name", [*ENERGIES, "own"])
def test_curvature_is_the_hessian(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otflow.base.kernels.TILE", 100)  # several tiles
    mu, F = sample(2), ENERGIES.get(name, Spread())
    found = quantiles.curvature(F, mu)
    found = found.dense() if isinstance(found, Tridiagonal) else found
    for member in range(2):
        one = mu[member]
        expected: Any = torch.autograd.functional.hessian(lambda x, one=one: F(one.at([x])), one.x)
        torch.testing.assert_close(found[member], expected, atol=1e-12, rtol=1e-9)


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "levels", "said"),
    [
        ([0.0, 1.0, 1.0], [0.0, 0.5, 1.0], "x must increase"),
        ([[0.0, 1.0, 2.0], [0.0, 2.0, 1.0]], [0.0, 0.5, 1.0], r"x\[1, 1 \+ 1\]"),
        ([0.0, 1.0, 2.0], [0.0, 0.5, 0.5], "levels run from 0 to 1"),
        ([0.0, 1.0, 2.0], [0.0, 0.0, 1.0], "levels must increase"),
        ([0.0, 1.0, 2.0], [[0.0, 0.5, 1.0]], "levels.shape"),
        ([0.0, 1.0], [0.0, 0.5, 1.0], r"x.shape = \(2,\)"),
        ([0.0, math.nan], [0.0, 1.0], "finite"),
        (np.zeros((0, 2)), [0.0, 1.0], "x.shape"),
        (1.0, [0.0, 1.0], "x.shape"),
    ],
)
def test_wrong_input_is_refused(x: Any, levels: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Quantiles(x, levels)


def test_wrong_meshes_and_functions_are_refused() -> None:
    with pytest.raises(InputError, match="grading"):
        graded_levels(5, grading=0.5)
    with pytest.raises(InputError, match="n = 0"):
        graded_levels(0)
    with pytest.raises(InputError, match="n = 1"):
        Quantiles.from_ppf(np.exp, 1)
    with pytest.raises(InputError, match=r"ppf\(s\).shape"):
        Quantiles.from_ppf(lambda s: 1.0, 4)
    with pytest.raises(InputError, match="finite"):
        Quantiles.from_ppf(lambda s: np.where(s < 0.3, -np.inf, s), 4)
    with pytest.raises(InputError, match="Quantiles"):
        sample().distance(of.Particles([[0.0]]))  # type: ignore[arg-type]


def test_single_precision_keeps_its_levels_in_double() -> None:
    mu = Quantiles(torch.arange(3.0), graded_levels(2))
    assert mu.dtype == torch.float32
    assert mu.levels.dtype == torch.float64
    assert mu.sharp(mu.coords)[0].dtype == torch.float32
    assert mu.distance(mu).dtype == torch.float32
    assert mu.refined(2).dtype == torch.float32
    assert Entropy()(mu).dtype == torch.float32
