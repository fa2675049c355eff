"""Gaussians held by roots: constructors, singular covariances, quadrature."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import otflow as of
from tests.samples import normal


def moment(powers: tuple[int, ...]) -> float:
    """E of a monomial in independent standard normals: a product of double factorials."""
    odd = any(k % 2 for k in powers)
    return 0.0 if odd else float(math.prod(math.prod(range(k - 1, 0, -2)) for k in powers))


def quadrature(r: int, powers: tuple[int, ...]) -> float:
    x, w = of.Gaussian(np.zeros(r), root=np.eye(r)).nodes()
    return float((w * torch.stack([x[:, i] ** k for i, k in enumerate(powers)]).prod(0)).sum())


@pytest.mark.parametrize(("r", "degree"), [(1, 12), (2, 8), (3, 6)])
def test_gauss_hermite_nodes_are_exact_for_polynomials(r: int, degree: int) -> None:
    for powers in itertools.product(range(degree + 1), repeat=r):
        if sum(powers) <= degree:
            assert quadrature(r, powers) == pytest.approx(moment(powers), rel=1e-11, abs=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("r", [4, 5, 6, 9])
def test_stroud_nodes_are_exact_up_to_degree_five(r: int) -> None:
    monomials = list(itertools.combinations_with_replacement(range(r), 5))
    for degree in range(6):
        for variables in {p[:degree] for p in monomials}:
            powers = tuple(variables.count(i) for i in range(r))
            assert quadrature(r, powers) == pytest.approx(moment(powers), rel=1e-12, abs=1e-12)


def test_stroud_nodes_are_not_exact_for_degree_six() -> None:
    assert quadrature(5, (6, 0, 0, 0, 0)) != pytest.approx(15.0, rel=1e-3)


@pytest.mark.parametrize("r", [1, 2, 3, 4, 7])
def test_nodes_have_the_mean_and_the_covariance(r: int) -> None:
    g = of.Gaussian(normal(2, 4), root=normal(2, 4, r))
    x, w = g.nodes()
    assert w.shape == x.shape[:-1] == (2, len(w[0]))
    torch.testing.assert_close((w[..., None] * x).sum(-2), g.mean)
    centred = x - g.mean[:, None]
    torch.testing.assert_close((w[..., None] * centred).mT @ centred, g.cov)


def test_the_number_of_stroud_nodes_grows_quadratically() -> None:
    assert of.Gaussian(np.zeros(10), root=np.eye(10)).nodes()[0].shape == (201, 10)


# --- constructors ------------------------------------------------------------------------------------


def test_a_covariance_comes_back() -> None:
    a = normal(3, 4, 4)
    cov = a @ np.swapaxes(a, -1, -2)
    g = of.Gaussian(np.zeros(4), cov=cov)
    assert (tuple(g.batch), g.d) == ((3,), 4)
    np.testing.assert_allclose(g.cov, cov, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(g.root, g.root.mT)


@pytest.mark.parametrize("values", [(4.0, 1.0, 0.0), (2.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1e-300, 1e-300, 0.0)])
def test_a_singular_covariance_is_welcome(values: tuple[float, ...]) -> None:
    turn = np.linalg.qr(normal(3, 3))[0]
    cov = (turn * np.array(values)) @ turn.T
    g = of.Gaussian(np.zeros(3), cov=(cov + cov.T) / 2)
    np.testing.assert_allclose(g.cov, cov, rtol=0, atol=1e-15 * max(values))
    assert bool(torch.isfinite(g.root).all())


def test_an_eigenvalue_within_rounding_of_zero_is_taken_for_zero() -> None:
    g = of.Gaussian(np.zeros(2), cov=np.diag([1.0, -1e-12]))
    assert g.cov.tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_a_negative_eigenvalue_is_refused_at_every_scale(scale: float) -> None:
    with pytest.raises(of.InputError, match="min eigenvalue of cov = -"):
        of.Gaussian(np.zeros(2), cov=scale * np.diag([1.0, -1e-6]))


def test_the_tolerance_for_negative_eigenvalues_can_be_relaxed() -> None:
    assert of.Gaussian(np.zeros(2), cov=np.diag([1.0, -1e-6]), rtol=1e-5).root[1, 1].item() == 0.0


def test_one_bad_member_of_a_batch_is_enough_for_refusal() -> None:
    cov = np.stack([100 * np.eye(2), np.diag([1.0, -0.5])])
    with pytest.raises(of.InputError, match=r"min eigenvalue of cov = -0\.5"):
        of.Gaussian(np.zeros(2), cov=cov)


def test_the_root_of_a_covariance_is_differentiable_at_the_identity() -> None:
    s = torch.eye(3, dtype=torch.float64, requires_grad=True)
    of.Gaussian(torch.zeros(3, dtype=torch.float64), cov=s).root.diagonal().sum().backward()
    torch.testing.assert_close(s.grad, 0.5 * torch.eye(3, dtype=torch.float64))


def test_mean_and_root_broadcast() -> None:
    g = of.Gaussian(normal(5, 1, 2), root=normal(3, 2, 2))
    assert g.batch == (5, 3)
    assert g.mean.shape == (5, 3, 2)
    assert g.root.shape == (5, 3, 2, 2)
    assert repr(g) == "Gaussian(d=2, batch=(5, 3))"


def test_a_root_may_be_thin_or_wide() -> None:
    for r in (1, 2, 5):
        R = normal(3, r)
        np.testing.assert_allclose(of.Gaussian(np.zeros(3), root=R).cov, R @ R.T, rtol=1e-14, atol=1e-15)


def test_other_coordinates_make_another_gaussian() -> None:
    g = of.Gaussian(normal(2), root=np.eye(2))
    m, R = torch.tensor(normal(4, 2)), torch.tensor(normal(4, 2, 2))
    h = g.at([m, R])
    assert h.batch == (4,)
    assert torch.equal(h.coords[0], m)
    assert torch.equal(h.coords[1], R)


def test_a_move_adds_to_mean_and_root() -> None:
    g = of.Gaussian(normal(2), root=np.eye(2))
    u = of.Tangent([torch.ones(2).double(), torch.full((2, 2), 0.5).double()])
    h = g.move(u)
    torch.testing.assert_close(h.mean, g.mean + 1)
    torch.testing.assert_close(h.root, g.root + 0.5)


def test_the_inner_product_is_that_of_affine_fields_in_l2() -> None:
    """E <b + B(x - m), c + C(x - m)> by quadrature."""
    g = of.Gaussian(normal(3), root=normal(3, 3, seed=1))
    b, c = (torch.tensor(normal(3, seed=s)) for s in (2, 3))
    B, C = (torch.tensor(normal(3, 3, seed=s)) for s in (4, 5))
    x, w = g.nodes()
    y = x - g.mean
    expected = (w * ((b + y @ B.mT) * (c + y @ C.mT)).sum(-1)).sum()
    found = g.inner(of.Tangent([b, B @ g.root]), of.Tangent([c, C @ g.root]))
    torch.testing.assert_close(found, expected)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "root of another height": (np.zeros(2), np.eye(3), r"root\.shape = \(3, 3\)"),
    "root a vector": (np.zeros(2), np.ones(2), r"root\.shape = \(2,\)"),
    "root without columns": (np.zeros(2), np.zeros((2, 0)), r"root\.shape = \(2, 0\)"),
    "mean a number": (0.0, [[1.0]], "mean has shape"),
    "batches that do not fit": (np.zeros((2, 2)), np.ones((3, 2, 2)), "batch axes"),
    "nan in the mean": ([np.nan], [[1.0]], r"mean\[0\] = nan"),
    "nan in the root": ([0.0], [[np.nan]], r"root\[0, 0\] = nan"),
    "root of another dtype": (np.zeros(1), np.ones((1, 1), dtype=np.float32), "root = .*float32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_roots_are_refused(name: str) -> None:
    mean, root, words = WRONG[name]
    with pytest.raises(of.InputError, match=words):
        of.Gaussian(mean, root=root)


WRONG_COV: dict[str, tuple[Any, str]] = {
    "not square": (np.ones((2, 3)), r"cov\.shape = \(2, 3\)"),
    "a vector": (np.ones(2), r"cov\.shape = \(2,\)"),
    "empty": (np.ones((0, 0)), r"cov\.shape = \(0, 0\)"),
    "asymmetric": (np.array([[1.0, 0.5], [0.0, 1.0]]), "asymmetry"),
    "of another size": (np.eye(3), r"\.shape = \(3, 3\)"),
    "nan": (np.array([[np.nan, 0.0], [0.0, 1.0]]), r"cov\[0, 0\] = nan"),
}


@pytest.mark.parametrize("name", WRONG_COV)
def test_wrong_covariances_are_refused(name: str) -> None:
    cov, words = WRONG_COV[name]
    with pytest.raises(of.InputError, match=words):
        of.Gaussian(np.zeros(2), cov=cov)


# --- flags ---------------------------------------------------------------------------------------------


def rooted(mean: torch.Tensor, root: torch.Tensor) -> of.Gaussian:
    return of.Gaussian(mean, root=root)


CARRIERS: dict[str, tuple[Any, ...]] = {  # how a measure is made of tensors, and these
    "particles": (lambda x, w: of.Particles(x, w / w.sum()), normal(3, 2), np.ones(3)),
    "gaussian": (rooted, np.zeros(2), np.eye(2)),
    "gaussian in four dimensions": (rooted, np.zeros(4), np.eye(4)),
    "grid": (lambda density: of.Grid(density, [(np.arange(4) + 0.5) / 4]), np.ones(4)),
    "quantiles": (of.Quantiles, np.array([0.0, 1.0, 3.0]), np.array([0.0, 0.5, 1.0])),
}


@pytest.mark.parametrize("name", CARRIERS)
def test_a_measure_requires_grad_exactly_if_its_nodes_do(name: str) -> None:
    make, *arrays = CARRIERS[name]
    for flags in itertools.product((False, True), repeat=len(arrays)):
        parts = [torch.tensor(a, requires_grad=f) for a, f in zip(arrays, flags, strict=True)]
        mu = make(*parts)
        assert mu.requires_grad == any(a.requires_grad for a in (*mu.coords, *mu.nodes()))
        torch.testing.assert_close(mu.probe(), mu.nodes()[0][..., :1, :], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("d", [3, 4])
def test_no_quadrature_is_built_to_learn_that_nothing_requires_grad(
    d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[of.Gaussian] = []
    nodes = of.Gaussian.nodes
    monkeypatch.setattr(of.Gaussian, "nodes", lambda self: (built.append(self), nodes(self))[1])
    eye = np.eye(d)
    bell, pull = (
        of.Gaussian(np.zeros(d), root=eye),
        of.SteepestDescent(of.QuadraticPotential(eye), of.Wasserstein()),
    )
    for field in (of.SoftmaxAttention(eye, eye, -eye), pull):
        of.flow(bell, field, of.Euler(), t1=0.2, dt=0.1)
    for energy in (of.Potential(lambda x: x.square().sum(-1)), of.QuadraticInteraction(eye)):
        assert not energy.wants_graph(bell)
    assert not built
