"""The figures of the experiment `porous-medium`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow import closed_forms
from otflow.plot.densities import density

if TYPE_CHECKING:
    from otflow.papers.porous_medium.runs import BarenblattRun

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT
SHOWN = (0.0, 0.15, 0.4, 1.0)  # parts of a run, in steps
TICKS = (-0.4, 0.0, 0.4)


def profiles(runs: dict[float, BarenblattRun]) -> Any:
    """A row for every m: four densities with the exact fronts in red, and cuts through the middle."""
    fig, axes = of.plot.figure(len(runs), len(SHOWN) + 1, size=(12.4, 2.75 * len(runs)))
    for row, (m, found) in zip(axes, runs.items(), strict=True):
        picks = _picks(found)
        for ax, k in zip(row, picks, strict=False):
            _snapshot(ax, found, k)
            _circles(ax, found, k)
        row[0].set_ylabel(f"m = {m:g}", fontsize=10)
        _cuts(row[-1], found, picks)
    return fig


def _picks(found: BarenblattRun) -> list[int]:
    return [round(part * (len(found.t) - 1)) for part in SHOWN]


def _snapshot(ax: Any, found: BarenblattRun, k: int) -> None:
    mu = found.densities[k]
    density(mu, ax=ax, levels=np.linspace(0.2, 0.8, 4) * float(mu.density.max()), color="white")
    ax.set(xticks=TICKS, yticks=TICKS)
    ax.set_title(f"t = {found.t[k]:.3g},  max {float(mu.density.max()):.3g}", fontsize=8.5, color=INK)


def _circles(ax: Any, found: BarenblattRun, k: int) -> None:
    """The front of the exact scheme, and dotted that of the equation."""
    from otflow.papers.porous_medium.runs import growth, radii

    one, angle = closed_forms.barenblatt_radius(1.0, found.m, 2).item(), np.linspace(0, 2 * np.pi, 200)
    for R, style in ((radii(found)[k], "-"), (found.t[k] ** (1 / growth(found.m)), ":")):
        ax.plot(one * R * np.cos(angle), one * R * np.sin(angle), style, color=RED, lw=1.0)


def _cuts(ax: Any, found: BarenblattRun, picks: list[int]) -> None:
    from otflow.papers.porous_medium.runs import radii

    R, m = radii(found), found.m
    x = found.densities[0].axes[0].numpy()
    r = np.linspace(-0.5, 0.5, 801)
    for k, colour in zip(picks, of.plot.SEQUENCE(np.linspace(0, 1, len(picks))), strict=True):
        ax.plot(r, closed_forms.barenblatt_profile(np.abs(r), R[k], m, 2), color=colour, lw=1.0)
        ax.plot(r, closed_forms.barenblatt(np.abs(r), found.t[k], m, 2), color=colour, lw=0.8, ls=":")
        middle = found.densities[k].density[len(x) // 2].numpy()
        ax.plot(x[::2], middle[::2], ".", color=colour, ms=3.5)
    for style, word in (("k.", "grid"), ("k-", "exact scheme"), ("k:", "equation")):
        ax.plot([], [], style, lw=1.0, ms=3.5, label=word)
    ax.set(xlabel="x", xlim=(-0.5, 0.5), ylim=(0, 1.35 * float(found.densities[0].density.max())))
    ax.legend(loc="upper center", fontsize=7, ncols=3, columnspacing=0.8, handlelength=1.2, frameon=False)
    ax.set_title("cut through the middle", fontsize=8.5, color=INK)


def bumps(found: BarenblattRun) -> Any:
    """Five moments of the meeting, with the support outlined."""
    picks = [round(part * (len(found.t) - 1)) for part in (0.0, 0.12, 0.34, 0.56, 1.0)]
    fig, axes = of.plot.figure(1, len(picks), size=(12.4, 2.9))
    for ax, k in zip(axes[0], picks, strict=True):
        mu = found.densities[k]
        levels = np.linspace(0.2, 0.8, 4) * float(mu.density.max())
        density(mu, ax=ax, levels=levels, color="white")
        ax.contour(
            *(a.numpy() for a in mu.axes), mu.density.T.numpy(), levels=[1e-3], colors=[RED], linewidths=1.0
        )
        ax.set(xticks=TICKS, yticks=TICKS)
        ax.set_title(f"t = {found.t[k]:.3g},  max {float(mu.density.max()):.3g}", fontsize=8.5, color=INK)
    return fig


def errors(
    runs: dict[float, BarenblattRun], bumps: BarenblattRun, line: dict[tuple[float, str], dict[float, float]]
) -> Any:
    """Mass, energy, and the orders on the line."""
    fig, axes = of.plot.figure(1, 3, size=(11.5, 3.5))
    _energies(axes[0, 0], runs)
    _balances(axes[0, 1], runs, bumps)
    _orders(axes[0, 2], line)
    return fig


def _energies(ax: Any, runs: dict[float, BarenblattRun]) -> None:
    from otflow.papers.porous_medium.runs import exact_energy, growth, radii

    for (m, found), colour in zip(runs.items(), (BLUE, RED), strict=True):
        t = np.geomspace(found.t[0], found.t[-1], 200)
        F0 = found.energy[0]
        ax.plot(t / t[0], exact_energy(t ** (1 / growth(m)), m) / F0, ":", color=colour, lw=1.0)
        ax.plot(found.t / t[0], exact_energy(radii(found), m) / F0, "-", color=colour, lw=1.0)
        ax.plot(found.t / t[0], found.energy / F0, "o", color=colour, ms=3.5, label=f"m = {m:g}")
    for style, word in (("-", "exact scheme"), (":", "equation")):
        ax.plot([], [], style, color=INK, lw=1.0, label=word)
    ax.set(xscale="log", yscale="log", xlabel=r"$t/t_0$", ylabel=r"$F(t)/F(t_0)$")
    ax.legend(loc="lower left", fontsize=8, frameon=False)
    ax.set_title("the energy falls as the exact scheme says", fontsize=9, color=INK)


def _balances(ax: Any, runs: dict[float, BarenblattRun], bumps: BarenblattRun) -> None:
    """What is off by how much: mass, and the balance of the second moment."""
    named = {f"m = {m:g}": found for m, found in runs.items()} | {"two bumps": bumps}
    for (name, found), colour in zip(named.items(), (BLUE, RED, GREEN), strict=True):
        share = np.linspace(0, 1, len(found.t))
        mass = [abs(float(mu.density.sum()) * mu.cell - 1) for mu in found.densities]
        ax.plot(share, np.maximum(mass, 1e-17), ".", ms=4, color=colour)
        ax.plot(share[1:], np.abs(found.virial), "o-", ms=3, lw=0.8, color=colour, label=name)
    ax.set(yscale="log", ylim=(3e-18, 3.0), xlabel="part of the run", ylabel="relative error")
    ax.text(0.02, 4e-15, "mass", fontsize=8, color=INK)
    ax.text(0.02, 0.05, r"$M_2' - M_2 + W_2^2 = 2d(m-1)\tau F$", fontsize=8, color=INK)
    ax.legend(loc="center right", fontsize=8, frameon=False)
    ax.set_title("conservation of mass, and the virial theorem", fontsize=9, color=INK)


def _orders(ax: Any, line: dict[tuple[float, str], dict[float, float]]) -> None:
    for ((m, name), found), marker in zip(line.items(), "ooss", strict=True):
        colour = BLUE if name == "JKO" else GREEN
        ax.plot(
            list(found),
            list(found.values()),
            f"{marker}-",
            ms=4,
            lw=1,
            color=colour,
            label=f"{name}, m = {m:g}",
        )
    tau = np.array(list(found))
    ax.plot(tau, 0.06 * tau, ":", color=INK, lw=1)
    ax.plot(tau, 0.016 * tau**2, ":", color=INK, lw=1, label="slopes 1 and 2")
    ax.set(xscale="log", yscale="log", xlabel=r"$\tau$", ylabel="W2 to the equation")
    ax.minorticks_off()
    ax.set_xticks(tau, [f"{t:g}" for t in tau])
    ax.set_ylim(1e-6, 0.05)
    ax.legend(loc="upper left", fontsize=7.5, ncols=2, columnspacing=0.8, frameon=False)
    ax.set_title("on the line, extrapolated in the mesh", fontsize=9, color=INK)
