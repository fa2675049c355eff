"""Twisted distances between their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, linalg
from torch import Tensor

import otflow as of
from otflow.base.errors import ConvergenceError, InputError, NotFiniteError
from otflow.metrics import Partition, Twisted, distance, path_action, solve_twisted
from otflow.metrics.bounds import GroundDistances, ball_factor, log_growth, lower_bound
from otflow.transport import conditional_wasserstein, wasserstein

M = np.array([[2.0, 0.3], [0.3, 1.0]])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def ones(mu: of.Measure, x: Tensor) -> Tensor:
    return torch.ones_like(x[..., 0])


def clouds(n: int = 5, m: int = 5, d: int = 2, scale: float = 0.5) -> tuple[of.Particles, of.Particles]:
    return of.Particles(scale * normal(n, d)), of.Particles(scale * normal(m, d, seed=1))


# --- where the distance is known ---------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5, 5), (4, 7)])
def test_a_constant_weight_scales_w2(sizes: tuple[int, int]) -> None:
    mu, nu = clouds(*sizes)
    way = solve_twisted(mu, nu, Twisted(lambda mu, x: 3 * ones(mu, x)), lower=3.0)
    exact = math.sqrt(3) * wasserstein(mu, nu).item()
    assert way.lower.item() == pytest.approx(exact, rel=1e-12)
    assert way.refinements.tolist() == pytest.approx([exact] * 3, rel=1e-9)


def test_a_matrix_alone_is_w2_between_images() -> None:
    mu, nu = clouds(4, 6)
    metric, root = Twisted(matrix=M), linalg.sqrtm(M).real
    exact = wasserstein(of.Particles(mu.x.numpy() @ root), of.Particles(nu.x.numpy() @ root)).item()
    way = solve_twisted(mu, nu, metric)
    assert way.upper.item() == way.lower.item() == pytest.approx(exact, rel=1e-12)
    assert distance(mu, nu, metric).item() == pytest.approx(exact, rel=1e-12)
    assert path_action(way.path, metric).item() == pytest.approx(exact**2, rel=1e-12)
    weighted = solve_twisted(mu, nu, Twisted(ones, matrix=M), lower=1.0)
    assert weighted.upper.item() == pytest.approx(exact, rel=1e-9)
    assert distance(mu, nu, Twisted()).item() == pytest.approx(wasserstein(mu, nu).item(), rel=1e-12)


def test_gaussians_twisted_by_a_matrix_have_the_bures_distance_of_their_images() -> None:
    root = linalg.sqrtm(M).real
    S, T, a, b = normal(2, 2), normal(2, 2, seed=1), normal(2, seed=2), normal(2, seed=3)
    image = [of.Gaussian(root @ m, root=root @ R) for m, R in ((a, S), (b, T))]
    way = solve_twisted(of.Gaussian(a, root=S), of.Gaussian(b, root=T), Twisted(matrix=M))
    exact = distance(image[0], image[1], of.Wasserstein()).item()
    assert way.upper.item() == way.lower.item() == pytest.approx(exact, rel=1e-12)
    assert path_action(way.path, Twisted(matrix=M)).item() == pytest.approx(exact**2, rel=1e-10)
    end = way.path[-1]
    assert isinstance(end, of.Gaussian)
    torch.testing.assert_close(end.cov, torch.as_tensor(T @ T.T))
    flat = solve_twisted(of.Gaussian(a, root=S[:, :1]), of.Gaussian(b, root=T), Twisted())
    near = distance(of.Gaussian(a, root=S[:, :1]), of.Gaussian(b, root=T), of.Wasserstein())
    torch.testing.assert_close(flat.upper, near)


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (-1.0, 2.0)])
def test_one_particle_on_the_line_goes_the_integral_of_the_root_of_the_weight(a: float, b: float) -> None:
    way = solve_twisted(
        of.Particles([[a]]), of.Particles([[b]]), Twisted(lambda mu, x: torch.exp(x[..., 0])), levels=4
    )
    exact = 2 * (math.exp(b / 2) - math.exp(a / 2))
    gaps = way.refinements - exact
    assert bool((gaps > 0).all())
    assert (gaps[:-1] / gaps[1:]).tolist() == pytest.approx([4, 4, 4], rel=0.02)  # second order in the pieces
    assert gaps[-1].item() < 1e-4 * exact
    assert way.lower.item() == 0


def test_one_particle_in_the_plane_takes_the_bent_way_of_the_half_plane() -> None:
    """The weight 1 / y^2 is the hyperbolic plane."""
    p, q = (0.0, 1.0), (2.0, 0.5)
    metric = Twisted(lambda mu, x: x[..., 1] ** -2)
    way = solve_twisted(of.Particles([p]), of.Particles([q]), metric, levels=4)
    exact = math.acosh(1 + ((p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2) / (2 * p[1] * q[1]))
    assert way.upper.item() == pytest.approx(exact, rel=2e-4)
    assert way.upper.item() > exact
    centre = (q[0] ** 2 + q[1] ** 2 - p[0] ** 2 - p[1] ** 2) / (2 * (q[0] - p[0]))
    radii = [math.hypot(one.coords[0][0, 0].item() - centre, one.coords[0][0, 1].item()) for one in way.path]
    assert radii == pytest.approx([math.hypot(p[0] - centre, p[1])] * len(radii), rel=2e-3)


@pytest.mark.thorough
def test_two_particles_in_step_see_a_hyperbolic_cosine() -> None:
    """At +-x both weigh (exp(x^2) + exp(-x^2)) / 2."""
    way = solve_twisted(
        of.Particles([[-0.3], [0.3]]), of.Particles([[-1.2], [1.2]]), Twisted(Partition([[1.0]])), levels=4
    )
    exact = integrate.quad(lambda x: math.sqrt(math.cosh(x**2)), 0.3, 1.2)[0]
    assert 0 < way.upper.item() / exact - 1 < 1e-4
    assert way.lower.item() <= exact


@pytest.mark.thorough
def test_two_particles_out_of_step_agree_with_the_geodesic_equation() -> None:
    """g_i = w_i a_i(x): geodesics of a diagonal metric on R^2, by scipy's boundary value solver."""
    A, w, start, end = -0.8, np.array([0.3, 0.7]), np.array([0.1, 0.9]), np.array([1.3, 1.6])

    def metric(x: np.ndarray) -> np.ndarray:
        return np.stack([w[i] * sum(w[j] * np.exp(A * x[i] * x[j]) for j in range(2)) for i in range(2)])

    def slope(x: np.ndarray) -> np.ndarray:  # d g_i / d x_j
        h, out = 1e-6, np.empty((2, 2, x.shape[-1]))
        for j in range(2):
            e = np.zeros((2, 1))
            e[j] = h
            out[:, j] = (metric(x + e) - metric(x - e)) / (2 * h)
        return out

    def geodesic(_: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, v = y[:2], y[2:]
        g, dg = metric(x), slope(x)
        pull = np.einsum("ijt,it->jt", dg, v**2) / 2 - np.einsum("ijt,jt->it", dg, v) * v
        return np.concatenate([v, pull / g])

    t = np.linspace(0, 1, 20)
    guess = np.concatenate([start[:, None] + t * (end - start)[:, None], np.tile((end - start)[:, None], 20)])
    found = integrate.solve_bvp(
        geodesic, lambda a, b: np.concatenate([a[:2] - start, b[:2] - end]), t, guess, tol=1e-8
    )
    assert found.success
    exact = math.sqrt((metric(found.y[:2])[:, 0] * found.y[2:, 0] ** 2).sum())
    mu, nu = (of.Particles(z[:, None], w) for z in (start, end))
    way = solve_twisted(mu, nu, Twisted(Partition([[A]])), levels=4)
    assert way.upper.item() == pytest.approx(exact, rel=1e-5)
    assert way.lower.item() < exact


def test_one_particle_on_the_sphere_goes_along_the_equator_at_the_weight_it_sees() -> None:
    """Partition(I) weighs exp(1) at a single atom."""
    x, y = np.array([[1.0, 0, 0]]), np.array([[0, 1.0, 0]])
    mu, nu = (of.Particles(z, space=of.Sphere()) for z in (x, y))
    way = solve_twisted(mu, nu, Twisted(Partition(np.eye(3))))
    assert way.upper.item() == pytest.approx(math.pi / 2 * math.exp(0.5), rel=1e-9)
    assert way.lower.item() == pytest.approx(math.pi / 2, rel=1e-12)  # W1, since |A| <= 2


# --- bounds ------------------------------------------------------------------------------------------------

METRICS: dict[str, Callable[[of.Measure, Tensor], Tensor]] = {
    "attraction": Partition(np.eye(2)),
    "repulsion": Partition(-np.eye(2)),
    "rotation": Partition(np.array([[0.0, 1.0], [-1.0, 0.0]])),
    "wave": lambda mu, x: 1 + 0.5 * torch.sin(3 * x[..., 0]),
}


@pytest.mark.parametrize("matrix", [None, M])
@pytest.mark.parametrize("sizes", [(5, 5), (3, 4)])
@pytest.mark.parametrize("name", METRICS)
def test_bounds_are_in_order_and_improve(
    name: str, sizes: tuple[int, int], matrix: np.ndarray | None
) -> None:
    mu, nu = clouds(*sizes)
    metric = Twisted(METRICS[name], matrix=matrix)
    way = solve_twisted(mu, nu, metric, nodes=4)
    assert bool((way.refinements.diff() < 0).all())
    assert 0 <= way.lower.item() <= way.upper.item() == way.refinements[-1].item()
    assert (way.lower.item() > 0) == (name != "wave")
    full = Twisted(METRICS[name], matrix=matrix, frozen=False)
    action = path_action(way.path, full).item()  # equal times, so not less than the squared length
    assert way.upper.item() ** 2 <= action < way.upper.item() ** 2 * (1 + 1e-3)
    straight = [way.path[0], way.path[-1]]
    assert way.upper.item() < path_action(straight, full).sqrt().item()


def test_the_path_joins_the_measures() -> None:
    mu, nu = clouds(3, 5)
    way = solve_twisted(mu, nu, Twisted(Partition(np.eye(2))), levels=2)
    assert len(way.path) == 17
    assert wasserstein(way.path[0], mu).item() == 0
    assert wasserstein(way.path[-1], nu).item() == 0
    assert way.distance is way.upper


def test_the_weight_along_the_way_bounds_the_distance_on_both_sides() -> None:
    """sqrt(min a) W2 <= d <= sqrt(max a along the straight way) W2."""
    mu, nu = clouds()
    way = solve_twisted(mu, nu, Twisted(METRICS["wave"]), lower=0.5)
    w2 = wasserstein(mu, nu).item()
    assert way.lower.item() == pytest.approx(math.sqrt(0.5) * w2, rel=1e-12)
    assert way.upper.item() < math.sqrt(1.5) * w2


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 3.0), definite=st.booleans(), n=st.integers(1, 5))
def test_the_mean_inverse_weight_in_a_ball_is_at_most_what_the_bound_uses(
    seed: int, scale: float, definite: bool, n: int
) -> None:
    """The inequality from which the lower bound follows, on random measures and some hard ones."""
    rng = np.random.default_rng(seed)
    A = scale * rng.standard_normal((2, 2))
    A = A @ A.T if definite else A
    c = rng.standard_normal(2) * rng.integers(0, 2)
    x = rng.standard_normal((n, 2))
    x /= (
        np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
        if seed % 2
        else np.linalg.norm(x, axis=1, keepdims=True)
    )
    w = rng.dirichlet(np.full(n, 0.5))
    y = c + x
    inverse = (w / np.maximum(np.exp(y @ A.T @ y.T) @ w, 1e-300)).sum()
    norm = np.linalg.norm(A, 2)
    growth = log_growth(torch.tensor(norm), torch.tensor(definite)).item()
    log = -c @ A @ c + np.linalg.norm(A @ c) + np.linalg.norm(A.T @ c) + growth
    assert math.log(inverse) <= log + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scale", [0.03, 0.3, 1.0])
