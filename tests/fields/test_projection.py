"""Projection of fields onto affine ones: against quadrature of the definition, closed forms and sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from scipy.special import expit
from torch import Tensor

import otflow as of
from otflow.fields.attention import Attention
from otflow.fields.tokens import TokenField
from tests import zoo

Array = np.ndarray
SIGMOID, EXP = of.SigmoidAttention, of.UnnormalisedAttention


def law(seed: int, d: int, r: int | None = None, *, scale: float = 0.4, mean: float = 0.5) -> of.Gaussian:
    rng = np.random.default_rng(seed)
    return of.Gaussian(mean * rng.standard_normal(d), root=scale * rng.standard_normal((d, r or d)))


def matrices(
    seed: int, d: int, k: int | None = None, scale: float = 0.5, e: int | None = None
) -> list[Array]:
    rng = np.random.default_rng(seed)
    k = k or d
    return [scale * rng.standard_normal(shape) for shape in ((k, d), (k, d), (e or d, d))]


def projected(field: of.VelocityField, mu: of.Gaussian, t: float = 0.0) -> tuple[Array, Array]:
    mean, root = (p.detach().numpy() for p in of.GaussianProjection(field)(t, mu))
    return mean, root


def grid(r: int, n: int) -> tuple[Array, Array]:
    """A product Gauss-Hermite rule for standard normal variables."""
    x, w = np.polynomial.hermite_e.hermegauss(n)
    z = np.stack(np.meshgrid(*[x] * r, indexing="ij"), -1).reshape(-1, r)
    return z, np.stack(np.meshgrid(*[w / w.sum()] * r, indexing="ij"), -1).reshape(-1, r).prod(-1)


def line(n: int = 20) -> tuple[Array, Array]:
    """Panels of Gauss-Legendre for one standard normal variable."""
    x, w = np.polynomial.legendre.leggauss(n)
    edges = np.linspace(-10, 10, 81)
    half = np.diff(edges)[:, None] / 2
    z = (edges[:-1, None] + half * (x + 1)).ravel()
    return z, (half * w).ravel() * scipy.stats.norm.pdf(z)


def kernel_integral(
    kernel: Callable[[Array], Array], Q: Array, K: Array, V: Array, mu: of.Gaussian, n: int
) -> tuple[Array, Array]:
    """E[v] and E[v z^T] for v(x) = int Vy kernel(Qx.Ky) dmu(y), all by one product rule."""
    m, R = mu.mean.numpy(), mu.root.numpy()
    z, w = grid(R.shape[1], n)
    x = m + z @ R.T
    v = (kernel((x @ Q.T) @ (x @ K.T).T) * w) @ (x @ V.T)
    return w @ v, (w[:, None] * v).T @ z


def sigmoid_by_stein(Q: Array, K: Array, V: Array, mu: of.Gaussian, n: int) -> tuple[Array, Array]:
    """v(x) = V(m E s(u) + S A x E s'(u)) with u normal, then a product rule over x."""
    m, R = mu.mean.numpy(), mu.root.numpy()
    z, w = grid(R.shape[1], n)
    xi, p = line()
    g = (m + z @ R.T) @ (K.T @ Q).T  # Ax
    s = expit((g @ m)[:, None] + np.linalg.norm(g @ R, axis=1)[:, None] * xi)
    v = ((s @ p)[:, None] * m + (s * (1 - s) @ p)[:, None] * (g @ R @ R.T)) @ V.T
    return w @ v, (w[:, None] * v).T @ z


def same(got: tuple[Array, Array], expected: tuple[Array, Array], tol: float) -> None:
    size = max(np.abs(b).max() for b in expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= tol * size


# --- attention against the integrals that define the projection ---------------------------------------


@pytest.mark.parametrize(("d", "r"), [(1, 1), (2, 2), (3, 1), (3, 2), (2, 3)])
@pytest.mark.parametrize(("kind", "kernel"), [(SIGMOID, expit), (EXP, np.exp)])
def test_attention_projects_like_the_double_integral(kind: Any, kernel: Any, d: int, r: int) -> None:
    """r < d is a singular covariance, r > d a root with more columns than needed."""
    n = {1: 80, 2: 36, 3: 14}[r]
    for seed in range(2):
        mu, m = law(seed, d, r), matrices(seed + 10, d)
        same(projected(kind(*m), mu), kernel_integral(kernel, *m, mu, n), 1e-11 if r < 3 else 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(("d", "n", "tol"), [(3, 16, 1e-11), (4, 9, 1e-9), (5, 6, 1e-7), (6, 5, 1e-6)])
def test_sigmoid_attention_projects_like_the_integral_over_queries_in_any_dimension(
    d: int, n: int, tol: float
) -> None:
    mu, m = law(20 + d, d, scale=0.25), matrices(30 + d, d, k=2, scale=0.4)
    same(projected(SIGMOID(*m), mu), sigmoid_by_stein(*m, mu, n), tol)


@pytest.mark.parametrize(("d", "n", "tol"), [(4, 10, 1e-9), (5, 7, 1e-7), (6, 6, 1e-6)])
def test_unnormalised_attention_projects_like_the_integral_over_queries_in_any_dimension(
    d: int, n: int, tol: float
) -> None:
    mu, (Q, K, V) = law(40 + d, d, scale=0.2), matrices(50 + d, d, scale=0.3)
    m, R = mu.mean.numpy(), mu.root.numpy()
    z, w = grid(d, n)
    g = (m + z @ R.T) @ (K.T @ Q).T
    v = np.exp(g @ m + (g @ R) ** 2 @ np.ones(d) / 2)[:, None] * ((m + g @ R @ R.T) @ V.T)
    same(projected(EXP(Q, K, V), mu), (w @ v, (w[:, None] * v).T @ z), tol)


def panels(m: float, R: float) -> tuple[Array, Array]:
    """A rule for N(0, 1) with panels that shrink towards the zero of m + R z, where scores change sign."""
    x, w = np.polynomial.legendre.leggauss(20)
    zero = np.clip(-m / R, -11, 11)
    steps = np.unique(np.concatenate([[0.0], 2.0 ** np.arange(-30, -1), np.arange(0.5, 23, 0.5)]))
    edges = np.unique(np.clip(np.concatenate([zero - steps, zero + steps]), -11, 11))
    half = np.diff(edges)[:, None] / 2
    z = (edges[:-1, None] + half * (x + 1)).ravel()
    return z, (half * w).ravel() * scipy.stats.norm.pdf(z)


@pytest.mark.parametrize(
    ("m", "R", "a"),
    [
        (0.3, 1.0, 1.0),
        (0.5, 5.0, -4.0),
        (0.2, 30.0, 1.0),
        (3.0, 0.1, 5.0),
        (0.0, 38.0, 1.0),
        (40.0, 1e-3, -9.0),
    ],
)
def test_sigmoid_attention_is_exact_for_narrow_and_wide_laws(m: float, R: float, a: float) -> None:
    """The variance of scores goes from 1e-4 to 2e6."""
    z, w = panels(m, R)
    y = m + R * z
    v = y * w @ expit(a * np.outer(y, y))
    mean, root = projected(SIGMOID([[a]], [[1.0]], [[1.0]]), of.Gaussian([m], root=[[R]]))
    size = abs(m) + R
    assert mean.item() == pytest.approx(w @ v, abs=1e-12 * size)
    assert root.item() == pytest.approx(w * v @ z, abs=1e-12 * size)


def test_a_sigmoid_law_that_is_too_wide_is_refused() -> None:
    with pytest.raises(of.InputError, match=r"score.*too wide.*Particles"):
        projected(SIGMOID([[1.0]], [[1.0]], [[1.0]]), of.Gaussian([0.0], root=[[1e3]]))


@pytest.mark.parametrize("size", [1.0, 1.3])
def test_the_mean_of_exponential_scores_is_refused_where_it_is_infinite(size: float) -> None:
    field = EXP(size * np.eye(2), np.eye(2), np.eye(2))
    with pytest.raises(of.InputError, match=rf"\|R\^T A R\| = {size:g}.*limit 1.*Particles"):
        projected(field, of.Gaussian(np.zeros(2), root=np.diag([1.0, 0.5])))
    assert np.isfinite(projected(field, of.Gaussian(np.zeros(2), root=0.85 * np.diag([1.0, 0.5])))[1]).all()


@pytest.mark.parametrize("kind", [SIGMOID, EXP])
def test_a_law_without_spread_moves_like_one_token(kind: Any) -> None:
    a, m = np.array([0.3, -1.0, 0.8]), matrices(60, 3)
    mean, root = projected(kind(*m), of.Gaussian(a, root=np.zeros((3, 2))))
    assert np.abs(mean - kind(*m)(0.0, of.Particles(a[None]))[0][0].numpy()).max() < 1e-13
    assert np.abs(root).max() < 1e-13


@pytest.mark.parametrize("kind", [SIGMOID, EXP])
def test_a_sample_of_the_law_moves_like_the_projection_at_first(kind: Any) -> None:
    mu, m = law(61, 3, scale=0.3), matrices(62, 3, scale=0.3)
    z = np.random.default_rng(63).standard_normal((6000, 3))
    z = (z - z.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(z.T, bias=True))).T
    v = kind(*m)(0.0, of.Particles(mu.mean.numpy() + z @ mu.root.numpy().T))[0].numpy()
    same(projected(kind(*m), mu), (v.mean(0), v.T @ z / len(z)), 0.02)


# --- perceptrons -------------------------------------------------------------------------------------

Phi, phi = scipy.stats.norm.cdf, scipy.stats.norm.pdf


def relu_moments(mean: Array, s: Array) -> tuple[Array, Array]:
    """E relu(y) and E relu'(y) of y = mean + s xi, s > 0."""
    return mean * Phi(mean / s) + s * phi(mean / s), Phi(mean / s)


def leaky_moments(mean: Array, s: Array) -> tuple[Array, Array]:
    up, down = relu_moments(mean, s), relu_moments(-mean, s)
    return up[0] - 0.1 * down[0], up[1] + 0.1 * down[1]


def gelu_moments(mean: Array, s: Array) -> tuple[Array, Array]:
    q = np.sqrt(1 + s**2)
    level = mean * Phi(mean / q) + s**2 / q * phi(mean / q)
    slope = Phi(mean / q) + mean / q * phi(mean / q) - mean * s**2 / q**3 * phi(mean / q)
    return level, slope


ACTIVATIONS: dict[str, tuple[Any, Any]] = {
    "relu": (torch.relu, relu_moments),
    "leaky": (lambda x: torch.nn.functional.leaky_relu(x, 0.1), leaky_moments),
    "gelu": (torch.nn.functional.gelu, gelu_moments),
}


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_perceptrons_project_by_the_known_moments_of_their_activation(name: str, d: int) -> None:
    rng = np.random.default_rng(70 + d)
    act, moments = ACTIVATIONS[name]
    W, U, b = rng.standard_normal((d, 9)), rng.standard_normal((9, d)), 2 * rng.standard_normal(9)
    for r in (1, d, d + 1):
        mu = law(80 + d, d, r, scale=1.0)
        UR = U @ mu.root.numpy()
        level, slope = moments(U @ mu.mean.numpy() + b, np.linalg.norm(UR, axis=1))
        same(projected(of.Perceptron(W, U, b, act), mu), (W @ level, W @ (slope[:, None] * UR)), 1e-12)


@pytest.mark.parametrize("s", [1e-9, 1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("mean", [-40.0, -2.0, 0.0, 1e-3, 7.0])
def test_kinks_are_integrated_to_rounding_wherever_they_lie(mean: float, s: float) -> None:
    level, slope = relu_moments(np.array(mean), np.array(s))
    got = projected(of.Perceptron([[1.0]], [[1.0]]), of.Gaussian([mean], root=[[s]]))
    assert got[0].item() == pytest.approx(level, rel=1e-12, abs=1e-13 * s)
    assert got[1].item() == pytest.approx(s * slope, rel=1e-9, abs=1e-12 * (s + abs(mean)))


@pytest.mark.parametrize(("mean", "s"), [(0.4, 1.0), (-3.0, 10.0), (0.1, 300.0)])
def test_a_perceptron_with_tanh_projects_like_mpmath_integrates(mean: float, s: float) -> None:
    zero = -mean / s
    cuts = sorted([-12, 12, *(zero + k / s for k in (-40, -10, -3, 0, 3, 10, 40) if abs(zero + k / s) < 12)])

    def against(f: Callable[[Any], Any]) -> float:
        return float(mpmath.quad(lambda x: mpmath.tanh(mean + s * x) * f(x) * mpmath.npdf(x), cuts))

    got = projected(of.Perceptron([[1.0]], [[1.0]], None, torch.tanh), of.Gaussian([mean], root=[[s]]))
    assert got[0].item() == pytest.approx(against(lambda x: 1), abs=1e-12)
    assert got[1].item() == pytest.approx(against(lambda x: x), abs=1e-12)


def test_an_activation_with_kinks_elsewhere_is_refused_and_the_remedy_works() -> None:
    mu = of.Gaussian([0.3], root=[[1.5]])
    with pytest.raises(of.InputError, match=r"kink at 0.*relu\(x - kink\)"):
        projected(of.Perceptron([[1.0]], [[1.0]], None, torch.nn.functional.hardtanh), mu)
    parts = of.Perceptron([[1.0, -1.0]], [[1.0], [1.0]], [1.0, -1.0])  # hardtanh + 1
    inside = Phi((1 - 0.3) / 1.5) - Phi((-1 - 0.3) / 1.5)
    assert projected(parts, mu)[1].item() == pytest.approx(1.5 * inside, rel=1e-12)


def test_a_neuron_that_does_not_feel_the_spread_leaves_the_root_alone() -> None:
    field = of.Perceptron(np.eye(2), np.eye(2), None, torch.tanh)
    mean, root = projected(field, of.Gaussian([0.7, 0.2], root=[[0.0], [1.0]]))
    assert mean[0] == pytest.approx(np.tanh(0.7), rel=1e-14)
    assert root[0].item() == 0.0
    kink = of.Perceptron([[1.0]], [[1.0]])
    assert projected(kink, of.Gaussian([0.0], root=[[0.0]]))[0].item() == 0.0
    assert projected(kink, of.Gaussian([0.0], root=[[1e-200]]))[0].item() == pytest.approx(
        1e-200 * phi(0), rel=1e-12
    )


# --- sums, heads, and fields of a user ---------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        of.SoftmaxAttention(*zoo.QKV(1)),
        of.L2Attention(*zoo.QKV(1)),
        of.SinkhornAttention(*zoo.QKV(1), eps=0.7),
        of.Perceptron(zoo.matrix(2), zoo.matrix(3), None, None),
        of.MultiHead(
            [of.SoftmaxAttention(*zoo.QKV(4, e=2)), of.L2Attention(*zoo.QKV(7, e=1))],
            mix=[zoo.matrix(8, 3, 2), zoo.matrix(9, 3, 1)],
        ),
        2 * of.SoftmaxAttention(*zoo.QKV(1)) - of.L2Attention(*zoo.QKV(4)),
        of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1)), of.Wasserstein()),
    ],
    ids=repr,
)
def test_fields_that_close_are_left_exactly_as_they_are(field: of.VelocityField) -> None:
    for mu in (
        law(90, 3),
        law(91, 3, 1),
        of.Gaussian(np.ones((2, 3)), root=zoo.rng().standard_normal((2, 3, 3))),
    ):
        for a, b in zip(of.GaussianProjection(field)(0.0, mu), field(0.0, mu), strict=True):
            assert torch.equal(a, b)


