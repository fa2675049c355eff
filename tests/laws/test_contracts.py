"""Contracts: what otflow brings along keeps them, and who breaks one is told which."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from tests import samples, zoo

MU = of.Particles(samples.normal(5, 2))
LAW = of.Gaussian(samples.normal(2), root=samples.normal(2, 2))
X = (np.arange(6) + 0.5) / 6
MEASURES: dict[str, of.Measure] = {
    "particles": MU,
    "weighted": of.Particles(MU.x, zoo.weights(0, 5), samples.normal(5)),
    "gaussian": LAW,
    "grid": of.Grid.from_function(lambda a, b: 1 + a * b, [X, X]),
    "quantiles": of.Quantiles([0.0, 1.0, 3.0], [0.0, 0.5, 1.0]),
}
PAIRS = [(f, m) for f in zoo.FIELDS for m in zoo.measures_for(f) if "batched" not in m]
ENERGIES = [(m, e) for m in MEASURES for e in samples.ENERGIES if samples.makes_sense(m, e)]
FEW = ["softmax-cloud", "multihead-gaussian", "softmax_causal-labelled", "block-sphere", "descent-*d"]


@pytest.mark.slow(but_for=FEW)
@pytest.mark.parametrize(("field", "measure"), PAIRS)
def test_every_field_keeps_its_contract(field: str, measure: str) -> None:
    of.fields.check(zoo.FIELDS[field](), zoo.MEASURES[measure](), t=0.3)


@pytest.mark.parametrize(("measure", "energy"), ENERGIES)
def test_every_energy_keeps_its_contract(measure: str, energy: str) -> None:
    of.energies.check(samples.ENERGIES[energy](), MEASURES[measure])


@pytest.mark.parametrize("energy", [of.Entropy(), of.PorousMedium(2.0)])
@pytest.mark.parametrize("measure", ["gaussian", "grid", "quantiles"])
def test_internal_energies_keep_their_contract(measure: str, energy: of.Energy) -> None:
    of.energies.check(energy, MEASURES[measure])


@pytest.mark.parametrize("metric", zoo.METRICS)
@pytest.mark.parametrize("measure", ["cloud", "weighted", "sphere", "gaussian", "gaussian_of_rank_two"])
def test_every_metric_keeps_its_contract(metric: str, measure: str) -> None:
    if (metric, measure[:8]) == ("twisted", "gaussian") or (metric, measure) == (
        "twisted_by_a_matrix",
        "sphere",
    ):
        with pytest.raises(of.InputError):
            of.metrics.check(zoo.METRICS[metric](), zoo.MEASURES[measure]())
    else:
        of.metrics.check(zoo.METRICS[metric](), zoo.MEASURES[measure]())


def test_single_precision_keeps_it_too() -> None:
    field = of.SoftmaxAttention(*(torch.eye(2) for _ in "QKV"))
    assert of.fields.check(field, MU.to(torch.float32))["jvp"] < 7e-3
    of.energies.check(of.Potential(zoo.harmonic), MU.to(torch.float32))
    of.metrics.check(of.Wasserstein(), MU.to(torch.float32))


# --- the mixed sums that once went wrong ---------------------------------------------------------------

EYE = torch.eye(3, dtype=torch.float64)
KEEPS = of.ExponentialInteraction(EYE)  # its differential is a closed form, which forward mode passes
LOSES = of.Potential(zoo.harmonic)  # its differential is autograd's, which it does not pass


@pytest.mark.parametrize("metric", [of.Wasserstein(), of.Twisted(zoo.partition)], ids=["W2", "twisted"])
@pytest.mark.parametrize("measure", ["cloud", "sphere"])
@pytest.mark.parametrize(
    "energy", [LOSES, KEEPS + LOSES, of.SelfTransport(EYE, 0.8)], ids=["one", "sum", "plan"]
)
def test_forward_derivatives_of_descents_are_whole(
    energy: of.Energy, measure: str, metric: of.Metric
) -> None:
    of.fields.check(of.SteepestDescent(energy, metric), zoo.MEASURES[measure]())


def test_the_derivative_of_a_descent_of_a_linear_energy_is_zero() -> None:
    field = of.SteepestDescent(of.Potential(lambda x: x.sum(-1)), of.Wasserstein())
    assert field.jvp(0.0, MU, of.Tangent([MU.x]))[0].abs().max() == 0


# --- broken promises -----------------------------------------------------------------------------------


class Broken(of.VelocityField):
    def __init__(self, velocity: object) -> None:
        self.rule = velocity

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        assert isinstance(mu, of.Particles)
        return of.Tangent([self.rule(mu.x)])  # type: ignore[operator]


def edit(x: Tensor) -> Tensor:
    return x.mul_(2.0)


CALLS = [0]


def count(x: Tensor) -> Tensor:
    CALLS[0] += 1
    return x * CALLS[0]


FIELDS = {
    "axes": (lambda x: x - x.mean(0, keepdim=True), "a batch must give what its members give; count axes"),
    "members": (lambda x: x / x.max(), "a batch must give what its members give; count axes"),
    "shape": (lambda x: x.sum(-1), r"velocity of Broken, shapes = \[\(5,\)\]: \[\(5, 2\)\] is needed"),
    "dtype": (lambda x: x.float(), "the measure has dtype torch.float64"),
    "item": (lambda x: x * x[..., :1, :1].detach(), "jvp is not the derivative.*without .item()"),
    "numpy": (lambda x: torch.from_numpy(x.detach().numpy().copy()), "jvp is not the derivative"),
    "in place": (edit, "must not change the measure it is given; write x = x"),
    "counter": (count, "must give the same numbers; draw no random numbers"),
    "random": (lambda x: x + torch.randn_like(x), "must give the same numbers"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_breaks_its_contract_is_told_which(name: str) -> None:
    rule, words = FIELDS[name]
    with pytest.raises(of.InputError, match=words):
        of.fields.check(Broken(rule), of.Particles(samples.normal(5, 2)))


class Clocked(of.VelocityField):
    def __init__(self, factor: Callable[[Tensor], Tensor | float]) -> None:
        self.factor = factor

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return of.Tangent([self.factor(t) * mu.coords[0]])


class ClockedTokens(of.fields.TokenField):
    def __init__(self, factor: Callable[[Tensor], Tensor | float]) -> None:
        self.factor = factor

    def velocity_at(
        self, t: Tensor, mu: of.Particles, points: Tensor, label: Tensor | None, carry: of.fields.Carry | None
    ) -> tuple[Tensor, of.fields.Carry | None]:
        return points * self.factor(t), None


@pytest.mark.parametrize("kind", [Clocked, ClockedTokens])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("factor", [torch.cos, math.cos], ids=["broadcast", "number"])
def test_a_field_that_takes_one_clock_only_is_told_so(
    kind: type[of.VelocityField], d: int, factor: Callable[..., Any]
) -> None:
    """With d = 2 the clocks of two members broadcast against the coordinates, in silence."""
    mu = of.Particles(samples.normal(4, d))
    with pytest.raises(
        of.InputError, match=r"let t broadcast from the left, torch.cos\(t\)\[..., None, None\]"
    ):
        of.fields.check(kind(factor), mu)
    with pytest.raises(of.InputError, match="members of an adaptive batch have clocks of their own"):
        of.flow(mu.expand(5), kind(factor), of.Dopri5(), t1=1.0)
    assert of.flow(mu.expand(5), kind(factor), of.RK4(), t1=1.0, dt=0.5).status.tolist() == ["ok"] * 5


def test_what_is_not_the_fault_of_the_clocks_is_not_blamed_on_them() -> None:
    def broken(t: Tensor) -> Tensor:
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        of.flow(MU.expand(5), Clocked(broken), of.Dopri5(), t1=1.0)


def test_a_carry_is_a_carry() -> None:
    class Warm(of.VelocityField):
        def evaluate(self, t: Tensor, mu: of.Measure, carry: of.fields.Carry | None = None) -> object:  # type: ignore[override]
            return mu.coords, 3.0

    with pytest.raises(of.InputError, match=r"float: a Carry or None is needed; .*Carry\(state="):
        of.fields.check(Warm(), MU)


class Value(of.Energy):
    def __call__(self, mu: of.Measure) -> Tensor:
        return mu.nodes()[0].square().sum((-1, -2))


class Sloppy(Value):
    def differential(self, mu: of.Measure) -> of.Tangent:
        return mu.coords


class Flat(of.Energy):
    def __call__(self, mu: of.Measure) -> Tensor:
        return mu.nodes()[0].square().sum()


def test_an_energy_that_breaks_its_contract_is_told_which() -> None:
    of.energies.check(Value(), MU)
    with pytest.raises(of.InputError, match="differential is not the slope of its value; mend"):
        of.energies.check(Sloppy(), MU)
    with pytest.raises(of.InputError, match=r"Flat on a batch \(2,\), shapes = \[\(\)\]: a batch must give"):
        of.energies.check(Flat(), MU)


class Skew(of.Wasserstein):
    def gradient(self, mu: of.Measure, covector: of.Tangent) -> of.Tangent:
        return 2.0 * mu.sharp(covector)


class Negative(of.Wasserstein):
    def inner(self, mu: of.Measure, u: of.Tangent, v: of.Tangent) -> Tensor:
        return -mu.inner(u, v)


def test_a_metric_that_breaks_its_contract_is_told_which() -> None:
    with pytest.raises(of.InputError, match=r"<gradient\(c\), u> is not c\(u\)"):
        of.metrics.check(Skew(), MU)
    with pytest.raises(of.InputError, match="a metric is positive"):
        of.metrics.check(Negative(), MU)


def test_a_contract_is_tried_on_one_measure() -> None:
    with pytest.raises(of.InputError, match=r"one measure, from which batches are made; pass a member"):
        of.fields.check(zoo.FIELDS["softmax"](), zoo.MEASURES["batched"]())
    with pytest.raises(of.InputError, match="clouds and Gaussians only"):
        of.metrics.check(of.Wasserstein(), MEASURES["grid"])


def test_energies_fields_and_tangents_are_summed_by_sum() -> None:
    F, v = of.Potential(zoo.harmonic), zoo.FIELDS["softmax"]()
    mu = zoo.MEASURES["cloud"]()
    assert sum([F, F])(mu).item() == 2 * F(mu).item()  # type: ignore[operator]
    twice = sum([v, v])(0.0, mu)[0]  # type: ignore[operator]
    assert torch.equal(twice, sum([v(0.0, mu), v(0.0, mu)])[0])  # type: ignore[index]
    for thing in (F, v, v(0.0, mu)):
        with pytest.raises(TypeError):
            1 + thing  # type: ignore[operator]
