"""Modules of torch as fields."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import otflow as of
from tests.samples import normal

D = 4


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(D, 2, 8, dropout=0.0, batch_first=True)


MODULES = {
    "mlp": lambda: nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, D)),
    "attention": SelfAttention,
    "encoder": encoder,
}


def build(name: str, *, train: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return MODULES[name]().double().train(train)


@pytest.mark.parametrize("name", MODULES)
def test_the_velocity_is_what_the_module_gives(name: str) -> None:
    module, x = build(name), torch.from_numpy(normal(3, 5, D))
    assert torch.equal(of.nn.ModuleField(module)(0.0, of.Particles(x))[0], module(x))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_axes_in_front_come_as_one(batch: tuple[int, ...]) -> None:
    x = torch.from_numpy(normal(*batch, 5, D))
    v = of.nn.ModuleField(build("encoder"))(0.0, of.Particles(x))[0]
    assert v.shape == x.shape
    torch.testing.assert_close(v[(0,) * len(batch)], build("encoder")(x[(0,) * len(batch)][None])[0])


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_the_derivative_is_that_of_differences_and_transposed_by_vjp(name: str, train: bool) -> None:
    field, x = of.nn.ModuleField(build(name, train=train)), torch.from_numpy(normal(3, 5, D))
    u, c = (of.Tangent([torch.from_numpy(normal(3, 5, D, seed=seed))]) for seed in (1, 2))
    mu, h = of.Particles(x), 1e-5
    with torch.no_grad():
        along = field.jvp(0.0, mu, u)[0]
        ahead, behind = (field(0.0, of.Particles(x + s * h * u[0]))[0] for s in (1, -1))
    torch.testing.assert_close(along, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-8)
    pulled = field.vjp(0.0, mu, c)[0]
    torch.testing.assert_close((pulled * u[0]).sum(), (along * c[0]).sum(), rtol=1e-10, atol=0)


def test_switches_of_torch_are_left_as_they_were() -> None:
    field, mu = of.nn.ModuleField(build("encoder", train=False)), of.Particles(normal(5, D))
    for fast in (True, False):
        torch.backends.mha.set_fastpath_enabled(fast)
        field.jvp(0.0, mu, of.Tangent([mu.x]))
        assert torch.backends.mha.get_fastpath_enabled() == fast
    torch.backends.mha.set_fastpath_enabled(True)


def test_parameters_of_the_module_are_learnt_by_a_flow() -> None:
    module = build("mlp")
    field = of.nn.ModuleField(module) + of.SoftmaxAttention(*[torch.eye(D, dtype=torch.float64)] * 3)
    assert {id(p) for p in field.parameters()} == {id(p) for p in module.parameters()}
    of.flow(of.Particles(normal(5, D)), field, of.RK4(), t1=0.2, dt=0.1).final.x.square().sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Linear(D, 3, dtype=torch.float64), r"module\(x\) = \(1, 5, 3\)"),
        (nn.GRU(D, D, batch_first=True, dtype=torch.float64), r"module\(x\) = a tuple"),
        (nn.Linear(D, D), r"module\.weight.*float32"),
    ],
    ids=["shape", "tuple", "dtype"],
)
def test_wrong_outputs_are_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        of.nn.ModuleField(module)(0.0, of.Particles(normal(5, D)))


def test_weights_and_other_measures_are_refused() -> None:
    field = of.nn.ModuleField(nn.Identity())
    with pytest.raises(of.InputError, match="positions only"):
        field(0.0, of.Particles([[0.0], [1.0]], w=[0.1, 0.9]))
    with pytest.raises(of.InputError, match="use Particles"):
        field(0.0, of.Gaussian([0.0], root=[[1.0]]))
    with pytest.raises(of.InputError, match="Module"):
        of.nn.ModuleField(torch.tanh)  # type: ignore[arg-type]
