"""Velocities equal their definitions, summed densely in numpy by other code, in both regimes of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import otflow as of
from tests import dense
from tests.regimes import REGIMES, regime

Array = np.ndarray

KINDS: dict[str, Any] = {
    "softmax": of.SoftmaxAttention,
    "l2": of.L2Attention,
    "sigmoid": of.SigmoidAttention,
    "unnormalised": of.UnnormalisedAttention,
    "sinkhorn": lambda Q, K, V: of.SinkhornAttention(Q, K, V, of.Sinkhorn(1.0, tol=1e-12)),
}
PLAIN = [kind for kind in KINDS if kind != "sinkhorn"]
TOL = dict.fromkeys(KINDS, 1e-11) | {"sinkhorn": 1e-8}


@dataclass(frozen=True)
class Problem:
    """A random cloud with weights, matrices and labels, all numpy."""

    x: Array
    w: Array
    Q: Array
    K: Array
    V: Array
    label: Array
    points: Array
    label_of_points: Array

    @property
    def cloud(self) -> of.Particles:
        return of.Particles(self.x, self.w)

    @property
    def labelled(self) -> of.Particles:
        return of.Particles(self.x, self.w, self.label)


def problem(seed: int, n: int = 9, d: int = 3, k: int | None = None, scale: float = 0.8) -> Problem:
    """Weights include a zero when there is more than one token; labels have ties."""
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.1, 1.0, n)
    w[1:2] = 0.0
    Q, K = scale * rng.standard_normal((2, k or d, d))
    label = rng.integers(0, max(2, n // 2), n) / 4.0
    points = rng.standard_normal((5, d))
    return Problem(
        rng.standard_normal((n, d)),
        w / w.sum(),
        Q,
        K,
        rng.standard_normal((d, d)),
        label,
        points,
        np.append(rng.choice(label, 4), label.min() - 1),  # the last point sees nothing
    )


def gap(value: torch.Tensor, truth: Array) -> float:
    """Largest error relative to the largest entry."""
    assert value.shape == truth.shape
    return float(np.abs(value.numpy() - truth).max() / max(np.abs(truth).max(), 1e-300))


def truth(kind: str, p: Problem, points: Array | None = None, seen: Array | None = None) -> Array:
    at = p.x if points is None else points
    return dense.VELOCITIES[kind](p.Q, p.K, p.V, p.x, p.w, at, seen)


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 12),
    shape=st.integers(1, 5).flatmap(lambda d: st.tuples(st.just(d), st.integers(1, d))),
    scale=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_a_velocity_is_what_its_definition_says(
    kind: str, how: str, seed: int, n: int, shape: tuple[int, int], scale: float
) -> None:
    if kind == "sinkhorn":
        scale = min(scale, 0.5)  # scores of 30 between four tokens have condition number 1e10 and more
    p = problem(seed, n, *shape, scale=scale)
    with regime(how):
        v = KINDS[kind](p.Q, p.K, p.V)(0.0, p.cloud)[0]
    assert gap(v, truth(kind, p)) < TOL[kind]


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_uniform_weights_need_not_be_given(kind: str, how: str) -> None:
    p = problem(1)
    with regime(how):
        v = KINDS[kind](p.Q, p.K, p.V)(0.0, of.Particles(p.x))[0]
    uniform = np.full(len(p.x), 1 / len(p.x))
    assert gap(v, dense.VELOCITIES[kind](p.Q, p.K, p.V, p.x, uniform, p.x)) < TOL[kind]


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", PLAIN)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 12), k=st.integers(1, 3))
def test_a_causal_velocity_sums_over_labels_up_to_its_own_ties_included(
    kind: str, how: str, seed: int, n: int, k: int
) -> None:
    p = problem(seed, n, k=k)
    with regime(how):
        v = KINDS[kind](p.Q, p.K, p.V, causal=True)(0.0, p.labelled)[0]
    assert gap(v, truth(kind, p, seen=dense.visible(p.label))) < TOL[kind]


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_field_off_the_cloud_is_the_same_integral(kind: str, how: str) -> None:
    p = problem(2, k=2)
    with regime(how):
        v = KINDS[kind](p.Q, p.K, p.V).at(0.0, p.cloud, p.points)
    assert gap(v, truth(kind, p, p.points)) < TOL[kind]


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", PLAIN)
def test_a_causal_field_off_the_cloud_sees_labels_up_to_the_one_given(kind: str, how: str) -> None:
    p = problem(3)
    with regime(how):
        v = KINDS[kind](p.Q, p.K, p.V, causal=True).at(0.0, p.labelled, p.points, label=p.label_of_points)
    assert gap(v, truth(kind, p, p.points, dense.visible(p.label, p.label_of_points))) < TOL[kind]
    assert (v[-1] == 0).all()


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batched", ["x", "x, w", "Q, K, V", "Q", "V", "x, w, Q, K, V", "points"])
def test_members_of_a_batch_are_independent_problems(kind: str, how: str, batched: str) -> None:
    rng = np.random.default_rng(4)
    p = problem(4, n=6, k=2)
    parts = {"x": p.x, "w": p.w, "Q": p.Q, "K": p.K, "V": p.V, "points": p.points}
    for name in batched.split(", "):
        factor = rng.uniform(0.5, 1.5, (2, 3) + (1,) * parts[name].ndim)
        parts[name] = factor * parts[name]
    parts["w"] = parts["w"] / parts["w"].sum(-1, keepdims=True)
    x, w, Q, K, V, points = parts.values()
    batch = np.broadcast_shapes(x.shape[:-2], w.shape[:-1], Q.shape[:-2], K.shape[:-2], V.shape[:-2])
    with regime(how):
        field, mu = KINDS[kind](Q, K, V), of.Particles(np.broadcast_to(x, batch + x.shape[-2:]), w)
        on, off = field(0.0, mu)[0], field.at(0.0, mu, points)
    own = [(Q, 2), (K, 2), (V, 2), (x, 2), (w, 1)]
    for v, at in ((on, x), (off, points)):
        assert gap(v, dense.over_batch(dense.VELOCITIES[kind], *own, (at, 2))) < TOL[kind]


@pytest.mark.parametrize("how", REGIMES)
def test_every_member_of_a_batch_has_its_own_labels(how: str) -> None:
    p = problem(5, n=8)
    rng = np.random.default_rng(5)
    x, label = rng.standard_normal((3, 8, 3)), rng.integers(0, 4, (3, 8)).astype(float)
    with regime(how):
        v = of.SoftmaxAttention(p.Q, p.K, p.V, causal=True)(0.0, of.Particles(x, p.w, label))[0]
    members = [dense.softmax(p.Q, p.K, p.V, x[i], p.w, x[i], dense.visible(label[i])) for i in range(len(x))]
    assert gap(v, np.stack(members)) < 1e-11


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("t", "layer"), [(-1.0, 0), (0.0, 0), (0.5, 0), (1.0, 1), (1.4, 1), (1.5, 2), (9.0, 2)]
)
def test_layers_give_the_weights_of_the_layer_in_which_time_falls(
    kind: str, how: str, t: float, layer: int
) -> None:
    p, rng = problem(6), np.random.default_rng(6)
    stacks = 0.7 * rng.standard_normal((3, 3, 3, 3))
    with regime(how):
        field = KINDS[kind](*(of.Layers(s, [0.0, 1.0, 1.5, 2.0]) for s in stacks))
        v = field(t, p.cloud)[0]
    assert gap(v, dense.VELOCITIES[kind](*(s[layer] for s in stacks), p.x, p.w, p.x)) < TOL[kind]


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_may_be_functions_of_time(kind: str, how: str) -> None:
    p, t = problem(7), 0.7
    Q, K, V = (torch.from_numpy(a) for a in (p.Q, p.K, p.V))
    with regime(how):
        field = KINDS[kind](lambda t: torch.cos(t) * Q, lambda t: K / (1 + t), lambda t: (1 + t * t) * V)
        v = field(t, p.cloud)[0]
    now = (np.cos(t) * p.Q, p.K / (1 + t), (1 + t * t) * p.V)
    assert gap(v, dense.VELOCITIES[kind](*now, p.x, p.w, p.x)) < TOL[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", ["callable", "layers"])
def test_a_batch_of_times_gives_each_member_its_own_weights(kind: str, weights: str) -> None:
    p, ts = problem(8), torch.tensor([0.2, 1.3], dtype=torch.float64)
    Q, K, V = (torch.from_numpy(a) for a in (p.Q, p.K, p.V))
    if weights == "callable":
        field = KINDS[kind](*(lambda t, m=m: (1 + t)[..., None, None] * m for m in (Q, K, V)))
        factors = [1.2, 2.3]
    else:
        field = KINDS[kind](*(of.Layers(torch.stack([m, 0.5 * m])) for m in (Q, K, V)))
        factors = [1.0, 0.5]
    v = field(ts, of.Particles(np.stack([p.x, p.x]), p.w))[0]
    members = [dense.VELOCITIES[kind](c * p.Q, c * p.K, c * p.V, p.x, p.w, p.x) for c in factors]
    assert gap(v, np.stack(members)) < TOL[kind]


@pytest.mark.thorough
@pytest.mark.parametrize("eps", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("form", ["symmetric", "general"])
def test_sinkhorn_attention_divides_scores_and_velocity_by_eps(eps: float, how: str, form: str) -> None:
    p = problem(9, n=6)
    K = p.Q if form == "symmetric" else p.K
    with regime(how):
        field = of.SinkhornAttention(p.Q, K, p.V, of.Sinkhorn(eps, tol=1e-12))
        on, off = field(0.0, p.cloud)[0], field.at(0.0, p.cloud, p.points)
    for v, at in ((on, p.x), (off, p.points)):
        assert gap(v, dense.sinkhorn(p.Q, K, p.V, p.x, p.w, at, eps=eps)) < 1e-8


@pytest.mark.parametrize("how", REGIMES)
def test_heads_of_all_kinds_are_mixed_and_summed(how: str) -> None:
    p, rng = problem(10), np.random.default_rng(10)
    shapes = {"softmax": (1, 2), "l2": (2, 1), "sigmoid": (3, 3), "unnormalised": (2, 2), "sinkhorn": (2, 1)}
    heads = [
        (kind, *(0.6 * rng.standard_normal(s) for s in ((k, 3), (k, 3), (e, 3), (3, e))), kind != "sinkhorn")
        for kind, (k, e) in shapes.items()
    ]
    with regime(how):
        fields = [
            KINDS[kind](Q, K, V, **({"causal": True} if causal else {})) for kind, Q, K, V, _, causal in heads
        ]
        field = of.MultiHead(fields, mix=[W for _, _, _, _, W, _ in heads])
        on, off = field(0.0, p.labelled)[0], field.at(0.0, p.labelled, p.points, p.label_of_points)
    assert gap(on, dense.multihead(heads, p.x, p.w, p.x, dense.visible(p.label))) < 1e-8
    seen = dense.visible(p.label, p.label_of_points)
    assert gap(off, dense.multihead(heads, p.x, p.w, p.points, seen)) < 1e-8


def test_heads_without_a_mixing_matrix_are_summed() -> None:
    p, q = problem(11), problem(12)
    heads = [("softmax", p.Q, p.K, p.V, np.eye(3), False), ("l2", q.Q, q.K, q.V, np.eye(3), False)]
    field = of.MultiHead([of.SoftmaxAttention(p.Q, p.K, p.V), of.L2Attention(q.Q, q.K, q.V)])
    assert gap(field(0.0, p.cloud)[0], dense.multihead(heads, p.x, p.w, p.x)) < 1e-11


@pytest.mark.parametrize("bias", [True, False])
def test_a_perceptron_acts_on_every_token_alike(bias: bool) -> None:
    p, rng = problem(13), np.random.default_rng(13)
    W, U, b = rng.standard_normal((3, 5)), rng.standard_normal((5, 3)), rng.standard_normal(5)
    for act, plain in ((torch.relu, lambda z: np.maximum(z, 0)), (torch.tanh, np.tanh)):
        field = of.Perceptron(W, U, b if bias else None, act)
        on, off = field(0.0, p.cloud)[0], field.at(0.0, p.cloud, p.points)
        for v, at in ((on, p.x), (off, p.points)):
            assert gap(v, dense.perceptron(W, U, b if bias else np.zeros(5), plain, at)) < 1e-14


def test_a_perceptron_may_depend_on_time_and_on_the_member_of_the_batch() -> None:
    rng = np.random.default_rng(14)
    x, W, U = rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 5, 3))
    b = rng.standard_normal((2, 5))
    v = of.Perceptron(W, U, lambda t: torch.exp(t) * torch.from_numpy(b), torch.tanh)(0.5, of.Particles(x))[0]
    members = [dense.perceptron(W[i], U[i], np.exp(0.5) * b[i], np.tanh, x[i]) for i in range(2)]
    assert gap(v, np.stack(members)) < 1e-14


def test_a_block_is_the_sum_of_attention_and_feed_forward() -> None:
    p, rng = problem(15), np.random.default_rng(15)
    W, U, b = rng.standard_normal((3, 5)), rng.standard_normal((5, 3)), rng.standard_normal(5)
    field = of.SoftmaxAttention(p.Q, p.K, p.V) - 0.5 * of.Perceptron(W, U, b, torch.tanh)
    for v, at in ((field(0.0, p.cloud)[0], p.x), (field.at(0.0, p.cloud, p.points), p.points)):
        block = dense.softmax(p.Q, p.K, p.V, p.x, p.w, at) - 0.5 * dense.perceptron(W, U, b, np.tanh, at)
        assert gap(v, block) < 1e-11


@pytest.mark.parametrize("kind", PLAIN)
def test_on_the_sphere_the_velocity_loses_its_normal_part(kind: str) -> None:
    p = problem(16)
    x = p.x / np.linalg.norm(p.x, axis=1, keepdims=True)
    v = KINDS[kind](p.Q, p.K, p.V)(0.0, of.Particles(x, p.w, space=of.Sphere()))[0]
    flat = dense.VELOCITIES[kind](p.Q, p.K, p.V, x, p.w, x)
    assert gap(v, flat - (flat * x).sum(1, keepdims=True) * x) < 1e-11


@pytest.mark.slow(but_for=["softmax", "l2", "sigmoid", "unnormalised"])
@pytest.mark.parametrize("kind", KINDS)
def test_1500_tokens_stream_to_the_same_velocity(kind: str) -> None:
    p = problem(17, n=1500, k=2, scale=0.6)
    v = KINDS[kind](p.Q, p.K, p.V)(0.0, p.cloud)[0]
    assert gap(v, truth(kind, p)) < TOL[kind]


@pytest.mark.parametrize("kind", PLAIN)
def test_1500_labelled_tokens_stream_to_the_same_causal_velocity(kind: str) -> None:
    p = problem(18, n=1500, scale=0.6)
    v = KINDS[kind](p.Q, p.K, p.V, causal=True)(0.0, p.labelled)[0]
    assert gap(v, truth(kind, p, seen=dense.visible(p.label))) < TOL[kind]


# --- far from the origin, and sharp -------------------------------------------------------------------


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("offset", [1e3, 1e6])
@pytest.mark.parametrize("kind", ["softmax", "l2"])
def test_what_a_far_cloud_computes_with_differences_of_tokens_keeps_all_digits(
    kind: str, offset: float, how: str
) -> None:
    """Values and queries that do not see the offset leave the scores as the only place to lose digits."""
    p = problem(27, n=7)
    x, V, Q = p.x + np.array([offset, 0.0, 0.0]), p.V.copy(), p.Q.copy()
    V[:, 0] = 0.0
    Q[:, 0] /= offset
    Q, K = (Q, p.K) if kind == "softmax" else (p.K, p.K)
    with regime(how):
        v = KINDS[kind](Q, K, V)(0.0, of.Particles(x, p.w))[0]
    assert gap(v, dense.exact(kind, Q, K, V, x, p.w, x)) < 1e-12


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", ["softmax", "l2"])
def test_a_cloud_of_spread_one_at_distance_1000_keeps_its_digits(kind: str, how: str) -> None:
    p = problem(19, n=7, scale=0.5)
    x = p.x + np.array([1e3, -1e3, 5e2])
    with regime(how):
        v = KINDS[kind](p.Q, p.K, p.V)(0.0, of.Particles(x, p.w))[0].numpy()
    # Velocities have size 1e3 and one rounding of them 1e-13; scores may lose as much.
    assert np.abs(v - dense.exact(kind, p.Q, p.K, p.V, x, p.w, x)).max() < 3e-11


@pytest.mark.parametrize("how", REGIMES)
def test_l2_attention_with_one_matrix_does_not_see_where_the_origin_is(how: str) -> None:
    p = problem(20, n=7)
    far = p.x + 1e3
    near = far - 1e3  # the same cloud after rounding, and this difference is exact
    with regime(how):
        field = of.L2Attention(p.Q, p.Q, p.V)
        v, u = (field(0.0, of.Particles(x, p.w))[0].numpy() for x in (far, near))
    assert np.abs(v - u - p.V @ np.full(3, 1e3)).max() < 3e-11


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("form", ["symmetric", "general"])
def test_sinkhorn_attention_moves_a_far_cloud_like_a_near_one_plus_the_drift_of_its_mean(
    form: str, how: str
) -> None:
    p = problem(21, n=7)
    far = p.x + 1e3
    near = far - 1e3
    with regime(how):
        field = of.SinkhornAttention(
            p.Q, p.Q if form == "symmetric" else p.K, p.V, of.Sinkhorn(1.0, tol=1e-13)
        )
        v, u = (field(0.0, of.Particles(x, p.w))[0].numpy() for x in (far, near))
    assert np.abs(v - u - p.V @ np.full(3, 1e3)).max() < 1e-10


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", ["softmax", "l2", "sigmoid"])
def test_scores_of_size_a_million_pick_the_token_that_exact_arithmetic_picks(kind: str, how: str) -> None:
    p = problem(22, n=7)
    Q = 1e6 * p.Q if kind != "l2" else 1e3 * p.Q
    K = p.K if kind != "l2" else 1e3 * p.K
    with regime(how):
        v = KINDS[kind](Q, K, p.V)(0.0, p.cloud)[0].numpy()
    exact = dense.exact(kind, Q, K, p.V, p.x, p.w, p.x)
    # Rounding a score of 1e6 moves it by 1e-10, and a weight by as much.
    assert np.abs(v - exact).max() < 1e-8 * np.abs(exact).max()


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", ["softmax", "l2"])
def test_tokens_that_tie_at_sharp_scores_share_the_weight_equally(kind: str, how: str) -> None:
    x = np.array([[1.0, 2.0], [1.0, -2.0], [0.0, 5.0]])  # the first two have the same first coordinate
    e, beta = np.array([[1.0, 0.0]]), 1e6
    with regime(how):
        v = KINDS[kind](
            beta * e if kind == "softmax" else 1e3 * e, e if kind == "softmax" else 1e3 * e, np.eye(2)
        )(0.0, of.Particles(x))[0].numpy()
    assert np.abs(v[:2] - [1.0, 0.0]).max() < 1e-15
    lone = {"softmax": [2 / 3, 5 / 3], "l2": [0.0, 5.0]}  # scores of the third are all zero for softmax
    assert np.abs(v[2] - lone[kind]).max() < 1e-14


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("form", ["symmetric", "general"])
def test_sharp_sinkhorn_attention_of_separated_tokens_leaves_each_to_itself(form: str, how: str) -> None:
    x = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0], [4.0, 4.0]])
    K = np.eye(2) if form == "symmetric" else np.array([[1.0, 0.3], [0.2, 1.0]])
    eps = 1e-3  # the gain of exchanging two tokens is some 10 / eps: nothing is exchanged
    with regime(how):
        v = of.SinkhornAttention(np.eye(2), K, np.eye(2), eps)(0.0, of.Particles(x))[0].numpy()
    assert np.abs(eps * v - x).max() < 1e-8


# --- what is not seen has no influence ----------------------------------------------------------------


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("many", [1, 9])
@pytest.mark.parametrize("far", [1e3, 1e6, 1e10])
@pytest.mark.parametrize("kind", ["softmax", "l2", "sinkhorn"])
def test_far_tokens_without_mass_change_no_digit_of_the_others(
    kind: str, far: float, many: int, how: str
) -> None:
    p = problem(23, n=6, scale=0.5)
    x, w = np.vstack([p.x, np.tile([far, 0.0, -far], (many, 1))]), np.append(p.w, np.zeros(many))
    with regime(how):
        field = KINDS[kind](p.Q, p.K, p.V)
        with_them, without = field(0.0, of.Particles(x, w))[0][:6], field(0.0, p.cloud)[0]
    assert gap(with_them, without.numpy()) < 1e-11


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("many", [1, 9])
@pytest.mark.parametrize("far", [1e3, 1e6, 1e10])
@pytest.mark.parametrize("kind", PLAIN)
def test_far_tokens_of_the_future_change_no_digit_of_the_past(
    kind: str, far: float, many: int, how: str
) -> None:
    p = problem(24, n=6, scale=0.5)
    x = np.vstack([p.x, np.tile([far, 0.0, -far], (many, 1))])
    label = np.append(p.label, np.full(many, p.label.max() + 1))
    with regime(how):
        field = KINDS[kind](p.Q, p.K, p.V, causal=True)
        # The far tokens' own velocities may overflow, which only `evaluate` lets pass.
        with_them = field.evaluate(torch.tensor(0.0), of.Particles(x, label=label))[0][0][:6]
        without = field(0.0, of.Particles(p.x, label=p.label))[0]
    if kind in ("sigmoid", "unnormalised"):
        without = without * 6 / (6 + many)  # these do not renormalise the weights
    assert gap(with_them, without.numpy()) < 1e-11


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", ["softmax", "l2"])
def test_an_outlier_that_nobody_attends_to_costs_no_digits(kind: str, how: str) -> None:
    x = np.array([[0.5, 0.1], [0.2, 0.9], [0.7, 0.4], [-1e8, 0.0]])  # scores with it are below -1e7
    Q, V = np.eye(2), np.array([[1.0, 2.0], [0.0, 1.0]])
    with regime(how):
        v = KINDS[kind](Q, Q, V)(0.0, of.Particles(x))[0][:3]
    assert gap(v, dense.exact(kind, Q, Q, V, x, np.full(4, 0.25), x[:3])) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_of_any_size_keep_their_order(dtype: torch.dtype) -> None:
    p = problem(25, n=6)
    x, Q, K, V = (torch.from_numpy(a).to(dtype) for a in (p.x, p.Q, p.K, p.V))
    field, order = of.SoftmaxAttention(Q, K, V, causal=True), np.arange(6.0)
    seconds = of.Particles(x, label=1.7e9 + order)  # float32 has no room for these
    assert torch.equal(field(0.0, seconds)[0], field(0.0, of.Particles(x, label=order))[0])


def test_unnormalised_attention_that_overflows_raises_with_what_came_out() -> None:
    eye, mu = np.eye(2), of.Particles([[100.0, 0.0], [0.0, 1.0]])
    field = of.UnnormalisedAttention(eye, eye, eye)
    for call in (lambda: field(0.0, mu)[0], lambda: field.at(0.0, mu, mu.x)):
        with pytest.raises(of.errors.NotFiniteError, match=r"UnnormalisedAttention.*not finite.*rescale"):
            call()


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_float32_tokens_have_velocities_to_float32_accuracy(kind: str, how: str) -> None:
    p = problem(26)
    x, w, Q, K, V = (a.astype(np.float32) for a in (p.x, p.w, p.Q, p.K, p.V))
    with regime(how):
        v = KINDS[kind](Q, K, V)(0.0, of.Particles(x, w))[0]
    exact = dense.VELOCITIES[kind](*(a.astype(float) for a in (Q, K, V, x, w, x)))
    assert v.dtype == torch.float32
    assert gap(v.double(), exact) < 5e-6
