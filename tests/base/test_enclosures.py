"""Enclosures by interval arithmetic, against values and eigenvalues of Hessians by autograd."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from otflow.base import intervals as iv
from otflow.base.captured import captured
from otflow.base.enclosures import Enclosure, enclosed, everywhere

A = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3)))
B = torch.from_numpy(np.random.default_rng(1).normal(size=3))
FUNCTIONS: dict[str, Any] = {
    "waves in a bell": lambda x: torch.exp(-(x @ A).square().sum(-1) / 2) * torch.cos(x @ B),
    "products": lambda x: torch.tanh(x[..., 0] * x[..., 1]) + x[..., 2] ** 3 - 2 * x[..., 0],
    "sigmoid": lambda x: torch.sigmoid(x @ B) * x.square().sum(-1),
    "quotient": lambda x: 1 / (1 + x.square().sum(-1)) - x.mean(-1),
    "root": lambda x: (1 + x.square().sum(-1)).sqrt().sin(),
    "logarithm": lambda x: torch.log1p(x.square()).sum(-1).neg(),
    "softplus": lambda x: torch.nn.functional.softplus(x * (x @ A)).sum(-1),
    "log cosh": lambda x: torch.cosh(x).log().sum(-1, keepdim=True)[..., 0],
    "cubic": lambda x: (1.0 - (x - B)).mul((x - B) @ A).sum(dim=-1) ** 3 / 7,
    "powers": lambda x: (2 + x.sin()).pow(-2).sum(-1) - (x[..., 0].expm1() * x[..., 1:].sum(-1)),
    "outer": lambda x: (x[..., None, :] * x[..., :, None] * A).sum(-1).sum(-1),
    "kinks": lambda x: (x @ B).abs() * 0.5 + (x[..., 0] - 0.3).abs() ** 3,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_curvatures_lie_in_the_enclosure(name: str) -> None:
    f, rng = FUNCTIONS[name], np.random.default_rng(3)
    for _ in range(12):
        c, h = rng.normal(size=3), 10 ** rng.uniform(-3, 0.5) * rng.random(3)
        lower, upper = torch.from_numpy(c - h), torch.from_numpy(c + h)
        known = enclosed(f, lower, upper)
        assert known is not None
        x = lower + (upper - lower) * torch.from_numpy(rng.random((4, 3)))
        for point in x:
            e = torch.linalg.eigvalsh(torch.autograd.functional.hessian(f, point))  # type: ignore[no-untyped-call]
            slack = 1e-12 * float(e.abs().max())
            assert float(known.least) <= float(f(point))
            assert float(known.low) - slack <= float(e[0])
            assert float(e[-1]) <= float(known.high) + slack


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "kinks"])
def test_enclosures_of_small_boxes_are_tight(name: str) -> None:
    f, x = FUNCTIONS[name], torch.tensor([0.4, -0.3, 0.2]).double()
    known = enclosed(f, x - 1e-9, x + 1e-9)
    assert known is not None
    e = torch.linalg.eigvalsh(torch.autograd.functional.hessian(f, x))  # type: ignore[no-untyped-call]
    radius = float(e.abs().max())  # circles are not as good as eigenvalues
    assert float(known.least) == pytest.approx(float(f(x)), abs=1e-7)
    assert -3 * radius - 1e-5 <= float(known.low) <= float(e[0]) <= float(e[-1]) <= float(known.high) + 1e-12


WHOLE: dict[str, tuple[Any, float, float]] = {
    "quadratic": (lambda x: (x - 1).square().sum(-1) / 2, 0.0, 1.0),
    "quartic, radial": (lambda x: x.square().sum(-1).square() / 4, 0.0, 0.0),
    "double well": (lambda x: ((x**2 - 1) ** 2 / 4).sum(-1), 0.0, -1.0),
    "ring": (lambda x: (x.square().sum(-1) - 1).square() / 4, 0.0, -1.0),
    "waves": (lambda x: torch.cos(3 * x).sum(-1), -2.0, -9.0),
    "bell": (lambda x: torch.exp(-x.square().sum(-1) / 2), 0.0, -1.0),
    "softplus": (lambda x: torch.nn.functional.softplus(x).sum(-1), 0.0, 0.0),
    "distance": (lambda x: x.abs().sum(-1), 0.0, 0.0),
    "hinge": (lambda x: torch.relu(x - 1).sum(-1), 0.0, 0.0),
    "linear": (lambda x: x @ torch.ones(2).double(), -math.inf, 0.0),
}


@pytest.mark.parametrize("name", WHOLE)
def test_known_infima_and_curvatures_on_the_whole_plane_are_found(name: str) -> None:
    f, least, low = WHOLE[name]
    known = everywhere(f, torch.zeros(2).double())
    assert known is not None
    assert float(known.least) == pytest.approx(least, abs=1e-12)
    assert float(known.low) == pytest.approx(low, abs=1e-12)
    assert float(known.low) <= low


def branches(x: Tensor) -> Tensor:
    return x.square().sum(-1) if x.abs().max() > 1 else -x.square().sum(-1)


@pytest.mark.parametrize(
    "f",
    [
        branches,
        lambda x: x.sum(),
        lambda x: x[0],
        lambda x: x.sum(0),
        lambda x: torch.where(x > 0, x, -x).sum(-1),
        lambda x: torch.ones(x.shape[:-1]),
        lambda x: x.float().sum(-1),
        lambda x: (x**1.5).sum(-1),
        lambda x: (x * math.nan).sum(-1),
        lambda x: x.square().sum(-1).log() if x else x,
        lambda x: x.numpy(),
    ],
)
def test_of_what_is_not_understood_nothing_is_known(f: Any) -> None:
    assert enclosed(f, -torch.ones(4, 2), torch.ones(4, 2)) is None


def test_pairs_that_see_differences_only_are_told_from_others() -> None:
    like = torch.zeros(4).double()
    near = everywhere(lambda x, y: -(x - y).square().sum(-1) / 2, like, pair=True)
    far = everywhere(lambda x, y: -(x.square() + y.square()).sum(-1), like, pair=True)
    # -|u - v|^2 is the one, and -2 (|u|^2 + |v|^2) the other
    assert [k is not None and float(k.low) for k in (near, far)] == pytest.approx([-1.0, -2.0])


def test_a_bound_is_forgotten_when_the_function_changes() -> None:
    factor, like = torch.ones(()).double(), torch.zeros(1).double()

    def f(x: Tensor) -> Tensor:
        return factor * x.square().sum(-1)

    assert float(everywhere(f, like).low) == pytest.approx(2.0)  # type: ignore[union-attr]
    factor.mul_(-3)
    assert float(everywhere(f, like).low) == pytest.approx(-6.0)  # type: ignore[union-attr]
    factor = 2 * factor  # another tensor in the same place
    assert float(everywhere(f, like).low) == pytest.approx(-12.0)  # type: ignore[union-attr]


def test_functions_that_may_see_more_are_asked_each_time() -> None:
    class Holder:
        c = 1.0

    holder, seen = Holder(), [1.0]
    assert captured(lambda x: holder.c * x) is None
    assert captured(lambda x: seen[0] * x) is None
    assert captured(torch.nn.Linear(1, 1)) is None
    assert captured(lambda x: [holder for _ in x]) is None
    assert captured(branches) is not None


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "cos", "sin", "tanh", "sigmoid", "softplus", "cosh"])
def test_functions_of_intervals_hold_fifty_digits(name: str) -> None:
    rng = np.random.default_rng(5)
    lo = rng.uniform(0.1, 3, 20) if name in {"log", "sqrt"} else rng.uniform(-8, 8, 20)
    box = iv.Interval(lo, lo + 10 ** rng.uniform(-9, 0.5, 20))
    logistic = lambda x: 1 / (1 + mpmath.exp(-x))  # noqa: E731
    own = {"sigmoid": logistic, "softplus": lambda x: mpmath.log(1 + mpmath.exp(x))}
    f = own.get(name) or getattr(mpmath, name)
    with np.errstate(all="ignore"), mpmath.workdps(50):
        for order, found in enumerate(getattr(iv, name)(box)):
            for k in range(20):
                for x in (box.lo[k], box.hi[k], (box.lo[k] + box.hi[k]) / 2):
                    exact = mpmath.diff(f, mpmath.mpf(float(x)), order)
                    slack = mpmath.mpf(10) ** -30  # of the differences of mpmath
                    assert found.lo[k] - slack <= exact <= found.hi[k] + slack


def test_zero_times_infinity_is_zero_and_overflow_is_everything() -> None:
    zero, line = iv.point(np.zeros(1)), iv.Interval(np.array([-np.inf]), np.array([np.inf]))
    with np.errstate(all="ignore"):
        assert iv.multiply(zero, line) == (0.0, 0.0)
        huge = iv.rising(np.exp, iv.point(np.array([1e4])))
        assert huge == (-np.inf, np.inf)
        assert not isinstance(huge, Enclosure)
