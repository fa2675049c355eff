"""The figures of the experiment `jko-oracles`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of

if TYPE_CHECKING:
    from otflow.papers.jko.grid_oracles import Blurred, Grids
    from otflow.papers.jko.runs import Bracket, Spread
    from otflow.reproduce.oracle import Oracle

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT
FLOOR = 1e-16  # zeros are drawn here


def table(oracles: Sequence[Oracle]) -> Any:
    """One row per oracle: solver against scheme, scheme against equation; large dots are long steps."""
    fig, axes = of.plot.figure(1, 1, size=(8.6, 0.42 * len(oracles) + 1.2))
    ax = axes[0, 0]
    rows = range(len(oracles))[::-1]
    for y, oracle in zip(rows, oracles, strict=True):
        for errors, colour in ((oracle.solver, BLUE), (oracle.scheme, RED)):
            values = np.maximum(list(errors.values()), FLOOR)
            sizes = 48 * np.array(list(errors)) / max(errors)
            ax.plot([values.min(), values.max()], [y, y], color=colour, lw=1.0, zorder=2)
            ax.scatter(values, np.full(len(values), y), s=np.maximum(sizes, 5), color=colour, lw=0, zorder=3)
        ax.plot(oracle.bound, y, "|", color=INK, ms=9)
    ax.set_yticks(list(rows), [f"{o.name}  ({_short(o.norm)})" for o in oracles])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=FAINT, lw=0.5)
    ax.set(
        xscale="log", xlim=(0.5 * FLOOR, 0.5), ylim=(-0.6, len(oracles) - 0.4), xlabel="distance at the end"
    )
    _legend(ax)
    return fig


def _short(norm: str) -> str:
    return norm.split(",")[0]


def _legend(ax: Any) -> None:
    for colour, word in ((BLUE, "solver to scheme"), (RED, "scheme to equation")):
        ax.scatter([], [], s=30, color=colour, label=word)
    ax.plot([], [], "|", color=INK, ms=9, ls="none", label="allowed to the solver")
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, fontsize=8, frameon=False)
    ax.set_title("larger dots: longer steps", loc="left", x=-0.85, fontsize=8, color=INK)


def blur(found: Grids) -> Any:
    """Errors against eps and against tau, and the rate of Keller and Segel's second moment."""
    fig, axes = of.plot.figure(1, 3, size=(11.5, 3.6))
    _draw_blur(axes[0, 0], found)
    _draw_steps(axes[0, 1], found.oracles[0])
    _draw_keller(axes[0, 2], found.keller)
    return fig


def _draw_blur(ax: Any, found: Grids) -> None:
    for runs, colour, word in ((found.blur, BLUE, "entropic"), (found.debiased, GREEN, "entropic, debiased")):
        _errors(ax, runs, colour, word)
    ax.axhline(found.sharp.scheme, color=INK, lw=1)
    ax.axhline(found.sharp.equation, color=INK, lw=1, ls="--")
    ax.plot([], [], color=INK, lw=1, label="without blur, to scheme")
    ax.plot([], [], color=INK, lw=1, ls="--", label="without blur, to equation")
    ax.set(xscale="log", yscale="log", xlabel=r"$\varepsilon$", ylabel="L1 distance", ylim=(1e-4, 3.0))
    ax.legend(loc="upper left", fontsize=6.5, ncols=2, columnspacing=0.6, handlelength=1.6, frameon=False)
    ax.set_title("blur can hide the error of the scheme", fontsize=9, color=INK)


def _errors(ax: Any, runs: dict[float, Blurred], colour: str, word: str) -> None:
    eps = list(runs)
    ax.plot(eps, [b.scheme for b in runs.values()], "o-", ms=4, color=colour, label=f"{word}, to scheme")
    ax.plot(eps, [b.equation for b in runs.values()], "s--", ms=4, color=colour, label=f"{word}, to equation")


