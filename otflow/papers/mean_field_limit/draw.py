"""The pictures of the experiment `mean-field-limit`: rates, factors of growth, and the laws on the line."""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow.papers.mean_field_limit.runs import SETTINGS, TIMES, Run, SamplingRates, Setting
from otflow.reproduce.fits import slope

Found = dict[str, dict[str, SamplingRates]]  # by kind of attention, and by setting


def rates(found: Found) -> Any:
    """Distances against the number of tokens: attentions in columns, settings in rows.

    >>> import numpy as np
    >>> from otflow.papers.mean_field_limit.draw import SETTINGS, rates
    >>> from otflow.papers.mean_field_limit.runs import SamplingRates
    >>> one = SamplingRates(np.array([16, 32]), np.ones((2, 3)), np.ones(2), np.ones(2), 1.0)
    >>> len(rates({"softmax": {setting.name: one for setting in SETTINGS}}).axes)
    3
    """
    fig, axes = of.plot.figure(len(SETTINGS), len(found), size=(4.0 * len(found), 8.4))
    for column, (name, some) in zip(axes.T, found.items(), strict=True):
        for ax, setting in zip(column, SETTINGS, strict=True):
            _falling(ax, some[setting.name], setting)
            of.plot.panel(ax, f"{name}: {setting.name}")
    for ax, word in zip(axes[:, 0], ("to the limit", "to the limit", "of two clouds"), strict=True):
        of.plot.panel(ax, y=f"$W_2$ {word}")
    for ax in axes[-1]:
        of.plot.panel(ax, x="number of tokens $n$")
    return fig


def _falling(ax: Any, one: SamplingRates, setting: Setting) -> None:
    """Medians at all times, and the slope that theory gives as a guide for the eye below them."""
    for t, values, colour in zip(TIMES, one.median.T, of.plot.COLOURS, strict=False):
        label = f"$t = {t:g}$: slope {slope(one.n, values):.2f}"
        ax.loglog(one.n, values, "o-", ms=4, color=colour, label=label)
    guide = 0.75 * one.median[0, 0] * (one.n / one.n[0]) ** setting.exponent
    ax.plot(one.n, guide, "--", lw=1, color=of.plot.INK, label=f"slope {setting.exponent:.2f}")
    low, high = 0.35 * guide.min(), 1.2 * one.median.max()  # room for the legend below
    ticks = [a * 10.0**b for b in range(-4, 1) for a in (1, 2, 5) if low < a * 10.0**b < high]
    of.plot.panel(ax, legend="lower left", xticks=one.n, yticks=ticks, ylim=(low, high))


def factors(found: Found) -> Any:
    """By how much the flow multiplies distances, for small and large clouds.

    >>> import numpy as np
    >>> from otflow.papers.mean_field_limit.draw import SETTINGS, factors
    >>> from otflow.papers.mean_field_limit.runs import SamplingRates
    >>> one = SamplingRates(np.array([16, 32]), np.ones((2, 3)), np.ones(2), np.ones(2), 1.0)
    >>> len(factors({"softmax": {setting.name: one for setting in SETTINGS}}).axes)
    3
    """
    fig, (axes,) = of.plot.figure(1, len(SETTINGS), size=(11.0, 3.5))
    for ax, setting in zip(axes, SETTINGS, strict=True):
        for (name, some), colour in zip(found.items(), of.plot.COLOURS, strict=False):
            one = some[setting.name]
            bound = f"$C = e^{{{one.log_C:.2g}}}$" if one.log_C < 1e3 else "$C$ overflows"
            ax.semilogx(one.n, one.ratio, "o-", ms=4, color=colour, label=f"{name} ({bound})")
            ax.plot(one.n, one.worst, ":", lw=1, color=colour)
        room = (0, 1.9 * ax.get_ylim()[1])  # for the legend
        of.plot.panel(ax, setting.name, "number of tokens $n$", legend="upper left", xticks=one.n, ylim=room)
    of.plot.panel(axes[0], y="$W_2(1)\\,/\\,W_2(0)$: median, largest (dotted)")
    return fig


def laws(samples: dict[str, tuple[Run, Run]]) -> Any:
    """Distribution functions of the limit on the line and of one cloud.

    >>> from otflow.papers.mean_field_limit.draw import laws
    >>> from otflow.papers.mean_field_limit.runs import evolve, on_line, quantiles
    >>> flow = evolve(quantiles(3), on_line()["sigmoid"])
    >>> len(laws({"sigmoid": (flow, flow)}).axes)
    1
    """
    fig, (axes,) = of.plot.figure(1, len(samples), size=(3.7 * len(samples), 3.3))
    for ax, (name, (limit, cloud)) in zip(axes, samples.items(), strict=True):
        for run, style in ((limit, {"lw": 1.4}), (cloud, {"lw": 0.8, "alpha": 0.8})):
            for t, mu, colour in zip(TIMES, run, of.plot.COLOURS, strict=False):
                x = np.sort(mu.coords[0].flatten().numpy())
                label = f"$t = {t:g}$" if run is limit else None
                ax.step(
                    x, np.arange(1, len(x) + 1) / len(x), where="post", color=colour, label=label, **style
                )
        of.plot.panel(ax, f"{name}: the limit, and {len(x)} tokens", "$x$", ylim=(0, 1))
    of.plot.panel(axes[0], y="share of tokens up to $x$", legend="upper left")
    return fig
