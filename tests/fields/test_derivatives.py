"""Derivatives of velocities and of short flows: closed forms against autograd and difference quotients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from tests import zoo
from tests.regimes import REGIMES, regime

T = 0.4
CLOUDS = ("weighted", "batched_labelled", "sphere")
MOVED = [(f, m) for f, m in zoo.PAIRS if f not in zoo.DESCENTS and m in (*CLOUDS, *zoo.GAUSSIANS)]
SOLVED = ("sinkhorn", "multihead", "difference")  # with an inner solver that autograd does not see
DENSE = [(f, m) for f, m in MOVED if m in CLOUDS and not f.startswith(SOLVED)]


def directions(mu: of.Measure, seed: int = 0) -> of.Tangent:
    rng = np.random.default_rng(seed)
    return of.Tangent(torch.from_numpy(rng.standard_normal(c.shape)) for c in mu.coords)


def pairing(u: of.Tangent, v: of.Tangent) -> float:
    return float(sum((a * b).sum() for a, b in zip(u, v, strict=True)))


def size(u: of.Tangent) -> float:
    return float(torch.stack([p.abs().max() for p in u]).max())  # NaN if there is one


def quotient(field: of.VelocityField, mu: of.Measure, u: of.Tangent, h: float = 1e-3) -> of.Tangent:
    """The derivative along u by a central difference of order six."""

    def v(c: float) -> of.Tangent:
        return field.evaluate(torch.tensor(T, dtype=torch.float64), mu.at(mu.coords + c * h * u))[0]

    terms = [(v(c) - v(-c)) * (weight / (60 * h)) for c, weight in ((1, 45.0), (2, -9.0), (3, 1.0))]
    return terms[0] + terms[1] + terms[2]


@pytest.mark.slow(but_for=["*-weighted-*", "*-batched_labelled-streaming", "*-sphere-dense"])
@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize(("name", "measure"), MOVED)
def test_jvp_is_the_slope_of_a_difference_quotient(name: str, measure: str, how: str) -> None:
    field, mu = zoo.FIELDS[name](), zoo.MEASURES[measure]()
    u = directions(mu)
    with regime(how):
        slope, expected = field.jvp(T, mu, u), quotient(field, mu, u)
    assert size(slope - expected) < 1e-9 * max(1.0, size(expected))


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize(("name", "measure"), MOVED)
def test_vjp_is_the_transpose_of_jvp(name: str, measure: str, how: str) -> None:
    field, mu = zoo.FIELDS[name](), zoo.MEASURES[measure]()
    u, c = directions(mu, 1), directions(mu, 2)
    with regime(how):
        forward, backward = pairing(c, field.jvp(T, mu, u)), pairing(field.vjp(T, mu, c), u)
    assert forward == pytest.approx(backward, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("name", "measure"), DENSE)
def test_streamed_derivatives_equal_the_dense_jacobian(name: str, measure: str) -> None:
    field, mu = zoo.FIELDS[name](), zoo.MEASURES[measure]()
    u, c = directions(mu, 3), directions(mu, 4)
    t = torch.tensor(T, dtype=torch.float64)
    with regime("dense"):
        jacobian = torch.func.jacrev(lambda x: field.evaluate(t, mu.at([x]))[0][0])(mu.coords[0])
    n = mu.coords[0].numel()
    matrix = jacobian.reshape(n, n)
    with regime("streaming"):
        forward, backward = field.jvp(T, mu, u)[0], field.vjp(T, mu, c)[0]
    scale = float(matrix.abs().max())
    assert float((forward.flatten() - matrix @ u[0].flatten()).abs().max()) < 1e-12 * max(1.0, scale)
    assert float((backward.flatten() - matrix.mT @ c[0].flatten()).abs().max()) < 1e-12 * max(1.0, scale)


def unrolled(q: Tensor, k: Tensor, values: Tensor, w: Tensor, sweeps: int) -> Tensor:
    """Sinkhorn attention by plain sweeps that autograd sees."""
    s, logw = q @ k.mT, w.log()
    g = torch.zeros_like(logw)
    for _ in range(sweeps):
        f = -torch.logsumexp(s + (g + logw)[None, :], 1)
        g = -torch.logsumexp(s + (f + logw)[:, None], 0)
    return torch.softmax(s + (g + logw)[None, :], 1) @ values


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("form", ["symmetric", "general", "thin"])
def test_implicit_derivatives_of_sinkhorn_equal_those_of_its_unrolled_sweeps(form: str, how: str) -> None:
    Q, K, V = {"symmetric": zoo.symmetric(), "general": zoo.QKV(1), "thin": zoo.QKV(4, k=1)}[form]
    mu, eps = zoo.MEASURES["weighted"](), 3.0  # plain sweeps converge fast there
    jacobian = torch.func.jacrev(lambda x: unrolled(x @ Q.mT / eps, x @ K.mT, x @ V.mT / eps, mu.w, 300))(
        mu.x
    )
    matrix, u, c = jacobian.reshape(mu.x.numel(), -1), directions(mu, 5), directions(mu, 6)
    with regime(how):
        field = of.SinkhornAttention(Q, K, V, of.Sinkhorn(eps, tol=1e-13))
        forward, backward = field.jvp(0.0, mu, u)[0], field.vjp(0.0, mu, c)[0]
    assert float((forward.flatten() - matrix @ u[0].flatten()).abs().max()) < 1e-9
    assert float((backward.flatten() - matrix.mT @ c[0].flatten()).abs().max()) < 1e-9


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", ["softmax", "l2", "sigmoid", "unnormalised", "sinkhorn"])
def test_derivatives_are_finite_and_right_at_tokens_without_mass(kind: str, how: str) -> None:
    x = zoo.rng(1).standard_normal((6, 3))
    w = np.array([0.3, 0.0, 0.2, 0.0, 0.1, 0.4])
    mu, field = of.Particles(x, w), KINDS[kind](*zoo.QKV(7))
    u, c = directions(mu, 7), directions(mu, 8)
    with regime(how):
        forward, backward, expected = field.jvp(T, mu, u), field.vjp(T, mu, c), quotient(field, mu, u)
    assert size(forward - expected) < 1e-9 * max(1.0, size(expected))
    assert pairing(c, forward) == pytest.approx(pairing(backward, u), rel=1e-10)


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", ["softmax", "l2", "sigmoid", "unnormalised", "sinkhorn"])
def test_duplicated_tokens_have_finite_derivatives(kind: str, how: str) -> None:
    mu, field = of.Particles(np.ones((5, 3)) * [1.0, -1.0, 0.5]), KINDS[kind](*zoo.QKV(10))
    u, c = directions(mu, 9), directions(mu, 10)
    with regime(how):
        forward, backward, expected = field.jvp(T, mu, u), field.vjp(T, mu, c), quotient(field, mu, u)
    assert size(forward - expected) < 1e-9 * max(1.0, size(expected))
    assert pairing(c, forward) == pytest.approx(pairing(backward, u), rel=1e-10)


@pytest.mark.thorough
def test_1500_tokens_stream_their_derivatives() -> None:
    rng = np.random.default_rng(11)
    mu, (Q, K, V) = (
        of.Particles(rng.standard_normal((1500, 2))),
        torch.from_numpy(rng.standard_normal((3, 2, 2))),
    )
    u, c = directions(mu, 11), directions(mu, 12)
    for field in (
        of.SoftmaxAttention(Q, K, V),
        of.SinkhornAttention(0.5 * Q, K, V, of.Sinkhorn(1.0, tol=1e-12)),
    ):
        forward, backward, expected = field.jvp(0.0, mu, u), field.vjp(0.0, mu, c), quotient(field, mu, u)
        assert size(forward - expected) < 1e-8 * max(1.0, size(expected))
        assert pairing(c, forward) == pytest.approx(pairing(backward, u), rel=1e-9)


# --- Gaussians: repeated and vanishing singular values are where naive derivatives break ---------------


@pytest.mark.parametrize("cov", ["identity", "rank_one", "zero", "random"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["softmax", "l2", "sinkhorn"])
def test_derivatives_on_a_gaussian_survive_equal_and_zero_singular_values(
    kind: str, rank: int, cov: str
) -> None:
    root = {
        "identity": np.eye(3),
        "rank_one": np.outer([1.0, 2.0, -1.0], [1.0, 0.0, 0.0]),
        "zero": np.zeros((3, 3)),
        "random": zoo.rng(13).standard_normal((3, 3)),
    }[cov]
    mu = of.Gaussian(zoo.rng(14).standard_normal(3), root=root)
    field = KINDS[kind](np.eye(3)[:rank], np.eye(3)[:rank], zoo.matrix(15))
    u, c = directions(mu, 13), directions(mu, 14)
    forward, backward, expected = field.jvp(T, mu, u), field.vjp(T, mu, c), quotient(field, mu, u)
    assert size(forward - expected) < 1e-8 * max(1.0, size(expected))
    assert pairing(c, forward) == pytest.approx(pairing(backward, u), rel=1e-9, abs=1e-9)


# --- gradients of short flows ---------------------------------------------------------------------------

KINDS: dict[str, Callable[..., Any]] = {
    "softmax": of.SoftmaxAttention,
    "l2": of.L2Attention,
    "sigmoid": of.SigmoidAttention,
    "unnormalised": of.UnnormalisedAttention,
    "sinkhorn": lambda Q, K, V: of.SinkhornAttention(Q, K, V, of.Sinkhorn(1.0, tol=1e-13)),
}


def leaves(d: int = 2, n: int = 4, k: int = 2) -> list[Tensor]:
    rng = np.random.default_rng(16)
    shapes = ((n, d), (k, d), (k, d), (d, d))
    return [torch.from_numpy(0.7 * rng.standard_normal(s)).requires_grad_() for s in shapes]


def end_of_flow(make: Callable[..., of.VelocityField], **measure: Any) -> Callable[..., Tensor]:
    """(x0, Q, K, V) -> positions after three steps."""

    def final(x: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return of.flow(of.Particles(x, **measure), make(Q, K, V), of.RK4(), t1=0.3, dt=0.1).final.x

    return final


@pytest.mark.slow(but_for=["softmax-*", "l2-streaming", "unnormalised-dense", "sigmoid-*"])
@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_flow_is_differentiable_in_its_start_and_its_weights(kind: str, how: str) -> None:
    with regime(how):
        assert torch.autograd.gradcheck(
            end_of_flow(KINDS[kind], w=[0.1, 0.2, 0.3, 0.4]), leaves(), eps=1e-5, atol=1e-8, rtol=1e-6
        )


@pytest.mark.thorough
@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sinkhorn"])
def test_a_causal_flow_is_differentiable_too(kind: str, how: str) -> None:
    def causal(Q: Tensor, K: Tensor, V: Tensor) -> of.VelocityField:
        return KINDS[kind](Q, K, V, causal=True)

    with regime(how):
        final = end_of_flow(causal, label=[0.0, 2.0, 1.0, 1.0])
        assert torch.autograd.gradcheck(final, leaves(k=1), eps=1e-5, atol=1e-8, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["dense"])
@pytest.mark.parametrize("how", REGIMES)
def test_a_flow_of_symmetric_sinkhorn_attention_is_differentiable_off_the_symmetric_weights(how: str) -> None:
    x, Q, _, V = leaves()
    with regime(how):
        final = end_of_flow(KINDS["sinkhorn"])
        inputs = [x, Q, Q.detach().clone().requires_grad_(), V]
        assert torch.autograd.gradcheck(final, inputs, eps=1e-5, atol=1e-8, rtol=1e-6, fast_mode=True)


@pytest.mark.thorough
def test_a_flow_on_the_sphere_is_differentiable() -> None:
    def final(x: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        x = x / x.norm(dim=-1, keepdim=True)
        mu = of.Particles(x, space=of.Sphere())
        return of.flow(mu, of.SoftmaxAttention(Q, K, V), of.RK4(), t1=0.3, dt=0.1).final.x

    assert torch.autograd.gradcheck(final, leaves(), eps=1e-5, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "l2", "sinkhorn"])
def test_a_flow_of_gaussians_is_differentiable(kind: str) -> None:
    mean = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    _, Q, K, V = leaves()
    root = torch.tensor([[1.0, 0.2], [0.1, 0.7]], dtype=torch.float64, requires_grad=True)

    def final(*a: Tensor) -> tuple[Tensor, Tensor]:
        mu = of.flow(of.Gaussian(a[0], root=a[1]), KINDS[kind](*a[2:]), of.RK4(), t1=0.3, dt=0.1).final
        return mu.mean, mu.root

    assert torch.autograd.gradcheck(final, [mean, root, Q, K, V], eps=1e-5, atol=1e-8, rtol=1e-6)


@pytest.mark.thorough
def test_multihead_and_perceptron_parameters_receive_gradients() -> None:
    x, Q, K, V = leaves()
    W, U = (
        torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in (0, 1)
    )

    def final(x: Tensor, Q: Tensor, K: Tensor, V: Tensor, W: Tensor, U: Tensor) -> Tensor:
        heads = of.MultiHead([of.SoftmaxAttention(Q, K, V), of.L2Attention(K, Q, V)], mix=[W, U])
        field = heads + of.Perceptron(W, U, activation=torch.tanh)
        return of.flow(of.Particles(x), field, of.RK4(), t1=0.3, dt=0.1).final.x

    inputs = [x, Q, K, V, W.requires_grad_(), U.requires_grad_()]
    assert torch.autograd.gradcheck(final, inputs, eps=1e-5, atol=1e-8, rtol=1e-6)


def test_nothing_is_recorded_unless_an_input_asks_for_it() -> None:
    x, Q, K, V = (a.detach() for a in leaves())
    traj = of.flow(of.Particles(x), of.SoftmaxAttention(Q, K, V), of.RK4(), t1=0.3, dt=0.1)
    assert not traj.final.x.requires_grad


@pytest.mark.parametrize("leaf", ["x", "Q", "K", "V"])
def test_one_input_that_asks_for_a_gradient_is_enough(leaf: str) -> None:
    parts = dict(zip("xQKV", (a.detach() for a in leaves()), strict=True))
    parts[leaf].requires_grad_()
    x, Q, K, V = parts.values()
    traj = of.flow(of.Particles(x), of.SoftmaxAttention(Q, K, V), of.RK4(), t1=0.3, dt=0.1)
    (grad,) = torch.autograd.grad(traj.final.x.square().sum(), parts[leaf])
    assert float(grad.abs().max()) > 0


@pytest.mark.parametrize("leaf", ["Q", "K", "V"])
def test_layers_and_functions_of_time_that_ask_for_a_gradient_get_one(leaf: str) -> None:
    x, *weights = (a.detach() for a in leaves())
    stack = torch.stack([weights[0], weights[1]]).requires_grad_()
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    for varying, source in (
        (of.Layers(stack, [0.0, 0.15, 0.3]), stack),
        (lambda t: scale * weights[0], scale),
    ):
        parts: dict[str, Any] = dict(zip("QKV", weights, strict=True)) | {leaf: varying}
        traj = of.flow(of.Particles(x), of.SoftmaxAttention(**parts), of.RK4(), t1=0.3, dt=0.1)
        (grad,) = torch.autograd.grad(traj.final.x.square().sum(), source)
        assert bool((grad.reshape(len(grad) if grad.ndim else 1, -1).abs().amax(-1) > 0).all())


@pytest.mark.slow
def test_jvp_works_where_every_warning_is_an_error() -> None:
    code = (
        "import otflow as of; mu = of.Particles([[0.0], [1.0]]);"
        "field = of.SoftmaxAttention([[1.0]], [[1.0]], [[1.0]]);"
        "import warnings; warnings.simplefilter('error');"
        "field.jvp(0.0, mu, of.Tangent([mu.x]))"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr.splitlines()[-1]


def test_gradients_of_tangents_through_sinkhorn_are_refused_not_wrong() -> None:
    x = torch.tensor([[1.0, 0.0], [0.3, -0.5], [-0.2, 0.8]], dtype=torch.float64, requires_grad=True)
    mu, u = of.Particles(x), of.Tangent([torch.ones_like(x)])
    field = of.SinkhornAttention(np.eye(2), np.eye(2), np.eye(2))
    with pytest.raises(of.errors.DerivativeError, match="cannot be differentiated"):
        field.jvp(0.0, mu, u)
    with torch.no_grad():
        assert field.jvp(0.0, mu, u)[0].isfinite().all()


@pytest.mark.parametrize("name", ["exact", "entropic", "divergence"])
def test_transport_refuses_torch_func_in_words(name: str) -> None:
    nu = of.Particles([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]])
    f = {
        "exact": lambda x: of.wasserstein(of.Particles(x), nu),
        "entropic": lambda x: of.sinkhorn(of.Particles(x), nu, 1.0).cost,
        "divergence": lambda x: of.sinkhorn_divergence(of.Particles(x), nu, 1.0),
    }[name]
    x = torch.ones(3, 2, dtype=torch.float64)
    for derive in (lambda: torch.func.jvp(f, (x,), (x,)), lambda: torch.func.grad(f)(x)):
        with pytest.raises(of.errors.DerivativeError, match=r"torch\.func.*use torch\.autograd\.grad"):
            derive()
