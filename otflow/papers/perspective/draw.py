"""The figures of the experiment `perspective`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow.papers import perspective
from otflow.papers.perspective.runs import SHOTS

if TYPE_CHECKING:
    from otflow.papers.perspective.runs import DiagramCurve, Diagrams

BLUE, RED = of.plot.COLOURS[:2]
INK, FAINT = of.plot.INK, of.plot.FAINT


def phases(diagrams: Diagrams) -> Any:
    """Probability over t and beta, with the closed form on top."""
    rows = math.ceil(len(diagrams) / 3)
    fig, axes = of.plot.figure(rows, 3, size=(10.4, 3.1 * rows))
    for ax, (name, diagram) in zip(axes.flat, diagrams.items(), strict=True):
        mesh = _diagram(ax, diagram)
        ax.set_title(f"{name}, n = {diagram.n}")
    for ax in axes[:, 0]:
        ax.set_ylabel("inverse temperature β")
    for ax in axes[-1]:
        ax.set_xlabel("time t")
    axes.flat[1].legend(loc="lower right", fontsize=7.5, frameon=False)
    bar = fig.colorbar(mesh, ax=axes, shrink=0.8)
    bar.set_label("probability that two tokens have met")
    bar.ax.set_title("P", fontsize=8)
    return fig


def _diagram(ax: Any, diagram: perspective.PhaseDiagram) -> Any:
    t, beta = diagram.t.numpy(), diagram.beta.numpy()
    options = {"cmap": of.plot.SEQUENCE, "vmin": 0, "vmax": 1, "shading": "nearest", "rasterized": True}
    mesh = ax.pcolormesh(t, beta, diagram.probability.numpy().T, **options)
    fine = np.linspace(beta[0], beta[-1], 200)
    time = perspective.collapse_time(fine, diagram.n, diagram.delta, normalised=diagram.normalised)
    seen = time <= t[-1]
    ax.plot(time[seen].numpy(), fine[seen.numpy()], color=RED, linewidth=1.6, label="closed form, d = ∞")
    ax.set(xlim=(t[0], t[-1]), ylim=(beta[0], beta[-1]))
    return mesh


def equal_angles(curves: dict[str, DiagramCurve]) -> Any:
    """Closed forms as lines, tokens as points."""
    fig, axes = of.plot.figure(1, 2, size=(8.6, 3.3))
    for ax, kind in zip(axes.flat, ("SA", "USA"), strict=True):
        chosen = {name: c for name, c in curves.items() if name.startswith(f"{kind},")}
        for colour, (name, c) in zip(of.plot.COLOURS, chosen.items(), strict=False):
            label = name.replace(f"{kind}, beta", "β")
            ax.semilogy(c.ts, 1 - c.closed, color=colour, label=f"closed form, {label}")
            ax.semilogy(
                c.ts[::4], 1 - c.followed[::4, 0], "o", color=colour, markersize=4, label=f"tokens, {label}"
            )
        title = "with softmax: rate 2" if kind == "SA" else "without: rate 2 exp(β)"
        ax.set(xlabel="time t", title=f"{kind}, {title}")
        ax.legend(fontsize=7.5, loc="upper right", frameon=False)
    axes[0, 0].set_ylabel("1 - γ of 8 orthonormal tokens")
    return fig


def circles(rings: dict[float, of.Trajectory]) -> Any:
    """The tokens of one start at three times, for two temperatures."""
    fig, axes = of.plot.figure(len(rings), len(SHOTS), size=(7.4, 2.55 * len(rings)))
    turn = np.linspace(0, 2 * np.pi, 200)
    for row, (beta, traj) in zip(axes, rings.items(), strict=True):
        for ax, t, mu in zip(row, SHOTS, traj.measures[1:], strict=True):
            x = mu.coords[0][0].numpy()
            ax.plot(np.cos(turn), np.sin(turn), color=FAINT, linewidth=1)
            ax.plot(x[:, 0], x[:, 1], "o", color=BLUE, markersize=6, alpha=0.5, markeredgewidth=0)
            count = int(of.observables.cluster_count(mu, tol=0.1)[0])
            ax.set(title=f"β = {beta:g}, t = {t:g}: {count} clusters", xticks=[], yticks=[], aspect="equal")
            ax.axis("off")
    return fig


def globes(traj: of.Trajectory) -> Any:
    """Tokens on the sphere in three dimensions at four times."""
    times = (0.0, 2.0, 5.0, 15.0)
    fig, axes = of.plot.figure(1, len(times), size=(10.4, 2.9), spatial=True)
    for ax, t in zip(axes.flat, times, strict=True):
        mu = traj.measures[int((traj.ts - t).abs().argmin())]
        of.plot.particles(mu, ax=ax, color=BLUE, size=14)
        ax.set_title(f"n = 64, β = 1, t = {t:g}")
    return fig


def random_weights(shares: dict[str, np.ndarray]) -> Any:
    """The share of pairs that have met against time, for each choice of weights."""
    fig, axes = of.plot.figure(1, 1, size=(6.8, 3.6))
    ax, t = axes[0, 0], shares["t"]
    names = [name for name in shares if name != "t"]
    for k, name in enumerate(names):
        ax.plot(t, shares[name], color=of.plot.COLOURS[k], linestyle=("-", "--")[k % 2], label=name)
    ax.set(xlabel="time t", ylabel="share of pairs that have met")
    ax.set_title("n = 16 tokens in dimension 32 with random weights")
    ax.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig
