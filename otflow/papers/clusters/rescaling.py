"""Rescaling tokens by exp(-tV) under attention, and the attention matrices that they end with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import scipy.integrate
import torch
from torch import Tensor

from otflow.base import checks, kernels
from otflow.base.linalg import matrix_exp
from otflow.dynamics.flow import flow
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import Perceptron, SoftmaxAttention, VelocityField
from otflow.fields.attention import centre, log_weights
from otflow.fields.weights import apply
from otflow.measures import Particles
from otflow.papers.clusters.polytopes import matrix
from otflow.papers.clusters.spectrum import weights
from otflow.steppers import Dopri5, Stepper

LATEST = 1e6  # where `horizon` stops to look
BLUR = 0.25  # scores that are rounded by more than this no longer say who is attended to


# --- the flow ------------------------------------------------------------------------------------------


def rescaled(Q: Any, K: Any, V: Any) -> VelocityField:
    """dz_i/dt = sum_j P_ij V (z_j - z_i), P = softmax <Q e^(tV) z_i, K e^(tV) z_j>: no growth.

    It is softmax attention with the weights Q e^(tV), K e^(tV), V, plus the linear block -V, so that
    z(t) = e^(-tV) x(t) for x moved by ``SoftmaxAttention(Q, K, V)``. Reference: equation (3.1).

    Args:
        Q, K: (k, d) with k <= d; V: (d, d).

    >>> from otflow.papers.clusters import rescaled
    >>> import otflow as of
    >>> field = rescaled([[1.0]], [[1.0]], [[1.0]])
    >>> field(0.0, of.Particles([[0.0], [2.0]]))[0].flatten()  # the first sees both, the second itself
    tensor([ 1.0000, -0.0360], dtype=torch.float64)
    """
    Q, K, V = weights(Q, K, V)
    linear = Perceptron(-V, torch.eye(len(V), dtype=V.dtype), activation=None)
    return SoftmaxAttention(_grown(Q, V), _grown(K, V), V) + linear


def run(
    x: Any,
    Q: Any,
    K: Any,
    V: Any,
    *,
    t1: float,
    stepper: Stepper | None = None,
    dt: float | None = None,
    save_at: Any = None,
    observe: Mapping[str, Callable[[Any], Any]] | None = None,
) -> Trajectory:
    """z(t) = e^(-tV) x(t) from z(0) = x to t1, as a trajectory of `flow`.

    Who is attended to changes fast, within times of order e^(-2 lambda t), but seldom; `Dopri5`, the default,
    takes 70 to 90 steps to t1 = 15 for forty tokens in the plane with V = I, with errors below 1e-6, where
    `RK4` with dt = 0.1 takes 150, with errors up to 2e-3. Scores grow like e^(2 lambda t), and a run ends
    where float64 no longer resolves them: see `horizon`. That is near t1 = 15 for V = I and |x| about 5.

    Args:
        x: tokens (*batch, n, d), or `Particles` with weights.
        Q, K: (k, d); V: (d, d); t1: final time, below the horizon.
        stepper, dt: another stepper than ``Dopri5()``, and its step.
        save_at, observe: as for `flow`.

    >>> from otflow.papers.clusters import run
    >>> import torch
    >>> I = torch.eye(1, dtype=torch.float64)
    >>> run([[-3.0], [-1.0], [1.0], [2.0]], I, I, I, t1=12.0).final.x.flatten().round(decimals=3)
    tensor([-2.9990, -2.9990,  1.9660,  1.9660], dtype=torch.float64)
    """
    own = weights(Q, K, V)
    mu, field = _particles(x, len(own[2])), rescaled(*own)
    _resolved(checks.positive(t1, "t1"), mu, *own, way=True)
    stepper = Dopri5() if stepper is None else stepper
    traj = flow(mu, field, stepper, t1=t1, dt=dt, save_at=save_at, observe=observe)
    _resolved(t1, traj.final, *own)  # for V = I the hull shrinks; for others it may have grown
    return traj


def horizon(x: Any, Q: Any, K: Any, V: Any) -> float:
    """The first t of eps max_ij |Q e^(tV) x_i| |K e^(tV) x_j| = 1/4, eps = 2^-52; inf if not before 1e6.

    From there on scores are rounded by as much as makes a difference to the softmax. `run` refuses
    to go further. If V = I, the hull of z(t) is in that of x, and the bound holds on the whole way. If V is
    not normal, the norms may rise and fall again: the first crossing is looked for on a grid of times with
    sixteen to every doubling, from 1e-3 / |V| on, so that no rise that is longer than that is missed.

    >>> from otflow.papers.clusters import horizon
    >>> round(horizon([[5.0], [-5.0]], [[1.0]], [[1.0]], [[1.0]]), 2)
    15.72
    """
    own = weights(Q, K, V)
    return _first_blur(_particles(x, len(own[2])), *own, end=LATEST)


def _first_blur(mu: Any, Q: Tensor, K: Tensor, V: Tensor, *, end: float) -> float:
    """The first time up to ``end`` from which on scores are not resolved, inf if there is none."""

    def clear(t: float) -> bool:
        return _blur(t, mu, Q, K, V) <= BLUR

    if not clear(0.0):
        return 0.0
    times = _grid(end, float(torch.linalg.matrix_norm(V)))
    first = next((k for k, t in enumerate(times) if not clear(t)), None)
    if first is None:
        return math.inf
    low, high = times[first - 1] if first else 0.0, times[first]
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if clear(middle) else (low, middle)
    return low


def _grid(end: float, size: float) -> list[float]:
    """Times in (0, end], sixteen to every doubling, from where e^(tV) is still the identity."""
    start = min(1e-3 / max(size, 1e-300), end)
    many = math.ceil(16 * math.log2(end / start)) + 1
    return [min(start * 2 ** (k / 16), end) for k in range(many)] + [end]


def _grown(M: Tensor, V: Tensor) -> Callable[[Tensor], Tensor]:
    """t -> M e^(tV); a symmetric V is diagonalised once, which saves most of the work in many dimensions."""
    if not torch.equal(V, V.mT):
        return lambda t: M @ matrix_exp(t * V)
    values, U = torch.linalg.eigh(V)
    MU = M @ U
    return lambda t: (MU * torch.exp(t * values)) @ U.mT


def _blur(t: float, mu: Particles, Q: Tensor, K: Tensor, V: Tensor) -> float:
    """The rounding of the largest score; inf where the exponential overflows, 0 for tokens at 0."""
    if not bool(mu.x.any()):
        return 0.0
    grown = (_grown(M, V)(torch.tensor(t, dtype=torch.float64)) for M in (Q, K))
    sizes = [torch.linalg.vector_norm(apply(M, mu.x), dim=-1).max() for M in grown]
    blur = float(torch.finfo(torch.float64).eps * sizes[0] * sizes[1])
    return blur if math.isfinite(blur) else math.inf


def _resolved(t: float, mu: Any, Q: Tensor, K: Tensor, V: Tensor, *, way: bool = False) -> None:
    """Fail if scores are not resolved at time t or, if asked, anywhere on the way to it."""
    first = _first_blur(mu, Q, K, V, end=t) if way else math.inf
    if first <= t or _blur(t, mu, Q, K, V) > BLUR:
        end = min(first, horizon(mu, Q, K, V))
        rule = f"float64 rounds them by more than {BLUR:g} from t = {end:.4g} on"
        checks.fail("t", t, f"scores grow like exp(2 lambda t), and {rule}", f"pass t={end:.4g} or less")


# --- the attention matrix ------------------------------------------------------------------------------


def attention_matrix(t: float, mu: Any, Q: Any, K: Any, V: Any) -> Tensor:
    """P_ij = softmax_j <Q e^(tV) z_i, K e^(tV) z_j> (+ log w_j for weighted tokens), (*batch, n, n).

    The same for z as for x = e^(tV) z. Its rows sum to one. It takes n^2 numbers of memory.

    Args:
        t: time, below the `horizon`; mu: the tokens z, (*batch, n, d) or `Particles`; Q, K, V: as above.

    >>> from otflow.papers.clusters import attention_matrix
    >>> attention_matrix(0.0, [[0.0], [1.0]], [[1.0]], [[1.0]], [[1.0]])
    tensor([[0.5000, 0.5000],
            [0.2689, 0.7311]], dtype=torch.float64)
    """
    Q, K, V = weights(Q, K, V)
    mu, t = _particles(mu, len(V)), checks.number(t, "t")
    _resolved(t, mu, Q, K, V)
    at, shift = torch.tensor(t, dtype=torch.float64), centre(mu)  # which the softmax does not see
    q, k = apply(_grown(Q, V)(at), mu.x), apply(_grown(K, V)(at), mu.x - shift)
    bias, eye = log_weights(mu), torch.eye(mu.n, dtype=torch.float64)
    rows = kernels.row_tiles(mu.n, q.numel() // q.shape[-1])
    return torch.cat([kernels.attend(q[..., r, :], k, eye, bias)[0] for r in rows], -2)


def undecided(P: Any, *, atol: float = 1e-6) -> Tensor:
    """Rows with an entry in (atol, 1 - atol), (*batch, n): the tokens that attend to more than one other.

    >>> from otflow.papers.clusters import undecided
    >>> undecided([[1.0, 0.0], [0.5, 0.5]])
    tensor([False,  True])
    """
    P = _stochastic(P)
    return (torch.minimum(P, 1 - P) > checks.positive(atol, "atol")).any(-1)


def is_boolean(P: Any, *, atol: float = 1e-6) -> Tensor:
    """Whether every entry is within atol of 0 or 1, (*batch,).

    >>> from otflow.papers.clusters import is_boolean
    >>> is_boolean([[1.0, 0.0], [1e-9, 1.0]]).item()
    True
    """
    return ~undecided(P, atol=atol).any(-1)


def boolean_limit(P: Any) -> Tensor:
    """The nearest stochastic matrix of zeros and ones: 1 where a row is largest (the first, if several are).

    >>> from otflow.papers.clusters import boolean_limit
    >>> boolean_limit([[0.9, 0.1], [0.2, 0.8]])
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    P = _stochastic(P)
    return torch.nn.functional.one_hot(P.argmax(-1), P.shape[-1]).double()


