"""The figures of `castin_errata`: wrong formulas beside right ones, ranks by threshold, coarse steps."""

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
from otflow.papers.unified.parameters import Outcome, Panel, first, histograms, lie, projected_euler, residual
from otflow.reproduce.quadrature import Array, nodes, power, scaled

LEVEL = 0.1  # above which the histograms count an eigenvalue
EPS = 2.0
S = np.array([[0.8, 0.3], [0.3, 0.4]])
V = np.array([[1.0, 0.5], [-0.3, 0.7]])
START = np.array([[1.0, 0.5], [0.5, 1.0]])
BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK = of.plot.INK


def debiased(c: float, order: int) -> float:
    """4 (E[xy] across - E[xy] within): the rate of the variance c on its way to 1, cost |x - y|^2, eps = 2.

    >>> abs(debiased(1.0, 8)) < 1e-12
    True
    """
    own, target = nodes(np.array([[c]]), 2 * order), nodes(np.array([[1.0]]), 2 * order)
    plans = [scaled(-np.square(own.x - other.x.T) / EPS, own.w, other.w) for other in (target, own)]
    across, within = (power(p, own.x, other.x) / 2 for p, other in zip(plans, (target, own), strict=True))
    return 4 * (across - within)


def explosion(t1: float, save_at: Any) -> of.Trajectory:
    """The flow of `closed_forms.l2_counterexample` from ((1, 1/2), (1/2, 1)).

    >>> round(explosion(10.0, [0.0]).blow_up_time.item(), 4)
    3.0
    """
    example = closed_forms.l2_counterexample()
    field, mu0 = of.L2Attention(example.Q, example.K, example.V), of.Gaussian.from_cov([0.0, 0.0], START)
    return of.flow(mu0, field, of.Dopri5(), t1=t1, save_at=save_at)


def formulas(order: int) -> Any:
    """Rates by printed and corrected formulas, quadrature as dots; and the L2 flow that explodes."""
    fig, axes = of.plot.figure(1, 3, size=(11.5, 3.7))
    _sinkhorn(axes[0, 0], min(order, 16))
    _debiased(axes[0, 1], order)
    _explosion(axes[0, 2])
    return fig


def _turned(angle: float) -> Array:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s], [s, c]]) @ np.diag([1.2, 0.5])


def _sinkhorn(ax: Any, order: int) -> None:
    """d/dt tr S, against the angle by which A is turned."""
    angles, dots = np.linspace(-1.2, 1.2, 61), np.linspace(-1.2, 1.2, 7)
    x, w = nodes(S, order)
    A = np.stack([_turned(a) for a in angles])
    curves = {
        "poster": (closed_forms.sinkhorn_poster_rate(S, A, V), RED, "-"),
        "order mended": (closed_forms.sinkhorn_rate(S, A, V), BLUE, "-"),
        "constants mended too": (closed_forms.sinkhorn_rate(S, A, V, eps=0.5) / 2, GREEN, "-"),
    }
    for name, (rate, colour, line) in curves.items():
        ax.plot(angles, rate.diagonal(dim1=-2, dim2=-1).sum(-1), line, color=colour, label=name)
    for strength, colour in ((1, BLUE), (2, GREEN)):
        found = [power(scaled(strength * x @ _turned(a).T @ x.T, w, w), x, x @ V.T) for a in dots]
        ax.plot(dots, found, "o", color=colour, markersize=4)
    ax.set(xlabel="A turned by (radians)", ylabel="d/dt tr S", ylim=(-1.8, 2.4))
    ax.set_title(
        "Sinkhorn attention (dots: quadrature,\nblue exp(Ax.y), green exp(-|Qx - Ky|$^2$))", fontsize=9
    )
    ax.legend(loc="lower center", frameon=False)


def _debiased(ax: Any, order: int) -> None:
    c = np.linspace(0.0, 2.5, 101)
    dots = np.linspace(0.1, 2.5, 9)
    book, right = (
        f(c[:, None, None], EPS).flatten()
        for f in (closed_forms.debiased_rate_erratum, closed_forms.debiased_rate)
    )
    ax.axhline(0.0, color=of.plot.FAINT, linewidth=0.8)
    ax.axvline(1.0, color=of.plot.FAINT, linewidth=0.8)
    ax.plot(c, book, color=RED, label="book")
    ax.plot(c, right, color=BLUE, label="corrected")
    ax.plot(dots, [debiased(a, order) for a in dots], "o", color=BLUE, markersize=4, label="quadrature")
    ax.set(xlabel="variance C (target: 1)", ylabel="dC/dt")
    ax.set_title("debiased Sinkhorn divergence to N(0, 1), eps = 2:\nthe target must stand still", fontsize=9)
    ax.legend(loc="lower left", frameon=False)


