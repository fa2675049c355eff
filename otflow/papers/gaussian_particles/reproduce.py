"""Clouds sampled from a Gaussian follow its flow, until the tail that matters has no tokens

Softmax, L2 and Sinkhorn attention keep Gaussians Gaussian, so that the flow of a law of infinitely many
tokens is an equation for a mean and a covariance (Castin, Ablin, Carrillo and Peyré 2025, section 4). Here n
tokens are drawn from the law and follow the attention between them. Where the covariance shrinks, or grows
mildly, the covariance of the cloud meets the closed equation at the Monte Carlo rate: four times the tokens,
half the error. A cloud whose mean and covariance are those of the law at the start stays much closer.

Near the blow-up of softmax attention this breaks down. A token at x attends to the law tilted by exp(Ax.y),
which is N(m + S A x, S): the same bell, moved by S A x. If it moves by many standard deviations, then it
sits where n samples have no tokens at all, and the average that the cloud takes is that of its few outermost
tokens. The number of tokens that carry the average is n exp(-|S^(1/2) A x|^2), an effective sample size; the
exponent is the square of a quantity that tends to infinity at the blow-up time t*. So the covariance of
the cloud falls behind long before t*: a tenth of it is missing at two thirds of t*, nearly all of it just
before t*, and more tokens help only by the square root of their logarithm. No cloud blows up: its
radius is bounded by exp(t |V|) R(0) (Theorem 3.1 there), and it passes t* as if nothing were there. A test of
the blow-up by particles is thus bound to fail, while quadrature of the law itself is not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
SEED = 4
MEAN = (0.3, -0.2)
COV = np.array([[1.0, 0.3], [0.3, 0.6]])
EYE = np.eye(2)
GROWING = np.array([[0.5, 0.1], [0.1, 0.25]])  # A of the softmax flow that blows up
BLOW_UP = float(closed_forms.softmax_blow_up_time(COV, GROWING))  # its t*
MARKS = (0.2, 0.4, 0.66, 0.8, 0.9, 0.98)  # fractions of the time of the blow-up
END = 1.5  # how far beyond it the clouds are followed, in the same unit
INK = of.plot.INK
Errors = dict[str, dict[int, tuple[float, float]]]  # name -> number of tokens -> error, its uncertainty


class Regime(NamedTuple):
    """A field, the law that it starts from, and how many clouds it is worth: Sinkhorn is slower."""

    field: of.VelocityField
    mu0: of.Gaussian
    share: float = 1.0


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    rng = np.random.default_rng(SEED)
    errors = _errors(rng, frame)
    frame.stage(0.75, "one cloud with the exact moments")
    sizes = frame.size((100, 400), (100, 400, 1500))
    matched = {name: _matched_error(regime, sizes[-1], rng) for name, regime in _regimes().items()}
    frame.stage(0.85, "softmax, towards the blow-up")
    paths = {n: _towards(n, rng) for n in sizes}
    claims = [*_rate_claims(errors), *_matched_claims(matched, sizes[-1]), *_blow_up_claims(paths)]
    figures = {"rates": _draw_rates(errors), "blow-up": _draw_blow_up(paths)}
    return Result(claims, figures, _data(errors, paths))


def _regimes() -> dict[str, Regime]:
    """Contracting and mild softmax, and L2 and Sinkhorn attention that make the covariance grow."""
    law, centred = (of.Gaussian(m, cov=COV) for m in (MEAN, (0.0, 0.0)))
    A, V = np.array([[0.4, 0.3], [-0.1, 0.3]]), np.array([[0.8, -0.4], [0.2, 0.6]])
    return {
        "softmax, contracting": Regime(of.SoftmaxAttention(-A, EYE, EYE), centred),
        "softmax, mild": Regime(of.SoftmaxAttention(0.3 * A, EYE, V), law),
        "L2": Regime(of.L2Attention(A, 0.7 * EYE, V), law),
        "Sinkhorn": Regime(of.SinkhornAttention(A, EYE, V, of.Sinkhorn(1.0, tol=1e-6)), law, share=0.5),
    }


def _sample(
    law: of.Gaussian, copies: int, n: int, rng: np.random.Generator, *, matched: bool = False
) -> of.Particles:
    """Clouds of n samples; if matched, moved and stretched until each has the moments of the law."""
    z = torch.from_numpy(rng.normal(size=(copies, n, law.d)))
    if matched:
        z = z - z.mean(-2, keepdim=True)
        # L^-1 z has the identity as its covariance, where L L^T is that of z.
        z = torch.linalg.solve_triangular(torch.linalg.cholesky(z.mT @ z / n), z.mT, upper=False).mT
    return of.Particles(law.mean + z @ law.root.mT)


# --- the Monte Carlo rate ----------------------------------------------------------------------------


def _errors(rng: np.random.Generator, frame: Frame) -> Errors:
    """Relative errors of the covariance at t = 1, root mean squares over clouds and their uncertainty."""
    copies = frame.size({48: 200, 192: 100}, {64: 400, 256: 160, 1024: 32})
    out: Errors = {}
    for i, (name, (field, mu0, share)) in enumerate(_regimes().items()):
        exact = of.flow(mu0, field, of.Dopri5(), t1=1.0, save_at=[0.0]).final
        out[name] = {}
        for n, most in copies.items():
            count = round(share * most)
            frame.stage(0.75 * i / 4, f"{count} clouds of {n} tokens, {name}")
            clouds = _sample(mu0, count, n, rng)
            final = of.flow(clouds, field, of.RK4(), t1=1.0, dt=0.5, save_at=[0.0]).final
            square = _relative(of.observables.covariance(final), of.observables.covariance(exact)).square()
            rms = float(square.mean().sqrt())
            # d(rms) = d(mean square) / (2 rms) turns the standard error of the one into that of the other.
            out[name][n] = rms, float(square.std()) / math.sqrt(count) / (2 * rms)
    return out


def _matched_error(regime: Regime, n: int, rng: np.random.Generator) -> Tensor:
    """The same error for one cloud that starts with the covariance of the law: that of the flow alone."""
    starts = _sample(regime.mu0, 1, n, rng, matched=True), regime.mu0
    final = [of.flow(mu, regime.field, of.RK4(), t1=1.0, dt=0.5).final for mu in starts]
    return _relative(*map(of.observables.covariance, final))


def _relative(S: Tensor, exact: Tensor) -> Tensor:
    """|S - exact| / |exact| in the Frobenius norm, (*batch,)."""
    out: Tensor = torch.linalg.matrix_norm(S - exact) / torch.linalg.matrix_norm(exact)
    return out


def _slope(found: dict[int, tuple[float, float]]) -> float:
    return slope(list(found), [value for value, _ in found.values()])


def _rate_claims(errors: Errors) -> list[Claim]:
    return [
        PAPER.at("section 4 and the mean-field limit of Theorem 3.1")(
            f"{name}: the covariance of n tokens meets the Gaussian flow like n^-0.5 (slope)"
        ).within(-0.65, -0.35, _slope(found))
        for name, found in errors.items()
    ]


def _matched_claims(matched: dict[str, Tensor], n: int) -> list[Claim]:
    return [
        PAPER.at("section 4")(
            f"{name}: a cloud of {n} tokens that starts with the exact moments keeps them (error at t = 1)"
        ).at_most(1 / math.sqrt(n), error)
        for name, error in matched.items()
    ]


# --- the blow-up -------------------------------------------------------------------------------------


class CloudPath(NamedTuple):
    """Clouds along t / t*: traces of their covariances, errors (NaN from t* on), and growth of the radius."""

    tau: np.ndarray
    trace: np.ndarray
    error: np.ndarray
    growth: Tensor


def _towards(n: int, rng: np.random.Generator) -> CloudPath:
    """Softmax attention with V = I up to 1.5 t*, between n tokens that have the exact moments at first."""
    clouds = _sample(of.Gaussian([0.0, 0.0], cov=COV), max(1, 6000 // n), n, rng, matched=True)
    tau = np.union1d(np.linspace(0.0, END, 31), MARKS)
    traj = of.flow(
        clouds,
        of.SoftmaxAttention(GROWING, EYE, EYE),
        of.RK4(),
        t1=END * BLOW_UP,
        dt=BLOW_UP / 20,
        save_at=tau * BLOW_UP,
        observe={"S": of.observables.covariance, "radius": of.observables.radius},
    )
    S, radius = traj.observed["S"], traj.observed["radius"]
    error = np.full(len(tau), math.nan)  # from t* on there is nothing to compare with
    for k in np.flatnonzero(tau < 1):
        error[k] = _relative(S[k], _exact(tau[k])).square().mean().sqrt()
    growth = (radius / (radius[0] * torch.exp(traj.ts)[:, None]))[1:].max()
    return CloudPath(tau, _trace(S).numpy(), error, growth)


def _exact(tau: Any) -> Tensor:
    """S(tau t*), by the explicit solution."""
    return closed_forms.softmax_path(COV, GROWING, tau * BLOW_UP)


def _trace(S: Tensor) -> Tensor:
    return S.diagonal(dim1=-2, dim2=-1).sum(-1)


def _blow_up_claims(paths: dict[int, CloudPath]) -> list[Claim]:
    n, path = max(paths.items())
    source = PAPER.at("section 4 (V = I) and Theorem 3.1")
    words = f"softmax, V = I, n = {n}: relative error of the covariance at"
    soon, later, last = (path.error[np.abs(path.tau - share).argmin()] for share in (0.2, 0.66, 0.98))
    return [
        source(f"{words} 0.2 t*").at_most(0.02, soon),
        source(f"{words} 0.66 t*").within(0.02, 0.4, later),
        source(f"{words} 0.98 t*").within(0.85, 1.0, last),
        *(
            source(
                f"softmax, V = I, n = {k}: R(t) / (exp(t |V|) R(0)) up to {END:g} t*, so no cloud blows up"
            ).at_most(1.0, found.growth, slack=1e-9)
            for k, found in paths.items()
        ),
    ]


def _data(errors: Errors, paths: dict[int, CloudPath]) -> dict[str, np.ndarray]:
    data = {"tau": paths[100].tau}
    for name, found in errors.items():
        data[f"error_{name.replace(', ', '_')}"] = np.array([[n, *pair] for n, pair in found.items()])
    for n, path in paths.items():
        data |= {f"trace_{n}": path.trace, f"behind_{n}": path.error}
    return data


# --- figures -----------------------------------------------------------------------------------------


def _draw_rates(errors: Errors) -> Any:
    fig, ((ax,),) = of.plot.figure(1, 1, size=(8.4, 4.0))
    for (name, found), colour in zip(errors.items(), of.plot.COLOURS, strict=False):
        rms, spread = np.array(list(found.values())).T
        label = f"{name}: slope {_slope(found):.2f}"
        ax.errorbar(list(found), rms, spread, fmt="o-", color=colour, markersize=4, capsize=2, label=label)
    n = np.array(list(found), dtype=float)
    ax.plot(n, 1.9 * n**-0.5, "--", color=INK, linewidth=1, label="slope -0.5")
    title = "clouds against the Gaussian flow at $t = 1$ (root mean square over clouds)"
    words = title, "number of tokens $n$", "relative error of the covariance"
    axis: Any = {"xscale": "log", "yscale": "log", "xticks": n, "yticks": [0.03, 0.05, 0.1, 0.2, 0.3]}
    of.plot.panel(ax, *words, legend="beside", **axis)
    return fig


def _draw_blow_up(paths: dict[int, CloudPath]) -> Any:
    """How clouds pass the blow-up, how far they fall behind, and how thin the tail is that they miss."""
    fig, ((traces, behind, needed),) = of.plot.figure(1, 3, size=(11.5, 3.6))
    tau = 1 - np.geomspace(1.0, 1e-4, 200)
    traces.plot(tau, _trace(_exact(tau)), color=INK, label="Gaussian")
    for (n, path), colour in zip(paths.items(), of.plot.COLOURS, strict=False):
        low, high = path.trace.min(1), path.trace.max(1)
        traces.plot(path.tau, path.trace.mean(1), color=colour, label=f"$n = {n}$")
        traces.fill_between(path.tau, low, high, color=colour, alpha=0.2, linewidth=0)
        behind.plot(path.tau[1:], path.error[1:], "o-", markersize=3, color=colour, label=f"$n = {n}$")
    _draw_needed(needed)
    panels = {  # title, what is measured, its range, and where the legend hides nothing
        traces: (
            "clouds pass the blow-up (bands: all clouds)",
            "trace of the covariance",
            (1.0, 1e3),
            "upper left",
        ),
        behind: ("error of the covariance (root mean square)", "relative error", (5e-4, 1.5), "lower right"),
        needed: (
            "how thin the tail is to which a token attends",
            "tokens needed per effective one",
            (1.0, 1e10),
            "upper left",
        ),
    }
    for ax, (title, word, reach, place) in panels.items():
        ax.axvline(1.0, color=INK, linestyle=":", linewidth=1)
        of.plot.panel(ax, title, "$t / t^*$", word, yscale="log", ylim=reach, legend=place)
    for ax in (behind, needed):
        ax.set_xlim(0.0, 1.02)
    return fig


def _draw_needed(ax: Any) -> None:
    """exp(|S^(1/2) A x|^2) at x = S^(1/2) z, with |z| = 1 and 2 along the direction that grows most."""
    tau = 1 - np.geomspace(1.0, 1e-2, 200)
    top = torch.linalg.eigvals(_exact(tau) @ torch.tensor(GROWING)).abs().amax(-1)
    for z, word, colour in ((1.0, "one", of.plot.COLOURS[3]), (2.0, "two", of.plot.COLOURS[4])):
        need = torch.exp((z * top).square().clamp(max=60))  # beyond e^60 there is nothing to draw
        ax.plot(tau, need, color=colour, label=f"token {word} s.d. out")
    ax.axhline(1500, color=INK, linestyle="--", linewidth=1)
    ax.text(0.02, 2000, "1500", color=INK)
