"""The figure of the experiment `jko-ou-benchmark`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import otflow as of
from otflow.papers.ornstein_uhlenbeck.runs import PUBLISHED, TAU, TAUS, Divergences, Errors, late_order

BLUE, RED, GREEN = of.plot.COLOURS[:3]
LOGLOG: dict[str, Any] = {"xscale": "log", "yscale": "log"}


def figure(found: Divergences, errors: Errors) -> Any:
    """Errors against the dimension next to the published ones, and against tau."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.6, 3.9))
    _dimensions(left, found)
    _orders(right, errors)
    return fig


def _dimensions(ax: Any, found: Divergences) -> None:
    """Means with bands from the least to the largest of the targets."""
    ax.plot(list(PUBLISHED), list(PUBLISHED.values()), "s-", ms=4, color=RED, label="JKO-ICNN (published)")
    labels = ("exact JKO", "exact JKO, extrapolated")
    for each, colour, label in zip(found.values(), (BLUE, GREEN), labels, strict=True):
        values = torch.stack(list(each.values()))
        ax.plot(list(each), values.mean(-1), "o-", ms=4, color=colour, label=label)
        ax.fill_between(list(each), values.amin(-1), values.amax(-1), color=colour, alpha=0.15, linewidth=0)
    ticks = [d for d in (1, 2, 4, 8, 12, 20, 32, 64) if d in {*found["JKO"], *PUBLISHED}]
    title = rf"15 targets, step $\tau={TAU:g}$: means, and from least to largest"
    words = title, "dimension", r"$KL(p|q)+KL(q|p)$ at $t=1/2$"
    of.plot.panel(ax, *words, legend="lower right", xticks=ticks, ylim=(1e-9, 1.0), **LOGLOG)


def _orders(ax: Any, errors: Errors) -> None:
    tau = np.array(TAUS)
    for (name, each), colour, power in zip(errors.items(), (BLUE, GREEN), (1, 2), strict=True):
        for (d, found), marker in zip(each.items(), "osv", strict=False):
            label = f"{name}, $d = {d}$: order {late_order(found):.2f}"
            ax.plot(tau, list(found.values()), f"{marker}-", ms=4, lw=1.0, color=colour, label=label)
        low = min(found[TAUS[0]] for found in each.values())
        ax.plot(tau, 0.5 * low * (tau / tau[0]) ** power, ":", lw=1.2, color=of.plot.INK)
    # The legend has the lower half to itself.
    bottom = 1e-3 * min(min(found.values()) for found in errors["extrapolated"].values())
    words = "dotted: slopes 1 and 2", r"step $\tau$", "error of mean and covariance at $t = 1/2$"
    tight = {"loc": "lower right", "fontsize": 7}
    of.plot.panel(ax, *words, legend=tight, xticks=tau, ylim=(bottom, None), **LOGLOG)
