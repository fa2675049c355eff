"""The figure of the experiment `stability`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import otflow as of


def ladders(found: Mapping[str, of.Ladder]) -> Any:
    """One panel for each kind of attention, all on one scale.

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
        ax.set_ylim(1.2 * min(low, -0.05), 3 * top)
        ax.set_title(name, fontsize=9, color=of.plot.INK)
        if k:
            ax.get_legend().remove()
            ax.set_ylabel("")
    for ax in axes.flat[len(found) :]:
        ax.remove()
    return fig