def test_heads_and_sums_project_term_by_term() -> None:
    mu = law(92, 3)
    heads = [
        SIGMOID(*matrices(93, 3, e=2)),
        of.SoftmaxAttention(*matrices(94, 3, e=1)),
        EXP(*matrices(95, 3)),
    ]
    mix = [zoo.matrix(96, 3, 2), zoo.matrix(97, 3, 1), zoo.matrix(98)]
    block = of.Perceptron(zoo.matrix(99, 3, 5), zoo.matrix(100, 5, 3))
    total = projected(of.MultiHead(heads, mix=mix) - 2 * block, mu)
    parts = [projected(of.MultiHead([h], mix=[w]), mu) for h, w in zip(heads, mix, strict=True)]
    ffn = projected(block, mu)
    same(total, tuple(sum(p[i] for p in parts) - 2 * ffn[i] for i in (0, 1)), 1e-13)  # type: ignore[arg-type]
    m = [a if i < 2 else mix[0].numpy() @ a for i, a in enumerate(matrices(93, 3, e=2))]
    same(parts[0], projected(SIGMOID(*m), mu), 1e-13)


class Cubic(TokenField):
    """x -> (x.e) x + (second moment of the cloud) x: a polynomial of tokens and law."""

    def velocity_at(
        self, t: Tensor, mu: of.Particles, points: Tensor, label: Any, carry: Any
    ) -> tuple[Tensor, None]:
        moment = (mu.w[..., None] * mu.x).mT @ mu.x
        return points.sum(-1, keepdim=True) * points + points @ moment, None


