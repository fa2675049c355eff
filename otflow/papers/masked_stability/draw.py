"""The pictures of the experiment `masked-stability`: growth of distances, two orders, and long sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import iv

import otflow as of
from otflow.papers.masked_stability import runs
from otflow.papers.masked_stability.long_sequences import TIMES, LongSequences
from otflow.papers.masked_stability.runs import TIME, DistanceGrowth, MaskedEstimate, Orders
from otflow.reproduce.fits import slope

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK = of.plot.INK


def ratios(velocity: DistanceGrowth, flows: DistanceGrowth) -> Any:
    """Growth of distances with the number of tokens, of velocities and along the flow.

    >>> from otflow.papers.masked_stability.draw import ratios
    >>> from otflow.papers.masked_stability.runs import growth, velocities
    >>> len(ratios(velocities((2, 4)), growth((2, 4))).axes)
    2
    """
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.6, 4.0))
    few, many = (np.unique(np.geomspace(1, end, 60).round()) for end in (velocity.n[-1], 1e5))
    first, H = (np.array([runs.harmonic(int(k)) for k in n]) for n in (few, many))
    left.semilogx(few, first, color=RED, lw=1, label="$H_n$")
    left.plot(few, [np.sum(1 / np.arange(1, k + 1) ** 2) ** 0.5 for k in few], color=BLUE, lw=1)
    left.text(few[-1], 2.1, "Hardy's constant 2", color=INK, ha="right")
    bessel, jensen = [runs.bessel_mean(k, TIME) for k in many], iv(0, 2 * (TIME * H) ** 0.5)
    right.loglog(many, bessel, color=RED, lw=1, label=r"$\mathrm{E}\,I_0(2\sqrt{M})$")
    right.plot(many, jensen, color=RED, lw=1, ls=":", label=r"$I_0(2\sqrt{H_n})$")
    right.text(many[-1], 1.06 * np.exp(2 * TIME), "$e^2$", color=INK, ha="right")
    for ax, found, top in ((left, velocity, 2.0), (right, flows, np.exp(2 * TIME))):
        ax.plot(found.n, found.one, "o", ms=5, color=RED, label="$d_1$, first token moved")
        ax.plot(found.n, found.worst, "s", ms=4, color=GREEN, label="$d_2$, token $i$ moved by $i^{-1/2}$")
        ax.plot(found.n, found.two, "o", ms=5, color=BLUE, label="$d_2$, first token moved")
        ax.axhline(top, color=INK, lw=1, ls="--")
        ax.minorticks_off()
        of.plot.panel(ax, x="number of tokens $n$", legend="upper left")
    of.plot.panel(left, "from tokens to velocities", y="growth of the distance", ylim=(0, 11))
    ticks = [2, 5, 10, 20, 50, 100, 200]
    of.plot.panel(right, "along the flow, from $t=0$ to $t=1$", ylim=(2, 400), yticks=ticks)
    return fig


def orders(found: Orders) -> Any:
    """Both orders of the tokens with their ways, and the distances between them.

    >>> from otflow.papers.masked_stability.draw import orders
    >>> from otflow.papers.masked_stability.runs import reordered
    >>> len(orders(reordered(4)).axes)
    3
    """
    fig, ((inside, outside, ax),) = of.plot.figure(1, 3, size=(11.0, 3.7))
    reach = 1.1 * max(float(traj.stacked.coords[0].abs().max()) for traj in (found.mu, found.nu))
    square: dict[str, Any] = {
        "xlim": (-reach, reach),
        "ylim": (-reach, reach),
        "aspect": "equal",
        "adjustable": "box",
    }
    for place, traj, word in ((inside, found.mu, "inside"), (outside, found.nu, "outside")):
        of.plot.trails(traj, ax=place, size=24.0, width=1.0)
        of.plot.panel(place, f"read from {word}:\ndark tokens first, pale ones last", **square)
    ax.plot(found.mu.ts, found.conditional, color=BLUE, label="$d_2$, which keeps labels")
    ax.plot(found.mu.ts, found.plain, color=RED, label="$W_2$, which does not see them")
    room = (0, 1.3 * found.conditional.max())
    words = "the same tokens,\nin reverse order", "$t$", "distance of the two clouds"
    of.plot.panel(ax, *words, legend="upper left", ylim=room)
    return fig


def estimates(found: dict[str, MaskedEstimate]) -> Any:
    """Measured growth of d_p and its bound.

    >>> import numpy as np
    >>> from otflow.papers.masked_stability.draw import estimates
    >>> from otflow.papers.masked_stability.runs import average, estimate
    >>> len(estimates({"means": estimate(average(), 2.0, 4, 1, np.random.default_rng(0))}).axes)
    1
    """
    fig, (axes,) = of.plot.figure(1, len(found), size=(3.7 * len(found), 3.5))
    groups = {"all tokens moved": BLUE, "the first token": RED, "fading moves": GREEN}
    for ax, (name, one) in zip(axes, found.items(), strict=True):
        for k, (word, colour) in enumerate(groups.items()):
            lines = ax.plot(one.t, one.gain[:, 8 * k : 8 * k + 8], color=colour, lw=0.8, alpha=0.8)
            lines[0].set_label(word)
        ax.plot(one.t, one.bound, color=INK, ls="--", lw=1, label=r"bound $\int L$")
        of.plot.panel(ax, name, "$t$", ylim=(0, min(1.05 * one.bound[-1], 5.0)))
    of.plot.panel(axes[0], y="log of the growth of $d_p$", legend="upper left")
    return fig


def limits(found: LongSequences) -> Any:
    """Distances of sequences to their limit.

    >>> import numpy as np
    >>> from otflow.papers.masked_stability.draw import limits
    >>> from otflow.papers.masked_stability.long_sequences import LongSequences
    >>> n, one = np.array([16, 32]), np.ones((2, 3))
    >>> len(limits(LongSequences(n, one, n, one, one)).axes)
    2
    """
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.4, 3.8))
    for ax, n, columns, style, name in (
        (left, found.n, found.curve, "o-", ""),
        (right, found.random, found.conditional, "s--", "$d_2$, "),
        (right, found.random, found.plain, "o-", "$W_2$, "),
    ):
        for t, values, colour in zip(TIMES, columns.T, of.plot.COLOURS, strict=False):
            label = f"{name}$t = {t:g}$: slope {slope(n, values):.2f}"
            ax.loglog(n, values, style, ms=4, color=colour, label=label)
        of.plot.panel(ax, x="number of tokens $n$", y="distance to the limit", xticks=n)
    ticks, far = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1], [0.03, 0.05, 0.1, 0.2, 0.3]
    seen = (0.7 * found.curve.min(), 1.3 * found.curve.max())  # not all of the ticks
    of.plot.panel(left, "tokens on a curve: $d_2$ to the limit", legend="lower left", yticks=ticks, ylim=seen)
    of.plot.panel(right, "tokens random given their label (on the line)", legend="beside", yticks=far)
    return fig
