"""The pictures of the experiment `stability`: ladders, convex flows, and Gaussians at a blow-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import otflow as of
from otflow.papers.stability_estimate.runs import LAM, Contraction, Parting, bound, exact_on_line

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK, FAINT = of.plot.INK, of.plot.FAINT
RATIO = r"$W_2(\mu_t,\nu_t)\,/\,W_2(\mu_0,\nu_0)$"


def ladders(found: Mapping[str, of.stability.Ladder]) -> Any:
    """One panel for each kind of attention, all on one scale.

    >>> import otflow as of
    >>> from otflow.papers.stability_estimate.draw import ladders
    >>> mu0 = of.Particles([[1.0], [-0.5]])
    >>> one = of.ladder(mu0, of.SoftmaxAttention([[1.0]], [[1.0]], [[1.0]]), t1=1.0, steps=10)
    >>> len(ladders({"softmax": one}).axes)
    1
    """
    cols = min(5, len(found))
    rows = -(-len(found) // cols)
    fig, axes = of.plot.figure(rows, cols, size=(2.9 * cols, 2.6 * rows))
    ends = [float(one.rungs["a priori"]) for one in found.values()]
    top = max(end for end in (1.0, *ends) if math.isfinite(end))
    low = min(float(log.min()) for one in found.values() for log in (*one.observed.values(), one.worst))
    for k, (ax, (name, one)) in enumerate(zip(axes.flat, found.items(), strict=False)):
        of.plot.ladder(one, ax=ax)
        of.plot.panel(ax, name, ylim=(1.2 * min(low, -0.05), 3 * top))
        if k:  # the first panel speaks for all
            ax.get_legend().remove()
            ax.set_ylabel("")
    for ax in axes.flat[len(found) :]:
        ax.remove()
    return fig


def convex(found: dict[float, Contraction], p: Parting) -> Any:
    """Contraction on the left, sensitivity at a blow-up on the right.

    >>> from otflow.papers.stability_estimate.draw import convex
    >>> from otflow.papers.stability_estimate.runs import contraction, parting
    >>> len(convex(contraction(1), parting(2)).axes)
    2
    """
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.4, 4.2))
    _contraction(left, found)
    _parting(right, p)
    return fig


def _contraction(ax: Any, found: dict[float, Contraction]) -> None:
    """Ratios of distances against time, for the scheme and the flow."""
    hollow = {"mfc": "none", "mew": 0.8}
    for (tau, c), colour in zip(found.items(), (RED, GREEN, BLUE, INK), strict=True):
        t = np.linspace(0, c.t[-1], 100)
        ax.semilogy(t, bound(tau, t), "--" if tau else "-", lw=1.0, color=colour)
        ax.plot(c.t, c.shift, "o", ms=4, color=colour, label=rf"JKO, $\tau$ = {tau:g}" if tau else "flow")
        ax.plot(c.t, c.random, "o", ms=4, color=colour, **hollow)
    for style, colour, label, more in (
        ("--", FAINT, r"$(1+\lambda\tau)^{-k}$, $k=t/\tau$", {}),
        ("-", INK, r"$\exp(-\lambda t)$", {"lw": 1.0}),
        ("o", FAINT, "shift along the weakest direction", {}),
        ("o", FAINT, "largest of random pairs", hollow),
    ):
        ax.plot([], [], style, ms=4, color=colour, label=label, **more)
    title = rf"Fokker-Planck equation on Gaussians, $\lambda$ = {LAM:g}"
    of.plot.panel(ax, title, "$t$", RATIO, legend="lower left")


def _parting(ax: Any, p: Parting) -> None:
    """Ratios of distances against what is left of time."""
    fine = np.geomspace(p.left[-1], p.left[0], 100)
    curves = {name: (fine, y) for name, y in exact_on_line(fine).items()} | {
        "plane": (p.left, p.exact["plane"])
    }
    for name, mark, colour, label in (
        ("plane", "s", RED, "softmax, covariances of the plane: slope -3/2"),
        ("softmax", "o", BLUE, "softmax, deviations: slope -3/2"),
        ("mean", "o", GREEN, "softmax, means: slope -1/2"),
        ("L2", "o", PINK, "L2, deviations"),
        ("Sinkhorn", "o", INK, "Sinkhorn, deviations"),
    ):
        ax.loglog(*curves[name], "-", lw=1.0, color=colour)
        ax.plot(p.left, p.observed[name], mark, ms=4, color=colour, label=label)
    ax.invert_xaxis()
    title = "nearby Gaussians under attention:\nsoftmax blows up at $t^*$"
    of.plot.panel(ax, title, "$1-t/t^*$", RATIO, legend="upper left")
