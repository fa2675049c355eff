"""What an object holds: copies of what is plain, and parameters themselves, by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import otflow as of
from otflow.base.parameters import Derived, Parametric, tensors
from tests.samples import normal

D = 2
MU = of.Particles(normal(5, D))
NARROW = of.Gaussian([0.1, -0.2], root=[[0.3, 0.0], [0.1, 0.2]])


def positive(seed: int) -> np.ndarray:
    a = 0.3 * np.random.default_rng(seed).standard_normal((D, D))
    return a @ a.T + 0.2 * np.eye(D)


def descent(energy: of.Energy, metric: of.Metric | None = None) -> of.SteepestDescent:
    return of.SteepestDescent(energy, metric or of.Wasserstein())


def potential(A: Any) -> of.Energy:
    return of.QuadraticPotential([[1.0, 0.0], [0.0, 2.0]]) + of.ExponentialInteraction(A)


# Each makes a field of three symmetric positive definite matrices, whatever holds them.
KINDS: dict[str, tuple[Callable[[Any, Any, Any], of.VelocityField], of.Measure]] = {
    "softmax": (of.SoftmaxAttention, MU),
    "l2": (of.L2Attention, MU),
    "sigmoid": (of.SigmoidAttention, MU),
    "unnormalised": (of.UnnormalisedAttention, MU),
    "sinkhorn": (of.SinkhornAttention, MU),
    "softmax on Gaussians": (of.SoftmaxAttention, NARROW),
    "heads": (lambda Q, K, V: of.MultiHead([of.SoftmaxAttention(Q, K, np.eye(D))] * 2, [V, V]), MU),
    "perceptron": (lambda W, U, b: of.Perceptron(W, U, b[0]), MU),
    "layers": (lambda Q, K, V: of.SoftmaxAttention(of.Layers([Q, K]), of.Layers([K, Q]), V), MU),
    "sum": (lambda Q, K, V: 2 * of.SigmoidAttention(Q, K, V) - of.Perceptron(V, Q), MU),
    "projection": (lambda Q, K, V: of.GaussianProjection(of.UnnormalisedAttention(Q, K, V)), NARROW),
    "exponential": (lambda Q, K, V: descent(of.ExponentialInteraction(Q)), MU),
    "sigmoid energy": (lambda Q, K, V: descent(of.SigmoidInteraction(Q)), MU),
    "squared scores": (lambda Q, K, V: descent(of.SquaredScores(Q)), MU),
    "self transport": (lambda Q, K, V: descent(of.SelfTransport(Q)), MU),
    "l2 energy": (lambda Q, K, V: descent(of.L2Energy(Q)), NARROW),
    "quadratic potential": (lambda Q, K, V: descent(of.QuadraticPotential(Q, K[0])), MU),
    "quadratic interaction": (lambda Q, K, V: descent(of.QuadraticInteraction(Q)), MU),
    "sum of energies": (lambda Q, K, V: descent(2 * potential(Q)), MU),
    "partition": (lambda Q, K, V: descent(potential(Q), of.Twisted(of.metrics.Partition(K))), MU),
    "matrix": (lambda Q, K, V: descent(of.QuadraticPotential(Q), of.Twisted(matrix=K)), MU),
}


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.from_numpy(positive(seed))) for seed in (1, 2, 3)]


@pytest.mark.parametrize("name", KINDS)
def test_after_an_optimisers_step_a_field_is_as_one_built_anew(name: str) -> None:
    build, mu = KINDS[name]
    three = parameters()
    field = build(*three)
    before = field(0.5, mu)
    assert {id(p) for p in field.parameters()} <= {id(p) for p in three}
    optimiser = torch.optim.SGD(field.parameters(), lr=1e-2)
    for _ in range(2):  # twice: no graph is left over from the first time
        optimiser.zero_grad()
        sum(part.square().sum() for part in field(0.5, mu)).backward()
        optimiser.step()
    after = field(0.5, mu)
    assert not torch.equal(after[-1], before[-1])
    for held in (three, [p.detach().clone() for p in three], [p.detach().numpy() for p in three]):
        for own, new in zip(after, build(*held)(0.5, mu), strict=True):
            torch.testing.assert_close(own, new, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", KINDS)
def test_a_later_change_of_plain_tensors_changes_nothing(name: str) -> None:
    build, mu = KINDS[name]
    three = [p.detach().clone() for p in parameters()]
    field = build(*three)
    before = field(0.5, mu)
    for a in three:
        a.mul_(3.0)
    for old, new in zip(before, field(0.5, mu), strict=True):
        assert torch.equal(old, new)
    assert list(field.parameters()) == []


@pytest.mark.parametrize("name", KINDS)
def test_a_flow_is_differentiated_in_all_parameters(name: str) -> None:
    build, mu = KINDS[name]
    field = build(*parameters())
    final = of.flow(mu, field, of.Euler(), t1=0.2, dt=0.1).final
    sum(c.square().sum() for c in final.coords).backward()
    for one, p in field.named_parameters():
        assert p.grad is not None, one
        assert bool(p.grad.any()), one


def test_a_matrix_that_learns_is_not_the_identity_for_good() -> None:
    V = nn.Parameter(torch.eye(D, dtype=torch.float64))
    frozen = nn.Parameter(torch.eye(D, dtype=torch.float64), requires_grad=False)
    field, other = (of.SoftmaxAttention(np.eye(D), np.eye(D), v) for v in (V, frozen))
    before = field(0.0, MU)[0].detach()
    with torch.no_grad():
        V.mul_(2.0)
        frozen.mul_(2.0)
    torch.testing.assert_close(field(0.0, MU)[0], 2 * before)
    torch.testing.assert_close(other(0.0, MU)[0], 2 * before)


def test_a_matrix_that_is_no_longer_symmetric_is_refused_when_it_is_used() -> None:
    A = nn.Parameter(torch.from_numpy(positive(1)))
    energy = of.ExponentialInteraction(A)
    with torch.no_grad():
        A[0, 1] += 1.0
    with pytest.raises(of.InputError, match="symmetric"):
        energy(MU)


def test_a_metric_that_is_no_longer_positive_is_refused_when_it_is_used() -> None:
    M = nn.Parameter(torch.from_numpy(positive(1)))
    field = descent(of.QuadraticPotential(np.eye(D)), of.Twisted(matrix=M))
    M.data.neg_()  # which does not change the version of the tensor
    with pytest.raises(of.InputError, match="positive definite"):
        field(0.0, MU)


def test_names_say_where_a_parameter_is() -> None:
    Q, K, V = parameters()
    heads = of.MultiHead([of.SoftmaxAttention(Q, K, V), of.SoftmaxAttention(Q, np.eye(D), V)], [V, Q])
    field = heads + 0.5 * of.Perceptron(of.Layers([V, K]), nn.Parameter(Q.detach()))
    assert [name for name, _ in field.named_parameters()] == [
        "terms.0.heads.0.Q",
        "terms.0.heads.0.K",
        "terms.0.heads.0.V",
        "terms.1.U",
    ]
    assert list(field.state_dict())[-3:] == ["terms.1.W.0", "terms.1.W.1", "terms.1.U"]


class Depth(nn.Module):
    """t -> slope * (1 + t), a matrix (1, 1) that depends on time."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1, 1, dtype=torch.float64))

    def forward(self, t: Tensor) -> Tensor:
        return self.slope * (1 + t)


