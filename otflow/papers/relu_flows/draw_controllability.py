"""The figures of the experiment `controllability`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import norm

import otflow as of
from otflow.papers import relu_flows as rf
from otflow.papers.relu_flows.transports import LEVELS, LINE, MIXTURE, curved

if TYPE_CHECKING:
    from otflow.papers.relu_flows.transports import Plane

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK, FAINT = of.plot.INK, of.plot.FAINT
Array = np.ndarray


def line(runs: list[rf.Transport]) -> Any:
    """Densities of base, target and images for a few K."""
    y = np.linspace(-4.5, 4.5, 1801)
    fig, axes = of.plot.figure(1, 3, size=(10.8, 3.3))
    for ax, run in zip(axes.flat, runs[::2], strict=True):
        image = run.flow.log_density(y[:, None], lambda x: norm.logpdf(x[..., 0])).exp()
        ax.plot(y, norm.pdf(y), color=FAINT, label="base")
        ax.fill_between(y, np.exp(MIXTURE.logpdf(y)), color=BLUE, alpha=0.25, linewidth=0, label="target")
        ax.plot(y, image, color=RED, linewidth=1.1, label="image")
        ax.set(xlabel="x", ylim=(0, 0.47))
        ax.set_title(f"{run.pieces} pieces: KL = {run.kl:.2g}, TV = {run.tv:.2g}", fontsize=9.5)
    axes[0, 0].set_ylabel("density")
    axes[0, 0].legend(fontsize=7.5, loc="upper right")
    return fig


def plane(found: Plane) -> Any:
    """The target and three images."""
    axis = np.linspace(-2.8, 2.8, 284), np.linspace(-2.4, 4.4, 341)
    grid = np.stack(np.meshgrid(*axis, indexing="xy"), -1)
    flat = grid.reshape(-1, 2)
    target = curved(0, flat).logpdf(flat[:, 0]) + curved(1, flat).logpdf(flat[:, 1])
    shown = [found.plain[0], found.plain[-1], found.centred[0]]
    fig, axes = of.plot.figure(1, 4, size=(11.6, 3.4))
    densities = [target, *(r.flow.log_density(flat, _log_base).numpy() for r in shown)]
    names = ["target", *(f"{r.pieces} pieces: KL = {r.kl:.2g}" for r in shown)]
    names[-1] = f"medians off: {shown[-1].pieces} pieces, KL = {shown[-1].kl:.2g}"
    for ax, log_rho, name in zip(axes.flat, densities, names, strict=True):
        ax.imshow(
            np.exp(log_rho).reshape(grid.shape[:2]),
            origin="lower",
            extent=(-2.8, 2.8, -2.4, 4.4),
            cmap=of.plot.SEQUENCE,
            vmax=np.exp(target).max(),
            aspect="auto",
        )
        ax.set(xlabel="x_1")
        ax.set_title(name, fontsize=9.5)
    axes[0, 0].set_ylabel("x_2")
    return fig


def _log_base(x: Any) -> Array:
    return np.asarray(norm.logpdf(x.numpy()).sum(-1))


def rates(runs: list[rf.Transport], found: Plane) -> Any:
    """KL and total variation against pieces, on the line and in the plane."""
    fig, axes = of.plot.figure(1, 2, size=(9.4, 3.8))
    left, right = axes.flat
    K = np.array(LINE)
    left.plot(K, [r.kl for r in runs], "o-", color=BLUE, label="KL")
    left.plot(K, [r.tv for r in runs], "s-", color=RED, label="total variation")
    left.plot(K, 0.05 * K[0] ** 2 / K**2, "--", color=INK, linewidth=1, label="K^-2 and K^-1")
    left.plot(K, 0.3 * K[0] / K, "--", color=INK, linewidth=1)
    left.set_title("on the line: N(0, 1) to a mixture", fontsize=9.5)
    cells = np.array(found.K)
    right.plot(cells, [r.kl for r in found.plain], "o-", color=BLUE, label="KL")
    right.plot(cells, [r.l2 for r in found.plain], "s-", color=RED, label="L2 error")
    right.plot(cells, [r.kl for r in found.centred], "o-", color=GREEN, label="KL, medians off first")
    right.plot(cells, 0.25 * cells[0] ** 2 / cells**2, "--", color=INK, linewidth=1, label="K^-2 and K^-1")
    right.plot(cells, 0.5 * cells[0] / cells, "--", color=INK, linewidth=1)
    right.set_title("in the plane: Knothe-Rosenblatt", fontsize=9.5)
    for ax, ticks in ((left, K), (right, cells)):
        ax.set(xscale="log", yscale="log", xlabel="K", ylabel="error")
        ax.set_xticks(ticks, [str(k) for k in ticks])
        ax.minorticks_off()
        ax.legend(fontsize=7.5, loc="lower left")
    return fig


def tails(missing: dict[str, Array]) -> Any:
    """u g(u), whose integral in log u is the part of KL in the tail."""
    fig, axes = of.plot.figure(1, 1, size=(6.4, 3.9))
    ax = axes[0, 0]
    for (name, values), colour in zip(missing.items(), (RED, PINK, GREEN, BLUE), strict=True):
        ax.plot(LEVELS, values, color=colour, label=name)
    ax.set(xscale="log", yscale="log", xlabel="mass u beyond", ylabel="u |log(target / image)|")
    ax.invert_xaxis()
    ax.set_title("what the tail adds to KL, per unit of log u: finite only if it decays", fontsize=9.5)
    ax.legend(fontsize=7.5)
    return fig
