"""What the experiment `gradient-flows` looks at, measures and draws; the claims are in `gradient_flows`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of

SEED, N, D, EPS, BETA = 5, 16, 2, 0.8, 2.0
EYE = torch.eye(D, dtype=torch.float64)
Q = torch.tensor([[1.0, 0.4], [-0.2, 0.7]], dtype=torch.float64)
DEFINITE = Q.mT @ Q
MIXED = torch.tensor([[0.9, 0.3], [0.3, -0.6]], dtype=torch.float64)
OTHER = torch.tensor([[0.6, -0.5], [0.3, 0.8]], dtype=torch.float64)  # keys of L2 attention
P = torch.tensor([[1.6, 0.5], [0.5, 0.7]], dtype=torch.float64)
KINDS: dict[str, Callable[..., of.VelocityField]] = {
    "unnormalised": of.UnnormalisedAttention,
    "sigmoid": of.SigmoidAttention,
    "Sinkhorn": lambda Q, K, V: of.SinkhornAttention(Q, K, V, eps=EPS, tol=1e-11),
    "softmax": of.SoftmaxAttention,
}


class DescentCase(NamedTuple):
    """An attention field, the descent that it is said to be, and a measure to try them on."""

    field: of.VelocityField
    descent: of.SteepestDescent
    mu: of.Measure


def case(field: of.VelocityField, mu: of.Measure) -> DescentCase:
    """A field with its own descent.

    >>> case(KINDS["softmax"](DEFINITE, EYE, -DEFINITE), cloud()).descent
    SteepestDescent(ExponentialInteraction(d=2), Twisted(Partition(d=2)))
    """
    return DescentCase(field, field.as_gradient_flow(type(mu)), mu)


def cloud(*, labelled: bool = False) -> of.Particles:
    """Weighted tokens of the plane.

    >>> cloud()
    Particles(n=16, d=2, weighted, space=Euclidean())
    """
    rng = np.random.default_rng(SEED)
    x, w = 0.7 * rng.normal(size=(N, D)), rng.uniform(0.5, 1.5, N)
    return of.Particles(x, w / w.sum(), label=np.linspace(0, 1, N) if labelled else None)


def law() -> of.Gaussian:
    """A centred Gaussian of the plane.

    >>> law().d
    2
    """
    return of.Gaussian.from_cov([0.0, 0.0], np.array([[0.8, 0.25], [0.25, 0.5]]))


# --- Jacobians ----------------------------------------------------------------------------------------


def asymmetries() -> dict[str, float]:
    """|J - J^T| / |J| for Jacobians of covectors; zero for those of an energy.

    >>> found = asymmetries()
    >>> found["softmax, weighed by Z"] < 1e-8 < 0.1 < found["softmax"]
    True
    """
    mu, A = cloud(), 2 * MIXED
    masked, Z = cloud(labelled=True), of.Partition(A)
    fields = {name: make(A, EYE, -A) for name, make in KINDS.items()}
    causal = of.SoftmaxAttention(A, EYE, -A, causal=True)
    flat = {name: skew(_jacobian(field, mu, lambda _: torch.ones(()))) for name, field in fields.items()}
    K = OTHER
    return {
        **flat,
        "softmax, weighed by Z": skew(_jacobian(fields["softmax"], mu, lambda m: Z(m, m.x)[..., None])),
        "softmax, masked": skew(_jacobian(causal, masked, lambda _: torch.ones(()))),
        "softmax, masked, weighed by Z": skew(_jacobian(causal, masked, _seen(A))),
        "L2, Q = cK": skew(_gaussian_jacobian(of.L2Attention(1.5 * K, K, -1.5 * K.mT @ K))),
        "L2, other Q": skew(_gaussian_jacobian(of.L2Attention(Q, K, -Q.mT @ K))),
    }


def _seen(A: Tensor) -> Callable[[of.Particles], Tensor]:
    """The normaliser of masked softmax."""
    before = torch.ones(N, N, dtype=torch.float64).tril()
    return lambda m: (before * m.w * torch.exp(m.x @ A @ m.x.mT)).sum(-1, keepdim=True)


def _jacobian(field: of.VelocityField, mu: of.Particles, weight: Callable[[Any], Tensor]) -> Tensor:
    """Of the covectors w_i weight_i v_i, (nd, nd)."""

    def covectors(x: Tensor) -> Tensor:
        at = mu.at([x])
        return (mu.w[:, None] * weight(at) * field(0.0, at)[0]).flatten()

    J: Tensor = torch.autograd.functional.jacobian(covectors, mu.x)
    return J.reshape(N * D, N * D)


def _gaussian_jacobian(field: Any) -> Tensor:
    """Of S -> B(S), x' = Bx, in an orthonormal basis of symmetric matrices."""
    half = 0.5**0.5
    basis = torch.tensor([[[1, 0], [0, 0]], [[0, 0], [0, 1]], [[0, half], [half, 0]]], dtype=torch.float64)

    def components(s: Tensor) -> Tensor:
        mu = of.Gaussian.from_cov(torch.zeros(D).double(), torch.einsum("k,kij->ij", s, basis))
        return torch.einsum("kij,ij->k", basis, field.matrix(torch.zeros(()).double(), mu))

    J: Tensor = torch.autograd.functional.jacobian(components, torch.einsum("kij,ij->k", basis, law().cov))
    return J


