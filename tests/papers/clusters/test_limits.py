"""Polytopes, the points of them at which tokens may end, hyperplanes, and subspaces."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.sparse.csgraph
import scipy.spatial.distance
import torch
from torch import Tensor

from otflow.base.errors import InputError
from otflow.measures import Particles
from otflow.papers import clusters

EYE = {d: torch.eye(d, dtype=torch.float64) for d in (1, 2, 3)}
PAPER = torch.tensor([[0.64709742, 0.81911926], [0.61210449, 0.63263484]], dtype=torch.float64)
CUBE = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=3)), dtype=torch.float64)


def rotation(d: int, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(np.linalg.qr(rng.normal(size=(d, d)))[0])


# --- hulls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 3])
def test_a_point_is_in_the_hull_if_it_is_a_mean_of_the_tokens(d: int) -> None:
    rng = np.random.default_rng(d)
    z, points = rng.normal(size=(15, d)), 1.3 * rng.normal(size=(60, d))
    inside = []
    for p in points:  # a linear programme, which knows nothing of hulls
        found = scipy.optimize.linprog(np.zeros(15), A_eq=np.vstack([z.T, np.ones(15)]), b_eq=[*p, 1.0])
        inside.append(found.status == 0)
    assert 5 < sum(inside) < 55
    assert (clusters.hull(z).excess(points) <= 0).tolist() == inside


def test_a_flat_cloud_has_a_hull_in_its_span() -> None:
    rng = np.random.default_rng(0)
    U, flat = rotation(5, rng), torch.from_numpy(rng.uniform(size=(30, 2)))
    plane, lifted = clusters.hull(flat), clusters.hull(flat @ U[:2] + 7.0)
    assert lifted.dimension == 2
    assert sorted(lifted.index.tolist()) == sorted(plane.index.tolist())
    assert math.isclose(lifted.volume, plane.volume, rel_tol=1e-10)
    assert lifted.excess(flat @ U[:2] + 7.0).max() < 1e-12
    off = lifted.vertices.mean(0) + 0.5 * U[4]
    assert math.isclose(lifted.excess(off), 0.5, rel_tol=1e-10)


def test_segments_and_points_are_hulls() -> None:
    line = clusters.hull([[3.0], [-1.0], [2.0]])
    assert (line.index.tolist(), line.volume.item(), line.dimension) == ([1, 0], 4.0, 1)
    assert line.excess([[3.5], [0.0], [-2.0]]).tolist() == pytest.approx([0.5, -1.0, 1.0])
    tilted = clusters.hull([[0.0, 0.0], [3.0, 4.0], [1.5, 2.0]])
    assert math.isclose(tilted.volume, 5.0)
    assert sorted(tilted.index.tolist()) == [0, 1]
    point = clusters.hull([[1.0, 2.0], [1.0, 2.0]])
    assert (point.dimension, len(point.vertices), point.volume.item()) == (0, 1, 0.0)
    assert point.excess([4.0, 6.0]) == 5.0


def test_volumes_are_those_of_simplices() -> None:
    for d in range(1, 6):
        z = np.vstack([np.zeros(d), np.eye(d), np.full((1, d), 0.5 / d)])
        assert math.isclose(clusters.hull(z).volume, 1 / math.factorial(d), rel_tol=1e-12)


@pytest.mark.parametrize(("size", "shift"), [(1.0, 2e10), (1e150, 0.0), (1e-150, 0.0), (1e-6, 1.0)])
def test_hulls_have_their_dimension_wherever_and_however_large(size: float, shift: float) -> None:
    z = size * np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.5]]) + shift
    K = clusters.hull(z)
    assert (K.dimension, sorted(K.index.tolist())) == (2, [0, 1, 2, 3])
    assert math.isclose(K.volume, size * size, rel_tol=1e-9)
    assert K.excess(z).abs().tolist() == pytest.approx([0, 0, 0, 0, size / 2], abs=1e-9 * size)


# --- the limit set -------------------------------------------------------------------------------------


@pytest.mark.parametrize("A", [EYE[3], torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))])
def test_a_centred_cube_has_one_point_in_every_face(A: Tensor) -> None:
    """8 vertices, 12 edges, 6 sides, and the centre: all of {-1, 0, 1}^3."""
    S = clusters.limit_set(CUBE, A)
    grid = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=3)), dtype=torch.float64)
    assert len(S) == 27
    assert torch.cdist(S, grid).amin(1).max() < 1e-12


def test_a_cube_beside_the_origin_has_them_on_its_far_side_only() -> None:
    S = clusters.limit_set(CUBE + torch.tensor([3.0, 0.0, 0.0]), EYE[3])
    assert len(S) == 9
    assert (S[:, 0] - 4).abs().max() < 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_nothing_in_a_polygon_is_missing_from_the_limit_set(seed: int) -> None:
    """Points all over a polygon: where the violation is small, a point of the set is near."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(9, 2)) + rng.normal(size=2) * (seed % 3)
    A = torch.from_numpy(rng.normal(size=(2, 2)))
    K = clusters.hull(z)
    S = clusters.limit_set(z, A)
    assert clusters.violation(S, K.vertices, A).abs().max() < 1e-9
    assert K.excess(S).max() < 1e-9
    inner = S[K.excess(S) < -1e-9]
    assert len(inner) == int(K.excess([0.0, 0.0]) < 0)
    assert not inner.abs().max() > 1e-9 if len(inner) else True

    share = np.linspace(0, 1, 4001)[:, None, None]
    v = K.vertices.numpy()
    boundary = ((1 - share) * v + share * np.roll(v, -1, 0)).reshape(-1, 2)
    weights = rng.dirichlet(0.5 * np.ones(len(v)), 20000)
    points = torch.from_numpy(np.vstack([boundary, weights @ v]))
    small = points[clusters.violation(points, K.vertices, A) < 1e-3 * (K.vertices @ A.mT).norm(dim=1).max()]
    if len(S):
        assert torch.cdist(small, S).amin(1).max() < 0.1
        step = (K.vertices - K.vertices.roll(-1, 0)).norm(dim=1).max() / 4000
        outer = S[K.excess(S) > -1e-9]
        assert torch.cdist(outer, torch.from_numpy(boundary)).amin(1).max() < step
    else:
        assert not len(small)


