"""The propagator, the derivative of a flow map, with its transpose and its singular values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial, singledispatch
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import ConvergenceError, DerivativeError, FlowError
from otflow.base.tangent import Tangent, as_tangent
from otflow.dynamics.flow import flow
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import VelocityField
from otflow.fields.base import load_forward_mode
from otflow.measures import Gaussian, Measure, Particles
from otflow.stability.krylov import largest
from otflow.steppers import Stepper

LARGEST = 2**27  # entries of a matrix, at most; chosen: 1 GB in float64
# Coordinates up to which singular values are those of the whole matrix; chosen: as many backward passes.
SMALL = 64


class Propagator:
    """DPhi, the derivative of the flow map Phi: mu_0 -> mu_T, of the discrete one, to rounding.

    The tokens are the coordinates (mean and root for a Gaussian), and L2(mu_0) and L2(mu_T) the inner
    products: <DPhi u, c>_T = <u, DPhi* c>_0. Forward mode through the steps gives DPhi u, reverse mode
    DPhi* c. The graph of the run is made once and kept for all `pull`, so that one costs a backward pass, and
    `push` a run of its own. A field with an inner solver is as exact as that is, so choose a small ``tol``.

    Args:
        mu0: `Particles`, on spheres too, or a `Gaussian`; every token has mass.
        field, t1, dt, t0: as in `flow`. A run that blows up raises `FlowError`.
        stepper: of fixed step, and differentiable: `Euler()`, `Heun()`, `RK4()`; `Lie()` on Gaussians.

    Attributes:
        mu0, final: mu_0 and mu_T.

    >>> import torch
    >>> import otflow as of
    >>> from otflow.stability.propagator import Propagator
    >>> spin = of.Perceptron([[0.0, -1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], activation=None)
    >>> turn = Propagator(of.Particles([[2.0, 0.0]]), spin, of.RK4(), t1=torch.pi / 2, dt=0.01)
    >>> turn.push(turn.mu0.coords)[0].round(decimals=6)
    tensor([[-0., 2.]], dtype=torch.float64)
    >>> turn.pull(turn.final.coords)[0].round(decimals=6)
    tensor([[2., 0.]], dtype=torch.float64)
    """

    def __init__(
        self,
        mu0: Measure,
        field: VelocityField,
        stepper: Stepper,
        *,
        t1: float,
        dt: float,
        t0: float = 0.0,
    ) -> None:
        good = not checks.instance(stepper, Stepper, "stepper").adaptive
        rule = "steps that depend on the state do not make one smooth map"
        checks.require(good, "stepper", stepper, rule, "use RK4() with dt=...")
        if torch.is_inference_mode_enabled():
            raise DerivativeError(
                "torch.inference_mode() records no derivatives; call it outside, or under torch.no_grad()."
            )
        self._flow = partial(flow, field=field, stepper=stepper, t1=t1, dt=dt, t0=t0, save_at=[t1])
        self.span = float(t1) - float(t0)
        self.mu0: Measure = _bare(checks.instance(mu0, Measure, "mu0"))
        self._roots = _roots(self.mu0)
        with torch.enable_grad():
            self._inputs = self.mu0.coords.map(lambda a: a.clone().requires_grad_())
            self._outputs = self.run(self.mu0.at(self._inputs)).coords
        self.final: Measure = _bare(self.mu0.at(self._outputs))

    def trajectory(self, mu: Measure) -> Trajectory:
        """The same flow from mu, at the final time only."""
        return self._flow(mu)

    def run(self, mu: Measure) -> Measure:
        """Phi(mu), for another mu too; `FlowError` if it does not reach the end."""
        traj = self.trajectory(mu)
        bad = np.atleast_1d(~status.arrived(traj.status))
        if bad.any():
            raise FlowError(
                f"the flow map is not defined for {bad.sum()} of {bad.size} members: "
                f"{traj.message.rstrip('.')}; leave them out, or choose an earlier t1.",
                traj,
            )
        return traj.final

    def push(self, u: Tangent) -> Tangent:
        """DPhi u. Axes in front of those of mu_0 hold several u, which run as one batch."""
        _extra(u, self.mu0, "u")
        u = self.mu0.tangent(u)
        load_forward_mode()
        with torch.no_grad(), forward_ad.dual_level():
            dual = self.mu0.coords.zip(
                u, lambda x, a: forward_ad.make_dual(x.expand(a.shape).contiguous(), a)
            )
            parts = [forward_ad.unpack_dual(a) for a in self.run(self.mu0.at(dual)).coords]
            return Tangent(
                torch.zeros_like(a.primal) if a.tangent is None else a.tangent.clone() for a in parts
            )

    def pull(self, c: Tangent) -> Tangent:
        """DPhi* c, the transpose: <c, DPhi u>_T = <DPhi* c, u>_0. Axes in front hold several c."""
        extra = _extra(c, self.final, "c")
        # A covector carries the weights of L2(mu_T), which are those of L2(mu_0); `sharp` takes them off.
        c = self.final.tangent(c).zip(self._roots, lambda a, r: a * r.square())
        rows = [
            self._backward(Tangent(one)) for one in zip(*(_merged(a, len(extra)) for a in c), strict=True)
        ]
        pieces = (torch.stack(piece) for piece in zip(*rows, strict=True))
        return self.mu0.sharp(Tangent(a.reshape(*extra, *a.shape[1:]) for a in pieces))

    def _backward(self, c: Tangent) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            self._outputs, self._inputs, c, retain_graph=True, allow_unused=True, materialize_grads=True
        )

    def matrix(self) -> Tensor:
        """The matrix of DPhi in the coordinates, (*batch, N, N) with N = n d for tokens, for small N.

        Its singular values are those of DPhi if all tokens have the same weight; else those of
        (w_i / w_j)^(1/2) DPhi_ij are. On spheres its columns are those of the projection to tangents first.
        """
        N = _size(self.mu0)
        good = N * N * self.mu0.batch.numel() <= LARGEST
        rule = f"the matrix may have {LARGEST} entries"
        checks.require(good, "N", N, rule, "use push and pull, or singular_values")
        eye = torch.eye(N, dtype=self.mu0.dtype, device=self.mu0.device)
        rows = eye.reshape(N, *(1 for _ in self.mu0.batch), N).expand(N, *self.mu0.batch, N)
        return _flat(self.push(_pieces(rows, self.mu0)), self.mu0).movedim(0, -1)

    @property
    def small(self) -> bool:
        """Whether `whole` is cheaper than iterations."""
        return _size(self.mu0) <= SMALL

    @cached_property
    def whole(self) -> Tensor:
        """The matrix between `isometric` coordinates, (*batch, N, N), by rows: backward passes are cheap."""
        N, mu = _size(self.mu0), self.mu0
        eye = torch.eye(N, dtype=mu.dtype, device=mu.device).expand(*mu.batch, N, N)
        return self.isometric(self.pull(self.tangents(eye))).mT

    def isometric(self, u: Tangent) -> Tensor:
        """Tangents (k, *batch, ...) as columns (*batch, N, k), with the inner product of R^N."""
        return _flat(u.zip(self._roots, lambda a, r: a * r), self.mu0).movedim(0, -1)

    def tangents(self, columns: Tensor) -> Tangent:
        """The inverse of `isometric`."""
        return _pieces(columns.movedim(-1, 0), self.mu0).zip(self._roots, lambda a, r: a / r)


def _bare(mu: Measure) -> Measure:
    """The measure without its graph."""
    return mu.at(mu.coords.map(lambda a: a.detach()))


def _extra(u: Tangent, mu: Measure, name: str) -> torch.Size:
    """The axes of u in front of those of mu."""
    shapes, own = mu.shapes(), as_tangent(u, name)
    front = own[0].shape[: max(0, own[0].ndim - len(shapes[0]))] if own else torch.Size()
    as_tangent(own, name, [torch.Size((*front, *s)) for s in shapes])
    return front


def _merged(a: Tensor, k: int) -> Tensor:
    """The first k axes as one."""
    return a.reshape(a.shape[:k].numel(), *a.shape[k:])


@singledispatch
def _roots(mu: Measure) -> Tangent:
    """The square roots of the weights in the inner product of L2(mu), per coordinate."""
    checks.fail(
        "mu0",
        repr(mu),
        "flow maps have derivatives on Particles and Gaussians",
        "pass Particles(*mu0.nodes())",
    )


@_roots.register(Particles)
def _(mu: Particles) -> Tangent:
    checks.require(
        not (mu.w <= 0).any(),
        "min(w)",
        0.0,
        "a token without mass has no length in L2(mu)",
        "pass mu.x[mu.w > 0], mu.w[mu.w > 0]",
    )
    return Tangent([mu.w.sqrt()[..., None].expand(mu.x.shape)])


@_roots.register(Gaussian)
def _(mu: Gaussian) -> Tangent:
    return mu.coords.map(torch.ones_like)


def _size(mu: Measure) -> int:
    """The number of coordinates of one member."""
    return sum(s[len(mu.batch) :].numel() for s in mu.shapes())


def _flat(u: Tangent, mu: Measure) -> Tensor:
    """(k, *batch, N)."""
    return torch.cat([a.flatten(1 + len(mu.batch)) for a in u], -1)


def _pieces(rows: Tensor, mu: Measure) -> Tangent:
    """The inverse of `_flat`."""
    parts = rows.split([s[len(mu.batch) :].numel() for s in mu.shapes()], -1)
    return Tangent(a.reshape(len(rows), *s) for a, s in zip(parts, mu.shapes(), strict=True))


# --- singular values -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The largest singular values of the derivative of a flow map, DPhi v_i = s_i u_i, DPhi* u_i = s_i v_i.

    Attributes:
        values: s_1 >= ... >= s_k, (*batch, k).
        initial: v_i, of length 1 in L2(mu_0): the perturbations that grow most; axes (k, *batch, ...).
        final: u_i, of length 1 in L2(mu_T): what becomes of them.
        residuals: |DPhi* u_i - s_i v_i|, (*batch, k): a singular value is as near to s_i.
        codes: how the iteration ended, (*batch,).
        iterations: how many times DPhi and its transpose were applied.
        span: t1 - t0.
    """

    values: Tensor
    initial: Tangent
    final: Tangent
    residuals: Tensor
    codes: Tensor
    iterations: int
    span: float

    @property
    def exponents(self) -> Tensor:
        """The finite-time Lyapunov exponents log(s_i) / (t1 - t0), (*batch, k)."""
        return self.values.log() / self.span

    @property
    def status(self) -> Any:
        """How it ended: a string, or an array of strings for a batch."""
        return status.names(self.codes)

    def __repr__(self) -> str:
        values = f"{self.values.tolist()}" if self.values.ndim == 1 else f"{tuple(self.values.shape)}"
        ended = self.status if self.codes.ndim == 0 else sorted(set(self.status.flatten().tolist()))
        return f"Spectrum(values={values}, status={ended!r})"


def singular_values(
    mu0: Measure,
    field: VelocityField,
    stepper: Stepper,
    *,
    t1: float,
    dt: float,
    t0: float = 0.0,
    k: int = 1,
    tol: float = 1e-6,
    max_iter: int = 50,
    rng: int | np.random.Generator = 0,
    on_failure: Literal["raise", "return"] = "raise",
) -> Spectrum:
    """The k largest singular values of DPhi: L2(mu_0) -> L2(mu_T), Phi the flow map, see `Propagator`.

    The first is the factor by which small perturbations grow at most in W2, as long as tokens stay apart.
    Block Golub-Kahan-Lanczos iteration with full reorthogonalisation: each round is one run in forward mode,
    of k tangents, and k backward passes. Up to 64 coordinates, as many backward passes give the whole matrix
    at once. All members of a batch go together.

    Args:
        mu0, field, stepper, t1, dt, t0: as in `Propagator`.
        k: how many; multiple values are found as often as they occur, up to k times.
        tol: bound on ``residuals`` over s_1; at least 100 rounding errors of the dtype of
            mu0. Values are then right to about tol^2 s_1 over their relative gap to the next.
        max_iter: limit on the rounds; one is up to a few dozen runs, hence few.
        rng: a seed or a `numpy.random.Generator`, for the start of the search.
        on_failure: "raise" raises `ConvergenceError`, which carries the spectrum, if a member missed ``tol``;
            "return" returns it.

    Reference: Golub and Van Loan 2013, "Matrix computations", Section 10.4.

    >>> import otflow as of
    >>> from otflow.stability.propagator import singular_values
    >>> saddle = of.Perceptron([[1.0, 0.0], [0.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]], activation=None)
    >>> s = singular_values(of.Particles([[1.0, 1.0]]), saddle, of.RK4(), t1=2.0, dt=0.1, k=2)
    >>> s.exponents.round(decimals=4)
    tensor([ 1., -1.], dtype=torch.float64)
    """
    loud, k = checks.raises(on_failure), checks.count(k, "k")
    tol, max_iter = checks.positive(tol, "tol"), checks.count(max_iter, "max_iter")
    tol = max(tol, 100 * torch.finfo(mu0.dtype).eps) if isinstance(mu0, Measure) else tol
    found = spectrum(Propagator(mu0, field, stepper, t1=t1, dt=dt, t0=t0), k, tol, max_iter, rng)
    if loud and bool((found.codes > 0).any()):
        worst = float((found.residuals / found.values[..., :1]).max())
        raise ConvergenceError(
            f"singular_values: relative residual {worst:.2e} after {max_iter} rounds, tol = {tol:.2e}; "
            "raise max_iter or tol. The spectrum so far is in the .result of this exception.",
            found,
        )
    return found


def spectrum(prop: Propagator, k: int, tol: float, max_iter: int, rng: int | np.random.Generator) -> Spectrum:
    """`singular_values` of a propagator, converged or not."""
    N, mu, J = _size(prop.mu0), prop.mu0, Columns(prop)
    checks.require(k <= N, "k", k, f"there are {N} coordinates", f"choose k <= {N}")
    if prop.small:
        V, W = torch.eye(N, dtype=mu.dtype, device=mu.device).expand(*mu.batch, N, N), prop.whole
    else:
        normal = torch.from_numpy(checks.generator(rng).standard_normal((*mu.batch, N, k)))
        V = torch.linalg.qr(normal.to(mu.coords[0])).Q
        W = J.push(V)
    best, rounds = largest(J, V, W, k, tol=tol, max_iter=max_iter)
    codes = torch.where(best.open(tol), status.code("max_iter"), status.code("ok"))
    initial, final = mu.tangent(prop.tangents(best.right)), prop.tangents(best.left)
    return Spectrum(best.s, initial, final, best.residuals, codes, rounds, prop.span)


class Columns(NamedTuple):
    """DPhi between `isometric` coordinates."""

    prop: Propagator

    def push(self, V: Tensor) -> Tensor:
        """DPhi V."""
        return self.prop.isometric(self.prop.push(self.prop.tangents(V)))

    def pull(self, W: Tensor) -> Tensor:
        """DPhi* W."""
        return self.prop.isometric(self.prop.pull(self.prop.tangents(W)))
