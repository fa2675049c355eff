"""Velocity fields v(t, mu), their sums, and their derivatives."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, singledispatch
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from otflow.base import checks
from otflow.base.algebra import Linear
from otflow.base.derivatives import refuse_func
from otflow.base.errors import ConvergenceError, DerivativeError, InputError, NotFiniteError, OtflowError
from otflow.base.parameters import Parametric, tensors
from otflow.base.tables import signed
from otflow.base.tangent import Tangent, as_tangent
from otflow.measures import Gaussian, Measure, Particles

if TYPE_CHECKING:
    from otflow.fields.descent import SteepestDescent

M = TypeVar("M", bound=Measure)


@dataclass(frozen=True)
class Carry:
    """What an evaluation leaves for the next one: a warm start, and how well its inner solver did.

    ``residual`` is the worst marginal error (or the like) of this evaluation, ``failed`` says which
    members of the batch missed their tolerance; ``parts`` are the carries of a sum.
    """

    state: Any = None
    residual: float = 0.0
    failed: Tensor | None = None
    message: str = ""
    parts: tuple[Carry | None, ...] = ()

    def __repr__(self) -> str:
        missed = 0 if self.failed is None else int(self.failed.sum())
        return f"Carry(residual={self.residual:.2g}{f', {missed} failed: {self.message}' if missed else ''})"


class VelocityField(Parametric, Linear["VelocityField"]):
    """v(t, mu): the velocity with which mu moves, d/dt mu + div(mu v) = 0.

    To write your own, give `velocity`; fields with inner solvers give `evaluate` instead, which hands
    a warm start on. Fields add, and scale by numbers. Tensors in attributes can be learnt: `parameters`.

    >>> import otflow as of
    >>> class Pull(of.VelocityField):
    ...     def velocity(self, t, mu):
    ...         return -1.0 * mu.coords
    >>> mu = of.Particles([[2.0]])
    >>> (Pull() + 0.5 * Pull())(0.0, mu)[0].item()
    -3.0
    """

    switches: tuple[float, ...] = ()

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        """The velocity, when no warm start is of use."""
        raise TypeError(f"{type(self).__name__} must define velocity(t, mu) or evaluate(t, mu, carry).")

    def evaluate(self, t: Tensor, mu: Measure, carry: Carry | None = None) -> tuple[Tangent, Carry | None]:
        """The velocity and what to remember for the next one; a missed tolerance is noted, not raised."""
        try:
            v = as_tangent(self.velocity(t, mu), f"velocity of {type(self).__name__}")
        except (RuntimeError, ValueError) as error:
            refuse_clocks(self, t, mu, error)
            raise
        if t.ndim and (found := [tuple(p.shape) for p in v]) != [tuple(s) for s in mu.shapes()]:
            refuse_clocks(self, t, mu, ValueError(f"its shapes are {found}"))
        return v, None

    def __call__(self, t: float | Tensor, mu: Measure) -> Tangent:
        """The velocity; raises `ConvergenceError`, which carries it, if an inner solver failed."""
        if not isinstance(mu, Measure):
            checks.fail("mu", type(mu).__name__, "a measure is needed", "call field(t, mu), time first")
        v, carry = self.evaluate(as_time(t, mu), mu)
        self.insist(carry, v)
        return v

    def insist(self, carry: Carry | None, result: Tangent) -> None:
        """Raise unless every inner solver reached its tolerance and all numbers are finite."""
        if carry is not None and carry.failed is not None and bool(carry.failed.any()):
            raise ConvergenceError(
                f"{carry.message}; raise max_iter, relax tol, or take the velocity from field.evaluate.",
                result,
            )
        if not bool(torch.stack([torch.isfinite(piece.detach()).all() for piece in result]).all()):
            raise NotFiniteError(
                f"the velocity of {self!r} is not finite (scores or values overflow); "
                "rescale them, Q / 10 and V / 10, say, or the tokens.",
                result,
            )

    def at(self, t: float | Tensor, mu: Measure, points: Any, label: Any = None) -> Tensor:
        """The same velocity at other points (*batch, m, d), which the field does not feel."""
        rule = "it is not defined off the tokens"
        checks.fail("field", type(self).__name__, rule, "evaluate it on a measure with field(t, mu)")

    def matrix(self, t: Tensor, mu: Gaussian) -> Tensor:
        """B, when the velocity on the Gaussian mu is the affine x -> b + B(x - mean); (*batch, d, d).

        Fields that know B give it; else it is found from B R, which needs a covariance of full rank.
        """
        v, _ = self.evaluate(t, mu)
        return _quotient(v[1], mu)

    def requires_grad(self, t: Tensor, mu: Measure) -> bool:
        """Whether a flow has to keep the graph of this field."""
        return any(a.requires_grad for a in self.tensors(t))

    def tensors(self, t: Tensor) -> Iterator[Tensor]:
        """Tensors that a flow may be differentiated in, as they are at time t: by default all it holds."""
        return tensors(self)

    def batch(self, t: Tensor) -> torch.Size:
        """The batch axes of its weights at the scalar time t, to which a flow extends a batch of measures."""
        return torch.Size()

    def pick(self, which: Tensor) -> VelocityField | None:
        """The field on some members of a batch, given by a mask (*batch,); None if it cannot tell."""
        return None

    def jvp(self, t: float | Tensor, mu: Measure, u: Tangent) -> Tangent:
        """The derivative of the velocity in the direction u of the coordinates (the measure moves along).

        Forward-mode differentiation through kernels whose derivatives are streamed closed forms: O(n) memory.
        """
        u = as_tangent(u, "u", [c.shape for c in mu.coords])
        return self._differentiated(as_time(t, mu), None, mu, u, self.insist)

    def linearised(self, t: Tensor, mu: Measure, u: Tangent, dt: Tensor) -> Tangent:
        """The derivative of the velocity along (dt, u), for steppers: what is not finite is handed out.

        Weights that torch cannot follow in time count as constant.
        """
        return self._differentiated(t, dt, mu, u, lambda carry, v: None)

    def _differentiated(
        self,
        t: Tensor,
        dt: Tensor | None,
        mu: Measure,
        u: Tangent,
        check: Callable[[Carry | None, Tangent], None],
    ) -> Tangent:
        load_forward_mode()
        with forward_ad.dual_level():
            dual = mu.at(mu.coords.zip(u, forward_ad.make_dual))
            v, carry = self.evaluate(t if dt is None else forward_ad.make_dual(t, dt), dual)
            check(carry, v)
            parts = [forward_ad.unpack_dual(piece) for piece in v]
            return Tangent(p.primal * 0 if p.tangent is None else p.tangent.clone() for p in parts)

    def vjp(self, t: float | Tensor, mu: Measure, c: Tangent) -> Tangent:
        """The transpose of `jvp`: the derivative of <c, v> with respect to the coordinates."""
        if torch.is_inference_mode_enabled():
            raise DerivativeError("torch.inference_mode() records no derivatives; leave it to call vjp.")
        refuse_func()
        c = as_tangent(c, "c", mu.shapes())
        with torch.enable_grad():
            coords = [p.detach().requires_grad_() for p in mu.coords]
            v, carry = self.evaluate(as_time(t, mu), mu.at(coords))
            self.insist(carry, v)
            value = torch.stack([(a * b).sum() for a, b in zip(v, c, strict=True)]).sum()
        if not value.requires_grad:  # a field that does not depend on the measure
            return Tangent(torch.zeros_like(p) for p in coords)
        grads = torch.autograd.grad(value, coords, allow_unused=True)
        return Tangent(torch.zeros_like(p) if g is None else g for g, p in zip(grads, coords, strict=True))

    def as_gradient_flow(self, kind: type[Measure] | None = None) -> SteepestDescent:
        """The `SteepestDescent` of an energy that equals this field, else an error naming what fails.

        Args:
            kind: the measures on which they are to agree: `Particles` (the default) or `Gaussian`, where
                softmax and L2 attention descend other energies, and centred Gaussians are meant.

        >>> import otflow as of
        >>> of.SoftmaxAttention([[2.0]], [[1.0]], [[-2.0]]).as_gradient_flow()
        SteepestDescent(ExponentialInteraction(d=1), Twisted(Partition(d=1)))
        """
        return gradient_flow(self, Particles if kind is None else kind)

    @property
    def kind(self) -> type[VelocityField]:
        return VelocityField

    def combination(self, pairs: list[tuple[VelocityField, float]]) -> VelocityField:
        return SumField(pairs)


@singledispatch
def gradient_flow(field: VelocityField, kind: type[Measure]) -> SteepestDescent:
    """The steepest descent that equals ``field`` on measures of this kind, or an error that says why not.

    The pairs of field and energy that are known register themselves in `fields.gradient_flows`.
    """
    refuse(field, "no energy is known of which it is the descent")


def refuse(field: VelocityField, reason: str) -> NoReturn:
    checks.fail("field", repr(field), f"it is not a gradient flow here: {reason}", "use it as it is in flow")


def refuse_clocks(field: VelocityField, t: Tensor, mu: Measure, error: Exception) -> None:
    """Say in words that a velocity failed for a time of shape (*batch,), if for a single one it does not."""
    if not t.ndim or (isinstance(error, OtflowError) and not isinstance(error, InputError)):
        return
    try:
        v, _ = field.evaluate(t.flatten()[0], mu)
    except Exception:
        return  # the clocks are not to blame
    if [p.shape for p in v] == mu.shapes():
        name, rule = f"velocity of {type(field).__name__} at t of shape", "members of an adaptive batch have"
        rule += f" clocks of their own, and it does not take them ({error})"
        remedy = "let t broadcast from the left, torch.cos(t)[..., None, None] * x"
        raise InputError(f"{name} {tuple(t.shape)}: {rule}; {remedy}.") from error


class SumField(VelocityField):
    """A linear combination of fields: attention + perceptron is a Transformer block."""

    def __init__(self, pairs: Sequence[tuple[VelocityField, float]]) -> None:
        self.terms, self.factors = zip(*pairs, strict=True)
        self.switches = merged_switches(self.terms)

    def pairs(self) -> list[tuple[VelocityField, float]]:
        return list(zip(self.terms, self.factors, strict=True))

    def evaluate(self, t: Tensor, mu: Measure, carry: Carry | None = None) -> tuple[Tangent, Carry | None]:
        old = carry.parts if carry else (None,) * len(self.terms)
        pairs = [term.evaluate(t, mu, c) for term, c in zip(self.terms, old, strict=True)]
        first, *rest = (f * v for f, (v, _) in zip(self.factors, pairs, strict=True))
        return sum(rest, start=first), joint_carry([c for _, c in pairs])

    def at(self, t: float | Tensor, mu: Measure, points: Any, label: Any = None) -> Tensor:
        values = [f * term.at(t, mu, points, label) for term, f in self.pairs()]
        return torch.stack(values).sum(0)

    def matrix(self, t: Tensor, mu: Gaussian) -> Tensor:
        return torch.stack([f * term.matrix(t, mu) for term, f in self.pairs()]).sum(0)

    def pick(self, which: Tensor) -> VelocityField | None:
        terms = [term.pick(which) for term in self.terms]
        known = [(term, c) for term, c in zip(terms, self.factors, strict=True) if term is not None]
        return SumField(known) if len(known) == len(terms) else None

    def batch(self, t: Tensor) -> torch.Size:
        return merged_batch([term.batch(t) for term in self.terms])

    def tensors(self, t: Tensor) -> Iterator[Tensor]:
        return (a for term in self.terms for a in term.tensors(t))

    def requires_grad(self, t: Tensor, mu: Measure) -> bool:
        return any(term.requires_grad(t, mu) for term in self.terms)

    def __repr__(self) -> str:
        return signed(self.pairs())


def extended(mu: M, field: VelocityField, t: float) -> M:
    """A batch of measures with the batch axes of the field's weights: clouds (4,) x weights (5, 1) = (5, 4).

    A single measure stays one, so that a stack of layers is not taken for a sweep by mistake.
    """
    own = field.batch(as_time(t, mu)) if mu.batch else mu.batch
    joint = merged_batch([mu.batch, own])
    return mu if checks.extends(mu.batch, own) or not joint else mu.expand(*joint)


def merged_batch(shapes: Sequence[Sequence[int]]) -> torch.Size:
    """The axes to which all broadcast; none if they do not."""
    try:
        return torch.Size(torch.broadcast_shapes(*(tuple(s) for s in shapes)))
    except RuntimeError:
        return torch.Size()


class Jumping(Protocol):
    """Whatever may jump in time: a field, or a weight."""

    @property
    def switches(self) -> tuple[float, ...]: ...


def merged_switches(parts: Sequence[Jumping]) -> tuple[float, ...]:
    """The times at which any of the parts jumps."""
    return tuple(sorted({s for part in parts for s in part.switches}))


def joint_carry(parts: Sequence[Carry | None]) -> Carry | None:
    """One carry for several fields: the worst residual, any failure, the first message."""
    real = [p for p in parts if p is not None]
    if not real:
        return None
    failed = [p.failed for p in real if p.failed is not None]
    bad = torch.stack(torch.broadcast_tensors(*failed)).any(0) if failed else None
    guilty = [p for p in real if p.failed is not None and bool(p.failed.any())]
    message = next((p.message for p in guilty or real if p.message), "")
    return Carry(residual=max(p.residual for p in real), failed=bad, message=message, parts=tuple(parts))


def _quotient(velocity: Tensor, mu: Gaussian) -> Tensor:
    """B with B R = velocity."""
    s = torch.linalg.svdvals(mu.root.detach())
    low = torch.nn.functional.pad(s, (0, max(0, mu.d - s.shape[-1])))[..., mu.d - 1]
    if not bool(
        (low > max(1e-12, 10 * max(mu.root.shape[-2:]) * torch.finfo(s.dtype).eps) * s[..., 0]).all()
    ):
        rule = "how the law moves does not tell how the field acts off the range of its covariance"
        remedy = "use Euler() or Dopri5(), or a field that gives matrix(t, mu)"
        checks.fail("mu", f"{mu!r} with a singular covariance", rule, remedy)
    return velocity @ torch.linalg.pinv(mu.root)


@cache
def load_forward_mode() -> None:
    """Load torch's forward mode, whose first use warns of a deprecation that users cannot mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def as_time(t: float | Tensor, mu: Measure) -> Tensor:
    """Time as a float64 tensor next to mu."""
    return torch.as_tensor(t, dtype=torch.float64, device=mu.device)