def test_flat_polytopes_have_a_limit_set_in_their_span() -> None:
    segment = clusters.limit_set([[1.0, -1.0], [1.0, 2.0]], EYE[2])
    assert segment.tolist() == [[1.0, -1.0], [1.0, 0.0], [1.0, 2.0]]
    beside = clusters.limit_set([[1.0, 1.0], [1.0, 2.0]], EYE[2])
    assert beside.tolist() == [[1.0, 2.0]]
    assert clusters.limit_set([[3.0, 4.0]], EYE[2]).tolist() == [[3.0, 4.0]]
    assert clusters.limit_set([[-4.0], [1.0]], EYE[1]).flatten().tolist() == [-4.0, 0.0, 1.0]


def test_groups_of_values_are_chains() -> None:
    assert clusters.distinct([0.0, 0.9, 1.8, 5.0], 1.0).tolist() == pytest.approx([0.9, 5.0])
    assert clusters.distinct([[0.0, 1.0], [0.0, 1.0], [2.0, 0.0]], 0.0).tolist() == [[0.0, 1.0], [2.0, 0.0]]


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_groups_are_the_components_of_the_graph_of_neighbours(d: int) -> None:
    rng = np.random.default_rng(d)
    for tol in (0.003, 0.05, 0.2, 0.4):
        x = rng.uniform(size=(120, d))
        x[60:] = x[:60] + 0.4 * tol * rng.normal(size=(60, d))
        near = scipy.spatial.distance.cdist(x, x) <= tol
        many, group = scipy.sparse.csgraph.connected_components(near)
        means = np.array([x[group == g].mean(0) for g in range(many)])
        found = clusters.distinct(x, tol)
        np.testing.assert_allclose(found, means[np.lexsort(means.T[::-1])], rtol=0, atol=1e-12)