def test_the_lower_bound_itself_is_below_the_length_of_every_path_found(scale: float, sign: int) -> None:
    """Before it is cut at the upper bound, for six random pairs at once."""
    mu, nu = (of.Particles(scale * normal(6, 3, 2, seed=seed)) for seed in (4, 5))
    w = GroundDistances(wasserstein(mu, nu, p=1), wasserstein(mu, nu))
    weight = Partition(sign * np.eye(2))
    bound = lower_bound(weight, Twisted(weight), mu, nu, w)
    way = solve_twisted(mu, nu, Twisted(weight), levels=1, tol=1e-6)
    assert bool((bound < way.upper).all())
    assert bool((bound > 0).all())
    if scale == 0.03:  # nearly flat: as good as W1 is for W2
        assert bool((bound > 0.9 * w.w1).all())


def test_the_growth_of_a_definite_matrix_is_the_maximum() -> None:
    for z in (0.5, 2.0, 2.05, 3.0, 10.0, 40.0):
        s = np.linspace(0, z, 200_001)
        top = np.log((np.cosh(s) - s / z * np.sinh(s)).max())
        value = log_growth(torch.tensor(z, dtype=torch.float64), torch.tensor(True)).item()
        assert top - 1e-12 <= value <= top + 1e-5
    assert math.isfinite(log_growth(torch.tensor(1e5), torch.tensor(True)).item())