def _explosion(ax: Any) -> None:
    t = 3 * (1 - np.geomspace(1.0, 1e-3, 60))
    traj = explosion(t[-1], t)
    exact = closed_forms.l2_counterexample().path(START, t[::6])
    ax.plot(traj.ts, _traces(traj.stacked.coords[1] @ traj.stacked.coords[1].mT), color=BLUE, label="flow")
    ax.plot(t[::6], _traces(exact), "o", color=BLUE, markersize=4, label="closed form")
    ax.axvline(3.0, color=INK, linestyle=":", linewidth=1)
    ax.set(yscale="log", xlabel="t", ylabel="tr S", ylim=(1.0, 1e6))
    ax.set_title("L2 attention whose K is not injective\nexplodes at t = 3", fontsize=9)
    ax.legend(loc="upper left", frameon=False)


def ranks(count: int) -> Any:
    """Eigenvalues of the first limits for V = I, d = 4, and how fast each falls."""
    panel = first(histograms()["3", 1, 4], count)
    limit = of.limit(panel.field(), panel.gaussians(), on_failure="return")
    order = limit.spectrum[:, 1].argsort(descending=True)
    fig, axes = of.plot.figure(1, 2, size=(10.0, 3.7))
    left, right = axes[0]
    of.plot.spectra(limit.spectrum[order], ax=left)
    left.axhline(LEVEL, color=INK, linestyle="--", linewidth=1)
    left.text(count - 1, 1.4 * LEVEL, "threshold 0.1", color=INK, ha="right", fontsize=8)
    left.set(xlabel="flow, by its second eigenvalue", ylabel="eigenvalues at the end of the run")
    left.set_title(
        "V = I, d = 4: two eigenvalues stay, two vanish;\nthe threshold cuts through those that stay",
        fontsize=9,
    )
    for i, colour in enumerate(of.plot.COLOURS[:4]):
        right.scatter(range(len(order)), limit.slopes[order, i], s=9, color=colour, linewidths=0)
    for y, word in ((-0.08, "the two that stay"), (-0.92, "the two that vanish")):
        right.text(count / 2, y, word, color=INK, ha="center", va="center", fontsize=8)
    right.set(
        xlabel="flow, by its second eigenvalue", ylabel="d log(eigenvalue) / d log t", ylim=(-1.15, 0.15)
    )
    right.set_title("how fast they fall: not at all, or like 1/t;\nnothing in between", fontsize=9)
    return fig


def steps() -> Any:
    """A flow on which coarse projected Euler steps diverge: tr S and tr(V^-1 S)."""
    panel, member, count = _latest(histograms()["3", 2, 3])
    exact = of.flow(panel.gaussians(), panel.field(), of.Dopri5(), t1=count * panel.h)
    S = torch.stack([of.observables.covariance(mu)[0] for mu in exact.measures])
    fig, axes = of.plot.figure(1, 2, size=(10.0, 3.7))
    inverse = torch.linalg.inv(torch.tensor(panel.V[0]))
    for ax, weight in zip(axes[0], (torch.eye(panel.d).double(), inverse), strict=True):
        for (name, step), colour in zip(STEPS.items(), (RED, PINK, GREEN), strict=True):
            values = _traces(weight @ _path(step, panel, count))
            t = panel.h * np.arange(len(values))
            ax.plot(t, values, "o-", color=colour, markersize=3, linewidth=0.9, label=name)
        ax.plot(exact.ts, _traces(weight @ S), color=BLUE, linewidth=1.8, label="accurate flow")
        ax.set(yscale="log", xlabel="t")
    axes[0, 0].axhline(1e3, color=INK, linestyle=":", linewidth=1)
    axes[0, 0].set_ylabel("tr S")
    axes[0, 0].set_title(f"V > 0, d = 3, run {member}, h = {panel.h:g}: Euler steps pass 1000", fontsize=9)
    axes[0, 1].set_ylabel(r"tr V$^{-1}$S")
    axes[0, 1].set_title("the Lyapunov function, which cannot grow", fontsize=9)
    axes[0, 0].legend(loc="best", frameon=False)
    return fig


STEPS = {"projected Euler": projected_euler, "residual layer": residual, "Lie": lie}


def _latest(panel: Panel) -> tuple[Panel, int, int]:
    """The run that diverges last, on its own; its number; and how many steps it takes to draw."""
    S0 = torch.tensor(panel.covariances)
    euler = projected_euler(panel.rate(), S0, h=panel.h, tol_low=panel.tol, max_iter=100)
    i = int(torch.where(euler.diverged, euler.steps, 0).argmax())
    Q, K, V, S = (a[i : i + 1] for a in (panel.Q, panel.K, panel.V, panel.covariances))
    return replace(panel, Q=Q, K=K, V=V, covariances=S), i, int(euler.steps[i]) + 6


def _path(step: Callable[..., Outcome], panel: Panel, count: int) -> Tensor:
    """S after 0, 1, ... steps of the only run, (up to count + 1, d, d): until it diverges."""
    found = [torch.tensor(panel.covariances)]
    for k in range(1, count + 1):
        out = step(panel.rate(), found[0], h=panel.h, tol_low=0.0, max_iter=k)
        if out.steps < k:
            break
        found.append(out.covariances)
    return torch.cat(found)


def _traces(S: Tensor) -> Tensor:
    return S.diagonal(dim1=-2, dim2=-1).sum(-1)