def skew(J: Tensor) -> float:
    """|J - J^T| / |J|.

    >>> round(skew(torch.tensor([[0.0, 1.0], [0.0, 0.0]])) ** 2, 6)
    2.0
    """
    return float((J - J.mT).norm() / J.norm())


# --- explicit and implicit runs -----------------------------------------------------------------------


class Followed(NamedTuple):
    """The exact run, those of all schemes and steps, and W2 of their ends to its end."""

    case: DescentCase
    exact: of.Trajectory
    runs: dict[str, dict[float, of.Trajectory]]
    errors: dict[str, dict[float, float]]

    def excess(self) -> float:
        """The most by which an energy is on the wrong side: JKO below the exact one, or Euler above it."""
        return max(
            float((sign * self._above(run)).max())
            for scheme, sign in (("JKO", -1), ("Euler", 1))
            for run in self.runs[scheme].values()
        )

    def _above(self, run: of.Trajectory) -> Tensor:
        """The energy less the exact one after every step, over the whole fall."""
        F = self.exact.observed["F"]
        stride = (len(F) - 1) // (len(run) - 1)
        return ((run.observed["F"] - F[::stride]) / (F[0] - F[-1]))[1:]

    def balances(self) -> list[of.EnergyBalance]:
        """Of the JKO runs, from the longest step to the shortest."""
        return [of.energy_balance(run, self.case.descent) for run in self.runs["JKO"].values()]


def to_follow() -> dict[str, DescentCase]:
    A, mu, nu = DEFINITE, cloud(), law()
    fields = {name: make(A, EYE, -A) for name, make in KINDS.items()}
    full = of.SteepestDescent(of.ExponentialInteraction(A), of.Twisted(of.Partition(A), frozen=False))
    return {
        **{name: case(field, mu) for name, field in fields.items()},
        "softmax, weight along the move": DescentCase(fields["softmax"], full, mu),
        **{f"{name}, Gaussians": case(fields[name], nu) for name in ("softmax", "Sinkhorn")},
    }


def follow(c: DescentCase, steps: tuple[float, ...], *, t1: float) -> Followed:
    """All runs, saved after every step, and the exact one saved at multiples of 0.0125.

    >>> found = follow(case(KINDS["softmax"](DEFINITE, EYE, -DEFINITE), law()), (0.1,), t1=0.2)
    >>> list(found.runs), len(found.exact), found.excess() < 0
    (['Euler', 'JKO', 'extrapolated'], 17, True)
    """
    observe, times = {"F": c.descent.energy}, np.linspace(0, t1, round(t1 / 0.0125) + 1)
    exact = of.flow(c.mu, c.field, of.Dopri5(rtol=1e-9, atol=1e-11), t1=t1, save_at=times, observe=observe)
    jko = of.JKO(tol=1e-7)
    schemes: dict[str, of.Stepper] = {"Euler": of.Euler(), "JKO": jko, "extrapolated": of.Extrapolated(jko)}
    runs = {
        name: {dt: of.flow(c.mu, c.descent, stepper, t1=t1, dt=dt, observe=observe) for dt in steps}
        for name, stepper in schemes.items()
    }
    errors = {
        name: {dt: float(of.wasserstein(r.final, exact.final)) for dt, r in each.items()}
        for name, each in runs.items()
    }
    return Followed(c, exact, runs, errors)