def rank(P: Any, *, rtol: float = 1e-6) -> Tensor:
    """The number of singular values above rtol times the largest, (*batch,), integers.

    Singular values of a Boolean P are the roots of the numbers of tokens that attend to each leader, at least
    n^(-1/2) of the largest: for such P and n < 1/rtol^2, it is the rank, and the number of leaders.

    >>> from otflow.papers.clusters import rank
    >>> rank([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]).item()
    2
    """
    s = torch.linalg.svdvals(_stochastic(P))
    many: Tensor = (s > checks.positive(rtol, "rtol") * s[..., :1]).sum(-1)
    return many


def leaders(P: Any, *, least: float = 0.5) -> Tensor:
    """Tokens to which some token gives more than the share ``least`` of its attention: (*batch, n), a mask.

    For a Boolean P these are its columns that are not zero.

    >>> from otflow.papers.clusters import leaders
    >>> leaders([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    tensor([ True, False,  True])
    """
    return _stochastic(P).amax(-2) > checks.positive(least, "least")


def _stochastic(P: Any) -> Tensor:
    out: Tensor = checks.tensor(P, "P").double()
    if out.ndim < 2 or out.shape[-1] != out.shape[-2]:
        checks.fail(
            "P.shape", tuple(out.shape), "(*batch, n, n) is needed", "pass attention_matrix(t, x, Q, K, V)"
        )
    if bool((out < 0).any()) or bool(((out.sum(-1) - 1).abs() > 1e-6).any()):
        checks.fail("P", "a matrix", "rows are >= 0 and sum to one", "pass attention_matrix(t, x, Q, K, V)")
    return out