def test_many_tokens_that_have_met_are_one_group_in_little_memory() -> None:
    rng = np.random.default_rng(0)
    spots = np.array([[0.0, 0.0], [3.0, 1.0]])[rng.integers(0, 2, 30_000)]
    assert clusters.distinct(spots, 0.1).tolist() == [[0.0, 0.0], [3.0, 1.0]]
    assert len(clusters.distinct(spots + 1e-3 * rng.normal(size=spots.shape), 0.02)) == 2


# --- the spectrum --------------------------------------------------------------------------------------


def test_the_published_matrix_has_the_published_spectrum() -> None:
    found = clusters.hyperplanes(EYE[2], EYE[2], PAPER)
    assert round(found.value.item(), 3) == 1.348
    assert round(float(PAPER.trace() - found.value), 3) == -0.068
    torch.testing.assert_close(PAPER @ found.direction, found.value * found.direction, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.normal @ PAPER, found.value * found.normal, rtol=1e-12, atol=0)
    assert math.isclose(found.normal @ found.direction, 1.0, rel_tol=1e-12)


@pytest.mark.slow
def test_with_the_published_matrix_tokens_end_on_two_lines() -> None:
    x = np.stack([np.random.default_rng(seed).uniform(-5, 5, (20, 2)) for seed in range(4)])
    normal = clusters.hyperplanes(EYE[2], EYE[2], PAPER).normal
    z = clusters.run(x, EYE[2], EYE[2], PAPER, t1=9.0, save_at=[0.0, 9.0]).stacked.coords[0]
    for before, after in zip(*(z @ normal), strict=True):
        values = clusters.distinct(after, 1e-2)
        assert len(clusters.distinct(before, 1e-2)) > 15
        assert len(values) == 2
        assert values[0] < 0 < values[1]
        assert torch.isclose(after[:, None], values, atol=1e-3, rtol=0).any(-1).all()


def test_the_third_value_is_a_point_of_rest_that_repels() -> None:
    """At the centre of an odd cloud; near it, tokens are driven away at a rate of order e^(2 lambda t)."""
    x = torch.tensor([[3.0, 1.0], [-3.0, -1.0], [1.0, 2.0], [-1.0, -2.0], [0.0, 0.0]], dtype=torch.float64)
    field, normal = (
        clusters.rescaled(EYE[2], EYE[2], PAPER),
        clusters.hyperplanes(EYE[2], EYE[2], PAPER).normal,
    )
    rates = []
    for t in (0.0, 1.0, 2.0):
        assert field(t, Particles(x))[0][4].abs().max() < 1e-12
        aside = torch.cat([x[:4], 1e-9 * torch.ones(1, 2, dtype=torch.float64)])
        rates.append(float(field(t, Particles(aside))[0][4] @ normal / (aside[4] @ normal)))
    growth = math.exp(2 * float(clusters.hyperplanes(EYE[2], EYE[2], PAPER).value))
    assert rates[0] > 1
    np.testing.assert_allclose(np.diff(rates)[1] / np.diff(rates)[0], growth, rtol=0.1)


@pytest.mark.slow(but_for=["-0.3"])
@pytest.mark.parametrize("last", [-0.3, 0.4])
def test_with_a_double_eigenvalue_tokens_end_at_a_polytope_times_a_line(last: float) -> None:
    rng = np.random.default_rng(4)
    U = rotation(3, rng)
    V = U @ torch.diag(torch.tensor([1.0, 1.0, last], dtype=torch.float64)) @ U.mT
    found = clusters.directions(EYE[3], EYE[3], V)
    assert math.isclose(found.value, 1.0, rel_tol=1e-12)
    torch.testing.assert_close(found.basis @ found.basis.mT, U[:, :2] @ U[:, :2].mT, rtol=0, atol=1e-12)
    z = clusters.run(rng.uniform(-5, 5, (30, 3)), EYE[3], EYE[3], V, t1=12.0, save_at=[12.0]).final
    P = clusters.attention_matrix(12.0, z, EYE[3], EYE[3], V)
    y = z.coords[0] @ found.basis
    vertices = y[clusters.leaders(P)]
    A = clusters.metric(EYE[3], EYE[3]) @ found.basis
    assert clusters.violation(y, vertices, A).max() < 0.02
    assert torch.cdist(y, clusters.limit_set(vertices, A)).amin(1).max() < 0.02
    assert len(clusters.distinct(y, 0.02)) == len(vertices) == clusters.rank(P)
    assert len(clusters.distinct(z.coords[0] @ U[:, 2], 0.02)) > len(vertices)  # no clusters across


