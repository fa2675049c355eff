"""The pictures of the experiment `how-smooth`: constants of attention below their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

import otflow as of
from otflow.papers.how_smooth.runs import MANY, NARROW, SIGNS, Peaks, SmoothnessCurve, attention, exponent
from otflow.stability.smoothness import ball_bound, discrete_bound, mean_field_bound

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK = of.plot.INK
CONSTANT = "local Lipschitz constant"


def growth(curves: dict[str, SmoothnessCurve]) -> Any:
    """A panel for each sign of A: adversarial and drawn tokens, with and without a mask, and the bounds."""
    fig, (axes,) = of.plot.figure(1, len(SIGNS), size=(10.6, 4.0))
    legend = {"loc": "upper left", "fontsize": 6.8, "ncols": 2}
    for ax, name in zip(axes, SIGNS, strict=True):
        _, R, n, *_ = curves[name]
        _bounds(ax, R, n, SIGNS[name])
        for mask, mark in (("", "o-"), (", masked", "s--")):
            for what, colour in (("adversarial", BLUE), ("drawn", GREEN)):
                values = getattr(curves[name + mask], what)
                label = f"{what}{mask}, slope {exponent(n, values):.2f}"
                ax.loglog(n, values, mark, ms=4, lw=1.2, color=colour, label=label)
        room = (None, 30 * ax.get_ylim()[1])  # for the legend
        of.plot.panel(
            ax, f"${name}$, $|A|\\,R^2 = {R**2:g}$", "number of tokens $n$", legend=legend, ylim=room
        )
    of.plot.panel(axes[0], y=CONSTANT)
    return fig


def _bounds(ax: Any, R: float, n: Iterable[int], sign: float = -1.0) -> None:
    """The published bound that grows with n, and the one that is below it and the one for all n."""
    field, n = attention(sign), list(n)
    ax.loglog(n, [discrete_bound(field, R, k) for k in n], "-", color=RED, label="bound with $n$")
    ax.loglog(n, [ball_bound(field, R, k).exp() for k in n], "--", color=INK, label="bound of both regimes")


def saturation(narrow: np.ndarray) -> Any:
    """Adversarial tokens beyond n = exp(g), and all three bounds."""
    fig, ((ax,),) = of.plot.figure(1, 1, size=(6.4, 3.9))
    R, end = math.sqrt(NARROW), math.exp(2 * NARROW)
    _bounds(ax, R, np.unique(MANY.round().astype(int)).tolist())
    ax.axhline(mean_field_bound(attention(-1.0), R).exp(), color=RED, ls=":", label="bound without $n$")
    ax.loglog(MANY, narrow, "o-", color=BLUE, ms=3, lw=1.2, label="adversarial, merged")
    ax.axvline(end, color=of.plot.FAINT, lw=1, zorder=0)
    ax.text(end, 1.05, " $n = e^g$", color=INK, fontsize=8)
    title = rf"$A=-I$, $|A|\,R^2={NARROW:g}$: $\sqrt{{n}}$, until there are too many others"
    of.plot.panel(ax, title, "number of tokens $n$", CONSTANT, legend="upper left")
    return fig


def peaks(found: Peaks) -> Any:
    """The largest constant over n against |A| R^2, and the bounds for all n."""
    fig, ((ax,),) = of.plot.figure(1, 1, size=(6.4, 3.9))
    ax.semilogy(found.y, np.exp(found.published), ":", color=RED, label="published bound for all $n$")
    ax.semilogy(found.y, np.exp(found.ball), "--", color=INK, label="bound of half the exponent")
    ax.semilogy(found.y, found.found, "o", color=BLUE, ms=3, label="largest constant found")
    of.plot.panel(
        ax, "$A = -I$: the worst $n$ for every radius", "$|A|\\,R^2$", CONSTANT, legend="upper left"
    )
    return fig