# --- closed forms --------------------------------------------------------------------------------------


def decay(t: Any, cov: Any) -> Tensor:
    """S(t) = S0 (I + 2t S0)^-1, which solves dS/dt = -2 S^2: the covariance for V = -I and Q^T K = I.

    Exact on Gaussians, whose mean is then e^-t (I + 2t S0)^(-1/2) m0; for tokens it describes late times,
    when scores are small, so that S ~ I / (2t) and |x| ~ t^(-1/2): they go to 0, but slowly.

    Args:
        t: >= 0, any shape (*batch,); cov: S0, (d, d).

    >>> from otflow.papers.clusters import decay
    >>> decay([0.0, 1.0, 50.0], [[1.0]]).flatten()
    tensor([1.0000, 0.3333, 0.0099], dtype=torch.float64)
    """
    t, S = checks.tensor(t, "t").double(), matrix(cov, "cov")
    if bool((t < 0).any()):
        checks.fail("min(t)", float(t.min()), "time starts at 0", "pass t >= 0")
    rule = "it must be symmetric and positive semidefinite"
    size = float(S.abs().max())
    if S.shape[0] != S.shape[1] or float((S - S.mT).abs().max()) > 1e-8 * size:
        checks.fail("cov", f"a matrix of shape {tuple(S.shape)}", rule, "pass a covariance")
    values, U = torch.linalg.eigh(S)
    if float(values[0]) < -1e-12 * size:
        checks.fail("least eigenvalue of cov", float(values[0]), rule, "pass a covariance")
    values = values.clamp(min=0)
    out: Tensor = (U * (values / (1 + 2 * t[..., None] * values))[..., None, :]) @ U.mT
    return out


