"""The figures of the experiment `jko-oracles`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import otflow as of
from otflow.papers.jko.grid_oracles import Blurred
from otflow.papers.jko.runs import Bracket, Spread
from otflow.reproduce.oracle import Oracle

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT
FLOOR = 1e-16  # zeros are drawn here


def table(oracles: Sequence[Oracle]) -> Any:
    """One row per oracle: solver against scheme, scheme against equation; large dots are long steps."""
    fig, ((ax,),) = of.plot.figure(1, 1, size=(8.6, 0.42 * len(oracles) + 1.2))
    for y, oracle in enumerate(reversed(oracles)):
        for errors, colour in ((oracle.solver, BLUE), (oracle.scheme, RED)):
            values = np.maximum(list(errors.values()), FLOOR)
            sizes = np.maximum(48 * np.array(list(errors)) / max(errors), 5)
            ax.plot([values.min(), values.max()], [y, y], color=colour, lw=1.0, zorder=2)
            ax.scatter(values, np.full(len(values), y), s=sizes, color=colour, lw=0, zorder=3)
        ax.plot(oracle.bound, y, "|", color=INK, ms=9)
    for colour, word in ((BLUE, "solver to scheme"), (RED, "scheme to equation")):
        ax.scatter([], [], s=30, color=colour, label=word)
    ax.plot([], [], "|", color=INK, ms=9, ls="none", label="allowed to the solver")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=FAINT, lw=0.5)
    ax.set_title("larger dots: longer steps", loc="left", x=-0.85, fontsize=8, color=INK)
    names = {y: f"{o.name}  ({o.norm.split(',')[0]})" for y, o in enumerate(reversed(oracles))}
    limits: Any = {"xlim": (0.5 * FLOOR, 0.5), "ylim": (-0.6, len(oracles) - 0.4)}
    above = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 3}
    of.plot.panel(ax, x="distance at the end", legend=above, xscale="log", yticks=names, **limits)
    return fig


def blur(
    blurred: dict[str, dict[float, Blurred]], sharp: Blurred, porous: Oracle, keller: dict[float, float]
) -> Any:
    """Errors against eps and against tau, and the rate of Keller and Segel's second moment."""
    fig, ((left, middle, right),) = of.plot.figure(1, 3, size=(11.5, 3.6))
    _draw_blur(left, blurred, sharp)
    _draw_steps(middle, porous)
    _draw_keller(right, keller)
    return fig


def _draw_blur(ax: Any, blurred: dict[str, dict[float, Blurred]], sharp: Blurred) -> None:
    for (name, runs), colour in zip(blurred.items(), (BLUE, GREEN), strict=True):
        for k, (end, style) in enumerate((("scheme", "o-"), ("equation", "s--"))):
            errors = [error[k] for error in runs.values()]
            ax.plot(list(runs), errors, style, ms=4, color=colour, label=f"{name}, to {end}")
    for end, error, style in zip(Blurred._fields, sharp, ("-", "--"), strict=True):
        ax.axhline(error, color=INK, lw=1, ls=style, label=f"without blur, to {end}")
    title = "blur can hide the error of the scheme"
    scales: Any = {"xscale": "log", "yscale": "log", "ylim": (1e-4, 3)}
    tight = {"loc": "upper left", "fontsize": 6.5, "ncols": 2, "columnspacing": 0.6, "handlelength": 1.6}
    of.plot.panel(ax, title, r"$\varepsilon$", "$L^1$ distance", legend=tight, **scales)


def _draw_steps(ax: Any, oracle: Oracle) -> None:
    tau = np.array(list(oracle.scheme))
    ax.plot(tau, list(oracle.scheme.values()), "s-", ms=4, color=RED, label="scheme to equation")
    ax.plot(tau, list(oracle.solver.values()), "o-", ms=4, color=BLUE, label="solver to scheme")
    ax.plot(tau, 20 * tau, ":", color=INK, lw=1, label=r"slope 1")
    scales: Any = {"xscale": "log", "yscale": "log", "ylim": (3e-5, 0.6), "xticks": tau}
    of.plot.panel(ax, oracle.name, r"$\tau$", "$L^1$ distance", legend="upper left", **scales)


def _draw_keller(ax: Any, rates: dict[float, float]) -> None:
    share = np.array([0.0, max(rates)])
    ax.plot(share, 4 * (1 - share), color=FAINT, lw=2, label=r"$4(1-M/8\pi)$")
    ax.plot(list(rates), list(rates.values()), "o", ms=5, color=BLUE, label="one JKO step")
    ax.axhline(0, color=INK, lw=0.6)
    title, rate = "Keller and Segel: the second moment", r"$(M_2' - M_2 + W_2^2)/\tau$"
    of.plot.panel(ax, title, r"$M/8\pi$", rate, legend="upper right")


def pair(brackets: dict[float, Bracket], riesz: dict[int, Spread]) -> Any:
    """Attention between explicit and implicit steps; radii of clouds that leave a point."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.0, 3.6))
    _draw_brackets(left, brackets)
    _draw_riesz(right, riesz)
    return fig


def _draw_brackets(ax: Any, brackets: dict[float, Bracket]) -> None:
    tau = [0.0, *sorted(brackets)]
    traces = [[float(S.trace()) for S in brackets[t]] for t in tau[1:]]
    explicit, (exact, *_), implicit, scheme = zip(*traces, strict=True)
    ax.plot(tau, [exact, *implicit], "o-", ms=4, color=BLUE, label="JKO")
    ax.plot(tau, [exact, *explicit], "o-", ms=4, color=RED, label="explicit (Euler)")
    ax.plot(tau, [exact, *scheme], "x", ms=7, color=INK, label="exact JKO")
    ax.axhline(exact, color=INK, lw=1, ls="--", label="closed form of the flow")
    title = "softmax attention between explicit and implicit steps"
    of.plot.panel(ax, title, r"$\tau$", "trace of the covariance at $t = 1$", legend="upper left")


def _draw_riesz(ax: Any, riesz: dict[int, Spread]) -> None:
    for (n, one), colour in zip(riesz.items(), of.plot.COLOURS, strict=False):
        ax.plot(one.t[1:], one.radius[1:] / one.t[1:], "o-", ms=3.5, color=colour, label=f"{n} particles")
        ax.plot(1.0, one.jko, "D", ms=6, mfc="none", color=colour)
    exact = float(of.closed_forms.riesz_radius(1.0, 1.0, 2))
    ax.axhline(exact, color=INK, lw=1, ls="--", label=r"$\pi/4$")
    ax.plot([], [], "D", ms=6, mfc="none", color=INK, label="JKO from $t = 1/2$")
    title = r"flow of $-\frac{1}{2}\iint|x-y|$ from a point in the plane"
    limits: Any = {"xlim": (0, 1.05), "ylim": (0.997 * exact, 1.003 * exact)}
    of.plot.panel(ax, title, "$t$", "radius$\\,/\\,t$", legend={"loc": "upper right", "ncols": 2}, **limits)
