"""The pictures of the experiment `gradient-flows`: runs with their errors, and what an energy needs."""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow.papers.gradient_flows.runs import DescentPath, Followed, order

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK = of.plot.INK
LOOKS = {"Euler": (GREEN, "v", 1), "JKO": (RED, "o", 1), "extrapolated": (BLUE, "s", 2)}
FORMULAS = {
    "unnormalised": r"$\frac{1}{2}\iint e^{Ax\cdot y}$ in $W_2$",
    "sigmoid": r"$\frac{1}{2}\iint \log(1+e^{Ax\cdot y})$ in $W_2$",
    "Sinkhorn": r"$-\frac{1}{2\varepsilon}\mathrm{OT}_\varepsilon(\mu,\mu)$ in $W_2$",
    "softmax": r"$\frac{1}{2}\iint e^{Ax\cdot y}$, twisted metric",
}


def runs(found: dict[str, Followed]) -> Any:
    """Energies of the four kinds of attention above, errors below.

    >>> from otflow.papers.gradient_flows.draw import runs
    >>> from otflow.papers.gradient_flows.runs import follow, to_follow
    >>> len(runs({"sigmoid": follow(to_follow()["sigmoid"], (0.2, 0.1), t1=0.2)}).axes)
    2
    """
    shown = [name for name in FORMULAS if name in found]
    fig, axes = of.plot.figure(2, len(shown), size=(3.1 * len(shown), 5.8))
    for (top, low), name in zip(axes.T, shown, strict=True):
        _energy(top, found[name])
        of.plot.panel(top, f"{name}\n{FORMULAS[name]}", "$t$")
        _errors(low, found[name])
    end = found[shown[0]].exact.ts[-1]
    of.plot.panel(axes[0, 0], y="energy, from 1 to 0 along the flow", legend="upper right")
    of.plot.panel(axes[1, 0], y=f"$W_2$ to the flow at $t={end:g}$")
    return fig


def _energy(ax: Any, f: Followed) -> None:
    """At the longest step, where it shows."""
    F = f.exact.observed["F"]
    first = {scheme: next(iter(runs.values())) for scheme, runs in f.runs.items()}
    looks = [(f.exact, "-", INK, "flow (Dopri5)")]
    looks += [(first[scheme], marker, colour, scheme) for scheme, (colour, marker, _) in LOOKS.items()]
    for r, style, colour, label in looks:
        unit = (r.observed["F"] - F[-1]) / (F[0] - F[-1])
        ax.plot(r.ts, unit, style, ms=4.5, lw=1.4, color=colour, label=label)
    ax.axhline(0, color=of.plot.FAINT, lw=0.8, zorder=0)


def _errors(ax: Any, f: Followed) -> None:
    """With lines of the order that theory gives, which for Euler is that of JKO."""
    for scheme, (colour, marker, power) in LOOKS.items():
        dt, errors = np.array(list(f.errors[scheme])), list(f.errors[scheme].values())
        label = f"{scheme}: order {order(f.errors[scheme]):.2f}"
        ax.loglog(dt, errors, f"{marker}-", ms=4.5, lw=1.0, color=colour, label=label)
        if scheme != "Euler":
            ax.plot(dt, 0.6 * errors[0] * (dt / dt[0]) ** power, ":", lw=1.1, color=INK)
    room = (ax.get_ylim()[0] / 8, None)  # for the legend
    of.plot.panel(ax, x="step (dotted: slopes 1 and 2)", legend="lower right", xticks=dt, ylim=room)


def structure(uneven: dict[str, float], bent: dict[str, dict[str, np.ndarray]], path: DescentPath) -> Any:
    """Asymmetries, curvatures, and an energy that is infinite at first.

    >>> from otflow.papers.gradient_flows.draw import structure
    >>> from otflow.papers.gradient_flows.runs import asymmetries, curvatures, infinite_path
    >>> len(structure(asymmetries(), curvatures(10), infinite_path()).axes)
    3
    """
    fig, ((left, middle, right),) = of.plot.figure(1, 3, size=(12.4, 3.9))
    _asymmetry(left, uneven)
    _curvature(middle, {f"$A$ {name}": bent[name]["softmax"] for name in ("definite", "of both signs")})
    _infinite(right, path)
    return fig


def _asymmetry(ax: Any, uneven: dict[str, float]) -> None:
    """Dots on a logarithmic axis, from rounding to one."""
    for k, v in enumerate(np.maximum(list(uneven.values()), 1e-17)):
        word, colour = (f"{v:.2f}", RED) if v > 1e-8 else (f"{v:.0e}", BLUE)
        ax.plot([1e-18, v], [-k, -k], color=colour, lw=2.2, alpha=0.45)
        ax.plot(v, -k, "o", color=colour, ms=6)
        ax.annotate(word, (v, -k), (7, 0), textcoords="offset points", va="center", size=8, color=colour)
    of.plot.panel(
        ax,
        "a gradient has a symmetric Jacobian",
        r"$|J-J^T|\,/\,|J|$",
        xscale="log",
        xlim=(1e-18, 1e3),
        xticks={10.0**k: f"$10^{{{k}}}$" for k in range(-16, 1, 4)},
        yticks={-k: name for k, name in enumerate(uneven)},
    )
    ax.tick_params(axis="y", length=0)


def _curvature(ax: Any, found: dict[str, np.ndarray]) -> None:
    """Histograms of second derivatives, on a scale that shows both signs and several sizes."""
    values = {name: np.arcsinh(v.ravel()) for name, v in found.items()}
    every = np.concatenate(list(values.values()))
    bins = 0.15 * np.arange(np.floor(every.min() / 0.15), np.ceil(every.max() / 0.15) + 1)  # an edge at zero
    for (name, v), colour in zip(values.items(), (BLUE, RED), strict=True):
        ax.hist(v, bins, color=colour, alpha=0.55, density=True, label=name)
    ax.axvline(0, color=INK, lw=1)
    ax.spines["left"].set_visible(False)
    ticks = {np.arcsinh(x): f"{x:g}" for x in (-10, -3, -1, 0, 1, 3, 10, 30)}
    of.plot.panel(
        ax,
        "$G=\\frac{1}{4}\\mathrm{tr}(A\\Sigma A\\Sigma)$:\nconvex if $A$ is semidefinite",
        "$G''$ along Bures geodesics of unit length (arsinh scale)",
        legend="upper right",
        xticks={x: word for x, word in ticks.items() if bins[0] < x < bins[-1]},
        yticks=[],
        ylim=(0, 1.2 * ax.get_ylim()[1]),
    )


def _infinite(ax: Any, path: DescentPath) -> None:
    """Both energies, and the time of the one that is infinite."""
    t, F, G, last = path
    ax.axvspan(0, last, color=RED, alpha=0.08, linewidth=0)
    ax.plot(t, F, color=RED, label=r"$\frac{1}{2}\iint e^{Ax\cdot y}$ (twisted)")
    ax.plot(t, G, color=BLUE, label=r"$\frac{1}{4}\mathrm{tr}(A\Sigma A\Sigma)$ (Bures)")
    ax.text(last / 2, 3.6, r"$=+\infty$", color=RED, ha="center", fontsize=11)
    title = "two energies of one softmax flow\nof Gaussians"
    of.plot.panel(ax, title, "$t$", legend="upper right", xlim=(0, 1), ylim=(0, 4.2))
