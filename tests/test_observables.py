"""Observables against numpy and scipy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform
from scipy.stats import entropy
from torch import Tensor

import otflow as of
from otflow import observables as obs

Observable = Callable[[of.Measure], Tensor]
ALL: dict[str, Observable] = {
    "mean": obs.mean,
    "covariance": obs.covariance,
    "second_moment": obs.second_moment,
    "effective_rank": obs.effective_rank,
    "radius": obs.radius,
    "diameter": obs.diameter,
    "cluster_count": lambda mu: obs.cluster_count(mu, 0.6),
}


def weighted(seed: int = 0, batch: tuple[int, ...] = (), n: int = 30, d: int = 3) -> of.Particles:
    """A random cloud in which every third atom has no mass."""
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.1, 1.0, size=(*batch, n)) * (np.arange(n) % 3 > 0)
    return of.Particles(rng.normal(size=(*batch, n, d)), w=w / w.sum(-1, keepdims=True))


def massive(mu: of.Particles) -> np.ndarray:
    return mu.x[mu.w > 0].numpy()


def clusters_by_scipy(distances: np.ndarray, tol: float) -> int:
    return int(connected_components(distances <= tol, directed=False)[0])


@pytest.mark.parametrize("name", ALL)
def test_a_batch_gives_what_a_loop_over_its_members_gives(name: str) -> None:
    mu = weighted(batch=(2, 3))
    values = ALL[name](mu)
    for i in np.ndindex(2, 3):
        assert torch.allclose(values[i].double(), ALL[name](of.Particles(mu.x[i], w=mu.w[i])).double())


def test_moments_of_a_cloud_are_those_of_numpy() -> None:
    mu = weighted()
    x, w = mu.x.numpy(), mu.w.numpy()
    assert np.allclose(obs.mean(mu), np.average(x, axis=0, weights=w))
    assert np.allclose(obs.covariance(mu), np.cov(x.T, aweights=w, ddof=0))
    assert np.isclose(obs.second_moment(mu), np.average((x**2).sum(1), weights=w))


def test_moments_of_a_gaussian_are_those_of_its_quadrature_nodes() -> None:
    rng = np.random.default_rng(1)
    g = of.Gaussian(rng.normal(size=(4, 2)), root=rng.normal(size=(4, 2, 3)))
    nodes = of.Particles(*g.nodes())
    for f in (obs.mean, obs.covariance, obs.second_moment, obs.effective_rank):
        assert torch.allclose(f(g), f(nodes))


def test_a_uniform_density_on_a_grid_has_the_variance_of_its_cell_centres() -> None:
    n = 10
    grid = of.Grid(np.ones(n), [(np.arange(n) + 0.5) / n])
    assert math.isclose(obs.mean(grid).item(), 0.5)
    assert math.isclose(obs.covariance(grid).item(), (1 - n**-2) / 12)


def test_the_effective_rank_is_the_exponential_of_scipys_entropy() -> None:
    mu = weighted()
    values = np.linalg.eigvalsh(np.cov(mu.x.numpy().T, aweights=mu.w.numpy(), ddof=0))
    assert np.isclose(obs.effective_rank(mu), np.exp(entropy(values)))
    assert np.isclose(obs.effective_rank(of.Particles(1e-9 * mu.x, w=mu.w)), np.exp(entropy(values)))


def test_the_effective_rank_is_zero_without_spread_and_one_on_a_line() -> None:
    same, line = torch.tensor([[0.1, 0.3]] * 1000), torch.linspace(0, 1, 7)[:, None] * torch.ones(2)
    assert obs.effective_rank(of.Particles(same.double())).item() == 0
    assert math.isclose(obs.effective_rank(of.Particles(line.double())).item(), 1.0)


def test_a_narrow_gaussian_far_from_the_origin_keeps_its_effective_rank() -> None:
    narrow = of.Gaussian([1e6, 1e6], root=[[1e-20, 0.0], [0.0, 1e-20]])
    assert math.isclose(obs.effective_rank(narrow).item(), 2.0)


@pytest.mark.parametrize(
    "name", ["mean", "covariance", "second_moment", "effective_rank", "radius", "diameter"]
)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    mu = weighted(n=6)
    assert torch.autograd.gradcheck(lambda x: ALL[name](mu.at([x])), mu.x.clone().requires_grad_())


def test_the_gradient_of_the_effective_rank_is_finite_where_the_rank_collapses() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(obs.effective_rank(of.Particles(x)), x)
    assert torch.isfinite(slope).all()


def test_radius_and_diameter_see_the_atoms_with_mass_only() -> None:
    mu = weighted()
    assert np.isclose(obs.radius(mu), np.linalg.norm(massive(mu), axis=1).max())
    assert np.isclose(obs.diameter(mu), pdist(massive(mu)).max())
    assert obs.radius(of.Particles(mu.x)) > obs.radius(mu)


def test_the_diameter_keeps_its_digits_far_from_the_origin_and_at_any_scale() -> None:
    assert obs.diameter(of.Particles([[1e8, 0.0], [1e8, 1e-3], [1e8, 2e-3]])).item() == 2e-3
    assert math.isclose(obs.diameter(of.Particles([[8e307], [-8e307]])).item(), 1.6e308)


def test_the_diameter_on_a_sphere_is_an_angle() -> None:
    x = np.random.default_rng(2).normal(size=(20, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    angle = np.arccos(np.clip(x @ x.T, -1, 1)).max()
    assert np.isclose(obs.diameter(of.Particles(x, space=of.Sphere())), angle)


def test_distances_on_a_torus_go_around_it() -> None:
    mu = of.Particles([[0.05], [0.95], [0.3]], space=of.Torus(1.0))
    assert math.isclose(obs.diameter(mu).item(), 0.35)
    assert obs.cluster_count(mu, 0.11).item() == 2


@pytest.mark.parametrize("tol", [0.05, 0.1, 0.15, 0.2, 0.4])
def test_clusters_are_the_connected_components_of_scipy(tol: float) -> None:
    mu = weighted(seed=3, n=300, d=2)
    assert obs.cluster_count(mu, tol).item() == clusters_by_scipy(squareform(pdist(massive(mu))), tol)


def test_clusters_on_a_sphere_are_joined_by_angles() -> None:
    x = np.random.default_rng(4).normal(size=(60, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    expected = clusters_by_scipy(np.arccos(np.clip(x @ x.T, -1, 1)), 0.3)
    assert obs.cluster_count(of.Particles(x, space=of.Sphere()), 0.3).item() == expected


def test_an_atom_without_mass_is_no_bridge_between_clusters() -> None:
    assert obs.cluster_count(of.Particles([[0.0], [1.0], [2.0]], w=[0.5, 0.0, 0.5]), 1.0).item() == 2
    assert obs.cluster_count(of.Particles([[0.0], [1.0], [2.0]]), 1.0).item() == 1


def test_tiles_of_a_few_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = np.stack([np.random.default_rng(s).permutation(200) for s in (5, 6)])[..., None].astype(float)
    chains[1] += chains[1] > 120  # a gap of two
    mu = of.Particles(chains)
    monkeypatch.setattr("otflow.base.kernels.TILE", 1200)  # three rows of both members
    assert obs.cluster_count(mu, 1.0).tolist() == [1, 2]
    assert obs.diameter(mu).tolist() == [199.0, 200.0]


def test_a_shuffled_chain_is_joined_in_a_logarithmic_number_of_sweeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweeps = []
    hook = obs._hook
    monkeypatch.setattr(obs, "_hook", lambda *args: sweeps.append(1) or hook(*args))
    chain = np.random.default_rng(9).permutation(512)[:, None]
    assert obs.cluster_count(of.Particles(chain), 1.0).item() == 1
    assert len(sweeps) <= 1.5 * math.log2(512)


def test_no_matrix_of_all_pairs_is_ever_built(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    pairwise = of.Euclidean.pairwise

    def watched(space: of.Euclidean, x: Tensor, y: Tensor) -> Tensor:
        sizes.append(x.shape[1] * y.shape[1])
        return pairwise(space, x, y)

    monkeypatch.setattr(of.Euclidean, "pairwise", watched)
    mu = of.Particles(np.random.default_rng(7).normal(size=(2000, 2)))
    obs.diameter(mu)
    obs.cluster_count(mu, 0.1)
    assert max(sizes) <= 2**20 < mu.n**2


def test_the_dissipation_of_a_descent_is_the_rate_at_which_its_energy_falls() -> None:
    F = of.Interaction(lambda x, y: torch.exp((x * y).sum(-1)))
    field = of.SteepestDescent(F, of.Twisted(lambda mu, x: torch.exp(x @ x.mT).mean(-1)))
    mu, h = of.Particles(np.random.default_rng(8).normal(size=(5, 2))), 1e-5
    v = field(0.0, mu)
    rate = (F(mu.move(-h * v)) - F(mu.move(h * v))) / (2 * h)
    assert torch.isclose(obs.dissipation(mu, field, 0.0), rate, rtol=1e-7)


def test_the_dissipation_of_attention_is_its_mean_squared_speed() -> None:
    mu, A = weighted(d=2), torch.eye(2, dtype=torch.float64)
    field = of.SoftmaxAttention(A, A, lambda t: (1 + t) * A)
    speed = field(1.0, mu)[0].numpy()
    assert np.isclose(obs.dissipation(mu, field, 1.0), np.average((speed**2).sum(1), weights=mu.w))


def test_along_stacks_what_depends_on_time_and_measure() -> None:
    still = 0.0 * of.Perceptron(W=[[1.0]], U=[[1.0]])
    traj = of.flow(of.Particles([[[2.0]], [[3.0]]]), still, of.Euler(), t1=1.0, dt=0.5)
    values = obs.along(traj, lambda t, mu: t * obs.mean(mu)[..., 0])
    assert values.tolist() == [[0.0, 0.0], [1.0, 1.5], [2.0, 3.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: obs.radius(of.Gaussian([0.0], root=[[1.0]])), "radius looks at single atoms"),
        (lambda: obs.diameter(of.Grid([0.5, 0.5], [[0.0, 1.0]])), "diameter looks at single atoms"),
        (lambda: obs.cluster_count(of.Particles([[0.0]]), 0.0), r"radius = 0\.0: a finite number > 0"),
        (lambda: obs.mean(of.Particles([[0.0]], space=of.Torus())), "moments on a torus depend on where"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(of.InputError, match=message):
        call()
