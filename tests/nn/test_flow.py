"""Flows as modules of torch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import otflow as of
from tests.samples import normal

D = 2
EYE = torch.eye(D, dtype=torch.float64)


def matrix(seed: int) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(0.5 * normal(D, D, seed=seed)))


def block() -> of.VelocityField:
    """Attention with a plain K, and a perceptron with layers and a module."""
    layers = of.Layers([matrix(4), matrix(5)], [0.0, 0.37, 1.0])
    attention = of.MultiHead([of.SoftmaxAttention(matrix(1), EYE, matrix(2))], [matrix(3)])
    return attention + of.Perceptron(layers, matrix(6), activation=nn.PReLU(dtype=torch.float64))


def net(**options: object) -> of.nn.Flow:
    return of.nn.Flow(block(), of.RK4(), **({"t1": 1.0, "dt": 0.1} | options))  # type: ignore[arg-type]


X = torch.from_numpy(normal(3, 5, D))


def test_the_module_is_the_flow() -> None:
    final = of.flow(of.Particles(X), block(), of.RK4(), t1=1.0, dt=0.1).final
    torch.testing.assert_close(net()(X), final.x, rtol=1e-13, atol=1e-13)
    assert torch.equal(net()(of.Particles(X)).x, net()(X))


def test_parameters_have_the_names_of_the_field() -> None:
    module = net()
    names = [f"field.{name}" for name, _ in module.field.velocity_field.named_parameters()]
    assert sorted(name for name, _ in module.named_parameters()) == sorted(names)
    assert sorted(module.state_dict()) == sorted(names)
    assert len(names) == 7


def test_an_optimiser_lowers_the_loss() -> None:
    module = net()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = (module(X) - 1).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_state_is_loaded() -> None:
    one, other = net(), net()
    with torch.no_grad():
        for p in one.parameters():
            p.add_(0.1)
    assert not torch.equal(one(X), other(X))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(X), other(X))


def test_conversion_reaches_plain_weights_and_keeps_parameters() -> None:
    module = net()
    before = [id(p) for p in module.parameters()]
    assert module.float()(X.float()).dtype == torch.float32
    assert module.to(torch.float64)(X).dtype == torch.float64
    assert [id(p) for p in module.parameters()] == before
    torch.testing.assert_close(module(X), net()(X), rtol=1e-5, atol=1e-5)


def test_a_copy_learns_by_itself() -> None:
    module = net()
    other = copy.deepcopy(module)
    assert torch.equal(other(X), module(X))
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    assert torch.equal(net()(X), module(X))
    assert not torch.equal(other(X), module(X))


def test_modules_within_a_field_are_in_training_or_not_with_the_flow() -> None:
    dropout = nn.Dropout(0.5)
    module = of.nn.Flow(of.Perceptron(EYE, EYE, activation=dropout), of.Euler(), t1=1.0, dt=0.5)
    module.eval()
    assert not dropout.training


def test_a_flow_within_a_network_is_trained_with_it() -> None:
    network = nn.Sequential(nn.Linear(3, D).double(), net(), nn.Linear(D, 1).double())
    network(torch.from_numpy(normal(4, 5, 3))).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("t1", [1.0, 0.95])
@pytest.mark.parametrize("stepper", [of.Euler(), of.RK4()], ids=["euler", "rk4"])
def test_checkpoints_change_no_value_and_no_gradient(stepper: of.Stepper, t1: float) -> None:
    plain, kept = (
        of.nn.Flow(block(), stepper, t1=t1, dt=0.03, checkpoint=checkpoint) for checkpoint in (False, True)
    )
    values, grads = [], []
    for module in (plain, kept):
        x = X.clone().requires_grad_()
        values.append(module(x))
        grads.append(torch.autograd.grad(values[-1].square().sum(), [x, *module.parameters()]))
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-13)
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_a_jump_at_the_end_of_a_stretch_is_met() -> None:
    """Ten steps in stretches of four; 4 * 0.1 is less than 0.4 + 1e-16, which no step may overlook."""
    for jump in (np.nextafter(0.4, 1.0), np.nextafter(0.4, 0.0), 0.4, 0.8):
        V = of.Layers([[[1.0]], [[-3.0]]], [0.0, jump, 1.0])
        field = of.Perceptron(V, [[1.0]], activation=None)
        module = of.nn.Flow(field, of.RK4(), t1=1.0, dt=0.1, checkpoint=True)
        final = of.flow(of.Particles([[1.0]]), field, of.RK4(), t1=1.0, dt=0.1).final
        torch.testing.assert_close(module([[1.0]]), final.x, rtol=1e-13, atol=0)


def test_checkpoints_reach_parameters_from_plain_tokens_twice() -> None:
    module = net(checkpoint=True)
    for _ in range(2):
        module(X).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_gaussians_are_checkpointed_too() -> None:
    mu = of.Gaussian([0.0, 0.1], root=[[0.5, 0.0], [0.1, 0.4]])
    field = of.SoftmaxAttention(matrix(1), EYE, matrix(2))
    plain, kept = (of.nn.Flow(field, of.RK4(), t1=1.0, dt=0.1, checkpoint=c)(mu) for c in (False, True))
    torch.testing.assert_close(plain.root, kept.root, rtol=1e-13, atol=1e-14)


def peak(steps: int, *, checkpoint: bool) -> int:
    """The most bytes that tensors take up at one time, forward and backward, above those at the start."""
    field = of.SoftmaxAttention(matrix(1), EYE, matrix(2))
    module = of.nn.Flow(field, of.Euler(), t1=1.0, dt=1.0 / steps, checkpoint=checkpoint)
    x = torch.from_numpy(normal(200, 5, D))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        module(x).square().sum().backward()
    kineto = prof.profiler.kineto_results  # type: ignore[union-attr]
    changes = [(e.start_ns(), e.nbytes()) for e in kineto.events() if e.name() == "[memory]"]
    return int(np.cumsum([size for _, size in sorted(changes)]).max())


@pytest.mark.thorough
def test_memory_grows_with_the_root_of_the_number_of_steps() -> None:
    plain = [peak(steps, checkpoint=False) for steps in (16, 64)]
    kept = [peak(steps, checkpoint=True) for steps in (16, 64)]
    assert plain[1] / plain[0] > 3.5  # 3.8, and with 256 steps 3.95 times as much again
    assert kept[1] / kept[0] < 2.2  # 1.8, and with 256 steps 1.9 times as much again
    assert kept[1] < plain[1] / 4


class Burst(of.VelocityField):
    """x' = x^3, which blows up."""

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return of.Tangent([mu.coords[0] ** 3])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_run_that_does_not_arrive_is_an_error(checkpoint: bool) -> None:
    module = of.nn.Flow(Burst(), of.Euler(), t1=100.0, dt=1.0, checkpoint=checkpoint)
    with pytest.raises(of.errors.FlowError, match="blow_up"):
        module(2 + X)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"t1": -1.0}, "time runs forward"),
        ({"dt": -0.1}, "dt"),
        ({"checkpoint": True, "dt": None}, "number of steps"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        net(**options)


def test_tensors_that_are_no_parameters_are_refused() -> None:
    loose = torch.eye(D, dtype=torch.float64, requires_grad=True)
    with pytest.raises(of.InputError, match=r"V = a tensor that requires grad.*nn\.Parameter"):
        of.nn.FieldModule(of.SoftmaxAttention(EYE, EYE, loose))


def test_a_field_is_a_layer() -> None:
    layer = of.nn.FieldModule(block())
    mu = of.Particles(X)
    assert torch.equal(layer(X, 0.5), layer.velocity_field(0.5, mu)[0])
    assert torch.equal(layer(mu, 0.5)[0], layer(X, 0.5))
    assert "MultiHead" in repr(layer)