def _draw_steps(ax: Any, oracle: Oracle) -> None:
    tau = np.array(list(oracle.scheme))
    ax.plot(tau, list(oracle.scheme.values()), "s-", ms=4, color=RED, label="scheme to equation")
    ax.plot(tau, list(oracle.solver.values()), "o-", ms=4, color=BLUE, label="solver to scheme")
    ax.plot(tau, 20 * tau, ":", color=INK, lw=1, label=r"slope 1")
    ax.set(xscale="log", yscale="log", xlabel=r"$\tau$", ylabel="L1 distance", ylim=(3e-5, 0.6))
    ax.minorticks_off()
    ax.set_xticks(tau, [f"{t:g}" for t in tau])
    ax.legend(loc="upper left", fontsize=7.5, frameon=False)
    ax.set_title(oracle.name, fontsize=9, color=INK)


def _draw_keller(ax: Any, rates: dict[float, float]) -> None:
    share = np.array([0.0, max(rates)])
    ax.plot(share, 4 * (1 - share), color=FAINT, lw=2, label=r"$4(1-M/8\pi)$")
    ax.plot(list(rates), list(rates.values()), "o", ms=5, color=BLUE, label="one JKO step")
    ax.axhline(0, color=INK, lw=0.6)
    ax.set(xlabel=r"$M/8\pi$", ylabel=r"$(M_2' - M_2 + W_2^2)/\tau$")
    ax.legend(loc="upper right", fontsize=8, frameon=False)
    ax.set_title("Keller and Segel: the second moment", fontsize=9, color=INK)


def pair(brackets: dict[float, Bracket], riesz: dict[int, Spread]) -> Any:
    """Attention between explicit and implicit steps; radii of clouds that leave a point."""
    fig, axes = of.plot.figure(1, 2, size=(9.0, 3.6))
    _draw_brackets(axes[0, 0], brackets)
    _draw_riesz(axes[0, 1], riesz)
    return fig


def _draw_brackets(ax: Any, brackets: dict[float, Bracket]) -> None:
    tau = np.array([0.0, *sorted(brackets)])
    each = [brackets[t] for t in tau[1:]]
    exact = float(each[0].flow.trace())
    for name, colour, word in (("implicit", BLUE, "JKO"), ("explicit", RED, "explicit (Euler)")):
        values = [exact, *(float(getattr(b, name).trace()) for b in each)]
        ax.plot(tau, values, "o-", ms=4, color=colour, label=word)
    ax.plot(tau, [exact, *(float(b.scheme.trace()) for b in each)], "x", ms=7, color=INK, label="exact JKO")
    ax.axhline(exact, color=INK, lw=1, ls="--", label="closed form of the flow")
    ax.set(xlabel=r"$\tau$", ylabel="trace of the covariance at t = 1")
    ax.legend(loc="upper left", fontsize=8, frameon=False)
    ax.set_title("softmax attention between explicit and implicit steps", fontsize=9, color=INK)


def _draw_riesz(ax: Any, riesz: dict[int, Spread]) -> None:
    for (n, one), colour in zip(riesz.items(), of.plot.COLOURS, strict=False):
        ax.plot(one.t[1:], one.radius[1:] / one.t[1:], "o-", ms=3.5, color=colour, label=f"{n} particles")
        ax.plot(1.0, one.jko, "D", ms=6, mfc="none", color=colour)
    exact = float(of.closed_forms.riesz_radius(1.0, 1.0, 2))
    ax.axhline(exact, color=INK, lw=1, ls="--", label=r"$\pi/4$")
    ax.plot([], [], "D", ms=6, mfc="none", color=INK, label="JKO from t = 1/2")
    ax.set(xlabel="t", ylabel="radius / t", xlim=(0, 1.05))
    ax.set_ylim(0.997 * exact, 1.003 * exact)
    ax.legend(loc="upper right", fontsize=8, ncols=2, frameon=False)
    ax.set_title(r"flow of $-\frac{1}{2}\iint|x-y|$ from a point in the plane", fontsize=9, color=INK)
