"""The figures of the experiment `mean-field-limit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow.reproduce.fits import slope

if TYPE_CHECKING:
    from otflow.papers.mean_field_limit.runs import Sample, SamplingRates, Setting

INK = of.plot.INK
Found = dict[str, dict[str, "SamplingRates"]]


def rates(found: Found) -> Any:
    """Distances against the number of tokens: attentions in columns, settings in rows.

    >>> from otflow.papers.mean_field_limit.runs import SETTINGS, SamplingRates
    >>> one = SamplingRates(np.array([16, 32]), np.ones((2, 3)), np.ones(2), np.ones(2), 1.0)
    >>> len(rates({"softmax": {setting.name: one for setting in SETTINGS}}).axes)
    3
    """
    from otflow.papers.mean_field_limit.runs import SETTINGS

    fig, axes = of.plot.figure(len(SETTINGS), len(found), size=(3.5 * len(found), 8.4))
    for column, (name, some) in zip(axes.T, found.items(), strict=True):
        for ax, setting in zip(column, SETTINGS, strict=True):
            _panel(ax, some[setting.name], setting)
            ax.set_title(f"{name}: {setting.name}", fontsize=9, color=INK)
    for ax, word in zip(axes[:, 0], ("to the limit", "to the limit", "of two clouds"), strict=True):
        ax.set_ylabel(f"$W_2$ {word}")
    for ax in axes[-1]:
        ax.set_xlabel("number of tokens n")
    return fig


def _panel(ax: Any, one: SamplingRates, setting: Setting) -> None:
    from otflow.papers.mean_field_limit.runs import TIMES

    for t, values, colour in zip(TIMES, one.median.T, of.plot.COLOURS, strict=False):
        label = f"t = {t:g}: slope {slope(one.n, values):.2f}"
        ax.plot(one.n, values, "o-", ms=4, color=colour, label=label)
    guide = 0.75 * one.median[0, 0] * (one.n / one.n[0]) ** setting.exponent
    ax.plot(one.n, guide, "--", lw=1, color=INK, label=f"slope {setting.exponent:.2f}")
    ax.set(xscale="log", yscale="log")
    ax.minorticks_off()
    ax.set_xticks(one.n, [f"{k:g}" for k in one.n])
    low, high = 0.35 * guide.min(), 1.2 * one.median.max()
    ticks = [a * 10.0**b for b in range(-4, 1) for a in (1, 2, 5) if low < a * 10.0**b < high]
    ax.set_yticks(ticks, [f"{k:g}" for k in ticks])
    ax.set_ylim(low, high)
    ax.legend(loc="lower left", frameon=False, fontsize=7.5)


def factors(found: Found) -> Any:
    """By how much the flow multiplies distances, for small and large clouds.

    >>> from otflow.papers.mean_field_limit.runs import SETTINGS, SamplingRates
    >>> one = SamplingRates(np.array([16, 32]), np.ones((2, 3)), np.ones(2), np.ones(2), 1.0)
    >>> len(factors({"softmax": {setting.name: one for setting in SETTINGS}}).axes)
    3
    """
    from otflow.papers.mean_field_limit.runs import SETTINGS

    fig, axes = of.plot.figure(1, len(SETTINGS), size=(11.0, 3.5))
    for ax, setting in zip(axes[0], SETTINGS, strict=True):
        for (name, some), colour in zip(found.items(), of.plot.COLOURS, strict=False):
            one = some[setting.name]
            bound = f"$C = e^{{{one.log_C:.2g}}}$" if one.log_C < 1e3 else "$C$ overflows"
            ax.plot(one.n, one.ratio, "o-", ms=4, color=colour, label=f"{name} ({bound})")
            ax.plot(one.n, one.worst, ":", lw=1, color=colour)
        ax.set(xscale="log", xlabel="number of tokens n", ylim=(0, 1.9 * ax.get_ylim()[1]))
        ax.minorticks_off()
        ax.set_xticks(one.n, [f"{k:g}" for k in one.n])
        ax.set_title(setting.name, fontsize=9, color=INK)
        ax.legend(loc="upper left", frameon=False)
    axes[0, 0].set_ylabel("$W_2(1)\\,/\\,W_2(0)$: median, largest (dotted)")
    return fig


def laws(samples: dict[str, Sample]) -> Any:
    """Distribution functions of the limit on the line and of one cloud.

    >>> from otflow.papers.mean_field_limit.runs import Sample, evolve, on_line, quantiles
    >>> flow = evolve(quantiles(3), on_line()["sigmoid"])
    >>> len(laws({"sigmoid": Sample(flow, flow)}).axes)
    1
    """
    from otflow.papers.mean_field_limit.runs import TIMES

    fig, axes = of.plot.figure(1, len(samples), size=(3.7 * len(samples), 3.3))
    for ax, (name, sample) in zip(axes[0], samples.items(), strict=True):
        for t, limit, cloud, colour in zip(TIMES, *sample, of.plot.COLOURS, strict=False):
            _distribution(ax, limit, color=colour, lw=1.4, label=f"t = {t:g}")
            _distribution(ax, cloud, color=colour, lw=0.8, alpha=0.8)
        ax.set(xlabel="x", ylim=(0, 1))
        ax.set_title(f"{name}: the limit, and {len(cloud.coords[0])} tokens", fontsize=9, color=INK)
    axes[0, 0].set_ylabel("share of tokens up to x")
    axes[0, 0].legend(loc="upper left", frameon=False)
    return fig


def _distribution(ax: Any, mu: of.Measure, **style: Any) -> None:
    x = np.sort(mu.coords[0].flatten().numpy())
    ax.step(x, np.arange(1, len(x) + 1) / len(x), where="post", **style)
