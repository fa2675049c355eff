"""Correlations of causal attention when prompts are drawn from any density, not only the uniform one.

Tokens are independent at the start, with one density f_0 on the circle whatever their position. With
phi(theta) = exp(-ip theta), let A be the limit of cov(token, phi of its own start), and C that of N cov(token
at sigma, phi of the start of the token at sigma_0), as densities in theta. Then, with V = w' * f and
w = exp(beta cos),

    df/dt + (f V)' = 0,    dA/dt + (A V)' = 0,
    dC/dt + (C V)' + (f w' * [int k(sigma, s) C(s) ds + k(sigma, sigma_0) A])' = 0

(Duerinckx, Geshkovski, Rossi 2026). As int k(sigma, s) k(s, sigma_0) Y(s)^m ds = k(sigma, sigma_0)
Y^(m+1) / (m+1) for Y = `depth` over sigma_0, the position and the slope of ALiBi separate from the rest:

    C = k(sigma, sigma_0) sum_m Y^m / m! G_m(t, theta),
    dG_m/dt + (G_m V)' + (f w' * G_{m-1})' = 0,  G_m(0) = 0,  G_{-1} = A.

G_m is what arrives through m + 1 steps of attention. The equations of f, A, G_0, ..., G_{hops-1} are
integrated in Fourier modes. For f_0 = 1 the answer is `response`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import insist, tensor
from otflow.base.tangent import Tangent
from otflow.dynamics.flow import flow
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles
from otflow.papers.lost_in_the_middle.retrieval import depth, inverse_temperature, log_graphon, places
from otflow.steppers import Dopri5

__all__ = ["Correlations", "correlation_functions"]

Density = Callable[[Any], Any]
NEGLIGIBLE = 1e-8  # errors by modes and hops that are left out are below this part of the whole
ROUGH = 1e-11  # and in rows that are tiny, below this: the stepper has an absolute tolerance of 1e-13
CONCENTRATED = 0.01  # the run ends once the highest modes of f are above this
LARGEST_RATE = 1e6  # of a mode; not even rounding errors stay small then
MAX_STEPS = 2000  # of the stepper; most runs take one or two hundred


class Correlations(NamedTuple):
    """Densities at time t by their Fourier coefficients: f(theta) = sum_q f_q exp(iq theta), q = -K..K.

    With respect to d theta / 2 pi, so that f_0 = 1. ``f`` (2K+1,) is the law of a token at any position,
    ``own`` (2K+1,) is A, ``hops`` (H, 2K+1) are the G_m; all complex. Modes |q| <= ``reliable`` stay the
    same, to 1e-8 of the largest, if the highest sixth of the modes is left out; others are not given out.
    """

    f: Tensor
    own: Tensor
    hops: Tensor
    reliable: int

    def between(self, sigma: Any, sigma0: Any, lam: Any, q: int) -> Tensor:
        """lim N cov(exp(iq theta_sigma(t)), exp(-ip theta_{sigma_0}(0))), complex, one for each position.

        Args:
            sigma: in (0, 1]; sigma0: in (0, 1); lam: >= 0; they broadcast. q: |q| <= reliable.

        The last hop must be below 1e-8 of all, each by its largest mode; else more hops are asked for.
        """
        G = self.hops[:, self._index(q)]
        share = self._shares(sigma, sigma0, lam)
        size = share * self.hops.abs().amax(-1)
        last, all_hops = size[..., -1], size.sum(-1)
        rule = f"of the last hop, relative to all, must be <= {NEGLIGIBLE:g}"
        part = last / all_hops.clamp(min=torch.finfo(torch.float64).tiny)
        insist(part <= NEGLIGIBLE, "the part", part, rule, "raise hops, or lower t")
        return (share * G).sum(-1)

    def _shares(self, sigma: Any, sigma0: Any, lam: Any) -> Tensor:
        """k Y^m / m!, (*positions, H); exponents are added before k vanishes."""
        sigma, sigma0, lam = places(sigma, sigma0, lam)
        m = np.arange(len(self.hops))
        Y, k = depth(sigma, sigma0, lam).numpy()[..., None], log_graphon(sigma, sigma0, lam)[..., None]
        with np.errstate(over="ignore"):
            share = np.exp(special.xlogy(m, Y) - special.gammaln(m + 1) + k)
        insist(np.isfinite(share), "depth", Y, "its power must be a float64", "pass lam / 2, or less")
        return tensor(share)

    def mean(self, q: int) -> Tensor:
        """E exp(iq theta(t)), complex."""
        return self.f[self._index(q)]

    def _index(self, q: int) -> int:
        K = len(self.f) // 2
        if not (isinstance(q, int) and abs(q) <= self.reliable):
            rule = f"of {K} modes, those up to {self.reliable} are resolved"
            checks.fail("q", q, rule, "raise modes of correlation_functions, or lower t")
        return K - q  # int exp(iq theta) f d theta / 2 pi is the coefficient of exp(-iq theta)


def correlation_functions(
    density: Density, t: float, beta: float, *, p: int = 1, modes: int = 24, hops: int = 16
) -> Correlations:
    """f, A and the G_m at time t, from tokens with this density at the start (see the head of this module).

    Args:
        density: of theta, numpy arrays in and out, > 0 or >= 0; it need not be normalised.
        t: time > 0; beta: 0 or from 1e-100 to 700.
        p: the observed mode of the start, phi(theta) = exp(-ip theta).
        modes: K, the largest Fourier mode that is kept. As t grows f concentrates and needs more of them; if
            they do not suffice any more, there is an error.
        hops: number of steps of attention that are kept, at least 2 for `Correlations.between`.

    >>> from otflow.papers.lost_in_the_middle import correlation_functions
    >>> import numpy as np
    >>> uniform = correlation_functions(lambda theta: np.ones_like(theta), 1.0, 1.0)
    >>> uniform.between(1.0, [0.1, 0.5], 1.0, q=1).real
    tensor([0.7367, 0.7059], dtype=torch.float64)
    """
    K, hops, p = checks.count(modes, "modes"), checks.count(hops, "hops"), checks.count(p, "p")
    if p > K:
        checks.fail("p", p, f"only {K} modes are kept", "raise modes")
    t, beta = checks.positive(t, "t"), float(inverse_temperature(checks.number(beta, "beta")))
    rows = torch.stack([*_start(density, K, p), *torch.zeros(hops, 2 * K + 1, dtype=torch.complex128)])
    fewer = max(1, K // 6)
    coarse = _solution(rows[:, fewer:-fewer], _Hierarchy(beta, K - fewer, t), t)
    fine = _solution(rows, _Hierarchy(beta, K, t), t)
    return Correlations(fine[0], fine[1], fine[2:], _agreeing(fine[:, fewer:-fewer], coarse))


def _agreeing(fine: Tensor, coarse: Tensor) -> int:
    """The largest Q such that modes |q| <= Q of all rows are the same."""
    bad = ((fine - coarse).abs() > NEGLIGIBLE * fine.abs().amax(-1, keepdim=True) + ROUGH).any(0)
    K = len(bad) // 2
    wrong = (bad | bad.flip(0))[K:].nonzero()
    return int(wrong[0, 0]) - 1 if len(wrong) else K


def _solution(rows: Tensor, field: VelocityField, t: float) -> Tensor:
    """Rows at time t, or an error as soon as f has concentrated; t is the unit of time."""
    traj = flow(
        Particles(torch.view_as_real(rows).flatten(1)),
        field,
        Dopri5(rtol=1e-11, atol=1e-13),
        t1=1.0,
        save_at=[1.0],
        stop=lambda time, mu: not _resolved(mu),
        max_steps=MAX_STEPS,
        on_failure="return",
    )
    if traj.status == "budget":
        checks.fail(
            "t",
            t,
            f"{MAX_STEPS} steps do not suffice: things grow too much",
            f"pass t={t / 2:g}, or half of beta",
        )
    if traj.status != "ok" or not _resolved(traj.final):
        rule = "the density is too concentrated for the modes"
        checks.fail("t", t, rule, f"pass twice as many modes, or t={t / 2:g}")
    return _complex(traj.final)


def _complex(mu: Measure) -> Tensor:
    return torch.view_as_complex(mu.coords[0].unflatten(-1, (-1, 2)).contiguous())


def _resolved(mu: Measure) -> bool:
    """Whether the highest modes of f are small."""
    f = _complex(mu)[0].abs()
    few = max(1, len(f) // 12)
    return bool(f[:few].max() <= CONCENTRATED)  # f is real: the others are their conjugates


def _start(density: Density, K: int, p: int) -> tuple[Tensor, Tensor]:
    """Coefficients of f_0 and of f_0 (phi - <phi>)."""
    theta = 2 * math.pi * np.arange(16 * K) / (16 * K)
    values = checks.tensor(checks.function(density, "density")(theta), "density").double().numpy()
    if values.shape not in ((), theta.shape):
        checks.fail(
            "density",
            f"{values.shape}",
            f"one number for each of {len(theta)} angles",
            "let density(theta) return an array like theta",
        )
    if (values < 0).any() or not values.any():
        checks.fail(
            "density", values, "finite numbers >= 0, not all zero, are needed", "let it return np.exp(...)"
        )
    values = values * np.ones_like(theta)
    f = values / values.mean()
    phi = np.exp(-1j * p * theta)
    own = f * (phi - (f * phi).mean())
    q = np.arange(-K, K + 1)
    return tuple(torch.from_numpy(np.fft.fft(a)[q] / len(theta)) for a in (f, own))  # type: ignore[return-value]


class _Hierarchy(VelocityField):
    """The equations of f, A, G_0, G_1, ...: rows of Fourier coefficients, real, imaginary, in turn.

    With t as the unit of time.
    """

    def __init__(self, beta: float, K: int, t: float) -> None:
        q = torch.arange(-K, K + 1)
        self.derivative = 1j * q.to(torch.complex128)
        rates = self.derivative * torch.from_numpy(special.iv(q.abs().numpy(), beta))
        longest = LARGEST_RATE / float(rates.abs().max())
        remedy = f"pass t={0.9 * longest:.2g} or less, or a smaller beta"
        checks.require(t < longest, "t", t, f"t K I_1(beta) must be < {LARGEST_RATE:g}", remedy)
        self.force = t * rates  # of w'
        self.shift = q[:, None] - q + K  # where the coefficient q - m is found
        self.kept = (self.shift >= 0) & (self.shift <= 2 * K)

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        rows = _complex(mu)
        f, V = rows[..., :1, :], self.force * rows
        source = torch.nn.functional.pad(V[..., 1:-1, :], (0, 0, 2, 0))  # G_m is driven by the row before it
        flux = rows @ self._products(V[..., 0, :]).mT + source @ self._products(f[..., 0, :]).mT
        return Tangent([torch.view_as_real(-self.derivative * flux).flatten(-2)])

    def _products(self, a: Tensor) -> Tensor:
        """The matrix that multiplies by the function with coefficients a."""
        return torch.where(self.kept, a[..., self.shift.clamp(0, a.shape[-1] - 1)], 0.0)
