"""Bures-Wasserstein geometry against 60 digits, against POT, and against its own laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

import otflow as of
from otflow.base.errors import ConvergenceError, DerivativeError, InputError
from otflow.base.tangent import Tangent
from otflow.transport.bures.barycentre import bures_barycentre
from otflow.transport.bures.geometry import (
    AffineMap,
    bures,
    bures_exp,
    bures_geodesic,
    bures_log,
    bures_map,
    bures_wasserstein,
)
from tests.samples import normal

Array = np.ndarray
STEPS = [1.0, 1e-1, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10]


def exact(a: Any) -> mpmath.matrix:
    return mpmath.matrix(np.asarray(a, dtype=float).tolist())


def eigenvalues(a: mpmath.matrix) -> list[Any]:
    return [max(x, mpmath.mpf(0)) for x in mpmath.eigsy((a + a.T) / 2, eigvals_only=True)]


def truth(S1: Any, S2: Any) -> Any:
    """The distance by the formula of the textbook, with 60 digits."""
    with mpmath.workdps(60):
        a, b = exact(S1), exact(S2)
        values, vectors = mpmath.eigsy(a)
        root = vectors * mpmath.diag([mpmath.sqrt(max(x, mpmath.mpf(0))) for x in values]) * vectors.T
        twice = 2 * sum(mpmath.sqrt(x) for x in eigenvalues(root * b * root))
        return mpmath.sqrt(abs(sum(a[i, i] + b[i, i] for i in range(a.rows)) - twice))


def relative_error(found: Any, true: Any) -> float:
    with mpmath.workdps(60):
        return float(abs(mpmath.mpf(float(found)) / true - 1))


def symmetric(a: Any) -> Any:
    return (a + a.swapaxes(-1, -2)) / 2


def covariance(d: int, condition: float, seed: int = 0) -> Array:
    """Eigenvalues from 1 down to 1/condition in a random basis."""
    v = np.linalg.qr(normal(d, d, seed=seed))[0]
    return symmetric((v * np.logspace(0, -np.log10(condition), d)) @ v.T)


def moved(S: Array, h: float, seed: int = 1) -> Array:
    """(I + hX) S (I + hX): displaced by about h."""
    T = np.eye(len(S)) + h * symmetric(normal(*S.shape, seed=seed)) / np.sqrt(len(S))
    return symmetric(T @ S @ T)


def shaken(S: Array, h: float, seed: int = 1) -> Array:
    """S plus h times its least eigenvalue: most of the displacement is where S is smallest."""
    X = symmetric(normal(*S.shape, seed=seed))
    return symmetric(S + 0.9 * h * np.linalg.eigvalsh(S)[0] * X / np.linalg.norm(X, 2))


# --- precision ---------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow(but_for=["1-*", "2-*", "3-*", "8-1.0-*-moved", "8-1000000.0-*-shaken"])
@pytest.mark.parametrize("way", [moved, shaken])
@pytest.mark.parametrize(("condition", "tol"), [(1.0, 1e-14), (1e2, 1e-14), (1e4, 2e-12), (1e6, 1e-9)])
@pytest.mark.parametrize("d", [1, 2, 3, 8])
def test_the_distance_keeps_its_digits_however_small_it_is(
    d: int, condition: float, tol: float, way: Callable[..., Array]
) -> None:
    S1 = covariance(d, condition)
    for h in STEPS:
        S2 = way(S1, h)
        if (S1 != S2).any():
            assert relative_error(bures(S1, S2), truth(S1, S2)) < tol
            assert relative_error(bures(S2, S1), truth(S1, S2)) < tol


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-6, 1e-12])
def test_independent_covariances_of_unlike_size_are_far_apart_to_all_digits(d: int, size: float) -> None:
    S1, S2 = covariance(d, 1e8, seed=2), size * covariance(d, 1e8, seed=3)
    assert relative_error(bures(S1, S2), truth(S1, S2)) < 2e-14


@pytest.mark.parametrize("d", [1, 2, 3, 8])
@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_float32_is_computed_in_float64(d: int, condition: float) -> None:
    S1 = covariance(d, condition).astype(np.float32)
    for h in STEPS[:5]:
        S2 = moved(S1.astype(float), h).astype(np.float32)
        if (S1 != S2).any():
            found = bures(S1, S2)
            assert found.dtype == torch.float32
            assert relative_error(found, truth(S1, S2)) < 1e-6


def integers(d: int, r: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, (d, r)).astype(float)


RANGES = {
    "the same range": lambda B, C, h: B @ (np.eye(2) + h * np.array([[1.0, 0.5], [0.5, -0.5]])) @ B.T,
    "a larger range": lambda B, C, h: B @ B.T + h * C @ C.T,
    "everything": lambda B, C, h: B @ B.T + h * np.eye(len(B)),
    "another range": lambda B, C, h: (B + h * C) @ (B + h * C).T,
    "one that is nothing alike": lambda B, C, h: h * C @ C.T,
}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("d", [2, 3, 5, 8])
@pytest.mark.parametrize("k", [0, 3, 7, 13, 20])
def test_a_covariance_with_exact_zeros_is_singular_and_the_other_has(name: str, d: int, k: int) -> None:
    """Entries are integers times a power of two, so that the singular matrices are exactly singular."""
    B, C = integers(d, 2, seed=d), integers(d, 2, seed=d + 10)
    S1, S2 = B @ B.T, RANGES[name](B, C, 2.0**-k)
    for a, b in ((S1, S2), (S2, S1)):
        assert relative_error(bures(a, b), truth(S1, S2)) < 1e-9


@pytest.mark.parametrize("d", [2, 3, 5, 8])
def test_a_tiny_move_within_a_range_is_seen(d: int) -> None:
    B = integers(d, 2, seed=d)
    S1, S2 = B @ B.T, RANGES["the same range"](B, B, 2.0**-33)
    assert relative_error(bures(S1, S2), truth(S1, S2)) < 1e-8


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("h", [1.0, 1e-3, 1e-9])
def test_rounded_singular_covariances_are_known_to_eight_digits_of_their_size(rank: int, h: float) -> None:
    v = np.linalg.qr(normal(5, 5))[0][:, :rank]
    S1, S2 = symmetric(v @ v.T), symmetric(v @ (np.eye(rank) * (1 + h)) @ v.T)
    assert float(bures(S1, S2)) == pytest.approx((np.sqrt(1 + h) - 1) * np.sqrt(rank), abs=2e-8)


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_the_distance_to_itself_is_exactly_zero(d: int, rank: int) -> None:
    R = normal(4, d, rank)
    S = symmetric(R @ R.swapaxes(-1, -2))
    assert torch.equal(bures(S, S), torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("scale", [1e-200, 1e-150, 1e-20, 1e20, 1e150, 1e200])
def test_the_unit_of_length_does_not_matter(d: int, scale: float) -> None:
    S1, S2 = covariance(d, 10.0), covariance(d, 10.0, seed=7)
    for a, b in ((S1, S2), (S1, moved(S1, 1e-5)), (S1 - S1, S2)):
        # Multiplying by the scale rounds both matrices, which matters for the near pair only.
        tol = 1e-13 if b is S2 else 1e-9
        assert float(bures(scale * a, scale * b) / scale**0.5) == pytest.approx(float(bures(a, b)), rel=tol)


def test_pot_agrees_on_benign_covariances() -> None:
    for d in (1, 2, 3, 6):
        S1, S2 = covariance(d, 10.0, seed=1), 2 * covariance(d, 10.0, seed=2)
        assert float(bures(S1, S2)) == pytest.approx(ot.gaussian.bures_distance(S1, S2), rel=1e-10)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_members_of_a_batch_are_measured_as_if_alone(d: int) -> None:
    """Near, far, equal, singular and zero ones side by side, twice the size of a chunk."""
    S = covariance(d, 10.0)
    v = np.linalg.qr(normal(d, d))[0][:, :1]
    pairs = [(S, moved(S, 1e-7)), (S, covariance(d, 100.0, seed=3)), (S, S), (v @ v.T, S), (S, 0 * S)]
    alone = torch.stack([bures(a, b) for a, b in pairs])
    repeats = 2 * 2**16 // d**2 // len(pairs) + 1
    S1, S2 = (np.tile(np.stack([p[i] for p in pairs]), (repeats, 1, 1)) for i in range(2))
    torch.testing.assert_close(bures(S1, S2), alone.repeat(repeats), rtol=1e-13, atol=1e-16)


def test_batches_broadcast() -> None:
    S1, S2 = (np.stack([covariance(3, 10.0, seed=s) for s in seeds]) for seeds in ((0, 1), (2, 3, 4)))
    table = bures(S1[:, None], S2)
    assert table.shape == (2, 3)
    torch.testing.assert_close(table[1, 2], bures(S1[1], S2[2]))
    assert bures(torch.zeros(0, 3, 3), torch.eye(3)).shape == (0,)


WRONG = {
    "not square": (np.ones((2, 3)), "shape"),
    "a vector": (np.ones(3), "shape"),
    "empty": (np.ones((0, 0)), "shape"),
    "not symmetric": (np.array([[1.0, 0.5], [0.0, 1.0]]), "asymmetry"),
    "indefinite": (np.diag([1.0, -1e-3]), "positive semidefinite"),
    "indefinite in space": (np.diag([1.0, 1.0, -1e-3]), "positive semidefinite"),
    "negative": (np.array([[-1.0]]), "positive semidefinite"),
    "not finite": (np.diag([1.0, np.nan]), "finite"),
    "of another dimension": (np.eye(4), r"S2.shape = \(4, 4\)"),
    "of another dtype": (torch.eye(3), "dtype"),
    "of another batch": (np.stack([np.eye(3)] * 3), "broadcast"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_covariance_is_refused(name: str) -> None:
    wrong, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        bures(np.stack([np.eye(3 if "another" in name else len(wrong))] * 2), wrong)


def test_eigenvalues_below_zero_by_rounding_count_as_zero() -> None:
    S = np.diag([1.0, 1.0, -1e-12])
    assert float(bures(S, np.diag([4.0, 1.0, 0.0]))) == pytest.approx(1.0, rel=1e-10)
    assert float(bures(np.diag([1.0, -1e-12]), np.diag([4.0, 0.0]))) == pytest.approx(1.0, rel=1e-10)


# --- derivatives -------------------------------------------------------------------------------------


def smooth(a: Tensor, b: Tensor) -> Tensor:
    """The distance as a function of any two matrices, so that differences may leave the symmetric ones."""
    return bures((a + a.mT) / 2, (b + b.mT) / 2)


SMOOTH = {
    "on the line": (covariance(1, 1.0), 3 * covariance(1, 1.0)),
    "in the plane": (covariance(2, 3.0), covariance(2, 5.0, seed=3)),
    "in space": (covariance(3, 3.0), covariance(3, 5.0, seed=3)),
    "at the identity": (np.eye(3), 2 * np.eye(3)),
    "at repeated eigenvalues": (np.diag([2.0, 2.0, 1.0]), np.diag([1.0, 3.0, 3.0])),
    "near by": (covariance(3, 2.0), moved(covariance(3, 2.0), 1e-2)),
    "of a batch": (np.stack([covariance(3, s) for s in (2.0, 5.0)]), covariance(3, 3.0, seed=3)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_the_gradient_in_covariances_is_right(name: str) -> None:
    a, b = (torch.tensor(S).requires_grad_() for S in SMOOTH[name])
    assert gradcheck(smooth, (a, b), eps=1e-6, atol=1e-5, check_forward_ad=True)


def test_the_gradient_keeps_its_digits_when_the_distance_is_small() -> None:
    v, a = torch.tensor(np.linalg.qr(normal(4, 4))[0]), torch.tensor([1.0, 2.0, 2.0, 3.0]).double()
    b = a * (1 + 1e-9 * torch.tensor([1.0, -2.0, 3.0, 0.5]).double())
    S1, S2 = ((v @ torch.diag(x) @ v.T) for x in (a, b))
    S1, S2 = ((S + S.T) / 2 for S in (S1, S2))
    S1.requires_grad_()
    bures(S1, S2).backward()
    change = ((S2 - S1).detach() / 1e-9).double()  # as rounded
    in_basis = v.T @ change @ v / (a[:, None] + a[None, :])
    expected = -v @ in_basis @ v.T / (2 * torch.sqrt((in_basis.square() * a).sum()))
    torch.testing.assert_close(S1.grad, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_gradient_is_zero_where_the_distance_is(d: int) -> None:
    S = torch.tensor(covariance(d, 3.0)).requires_grad_()
    bures(S, S.detach()).backward()
    assert torch.equal(S.grad, torch.zeros_like(S))


INFINITE = {
    "a known bug elsewhere": (np.diag([1.0, 1.0, 0.0]), 2 * np.eye(3)),
    "a turned one": (
        symmetric((q := np.linalg.qr(normal(3, 3))[0]) @ np.diag([1.0, 1.0, 0.0]) @ q.T),
        np.eye(3),
    ),
    "in the plane": (np.diag([1.0, 0.0]), np.eye(2)),
    "on the line": (np.zeros((1, 1)), np.eye(1)),
    "orthogonal ranges": (np.diag([1.0, 0.0, 0.0]), np.diag([0.0, 1.0, 0.0])),
}


@pytest.mark.parametrize("name", INFINITE)
def test_an_infinite_gradient_is_an_error(name: str) -> None:
    a, b = (torch.tensor(S).requires_grad_() for S in INFINITE[name])
    with pytest.raises(DerivativeError, match="infinite"):
        torch.autograd.grad(bures(a, b), a)


def test_the_gradient_in_the_other_covariance_is_finite_there() -> None:
    a, b = torch.diag(torch.tensor([1.0, 1.0, 0.0]).double()), 2 * torch.eye(3).double()
    assert gradcheck(lambda b: smooth(a, b), b.requires_grad_(), check_forward_ad=True)


def test_on_the_way_to_a_singular_covariance_the_gradient_tends_to_minus_infinity() -> None:
    for value in (1e-4, 1e-8, 1e-12):
        S = torch.diag(torch.tensor([1.0, 1.0, value]).double()).requires_grad_()
        w = bures(S, 2 * torch.eye(3).double())
        w.backward()
        expected = (1 - (2 / value) ** 0.5) / (2 * w.item())
        assert S.grad[2, 2].item() == pytest.approx(expected, rel=1e-6)


def test_within_a_common_range_the_gradient_is_finite_and_one_sided_beyond() -> None:
    a, b = (
        torch.diag(torch.tensor([1.0, 4.0, 0.0])).double(),
        torch.diag(torch.tensor([2.0, 1.0, 0.0])).double(),
    )
    w = bures(a.requires_grad_(), b)
    w.backward()
    roots = torch.tensor([2.0, 0.25, 0.0]).double().sqrt()  # of b over a; nothing is sent beyond
    torch.testing.assert_close(a.grad, torch.diag(1 - roots) / (2 * w.detach()))


def test_second_derivatives_are_refused() -> None:
    a = torch.tensor(covariance(3, 3.0)).requires_grad_()
    with pytest.raises(DerivativeError, match="second"):
        torch.autograd.grad(bures(a, torch.eye(3).double()), a, create_graph=True)
    mu = of.Gaussian(np.zeros(3), root=a)
    with pytest.raises(DerivativeError, match="second"):
        torch.autograd.grad(
            bures_wasserstein(mu, of.Gaussian(np.ones(3), root=np.eye(3))), a, create_graph=True
        )


# --- Gaussians ---------------------------------------------------------------------------------------

RANKS = [(1, 1, 1), (2, 2, 2), (2, 1, 2), (2, 5, 3), (3, 3, 3), (3, 2, 3), (3, 1, 2), (4, 2, 2), (4, 7, 3)]


def gaussian(d: int, r: int, seed: int = 0, *batch: int) -> of.Gaussian:
    return of.Gaussian(normal(*batch, d, seed=seed), root=normal(*batch, d, r, seed=seed + 1))


def true_distance(mu: of.Gaussian, nu: of.Gaussian) -> Any:
    with mpmath.workdps(120):  # half of them remain of the root of a zero
        a, b = exact(mu.root), exact(nu.root)
        values = eigenvalues((a.T * b) * (a.T * b).T)
        square = sum(x * x for x in [*a, *b]) - 2 * sum(mpmath.sqrt(x) for x in values)
        shift = exact(mu.mean[:, None]) - exact(nu.mean[:, None])
        return mpmath.sqrt(abs(square) + sum(x * x for x in shift))


@pytest.mark.parametrize("ranks", RANKS)
def test_gaussians_of_any_rank_are_measured(ranks: tuple[int, int, int]) -> None:
    d, r1, r2 = ranks
    mu, nu = gaussian(d, r1), gaussian(d, r2, seed=5)
    assert relative_error(bures_wasserstein(mu, nu), true_distance(mu, nu)) < 1e-14
    torch.testing.assert_close(bures_wasserstein(mu, nu), bures_wasserstein(nu, mu), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "ranks", [(1, 1), (2, 2), (2, 1), (3, 3), (5, 2), (8, 8), (1, 2), (3, 4), (3, 6), (2, 5), (3, 9)]
)
@pytest.mark.parametrize("h", [*STEPS[1:], 5e-14])
def test_roots_that_are_close_give_relative_precision(ranks: tuple[int, int], h: float) -> None:
    d, r = ranks
    mu = gaussian(d, r)
    nu = of.Gaussian(mu.mean, root=mu.root + h * torch.tensor(normal(d, r, seed=9)))
    assert relative_error(bures_wasserstein(mu, nu), true_distance(mu, nu)) < 1e-12


@pytest.mark.parametrize("d", [2, 3, 8])
@pytest.mark.parametrize("h", STEPS[1:])
def test_roots_that_are_turned_give_what_their_rounding_allows(d: int, h: float) -> None:
    mu = gaussian(d, d)
    turn = np.linalg.qr(normal(d, d, seed=8))[0]
    nu = of.Gaussian(mu.mean, root=(mu.root.numpy() + h * normal(d, d, seed=9)) @ turn)
    w = true_distance(mu, nu)
    size = float(torch.linalg.norm(mu.root))
    assert relative_error(bures_wasserstein(mu, nu), w) < 1e-12 + 1e-15 * size / float(w)


def test_roots_and_covariances_agree_and_so_does_pot() -> None:
    mu, nu = gaussian(4, 4, 0, 5), gaussian(4, 6, 2, 5)
    w = bures_wasserstein(mu, nu)
    shift = (mu.mean - nu.mean).norm(dim=-1)
    torch.testing.assert_close(w, torch.hypot(bures(mu.cov, nu.cov), shift), rtol=1e-7, atol=0)
    for i in range(5):
        arrays = (g[i].numpy() for g in (mu.mean, nu.mean, mu.cov, nu.cov))
        assert w[i].item() == pytest.approx(ot.gaussian.bures_wasserstein_distance(*arrays), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-150, 1e-100, 1e100, 1e150])
def test_roots_may_be_of_any_size(scale: float) -> None:
    mu, nu = gaussian(3, 3), gaussian(3, 2, seed=4)
    big = [of.Gaussian(scale * g.mean, root=scale * g.root) for g in (mu, nu)]
    torch.testing.assert_close(bures_wasserstein(*big) / scale, bures_wasserstein(mu, nu), rtol=1e-13, atol=0)


def test_gaussians_in_float32_keep_their_dtype() -> None:
    mu = of.Gaussian(np.zeros(3, np.float32), root=normal(3, 3).astype(np.float32))
    nu = of.Gaussian(mu.mean, root=mu.root + 1e-5 * torch.tensor(normal(3, 3, seed=2)).float())
    w = bures_wasserstein(mu, nu)
    assert w.dtype == torch.float32
    assert relative_error(w, true_distance(mu, nu)) < 1e-6


def test_a_gaussian_has_distance_zero_to_itself_and_gradient_zero() -> None:
    mu = gaussian(3, 3)
    root = mu.root.clone().requires_grad_()
    w = bures_wasserstein(of.Gaussian(mu.mean, root=root), mu)
    w.backward()
    assert w.item() == 0
    assert torch.equal(root.grad, torch.zeros_like(root))


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", RANKS)
def test_the_gradient_in_means_and_roots_is_right(ranks: tuple[int, int, int]) -> None:
    d, r1, r2 = ranks

    def f(m1: Tensor, R1: Tensor, m2: Tensor, R2: Tensor) -> Tensor:
        return bures_wasserstein(of.Gaussian(m1, root=R1), of.Gaussian(m2, root=R2))

    leaves = [
        x.clone().requires_grad_() for g in (gaussian(d, r1), gaussian(d, r2, seed=5)) for x in g.coords
    ]
    assert gradcheck(f, leaves, check_forward_ad=True)


@pytest.mark.parametrize("R1", [np.eye(3), np.diag([2.0, 1.0, 0.0])[:, :2], np.diag([1.0, 1.0, 0.0])])
def test_the_gradient_in_a_root_is_finite_at_repeated_and_vanishing_singular_values(R1: Array) -> None:
    R2 = np.diag([3.0, 3.0, 0.0]) if R1.shape == (3, 3) and R1[2, 2] == 0 else 2 * np.eye(3)

    def f(R: Tensor) -> Tensor:
        return bures_wasserstein(of.Gaussian(np.zeros(3), root=R), of.Gaussian(np.zeros(3), root=R2))

    root = torch.tensor(R1).requires_grad_()
    f(root).backward()
    # R1 and R2 are diagonal, hence aligned: (R1 - R2) / distance, without what is out of reach
    away = root.detach() - torch.tensor(R2)[:, : R1.shape[1]]
    torch.testing.assert_close(root.grad, away / f(root).detach(), rtol=1e-12, atol=1e-12)


def test_measures_that_cannot_be_compared_are_refused() -> None:
    mu = gaussian(3, 3)
    for nu, message in (
        (gaussian(2, 2), "dimension"),
        (gaussian(3, 3, 0, 2), "broadcast"),
        (3.0, "Gaussian"),
    ):
        with pytest.raises(InputError, match=message):
            bures_wasserstein(gaussian(3, 3, 0, 3) if message == "broadcast" else mu, nu)
    with pytest.raises(InputError, match="dtype"):
        bures_wasserstein(mu, of.Gaussian(np.zeros(3, np.float32), root=np.eye(3, dtype=np.float32)))


# --- laws --------------------------------------------------------------------------------------------


@st.composite
def gaussians(draw: Any, count: int = 1) -> list[of.Gaussian]:
    """Gaussians of one dimension and any ranks, some of them close to others."""
    d, seed = draw(st.integers(1, 4)), draw(st.integers(0, 10_000))
    rng = np.random.default_rng(seed)
    out = [of.Gaussian(rng.standard_normal(d), root=rng.standard_normal((d, draw(st.integers(1, 5)))))]
    for _ in range(count - 1):
        if draw(st.booleans()):
            out.append(
                of.Gaussian(rng.standard_normal(d), root=rng.standard_normal((d, draw(st.integers(1, 5)))))
            )
        else:
            h = 10.0 ** -draw(st.integers(0, 9))
            mean, root = (c + h * torch.tensor(rng.standard_normal(c.shape)) for c in out[0].coords)
            out.append(of.Gaussian(mean, root=root))
    return out


@given(gaussians(2))
@settings(max_examples=40)
def test_the_distance_is_symmetric(pair: list[of.Gaussian]) -> None:
    mu, nu = pair
    torch.testing.assert_close(bures_wasserstein(mu, nu), bures_wasserstein(nu, mu), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(bures(mu.cov, nu.cov), bures(nu.cov, mu.cov), rtol=1e-9, atol=3e-7)


@given(gaussians(3))
@settings(max_examples=40)
def test_the_triangle_inequality_holds(three: list[of.Gaussian]) -> None:
    a, b, c = three
    ab, bc, ac = (float(bures_wasserstein(x, y)) for x, y in ((a, b), (b, c), (a, c)))
    assert ac <= (ab + bc) * (1 + 1e-12) + 1e-14


@given(gaussians(2), st.integers(0, 100))
@settings(max_examples=40)
def test_a_common_motion_changes_no_distance(pair: list[of.Gaussian], seed: int) -> None:
    mu, nu = pair
    turn = torch.tensor(np.linalg.qr(normal(mu.d, mu.d, seed=seed))[0])
    moved_pair = [of.Gaussian(g.mean @ turn.T + 1, root=turn @ g.root) for g in pair]
    torch.testing.assert_close(
        bures_wasserstein(*moved_pair), bures_wasserstein(mu, nu), rtol=1e-9, atol=1e-14
    )


@given(gaussians(2), st.floats(0.01, 100))
@settings(max_examples=40)
def test_distances_scale_with_lengths(pair: list[of.Gaussian], c: float) -> None:
    scaled = [of.Gaussian(c * g.mean, root=c * g.root) for g in pair]
    torch.testing.assert_close(
        bures_wasserstein(*scaled), c * bures_wasserstein(*pair), rtol=1e-7, atol=1e-14 * c
    )


@given(gaussians(2), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40)
def test_a_geodesic_has_constant_speed(pair: list[of.Gaussian], s: float, t: float) -> None:
    at_s, at_t = (bures_geodesic(*pair, x) for x in (s, t))
    w = float(bures_wasserstein(*pair))
    assert float(bures_wasserstein(at_s, at_t)) == pytest.approx(abs(t - s) * w, rel=1e-7, abs=1e-13)


@given(gaussians(2))
@settings(max_examples=40)
def test_the_exponential_undoes_the_logarithm(pair: list[of.Gaussian]) -> None:
    mu, nu = pair
    mu = of.Gaussian(mu.mean, root=torch.nn.functional.pad(mu.root, (0, 5)))  # room for the rank of nu
    u = bures_log(mu, nu)
    end = bures_exp(mu, u)
    torch.testing.assert_close(end.mean, nu.mean)
    torch.testing.assert_close(end.cov, nu.cov, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(mu.inner(u, u).sqrt(), bures_wasserstein(mu, nu), rtol=1e-7, atol=1e-14)


@pytest.mark.thorough
@given(gaussians(2), st.floats(0.05, 0.95))
@settings(max_examples=30)
def test_the_barycentre_of_two_lies_on_the_geodesic(pair: list[of.Gaussian], t: float) -> None:
    mu, nu = (
        of.Gaussian(g.mean, root=torch.nn.functional.pad(g.root, (0, 5 - g.root.shape[-1]))) for g in pair
    )
    both = of.Gaussian(torch.stack([mu.mean, nu.mean]), root=torch.stack([mu.root, nu.root]))
    found = bures_barycentre(both, [1 - t, t], on_failure="return").measure
    # it may not be unique if both are singular, so compare distances rather than measures
    w = float(bures_wasserstein(mu, nu))
    assert float(bures_wasserstein(mu, found)) == pytest.approx(t * w, rel=1e-6, abs=1e-12)
    assert float(bures_wasserstein(found, nu)) == pytest.approx((1 - t) * w, rel=1e-6, abs=1e-12)


# --- geodesics ---------------------------------------------------------------------------------------


def test_a_geodesic_joins_its_ends_and_takes_one_time_per_member() -> None:
    mu, nu = gaussian(3, 2, 0, 2), gaussian(3, 3, 4, 2)
    ends = bures_geodesic(mu, nu, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(ends[0].cov, mu[0].cov)
    torch.testing.assert_close(ends[1].cov, nu[1].cov)
    torch.testing.assert_close(ends.mean, torch.stack([mu.mean[0], nu.mean[1]]))
    assert bures_geodesic(mu, nu, 0.5).root.shape == (2, 3, 3)


@pytest.mark.parametrize("t", [-0.1, 1.1, float("nan"), [0.1, 0.2, 0.3]])
def test_a_time_beyond_the_geodesic_is_refused(t: Any) -> None:
    with pytest.raises(InputError, match="t"):
        bures_geodesic(gaussian(3, 2, 0, 2), gaussian(3, 3, 4, 2), t)


def test_a_geodesic_is_differentiable() -> None:
    def f(m1: Tensor, R1: Tensor, m2: Tensor, R2: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        g = bures_geodesic(of.Gaussian(m1, root=R1), of.Gaussian(m2, root=R2), t)
        return g.mean, g.root

    leaves = [x.clone().requires_grad_() for g in (gaussian(3, 3), gaussian(3, 3, seed=5)) for x in g.coords]
    time = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(f, (*leaves, time), check_forward_ad=True)


def test_a_symmetric_field_leaves_along_a_geodesic() -> None:
    mu, B = gaussian(3, 3), torch.tensor(0.2 * symmetric(normal(3, 3, seed=2)))
    u = Tangent([torch.ones(3).double(), B @ mu.root])
    end = bures_exp(mu, u)
    torch.testing.assert_close(bures_wasserstein(mu, end), mu.inner(u, u).sqrt(), rtol=1e-12, atol=0)
    for mine, theirs in zip(bures_log(mu, end), u, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_a_root_too_narrow_for_the_target_is_refused_and_a_wide_target_of_low_rank_is_not() -> None:
    mu = gaussian(3, 1)
    with pytest.raises(InputError, match="columns of zeros"):
        bures_log(mu, gaussian(3, 2))
    ray = of.Gaussian(np.zeros(3), root=np.outer(normal(3, seed=2), normal(4, seed=3)))
    torch.testing.assert_close(bures_exp(mu, bures_log(mu, ray)).cov, ray.cov)


# --- maps --------------------------------------------------------------------------------------------


def test_the_map_is_that_of_pot() -> None:
    mu, nu = gaussian(4, 4, 0), gaussian(4, 4, 3)
    f = bures_map(mu, nu)
    A, b = ot.gaussian.bures_wasserstein_mapping(*(x.numpy() for x in (mu.mean, nu.mean, mu.cov, nu.cov)))
    np.testing.assert_allclose(f.matrix, A, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(f.shift, np.ravel(b), rtol=1e-6, atol=1e-8)


def test_the_map_carries_points_and_measures() -> None:
    mu, nu = gaussian(3, 3, 0, 2), gaussian(3, 3, 3, 2)
    f = bures_map(mu, nu)
    torch.testing.assert_close(f(mu).cov, nu.cov)
    torch.testing.assert_close(f(mu).mean, nu.mean)
    x, w = mu.nodes()
    torch.testing.assert_close((w[..., None] * f(x)).sum(-2), nu.mean)
    assert (w * (f(x) - x).square().sum(-1)).sum(-1).sqrt() == pytest.approx(bures_wasserstein(mu, nu))
    torch.testing.assert_close(f.matrix, f.matrix.mT, rtol=1e-9, atol=1e-10)
    assert f.status.tolist() == ["ok", "ok"]
    with pytest.raises(InputError, match="points"):
        f(torch.zeros(3, dtype=torch.float64))


REACHABLE = {
    "the same range": (np.diag([1.0, 1.0, 0.0]), np.diag([4.0, 9.0, 0.0])),
    "within the range": (np.diag([1.0, 1.0, 0.0]), np.diag([4.0, 0.0, 0.0])),
    "a tilted range": (np.diag([1.0, 0.0, 0.0]), np.outer([0.6, 0.8, 0.0], [0.6, 0.8, 0.0])),
    "from everything": (np.eye(3), np.diag([4.0, 0.0, 0.0])),
    "from a point to a point": (np.zeros((3, 3)), np.zeros((3, 3))),
}


@pytest.mark.parametrize("name", REACHABLE)
def test_a_singular_gaussian_has_a_map_to_what_it_can_reach(name: str) -> None:
    S1, S2 = REACHABLE[name]
    mu, nu = of.Gaussian(np.zeros(3), cov=S1), of.Gaussian(np.ones(3), cov=S2)
    f = bures_map(mu, nu)
    assert f.status == "ok"
    torch.testing.assert_close(f(mu).cov, nu.cov, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        f.matrix @ (torch.eye(3) - (torch.tensor(S1) > 0).double()), torch.zeros(3, 3).double()
    )


@pytest.mark.parametrize("turned", [False, True])
def test_without_a_map_the_error_carries_the_conditional_mean(turned: bool) -> None:
    q = np.linalg.qr(normal(3, 3))[0] if turned else np.eye(3)
    mu = of.Gaussian(np.zeros(3), cov=symmetric(q @ np.diag([1.0, 1.0, 0.0]) @ q.T))
    nu = of.Gaussian(np.zeros(3), cov=4 * np.eye(3))
    with pytest.raises(ConvergenceError, match="no map") as caught:
        bures_map(mu, nu)
    f = bures_map(mu, nu, on_failure="return")
    assert f.status == caught.value.result.status == "degenerate"
    np.testing.assert_allclose(f.matrix, q @ np.diag([2.0, 2.0, 0.0]) @ q.T, atol=1e-7)


@pytest.mark.parametrize(("dtype", "thin"), [(np.float64, 1e-9), (np.float64, 1e-15), (np.float32, 1e-4)])
def test_a_direction_that_is_thin_is_mapped_like_any_other(dtype: type, thin: float) -> None:
    mu, nu = (
        of.Gaussian(np.zeros(2, dtype), root=np.diag([1.0, thin * c]).astype(dtype)) for c in (1.0, 2.0)
    )
    f = bures_map(mu, nu)
    assert f.status == "ok"
    np.testing.assert_allclose(f.matrix, np.diag([1.0, 2.0]), rtol=1e-6)


def test_a_thin_direction_of_the_target_that_cannot_be_reached_is_reported() -> None:
    mu, nu = (
        of.Gaussian(np.zeros(2), root=np.diag([1.0, 0.0])),
        of.Gaussian(np.zeros(2), root=np.diag([1.0, 1e-9])),
    )
    assert bures_map(mu, nu, on_failure="return").status == "degenerate"
    large = of.Gaussian(np.zeros(2), root=np.diag([1e30, 0.0]))
    assert bures_map(large, nu, on_failure="return").status == "degenerate"


@pytest.mark.parametrize("c", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("parallel", [True, False])
def test_the_map_between_turned_thin_gaussians_is_as_good_as_their_rounding(c: float, parallel: bool) -> None:
    """Where R2^T R1 is singular to rounding its polar factor might have the wrong sign, and T with it."""
    values = np.geomspace(1.0, c, 3)
    for seed in range(5):
        q, u, v, other = np.linalg.qr(normal(4, 3, 3, seed=seed))[0]
        R1, R2 = (q * values) @ u, ((q if parallel else other) * values * [1.5, 0.7, 2.0]) @ v
        with mpmath.workdps(80):
            S1, S2 = (exact(torch.tensor(r)) * exact(torch.tensor(r)).T for r in (R1, R2))
            inner = power(S1, 0.5) * S2 * power(S1, 0.5)
            T = power(S1, -0.5) * power((inner + inner.T) / 2, 0.5) * power(S1, -0.5)
            true = np.array(T.tolist(), dtype=float)
        f = bures_map(of.Gaussian(np.zeros(3), root=R1), of.Gaussian(np.zeros(3), root=R2))
        assert f.status == "ok"
        np.testing.assert_allclose(f.matrix, true, rtol=0, atol=1e-15 / c * abs(true).max())


def power(s: mpmath.matrix, p: float) -> mpmath.matrix:
    values, v = mpmath.eigsy(s)
    return v * mpmath.diag([x**p for x in values]) * v.T


def test_maps_between_gaussians_of_very_unlike_size_keep_their_digits() -> None:
    mu, nu = (
        of.Gaussian(np.zeros(2), root=1e20 * np.eye(2)),
        of.Gaussian(np.zeros(2), root=np.diag([1.0, 2.0])),
    )
    np.testing.assert_allclose(bures_map(mu, nu).matrix, np.diag([1e-20, 2e-20]), rtol=1e-14)


@pytest.mark.parametrize("ranks", [(1, 1, 1), (3, 3, 3), (2, 4, 3)])
def test_the_map_is_differentiable(ranks: tuple[int, int, int]) -> None:
    d, r1, r2 = ranks

    def f(R1: Tensor, R2: Tensor) -> Tensor:
        return bures_map(of.Gaussian(np.zeros(d), root=R1), of.Gaussian(np.zeros(d), root=R2)).matrix

    leaves = [gaussian(d, r, seed).root.clone().requires_grad_() for r, seed in ((r1, 0), (r2, 5))]
    assert gradcheck(f, leaves)
    with pytest.raises(DerivativeError, match="second"):
        torch.autograd.grad(f(*leaves).sum(), leaves, create_graph=True)


def test_an_affine_map_carries_particles_with_their_weights_and_labels() -> None:
    f = AffineMap(*(torch.tensor(x, dtype=torch.float64) for x in ([[2.0]], [1.0], [5.0])))
    mu = of.Particles([[1.0], [2.0]], [0.25, 0.75], [1, 0])
    nu = f(mu)
    assert nu.x.tolist() == [[5.0], [7.0]]
    assert nu.w.tolist() == [0.25, 0.75]
    assert nu.label.tolist() == [1.0, 0.0]
    with pytest.raises(InputError, match=r"R\^d"):
        f(of.Particles([[0.5]], space=of.Torus()))


def test_an_affine_map_refuses_points_of_another_dtype() -> None:
    f = AffineMap(torch.eye(2), torch.zeros(2), torch.ones(2))
    with pytest.raises(InputError, match="dtype"):
        f(np.zeros((1, 2)))
    assert "AffineMap" in repr(f)


# --- barycentres -------------------------------------------------------------------------------------


def members(d: int, k: int, condition: float, *batch: int, rank: int | None = None) -> of.Gaussian:
    v = np.linalg.qr(normal(*batch, k, d, d))[0]
    values = np.logspace(0, -np.log10(condition) / 2, d)
    values[d if rank is None else rank :] = 0
    return of.Gaussian(normal(*batch, k, d, seed=1), root=v * values)


def gradient(mus: of.Gaussian, w: Array, nu: of.Gaussian) -> tuple[float, float]:
    """The norm of sum_k w_k log_k at nu and the spread, by `bures_log`, one member after the other."""
    logs = [bures_log(nu, mus[i]) for i in range(len(w))]
    mean = sum((float(c) * u for c, u in zip(w[1:], logs[1:], strict=True)), float(w[0]) * logs[0])
    spread = sum(float(c) * float(nu.inner(u, u)) for c, u in zip(w, logs, strict=True))
    return float(nu.inner(mean, mean)) ** 0.5, spread**0.5


@pytest.mark.parametrize(("d", "condition"), [(1, 1.0), (2, 10.0), (2, 1e6), (3, 1e2), (5, 1e4), (8, 1e10)])
def test_the_gradient_vanishes_at_a_barycentre(d: int, condition: float) -> None:
    mus, w = members(d, 4, condition), np.array([0.1, 0.2, 0.3, 0.4])
    found = bures_barycentre(mus, w)
    gap, spread = gradient(mus, w, found.measure)
    assert found.status == "ok"
    assert gap < 2e-12 * spread
    assert float(found.residual) <= 1e-12
    assert found.iterations < 50


def test_the_barycentre_is_that_of_pot() -> None:
    mus, w = members(4, 5, 10.0), np.full(5, 0.2)
    mean, cov = ot.gaussian.bures_wasserstein_barycenter(
        mus.mean.numpy(), mus.cov.numpy(), weights=w, num_iter=1000, eps=1e-14
    )
    found = bures_barycentre(mus).measure
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.cov, cov, rtol=1e-6, atol=1e-8)


def test_commuting_covariances_average_their_roots() -> None:
    roots, w = np.array([[1.0, 2.0], [3.0, 0.5], [0.0, 4.0]]), np.array([0.5, 0.25, 0.25])
    found = bures_barycentre(of.Gaussian(np.zeros((3, 2)), root=roots[:, :, None] * np.eye(2)), w)
    assert found.iterations == 1
    torch.testing.assert_close(found.measure.cov, torch.diag(torch.tensor((w @ roots) ** 2)))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_singular_members_have_a_stationary_barycentre(rank: int) -> None:
    mus, w = members(4, 5, 10.0, rank=rank), np.full(5, 0.2)
    found = bures_barycentre(mus)
    gap, spread = gradient(mus, w, found.measure)
    assert gap < 1e-11 * spread


def test_one_invertible_member_among_singular_ones_is_enough() -> None:
    mus = members(3, 4, 10.0, rank=1)
    root = mus.root.clone()
    root[0] = torch.eye(3)
    found = bures_barycentre(of.Gaussian(mus.mean, root=root))
    assert float(torch.linalg.eigvalsh(found.measure.cov)[0]) > 1e-3


def test_in_float32_a_barycentre_of_narrow_covariances_has_no_holes() -> None:
    """Elsewhere such a covariance came out with zeros."""
    values = np.logspace(0, -6, 4).astype(np.float32) ** 0.5
    mus = of.Gaussian(np.zeros((2, 4), np.float32), root=np.stack([np.diag(values), np.diag(2 * values)]))
    found = bures_barycentre(mus)
    assert found.measure.dtype == torch.float32
    np.testing.assert_allclose(found.measure.cov.diagonal(), (1.5 * values) ** 2, rtol=1e-5)


def test_equal_members_are_their_own_barycentre() -> None:
    mu = gaussian(3, 3)
    found = bures_barycentre(of.Gaussian(mu.mean.expand(4, 3), root=mu.root.expand(4, 3, 3)))
    assert found.status == "ok"
    torch.testing.assert_close(found.measure.cov, mu.cov, rtol=1e-13, atol=1e-13)


def test_barycentres_of_a_batch_are_those_of_its_members() -> None:
    mus, w = members(3, 4, 1e4, 2), np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
    found = bures_barycentre(mus, w)
    assert found.measure.batch == (2,)
    for i in range(2):
        alone = bures_barycentre(mus[i], w[i])
        torch.testing.assert_close(found.measure[i].cov, alone.measure.cov, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_barycentres_may_be_of_any_size(scale: float) -> None:
    mus = members(3, 3, 100.0)
    big = bures_barycentre(of.Gaussian(scale * mus.mean, root=scale * mus.root)).measure
    torch.testing.assert_close(
        (big.root / scale) @ (big.root / scale).mT, bures_barycentre(mus).measure.cov, rtol=1e-9, atol=1e-10
    )


def test_the_covariance_of_a_barycentre_does_not_depend_on_the_means() -> None:
    mus = members(3, 2, 1e4)
    far = of.Gaussian(1e12 * np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), root=mus.root)
    found, expected = bures_barycentre(far), bures_barycentre(of.Gaussian(np.zeros((2, 3)), root=mus.root))
    assert torch.equal(found.measure.cov, expected.measure.cov)
    assert (
        gradient(of.Gaussian(np.zeros((2, 3)), root=mus.root), np.full(2, 0.5), expected.measure)[0] < 1e-11
    )


def test_a_missed_tolerance_is_reported_with_the_result() -> None:
    mus = members(2, 5, 1e6)
    mus = of.Gaussian(np.zeros((5, 2)), root=mus.root)
    with pytest.raises(ConvergenceError, match="3 iterations") as caught:
        bures_barycentre(mus, max_iter=3)
    found = bures_barycentre(mus, max_iter=3, on_failure="return")
    gap, spread = gradient(mus, np.full(5, 0.2), found.measure)
    assert found.status == caught.value.result.status == "max_iter"
    assert float(found.residual) == pytest.approx(gap / spread, rel=1e-9)


@pytest.mark.thorough
def test_a_barycentre_is_differentiable_in_means_roots_and_weights() -> None:
    mus, C = members(3, 4, 10.0), torch.tensor(normal(3, 3, seed=3))

    def f(mean: Tensor, root: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        nu = bures_barycentre(of.Gaussian(mean, root=root), w / w.sum(), tol=1e-14).measure
        return nu.mean, (C * nu.cov).sum()

    w = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    leaves = [x.clone().requires_grad_() for x in (mus.mean, mus.root, w)]
    assert gradcheck(f, leaves, eps=1e-5, atol=1e-7)


def test_what_depends_on_the_root_and_not_on_the_measure_has_no_derivative() -> None:
    mus = members(3, 4, 10.0)
    nu = bures_barycentre(of.Gaussian(mus.mean, root=mus.root.clone().requires_grad_())).measure
    with pytest.raises(DerivativeError, match="measure"):
        (torch.tensor(normal(3, 3, seed=3)) * nu.root).sum().backward()


@pytest.mark.parametrize(
    ("weights", "message"), [([0.5, 0.6], "sum"), ([1.5, -0.5], ">= 0"), ([0.2] * 5, "one per member")]
)
def test_weights_that_are_none_are_refused(weights: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        bures_barycentre(members(2, 2, 10.0), weights)


def test_one_gaussian_alone_is_refused() -> None:
    with pytest.raises(InputError, match="batch"):
        bures_barycentre(gaussian(2, 2))


def test_on_failure_is_raise_or_return() -> None:
    for call in (lambda: bures_barycentre(members(2, 2, 10.0), on_failure="ignore"),):
        with pytest.raises(InputError, match="on_failure"):
            call()
    with pytest.raises(InputError, match="on_failure"):
        bures_map(gaussian(2, 2), gaussian(2, 2), on_failure="ignore")
