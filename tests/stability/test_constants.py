"""Constants on a ball bound what random search finds, and are nearly met by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import otflow as of
from otflow.fields.base import VelocityField
from otflow.stability.bounds.constants import ZERO, Constants, constants, hardy_factor
from otflow.stability.bounds.time_and_radius import Moment, Radius, log_radius, moment


def t(x: Any) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return t(np.random.default_rng(seed).standard_normal(shape))


def in_ball(n: int, k: int, d: int, R: float, rng: np.random.Generator) -> Tensor:
    """Half on the sphere, half inside, all of them within R."""
    x = rng.standard_normal((n, k, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return t(R * x * np.where(rng.random((n, k, 1)) < 0.5, 1.0, rng.random((n, k, 1))))


def found(field: VelocityField, R: float, d: int, seed: int = 0) -> tuple[float, float, float]:
    """The largest sup, Lip_x and Lip_mu (in W_1) among 4000 pairs of clouds of two tokens."""
    rng = np.random.default_rng(seed)
    n = 4000
    x, y, points = (in_ball(n, 2, d, R, rng) for _ in range(3))
    w = t(10.0 ** rng.uniform(-8, 0, n))
    w = torch.stack([w / (1 + w), 1 / (1 + w)], -1)
    near = t(1e-3 * rng.random((n, 1, 1)))
    moved = torch.stack([(1 - near[:, 0]) * x[:, 0] + near[:, 0] * y[:, 0], x[:, 1]], 1)
    mu, nu = of.Particles(x, w), of.Particles(moved, w)
    gone = (1 - near) * points + near * y[:, :1]
    at = [field.at(0.0, m, q) for m, q in ((mu, points), (nu, points), (mu, gone))]
    W1 = w[:, 0] * (moved - x)[:, 0].norm(dim=-1)
    sup = at[0].norm(dim=-1).max()
    apart, seen = (points - gone).norm(dim=-1), W1 > 1e-12  # below that the difference is rounding
    Lx = ((at[0] - at[2]).norm(dim=-1) / apart)[apart > 1e-6].max()
    Lmu = ((at[0] - at[1]).norm(dim=-1).amax(-1) / W1)[seen].max()
    return sup.item(), Lx.item(), Lmu.item()


def ratios(field: VelocityField, R: float, d: int, seed: int = 0) -> list[float]:
    c = constants(field, R)
    logs = (c.log_sup, c.log_x, torch.logaddexp(c.log_mu, c.log_hardy))
    return [a / b.exp().item() for a, b in zip(found(field, R, d, seed), logs, strict=True)]


ONE_D = {
    "softmax": (of.SoftmaxAttention([[1.3]], [[0.9]], [[-0.7]]), 1.1, (0.99, 0.9, 0.9)),
    "L2": (of.L2Attention([[1.7]], [[1.0]], [[2.0]]), 1.0, (0.99, 0.8, 0.75)),
    "unnormalised": (of.UnnormalisedAttention([[1.3]], [[0.9]], [[-0.7]]), 1.1, (0.95, 0.95, 0.95)),
    "sigmoid": (of.SigmoidAttention([[1.0]], [[1.04]], [[2.0]]), 1.2, (0.8, 0.95, 0.7)),
}


@pytest.mark.parametrize("name", ONE_D)
def test_random_search_on_the_line_comes_close_to_each_constant_and_not_beyond(name: str) -> None:
    field, R, low = ONE_D[name]
    for ratio, least in zip(ratios(field, R, 1), low, strict=True):
        assert least < ratio <= 1 + 1e-6


EYE = torch.eye(2, dtype=torch.float64)
KINDS = (of.SoftmaxAttention, of.L2Attention, of.UnnormalisedAttention, of.SigmoidAttention)


@pytest.mark.parametrize("kind", KINDS)
def test_random_search_in_the_plane_finds_nothing_beyond_the_constants(kind: Any) -> None:
    for seed in range(3):
        Q, K, V = (0.7 * draw(2, 2, seed=10 * seed + i) for i in range(3))
        assert max(ratios(kind(Q, K, V), 1.0, 2, seed)) <= 1 + 1e-6
        assert max(ratios(kind(Q[:1], K[:1], V), 1.0, 2, seed)) <= 1 + 1e-6


def test_heads_add_up_with_the_norm_of_their_product_with_the_mixing_matrix() -> None:
    Q, K, V = (0.6 * draw(2, 2, seed=i) for i in range(3))
    W = [t([[1.0], [0.0]]), t([[0.3], [2.0]])]
    heads = [of.SoftmaxAttention(Q, K, V[:1]), of.SigmoidAttention(K, Q, V[1:])]
    field = of.MultiHead(heads, mix=W)
    plain = of.SoftmaxAttention(Q, K, W[0] @ V[:1]) + of.SigmoidAttention(K, Q, W[1] @ V[1:])
    for p in (1.0, 2.0, math.inf):
        lip = [constants(f, 1.2).log_lip(p) for f in (field, plain)]
        torch.testing.assert_close(lip[0], lip[1])
    values = ratios(field, 1.2, 2)
    assert 0.3 < values[0] <= 1
    assert max(values) <= 1 + 1e-6


def test_the_product_with_the_mixing_matrix_may_vanish_where_neither_factor_does() -> None:
    head = of.SoftmaxAttention(EYE, EYE, t([[0.0, 0.0], [0.0, 1.0]]))
    field = of.MultiHead([head], mix=[t([[1.0, 0.0], [0.0, 0.0]])])
    assert constants(field, 1e170).log_lip(2.0).item() == -math.inf


# --- masks -------------------------------------------------------------------------------------------


def slope(field: VelocityField, x: Tensor, y: Tensor, w: Tensor, label: Tensor, p: float) -> float:
    """|Gamma(x) - Gamma(y)| / |x - y| in L^p(w), token by token."""
    u, v = (field(0.0, of.Particles(z, w, label))[0] for z in (x, y))
    size = [(w * (a - b).norm(dim=-1) ** p).sum() ** (1 / p) for a, b in ((u, v), (x, y))]
    return (size[0] / size[1]).item()


@pytest.mark.parametrize(("p", "least"), [(1.5, 0.7), (2.0, 0.75), (4.0, 0.9)])
def test_masked_averages_come_close_to_the_factor_of_hardy(p: float, least: float) -> None:
    n = 3000
    field = of.SoftmaxAttention([[0.0]], [[0.0]], [[1.0]], causal=True)
    e = torch.arange(1, n + 1, dtype=torch.float64)[:, None] ** (-1 / p)
    bound = constants(field, 1.0).log_lip(p).exp().item()
    assert bound == pytest.approx(p / (p - 1))
    x, w, label = torch.zeros(n, 1).double(), t(np.full(n, 1 / n)), torch.arange(n).double()
    assert least < slope(field, x, 1e-3 * e, w, label, p) / bound <= 1


def test_a_masked_average_has_no_constant_for_p_1_and_needs_none() -> None:
    field = of.SoftmaxAttention([[0.0]], [[0.0]], [[1.0]], causal=True)
    assert constants(field, 1.0).log_lip(1.0).item() == math.inf
    assert constants(field, 1.0).log_lip(math.inf).item() == 0
    harmonic = []
    for n in (10, 1000):
        x, w, label = torch.zeros(n, 1).double(), t(np.full(n, 1 / n)), torch.arange(n).double()
        y = x.clone()
        y[0] = 1e-3
        harmonic.append(slope(field, x, y, w, label, 1.0))
    assert harmonic == pytest.approx([sum(1 / k for k in range(1, n + 1)) for n in (10, 1000)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [1.5, 2.0, 6.0])
def test_masked_attention_stays_below_its_constant_with_weights_and_ties(kind: Any, p: float) -> None:
    rng, best = np.random.default_rng(0), 0.0
    Q, K, V = (0.3 * draw(2, 2, seed=i) for i in range(3))
    field = kind(Q, K, V, causal=True)
    bound = constants(field, 1.0).log_lip(p).exp().item()
    for _ in range(60):
        x, y = (in_ball(1, 8, 2, 1.0, rng)[0] for _ in range(2))
        w, label = t(rng.dirichlet(np.full(8, 0.4))), t(rng.integers(0, 5, 8))
        best = max(best, slope(field, x, (1 - 1e-3) * x + 1e-3 * y, w, label, p) / bound)
    assert 0.1 < best <= 1


def test_masked_sigmoid_and_unnormalised_attention_pay_no_factor() -> None:
    Q, K, V = (draw(2, 2, seed=i) for i in range(3))
    for kind in (of.SigmoidAttention, of.UnnormalisedAttention):
        masked, plain = (constants(kind(Q, K, V, causal=c), 1.0) for c in (True, False))
        assert masked.log_lip(1.0).item() == plain.log_lip(1.0).item()


def test_the_factor_of_hardy_multiplies_the_masked_head_only() -> None:
    Q, K, V = (draw(2, 2, seed=i) for i in range(3))
    masked, plain = of.SoftmaxAttention(Q, K, V, causal=True), of.SigmoidAttention(Q, K, V)
    a, b = constants(masked, 1.0), constants(plain, 1.0)
    want = a.log_x.exp() + b.log_x.exp() + 1.5 * a.log_hardy.exp() + b.log_mu.exp()
    both = constants(of.MultiHead([masked, plain]), 1.0)
    torch.testing.assert_close(both.log_lip(3.0).exp(), want)


# --- Sinkhorn ------------------------------------------------------------------------------------------


def steepest(field: VelocityField, x: Tensor, w: Tensor) -> float:
    """The norm in L2(w) of the derivative of the velocities in the tokens, from the dense matrix."""
    J = torch.autograd.functional.jacobian(lambda z: field(0.0, of.Particles(z, w))[0], x)
    root = w.sqrt()
    J = root[:, None, None, None] * J / root[None, None, :, None]
    return torch.linalg.matrix_norm(J.reshape(x.numel(), -1), 2).item()


@pytest.mark.thorough
@pytest.mark.slow(but_for=["1.0"])
@pytest.mark.parametrize("eps", [0.4, 1.0, 2.5])
def test_the_dense_derivative_of_sinkhorn_attention_stays_below_its_constant(eps: float) -> None:
    rng, best = np.random.default_rng(0), 0.0
    for seed in range(25):
        Q, K, V = (0.6 * draw(2, 2, seed=100 * seed + i) for i in range(3))
        field = of.SinkhornAttention(Q, K, V, of.Sinkhorn(eps, tol=1e-12))
        x, w = in_ball(1, 5, 2, 1.0, rng)[0], t(rng.dirichlet(np.ones(5)))
        best = max(best, steepest(field, x, w) / constants(field, 1.0).log_lip(2.0).exp().item())
    assert 0.4 < best <= 1


def test_the_constant_of_sinkhorn_attention_is_nearly_met_by_small_scores() -> None:
    field = of.SinkhornAttention([[0.1]], [[0.1]], [[2.0]], of.Sinkhorn(0.5, tol=1e-12))
    x, w = t([[-1.0], [1.0]]), t([0.3, 0.7])
    assert 0.95 < steepest(field, x, w) / constants(field, 1.0).log_lip(2.0).exp().item() <= 1


def test_sinkhorn_attention_has_a_constant_for_p_2_only_and_hands_that_on() -> None:
    sinkhorn = of.SinkhornAttention(EYE, EYE, EYE, eps=2.0)
    for field in (
        sinkhorn,
        sinkhorn + of.SoftmaxAttention(EYE, EYE, EYE),
        of.MultiHead([sinkhorn, sinkhorn]),
    ):
        constants(field, 1.0).log_lip(2.0)
        with pytest.raises(of.InputError, match="except for p = 2"):
            constants(field, 1.0).log_lip(1.0)
    c = constants(sinkhorn, 3.0)  # vR/eps, v a R^2/eps^2, (v/eps)(1 + a R^2/eps)
    got = torch.stack([c.log_sup, c.log_x, c.log_mu]).exp()
    torch.testing.assert_close(got, t([1.5, 2.25, 0.5 * 5.5]))


# --- the feed-forward block ------------------------------------------------------------------------------

ACTIVATIONS = [
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    functional.gelu,
    functional.silu,
    functional.softplus,
    functional.leaky_relu,
    functional.elu,
    torch.sin,
    nn.ReLU(),
    nn.SiLU(),
    nn.GELU(approximate="tanh"),
    nn.GELU(),
]


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_the_slope_of_a_known_activation_is_its_largest_one(act: Any) -> None:
    field = of.Perceptron(W=[[2.0]], U=[[0.5]], activation=act)
    z = torch.linspace(-20, 20, 400_001, dtype=torch.float64)
    steepest = (act(z).diff() / z.diff()).abs().max().item()
    assert steepest == pytest.approx(constants(field, 1.0).log_x.exp().item(), rel=1e-6)


@pytest.mark.parametrize("act", [torch.relu, functional.gelu, None])
def test_a_perceptron_with_bias_stays_below_its_constants(act: Any) -> None:
    W, U, b = draw(2, 5, seed=0), draw(5, 2, seed=1), draw(5, seed=2)
    field = of.Perceptron(W, U, b, activation=act)
    values, c = found(field, 1.5, 2), constants(field, 1.5)
    assert 0.25 < values[0] / c.log_sup.exp().item() <= 1
    assert 0.3 < values[1] / c.log_x.exp().item() <= 1 + 1e-9
    assert c.log_mu.item() == -math.inf


def test_an_unknown_activation_is_refused_until_it_states_its_constant() -> None:
    def cube(z: Tensor) -> Tensor:
        return z.clamp(-1, 1) ** 3

    field = of.Perceptron([[1.0]], [[1.0]], activation=cube)
    with pytest.raises(of.InputError, match="Lipschitz constant is not known"):
        constants(field, 1.0)
    cube.lipschitz = 3.0  # type: ignore[attr-defined]
    assert constants(field, 1.0).log_x.exp().item() == pytest.approx(3.0)


# --- shapes, ranges, registration ------------------------------------------------------------------------


def test_batches_and_times_give_what_each_member_gives_alone() -> None:
    Q, K, V = (draw(3, 2, 2, seed=i) for i in range(3))
    R = t([0.5, 1.0, 2.0])
    for kind in KINDS:
        field = kind(lambda s: s * Q, K, of.Layers(torch.stack([V, 2 * V])))
        c = constants(field, torch.stack([R, 2 * R]), 1.5)
        assert c.log_sup.shape == c.log_hardy.shape == (2, 3)
        for i in range(3):
            one = constants(kind(1.5 * Q[i], K[i], 2 * V[i]), R[i])
            torch.testing.assert_close(c.log_lip(2.0)[0, i], one.log_lip(2.0))
            torch.testing.assert_close(c.log_sup[0, i], one.log_sup)


def test_no_radius_overflows_before_the_logarithm_does() -> None:
    far = Radius(t(800.0))
    assert constants(of.SigmoidAttention(EYE, EYE, EYE), far).log_x.item() == pytest.approx(
        1600 - math.log(4)
    )
    assert constants(of.SoftmaxAttention(EYE, EYE, EYE), 1e150).log_mu.item() == pytest.approx(2e300)
    assert constants(of.SoftmaxAttention(EYE, EYE, EYE), 1e160).log_mu.item() == math.inf
    assert constants(of.SoftmaxAttention(EYE, EYE, 0 * EYE), 1e160).log_mu.item() == -math.inf
    assert constants(0.0 * of.UnnormalisedAttention(EYE, EYE, EYE), 1e160).log_lip(1.0).item() == -math.inf


@pytest.mark.parametrize("kind", [*KINDS, of.SinkhornAttention])
def test_constants_are_differentiable_in_radius_and_weights(kind: Any) -> None:
    Q, K, V = (draw(2, 2, seed=i).requires_grad_() for i in range(3))
    R = t([0.7, 1.1]).requires_grad_()
    assert torch.autograd.gradcheck(lambda *z: constants(kind(*z[:3]), z[3]).log_lip(2.0), (Q, K, V, R))


def test_factors_scale_by_their_size() -> None:
    field = of.SigmoidAttention(EYE, EYE, EYE)
    for c in (constants(-3.0 * field, 1.0), 3.0 * constants(field, 1.0)):
        torch.testing.assert_close(c.log_lip(1.0), constants(field, 1.0).log_lip(1.0) + math.log(3))


def test_a_field_of_a_user_can_be_registered_and_may_depend_on_time() -> None:
    class Push(of.VelocityField):
        pass

    with pytest.raises(of.InputError, match=r"constants\.register"):
        constants(Push(), 1.0)

    @constants.register(Push)
    def _(field: Push, R: Any, t: Any = 0.0) -> Constants:
        log_t = moment(t).t.log()
        return Constants(log_radius(R) + log_t, log_t, ZERO)

    assert constants(2 * Push(), 3.0, 5.0).log_sup.exp().item() == pytest.approx(30)


@pytest.mark.parametrize("R", [0.0, -1.0, math.nan, math.inf])
def test_a_radius_that_is_none_is_refused(R: float) -> None:
    with pytest.raises(of.InputError, match="R"):
        constants(of.SoftmaxAttention(EYE, EYE, EYE), R)


def test_other_wrong_input_is_refused_by_name() -> None:
    field = of.SoftmaxAttention(EYE, EYE, EYE)
    with pytest.raises(of.InputError, match=r"p = 0\.5"):
        constants(field, 1.0).log_lip(0.5)
    with pytest.raises(of.InputError, match="one time"):
        constants(field, 1.0, [0.0, 1.0])
    with pytest.raises(of.InputError, match="do not fit"):
        constants(of.SoftmaxAttention(EYE[:1], EYE, EYE), 1.0)
    with pytest.raises(of.InputError, match="finite"):
        constants(of.SoftmaxAttention(EYE, EYE, lambda s: EYE / (s - s)), 1.0)
    with pytest.raises(of.InputError, match="VelocityField"):
        constants(3.0, 1.0)
    with pytest.raises(of.InputError, match="no common p"):
        Constants(ZERO, ZERO, ZERO, order=2.0) + Constants(ZERO, ZERO, ZERO, order=3.0)


def test_norms_that_do_not_change_are_computed_once() -> None:
    field = of.MultiHead([of.L2Attention(EYE, EYE, EYE)], mix=[EYE]) + of.Perceptron(EYE, EYE)
    kept = Moment(t(0.0)).kept
    for s in (0.0, 1.0):
        constants(field, 1.0, Moment(t(s), kept))
    assert len(kept.norms) == 7  # K^T Q, W V, Q, K; W, U, W act(b)
    assert not kept.varied
    constants(of.SoftmaxAttention(EYE, EYE, lambda s: s * EYE), 1.0, Moment(t(1.0), kept))
    assert kept.varied


def test_the_factor_of_hardy_is_exact() -> None:
    assert [hardy_factor(p) for p in (1, 2, 3, math.inf)] == [math.inf, 2.0, 1.5, 1.0]
