"""Pictures of the experiment `controllability`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

import otflow as of
from otflow.papers import relu_flows as rf
from otflow.papers.relu_flows.transports import LEVELS, LINE, MIXTURE, Plane, curved, log_normal, values

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]


def line(runs: list[rf.ReluTransport]) -> Any:
    """Densities of base, target and images for a few K."""
    y = np.linspace(-4.5, 4.5, 1801)
    fig, (axes,) = of.plot.figure(1, 3, size=(10.8, 3.3))
    for ax, run in zip(axes, runs[::2], strict=True):
        ax.plot(y, norm.pdf(y), color=of.plot.FAINT, label="base")
        ax.fill_between(y, np.exp(MIXTURE.logpdf(y)), color=BLUE, alpha=0.25, linewidth=0, label="target")
        image = run.flow.log_density(y[:, None], log_normal).exp()
        ax.plot(y, image, color=RED, linewidth=1.1, label="image")
        title = f"{run.pieces} pieces: $KL={run.kl:.2g}$, $TV={run.tv:.2g}$"
        of.plot.panel(ax, title, "$x$", ylim=(0, 0.47))
    of.plot.panel(axes[0], y="density", legend="upper right")
    return fig


def plane(found: Plane) -> Any:
    """The target and three images."""
    box = (-2.8, 2.8, -2.4, 4.4)
    axis = np.linspace(*box[:2], 284), np.linspace(*box[2:], 341)
    flat = np.stack(np.meshgrid(*axis, indexing="xy"), -1).reshape(-1, 2)
    target = curved(0, flat).logpdf(flat[:, 0]) + curved(1, flat).logpdf(flat[:, 1])
    densities = {"target": target}
    for run, words in ((found.plain[0], ""), (found.plain[-1], ""), (found.centred[0], "medians off: ")):
        name = f"{words}{run.pieces} pieces{',' if words else ':'} $KL={run.kl:.2g}$"
        densities[name] = run.flow.log_density(flat, log_normal).numpy()
    fig, (axes,) = of.plot.figure(1, 4, size=(11.6, 3.4))
    look: Any = {"origin": "lower", "extent": box, "cmap": of.plot.SEQUENCE, "aspect": "auto"}
    for ax, (name, log_rho) in zip(axes, densities.items(), strict=True):
        ax.imshow(np.exp(log_rho).reshape(341, 284), vmax=np.exp(target).max(), **look)
        of.plot.panel(ax, name, "$x_1$")
    axes[0].set_ylabel("$x_2$")
    return fig


def rates(runs: list[rf.ReluTransport], found: Plane) -> Any:
    """KL and total variation against pieces, on the line and in the plane."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.4, 3.8))
    left.plot(LINE, values(runs, "kl"), "o-", color=BLUE, label="KL")
    left.plot(LINE, values(runs, "tv"), "s-", color=RED, label="total variation")
    right.plot(found.K, values(found.plain, "kl"), "o-", color=BLUE, label="KL")
    right.plot(found.K, values(found.plain, "l2"), "s-", color=RED, label="$L^2$ error")
    right.plot(found.K, values(found.centred, "kl"), "o-", color=GREEN, label="KL, medians off first")
    on_the_line, in_the_plane = "on the line: $N(0, 1)$ to a mixture", "in the plane: Knothe-Rosenblatt"
    for ax, K, (square, first), title in (
        (left, LINE, (0.05, 0.3), on_the_line),
        (right, found.K, (0.25, 0.5), in_the_plane),
    ):
        ax.plot(
            K, square * K[0] ** 2 / K**2, "--", color=of.plot.INK, linewidth=1, label="$K^{-2}$ and $K^{-1}$"
        )
        ax.plot(K, first * K[0] / K, "--", color=of.plot.INK, linewidth=1)
        ax.loglog()
        of.plot.panel(ax, title, "$K$", "error", legend="lower left", xticks=K)
    return fig


def tails(missing: dict[str, np.ndarray]) -> Any:
    """u g(u), whose integral in log u is the part of KL in the tail."""
    fig, ((ax,),) = of.plot.figure(size=(6.4, 3.9))
    for (name, part), colour in zip(missing.items(), (RED, PINK, GREEN, BLUE), strict=True):
        ax.loglog(LEVELS, part, color=colour, label=name)
    ax.invert_xaxis()
    title = "what the tail adds to KL, per unit of $\\log u$: finite only if it decays"
    of.plot.panel(ax, title, "mass $u$ beyond", r"$u\,|\log(\mathrm{target}/\mathrm{image})|$", legend=True)
    return fig