def test_modules_within_a_field_are_learnt() -> None:
    field = of.Perceptron([[1.0]], Depth(), activation=nn.PReLU(dtype=torch.float64))
    assert dict(field.named_parameters()).keys() == {"U.slope", "activation.weight"}
    final = of.flow(of.Particles([[1.0], [-1.0]]), field, of.Euler(), t1=0.2, dt=0.1).final
    final.x.square().sum().backward()
    assert all(p.grad is not None for p in field.parameters())


def test_the_potential_of_a_network_is_learnt() -> None:
    net = nn.Sequential(nn.Linear(D, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(-2)).double()
    field = descent(of.Potential(net))
    assert len(list(field.parameters())) == 4
    of.flow(MU, field, of.Euler(), t1=0.2, dt=0.1).final.x.square().sum().backward()
    assert net[0].weight.grad is not None


class Drift(of.VelocityField):
    """A field of a user, who knows of no protocol."""

    def __init__(self, c: Tensor) -> None:
        self.c, self.itself = c, self

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return of.Tangent([self.c * mu.coords[0]])


def test_a_field_of_a_user_needs_no_more_than_attributes() -> None:
    c = nn.Parameter(torch.ones(D, dtype=torch.float64))
    field = Drift(c)
    of.flow(MU, field, of.Euler(), t1=0.2, dt=0.1).final.x.sum().backward()
    assert [name for name, _ in field.named_parameters()] == ["c"]
    assert c.grad is not None


def test_values_go_to_a_file_and_back() -> None:
    build, mu = KINDS["sum"]
    one, other = build(*parameters()), build(*(nn.Parameter(2 * p.detach()) for p in parameters()))
    assert not torch.equal(one(0.0, mu)[0], other(0.0, mu)[0])
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(0.0, mu)[0], other(0.0, mu)[0])


def test_values_of_another_field_are_refused() -> None:
    Q, K, V = parameters()
    field = of.SoftmaxAttention(Q, K, V)
    with pytest.raises(of.InputError, match=r"missing are \['V'\], unknown are \['W'\]"):
        field.load_state_dict({"Q": Q, "K": K, "W": V})
    with pytest.raises(of.InputError, match=r"state\['V'\].shape"):
        field.load_state_dict({"Q": Q, "K": K, "V": V[:1]})


def test_conversion_keeps_parameters_and_replaces_what_is_plain() -> None:
    Q = parameters()[0]
    field = of.SoftmaxAttention(Q, np.eye(D), of.Layers(np.ones((3, D, D)), dt=0.1)) + of.Perceptron(Q, Q)
    assert field.to(dtype=torch.float32) is field
    assert [id(p) for p in field.parameters()] == [id(Q)]
    assert field(0.25, of.Particles(MU.x.float()))[0].dtype == torch.float32
    assert field.switches == pytest.approx((0.1, 0.2), rel=1e-15)
    with pytest.raises(of.InputError, match="float32 or float64"):
        field.to(dtype=torch.float16)


def test_a_copy_learns_by_itself() -> None:
    field = of.SoftmaxAttention(*parameters())
    other = copy.deepcopy(field)
    before = field(0.0, MU)[0].detach()
    with torch.no_grad():
        next(iter(other.parameters())).mul_(2.0)
    assert torch.equal(field(0.0, MU)[0], before)
    assert not torch.equal(other(0.0, MU)[0], before)


def test_lists_and_dictionaries_are_looked_into() -> None:
    class Box(Parametric):
        def __init__(self) -> None:
            self.inner = {"a": [torch.ones(1), nn.Parameter(torch.ones(2))], "b": None}

    assert [name for name, _ in Box().named_parameters()] == ["inner.a.1"]
    assert len(list(tensors(Box()))) == 2


def test_a_class_can_be_asked_for_its_derived_attributes_as_help_does() -> None:
    assert isinstance(of.metrics.Partition.A, Derived)
