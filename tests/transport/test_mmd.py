"""Maximum mean discrepancies against numpy, scipy, closed forms, and the laws of a distance."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import energy_distance
from torch import Tensor

import otflow as of
from otflow.base import kernels
from otflow.transport.discrepancy import EnergyKernel, GaussianKernel, Kernel, LaplaceKernel, mmd
from tests.samples import hill, normal

SEEDS = st.integers(0, 10**6)
KERNELS: dict[str, Kernel] = {
    "gaussian": GaussianKernel(0.8),
    "laplace": LaplaceKernel(1.3),
    "energy": EnergyKernel(),
}
MATRICES = {
    "gaussian": lambda x, y: np.exp(-(cdist(x, y) ** 2) / (2 * 0.8**2)),
    "laplace": lambda x, y: np.exp(-cdist(x, y) / 1.3),
    "energy": lambda x, y: -cdist(x, y),
}


def weighted(seed: int, n: int = 9, d: int = 3, batch: tuple[int, ...] = ()) -> of.Particles:
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.1, 1.0, (*batch, n))
    return of.Particles(rng.normal(size=(*batch, n, d)), w / w.sum(-1, keepdims=True))


def by_numpy(name: str, mu: of.Particles, nu: of.Particles) -> float:
    z, c = np.concatenate([mu.x.numpy(), nu.x.numpy()]), np.concatenate([mu.w.numpy(), -nu.w.numpy()])
    return math.sqrt(c @ MATRICES[name](z, z) @ c)


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_the_norm_of_the_difference(name: str) -> None:
    mu, nu = weighted(1), weighted(2, n=14)
    assert mmd(mu, nu, KERNELS[name]).item() == pytest.approx(by_numpy(name, mu, nu), rel=1e-12)


def test_on_the_line_the_energy_distance_is_that_of_distribution_functions() -> None:
    mu, nu = weighted(3, d=1), weighted(4, d=1, n=20)
    d = mmd(mu, nu, EnergyKernel()).item()
    theirs = energy_distance(*(a.flatten().numpy() for a in (mu.x, nu.x, mu.w, nu.w)))
    assert d == pytest.approx(theirs, rel=1e-12)
    z = np.sort(np.concatenate([mu.x.numpy(), nu.x.numpy()]), axis=None)
    F, G = ((z[:, None] >= m.x.numpy().T) @ m.w.numpy() for m in (mu, nu))
    assert d**2 == pytest.approx(2 * ((F - G)[:-1] ** 2 @ np.diff(z)), rel=1e-12)  # 2 int (F - G)^2


def test_gaussians_seen_by_a_gaussian_kernel_have_a_closed_form() -> None:
    def overlap(a: of.Gaussian, b: of.Gaussian, scale: float) -> float:
        """int int k dN(m, S) dN(m', S') for the kernel of this scale."""
        S, m = (a.cov + b.cov).numpy() / scale**2 + np.eye(2), (a.mean - b.mean).numpy() / scale
        return float(np.exp(-m @ np.linalg.solve(S, m) / 2) / np.sqrt(np.linalg.det(S)))

    mu, nu = (
        of.Gaussian([0.0, 1.0], root=0.5 * np.eye(2)),
        of.Gaussian([0.5, 0.0], root=[[0.3, 0.0], [0.2, 0.6]]),
    )
    exact = overlap(mu, mu, 1.5) + overlap(nu, nu, 1.5) - 2 * overlap(mu, nu, 1.5)
    quadrature = (of.Particles(*one.nodes()) for one in (mu, nu))  # Gauss-Hermite
    assert mmd(*quadrature, GaussianKernel(1.5)).item() == pytest.approx(math.sqrt(exact), rel=1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_a_measure_has_no_discrepancy_from_itself(name: str) -> None:
    mu = weighted(5, n=200)
    assert mmd(mu, mu, KERNELS[name]).item() == 0.0
    again = of.Particles(mu.x.flip(0), mu.w.flip(0))
    assert mmd(mu, again, KERNELS[name]).item() <= 1e-7


def by_mpmath(name: str, mu: of.Particles, nu: of.Particles) -> tuple[float, float]:
    """MMD and int int |k| d(mu + nu)^2, with fifty digits."""
    with mpmath.workdps(50):
        z = [[mpmath.mpf(c) for c in row] for one in (mu, nu) for row in one.x.tolist()]
        c = [mpmath.mpf(sign * w) for one, sign in ((mu, 1), (nu, -1)) for w in one.w.tolist()]
        r = [[mpmath.sqrt(sum((p - q) ** 2 for p, q in zip(a, b, strict=True))) for b in z] for a in z]
        k = {
            "gaussian": lambda r: mpmath.exp(-(r**2) / (2 * mpmath.mpf(0.8) ** 2)),
            "laplace": lambda r: mpmath.exp(-r / mpmath.mpf(1.3)),
            "energy": lambda r: -r,
        }[name]
        terms = [c[i] * c[j] * k(r[i][j]) for i in range(len(z)) for j in range(len(z))]
        return float(mpmath.sqrt(sum(terms))), float(sum(abs(t) for t in terms))


@pytest.mark.parametrize("h", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("name", KERNELS)
def test_small_moves_are_right_up_to_the_stated_rounding_of_the_square(name: str, h: float) -> None:
    mu = of.Particles(weighted(6, n=6).x)  # equal weights, whose sum is one to the last digit in both
    nu = mu.at([mu.x * (1 + h)])
    exact, size = by_mpmath(name, mu, nu)
    assert abs(mmd(mu, nu, KERNELS[name]).item() ** 2 - exact**2) <= 64 * 2.3e-16 * size
    if h == 1e-3:
        assert mmd(mu, nu, KERNELS[name]).item() == pytest.approx(exact, rel=1e-8)


def test_batches_broadcast_and_grids_are_atoms() -> None:
    mu, nu = weighted(7, batch=(2, 1)), weighted(8, batch=(3,))
    d = mmd(mu, nu, GaussianKernel(1.0))
    assert d.shape == (2, 3)
    assert d[1, 2].item() == pytest.approx(mmd(mu[1, 0], nu[2], GaussianKernel(1.0)).item(), rel=1e-12)
    rho, sigma = hill(20), hill(20, at=0.5)
    clouds = (of.Particles(*one.nodes()) for one in (rho, sigma))
    assert mmd(rho, sigma, EnergyKernel()).item() == pytest.approx(mmd(*clouds, EnergyKernel()).item())


@pytest.mark.parametrize("name", KERNELS)
def test_tiles_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mu, nu, results = weighted(9), weighted(10, n=7), []
    for tile in (2**20, 100):  # all rows at once, then two at a time
        monkeypatch.setattr(kernels, "TILE", tile)
        x, y = mu.x.clone().requires_grad_(), nu.x.clone().requires_grad_()
        d = mmd(mu.at([x]), nu.at([y]), KERNELS[name])
        slopes = torch.autograd.grad(d, (x, y), create_graph=True)
        bends = torch.autograd.grad(slopes[0][0, 0] + slopes[1][0, 0], (x, y))
        results.append(torch.cat([d[None], *(a.flatten() for a in (*slopes, *bends))]))
    assert torch.allclose(*results, rtol=1e-10, atol=1e-13)


def test_a_kernel_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(of.InputError, match="positive definite"):
        mmd(weighted(11), weighted(12), lambda x, y: (x - y).norm(dim=-1))


def test_wrong_kernels_are_refused() -> None:
    mu, nu = weighted(13), weighted(14)
    with pytest.raises(of.InputError, match=r"kernel\(x, y\).shape"):
        mmd(mu, nu, lambda x, y: x * y)
    with pytest.raises(of.InputError, match="function"):
        mmd(mu, nu, 1.0)  # type: ignore[arg-type]
    with pytest.raises(of.InputError, match="scale"):
        GaussianKernel(0.0)
    with pytest.raises(of.InputError, match="scale"):
        LaplaceKernel(-1.0)
    with pytest.raises(of.errors.NotFiniteError, match="not finite"):
        mmd(mu, nu, lambda x, y: -(x - y).square().sum(-1).log())
    with pytest.raises(of.InputError, match="atoms"):
        mmd(of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([0.0], root=[[1.0]]), EnergyKernel())


def test_a_torus_needs_a_periodic_kernel() -> None:
    mu, nu = (of.Particles([[x]], space=of.Torus(1.0)) for x in (0.1, 0.9))
    with pytest.raises(of.InputError, match="wrap"):
        mmd(mu, nu, GaussianKernel(1.0))
    d = mmd(mu, nu, lambda x, y: torch.cos(2 * torch.pi * (x - y)).sum(-1)).item()
    assert d == pytest.approx(math.sqrt(2 - 2 * math.cos(0.4 * math.pi)))


def test_single_precision_is_computed_in_double_precision() -> None:
    mu, nu = weighted(15), weighted(16)
    single = (of.Particles(m.x.float(), m.w.float()) for m in (mu, nu))
    d = mmd(*single, EnergyKernel())
    assert d.dtype == torch.float32
    assert d.item() == pytest.approx(mmd(mu, nu, EnergyKernel()).item(), rel=1e-6)


# --- laws ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(seed=SEEDS, name=st.sampled_from(sorted(KERNELS)))
def test_it_is_a_distance(seed: int, name: str) -> None:
    a, b, c = weighted(seed), weighted(seed + 1, n=5), weighted(seed + 2)
    ab, ba, bc, ac = (mmd(*pair, KERNELS[name]).item() for pair in ((a, b), (b, a), (b, c), (a, c)))
    assert ab == pytest.approx(ba, rel=1e-12)
    assert ac <= (ab + bc) * (1 + 1e-12)
    assert ab > 0


@pytest.mark.thorough
@given(seed=SEEDS, power=st.integers(-100, 100))
def test_it_scales_with_tokens_and_kernel_and_does_not_see_shifts(seed: int, power: int) -> None:
    mu, nu, c = weighted(seed), weighted(seed + 1), 10.0**power
    big = [one.at([one.x * c]) for one in (mu, nu)]
    energy, bell = (mmd(mu, nu, kernel).item() for kernel in (EnergyKernel(), GaussianKernel(0.8)))
    assert mmd(big[0], big[1], EnergyKernel()).item() == pytest.approx(energy * math.sqrt(c), rel=1e-10)
    assert mmd(big[0], big[1], GaussianKernel(0.8 * c)).item() == pytest.approx(bell, rel=1e-10)
    shifted = (one.at([one.x + 3.0]) for one in (mu, nu))
    assert mmd(*shifted, EnergyKernel()).item() == pytest.approx(energy, rel=1e-10)


@given(seed=SEEDS, name=st.sampled_from(sorted(KERNELS)), share=st.floats(0.1, 0.9))
def test_splitting_an_atom_changes_nothing(seed: int, name: str, share: float) -> None:
    mu, nu = weighted(seed), weighted(seed + 1)
    w = torch.cat([mu.w, mu.w[:1] * share])
    w[0] = mu.w[0] * (1 - share)
    split = of.Particles(torch.cat([mu.x, mu.x[:1]]), w)
    d = mmd(mu, nu, KERNELS[name]).item()
    assert mmd(split, nu, KERNELS[name]).item() == pytest.approx(d, rel=1e-10)


# --- derivatives ---------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_agree_with_differences(name: str) -> None:
    mu, nu = weighted(17, n=5, batch=(2,)), weighted(18, n=4)
    x, y, w = mu.x.requires_grad_(), nu.x.requires_grad_(), mu.w.clone().requires_grad_()

    def f(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return mmd(of.Particles(x, w / w.sum(-1, keepdim=True)), nu.at([y]), KERNELS[name])

    assert torch.autograd.gradcheck(f, (x, y, w))
    assert torch.autograd.gradgradcheck(f, (x, y, w))


def test_parameters_of_a_kernel_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "TILE", 100)
    mu, nu = weighted(19), weighted(20)

    def f(scale: Tensor) -> Tensor:
        return mmd(mu, nu, lambda x, y: torch.exp(-((x - y) / scale).square().sum(-1) / 2))

    assert torch.autograd.gradcheck(f, torch.tensor(0.7, dtype=torch.float64, requires_grad=True))


def test_the_gradient_at_discrepancy_zero_is_zero() -> None:
    x = torch.from_numpy(normal(5, 3)).requires_grad_()
    for kernel in KERNELS.values():
        d = mmd(of.Particles(x), of.Particles(x.detach()), kernel)
        (slope,) = torch.autograd.grad(d, x, create_graph=True)
        assert bool((slope == 0).all())
        with pytest.raises(of.errors.DerivativeError, match="coincide"):
            torch.autograd.grad(slope.sum(), x)


def test_second_derivatives_at_a_kink_are_refused() -> None:
    x, y = torch.from_numpy(normal(5, 3)).requires_grad_(), normal(5, 3, seed=1)
    y[2] = x.detach().numpy()[4]
    for name, kernel in KERNELS.items():
        (slope,) = torch.autograd.grad(mmd(of.Particles(x), of.Particles(y), kernel), x, create_graph=True)
        if name == "gaussian":
            torch.autograd.grad(slope.sum(), x)
        else:
            with pytest.raises(of.errors.DerivativeError, match="coincide"):
                torch.autograd.grad(slope.sum(), x)


@pytest.mark.parametrize("name", ["laplace", "energy"])
def test_second_derivatives_are_refused_where_atoms_of_one_measure_coincide(name: str) -> None:
    kernel, x, y = KERNELS[name], normal(4, 2), normal(5, 2, seed=1)
    x[3], y[2] = x[0], y[4]

    def curvature(x: np.ndarray, w: list[float] | None = None) -> Tensor:
        z = torch.from_numpy(x).requires_grad_()
        (slope,) = torch.autograd.grad(
            mmd(of.Particles(z, w), of.Particles(y), kernel).sum(), z, create_graph=True
        )
        return torch.autograd.grad(slope.sum(), z)[0]

    with pytest.raises(of.errors.DerivativeError, match="coincide"):
        curvature(x)
    with pytest.raises(of.errors.DerivativeError, match="coincide"):
        curvature(np.stack([normal(4, 2, seed=3), x]))
    # an atom without mass is none, and the other measure stands still
    assert bool(torch.isfinite(curvature(x, [0.5, 0.25, 0.25, 0.0])).all())
    assert bool(torch.isfinite(curvature(normal(4, 2, seed=3))).all())
