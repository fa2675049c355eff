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
from otflow.reproduce.frame import Frame, Progress

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
SEED = 4
MEAN = (0.3, -0.2)
COV = ((1.0, 0.3), (0.3, 0.6))
EYE = ((1.0, 0.0), (0.0, 1.0))
GROWING = ((0.5, 0.1), (0.1, 0.25))  # A of the softmax flow that blows up
MARKS = (0.2, 0.4, 0.66, 0.8, 0.9, 0.98)  # fractions of the time of the blow-up
END = 1.5  # how far beyond it the clouds are followed, in the same unit


class Regime(NamedTuple):
    """A field, the law that it starts from, and how many clouds it is worth: Sinkhorn is slower."""

    field: of.VelocityField
    mu0: of.Gaussian
    share: float = 1.0


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    rng = np.random.default_rng(SEED)
    errors = _errors(rng, quick=frame.quick, progress=frame.stage)
    frame.stage(0.75, "one cloud with the exact moments")
    most = 400 if frame.quick else 1500
    matched = {name: _matched_error(regime, most, rng) for name, regime in _regimes().items()}
    frame.stage(0.85, "softmax, towards the blow-up")
    paths = {n: _towards(n, rng) for n in ((100, most) if frame.quick else (100, 400, most))}
    claims = [*_rate_claims(errors), *_matched_claims(matched, most), *_blow_up_claims(paths)]
    figures = {"rates": _draw_rates(errors), "blow-up": _draw_blow_up(paths)}
    return Result(claims, figures, _data(errors, paths))


def _regimes() -> dict[str, Regime]:
    """Contracting and mild softmax, and L2 and Sinkhorn attention that make the covariance grow."""
    law, centred = (of.Gaussian.from_cov(m, np.array(COV)) for m in (MEAN, (0.0, 0.0)))
    A, eye = np.array([[0.4, 0.3], [-0.1, 0.3]]), np.array(EYE)
    V = np.array([[0.8, -0.4], [0.2, 0.6]])
    return {
        "softmax, contracting": Regime(of.SoftmaxAttention(-A, eye, eye), centred),
        "softmax, mild": Regime(of.SoftmaxAttention(0.3 * A, eye, V), law),
        "L2": Regime(of.L2Attention(A, 0.7 * eye, V), law),
        "Sinkhorn": Regime(of.SinkhornAttention(A, eye, V, tol=1e-6), law, share=0.5),
    }


def _sample(law: of.Gaussian, copies: int, n: int, rng: np.random.Generator) -> of.Particles:
    z = torch.from_numpy(rng.normal(size=(copies, n, law.d)))
    return of.Particles(law.mean + z @ law.root.mT)


def _matched(law: of.Gaussian, copies: int, n: int, rng: np.random.Generator) -> of.Particles:
    """Samples, moved and stretched so that every cloud has the mean and the covariance of the law."""
    z = torch.from_numpy(rng.normal(size=(copies, n, law.d)))
    z = z - z.mean(-2, keepdim=True)
    L = torch.linalg.cholesky(z.mT @ z / n)
    return of.Particles(law.mean + torch.linalg.solve_triangular(L, z.mT, upper=False).mT @ law.root.mT)


# --- the Monte Carlo rate ----------------------------------------------------------------------------


def _errors(
    rng: np.random.Generator, *, quick: bool, progress: Progress
) -> dict[str, dict[int, tuple[float, float]]]:
    """Relative errors of the covariance at t = 1, root mean squares over clouds and their uncertainty."""
    copies = {48: 200, 192: 100} if quick else {64: 400, 256: 160, 1024: 32}
    out: dict[str, dict[int, tuple[float, float]]] = {}
    for i, (name, regime) in enumerate(_regimes().items()):
        exact = of.flow(regime.mu0, regime.field, of.Dopri5(), t1=1.0, save_at=[0.0]).final
        out[name] = {}
        for n, most in copies.items():
            count = round(regime.share * most)
            progress(0.75 * i / 4, f"{count} clouds of {n} tokens, {name}")
            clouds = _sample(regime.mu0, count, n, rng)
            final = of.flow(clouds, regime.field, of.RK4(), t1=1.0, dt=0.5, save_at=[0.0]).final
            out[name][n] = _spread(_relative(final, of.observables.covariance(exact)))
    return out


def _matched_error(regime: Regime, n: int, rng: np.random.Generator) -> float:
    """The same error for one cloud that starts with the covariance of the law: that of the flow alone."""
    law, cloud = regime.mu0, _matched(regime.mu0, 1, n, rng)
    exact, final = (of.flow(mu, regime.field, of.RK4(), t1=1.0, dt=0.5).final for mu in (law, cloud))
    return float(_relative(final, of.observables.covariance(exact)))


