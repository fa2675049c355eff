"""Quantities against time, members or rank."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from otflow.base import checks
from otflow.dynamics.trajectory import Trajectory
from otflow.plot.style import COLOURS, INK, STYLE, array, canvas


def energy(traj: Trajectory, *names: str, ax: Axes | None = None, log: bool = False) -> Axes:
    """Observed quantities against time: those named, or all of them; one line per member of a batch.

    Args:
        traj: a trajectory from ``flow(..., observe={...})``.
        names: keys of ``traj.observed``.
        log: logarithmic vertical axis, for which every value must be positive.

    >>> from otflow.plot import energy
    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> traj = of.flow(of.Particles([[1.0]]), pull, of.RK4(), t1=1.0, dt=0.25, observe={"F": pull.energy})
    >>> _, axes = of.plot.figure()
    >>> energy(traj, "F", ax=axes[0, 0], log=True).get_ylabel()
    'F'
    """
    curves = {name: _curves(traj, name, log) for name in names or tuple(traj.observed)}
    if not curves:
        checks.fail("traj.observed", {}, "nothing was observed", 'pass flow(..., observe={"F": energy})')
    ax = canvas(ax)
    with mpl.rc_context(STYLE):
        for name, values in curves.items():
            alpha = max(0.25, values.shape[1] ** -0.5)
            first, *rest = ax.plot(array(traj.ts), values, label=name, alpha=alpha)
            for line in rest:
                line.set(color=first.get_color(), label="_member")
        ax.set_xlabel("$t$")
        if log:
            ax.set_yscale("log")
        if len(curves) == 1:
            ax.set_ylabel(next(iter(curves)))
        else:
            ax.legend()
    return ax


def ranks(values: Any, *, d: int, ax: Axes | None = None, width: float = 0.8) -> Axes:
    """How many matrices have rank 0, 1, ..., d, as bars with the counts on top.

    Args:
        values: the ranks, whole numbers from 0 to d; or a mapping name -> ranks, one series of bars each.
        d: the highest rank that is possible.
        width: of all bars of one rank together.

    >>> from otflow.plot import ranks
    >>> import otflow as of
    >>> _, axes = of.plot.figure()
    >>> ax = ranks({"exact": [2, 2, 2], "eigenvalues > 0.1": [1, 2, 2]}, d=3, ax=axes[0, 0])
    >>> [int(bar.get_height()) for bar in ax.containers[1]]
    [0, 1, 2, 0]
    """
    d = checks.count(d, "d")
    series = _series(values)
    counts = {name: _counts(name, found, d) for name, found in series.items()}
    ax = canvas(ax)
    share = width / max(1, len(counts))
    with mpl.rc_context(STYLE):
        for i, (name, count) in enumerate(counts.items()):
            x = np.arange(d + 1) + (i - (len(counts) - 1) / 2) * share
            bars = ax.bar(x, count, width=0.94 * share, label=name, color=COLOURS[i % len(COLOURS)])
            ax.bar_label(bars, [f"{n}" if n else "" for n in count], padding=1, fontsize=7, color=INK)
        ax.set(xlabel="rank", ylabel="count", xticks=range(d + 1))
        ax.margins(y=0.12)
        if len(counts) > 1:
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(counts))
    return ax


def spectra(
    eigenvalues: Any, *, t: Any = None, ax: Axes | None = None, floor: float = 1e-16, size: float = 9.0
) -> Axes:
    """Eigenvalues on a logarithmic axis, against the number of the member, or against time.

    The largest of every member has the first colour, the next one the second, and so on, so that a gap
    between two of them is a band without dots.

    Args:
        eigenvalues: (N, d); with ``t`` (T, d) or (T, N, d).
        t: times (T,), for lines instead of dots.
        floor: smaller ones, among them zeros and negative rounding errors, are drawn here.
        size: area of a dot, in points squared.

    >>> from otflow.plot import spectra
    >>> import otflow as of
    >>> _, axes = of.plot.figure()
    >>> spectra([[2.0, 1e-9], [1.0, 0.0]], ax=axes[0, 0]).get_yscale()
    'log'
    """
    values = array(checks.tensor(eigenvalues, "eigenvalues"))
    need = 2 if t is None else 3
    if values.ndim == 2 and need == 3:
        values = values[:, None, :]
    if values.ndim != need:
        checks.fail(
            "eigenvalues.shape", values.shape, "members x d are needed", "with times, T x members x d"
        )
    values = np.sort(values, -1)[..., ::-1].clip(min=checks.positive(floor, "floor"))
    ax = canvas(ax)
    with mpl.rc_context(STYLE):
        for i, row in enumerate(np.moveaxis(values, -1, 0)):
            colour = COLOURS[i % len(COLOURS)]
            if t is None:
                ax.scatter(np.arange(len(row)), row, s=size, color=colour, linewidths=0)
            else:
                alpha = max(0.25, row.shape[1] ** -0.5)
                ax.plot(array(checks.tensor(t, "t")), row, color=colour, linewidth=0.9, alpha=alpha)
        ax.set(xlabel="member" if t is None else "$t$", ylabel="eigenvalues", yscale="log")
    return ax


@singledispatch
def _series(values: Any) -> dict[str, Any]:
    """Names and arrays; a series of its own needs no name."""
    return {"": values}


@_series.register(Mapping)
def _(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(values)


def _counts(name: str, found: Any, d: int) -> np.ndarray:
    """How often each of 0, ..., d occurs."""
    values = array(checks.tensor(found, name or "values")).reshape(-1)
    if not np.isin(values, np.arange(d + 1)).all():
        wrong = values[~np.isin(values, np.arange(d + 1))][0]
        checks.fail(name or "values", wrong, f"ranks are whole numbers from 0 to {d}", "pass the ranks, or d")
    return np.bincount(values.astype(int), minlength=d + 1)


def _curves(traj: Trajectory, name: str, log: bool) -> np.ndarray:
    """One observable as columns (T, K)."""
    if name not in traj.observed:
        known = ", ".join(map(repr, traj.observed)) or "nothing"
        checks.fail("name", repr(name), f"this run observed {known}", "add it to observe={...} of flow")
    values = array(traj.observed[name]).reshape(len(traj.ts), -1)
    if log and not (values > 0).all():
        remedy = "use log=False, or observe the distance to the limit"
        checks.fail(f"min({name})", values.min(), "a logarithmic axis needs values > 0", remedy)
    return values
