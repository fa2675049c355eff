"""The figures of the experiment `how-smooth`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow.papers.how_smooth.runs import NARROW, SIGNS, exponent, many
from otflow.stability.smoothness import ball_bound, discrete_bound, mean_field_bound

if TYPE_CHECKING:
    from otflow.papers.how_smooth.runs import Peaks, SmoothnessCurve

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK = of.plot.INK


def growth(curves: dict[str, SmoothnessCurve], ns: tuple[int, ...]) -> Any:
    """A panel for each sign of A: adversarial and drawn tokens, with and without a mask, and the bounds."""
    fig, axes = of.plot.figure(1, len(SIGNS), size=(10.6, 4.0))
    for ax, name in zip(axes.flat, SIGNS, strict=True):
        _bounds(ax, curves[name].field, curves[name].R, np.array(ns))
        for label, mark in ((name, "o-"), (f"{name}, masked", "s--")):
            _pair(ax, ns, curves[label], mark, ", masked" * ("masked" in label))
        ax.set(xlabel="number of tokens n", title=f"{name}, |A| R² = {curves[name].R ** 2:g}")
        ax.set_ylim(top=30 * ax.get_ylim()[1])  # room for the legend
        ax.legend(loc="upper left", fontsize=6.8, ncols=2)
    axes[0, 0].set_ylabel("local Lipschitz constant")
    return fig


def _pair(ax: Any, ns: tuple[int, ...], curve: SmoothnessCurve, mark: str, suffix: str) -> None:
    style = {"markersize": 4, "linewidth": 1.2}
    for values, colour, what in ((curve.adversarial, BLUE, "adversarial"), (curve.drawn, GREEN, "drawn")):
        label = f"{what}{suffix}, slope {exponent(ns, values):.2f}"
        ax.loglog(ns, values, mark, color=colour, label=label, **style)


def _bounds(ax: Any, field: of.SoftmaxAttention, R: float, n: np.ndarray) -> None:
    ax.loglog(
        n, [discrete_bound(field, R, k).item() for k in n.tolist()], "-", color=RED, label="bound with n"
    )
    both = [ball_bound(field, R, k).exp().item() for k in n.tolist()]
    ax.loglog(n, both, "--", color=INK, label="bound of both regimes")


def saturation(narrow: np.ndarray) -> Any:
    """Adversarial tokens beyond n = exp(g), and all three bounds."""
    fig, axes = of.plot.figure(1, 1, size=(6.4, 3.9))
    ax, n = axes[0, 0], many()[0]
    field, R = of.SoftmaxAttention(*np.stack([-np.eye(2), np.eye(2), np.eye(2)])), math.sqrt(NARROW)
    _bounds(ax, field, R, np.unique(n.round().astype(int)))
    ax.axhline(mean_field_bound(field, R).exp().item(), color=RED, linestyle=":", label="bound without n")
    ax.loglog(n, narrow, "o-", color=BLUE, markersize=3, linewidth=1.2, label="adversarial, merged")
    ax.axvline(math.exp(2 * NARROW), color=of.plot.FAINT, linewidth=1, zorder=0)
    ax.text(math.exp(2 * NARROW), 1.05, " n = exp(g)", color=INK, fontsize=8)
    ax.set(
        xlabel="number of tokens n",
        ylabel="local Lipschitz constant",
        title=f"A = -I, |A| R² = {NARROW:g}: sqrt(n), until there are too many others",
    )
    ax.legend(loc="upper left", fontsize=7.5)
    return fig


def ratios(peaks: Peaks) -> Any:
    """The largest constant over n against |A| R^2, and the bounds for all n."""
    fig, axes = of.plot.figure(1, 1, size=(6.4, 3.9))
    ax = axes[0, 0]
    ax.semilogy(peaks.y, np.exp(peaks.published), ":", color=RED, label="published bound for all n")
    ax.semilogy(peaks.y, np.exp(peaks.ball), "--", color=INK, label="bound of half the exponent")
    ax.semilogy(peaks.y, peaks.found, "o", color=BLUE, markersize=3, label="largest constant found")
    ax.set(xlabel="|A| R²", ylabel="local Lipschitz constant", title="A = -I: the worst n for every radius")
    ax.legend(loc="upper left")
    return fig
