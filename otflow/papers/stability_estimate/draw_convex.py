"""The picture of `otflow.papers.stability_estimate.convex`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of

if TYPE_CHECKING:
    from otflow.papers.stability_estimate.convex import Contraction, Measured, Parting

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK, FAINT = of.plot.INK, of.plot.FAINT


def draw(m: Measured) -> Any:
    """Contraction on the left, sensitivity at a blow-up on the right.

    >>> from otflow.papers.stability_estimate.convex import measured
    >>> len(draw(measured(True)).axes)
    2
    """
    fig, axes = of.plot.figure(1, 2, size=(10.4, 4.2))
    contraction(axes[0, 0], m.contraction)
    parting(axes[0, 1], m.parting)
    return fig


def contraction(ax: Any, c: Contraction) -> None:
    """Ratios of distances against time, for the scheme and the flow.

    >>> from otflow.papers.stability_estimate.convex import measured
    >>> fig, axes = of.plot.figure()
    >>> contraction(axes[0, 0], measured(True).contraction)
    """
    from otflow.papers.stability_estimate.convex import LAM, bound

    colours = dict(zip(sorted(c.t, reverse=True), (RED, GREEN, BLUE, INK), strict=True))
    for tau, colour in colours.items():
        t = np.linspace(0, c.t[tau][-1], 100)
        ax.plot(t, bound(tau, t), "--" if tau else "-", lw=1.0, color=colour)
        ax.plot(c.t[tau], c.shift[tau], "o", ms=4, color=colour,
                label=rf"JKO, $\tau$ = {tau:g}" if tau else "flow")  # fmt: skip
        ax.plot(c.t[tau], c.random[tau], "o", ms=4, mfc="none", mew=0.8, color=colour)
    ax.plot([], [], "--", color=FAINT, label=r"$(1+\lambda\tau)^{-k}$, $k=t/\tau$")
    ax.plot([], [], "-", color=INK, lw=1.0, label=r"$\exp(-\lambda t)$")
    ax.plot([], [], "o", ms=4, color=FAINT, label="shift along the weakest direction")
    ax.plot([], [], "o", ms=4, mfc="none", mew=0.8, color=FAINT, label="largest of random pairs")
    ax.set(yscale="log", xlabel="t", ylabel=r"$W_2(\mu_t,\nu_t)\,/\,W_2(\mu_0,\nu_0)$")
    ax.legend(loc="lower left", fontsize=7.5, frameon=False)
    ax.set_title(rf"Fokker-Planck equation on Gaussians, $\lambda$ = {LAM:g}", fontsize=9, color=INK)


def parting(ax: Any, p: Parting) -> None:
    """Ratios of distances against what is left of time.

    >>> from otflow.papers.stability_estimate.convex import measured
    >>> fig, axes = of.plot.figure()
    >>> parting(axes[0, 0], measured(True).parting)
    """
    from otflow.papers.stability_estimate.convex import exact_on_line

    fine = np.geomspace(p.left[-1], p.left[0], 100)
    exact = exact_on_line(fine)
    words = {
        "softmax": ("softmax, deviations: slope -3/2", BLUE),
        "mean": ("softmax, means: slope -1/2", GREEN),
        "L2": ("L2, deviations", PINK),
        "Sinkhorn": ("Sinkhorn, deviations", INK),
    }
    ax.plot(p.left, p.plane_exact, "-", lw=1.0, color=RED)
    ax.plot(p.left, p.plane, "s", ms=4, color=RED, label="softmax, covariances of the plane: slope -3/2")
    for name, (word, colour) in words.items():
        ax.plot(fine, exact[name], "-", lw=1.0, color=colour)
        ax.plot(p.left, p.observed[name], "o", ms=4, color=colour, label=word)
    ax.set(xscale="log", yscale="log", xlabel=r"$1-t/t^*$", ylabel=r"$W_2(\mu_t,\nu_t)\,/\,W_2(\mu_0,\nu_0)$")
    ax.invert_xaxis()
    ax.legend(loc="upper left", fontsize=7.5, frameon=False)
    ax.set_title(r"nearby Gaussians under attention, softmax blows up at $t^*$", fontsize=9, color=INK)
