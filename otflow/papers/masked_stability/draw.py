"""The figures of the experiment `masked-stability`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import iv

import otflow as of
from otflow.reproduce.fits import slope

if TYPE_CHECKING:
    from otflow.papers.masked_stability.long_sequences import LongSequences
    from otflow.papers.masked_stability.runs import DistanceGrowth, MaskedEstimate, Orders

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK = of.plot.INK


def ratios(velocity: DistanceGrowth, flows: DistanceGrowth) -> Any:
    """Growth of distances with the number of tokens, of velocities and along the flow.

    >>> from otflow.papers.masked_stability.runs import growth, velocities
    >>> len(ratios(velocities((2, 4)), growth((2, 4))).axes)
    2
    """
    fig, axes = of.plot.figure(1, 2, size=(9.6, 4.0))
    _velocities(axes[0, 0], velocity)
    _flows(axes[0, 1], flows)
    for ax in axes.flat:
        ax.set(xscale="log", xlabel="number of tokens n")
        ax.minorticks_off()
    return fig


def _velocities(ax: Any, found: DistanceGrowth) -> None:
    n = np.unique(np.geomspace(1, found.n[-1], 60).round())
    ax.plot(n, [np.sum(1 / np.arange(1, k + 1)) for k in n], color=RED, lw=1, label="$H_n$")
    ax.plot(n, [np.sum(1 / np.arange(1, k + 1) ** 2) ** 0.5 for k in n], color=BLUE, lw=1)
    ax.plot(found.n, found.one, "o", ms=5, color=RED, label="$d_1$, first token moved")
    ax.plot(found.n, found.worst, "s", ms=4, color=GREEN, label="$d_2$, token $i$ moved by $i^{-1/2}$")
    ax.plot(found.n, found.two, "o", ms=5, color=BLUE, label="$d_2$, first token moved")
    ax.axhline(2.0, color=INK, lw=1, ls="--")
    ax.text(found.n[-1], 2.1, "Hardy's constant 2", color=INK, ha="right")
    ax.set(ylim=(0, 11), ylabel="growth of the distance")
    ax.set_title("from tokens to velocities", fontsize=9, color=INK)
    ax.legend(loc="upper left", frameon=False)


def _flows(ax: Any, found: DistanceGrowth) -> None:
    from otflow.papers.masked_stability.runs import TIME, bessel_mean, harmonic

    n = np.unique(np.geomspace(1, 1e5, 60).round())
    H = np.array([harmonic(int(k)) for k in n])
    ax.plot(n, [bessel_mean(k, TIME) for k in n], color=RED, lw=1, label=r"$\mathrm{E}\,I_0(2\sqrt{M})$")
    ax.plot(n, iv(0, 2 * (TIME * H) ** 0.5), color=RED, lw=1, ls=":", label=r"$I_0(2\sqrt{H_n})$")
    ax.plot(found.n, found.one, "o", ms=5, color=RED, label="$d_1$, first token moved")
    ax.plot(found.n, found.worst, "s", ms=4, color=GREEN, label="$d_2$, token $i$ moved by $i^{-1/2}$")
    ax.plot(found.n, found.two, "o", ms=5, color=BLUE, label="$d_2$, first token moved")
    ax.axhline(np.exp(2 * TIME), color=INK, lw=1, ls="--")
    ax.text(1.0e5, 1.06 * np.exp(2 * TIME), "$e^2$", color=INK, ha="right")
    ax.set(yscale="log", ylim=(2, 400))
    ax.set_yticks(ticks := [2, 5, 10, 20, 50, 100, 200], [f"{k:g}" for k in ticks])
    ax.set_title("along the flow, from $t=0$ to $t=1$", fontsize=9, color=INK)
    ax.legend(loc="upper left", frameon=False)


def orders(found: Orders) -> Any:
    """Both orders of the tokens with their ways, and the distances between them.

    >>> from otflow.papers.masked_stability.runs import reordered
    >>> len(orders(reordered(4)).axes)
    3
    """
    fig, axes = of.plot.figure(1, 3, size=(11.0, 3.7))
    words = ("read from inside", "read from outside")
    reach = 1.1 * max(float(traj.stacked.coords[0].abs().max()) for traj in (found.mu, found.nu))
    for ax, traj, word in zip(axes[0, :2], (found.mu, found.nu), words, strict=True):
        of.plot.trails(traj, ax=ax, size=24.0, width=1.0)
        ax.set_title(f"{word}: dark tokens first, pale ones last", fontsize=9, color=INK)
        ax.set_aspect("equal", adjustable="box")
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
    ax, t = axes[0, 2], found.mu.ts.numpy()
    ax.plot(t, found.conditional, color=BLUE, label="$d_2$, which keeps labels")
    ax.plot(t, found.plain, color=RED, label="$W_2$, which does not see them")
    ax.set(xlabel="t", ylabel="distance of the two clouds", ylim=(0, 1.3 * found.conditional.max()))
    ax.set_title("the same tokens, in reverse order", fontsize=9, color=INK)
    ax.legend(loc="upper left", frameon=False)
    return fig


def estimates(found: dict[str, MaskedEstimate]) -> Any:
    """Measured growth of d_p and its bound.

    >>> from otflow.papers.masked_stability.runs import average, estimate
    >>> len(estimates({"means": estimate(average(), 2.0, 4, 1, np.random.default_rng(0))}).axes)
    1
    """
    fig, axes = of.plot.figure(1, len(found), size=(3.7 * len(found), 3.5))
    for ax, (name, one) in zip(axes[0], found.items(), strict=True):
        groups = zip((BLUE, RED, GREEN), ("all tokens moved", "the first token", "fading moves"), strict=True)
        for k, (colour, word) in enumerate(groups):
            ax.plot(one.t, one.gain[:, 8 * k : 8 * k + 8], color=colour, lw=0.8, alpha=0.8)
            ax.plot([], [], color=colour, label=word)
        ax.plot(one.t, one.bound, color=INK, ls="--", lw=1, label=r"bound $\int L$")
        ax.set(xlabel="t", ylim=(0, min(1.05 * one.bound[-1], 5.0)))
        ax.set_title(name, fontsize=9, color=INK)
    axes[0, 0].set_ylabel("log of the growth of $d_p$")
    axes[0, 0].legend(loc="upper left", frameon=False)
    return fig


def limits(found: LongSequences) -> Any:
    """Distances of sequences to their limit.

    >>> from otflow.papers.masked_stability.long_sequences import LongSequences
    >>> n, one = np.array([16, 32]), np.ones((2, 3))
    >>> len(limits(LongSequences(n, one, n, one, one)).axes)
    2
    """
    fig, axes = of.plot.figure(1, 2, size=(10.4, 3.8))
    left, right = axes[0]
    _rates(left, found.n, found.curve, "o-", "")
    _rates(right, found.random, found.conditional, "s--", "$d_2$, ")
    _rates(right, found.random, found.plain, "o-", "$W_2$, ")
    left.set_title("tokens on a curve: $d_2$ to the limit", fontsize=9, color=INK)
    left.legend(loc="lower left", frameon=False)
    left.set_yticks(ticks := [0.002, 0.005, 0.01, 0.02, 0.05, 0.1], [f"{k:g}" for k in ticks])
    left.set_ylim(0.7 * found.curve.min(), 1.3 * found.curve.max())
    right.set_title("tokens random given their label (on the line)", fontsize=9, color=INK)
    right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    right.set_yticks(ticks := [0.03, 0.05, 0.1, 0.2, 0.3], [f"{k:g}" for k in ticks])
    return fig


def _rates(ax: Any, n: np.ndarray, values: np.ndarray, style: str, name: str) -> None:
    from otflow.papers.masked_stability.long_sequences import TIMES

    for t, column, colour in zip(TIMES, values.T, of.plot.COLOURS, strict=False):
        ax.plot(n, column, style, ms=4, color=colour, label=f"{name}t = {t:g}: slope {slope(n, column):.2f}")
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel="distance to the limit")
    ax.minorticks_off()
    ax.set_xticks(n, [f"{k:g}" for k in n])