class OwnSigmoid(Attention):
    """The sigmoid again, of which nothing but the values is known."""

    attend = SIGMOID.attend


@pytest.mark.parametrize(("d", "r"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 5), (6, 6), (2, 7)])
def test_a_field_of_a_user_is_projected_over_nodes(d: int, r: int) -> None:
    mu = law(101, d, r, scale=1.0)
    m, S, e = mu.mean.numpy(), mu.cov.numpy(), np.ones(d)
    M = S + np.outer(m, m)
    B = (e @ m) * np.eye(d) + np.outer(m, e) + M  # E grad v
    same(projected(Cubic(), mu), (M @ e + M @ m, B @ mu.root.numpy()), 1e-12)


def test_a_field_of_a_user_agrees_with_the_exact_projection() -> None:
    for d in (1, 2, 3):
        mu, m = law(102, d, scale=0.25), matrices(103, d)
        same(projected(OwnSigmoid(*m), mu), projected(SIGMOID(*m), mu), 1e-7)


def test_nodes_that_do_not_resolve_a_field_are_refused() -> None:
    for d in (1, 2, 3):
        with pytest.raises(of.InputError, match=r"quadrature error.*OwnSigmoid.*narrower law.*Particles"):
            projected(OwnSigmoid(*matrices(104, d, scale=3.0)), law(105, d, scale=3.0))
    with pytest.raises(of.InputError, match=r"root\.shape.*cov="):
        projected(Cubic(), law(106, 2, 9))