def order(errors: dict[float, float]) -> float:
    """The slope of log error against log step, between the last two steps.

    >>> round(order({0.2: 0.08, 0.1: 0.02}), 9)
    2.0
    """
    (h, a), (k, b) = list(errors.items())[-2:]
    return math.log(a / b) / math.log(h / k)


# --- Gaussians ----------------------------------------------------------------------------------------


def pairs(count: int) -> tuple[of.Gaussian, of.Gaussian]:
    """Pairs of centred Gaussians whose roots are aligned: their difference is the optimal displacement.

    >>> mu, nu = pairs(3)
    >>> bool(torch.allclose(of.wasserstein(mu, nu), (mu.root - nu.root).norm(dim=(-1, -2))))
    True
    """
    R, S = torch.from_numpy(np.random.default_rng(SEED).normal(size=(2, count, D, D)))
    U, _, Vh = torch.linalg.svd(S.mT @ R)
    return of.Gaussian(R.new_zeros(count, D), R), of.Gaussian(R.new_zeros(count, D), S @ U @ Vh)


def energies(A: Tensor, *, sign: float = -1.0) -> dict[str, of.Energy]:
    """What softmax and Sinkhorn attention with V = sign A descend on Gaussians.

    >>> energies(EYE)["softmax"]
    SquaredScores(d=2)
    """
    fields = {name: KINDS[name](A, EYE, sign * A) for name in ("softmax", "Sinkhorn")}
    return {name: field.as_gradient_flow(of.Gaussian).energy for name, field in fields.items()}


def curvatures(count: int) -> dict[str, dict[str, np.ndarray]]:
    """Second derivatives of energies along Bures geodesics of length one, at three points of each.

    >>> {name: bool(found["softmax"].min() > 0) for name, found in curvatures(50).items()}
    {'definite': True, 'of both signs': False, 'definite, V = A': False}
    """
    mu, nu = pairs(count)
    sets = {"definite": energies(DEFINITE), "of both signs": energies(MIXED)}
    sets["definite, V = A"] = energies(DEFINITE, sign=1.0)
    return {name: {k: _second(G, mu, nu) for k, G in found.items()} for name, found in sets.items()}


def _second(G: of.Energy, mu: of.Gaussian, nu: of.Gaussian, h: float = 0.01) -> np.ndarray:
    """By central differences of order four; roots are aligned, so that geodesics are straight."""
    u = nu.coords - mu.coords
    s, k = torch.tensor([0.1, 0.5, 0.9]).double(), torch.arange(-2, 3)
    values = torch.stack([G(mu.at(mu.coords + float(t) * u)) for t in (s[:, None] + h * k).flatten()])
    c = torch.tensor([-1.0, 16.0, -30.0, 16.0, -1.0]).double() / (12 * h**2)
    second = torch.einsum("skb,k->sb", values.reshape(3, 5, -1), c)
    out: np.ndarray = (second / u[1].square().sum((-1, -2))).numpy()
    return out


class DescentPath(NamedTuple):
    """Twisted and Bures energies of a softmax flow; ``last`` is when the first becomes finite."""

    t: np.ndarray
    F: np.ndarray
    G: np.ndarray
    last: float