@pytest.mark.parametrize("x", [0.2, 1.0, 3.0])
def test_the_lower_bound_survives_weights_that_vanish_far_away(x: float) -> None:
    """A single atom and A = -1: int exp(-y^2 / 2) dy, which stays below sqrt(2 pi) however far it is."""
    way = solve_twisted(of.Particles([[-x]]), of.Particles([[x]]), Twisted(Partition([[-1.0]])))
    exact = math.sqrt(2 * math.pi) * math.erf(x / math.sqrt(2))
    assert 0 < way.lower.item() < exact < way.upper.item() * (1 + 1e-12)
    assert way.upper.item() == pytest.approx(exact, rel=2e-3)


@pytest.mark.thorough
def test_close_clouds_far_away_have_bounds_that_are_close() -> None:
    x = np.array([3.0, 0.0]) + 0.01 * normal(4, 2)
    mu, nu = of.Particles(x), of.Particles(x + np.array([0.0, 0.02]))
    for sign in (1, -1):
        way = solve_twisted(mu, nu, Twisted(Partition(sign * np.eye(2))))
        assert 0.7 < (way.lower / way.upper).item() <= 1


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_factor_of_a_ball_is_never_more_than_a_pair_of_atoms_allows(seed: int, definite: bool) -> None:
    """Two atoms at distance D, R from the centre c: the worst measures in a ball, searched at random, say how
    steep f may be there; it may not rise by more than on the way straight across, or to the edge and back."""
    rng = np.random.default_rng(seed)
    A = 0.6 * rng.standard_normal((2, 2))
    A = A @ A.T if definite else A
    c, R, D = rng.standard_normal(2), 0.5, 0.4
    factor = ball_factor(*(torch.as_tensor(z, dtype=torch.float64) for z in (A, c, R, D))).item()
    best = 0.0
    for rho in np.linspace(R, R + D / 2, 41)[1:]:
        angles, p = rng.uniform(0, 2 * np.pi, (20_000, 2)), rng.uniform(0, 1, 20_000)
        x = rho * np.stack([np.cos(angles), np.sin(angles)], -1)
        w = np.stack([p, 1 - p], -1)
        y = c + (w[..., None] * x).sum(1)  # the mean, which the weight is least at
        inverse = (w * np.exp(-np.einsum("nid,nd->ni", (c + x) @ A.T, y))).sum(-1).max()
        best = max(best, min(D, 2 * (rho - R)) / D / math.sqrt(inverse))
    assert factor <= best * 1.001
    assert factor > 0.4 * best