# --- what every projection obeys ----------------------------------------------------------------------


def perceptron() -> list[Tensor]:
    return [zoo.matrix(112, 3, 5), zoo.matrix(113, 5, 3), zoo.matrix(114, 5)]


FIELDS: dict[str, Callable[[], of.VelocityField]] = {
    "sigmoid": lambda: SIGMOID(*matrices(110, 3)),
    "unnormalised": lambda: EXP(*matrices(111, 3, scale=0.3)),
    "relu": lambda: of.Perceptron(*perceptron()),
    "cubic": lambda: 0.1 * Cubic(),
    "heads": lambda: of.MultiHead([SIGMOID(*matrices(115, 3)), of.SoftmaxAttention(*matrices(116, 3))]),
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_choice_of_root_does_not_matter(name: str) -> None:
    mu, field = law(120, 3), of.GaussianProjection(FIELDS[name]())
    turn = torch.linalg.qr(zoo.matrix(121))[0]
    mean, root = field(0.0, of.Gaussian(mu.mean, root=mu.root @ turn))
    same((mean.numpy(), (root @ turn.mT).numpy()), projected(FIELDS[name](), mu), 1e-12)


@pytest.mark.parametrize("name", FIELDS)
def test_members_of_a_batch_are_independent(name: str) -> None:
    rng = np.random.default_rng(122)
    many = of.Gaussian(0.5 * rng.standard_normal((2, 2, 3)), root=0.4 * rng.standard_normal((2, 2, 3, 3)))
    mean, root = projected(FIELDS[name](), many)
    for i in np.ndindex(2, 2):
        same((mean[i], root[i]), projected(FIELDS[name](), many[i]), 1e-12)


def test_weights_may_have_batch_axes_and_depend_on_time() -> None:
    Q, K, V = (zoo.matrix(130 + i, 2, 3, 3) for i in range(3))
    mu = of.Gaussian(np.ones((2, 3)), root=np.eye(3))
    mean, root = projected(SIGMOID(Q, K, lambda t: (1 + t) * V), mu, 0.5)
    for i in range(2):
        same((mean[i], root[i]), projected(SIGMOID(Q[i], K[i], 1.5 * V[i]), mu[i]), 1e-12)
    layers = of.Layers(torch.stack([zoo.matrix(140), zoo.matrix(141)]))
    field = of.Perceptron(layers, zoo.matrix(142))
    assert of.GaussianProjection(field).switches == (1.0,)
    for t, W in ((0.3, zoo.matrix(140)), (1.3, zoo.matrix(141))):
        same(projected(field, law(143, 3), t), projected(of.Perceptron(W, zoo.matrix(142)), law(143, 3)), 0.0)


@pytest.mark.parametrize("name", ["sigmoid", "unnormalised", "relu", "cubic"])
def test_projections_are_differentiable_in_mean_and_root(name: str) -> None:
    mu, field = law(150, 3, 2), of.GaussianProjection(FIELDS[name]())
    leaves = tuple(c.clone().requires_grad_() for c in mu.coords)
    assert torch.autograd.gradcheck(lambda *c: tuple(field(0.0, mu.at(c))), leaves, atol=1e-6)
    u, c = (
        of.Tangent(torch.from_numpy(zoo.rng(s).standard_normal(x.shape)) for x in mu.coords) for s in (1, 2)
    )
    forward = sum(float((a * b).sum()) for a, b in zip(field.jvp(0.0, mu, u), c, strict=True))
    backward = sum(float((a * b).sum()) for a, b in zip(field.vjp(0.0, mu, c), u, strict=True))
    assert forward == pytest.approx(backward, rel=1e-9)


def test_the_derivative_is_right_where_a_neuron_has_no_spread() -> None:
    field = of.GaussianProjection(of.Perceptron([[2.0]], [[1.0]], None, torch.tanh))
    mu = of.Gaussian([0.4], root=[[0.0]])
    v = field.jvp(0.0, mu, of.Tangent([torch.zeros(1).double(), torch.ones(1, 1).double()]))
    assert v[1].item() == pytest.approx(2 * (1 - np.tanh(0.4) ** 2), rel=1e-8)


def test_derivatives_reach_the_weights() -> None:
    Q, K, V = (torch.from_numpy(a).requires_grad_() for a in matrices(151, 2))
    field = of.GaussianProjection(SIGMOID(Q, K, V))
    mu = law(152, 2)
    assert field.requires_grad(torch.tensor(0.0), mu)
    assert [id(p) for p in field.tensors(torch.tensor(0.0))] == [id(p) for p in (Q, K, V)]
    assert torch.autograd.gradcheck(
        lambda *m: tuple(of.GaussianProjection(SIGMOID(*m))(0.0, mu)), (Q, K, V), atol=1e-6
    )


@pytest.mark.parametrize("name", ["sigmoid", "unnormalised", "relu"])
def test_single_precision_stays_single(name: str) -> None:
    mu = law(153, 3)
    small = of.Gaussian(mu.mean.float(), root=mu.root.float())
    single: dict[str, of.VelocityField] = {
        "sigmoid": SIGMOID(*(a.astype(np.float32) for a in matrices(110, 3))),
        "unnormalised": EXP(*(a.astype(np.float32) for a in matrices(111, 3, scale=0.3))),
        "relu": of.Perceptron(*(a.float() for a in perceptron())),
    }
    got = projected(single[name], small)
    assert got[0].dtype == np.float32
    same(got, projected(FIELDS[name](), mu), 1e-5)


@pytest.mark.parametrize("name", FIELDS)
def test_a_flow_of_the_projection_runs_and_keeps_the_rank(name: str) -> None:
    mu = law(154, 3, 1, scale=0.3)
    final = of.flow(mu, of.GaussianProjection(FIELDS[name]()), of.Dopri5(), t1=0.5, save_at=[0.5]).final
    assert bool(final.finite())
    assert np.linalg.matrix_rank(final.cov.numpy(), tol=1e-12) == 1


def test_a_flow_that_leaves_the_domain_keeps_what_it_has() -> None:
    field = of.GaussianProjection(EXP([[1.0]], [[1.0]], [[1.0]]))
    with pytest.raises(of.errors.FlowError, match=r"\|R\^T A R\|.*limit 1") as caught:
        of.flow(of.Gaussian([0.0], root=[[0.7]]), field, of.Euler(), t1=10.0, dt=0.05)
    assert caught.value.trajectory.final.cov.item() > 0.49


@pytest.mark.parametrize("kind", [SIGMOID, EXP])
def test_a_law_that_has_left_floating_point_is_refused(kind: Any) -> None:
    mu = law(158, 2)
    for bad in (np.inf, np.nan):
        with pytest.raises(of.InputError):
            of.GaussianProjection(kind(*matrices(159, 2)))(0.0, mu.at([mu.mean, bad * mu.root]))
        with pytest.raises(of.errors.NotFiniteError):
            of.GaussianProjection(of.Perceptron(np.eye(2), np.eye(2)))(0.0, mu.at([mu.mean, bad * mu.root]))


@pytest.mark.thorough
def test_a_flow_follows_particles_as_long_as_they_look_gaussian() -> None:
    mu, m = law(155, 2, scale=0.3), matrices(156, 2)
    z = np.random.default_rng(157).standard_normal((3000, 2))
    z = (z - z.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(z.T, bias=True))).T
    cloud = of.Particles(mu.mean.numpy() + z @ mu.root.numpy().T)
    field = SIGMOID(*m)
    ends = [
        of.flow(nu, f, of.Dopri5(1e-6, 1e-8), t1=0.5, save_at=[0.5]).final
        for nu, f in ((mu, of.GaussianProjection(field)), (cloud, field))
    ]
    x = ends[1].x.numpy()
    assert np.abs(ends[0].mean.numpy() - x.mean(0)).max() < 5e-3
    assert np.abs(ends[0].cov.numpy() - np.cov(x.T, bias=True)).max() < 5e-3