def pair_limit(height: Any) -> Tensor:
    """y_oo = y exp(-int_{y^2}^oo dw / (w (e^(2w) - 1))): for V = I, (1, +-y) end at (1, +-y_oo).

    Two tokens, Q = K = I. In u = e^t z_2 the flow is du/dt = u tanh(u^2). The limit is of order
    e^(-1/(2 y^2)), but not 0: there are two clusters, and P tends to the identity. (The remark that closes
    section 7 of the paper, as transcribed in a formalisation, takes this pair for an example of one cluster
    with a P of rank two.)

    Args:
        height: y >= 0.03, any shape; below that, the limit is soon less than the smallest float64.

    >>> from otflow.papers.clusters import pair_limit
    >>> pair_limit([0.5, 2.0])
    tensor([0.1874, 1.9999], dtype=torch.float64)
    """
    y: Tensor = checks.tensor(height, "height").double()
    if bool((y < 0.03).any()):
        checks.fail("min(height)", float(y.min()), "it must be >= 0.03", "pass heights of 0.03 or more")
    shrink = [_exponent(a) for a in y.square().flatten().tolist()]
    return y * torch.exp(-torch.tensor(shrink, dtype=torch.float64).reshape(y.shape))


def _exponent(a: float) -> float:
    """int_a^oo dw / (w (e^(2w) - 1)), over s = log w; what is beyond w = 40 is less than e^-80."""
    ends = math.log(a), max(math.log(a), math.log(40.0))
    return float(scipy.integrate.quad(lambda s: 1 / math.expm1(2 * math.exp(s)), *ends, epsrel=1e-12)[0])


# --- checks --------------------------------------------------------------------------------------------


def _particles(x: Any, d: int) -> Particles:
    """Tokens in float64, in dimension d; a measure keeps its weights."""
    given = x if isinstance(x, Particles) else Particles(x)
    if given.d != d:
        checks.fail("x.shape", tuple(given.x.shape), f"V has d = {d} columns", f"pass x with {d} coordinates")
    return Particles(given.x.double(), None if given.uniform else given.w.double())
