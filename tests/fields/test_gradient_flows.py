"""Attention as a gradient flow: the descent equals the field, or an error names the condition that fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from tests import zoo
from tests.laws.test_gradient_structure import derivative

A = zoo.spd() / 2
INDEFINITE = torch.diag(torch.tensor([1.0, -0.5, 0.3])).double()
SINGULAR = torch.outer(torch.tensor([1.0, 2.0, -1.0]), torch.tensor([1.0, 2.0, -1.0])).double() / 4
I = torch.eye(3, dtype=torch.float64)  # noqa: E741
P = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 0.5]], dtype=torch.float64)

Make = Callable[[Tensor, Tensor, Tensor], of.VelocityField]
KINDS: dict[str, Make] = {
    "softmax": of.SoftmaxAttention,
    "unnormalised": of.UnnormalisedAttention,
    "sigmoid": of.SigmoidAttention,
    "sinkhorn": lambda Q, K, V: of.SinkhornAttention(Q, K, V, of.Sinkhorn(0.8, tol=1e-13)),
}
VALUES = {"descent": -1.0, "ascent": 1.0, "half": -0.5}


def agree(field: of.VelocityField, descent: of.SteepestDescent, mu: of.Measure, tol: float = 1e-10) -> None:
    for v, w in zip(field(0.0, mu), descent(0.0, mu), strict=True):
        torch.testing.assert_close(v, w, rtol=tol, atol=tol)


@pytest.mark.parametrize("name", zoo.CLOUDS)
@pytest.mark.parametrize("c", VALUES)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_equals_its_descent_on_clouds(kind: str, c: str, name: str) -> None:
    field = KINDS[kind](A, I, VALUES[c] * A)
    descent = field.as_gradient_flow()
    assert isinstance(descent, of.SteepestDescent)
    agree(field, descent, zoo.MEASURES[name]())


@pytest.mark.parametrize("scores", [A, INDEFINITE, SINGULAR], ids=["definite", "indefinite", "singular"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_preconditioned_value_matrix_is_a_metric(kind: str, sign: float, scores: Tensor) -> None:
    field = KINDS[kind](scores, I, sign * P @ scores)
    descent = field.as_gradient_flow()
    assert isinstance(descent.metric, of.Twisted)
    agree(field, descent, zoo.MEASURES["weighted"]())


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_energy_falls_at_the_rate_of_the_metric(kind: str) -> None:
    """dF/dt = -<v, v> along the attention flow itself."""
    field = KINDS[kind](A, I, -A)
    descent, mu = field.as_gradient_flow(), zoo.MEASURES["weighted"]()
    v = field(0.0, mu)
    rate = derivative(descent.energy, mu, v)
    assert float(rate) == pytest.approx(-float(descent.metric.inner(mu, v, v)), rel=1e-8)


def test_only_the_product_of_queries_and_keys_matters() -> None:
    Q = zoo.matrix(3, 2, 3)
    field = of.SoftmaxAttention(Q, Q, -Q.mT @ Q)
    agree(field, field.as_gradient_flow(), zoo.MEASURES["cloud"]())


@pytest.mark.parametrize("beta", [0.5, 4.0])
@pytest.mark.parametrize("kind", ["softmax", "unnormalised"])
def test_on_the_sphere_attention_ascends_the_energy_of_beta(kind: str, beta: float) -> None:
    field = KINDS[kind](beta * I, I, I)
    descent, mu = field.as_gradient_flow(), zoo.MEASURES["sphere"]()
    agree(field, descent, mu)
    x, w = mu.nodes()
    E = (w[:, None] * torch.exp(beta * x @ x.mT) * w).sum() / (2 * beta)
    assert float(descent.energy(mu)) == pytest.approx(-float(E), rel=1e-12)


# --- Gaussians -----------------------------------------------------------------------------------------


def centred(name: str) -> of.Gaussian:
    mu = zoo.MEASURES[name]()
    return mu.at([0 * mu.mean, mu.root])


GAUSSIAN_FIELDS: dict[str, Callable[[], of.VelocityField]] = {
    "softmax": lambda: of.SoftmaxAttention(A, I, -A),
    "softmax_ascent": lambda: of.SoftmaxAttention(A, I, 2 * A),
    "softmax_preconditioned": lambda: of.SoftmaxAttention(A, I, -P @ A),
    "sinkhorn": lambda: of.SinkhornAttention(A, I, -A, eps=0.7),
    "l2": lambda: of.L2Attention(0.6 * zoo.matrix(5), zoo.matrix(5), -0.6 * zoo.matrix(5).mT @ zoo.matrix(5)),
    "multihead": lambda: of.MultiHead([of.SoftmaxAttention(A, I, -A), of.SoftmaxAttention(P, I, -P)]),
    "mixed": lambda: of.MultiHead(
        [of.SoftmaxAttention(A, I, I), of.SinkhornAttention(P, I, I)], mix=[-A, -P]
    ),
}


@pytest.mark.parametrize("name", zoo.GAUSSIANS)
@pytest.mark.parametrize("field", GAUSSIAN_FIELDS)
def test_attention_equals_its_descent_on_centred_gaussians(field: str, name: str) -> None:
    f = GAUSSIAN_FIELDS[field]()
    agree(f, f.as_gradient_flow(of.Gaussian), centred(name))


@pytest.mark.parametrize("c", [1.0, -2.0])
def test_skew_scores_have_an_energy_on_gaussians(c: float) -> None:
    J = torch.tensor([[0.0, 1.0, 0.2], [-1.0, 0.0, -0.4], [-0.2, 0.4, 0.0]], dtype=torch.float64)
    field = of.SoftmaxAttention(J, I, c * J)
    agree(field, field.as_gradient_flow(of.Gaussian), centred("gaussian"))
    with pytest.raises(of.InputError, match=r"A = A\^T fails"):
        field.as_gradient_flow()


@pytest.mark.parametrize("field", ["softmax", "l2", "multihead", "mixed"])
def test_off_centre_gaussians_are_refused_where_the_energy_would_be_another(field: str) -> None:
    f, mu = GAUSSIAN_FIELDS[field](), zoo.MEASURES["gaussian"]()
    descent = f.as_gradient_flow(of.Gaussian)
    with pytest.raises(of.InputError, match="centred"):
        descent(0.0, mu)
    for g in (descent, 2 * descent):
        with pytest.raises(of.InputError, match="centred"):
            of.flow(mu, g, of.JKO(), t1=0.1, dt=0.1)


def test_sinkhorn_attention_descends_its_energy_off_centre_too() -> None:
    f = GAUSSIAN_FIELDS["sinkhorn"]()
    agree(f, f.as_gradient_flow(of.Gaussian), zoo.MEASURES["gaussian"]())


def test_heads_of_one_geometry_add_up() -> None:
    field = of.MultiHead(
        [of.SigmoidAttention(A, I, I), of.UnnormalisedAttention(P / 3, I, -P / 3)], mix=[-A, I]
    )
    agree(field, field.as_gradient_flow(), zoo.MEASURES["weighted"]())


def test_sums_of_gradient_flows_are_gradient_flows() -> None:
    pull = of.SteepestDescent(of.Potential(zoo.harmonic), of.Wasserstein())
    field = 2 * of.SigmoidAttention(A, I, -A) + 0.5 * pull
    agree(field, field.as_gradient_flow(), zoo.MEASURES["weighted"]())


# --- conditions that fail --------------------------------------------------------------------------------

SKEW = A + torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double()
FAILS: dict[str, tuple[Callable[[], of.VelocityField], str]] = {
    "scores": (lambda: of.SoftmaxAttention(SKEW, I, -SKEW), r"A = A\^T fails"),
    "values": (lambda: of.SoftmaxAttention(A, I, zoo.matrix(9)), "V = -PA or V = PA fails"),
    "indefinite": (lambda: of.SigmoidAttention(A, I, INDEFINITE @ A), "V = -PA or V = PA fails"),
    "no scores": (lambda: of.SoftmaxAttention(0 * A, I, I), "V = -PA"),
    "causal": (lambda: of.SoftmaxAttention(A, I, -A, causal=True), "causal"),
    "time": (lambda: of.SoftmaxAttention(zoo.turning(3), zoo.turning(4), zoo.turning(5)), "vary in time"),
    "batch": (lambda: of.SoftmaxAttention(A.expand(2, 3, 3), I, -A), "batch"),
    "heads": (lambda: of.MultiHead([of.SoftmaxAttention(A, I, -A)]), "metric each"),
    "metrics": (lambda: of.SoftmaxAttention(A, I, -A) + of.SigmoidAttention(A, I, -A), "different metrics"),
    "l2": (lambda: of.L2Attention(A, A, -A @ A), "Gaussian"),
    "perceptron": (zoo.perceptron, "no energy"),
    "shape": (lambda: of.SoftmaxAttention(A, I, A[:2]), "shape"),
}


@pytest.mark.parametrize("case", FAILS)
def test_the_condition_that_fails_is_named(case: str) -> None:
    make, words = FAILS[case]
    with pytest.raises(of.InputError, match=words):
        make().as_gradient_flow()


def test_l2_attention_needs_parallel_queries_and_keys() -> None:
    with pytest.raises(of.InputError, match="Q = cK fails"):
        of.L2Attention(zoo.matrix(5), zoo.matrix(6), A).as_gradient_flow(of.Gaussian)


@pytest.mark.thorough
def test_jko_and_explicit_steps_of_attention_agree_as_steps_shrink() -> None:
    field = of.SoftmaxAttention(A, I, -A)
    descent, mu = (
        field.as_gradient_flow(),
        of.Particles(0.8 * np.random.default_rng(0).standard_normal((6, 3))),
    )
    exact = of.flow(mu, field, of.Dopri5(), t1=0.5).final.x
    gaps = [
        float((of.flow(mu, descent, of.JKO(), t1=0.5, dt=h).final.x - exact).norm()) for h in (0.05, 0.025)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(2.0, abs=0.3)
