"""Energies of scores: their descent is attention, their values are transport costs, and some are convex."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import otflow as of

Array = np.ndarray
W2 = of.Wasserstein()


def symmetric(seed: int, d: int, scale: float = 0.7) -> Array:
    a = scale * np.random.default_rng(seed).standard_normal((d, d))
    return (a + a.T) / 2


def signed(seed: int, d: int, values: Any) -> Array:
    """A symmetric matrix with these eigenvalues, some of which may repeat or vanish."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))
    return (q * np.asarray(values, float)) @ q.T


def laws(seed: int, d: int, r: int | None = None, *, mean: float = 0.0) -> of.Gaussian:
    rng = np.random.default_rng(seed)
    return of.Gaussian(mean * rng.standard_normal((4, d)), root=0.8 * rng.standard_normal((4, d, r or d)))


def cloud(seed: int, n: int, d: int) -> of.Particles:
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.2, 1.0, n)
    return of.Particles(rng.standard_normal((n, d)), w / w.sum())


def descends(F: of.Energy, field: of.VelocityField, mu: of.Measure, tol: float = 1e-12) -> None:
    """The steepest descent of F is the field."""
    for a, b in zip(of.SteepestDescent(F, W2)(0.0, mu), field(0.0, mu), strict=True):
        assert float((a - b).abs().max()) <= tol * max(1.0, float(b.abs().max()))


MATRICES = {
    "random": lambda d: symmetric(d, d),
    "positive": lambda d: signed(d, d, np.linspace(0.2, 1.5, d)),
    "negative": lambda d: signed(d, d, -np.linspace(0.2, 1.5, d)),
    "repeated": lambda d: signed(d, d, np.where(np.arange(d) % 2, 1.0, -1.0)),
    "singular": lambda d: signed(d, d, (np.arange(d) == 0) * 1.0),
    "zero": lambda d: np.zeros((d, d)),
}


# --- descent is attention -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_on_centred_gaussians_squared_scores_descend_like_softmax(name: str, d: int) -> None:
    A = MATRICES[name](d)
    for r in (1, d, d + 2):
        mu = laws(d, d, r)
        descends(of.SquaredScores(A), of.SoftmaxAttention(A, np.eye(d), -A), mu)
        descends(-of.SquaredScores(A), of.SoftmaxAttention(A, np.eye(d), A), mu)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_self_transport_descends_like_sinkhorn_on_any_gaussian(name: str, d: int) -> None:
    A = MATRICES[name](d)
    for r in (1, d, d + 2):
        for eps in (0.1, 1.0, 20.0):
            mu = laws(10 + d, d, r, mean=2.0)
            descends(of.SelfTransport(A, eps), of.SinkhornAttention(A, np.eye(d), -A, eps), mu)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
@pytest.mark.parametrize("c", [-1.5, 0.0, 0.4, 1.0])
def test_on_centred_gaussians_the_l2_energy_descends_like_l2_attention(k: int, c: float) -> None:
    for d in {k, 6}:
        K = 0.7 * np.random.default_rng(k).standard_normal((k, d))
        for r in (1, d, d + 2):
            descends(of.L2Energy(K, c), of.L2Attention(c * K, K, -c * K.T @ K), laws(20 + d, d, r))


def test_a_sum_over_heads_descends_like_multi_head_attention() -> None:
    A, B = symmetric(1, 3), symmetric(2, 3)
    heads = of.MultiHead([of.SoftmaxAttention(C, np.eye(3), -C) for C in (A, B)])
    descends(of.SquaredScores(A) + of.SquaredScores(B), heads, laws(30, 3))


def test_skew_scores_descend_like_softmax_with_the_other_sign() -> None:
    S = np.random.default_rng(3).standard_normal((4, 4))
    A = S - S.T
    descends(of.SquaredScores(A), of.SoftmaxAttention(A, np.eye(4), A), laws(31, 4))
    descends(-of.SquaredScores(A), of.SoftmaxAttention(A, np.eye(4), A.T), laws(31, 4))


@pytest.mark.parametrize("A", [symmetric(4, 3), np.random.default_rng(5).standard_normal((3, 3))])
def test_on_particles_squared_scores_descend_like_linear_attention(A: Array) -> None:
    mu = cloud(32, 40, 3)
    x, w = mu.x.numpy(), mu.w.numpy()
    M = (x * w[:, None]).T @ x
    v = of.SteepestDescent(of.SquaredScores(A), W2)(0.0, mu)[0].numpy()
    assert np.abs(v + x @ (A.T @ M @ A + A @ M @ A.T) / 2).max() < 1e-13