def infinite_path() -> DescentPath:
    """From a Gaussian of infinite energy.

    With diagonal A and S the variances are s / (1 + 2 a^2 s t), and a s reaches one at (a s - 1) / (2 a^2 s).

    >>> infinite_path().F[0], round(infinite_path().last, 9)
    (np.float64(inf), 0.3)
    """
    a, s = np.array([1.0, 0.6]), np.array([2.5, 1.5])
    field = of.SoftmaxAttention(np.diag(a), EYE, -np.diag(a))
    observe = {"F": of.ExponentialInteraction(np.diag(a)), "G": of.SquaredScores(np.diag(a))}
    mu = of.Gaussian.from_cov([0.0, 0.0], np.diag(s))
    traj = of.flow(mu, field, of.Dopri5(), t1=1.0, save_at=np.linspace(0, 1, 201), observe=observe)
    t, F, G = (z.numpy() for z in (traj.ts, traj.observed["F"], traj.observed["G"]))
    return DescentPath(t, F, G, float(((a * s - 1) / (2 * a**2 * s)).max()))


# --- figures ------------------------------------------------------------------------------------------

BLUE, RED, GREEN = of.plot.COLOURS[:3]
LOOKS = {"Euler": (GREEN, "v", 1), "JKO": (RED, "o", 1), "extrapolated": (BLUE, "s", 2)}
SHOWN = ("unnormalised", "sigmoid", "Sinkhorn", "softmax")
FORMULAS = {
    "unnormalised": r"$\frac{1}{2}\iint e^{Ax\cdot y}$ in $W_2$",
    "sigmoid": r"$\frac{1}{2}\iint \log(1+e^{Ax\cdot y})$ in $W_2$",
    "Sinkhorn": r"$-\frac{1}{2\varepsilon}\mathrm{OT}_\varepsilon(\mu,\mu)$ in $W_2$",
    "softmax": r"$\frac{1}{2}\iint e^{Ax\cdot y}$, twisted metric",
}


def runs(found: dict[str, Followed]) -> Any:
    """Energies of the four kinds of attention above, errors below.

    >>> len(runs({"sigmoid": follow(to_follow()["sigmoid"], (0.2, 0.1), t1=0.2)}).axes)
    2
    """
    shown = [name for name in SHOWN if name in found]
    fig, axes = of.plot.figure(2, len(shown), size=(3.1 * len(shown), 5.8))
    for (top, low), name in zip(axes.T, shown, strict=True):
        _energy(top, found[name])
        _title(top, f"{name}\n{FORMULAS[name]}")
        _errors(low, found[name])
    axes[0, 0].legend(loc="upper right", fontsize=8, frameon=False)
    axes[0, 0].set_ylabel("energy, from 1 to 0 along the flow")
    axes[1, 0].set_ylabel(f"$W_2$ to the flow at $t={float(found[shown[0]].exact.ts[-1]):g}$")
    return fig


def _title(ax: Any, words: str) -> None:
    ax.set_title(words, fontsize=9, color=of.plot.INK)


def _energy(ax: Any, f: Followed) -> None:
    """At the longest step, where it shows."""
    F = f.exact.observed["F"].numpy()

    def unit(values: Any) -> Any:
        return (values - F[-1]) / (F[0] - F[-1])

    ax.plot(f.exact.ts, unit(F), color=of.plot.INK, lw=1.4, label="flow (Dopri5)", zorder=1)
    for scheme, (colour, marker, _) in LOOKS.items():
        r = next(iter(f.runs[scheme].values()))
        ax.plot(r.ts, unit(r.observed["F"].numpy()), marker, ms=4.5, color=colour, label=scheme)
    ax.axhline(0, color=of.plot.FAINT, lw=0.8, zorder=0)
    ax.set(xlabel="t")


def _errors(ax: Any, f: Followed) -> None:
    for scheme, (colour, marker, power) in LOOKS.items():
        errors = f.errors[scheme]
        dt = np.array(list(errors))
        label = f"{scheme}: order {order(errors):.2f}"
        ax.plot(dt, list(errors.values()), f"{marker}-", ms=4.5, lw=1.0, color=colour, label=label)
        if scheme != "Euler":
            ax.plot(dt, 0.6 * errors[dt[0]] * (dt / dt[0]) ** power, ":", lw=1.1, color=of.plot.INK)
    ax.set(xscale="log", yscale="log", xlabel="step (dotted: slopes 1 and 2)")
    ax.minorticks_off()
    ax.set_xticks(dt, [f"{h:g}" for h in dt])
    ax.set_ylim(bottom=ax.get_ylim()[0] / 8)
    ax.legend(loc="lower right", fontsize=8, frameon=False)