def test_a_ball_that_is_small_enough_has_factor_one() -> None:
    A, c = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    near, far = (ball_factor(A, c, torch.tensor(r), torch.tensor(0.2)).item() for r in (1.0, 3.0))
    assert near == 1.0
    assert far < 0.2


# --- kinds of input ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_labels_keep_their_mass() -> None:
    x, y, label = 0.5 * normal(6, 2), 0.5 * normal(6, 2, seed=1), [0, 0, 1, 1, 2, 2]
    mu, nu = of.Particles(x, label=label), of.Particles(y[::-1].copy(), label=label[::-1])
    plain = solve_twisted(mu, nu, Twisted(ones), lower=1.0)
    assert plain.upper.item() == pytest.approx(conditional_wasserstein(mu, nu).item(), rel=1e-9)
    way = solve_twisted(mu, nu, Twisted(Partition(np.eye(2))))
    free = solve_twisted(of.Particles(x), of.Particles(y), Twisted(Partition(np.eye(2))))
    assert 0 < way.lower.item() < way.upper.item()
    assert way.upper.item() > free.upper.item()
    first = way.path[0]
    assert isinstance(first, of.Particles)
    assert first.label is not None
    assert first.label.sort().values.tolist() == label


@pytest.mark.thorough
def test_batches_are_taken_together() -> None:
    x, y = 0.5 * normal(3, 4, 2), 0.5 * normal(3, 6, 2, seed=1)
    metric = Twisted(Partition(0.5 * np.eye(2)))
    y[1, :4], y[1, 4:] = x[1], x[1, :2]
    together = solve_twisted(of.Particles(x), of.Particles(y), metric, levels=2)
    assert together.upper.shape == together.lower.shape == (3,)
    assert together.status.tolist() == ["ok"] * 3
    for i in range(3):
        alone = solve_twisted(of.Particles(x[i]), of.Particles(y[i]), metric, levels=2)
        torch.testing.assert_close(together.upper[i], alone.upper, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(together.lower[i], alone.lower, rtol=1e-9, atol=1e-12)


def test_batches_with_labels_are_taken_together_though_their_labels_differ() -> None:
    x, y, label = 0.5 * normal(2, 4, 2), 0.5 * normal(2, 4, 2, seed=1), [[0, 0, 1, 2], [0, 1, 2, 3]]
    mu, nu = of.Particles(x, label=label), of.Particles(y, label=label)
    metric = Twisted(Partition(0.5 * np.eye(2)))
    together = solve_twisted(mu, nu, metric, levels=1)
    for i in range(2):
        alone = solve_twisted(mu[i], nu[i], metric, levels=1)
        torch.testing.assert_close(together.upper[i], alone.upper, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(together.plan[i], alone.plan)


def test_equal_measures_are_at_distance_zero() -> None:
    mu, _ = clouds()
    way = solve_twisted(mu, mu, Twisted(Partition(np.eye(2))))
    assert way.upper.item() == way.lower.item() == 0


def test_single_precision_gives_single_precision() -> None:
    mu, nu = (of.Particles(one.x.float()) for one in clouds())
    way = solve_twisted(mu, nu, Twisted(Partition(torch.eye(2))), levels=2)
    double = solve_twisted(*clouds(), Twisted(Partition(np.eye(2))), levels=2)
    assert way.upper.dtype == torch.float32
    assert way.upper.item() == pytest.approx(double.upper.item(), rel=1e-5)


def nudged(mu: of.Particles, seed: int) -> of.Particles:
    """A cloud in single precision with each number moved to one of its neighbours, on a sphere nearly so."""
    x, side = mu.x.numpy(), np.random.default_rng(seed).choice([-np.inf, np.inf], mu.x.shape)
    return of.Particles(np.nextafter(x, side.astype(np.float32)), mu.w, mu.label, mu.space)


WEIGHTS: dict[str, Callable[[], Callable[[of.Measure, Tensor], Tensor]]] = {
    "partition": lambda: Partition(torch.eye(2)),
    "function": lambda: lambda mu, x: 1 + x.square().sum(-1),
    "function of single precision only": lambda: lambda mu, x: 1 + (x @ torch.ones(2, 2)).square().sum(-1),
    "function with answers in single precision": lambda: lambda mu, x: 1 + x.float().square().sum(-1),
}


@pytest.mark.slow(but_for=["partition-True", "function-True"])
@pytest.mark.parametrize("sphere", [False, True])
@pytest.mark.parametrize("name", WEIGHTS)
def test_the_last_bit_of_single_precision_does_not_decide_how_a_search_ends(name: str, sphere: bool) -> None:
    space: of.measures.Space = of.Sphere() if sphere else of.Euclidean()
    for seed in range(4):
        pair = (normal(5, 2, seed=seed), normal(4, 2, seed=100 + seed))
        xs = [x / np.linalg.norm(x, axis=-1, keepdims=True) if sphere else 0.5 * x for x in pair]
        ends = [of.Particles(x.astype(np.float32), space=space) for x in xs]
        double = solve_twisted(*(one.to(torch.float64) for one in ends), Twisted(wide(name)), levels=1)
        for shake in range(3):
            shaken = [nudged(one, shake) for one in ends] if shake else ends
            way = solve_twisted(*shaken, Twisted(WEIGHTS[name]()), levels=1, on_failure="return")
            assert way.status == "ok"
            assert way.upper.dtype == way.lower.dtype == way.path[0].dtype == torch.float32
            assert way.upper.item() == pytest.approx(double.upper.item(), rel=1e-5)


def wide(name: str) -> Callable[[of.Measure, Tensor], Tensor]:
    """The same weights in double precision."""
    if name == "partition":
        return Partition(torch.eye(2).double())
    if name == "function of single precision only":
        return lambda mu, x: 1 + (x @ torch.ones(2, 2).double()).square().sum(-1)
    return lambda mu, x: 1 + x.square().sum(-1)


def test_what_does_not_fit_single_precision_is_refused_there_as_before() -> None:
    mu, nu = (of.Particles(one.x.float()) for one in clouds())
    with pytest.raises(InputError, match="float32"):
        solve_twisted(mu, nu, Twisted(Partition(np.eye(2))))
    with pytest.raises(InputError, match="matrix"):
        solve_twisted(mu, nu, Twisted(Partition(torch.eye(2)), matrix=M))
    with pytest.raises(InputError):
        solve_twisted(mu, clouds()[1], Twisted(Partition(torch.eye(2))))
    with pytest.raises(NotFiniteError, match="float32"):
        solve_twisted(mu, nu, Twisted(Partition(1e3 * torch.eye(2))))
    steep = Twisted(lambda mu, x: torch.exp(300 * x[..., 0].double()))
    with pytest.raises(NotFiniteError, match="float32"):
        solve_twisted(*(of.Particles(torch.full((1, 1), z)) for z in (1.0, 2.0)), steep, levels=1)


def test_a_search_in_single_precision_that_is_cut_short_says_so() -> None:
    mu, nu = (of.Particles(one.x.float()) for one in clouds())
    way = solve_twisted(mu, nu, Twisted(Partition(torch.eye(2))), max_iter=1, on_failure="return")
    assert way.status == "max_iter"


@pytest.mark.thorough
def test_steps_out_of_the_domain_of_a_weight_are_taken_back() -> None:
    """The weight x is positive to the right of 0 only; there the ways are parabolas, which come near to 0."""
    metric = Twisted(lambda mu, x: x[..., 0])
    way = solve_twisted(of.Particles([[1.0, -0.9]]), of.Particles([[1.0, 0.9]]), metric, levels=4)
    # Euler and Lambert: ((x + x' + s)^(3/2) - (x + x' - s)^(3/2)) / (3 sqrt(2)), s the distance of the ends
    assert way.upper.item() == pytest.approx((3.8**1.5 - 0.2**1.5) / 3 / math.sqrt(2), rel=1e-3)
    far = of.Particles([[0.3, -3.0]]), of.Particles([[0.3, 3.0]])  # where only x = 0 would be the best
    kept = solve_twisted(*far, metric, on_failure="return")
    assert 2 * 0.3**1.5 * 2 / 3 < kept.upper.item() < math.sqrt(0.3) * 6
    assert kept.status in ("stalled", "max_iter")


@pytest.mark.thorough
def test_a_path_that_is_not_the_shortest_yet_says_so() -> None:
    mu, nu = clouds()
    metric = Twisted(Partition(np.eye(2)))
    with pytest.raises(ConvergenceError, match="max_iter") as caught:
        solve_twisted(mu, nu, metric, max_iter=1)
    kept = caught.value.result
    assert kept.status == "max_iter"
    way = solve_twisted(mu, nu, metric, max_iter=1, on_failure="return")
    torch.testing.assert_close(way.upper, kept.upper)
    assert way.upper.item() >= solve_twisted(mu, nu, metric).upper.item()


def test_what_has_no_twisted_distance_is_refused() -> None:
    mu, nu = clouds()
    by_weight = Twisted(Partition(np.eye(2)))
    bell, x = of.Gaussian([0.0, 0.0], root=np.eye(2)), (np.arange(4) + 0.5) / 4
    ring = of.Particles([[1.0, 0.0]], space=of.Sphere())
    for one, two, metric, words in (
        (mu, nu, of.Wasserstein(), "Twisted"),
        (mu, bell, by_weight, "nu"),
        (bell, bell, by_weight, "no formula"),
        (bell, mu, Twisted(matrix=M), "nu"),
        (of.Grid(np.ones(4), [x]), mu, by_weight, "Particles and Gaussians"),
        (of.Particles(mu.x, label=range(5)), nu, by_weight, "labels"),
        (of.Particles(mu.x, label=range(5)), of.Particles(nu.x, label=range(1, 6)), by_weight, "label"),
        (ring, of.Particles([[-1.0, 0.0]], space=of.Sphere()), by_weight, "antipodes"),
        (ring, ring, Twisted(matrix=M), "matrix"),
        (mu, nu, Twisted(lambda mu, x: -ones(mu, x)), "positive"),
    ):
        with pytest.raises(InputError, match=words):
            solve_twisted(one, two, metric)  # type: ignore[arg-type]
    for option in ({"nodes": 0}, {"levels": 0}, {"lower": -1.0}, {"tol": 0.0}, {"max_iter": 0}):
        with pytest.raises(InputError, match=next(iter(option))):
            solve_twisted(mu, nu, by_weight, **option)
    with pytest.raises(InputError, match=r"solve_twisted.*Wasserstein\(\)"):
        distance(mu, nu, by_weight)


@pytest.mark.thorough
def test_a_weight_that_the_quadrature_misses_is_found_out() -> None:
    spike = of.Twisted(lambda mu, x: 1 + 1e4 * torch.exp(-(((x[..., 0] - 0.3) / 0.005) ** 2)))
    way = solve_twisted(of.Particles([[0.0]]), of.Particles([[1.0]]), spike, on_failure="return")
    assert way.status == "uncertified"
    assert float(way.upper) > 2.2


def test_a_floor_under_the_weight_that_is_too_high_is_refused() -> None:
    metric = of.Twisted(lambda mu, x: 1 + x[..., 0] ** 2)
    with pytest.raises(of.InputError, match="lower"):
        solve_twisted(of.Particles([[0.0]]), of.Particles([[1.0]]), metric, lower=100.0)
