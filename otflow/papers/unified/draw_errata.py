"""Drawing the errata: wrong formulas beside right ones, ranks by threshold, coarse steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.papers.unified.examples import EPS, START, S, V, debiased, explosion
from otflow.papers.unified.parameters import (
    LEVEL,
    Outcome,
    Panel,
    first,
    histograms,
    lie,
    projected_euler,
    residual,
    trace,
)
from otflow.papers.unified.printed import debiased_rate_erratum, sinkhorn_poster_rate
from otflow.reproduce.quadrature import Array, nodes, power, scaled

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK, FAINT = of.plot.INK, of.plot.FAINT


def formulas(order: int) -> Any:
    """Rates by printed and corrected formulas, quadrature as dots; and the L2 flow that explodes."""
    fig, ((left, middle, right),) = of.plot.figure(1, 3, size=(11.5, 3.7))
    _sinkhorn(left, min(order, 16))
    _debiased(middle, order)
    _explosion(right)
    return fig


def _turned(angle: float) -> Array:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s], [s, c]]) @ np.diag([1.2, 0.5])


def _sinkhorn(ax: Any, order: int) -> None:
    """d/dt tr S, against the angle by which A is turned."""
    angles, dots = np.linspace(-1.2, 1.2, 61), np.linspace(-1.2, 1.2, 7)
    (x, w), A = nodes(S, order), np.stack([_turned(a) for a in angles])
    curves = {
        "poster": (sinkhorn_poster_rate(S, A, V), RED),
        "order mended": (closed_forms.sinkhorn_rate(S, A, V), BLUE),
        "constants mended too": (closed_forms.sinkhorn_rate(S, A, V, eps=0.5) / 2, GREEN),
    }
    for name, (rate, colour) in curves.items():
        ax.plot(angles, trace(rate), color=colour, label=name)
    for strength, colour in ((1, BLUE), (2, GREEN)):
        found = [power(scaled(strength * x @ _turned(a).T @ x.T, w, w), x, x @ V.T) for a in dots]
        ax.plot(dots, found, "o", color=colour, markersize=4)
    title = "Sinkhorn attention (dots: quadrature,\nblue $e^{Ax\\cdot y}$, green $e^{-|Qx-Ky|^2}$)"
    of.plot.panel(
        ax,
        title,
        "$A$ turned by (radians)",
        r"$d/dt\ \mathrm{tr}\,S$",
        legend="lower center",
        ylim=(-1.8, 2.4),
    )


def _debiased(ax: Any, order: int) -> None:
    c, dots = np.linspace(0.0, 2.5, 101), np.linspace(0.1, 2.5, 9)
    ax.axhline(0.0, color=FAINT, linewidth=0.8)
    ax.axvline(1.0, color=FAINT, linewidth=0.8)
    ax.plot(c, debiased_rate_erratum(c[:, None, None], EPS).flatten(), color=RED, label="book")
    ax.plot(c, closed_forms.debiased_rate(c[:, None, None], EPS).flatten(), color=BLUE, label="corrected")
    ax.plot(dots, [debiased(a, order) for a in dots], "o", color=BLUE, markersize=4, label="quadrature")
    title = "debiased Sinkhorn divergence to $N(0, 1)$, $\\varepsilon = 2$:\nthe target must stand still"
    of.plot.panel(ax, title, "variance $C$ (target: 1)", "$dC/dt$", legend="lower left")


def _explosion(ax: Any) -> None:
    t = 3 * (1 - np.geomspace(1.0, 1e-3, 60))
    traj, exact = explosion(t[-1], t), closed_forms.l2_counterexample().path(START, t[::6])
    ax.plot(traj.ts, trace(traj.stacked.coords[1] @ traj.stacked.coords[1].mT), color=BLUE, label="flow")
    ax.plot(t[::6], trace(exact), "o", color=BLUE, markersize=4, label="closed form")
    ax.axvline(3.0, color=INK, linestyle=":", linewidth=1)
    title = "L2 attention whose $K$ is not injective\nexplodes at $t = 3$"
    of.plot.panel(ax, title, "$t$", "tr $S$", legend="upper left", yscale="log", ylim=(1.0, 1e6))


def ranks(count: int) -> Any:
    """Eigenvalues of the first limits for V = I, d = 4, and how fast each falls."""
    limit = first(histograms()["3", 1, 4], count).limit()
    order = limit.spectrum[:, 1].argsort(descending=True)
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.0, 3.7))
    of.plot.spectra(limit.spectrum[order], ax=left)
    left.axhline(LEVEL, color=INK, linestyle="--", linewidth=1)
    left.text(count - 1, 1.4 * LEVEL, "threshold 0.1", color=INK, ha="right", fontsize=8)
    for i, colour in enumerate(of.plot.COLOURS[:4]):
        right.scatter(range(len(order)), limit.slopes[order, i], s=9, color=colour, linewidths=0)
    for y, word in ((-0.08, "the two that stay"), (-0.92, "the two that vanish")):
        right.text(count / 2, y, word, color=INK, ha="center", va="center", fontsize=8)
    x = "flow, by its second eigenvalue"
    title = "$V = I$, $d = 4$: two eigenvalues stay, two vanish;\nthe threshold cuts through those that stay"
    of.plot.panel(left, title, x, "eigenvalues at the end of the run")
    title = "how fast they fall: not at all, or like $1/t$;\nnothing in between"
    of.plot.panel(right, title, x, r"$d\log\lambda\,/\,d\log t$", ylim=(-1.15, 0.15))
    return fig


def steps() -> Any:
    """A flow on which coarse projected Euler steps diverge: tr S and tr(V^-1 S)."""
    panel, member, count = _latest(histograms()["3", 2, 3])
    exact = of.flow(panel.gaussians(), panel.field(), of.Dopri5(), t1=count * panel.h)
    S = torch.stack([of.observables.covariance(mu)[0] for mu in exact.measures])
    fig, ((left, right),) = of.plot.figure(1, 2, size=(10.0, 3.7))
    inverse = torch.linalg.inv(torch.tensor(panel.V[0]))
    for ax, weight in ((left, torch.eye(panel.d).double()), (right, inverse)):
        for name, step, colour in STEPS:
            values = trace(weight @ _path(step, panel, count))
            t = panel.h * np.arange(len(values))
            ax.plot(t, values, "o-", color=colour, markersize=3, linewidth=0.9, label=name)
        ax.plot(exact.ts, trace(weight @ S), color=BLUE, linewidth=1.8, label="accurate flow")
    left.axhline(1e3, color=INK, linestyle=":", linewidth=1)
    title = f"$V > 0$, $d = 3$, run {member}, $h = {panel.h:g}$: Euler steps pass 1000"
    of.plot.panel(left, title, "$t$", "tr $S$", legend="best", yscale="log")
    of.plot.panel(right, "the Lyapunov function, which cannot grow", "$t$", "tr $V^{-1}S$", yscale="log")
    return fig


STEPS = (("projected Euler", projected_euler, RED), ("residual layer", residual, PINK), ("Lie", lie, GREEN))


def _latest(panel: Panel) -> tuple[Panel, int, int]:
    """The run that diverges last, on its own; its number; and how many steps it takes to draw."""
    euler = panel.march(projected_euler, max_iter=100)
    i = int(torch.where(euler.diverged, euler.steps, 0).argmax())
    Q, K, V, S = (a[i : i + 1] for a in (panel.Q, panel.K, panel.V, panel.covariances))
    return replace(panel, Q=Q, K=K, V=V, covariances=S), i, int(euler.steps[i]) + 6


def _path(step: Callable[..., Outcome], panel: Panel, count: int) -> Tensor:
    """S after 0, 1, ... steps of the only run, (up to count + 1, d, d): until it diverges."""
    found = [torch.tensor(panel.covariances)]
    for k in range(1, count + 1):
        out = panel.march(step, tol_low=0.0, max_iter=k)
        if out.steps < k:
            break
        found.append(out.covariances)
    return torch.cat(found)