def structure(uneven: dict[str, float], bent: dict[str, dict[str, np.ndarray]], path: DescentPath) -> Any:
    """Asymmetries, curvatures, and an energy that is infinite at first.

    >>> len(structure(asymmetries(), curvatures(10), infinite_path()).axes)
    3
    """
    fig, axes = of.plot.figure(1, 3, size=(12.4, 3.7))
    _asymmetry(axes[0, 0], uneven)
    _curvature(axes[0, 1], bent)
    _infinite(axes[0, 2], path)
    return fig


def _asymmetry(ax: Any, uneven: dict[str, float]) -> None:
    """Dots on a logarithmic axis, from rounding to one."""
    names, values = list(uneven)[::-1], np.array(list(uneven.values()))[::-1].clip(min=1e-17)
    colours = [RED if v > 1e-8 else BLUE for v in values]
    ax.hlines(range(len(names)), 1e-18, values, color=colours, lw=2.2, alpha=0.45)
    ax.scatter(values, range(len(names)), color=colours, s=34, zorder=3)
    for k, v in enumerate(values):
        word = f"{v:.2f}" if v > 1e-8 else f"{v:.0e}"
        ax.annotate(word, (v, k), (7, 0), textcoords="offset points", va="center", size=8, color=colours[k])
    ax.set(xscale="log", xlim=(1e-18, 1e3), xlabel=r"$|J-J^T|\,/\,|J|$")
    ax.set_xticks(10.0 ** (powers := np.arange(-16, 1, 4)), [f"$10^{{{k}}}$" for k in powers])
    ax.set_yticks(range(len(names)), names)
    ax.minorticks_off()
    ax.tick_params(axis="y", length=0)
    _title(ax, "a gradient has a symmetric Jacobian")


def _curvature(ax: Any, bent: dict[str, dict[str, np.ndarray]]) -> None:
    values = {f"A {name}": np.arcsinh(found["softmax"].ravel()) for name, found in list(bent.items())[:2]}
    every = np.concatenate(list(values.values()))
    bins = 0.15 * np.arange(np.floor(every.min() / 0.15), np.ceil(every.max() / 0.15) + 1)  # an edge at zero
    for (name, v), colour in zip(values.items(), (BLUE, RED), strict=True):
        ax.hist(v, bins, color=colour, alpha=0.55, density=True, label=name)
    ax.axvline(0, color=of.plot.INK, lw=1)
    ticks = np.array([-10.0, -3, -1, 0, 1, 3, 10, 30])
    ticks = ticks[(np.arcsinh(ticks) > bins[0]) & (np.arcsinh(ticks) < bins[-1])]
    ax.set_xticks(np.arcsinh(ticks), [f"{x:g}" for x in ticks])
    ax.set(xlabel="$G''$ along Bures geodesics of unit length (arsinh scale)", yticks=[])
    ax.set_ylim(top=1.2 * ax.get_ylim()[1])
    ax.spines["left"].set_visible(False)
    ax.legend(loc="upper right", fontsize=8, frameon=False)
    _title(ax, r"$G=\frac{1}{4}\mathrm{tr}(A\Sigma A\Sigma)$: convex if $A$ is semidefinite")


def _infinite(ax: Any, path: DescentPath) -> None:
    t, F, G, last = path
    ax.axvspan(0, last, color=RED, alpha=0.08, linewidth=0)
    ax.plot(t, F, color=RED, label=r"$\frac{1}{2}\iint e^{Ax\cdot y}$ (twisted)")
    ax.plot(t, G, color=BLUE, label=r"$\frac{1}{4}\mathrm{tr}(A\Sigma A\Sigma)$ (Bures)")
    ax.text(last / 2, 3.6, r"$=+\infty$", color=RED, ha="center", fontsize=11)
    ax.set(xlabel="t", ylim=(0, 4.2), xlim=(0, 1))
    ax.legend(loc="upper right", fontsize=8, frameon=False)
    _title(ax, "two energies of one softmax flow of Gaussians")