def test_directions_of_the_identity_are_all() -> None:
    found = clusters.directions(EYE[3], EYE[3], 2 * EYE[3])
    assert found.value == 2
    torch.testing.assert_close(found.basis @ found.basis.mT, EYE[3])


def test_the_metric_is_the_root() -> None:
    Q = torch.from_numpy(np.random.default_rng(8).normal(size=(3, 3)))
    A = clusters.metric(Q, Q)
    np.testing.assert_allclose(A, scipy.linalg.sqrtm((Q.mT @ Q).numpy()), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(A @ A, Q.mT @ Q, rtol=1e-12, atol=1e-12)


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clusters.hyperplanes(EYE[2], EYE[2], EYE[2]), "simple"),
        (lambda: clusters.hyperplanes(EYE[2], EYE[2], -EYE[2]), "> 0"),
        (lambda: clusters.hyperplanes(EYE[2], EYE[2], [[0.0, 1.0], [-1.0, 0.0]]), "real"),
        (lambda: clusters.hyperplanes(EYE[2], EYE[2], [[1.0, 0.0], [0.0, -2.0]]), "modulus"),
        (lambda: clusters.hyperplanes(EYE[2], -EYE[2], PAPER), "<Q phi, K phi>"),
        (lambda: clusters.hyperplanes(EYE[2], EYE[2], EYE[3]), "V.shape"),
        (lambda: clusters.directions(EYE[2], EYE[2], [[1.0, 1.0], [0.0, 1.0]]), "paranormal"),
        (lambda: clusters.directions(EYE[2], EYE[2], [[2.0, 1.0], [0.0, 1.0]]), "paranormal"),
        (lambda: clusters.directions(EYE[2], EYE[2], -EYE[2]), "> 0"),
        (lambda: clusters.directions(EYE[2], -EYE[2], EYE[2]), "positive definite"),
        (lambda: clusters.metric(EYE[2], [[1.0, 1.0], [0.0, 1.0]]), "symmetric"),
        (lambda: clusters.metric([[1.0, 0.0]], [[1.0, 0.0]]), "positive definite"),
        (lambda: clusters.metric(EYE[2], EYE[3]), "agree"),
        (lambda: clusters.hull(np.zeros((2, 3, 4))), "z.shape"),
        (lambda: clusters.hull(np.random.default_rng(0).normal(size=(30, 20))), "dimension 20"),
        (lambda: clusters.hull([[0.0, 0.0], [1.0, 0.0]]).excess([1.0]), "points.shape"),
        (lambda: clusters.violation([[1.0]], [[1.0, 2.0]], EYE[2]), "z.shape"),
        (lambda: clusters.violation([[1.0, 2.0]], [[1.0]], EYE[2]), "vertices.shape"),
        (lambda: clusters.limit_set([[1.0, 2.0]], [[1.0, 0.0]]), "independent columns"),
        (lambda: clusters.limit_set([[1.0, 2.0]], EYE[3]), "independent columns"),
        (lambda: clusters.distinct([[[1.0]]], 0.1), "values.shape"),
        (lambda: clusters.distinct([1.0], -0.1), "radius"),
        (lambda: clusters.distinct(np.zeros((3, 0)), 1.0), "values.shape"),
        (lambda: clusters.hull([[0.0, 0.0], [1e200, 0.0], [0.0, 1e200]]), "volume"),
    ],
)
def test_wrong_input_is_named(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]