def _relative(mu: of.Measure, S: Tensor) -> Tensor:
    """|Cov(mu) - S| / |S| in the Frobenius norm, (*batch,)."""
    out: Tensor = torch.linalg.matrix_norm(of.observables.covariance(mu) - S) / torch.linalg.matrix_norm(S)
    return out


def _spread(error: Tensor) -> tuple[float, float]:
    """The root of the mean square, and its standard error."""
    square = error.square()
    rms = float(square.mean().sqrt())
    return rms, float(square.std()) / math.sqrt(len(square)) / (2 * rms)


def _slope(found: dict[int, tuple[float, float]]) -> float:
    return slope(list(found), [value for value, _ in found.values()])


def _rate_claims(errors: dict[str, dict[int, tuple[float, float]]]) -> list[Claim]:
    return [
        PAPER.at("section 4 and the mean-field limit of Theorem 3.1")(
            f"{name}: the covariance of n tokens meets the Gaussian flow like n^-0.5 (slope)"
        ).within(-0.65, -0.35, _slope(found))
        for name, found in errors.items()
    ]


def _matched_claims(matched: dict[str, float], n: int) -> list[Claim]:
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
    growth: float


def _blow_up_time() -> float:
    return float(closed_forms.softmax_blow_up_time(COV, GROWING))


