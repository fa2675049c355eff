"""The figures of the experiment `porous-medium`."""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow import closed_forms
from otflow.papers.porous_medium.runs import BarenblattRun, exact_energy, growth, radii
from otflow.plot.densities import density
from otflow.plot.style import at_time

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK = of.plot.INK
SHOWN = (0.0, 0.15, 0.4, 1.0)  # parts of a run, in steps
MEETING = (0.0, 0.12, 0.34, 0.56, 1.0)  # the same for two bumps, closer together about the meeting
TICKS = (-0.4, 0.0, 0.4)
LOGLOG: Any = {"xscale": "log", "yscale": "log"}
NARROW = {"columnspacing": 0.8, "handlelength": 1.2}  # legends of several columns


def _picks(found: BarenblattRun, parts: tuple[float, ...]) -> list[int]:
    return [round(part * (len(found.t) - 1)) for part in parts]


def _snapshot(ax: Any, found: BarenblattRun, k: int) -> None:
    """The density after k steps, with contours at fifths of its maximum."""
    mu, top = found.densities[k], float(found.densities[k].density.max())
    density(mu, ax=ax, levels=np.linspace(0.2, 0.8, 4) * top, color="white")
    of.plot.panel(ax, f"{at_time(found.t[k])},  max {top:.3g}", xticks=TICKS, yticks=TICKS)


def profiles(runs: dict[float, BarenblattRun]) -> Any:
    """A row for every m: four densities with the exact fronts in red, and cuts through the middle."""
    fig, axes = of.plot.figure(len(runs), len(SHOWN) + 1, size=(12.4, 2.75 * len(runs)))
    for (*row, last), (m, found) in zip(axes, runs.items(), strict=True):
        for ax, k in zip(row, _picks(found, SHOWN), strict=True):
            _snapshot(ax, found, k)
            _circles(ax, found, k)
        row[0].set_ylabel(f"$m = {m:g}$\n$x_2$")
        _cuts(last, found)
    return fig


def _circles(ax: Any, found: BarenblattRun, k: int) -> None:
    """The front of the exact scheme, and dotted that of the equation."""
    one, angle = closed_forms.barenblatt_radius(1.0, found.m, 2).item(), np.linspace(0, 2 * np.pi, 200)
    for R, style in ((radii(found)[k], "-"), (found.t[k] ** (1 / growth(found.m)), ":")):
        ax.plot(one * R * np.cos(angle), one * R * np.sin(angle), style, color=RED, lw=1.0)


def _cuts(ax: Any, found: BarenblattRun) -> None:
    picks, R, m = _picks(found, SHOWN), radii(found), found.m
    x, r = found.densities[0].axes[0].numpy(), np.linspace(-0.5, 0.5, 801)
    for k, colour in zip(picks, of.plot.SEQUENCE(np.linspace(0, 1, len(picks))), strict=True):
        middle = found.densities[k].density[len(x) // 2].numpy()
        ax.plot(r, closed_forms.barenblatt_profile(np.abs(r), R[k], m, 2), color=colour, lw=1.0)
        ax.plot(r, closed_forms.barenblatt(np.abs(r), found.t[k], m, 2), color=colour, lw=0.8, ls=":")
        ax.plot(x[::2], middle[::2], ".", color=colour, ms=3.5)
    for style, word in (("k.", "grid"), ("k-", "exact scheme"), ("k:", "equation")):
        ax.plot([], [], style, lw=1.0, ms=3.5, label=word)
    limits: Any = {"xlim": (-0.5, 0.5), "ylim": (0, 1.35 * float(found.densities[0].density.max()))}
    tight = {"loc": "upper center", "fontsize": 7, "ncols": 3, **NARROW}
    of.plot.panel(ax, "cut through the middle", "$x$", legend=tight, **limits)


def bumps(found: BarenblattRun) -> Any:
    """Five moments of the meeting, with the support outlined."""
    fig, (row,) = of.plot.figure(1, len(MEETING), size=(12.4, 2.9))
    for ax, k in zip(row, _picks(found, MEETING), strict=True):
        _snapshot(ax, found, k)
        x, y, rho = (a.numpy() for a in (*found.densities[k].axes, found.densities[k].density.T))
        ax.contour(x, y, rho, levels=[1e-3], colors=[RED], linewidths=1.0)
    return fig


def errors(
    runs: dict[float, BarenblattRun], bumps: BarenblattRun, line: dict[tuple[float, str], dict[float, float]]
) -> Any:
    """Mass, energy, and the orders on the line."""
    fig, ((left, middle, right),) = of.plot.figure(1, 3, size=(11.5, 3.5))
    _energies(left, runs)
    _balances(middle, {f"$m = {m:g}$": found for m, found in runs.items()} | {"two bumps": bumps})
    _orders(right, line)
    return fig


def _energies(ax: Any, runs: dict[float, BarenblattRun]) -> None:
    for (m, found), colour in zip(runs.items(), (BLUE, RED), strict=True):
        t, F0 = np.geomspace(found.t[0], found.t[-1], 200), found.energy[0]
        ax.plot(t / t[0], exact_energy(t ** (1 / growth(m)), m) / F0, ":", color=colour, lw=1.0)
        ax.plot(found.t / t[0], exact_energy(radii(found), m) / F0, "-", color=colour, lw=1.0)
        ax.plot(found.t / t[0], found.energy / F0, "o", color=colour, ms=3.5, label=f"$m = {m:g}$")
    for style, word in (("-", "exact scheme"), (":", "equation")):
        ax.plot([], [], style, color=INK, lw=1.0, label=word)
    title = "the energy falls as the exact scheme says"
    of.plot.panel(ax, title, r"$t/t_0$", r"$F(t)/F(t_0)$", legend="lower left", **LOGLOG)


def _balances(ax: Any, runs: dict[str, BarenblattRun]) -> None:
    """What is off by how much: mass, and the balance of the second moment."""
    for (name, found), colour in zip(runs.items(), (BLUE, RED, GREEN), strict=True):
        share = np.linspace(0, 1, len(found.t))
        ax.plot(share, np.maximum(found.lost, 1e-17), ".", ms=4, color=colour)
        ax.plot(share[1:], np.abs(found.virial), "o-", ms=3, lw=0.8, color=colour, label=name)
    for height, word in ((4e-15, "mass"), (0.05, r"$M_2' - M_2 + W_2^2 = 2d(m-1)\tau F$")):
        ax.text(0.02, height, word, fontsize=8, color=INK)
    title, words = "conservation of mass, and the virial theorem", ("part of the run", "relative error")
    of.plot.panel(ax, title, *words, legend="center right", yscale="log", ylim=(3e-18, 3.0))


def _orders(ax: Any, line: dict[tuple[float, str], dict[float, float]]) -> None:
    for ((m, name), found), marker in zip(line.items(), "ooss", strict=True):
        style = {"ms": 4, "lw": 1, "color": BLUE if name == "JKO" else GREEN}
        ax.plot(list(found), list(found.values()), f"{marker}-", label=f"{name}, $m = {m:g}$", **style)
    tau = np.array(list(found))
    ax.plot(tau, 0.06 * tau, ":", color=INK, lw=1)
    ax.plot(tau, 0.016 * tau**2, ":", color=INK, lw=1, label="slopes 1 and 2")
    title = "on the line, extrapolated in the mesh"
    tight = {"loc": "upper left", "ncols": 2, "columnspacing": 0.8}
    scales: Any = {**LOGLOG, "xticks": tau, "ylim": (1e-6, 0.3)}
    of.plot.panel(ax, title, r"$\tau$", "$W_2$ to the equation", legend=tight, **scales)
