"""Constant pieces of a Transformer on the sphere whose flow maps are known in closed form.

    v[mu](x) = P_x(V E_mu[x] + w (a.x + c)_+)

is attention with B = 0, whose value is the mean of mu, plus a perceptron of one neuron. Two kinds of pieces
are enough here, and both move every point along the great circle through it and a pole p, on which the
rapidity s = atanh(x.p) is the natural coordinate: x = tanh(s) p + sech(s) e, with e orthogonal to p.

* V = g p p^T, w = 0: all points of mu have the same shift, s -> s + S(t), S' = g E_mu[tanh(s + S)].
* V = 0, w = |w| p: s' = |w| (A tanh s + E sech s + c)_+ with A = a.p, E = a.e, and time is elementary in s.

A piece run with the sign of V or w turned is its inverse, on the same measure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from otflow.base.numbers import Array
from otflow.base.spaces import Sphere
from otflow.dynamics.flow import flow
from otflow.fields import Layers, Perceptron, VelocityField
from otflow.fields.base import Carry
from otflow.fields.tokens import TokenField
from otflow.fields.weights import Weight, fits
from otflow.measures import Particles
from otflow.steppers import Dopri5

FINEST = 1e-150  # a point so near the pole, or its antipode, is taken to be there
NEAR = 1e-4  # where |c| is so close to |a.p|, closed forms of gates have lost eight digits, and flow serves
LAST = 300.0  # rapidities beyond this are at the pole in floating point, many times over
FINE, COARSE = 1e-12, 1e-6  # tolerances of the scalar equation, for moving points and for a search


class GreatCircle(NamedTuple):
    """Points on the great circles through a pole: x = tanh(s) p + sech(s) e."""

    s: Array  # (n,)
    e: Array  # (n, d), unit vectors orthogonal to the pole
    pole: Array  # (d,)

    @classmethod
    def of(cls, x: Array, pole: Array) -> GreatCircle:
        u = x @ pole
        rest = x - u[:, None] * pole
        rest -= (rest @ pole)[:, None] * pole  # twice: what is left of the pole would grow with s
        r = np.maximum(np.linalg.norm(rest, axis=1), FINEST)
        return cls(np.arcsinh(u / r), rest / r[:, None], pole)

    def at(self, s: Array) -> Array:
        """The points (n, d) when the rapidities are s."""
        x = np.tanh(s)[:, None] * self.pole + (1 / np.cosh(np.clip(s, -300, 300)))[:, None] * self.e
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class SpherePiece:
    """theta = (V, w, a, c), constant for a time: V = gain alpha alpha^T (B = 0), or a gate w (a.x + c)_+.

    Args:
        time: duration, >= 0.
        pole: unit vector (d,), alpha or the direction of w.
        gain: the factor of alpha alpha^T; 0 for a gate.
        speed: |w|, with a sign: w = speed pole; 0 for attention.
        a, c: the gate, open where a.x + c > 0; a = 0, c = 1 is open everywhere.
        phase: what it is for, in a word.
        margin: min |a.x + c| over the sources when it begins, what the gate has to spare; inf if always open.
    """

    time: float
    pole: Array
    gain: float = 0.0
    speed: float = 0.0
    a: Array | None = None
    c: float = 1.0
    phase: str = ""
    margin: float = np.inf

    @property
    def d(self) -> int:
        return len(self.pole)

    @property
    def V(self) -> Array:
        """(d, d)."""
        return self.gain * np.outer(self.pole, self.pole)

    @property
    def w(self) -> Array:
        """(d,)."""
        return self.speed * self.pole

    @cached_property
    def direction(self) -> Array:
        """a as a vector, also for a gate that is open everywhere."""
        return np.zeros(self.d) if self.a is None else self.a

    def reverse(self, phase: str) -> SpherePiece:
        """The same with V and w turned, which takes the same measure back."""
        return replace(self, gain=-self.gain, speed=-self.speed, phase=phase)

    def during(self, time: float) -> SpherePiece:
        """The same for another time."""
        return replace(self, time=float(time))

    def gate(self, x: Array) -> Array:
        """a.x + c, (n,)."""
        return np.asarray(x @ self.direction + self.c)

    def move(self, x: Array, weights: Array) -> Array:
        """The points (n, d) after the piece, from x with their weights (n,)."""
        if self.time == 0:
            return x
        if self.gain:
            path = GreatCircle.of(x, self.pole)
            total = shifts(path.s, weights, self.gain, np.array([self.time]))[0]
            return path.at(path.s + total)
        return self._flown(x, weights) if self.awkward else self._through(x)

    @property
    def awkward(self) -> bool:
        """Whether the edge of the gate runs through the pole or its antipode, where the closed form fails."""
        return abs(abs(self.c) - abs(float(self.direction @ self.pole))) < NEAR

    def _flown(self, x: Array, weights: Array) -> Array:
        mu = Particles(x, w=weights / weights.sum(), space=Sphere())
        traj = flow(mu, as_field([self]), Dopri5(1e-11, 1e-13), t1=self.time, save_at=[self.time])
        return np.asarray(traj.final.coords[0].numpy())

    def _through(self, x: Array) -> Array:
        open_ = self.gate(x) > 0
        if not open_.any():
            return x
        path = GreatCircle.of(x[open_], np.sign(self.speed) * self.pole)
        out = x.copy()
        out[open_] = path.at(_Gate.of(path, self).after(abs(self.speed) * self.time))
        return out

    def times(self, x: Array, s: Array) -> Array:
        """The times (n,) at which an open gate has brought the points x to the rapidities s >= theirs."""
        path = GreatCircle.of(x, np.sign(self.speed) * self.pole)
        gate = _Gate.of(path, self)
        return np.asarray((gate.clock(s) - gate.clock(path.s)) / abs(self.speed))


def shifts(s: Array, weights: Array, gain: float, times: Array, tol: float = FINE) -> Array:
    """S at the given increasing times > 0: S' = gain sum_i w_i tanh(s_i + S), S(0) = 0."""

    def speed(_: float, S: Array) -> list[float]:
        return [gain * float(weights @ np.tanh(s + S[0]))]

    span = (0.0, float(times[-1]))
    found = solve_ivp(speed, span, [0.0], method="DOP853", t_eval=times, rtol=tol, atol=tol / 10)
    return np.asarray(found.y[0])


