"""Stability estimates: the ladder of what happens, the worst that was found, and what is certain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import SymmetricalLogLocator
from torch import Tensor

from otflow.base import checks
from otflow.plot.style import COLOURS, FAINT, INK, STYLE, array, canvas

if TYPE_CHECKING:
    from otflow.stability import Ladder


def ladder(found: Ladder, *, ax: Axes | None = None) -> Axes:
    """log of d(mu_t, nu_t) / d(mu_0, nu_0) against time, with its bounds.

    The vertical axis is linear near 0 and logarithmic far from it, so that what happens and a bound that is
    the exponential of a million fit into one picture.

    >>> from otflow.plot import ladder
    >>> import otflow as of
    >>> mu0 = of.Particles([[1.0], [-0.5]])
    >>> _, axes = of.plot.figure()
    >>> found = of.ladder(mu0, of.SoftmaxAttention([[1.0]], [[1.0]], [[1.0]]), t1=1.0, steps=10)
    >>> ladder(found, ax=axes[0, 0]).get_yscale()
    'asinh'
    """
    from otflow.stability import Ladder  # a picture of a cloud needs no stability

    checks.instance(found, Ladder, "found")
    if found.worst.ndim > 1:
        checks.fail(
            "found", f"a batch of {tuple(found.worst.shape[1:])}", "one ladder is drawn", "draw each member"
        )
    ax, t = canvas(ax), array(found.ts)
    bounds = {"a posteriori": (found.a_posteriori, COLOURS[2]), "a priori": (found.a_priori, COLOURS[0])}
    lines = {name: (bound.log_C, colour) for name, (bound, colour) in bounds.items() if bound is not None}
    lines = {"adversary": (found.worst, COLOURS[1])} | lines
    with mpl.rc_context(STYLE):
        for i, log in enumerate(found.observed.values()):
            ax.plot(t, array(log), color=FAINT, lw=1.0, label="_" if i else "observed")
        for name, (log, colour) in lines.items():
            values = _drawn(log)
            ax.plot(t, values, color=colour, label=f"{name}{_until(t, values)}")
        ax.axhline(0.0, color=INK, lw=0.5, zorder=0)
        ax.set_yscale("asinh", linear_width=0.1)
        ax.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=0.1))  # no ticks next to 0
        ax.set_ylim(
            bottom=1.2 * min(-0.05, *(float(log.min()) for log in (*found.observed.values(), found.worst)))
        )
        ax.set(
            xlabel="$t$", ylabel=rf"$\log\ d_{{{found.p:g}}}(\mu_t,\nu_t)\,/\,d_{{{found.p:g}}}(\mu_0,\nu_0)$"
        )
        ax.legend()
    return ax


def _until(t: np.ndarray, values: np.ndarray) -> str:
    """From when on nothing is drawn, if so."""
    gone = np.isnan(values)
    return f" (infinite after t = {t[~gone][-1]:.3g})" if gone.any() else ""


def _drawn(log: Tensor) -> np.ndarray:
    """What is infinite is left out."""
    values = array(log)
    return np.where(np.isfinite(values), values, np.nan)
