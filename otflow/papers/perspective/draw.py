"""Draws the figures of the experiment `perspective`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import otflow as of
from otflow.papers import perspective
from otflow.papers.perspective.runs import SHOTS, Array, Diagrams

BLUE, RED = of.plot.COLOURS[:2]


def phases(diagrams: Diagrams) -> Any:
    """Probability over t and beta, with the closed form on top."""
    rows = math.ceil(len(diagrams) / 3)
    fig, axes = of.plot.figure(rows, 3, size=(10.4, 3.1 * rows))
    for k, (ax, (name, diagram)) in enumerate(zip(axes.flat, diagrams.items(), strict=True)):
        mesh = _diagram(ax, diagram)
        x, y = (
            "time $t$" * (k >= 3 * rows - 3),
            r"inverse temperature $\beta$" * (k % 3 == 0),
        )  # outer axes only
        kind, dimension = name.split(", ")
        of.plot.panel(ax, f"{kind}, ${dimension}$, $n = {diagram.n}$", x, y)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
    of.plot.panel(axes.flat[-2], legend=below)
    bar = fig.colorbar(mesh, ax=axes, shrink=0.8, label="share of pairs that have met")
    bar.ax.set_title(" ", fontsize=8)
    return fig


def _diagram(ax: Any, diagram: perspective.PhaseDiagram) -> Any:
    t, beta = diagram.t.numpy(), diagram.beta.numpy()
    options = {"cmap": of.plot.SEQUENCE, "vmin": 0, "vmax": 1, "shading": "nearest", "rasterized": True}
    mesh = ax.pcolormesh(t, beta, diagram.probability.numpy().T, **options)
    fine = np.linspace(beta[0], beta[-1], 200)
    time = perspective.collapse_time(fine, diagram.n, diagram.delta, normalised=diagram.normalised).numpy()
    seen = time <= t[-1]  # it must not widen the axes
    ax.plot(time[seen], fine[seen], color=RED, linewidth=1.6, label=r"closed form, $d=\infty$")
    ax.set(xlim=(t[0], t[-1]), ylim=(beta[0], beta[-1]))
    return mesh


def equal_angles(curves: dict[str, Array]) -> Any:
    """Closed forms as lines, tokens as points."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(8.6, 3.3))
    for k, (name, curve) in enumerate(curves.items()):
        kind, beta = name.split(", beta")
        ax, colour, (ts, gamma, least, _) = left if kind == "SA" else right, of.plot.COLOURS[k % 2], curve.T
        ax.semilogy(ts, 1 - gamma, color=colour, label=rf"closed form, $\beta{beta}$")
        ax.semilogy(ts[::4], 1 - least[::4], "o", color=colour, markersize=4, label=rf"tokens, $\beta{beta}$")
    for ax, title in ((left, "SA, with softmax: rate 2"), (right, r"USA, without: rate $2e^\beta$")):
        of.plot.panel(ax, title, "time $t$", legend="upper right")
    left.set_ylabel(r"$1-\gamma$ of 8 orthonormal tokens")
    return fig


def circles(rings: dict[float, of.Trajectory]) -> Any:
    """The tokens of one start at three times, for two temperatures."""
    fig, axes = of.plot.figure(len(rings), len(SHOTS), size=(7.4, 2.55 * len(rings)))
    turn = np.linspace(0, 2 * np.pi, 200)
    for row, (beta, traj) in zip(axes, rings.items(), strict=True):
        for ax, t, mu in zip(row, SHOTS, traj.measures[1:], strict=True):
            ax.plot(np.cos(turn), np.sin(turn), color=of.plot.FAINT, linewidth=1)
            ax.plot(*mu.coords[0][0].T, "o", color=BLUE, markersize=6, alpha=0.5, markeredgewidth=0)
            count = int(of.observables.cluster_count(mu, radius=0.1)[0])
            of.plot.panel(ax, rf"$\beta={beta:g}$, $t={t:g}$: {count} clusters", aspect="equal").axis("off")
    return fig


def globes(traj: of.Trajectory) -> Any:
    """Tokens on the sphere in three dimensions at four times."""
    times = (0.0, 2.0, 5.0, 15.0)
    fig, axes = of.plot.figure(1, len(times), size=(10.4, 2.9), spatial=True)
    for ax, t in zip(axes.flat, times, strict=True):
        mu = traj.measures[int((traj.ts - t).abs().argmin())]
        of.plot.panel(of.plot.particles(mu, ax=ax, color=BLUE, size=14), rf"$n=64$, $\beta=1$, $t={t:g}$")
    return fig


def random_weights(shares: dict[str, Array]) -> Any:
    """The share of pairs that have met against time, for each choice of weights."""
    fig, ((ax,),) = of.plot.figure(1, 1, size=(6.8, 3.6))
    for k, name in enumerate(name for name in shares if name != "t"):
        ax.plot(shares["t"], shares[name], color=of.plot.COLOURS[k], linestyle=("-", "--")[k % 2], label=name)
    title = "$n = 16$ tokens in dimension 32 with random weights"
    of.plot.panel(ax, title, "time $t$", "share of pairs that have met", legend="beside")
    return fig