@pytest.mark.parametrize("eps", [0.5, 1.0, 3.0])
def test_on_weighted_particles_self_transport_descends_like_sinkhorn(eps: float) -> None:
    mu, A = cloud(33, 30, 3), symmetric(6, 3)
    field = of.SinkhornAttention(A, np.eye(3), -A, of.Sinkhorn(eps, tol=1e-12))
    descends(of.SelfTransport(A, of.Sinkhorn(eps, tol=1e-12)), field, mu, 1e-7)


# --- values --------------------------------------------------------------------------------------------


def test_squared_scores_are_the_double_integral() -> None:
    mu, A = cloud(34, 25, 3), np.random.default_rng(7).standard_normal((3, 3))
    x, w = mu.x.numpy(), mu.w.numpy()
    assert of.SquaredScores(A)(mu).item() == pytest.approx(w @ (x @ A @ x.T) ** 2 @ w / 4, rel=1e-13)
    g = laws(35, 3, mean=1.0)
    nodes = of.SquaredScores(A)(of.Particles(*g.nodes()))
    assert torch.allclose(of.SquaredScores(A)(g), nodes, rtol=1e-12)


def test_self_transport_with_the_identity_is_the_entropic_cost_of_squared_distances() -> None:
    """|x - y|^2 = |x|^2 + |y|^2 - 2 x.y, so OT_(2 eps) for |x - y|^2 is 2 E|x|^2 + 2 OT_eps for -x.y."""
    mu, eps = laws(36, 4, mean=1.0), 0.7
    squared = of.sinkhorn(mu, mu, 2 * eps).regularised_cost
    second = mu.mean.square().sum(-1) + mu.root.square().sum((-1, -2))
    expected = -(squared / 2 - second) / (2 * eps)
    assert torch.allclose(of.SelfTransport(np.eye(4), eps)(mu), expected, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2])
def test_the_gaussian_value_is_that_of_quadrature_nodes(d: int) -> None:
    A = signed(8, d, [0.6, -0.5][:d])
    mu = of.Gaussian(0.5 * np.ones(d), root=0.6 * np.random.default_rng(9).standard_normal((d, d)))
    F = of.SelfTransport(A, of.Sinkhorn(0.8, tol=1e-12))
    assert F(mu).item() == pytest.approx(F(of.Particles(*mu.nodes())).item(), rel=1e-8)


@pytest.mark.parametrize("s", [1e-12, 1e-6, 1e-2, 1.0, 1e6, 1e100])
def test_values_are_accurate_for_tiny_and_huge_couplings(s: float) -> None:
    with mpmath.workdps(250):
        q = mpmath.sqrt(1 + 4 * mpmath.mpf(s) ** 2)
        transport = float((q - 1 - mpmath.log((1 + q) / 2)) / 4)
        squares = float(mpmath.mpf(s) - mpmath.log(1 + 2 * mpmath.mpf(s)) / 2) / 2
    # A = [[s]] on the standard normal law, and K = [[1]] on one of variance s
    assert of.SelfTransport([[s]])(of.Gaussian([0.0], root=[[1.0]])).item() == pytest.approx(
        transport, rel=1e-13
    )
    K = np.array([[np.sqrt(s)]])
    assert of.L2Energy(K)(of.Gaussian([0.0], root=[[1.0]])).item() == pytest.approx(squares, rel=1e-12)


def test_gradients_are_accurate_for_tiny_couplings() -> None:
    mu = of.Gaussian([0.0], root=[[1e-6]])
    assert of.L2Energy([[1.0]]).differential(mu)[1].item() == pytest.approx(2e-18, rel=1e-11)
    assert of.SelfTransport([[1.0]]).differential(mu)[1].item() == pytest.approx(1e-18, rel=1e-11)


# --- differentials -------------------------------------------------------------------------------------

ENERGIES: dict[str, of.Energy] = {
    "squares": of.SquaredScores(np.random.default_rng(40).standard_normal((3, 3))),
    "transport": of.SelfTransport(symmetric(41, 3), 0.8),
    "l2": of.L2Energy(np.random.default_rng(42).standard_normal((2, 3)), 1.3),
}