# --- words ---------------------------------------------------------------------------------------------


def test_the_repr_says_that_it_is_a_projection() -> None:
    assert repr(of.GaussianProjection(SIGMOID(*zoo.QKV(1)))) == "GaussianProjection(SigmoidAttention(d=3))"
    assert "not the" in (of.GaussianProjection.__doc__ or "")


@pytest.mark.parametrize("mu", ["particles", "grid"])
def test_other_measures_are_sent_to_the_field_itself(mu: str) -> None:
    measure = (
        of.Particles(np.ones((4, 3)))
        if mu == "particles"
        else of.Grid(np.ones(4), [np.arange(4) / 4 + 0.125])
    )
    with pytest.raises(of.InputError, match=r"GaussianProjection\(Sigm.*Gaussians only.*field itself"):
        of.GaussianProjection(SIGMOID(*zoo.QKV(1)))(0.0, measure)


@pytest.mark.parametrize(
    "field", [SIGMOID(*zoo.QKV(1)), EXP(*zoo.QKV(1)), of.Perceptron(zoo.matrix(1), zoo.matrix(2))]
)
def test_fields_that_do_not_close_name_their_projection(field: of.VelocityField) -> None:
    with pytest.raises(of.InputError, match=r"Gaussian\(d=3\).*Particles.*GaussianProjection\(field\)"):
        field(0.0, law(160, 3))


@pytest.mark.parametrize("kind", [of.SoftmaxAttention, SIGMOID, EXP])
@pytest.mark.parametrize("wrap", [False, True])
def test_masked_attention_says_when_it_closes(kind: Any, wrap: bool) -> None:
    field = kind(*zoo.QKV(1), causal=True)
    with pytest.raises(of.InputError, match=r"same Gaussian law at all labels.*mixture.*causal=False"):
        (of.GaussianProjection(field) if wrap else field)(0.0, law(161, 3))


def test_only_fields_are_projected() -> None:
    with pytest.raises(of.InputError, match="VelocityField"):
        of.GaussianProjection(lambda x: x)  # type: ignore[arg-type]
