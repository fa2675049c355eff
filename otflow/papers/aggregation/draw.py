"""The figure of the experiment `aggregation`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import otflow as of

if TYPE_CHECKING:
    from otflow.papers.aggregation.runs import Descent

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK = of.plot.INK


def figure(ring: Descent, discs: dict[int, Descent], interval: Descent) -> Any:
    """Three clouds above; energies, radii and distances to the limit below.

    >>> from otflow.papers.aggregation.runs import descend, newtonian_line, quartic
    >>> plane = descend(of.Particles([[0.0, 0.1], [0.5, 0.0], [0.0, 0.6]]), quartic(), ((0.5, 2),))
    >>> line = descend(of.Particles([[0.0], [1.0]]), newtonian_line(), ((0.5, 2),))
    >>> len(figure(plane, {3: plane}, line).axes)
    6
    """
    fig, axes = of.plot.figure(2, 3, size=(10.4, 6.6))
    most = max(discs)
    _cloud(axes[0, 0], ring, 3**-0.5, rf"$W=|x|^4/4-|x|^2/2$: a ring ({_size(ring)} particles)")
    _cloud(axes[0, 1], discs[most], 1.0, rf"$W=|x|^2/2-\log|x|$: a disc ({most} particles)")
    _line(axes[0, 2], interval)
    _energies(axes[1, 0], {"ring": ring, f"disc, {most}": discs[most], "interval": interval})
    _radii(axes[1, 1], discs)
    _rates(axes[1, 2], discs)
    return fig


def _size(run: Descent) -> int:
    return run.x.shape[1]


def _cloud(ax: Any, run: Descent, radius: float, title: str) -> None:
    """Ways, end, and in red where theory puts the support."""
    of.plot.trails(_trajectory(run), ax=ax, color=BLUE, size=14.0, width=0.6)
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(radius * np.cos(angle), radius * np.sin(angle), color=RED, lw=1.0, zorder=1)
    ax.set_title(title, fontsize=9, color=INK)


def _trajectory(run: Descent) -> of.Trajectory:
    nan = torch.tensor(torch.nan)
    return of.Trajectory(run.t, tuple(run.clouds), {}, {}, "ok", nan, nan)


def _line(ax: Any, run: Descent) -> None:
    """Positions against time, as long as they move to the eye."""
    seen = run.t <= 5.0
    x, t = run.x[seen, :, 0].numpy(), run.t[seen].numpy()
    exact = np.linspace(0, t[-1], 200)
    n, mean = x.shape[1], x[0].mean()
    rest = of.closed_forms.line_equilibrium(n).numpy() + mean
    ax.plot(exact, rest + np.exp(-exact)[:, None] * (x[0] - rest), color=of.plot.FAINT, lw=1.4)
    ax.plot(t, x, ".", color=BLUE, ms=2.5)
    ax.axhline(mean - 1, color=RED, lw=1.0)
    ax.axhline(mean + 1, color=RED, lw=1.0)
    ax.plot([], [], ".", color=BLUE, label="JKO")
    ax.plot([], [], color=of.plot.FAINT, label="exact flow")
    ax.plot([], [], color=RED, label="ends of the limit")
    ax.legend(loc="lower right", ncols=3, fontsize=7, columnspacing=1.0, handlelength=1.2, frameon=False)
    ax.set(xlabel="t", ylabel="x", ylim=(mean - 1.4, mean + 1.15))
    ax.set_title(rf"$W=|x|^2/2-|x|$ (line): an interval ({n} particles)", fontsize=9, color=INK)


def _energies(ax: Any, runs: dict[str, Descent]) -> None:
    """F less its last value."""
    for (name, run), colour in zip(runs.items(), (BLUE, GREEN, RED), strict=True):
        F = torch.stack([run.energy(mu) for mu in run.clouds]).numpy()
        fall = F - F[-1]
        seen = fall > 1e-13
        ax.plot(run.t.numpy()[seen], fall[seen], ".-", ms=3.5, lw=0.9, color=colour, label=name)
    ax.set(xscale="symlog", yscale="log", xlabel="t", ylabel="energy above its last value", xlim=(0, None))
    ax.set_xticks(ticks := [0, 1, 10, 100], [f"{t:g}" for t in ticks])
    ax.legend(loc="lower left", fontsize=8, frameon=False)
    ax.set_title("energies fall in every step", fontsize=9, color=INK)


def _radii(ax: Any, discs: dict[int, Descent]) -> None:
    """Shares of particles within a radius."""
    r = np.linspace(0, 1, 100)
    ax.plot(r, r**2, color=INK, lw=1.2, label="uniform disc, $r^2$")
    for (n, run), colour in zip(sorted(discs.items()), of.plot.COLOURS, strict=False):
        radius = np.sort(run.x[-1].norm(dim=-1).numpy())
        radius = np.concatenate([[0.0], radius, [1.05]])
        share = np.concatenate([[0.0], np.arange(1, n + 1) / n, [1.0]])
        ax.step(radius, share, where="post", lw=0.9, color=colour, label=f"N = {n}")
    ax.set(xlabel="r", ylabel="share of particles within r", xlim=(0, 1.05), ylim=(0, 1.03))
    ax.legend(loc="upper left", fontsize=8, frameon=False)
    ax.set_title("the disc fills evenly, shell by shell", fontsize=9, color=INK)


def _rates(ax: Any, discs: dict[int, Descent]) -> None:
    from otflow.papers.aggregation.runs import discrepancy, edge

    n = np.array(sorted(discs), dtype=float)
    last = [discs[int(k)].x[-1] for k in n]
    for measure, marker, colour, word in (
        (discrepancy, "o-", BLUE, "Kolmogorov's distance of radii"),
        (edge, "s-", GREEN, "1 - largest radius"),
    ):
        ax.plot(n, [measure(x) for x in last], marker, ms=4, color=colour, label=word)
    ax.plot(n, 0.95 * n**-0.5, "--", lw=1, color=INK, label="$N^{-1/2}$, up to a factor")
    ax.set(xscale="log", yscale="log", xlabel="number of particles N")
    ax.minorticks_off()
    ax.set_xticks(n, [f"{k:g}" for k in n])
    ax.set_xlim(0.9 * n[0], 1.1 * n[-1])
    ax.set_yticks(ticks := [0.03, 0.05, 0.1, 0.2], [f"{k:g}" for k in ticks])
    ax.legend(loc="lower left", fontsize=8, frameon=False)
    ax.set_title("distance of the cloud to the uniform disc", fontsize=9, color=INK)
