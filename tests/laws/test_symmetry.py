"""Fields commute with the symmetries of their inputs, and add."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group
from torch import Tensor

import otflow as of
from tests import zoo
from tests.samples import ZERO, normal

CLOUD_PAIRS = [(f, m) for f, m in zoo.PAIRS if m in zoo.CLOUDS]
KINDS = {
    "softmax": of.SoftmaxAttention,
    "l2": of.L2Attention,
    "sinkhorn": of.SinkhornAttention,
    "sigmoid": of.SigmoidAttention,
    "unnormalised": of.UnnormalisedAttention,
}
TURN = torch.from_numpy(ortho_group.rvs(3, random_state=1))


def permuted(mu: of.Particles, p: Tensor) -> of.Particles:
    w, label = mu.w[..., p], None if mu.label is None else mu.label[..., p]
    return of.Particles(mu.x[..., p, :], w, label, mu.space)


@pytest.mark.parametrize(("field", "name"), CLOUD_PAIRS)
def test_a_field_does_not_care_about_the_order_in_which_tokens_are_listed(field: str, name: str) -> None:
    v, mu = zoo.FIELDS[field](), zoo.MEASURES[name]()
    p = torch.randperm(mu.n, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(v(0.3, permuted(mu, p))[0], v(0.3, mu)[0][..., p, :], rtol=1e-9, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("stepper", zoo.STEPPERS)
def test_a_flow_does_not_care_about_it_either(stepper: str) -> None:
    v, mu, method = zoo.FIELDS["softmax_causal"](), zoo.MEASURES["labelled"](), zoo.STEPPERS[stepper]()
    p = torch.randperm(mu.n, generator=torch.Generator().manual_seed(1))
    dt = None if method.adaptive else 0.25
    a, b = (of.flow(nu, v, method, t1=1.0, dt=dt).final.coords[0] for nu in (mu, permuted(mu, p)))
    torch.testing.assert_close(b, a[p], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("space", [of.Euclidean(), of.Sphere()], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_turns_with_its_tokens(kind: str, space: of.measures.Space) -> None:
    """With Q O^T, K O^T and O V O^T in the place of Q, K and V, the velocity at O x is O v(x)."""
    Q, K, V = zoo.QKV(30)
    x = torch.from_numpy(zoo.unit(6, 3))
    here = KINDS[kind](Q, K, V)(0.0, of.Particles(x, space=space))[0]
    turned = KINDS[kind](Q @ TURN.mT, K @ TURN.mT, TURN @ V @ TURN.mT)
    there = turned(0.0, of.Particles(x @ TURN.mT, space=space))[0]
    torch.testing.assert_close(there, here @ TURN.mT, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ["softmax", "l2", "sinkhorn"])
def test_attention_turns_with_a_gaussian(kind: str) -> None:
    Q, K, V = zoo.QKV(30)
    m, R = torch.tensor(normal(3)), torch.tensor(normal(3, 2))
    here = KINDS[kind](Q, K, V)(0.0, of.Gaussian(m, root=R))
    there = KINDS[kind](Q @ TURN.mT, K @ TURN.mT, TURN @ V @ TURN.mT)(
        0.0, of.Gaussian(TURN @ m, root=TURN @ R)
    )
    torch.testing.assert_close(there[0], TURN @ here[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(there[1], TURN @ here[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["softmax", "l2", "sinkhorn"])
def test_a_gaussian_does_not_care_which_root_of_its_covariance_holds_it(kind: str) -> None:
    """R and R U mean the same law; the velocity of the root is then B R U."""
    m, R = torch.tensor(normal(3)), torch.tensor(normal(3, 3))
    field = KINDS[kind](*zoo.QKV(30))
    one, other = field(0.0, of.Gaussian(m, root=R)), field(0.0, of.Gaussian(m, root=R @ TURN))
    torch.testing.assert_close(other[0], one[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(other[1], one[1] @ TURN, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_split_in_two_halves_moves_as_before(kind: str) -> None:
    mu = zoo.MEASURES["weighted"]()
    x, w = mu.nodes()
    split = of.Particles(torch.cat([x, x[:1]]), torch.cat([w[:1] / 2, w[1:], w[:1] / 2]))
    field = KINDS[kind](*zoo.QKV(30))
    v = field(0.0, split)[0]
    torch.testing.assert_close(v[:-1], field(0.0, mu)[0], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(v[-1], v[0], rtol=1e-12, atol=1e-13)


# --- algebra of fields -------------------------------------------------------------------------------


def combinations(f: of.VelocityField, g: of.VelocityField) -> list[tuple[of.VelocityField, float, float]]:
    return [
        (f + g, 1, 1), (f - g, 1, -1), (2 * f + g * 3, 2, 3), (-f, -1, 0), (-(f - 2 * g), -1, 2),
        (0.5 * (f + g) + f, 1.5, 0.5), (np.float64(0.5) * f, 0.5, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(7))
@pytest.mark.parametrize("name", ["batched", "sphere", "gaussian_batched"])
def test_fields_add_and_scale(name: str, case: int) -> None:
    f, g, mu = zoo.FIELDS["softmax"](), zoo.FIELDS["sinkhorn"](), zoo.MEASURES[name]()
    total, a, b = combinations(f, g)[case]
    assert isinstance(total, of.VelocityField)
    expected = a * f(0.0, mu) + b * g(0.0, mu)
    for found, wanted in zip(total(0.0, mu), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11)


def test_a_sum_of_fields_adds_off_the_cloud_too() -> None:
    f, g, mu = zoo.FIELDS["softmax"](), zoo.FIELDS["l2"](), zoo.MEASURES["cloud"]()
    points = normal(2, 3)
    expected = 2 * f.at(0.0, mu, points) - g.at(0.0, mu, points)
    torch.testing.assert_close((2 * f - g).at(0.0, mu, points), expected)


def test_a_sum_of_fields_jumps_where_any_of_them_does() -> None:
    f, g = (of.Perceptron(of.Layers(np.ones((2, 1, 1)), [0.0, t, 2.0]), [[1.0]]) for t in (0.5, 0.8))
    assert (f + 2 * g + ZERO).switches == (0.5, 0.8)


def test_a_sum_of_fields_lists_the_parameters_of_all() -> None:
    f, g = zoo.FIELDS["softmax"](), zoo.FIELDS["perceptron"]()
    assert len(list((f - g).tensors(torch.zeros(())))) == 6


def test_a_field_and_a_number_do_not_add() -> None:
    with pytest.raises(TypeError):
        zoo.FIELDS["softmax"]() + 1.0


def test_attention_and_descent_flow_together() -> None:
    """A block of attention minus a quadratic confinement, against the same written as one matrix."""
    mu, V = zoo.MEASURES["cloud"](), zoo.matrix(30)
    O3 = torch.zeros(3, 3, dtype=torch.float64)
    block = of.SoftmaxAttention(O3, O3, V) + of.SteepestDescent(of.Potential(zoo.harmonic), of.Wasserstein())
    final = of.flow(mu, block, of.Dopri5(rtol=1e-10, atol=1e-12), t1=1.0, save_at=[1.0]).final.x
    mean = mu.x.mean(0)
    decay = torch.exp(torch.tensor(-1.0))
    centre = torch.linalg.matrix_exp(V - torch.eye(3, dtype=torch.float64)) @ mean
    torch.testing.assert_close(final, centre + decay.double() * (mu.x - mean), rtol=1e-7, atol=1e-8)
