"""The figure of the experiment `aggregation`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import otflow as of
from otflow.papers.aggregation.runs import Descent, discrepancy, edge

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT


def figure(ring: Descent, discs: dict[int, Descent], interval: Descent) -> Any:
    """Three clouds above; energies, radii and distances to the limit below.

    >>> import otflow as of
    >>> from otflow.papers.aggregation.draw import figure
    >>> from otflow.papers.aggregation.runs import descend, newtonian_line, quartic
    >>> plane = descend(of.Particles([[0.0, 0.1], [0.5, 0.0], [0.0, 0.6]]), quartic(), ((0.5, 2),))
    >>> line = descend(of.Particles([[0.0], [1.0]]), newtonian_line(), ((0.5, 2),))
    >>> len(figure(plane, {3: plane}, line).axes)
    6
    """
    fig, (above, below) = of.plot.figure(2, 3, size=(10.4, 6.6))
    most, disc = max(discs.items())
    _cloud(above[0], ring, 3**-0.5, rf"$W=|x|^4/4-|x|^2/2$: a ring ({ring.x.shape[1]} particles)")
    _cloud(above[1], disc, 1.0, rf"$W=|x|^2/2-\log|x|$: a disc ({most} particles)")
    _line(above[2], interval)
    _energies(below[0], {"ring": ring, f"disc, {most}": disc, "interval": interval})
    _radii(below[1], discs)
    _rates(below[2], {n: run.x[-1] for n, run in sorted(discs.items())})
    return fig


def _cloud(ax: Any, run: Descent, radius: float, title: str) -> None:
    """Ways, end, and in red where theory puts the support."""
    nan, angle = torch.tensor(torch.nan), np.linspace(0, 2 * np.pi, 200)
    traj = of.Trajectory(run.t, tuple(run.clouds), {}, {}, "ok", nan, nan)
    of.plot.trails(traj, ax=ax, color=BLUE, size=14.0, width=0.6)
    circle = radius * np.stack([np.cos(angle), np.sin(angle)])
    ax.plot(*circle, color=RED, lw=1.0, zorder=1, label="limit")
    below = {"loc": "upper center", "ncols": 3}
    reach: Any = {"xlim": (-1.35, 1.35), "ylim": (-1.2, 1.5), "adjustable": "box"}
    of.plot.panel(ax, title, legend=below, **reach)


def _line(ax: Any, run: Descent) -> None:
    """Positions against time, as long as they move to the eye."""
    seen = run.t <= 5.0
    x, t = run.x[seen, :, 0].numpy(), run.t[seen].numpy()
    n, mean, exact = x.shape[1], x[0].mean(), np.linspace(0, t[-1], 200)
    rest = of.closed_forms.line_equilibrium(n).numpy() + mean
    ax.plot(exact, rest + np.exp(-exact)[:, None] * (x[0] - rest), color=FAINT, lw=1.4)
    ax.plot(t, x, ".", color=BLUE, ms=2.5)
    for end in (mean - 1, mean + 1):
        ax.axhline(end, color=RED, lw=1.0)
    for style, colour, word in (
        (".", BLUE, "JKO"),
        ("-", FAINT, "exact flow"),
        ("-", RED, "ends of the limit"),
    ):
        ax.plot([], [], style, color=colour, label=word)
    title = rf"$W=|x|^2/2-|x|$ (line): an interval ({n} particles)"
    tight = {"loc": "lower right", "ncols": 3, "fontsize": 7, "columnspacing": 1.0, "handlelength": 1.2}
    of.plot.panel(ax, title, "$t$", "$x$", legend=tight, ylim=(mean - 1.4, mean + 1.15))


def _energies(ax: Any, runs: dict[str, Descent]) -> None:
    """F less its last value."""
    for (name, run), colour in zip(runs.items(), (BLUE, GREEN, RED), strict=True):
        F = torch.stack([run.energy(mu) for mu in run.clouds]).numpy()
        seen = F - F[-1] > 1e-13
        ax.plot(run.t.numpy()[seen], (F - F[-1])[seen], ".-", ms=3.5, lw=0.9, color=colour, label=name)
    scales: Any = {"xscale": "symlog", "yscale": "log", "xlim": (0, None), "xticks": (0, 1, 10, 100)}
    of.plot.panel(
        ax, "energies fall in every step", "$t$", "energy above its last value", legend="lower left", **scales
    )


def _radii(ax: Any, discs: dict[int, Descent]) -> None:
    """Shares of particles within a radius."""
    r = np.linspace(0, 1, 100)
    ax.plot(r, r**2, color=INK, lw=1.2, label="uniform disc, $r^2$")
    for (n, run), colour in zip(sorted(discs.items()), of.plot.COLOURS, strict=False):
        radius = [0.0, *run.x[-1].norm(dim=-1).sort().values.tolist(), 1.05]
        ax.step(radius, [*np.arange(n + 1) / n, 1.0], where="post", lw=0.9, color=colour, label=f"$N = {n}$")
    title, share = "the disc fills evenly, shell by shell", "share of particles within $r$"
    of.plot.panel(ax, title, "$r$", share, legend="upper left", xlim=(0, 1.05), ylim=(0, 1.03))


def _rates(ax: Any, last: dict[int, torch.Tensor]) -> None:
    n = np.array(list(last), dtype=float)
    radii, rim = ([measure(x) for x in last.values()] for measure in (discrepancy, edge))
    ax.plot(n, radii, "o-", ms=4, color=BLUE, label="Kolmogorov's distance of radii")
    ax.plot(n, rim, "s-", ms=4, color=GREEN, label="$1 -$ largest radius")
    ax.plot(n, 0.95 * n**-0.5, "--", lw=1, color=INK, label="$N^{-1/2}$, up to a factor")
    axis: Any = {
        "xscale": "log",
        "yscale": "log",
        "xticks": n,
        "yticks": (0.03, 0.05, 0.1, 0.2),
        "xlim": (0.9 * n[0], 1.1 * n[-1]),
    }
    title = "distance of the cloud to the uniform disc"
    of.plot.panel(ax, title, "number of particles $N$", "", legend="lower left", **axis)