@pytest.mark.parametrize("name", ENERGIES)
@pytest.mark.parametrize("r", [1, 3, 4])
def test_differentials_agree_with_finite_differences_and_riesz(name: str, r: int) -> None:
    F, mu = ENERGIES[name], laws(43, 3, r, mean=0.7)
    rng = np.random.default_rng(44)
    u = of.Tangent(torch.from_numpy(rng.standard_normal(c.shape)) for c in mu.coords)
    h = 1e-5
    slope = (F(mu.move(h * u)) - F(mu.move(-h * u))) / (2 * h)
    g = W2.gradient(mu, F.differential(mu))
    assert torch.allclose(W2.inner(mu, g, u), slope, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ENERGIES)
def test_energies_are_twice_differentiable_on_gaussians(name: str) -> None:
    mu = laws(45, 3, mean=0.5)[0]
    leaves = tuple(c.clone().requires_grad_() for c in mu.coords)
    assert torch.autograd.gradcheck(lambda *c: ENERGIES[name](mu.at(c)), leaves)
    assert torch.autograd.gradgradcheck(lambda *c: ENERGIES[name](mu.at(c)), leaves)
    assert ENERGIES[name].differential(mu.at(leaves))[1].requires_grad


@pytest.mark.parametrize("root", [np.eye(3), np.zeros((3, 3)), np.diag([1.0, 0.0, 0.0])])
def test_derivatives_are_right_at_repeated_and_zero_singular_values(root: Array) -> None:
    mu = of.Gaussian(np.zeros(3), root=root)
    for F in (of.SelfTransport(np.diag([1.0, -1.0, 1.0])), of.L2Energy(np.eye(3))):
        leaves = tuple(c.clone().requires_grad_() for c in mu.coords)
        assert torch.autograd.gradcheck(lambda *c, F=F: F(mu.at(c)), leaves)


def test_derivatives_reach_the_matrix() -> None:
    mu = laws(46, 3, mean=0.5)
    A = torch.from_numpy(symmetric(47, 3)).requires_grad_()
    for kind in (of.SquaredScores, of.SelfTransport, of.L2Energy):
        assert kind(A).wants_graph(mu)
        assert torch.autograd.gradcheck(
            lambda a, kind=kind: kind((a + a.mT) / 2)(mu), (A,), check_undefined_grad=False
        )
        assert of.SteepestDescent(kind(A), W2)(0.0, mu)[1].requires_grad


def test_the_energy_decreases_along_its_descent() -> None:
    mu = laws(48, 3, mean=0.5)
    for F in ENERGIES.values():
        end = of.flow(mu, of.SteepestDescent(F, W2), of.Dopri5(), t1=0.2, save_at=[0.2]).final
        assert bool((F(end) < F(mu)).all())


# --- convexity along geodesics -------------------------------------------------------------------------


def bend(F: of.Energy, mu: of.Gaussian, nu: of.Gaussian) -> Array:
    """F_0 - 2 F_(1/2) + F_1 along the Bures-Wasserstein geodesic, relative to the size of F."""
    values = [F(of.transport.bures_geodesic(mu, nu, t)) for t in (0.0, 0.5, 1.0)]
    size = torch.stack([v.abs() for v in values]).amax(0) + 1e-300
    return ((values[0] - 2 * values[1] + values[2]) / size).numpy()


def pairs(seed: int, n: int, d: int, mean: float) -> tuple[of.Gaussian, of.Gaussian]:
    rng = np.random.default_rng(seed)
    return tuple(  # type: ignore[return-value]
        of.Gaussian(mean * rng.standard_normal((n, d)), root=rng.standard_normal((n, d, d))) for _ in range(2)
    )


@pytest.mark.parametrize("values", [[1.0, 0.6, 0.1], [2.0, 0.0, 0.0], [-1.0, -0.5, 0.0]])
def test_energies_of_semidefinite_scores_are_convex_along_geodesics(values: list[float]) -> None:
    A = signed(50, 3, values)
    for seed in (51, 52):
        mu, nu = pairs(seed, 100, 3, 0.0)
        assert bend(of.SquaredScores(A), mu, nu).min() >= -1e-9
        assert bend(of.SelfTransport(A, 0.5), mu, nu).min() >= -1e-9


def test_self_transport_is_convex_in_the_mean_too_for_positive_scores() -> None:
    assert bend(of.SelfTransport(signed(53, 3, [1.0, 0.6, 0.1])), *pairs(54, 200, 3, 2.0)).min() >= -1e-9