def _towards(n: int, rng: np.random.Generator) -> CloudPath:
    """Softmax attention with V = I up to 1.5 t*, between n tokens that have the exact moments at first."""
    law = of.Gaussian.from_cov([0.0, 0.0], np.array(COV))
    clouds, last = _matched(law, max(1, 6000 // n), n, rng), _blow_up_time()
    tau = np.union1d(np.linspace(0.0, END, 31), MARKS)
    traj = of.flow(
        clouds,
        of.SoftmaxAttention(GROWING, EYE, EYE),
        of.RK4(),
        t1=END * last,
        dt=last / 20,
        save_at=tau * last,
        observe={"S": of.observables.covariance, "radius": of.observables.radius},
    )
    S, radius = traj.observed["S"], traj.observed["radius"]
    bound = radius[0] * torch.exp(traj.ts)[:, None]
    error = [
        _behind(found, share * last) if share < 1 else math.nan for found, share in zip(S, tau, strict=True)
    ]
    return CloudPath(
        tau, S.diagonal(dim1=-2, dim2=-1).sum(-1).numpy(), np.array(error), float((radius / bound)[1:].max())
    )


def _behind(S: Tensor, t: float) -> float:
    """|Cov - S(t)| / |S(t)|, root mean square over clouds, against the explicit solution."""
    exact = closed_forms.softmax_path(COV, GROWING, t)
    error = torch.linalg.matrix_norm(S - exact) / torch.linalg.matrix_norm(exact)
    return float(error.square().mean().sqrt())


def _at(path: CloudPath, share: float) -> float:
    return float(path.error[np.abs(path.tau - share).argmin()])


def _blow_up_claims(paths: dict[int, CloudPath]) -> list[Claim]:
    n, path = max(paths.items())
    source = PAPER.at("section 4 (V = I) and Theorem 3.1")
    words = f"softmax, V = I, n = {n}: relative error of the covariance"
    return [
        source(f"{words} at 0.2 t*").at_most(0.02, _at(path, 0.2)),
        source(f"{words} at 0.66 t*").within(0.02, 0.4, _at(path, 0.66)),
        source(f"{words} at 0.98 t*").within(0.85, 1.0, _at(path, 0.98)),
        *(
            source(
                f"softmax, V = I, n = {k}: R(t) / (exp(t |V|) R(0)) up to {END:g} t*, so no cloud blows up"
            ).at_most(1.0, found.growth, slack=1e-9)
            for k, found in paths.items()
        ),
    ]


def _data(
    errors: dict[str, dict[int, tuple[float, float]]], paths: dict[int, CloudPath]
) -> dict[str, np.ndarray[Any, Any]]:
    rates = {
        f"error_{name.replace(', ', '_')}": np.array([[n, *pair] for n, pair in found.items()])
        for name, found in errors.items()
    }
    traces = {f"trace_{n}": path.trace for n, path in paths.items()}
    behind = {f"behind_{n}": path.error for n, path in paths.items()}
    return {"tau": next(iter(paths.values())).tau} | rates | traces | behind


# --- figures -----------------------------------------------------------------------------------------


def _draw_rates(errors: dict[str, dict[int, tuple[float, float]]]) -> Any:
    fig, axes = of.plot.figure(1, 1, size=(7.0, 4.0))
    ax = axes[0, 0]
    for (name, found), colour in zip(errors.items(), of.plot.COLOURS, strict=False):
        rms, spread = np.array(list(found.values())).T
        label = f"{name}: slope {_slope(found):.2f}"
        ax.errorbar(list(found), rms, spread, fmt="o-", color=colour, markersize=4, capsize=2, label=label)
    n = np.array(list(found), dtype=float)
    ax.plot(n, 1.9 * n**-0.5, "--", color=of.plot.INK, linewidth=1, label="slope -0.5")
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel="relative error of the covariance")
    ax.set_title("clouds against the Gaussian flow at t = 1 (root mean square over clouds)", fontsize=9)
    ax.minorticks_off()
    ax.set_xticks(n, [f"{k:g}" for k in n])
    ax.set_yticks(ticks := [0.03, 0.05, 0.1, 0.2, 0.3], [f"{k:g}" for k in ticks])
    ax.legend(loc="upper right", frameon=False)
    return fig


def _draw_blow_up(paths: dict[int, CloudPath]) -> Any:
    fig, axes = of.plot.figure(1, 3, size=(11.5, 3.6))
    _draw_traces(axes[0, 0], paths)
    _draw_behind(axes[0, 1], paths)
    _draw_needed(axes[0, 2])
    return fig


def _exact(tau: np.ndarray) -> Tensor:
    return closed_forms.softmax_path(COV, GROWING, tau * _blow_up_time())


def _draw_traces(ax: Any, paths: dict[int, CloudPath]) -> None:
    tau = 1 - np.geomspace(1.0, 1e-4, 200)
    ax.plot(tau, _exact(tau).diagonal(dim1=-2, dim2=-1).sum(-1), color=of.plot.INK, label="Gaussian")
    for (n, path), colour in zip(paths.items(), of.plot.COLOURS, strict=False):
        ax.plot(path.tau, path.trace.mean(1), color=colour, label=f"n = {n}")
        ax.fill_between(path.tau, path.trace.min(1), path.trace.max(1), color=colour, alpha=0.2, linewidth=0)
    ax.axvline(1.0, color=of.plot.INK, linestyle=":", linewidth=1)
    ax.set(yscale="log", ylim=(1.0, 1e3), xlabel="$t / t^*$", ylabel="trace of the covariance")
    ax.set_title("clouds pass the blow-up (bands: all clouds)", fontsize=9)
    ax.legend(loc="upper left", frameon=False)


def _draw_behind(ax: Any, paths: dict[int, CloudPath]) -> None:
    for (n, path), colour in zip(paths.items(), of.plot.COLOURS, strict=False):
        ax.plot(path.tau[1:], path.error[1:], "o-", markersize=3, color=colour, label=f"n = {n}")
    ax.set(yscale="log", xlim=(0.0, 1.02), ylim=(5e-4, 1.5), xlabel="$t / t^*$", ylabel="relative error")
    ax.axvline(1.0, color=of.plot.INK, linestyle=":", linewidth=1)
    ax.set_title("error of the covariance (root mean square)", fontsize=9)
    ax.legend(loc="lower right", frameon=False)


def _draw_needed(ax: Any) -> None:
    """exp(|S^(1/2) A x|^2) at x = S^(1/2) z, with |z| = 1 and 2 along the direction that grows most."""
    tau = 1 - np.geomspace(1.0, 1e-2, 200)
    A = torch.tensor(GROWING).double()
    S = _exact(tau)
    top = torch.linalg.eigvals(S @ A).abs().amax(-1)
    for z, word in ((1.0, "one s.d. out"), (2.0, "two s.d. out")):
        ax.plot(
            tau,
            torch.exp((z * top).square().clamp(max=60)),
            color=of.plot.COLOURS[2 + int(z)],
            label=f"token {word}",
        )
    ax.axhline(1500, color=of.plot.INK, linestyle="--", linewidth=1)
    ax.text(0.02, 2000, "1500", color=of.plot.INK)
    ax.axvline(1.0, color=of.plot.INK, linestyle=":", linewidth=1)
    ax.set(
        yscale="log",
        ylim=(1.0, 1e10),
        xlim=(0.0, 1.02),
        xlabel="$t / t^*$",
        ylabel="tokens needed per effective one",
    )
    ax.set_title("how thin the tail is to which a token attends", fontsize=9)
    ax.legend(loc="upper left", frameon=False)