class _Gate(NamedTuple):
    """s' = A tanh s + E sech s + c, per unit of |w| t, where that is positive."""

    s: Array
    A: float
    E: Array
    c: float

    @classmethod
    def of(cls, path: GreatCircle, piece: SpherePiece) -> _Gate:
        return cls(path.s, float(piece.direction @ path.pole), path.e @ piece.direction, piece.c)

    def rise(self, s: Array) -> Array:
        """cosh(s) s', halved exponentials kept together."""
        return np.asarray(self.c * np.cosh(s) + self.A * np.sinh(s) + self.E)

    def clock(self, s: Array) -> Array:
        """|w| t in terms of s: (c s - A log G - 2 E c J) / (c^2 - A^2), G = cosh(s) s', J' = e^s / 2G."""
        square = self.c**2 - self.A**2
        gap = self.E**2 - square
        gap = np.where(np.abs(gap) < 1e-14, np.where(gap < 0, -1e-14, 1e-14), gap)
        root, y = np.sqrt(np.abs(gap)), (self.A + self.c) * np.exp(s) + self.E
        with np.errstate(divide="ignore", invalid="ignore"):
            angle, log = np.arctan(y / root) / root, np.log(np.abs((y - root) / (y + root))) / (2 * root)
            J = np.where(gap < 0, angle, log)
            top = self.c * s - self.A * np.log(np.abs(self.rise(s))) - 2 * self.E * self.c * J
        return np.asarray(top / square)

    def end(self) -> Array:
        """The rapidity at which a point would come to rest on the edge of the gate; inf if nowhere."""
        gap = self.E**2 - self.c**2 + self.A**2
        root = np.sqrt(np.maximum(gap, 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.log(np.stack([(-self.E - root), (-self.E + root)]) / (self.A + self.c))
        ahead = np.isfinite(ends) & (ends > self.s) & (gap >= 0)
        return np.asarray(np.where(ahead, ends, np.inf).min(0))

    def after(self, time: float) -> Array:
        """The rapidities at |w| t = time: Newton's method, and bisection where it leaves the bracket."""
        start, low = self.clock(self.s), self.s
        fastest = abs(self.A) + np.abs(self.E) + abs(self.c)
        high = np.minimum(np.minimum(self.s + time * fastest + 1e-9, self.end()), np.maximum(LAST, self.s))
        s = np.minimum(self.s + time * self.rise(self.s) / np.cosh(self.s), (low + high) / 2)
        for _ in range(80):
            late = self.clock(s) - start - time
            low, high = np.where(late < 0, s, low), np.where(late < 0, high, s)
            with np.errstate(invalid="ignore"):  # at rest on the edge: never, times a speed of zero
                newton = s - late * self.rise(s) / np.cosh(s)
            good = (newton > low) & (newton < high)
            following = np.where(good, newton, (low + high) / 2)
            if np.max(np.abs(following - s)) < 4e-16 * (1 + np.max(np.abs(s))):
                return following
            s = following
        return s


# --- the same as a field of the library ----------------------------------------------------------------


class MeanAttention(TokenField):
    """x -> V E_mu[x], softmax attention with Q = 0, in O(n).

    Args:
        V: (d, d) or `Layers`.

    >>> from otflow import Layers
    >>> from otflow.papers.interpolation import MeanAttention
    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [1.0]])
    >>> MeanAttention(Layers([[[2.0]]]))(0.0, mu)[0].flatten()
    tensor([1., 1.], dtype=torch.float64)
    """

    def __init__(self, V: Weight) -> None:
        self.V, self.switches = V, V.switches

    def velocity_at(
        self, t: Tensor, mu: Particles, points: Tensor, label: Tensor | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        mean = (mu.w[..., None] * mu.x).sum(-2, keepdim=True)
        return (mean @ fits(self.V, "V", 2, mu, t).mT).expand(points.shape), carry

    def __repr__(self) -> str:
        return "MeanAttention()"


def as_field(pieces: list[SpherePiece]) -> VelocityField:
    """All pieces, one after another, as a field for `flow`."""
    edges = np.concatenate([[0.0], np.cumsum([p.time for p in pieces])])

    def layers(values: list[Array]) -> Layers:
        return Layers(torch.from_numpy(np.stack(values)), edges)

    return MeanAttention(layers([p.V for p in pieces])) + Perceptron(
        W=layers([p.w[:, None] for p in pieces]),
        U=layers([p.direction[None] for p in pieces]),
        b=layers([np.array([p.c]) for p in pieces]),
    )