def test_energies_of_indefinite_scores_are_not_convex() -> None:
    """Two laws near the null lines of x^2 - y^2, with a geodesic over (1, 0), where scores are large."""
    mu, nu = (of.Gaussian([0.0, 0.0], root=[[1.0], [y]]) for y in (0.9, -0.9))
    A = np.diag([1.0, -1.0])
    F = of.SquaredScores(A)
    half = of.transport.bures_geodesic(mu, nu, 0.5)
    assert (F(mu) - 2 * F(half) + F(nu)).item() == pytest.approx((2 * 0.19**2 - 2) / 4, rel=1e-12)
    assert bend(of.SelfTransport(A, 0.5), mu, nu).item() < -1.0
    assert bend(of.SelfTransport(A, 0.5), *pairs(55, 200, 2, 0.0)).min() < -0.1


def test_the_energies_of_values_of_the_other_sign_are_not_convex() -> None:
    mu, nu = of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([0.0], root=[[3.0]])
    for F in (of.SquaredScores([[1.0]]), of.SelfTransport([[1.0]])):
        assert bend(-F, mu, nu).item() < -0.05


# --- what is no gradient -----------------------------------------------------------------------------


def linearised(field: of.VelocityField, mu: of.Gaussian) -> Array:
    """The derivative of the velocity of the root in the root, as a matrix."""

    def velocity(root: torch.Tensor) -> torch.Tensor:
        return field(0.0, mu.at([mu.mean, root]))[1]

    size = mu.root.numel()
    return torch.autograd.functional.jacobian(velocity, mu.root).reshape(size, size).numpy()


def test_l2_attention_with_its_own_transpose_is_no_gradient_flow() -> None:
    rng = np.random.default_rng(60)
    Q, K = rng.standard_normal((2, 3, 3))
    mu = of.Gaussian(np.zeros(3), root=rng.standard_normal((3, 3)))
    J = linearised(of.L2Attention(Q, K, Q.T @ K), mu)
    assert np.abs(J - J.T).max() > 0.05 * np.abs(J).max()
    good = linearised(of.L2Attention(0.5 * K, K, -0.5 * K.T @ K), mu)
    assert np.abs(good - good.T).max() < 1e-12 * np.abs(good).max()


# --- refusals ------------------------------------------------------------------------------------------


def test_wrong_input_is_refused_with_a_remedy() -> None:
    mu, grid = of.Gaussian(np.zeros(2), root=np.eye(2)), of.Grid(np.ones(4), [np.arange(4) / 4 + 0.125])
    cases = [
        (lambda: of.SquaredScores(np.ones((2, 3))), r"A\.shape.*\(d, d\)"),
        (lambda: of.SelfTransport([[1.0, 2.0], [0.0, 1.0]]), r"A - A\^T.*symmetric"),
        (lambda: of.SelfTransport(np.eye(2), 0.0), "eps"),
        (lambda: of.L2Energy(np.ones(3)), r"K\.shape"),
        (lambda: of.SquaredScores(np.eye(3))(mu), r"A\.shape.*dimension 2"),
        (lambda: of.SelfTransport(np.eye(3))(mu), r"A\.shape.*dimension 2"),
        (lambda: of.L2Energy(np.eye(3))(mu), r"K\.shape.*dimension 2"),
        (lambda: of.L2Energy(np.eye(2))(cloud(1, 4, 2)), r"on Gaussians only.*L2Attention"),
        (lambda: of.SquaredScores(np.eye(2))(grid), "Particles"),
        (lambda: of.SelfTransport(np.eye(2))(grid), "Particles"),
        (lambda: of.SquaredScores(np.eye(2))(of.Particles(np.ones((2, 2)), space=of.Torus())), "wrap"),
        (lambda: of.SquaredScores(np.eye(2, dtype=np.float32))(mu), "float64"),
    ]
    for make, words in cases:
        with pytest.raises(of.InputError, match=words):
            make()


def test_energies_say_what_they_are() -> None:
    assert repr(of.SquaredScores(np.eye(2))) == "SquaredScores(d=2)"
    assert repr(of.SelfTransport(np.eye(2), 0.5)) == "SelfTransport(d=2, eps=0.5)"
    assert repr(of.L2Energy(np.ones((1, 2)), 3)) == "L2Energy(K=(1, 2), c=3)"
