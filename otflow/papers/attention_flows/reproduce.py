"""Six kinds of attention move a cloud of tokens

Two hundred tokens in the plane flow through softmax, L2, Sinkhorn, sigmoid, unnormalised and
multi-head attention with the same random weights. Theorem 3.1 of Castin, Ablin, Carrillo and Peyré
(2025) says that the radius of the cloud grows at most like the exponential of the integrated norm of
the values; unnormalised attention escapes that bound, and a single token under it blows up at a time
that is known exactly. Sinkhorn attention moves the mean of any cloud by a linear law. Attention does
not see the order of the tokens. And the empirical flow fluctuates around its mean-field limit at the
Monte Carlo rate: four times the tokens, half the fluctuation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.linalg import expm
from scipy.special import exp1
from torch import Tensor

import otflow as of
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame, Progress

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
EPS = 2.0
SEED = 2025
Fields = dict[str, of.VelocityField]


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    rng = np.random.default_rng(SEED)
    weights = _weights(rng)
    fields, bounds = _fields(weights), _growth(weights)
    mu0 = of.Particles(rng.uniform(-1.0, 1.0, (60 if frame.quick else 200, 2)))
    trajectories = {}
    for i, (name, field) in enumerate(fields.items()):
        frame.stage(0.5 * i / len(fields), f"{name} attention")
        trajectories[name] = of.flow(
            mu0, field, of.Dopri5(), t1=3.0, observe={"radius": of.observables.radius}
        )
    frame.stage(0.5, "claims")
    claims = [
        *_radius_claims(trajectories, bounds),
        _varying_claim(mu0, weights),
        *_blow_up_claims(),
        _mean_claim(trajectories["Sinkhorn"], weights),
        *_equivariance_claims(mu0, fields, rng),
    ]
    frame.stage(0.6, "Monte Carlo rate")
    spread = _fluctuations(fields, rng, quick=frame.quick, progress=frame.stage)
    claims += _rate_claims(spread)
    figures = {
        "flows": _draw_flows(trajectories),
        "radius": _draw_radius(trajectories, bounds),
        "blow-up": _draw_blow_up(),
        "fluctuations": _draw_rates(spread),
    }
    return Result(claims, figures, _data(trajectories, spread))


def _weights(rng: np.random.Generator) -> dict[str, Tensor]:
    """Two heads' worth of random Q and K, values that rotate and contract a little, mixing matrices."""
    draw = {name: torch.from_numpy(rng.normal(size=(2, 2))) for name in ("Q", "K", "Q2", "K2")}
    turn = torch.tensor([[0.15, -0.75], [0.75, 0.15]], dtype=torch.float64)
    squash = torch.tensor([[-0.6, 0.2], [0.2, 0.3]], dtype=torch.float64)
    mix = {
        "W": torch.tensor([[0.8, 0.0], [0.3, 0.5]]).double(),
        "W2": torch.tensor([[0.4, 0.3], [0.0, -0.6]]).double(),
    }
    return draw | {"V": turn, "V2": squash} | mix


def _fields(m: dict[str, Tensor]) -> Fields:
    Q, K, V = m["Q"], m["K"], m["V"]
    heads = [of.SoftmaxAttention(Q, K, V), of.SoftmaxAttention(m["Q2"], m["K2"], m["V2"])]
    return {
        "softmax": of.SoftmaxAttention(Q, K, V),
        "L2": of.L2Attention(Q, K, V),
        "Sinkhorn": of.SinkhornAttention(Q, K, V, eps=EPS),
        "sigmoid": of.SigmoidAttention(Q, K, V),
        "unnormalised": of.UnnormalisedAttention(0.5 * Q, 0.5 * K, V),
        "multi-head": of.MultiHead(heads, mix=[m["W"], m["W2"]]),
    }


def _norm(a: Tensor) -> float:
    return float(torch.linalg.matrix_norm(a, 2))


def _growth(m: dict[str, Tensor]) -> dict[str, float]:
    """The rate r in R(t) <= exp(r t) R(0), for the fields that have one."""
    v = _norm(m["V"])
    heads = _norm(m["W"] @ m["V"]) + _norm(m["W2"] @ m["V2"])
    return {"softmax": v, "L2": v, "sigmoid": v, "Sinkhorn": v / EPS, "multi-head": heads}


RATES = {
    "softmax": "exp(t |V|)",
    "L2": "exp(t |V|)",
    "sigmoid": "exp(t |V|)",
    "Sinkhorn": "exp(t |V| / eps)",
    "multi-head": "exp(t sum_h |W_h V_h|)",
}


def _radius_claims(trajectories: dict[str, of.Trajectory], bounds: dict[str, float]) -> list[Claim]:
    return [
        PAPER.at("Theorem 3.1")(
            f"{name} attention: R(t) / ({RATES[name]} R(0)) is at most one (largest over t)"
        ).at_most(1.0, _worst_ratio(trajectories[name], rate), slack=1e-9)
        for name, rate in bounds.items()
    ]


def _worst_ratio(traj: of.Trajectory, rate: float) -> float:
    radius = traj.observed["radius"]
    return float((radius / (radius[0] * torch.exp(rate * traj.ts)))[1:].max())


def _varying_claim(mu0: of.Particles, m: dict[str, Tensor]) -> Claim:
    """Values V(t) = cos(2t) V, so that the bound is exp(|V| int |cos 2s| ds)."""
    field = of.SoftmaxAttention(m["Q"], m["K"], lambda t: torch.cos(2 * t)[..., None, None] * m["V"])
    traj = of.flow(mu0, field, of.Dopri5(), t1=3.0, observe={"radius": of.observables.radius})
    s = np.linspace(0.0, 3.0, 30_001)
    integral = np.concatenate([[0.0], np.cumsum(np.abs(np.cos(2 * (s[1:] + s[:-1]) / 2)) * np.diff(s))])
    bound = torch.from_numpy(np.exp(_norm(m["V"]) * np.interp(traj.ts.numpy(), s, integral)))
    radius = traj.observed["radius"]
    return PAPER.at("Theorem 3.1")(
        "softmax, V(t) = cos(2t) V: R(t) / (exp(int |V|) R(0)) is at most one (largest over t)"
    ).at_most(1.0, (radius / (bound * radius[0]))[1:].max(), slack=1e-9)


def _one_token(x0: float) -> of.Trajectory:
    """x' = exp(x^2) x, which a single token obeys under unnormalised attention with A = V = I."""
    one = [[1.0]]
    field = of.UnnormalisedAttention(one, one, one)
    return of.flow(of.Particles([[x0]]), field, of.Dopri5(rtol=1e-10, atol=1e-12), t1=10.0, save_at=[0.0])


def _blow_up_claims() -> list[Claim]:
    source = Source(
        "separation of variables in x' = exp(x^2) x; Theorem 3.1 leaves unnormalised attention out"
    )
    return [
        source(f"unnormalised attention, one token at {x0:g}, A = V = 1: blow-up at t = E_1(x0^2) / 2").equal(
            float(exp1(x0**2)) / 2, _one_token(x0).blow_up_time, rtol=1e-6
        )
        for x0 in (0.1, 0.5, 1.0)
    ]


def _mean_claim(traj: of.Trajectory, m: dict[str, Tensor]) -> Claim:
    start, end = (of.observables.mean(mu).numpy() for mu in (traj.measures[0], traj.final))
    exact = expm(float(traj.ts[-1]) * m["V"].numpy() / EPS) @ start
    return PAPER.at("section 4 (double stochasticity)")(
        "Sinkhorn attention: the mean follows dm/dt = V m / eps (relative error at t = 3)"
    ).at_most(1e-6, np.linalg.norm(end - exact) / np.linalg.norm(exact))


def _equivariance_claims(mu0: of.Particles, fields: Fields, rng: np.random.Generator) -> list[Claim]:
    order = torch.from_numpy(rng.permutation(mu0.n))
    shuffled = of.Particles(mu0.x[order])
    return [
        Source("permutation equivariance of attention without mask")(
            f"{name} attention: shuffled tokens, shuffled flow (largest difference at t = 1)"
        ).at_most(1e-8, _shuffle_error(field, mu0, shuffled, order))
        for name, field in fields.items()
    ]


def _shuffle_error(
    field: of.VelocityField, mu0: of.Particles, shuffled: of.Particles, order: Tensor
) -> float:
    a, b = (of.flow(mu, field, of.RK4(), t1=1.0, dt=0.1).final.coords[0] for mu in (mu0, shuffled))
    return float((a[order] - b).abs().max())


def _fluctuations(
    fields: Fields, rng: np.random.Generator, *, quick: bool, progress: Progress
) -> dict[str, dict[int, float]]:
    """The standard deviation of the second moment at t = 1 over independent clouds, against n."""
    copies = {25: 128, 100: 128} if quick else {25: 400, 100: 400, 400: 120}
    out: dict[str, dict[int, float]] = {name: {} for name in fields}
    for i, (n, count) in enumerate(copies.items()):
        clouds = of.Particles(rng.uniform(-1.0, 1.0, (count, n, 2)))
        for name, field in fields.items():
            progress(0.6 + 0.4 * i / len(copies), f"{count} clouds of {n} tokens, {name}")
            final = of.flow(clouds, field, of.RK4(), t1=1.0, dt=0.25).final
            out[name][n] = float(of.observables.second_moment(final).std())
    return out


def _slope(spread: dict[int, float]) -> float:
    return slope(list(spread), list(spread.values()))


def _rate_claims(spread: dict[str, dict[int, float]]) -> list[Claim]:
    return [
        PAPER.at("Theorem 3.1 (mean-field limit)")(
            f"{name} attention: the second moment fluctuates like n^-0.5 (slope from n to 4n)"
        ).within(-0.65, -0.35, _slope(values))
        for name, values in spread.items()
    ]


def _data(
    trajectories: dict[str, of.Trajectory], spread: dict[str, dict[int, float]]
) -> dict[str, np.ndarray[Any, Any]]:
    tokens = {f"tokens_{_key(name)}": traj.stacked.coords[0].numpy() for name, traj in trajectories.items()}
    radii = {f"radius_{_key(name)}": traj.observed["radius"].numpy() for name, traj in trajectories.items()}
    rates = {f"spread_{_key(name)}": np.array(list(values.items())) for name, values in spread.items()}
    return {"t": trajectories["softmax"].ts.numpy()} | tokens | radii | rates


def _key(name: str) -> str:
    return name.replace("-", "_")


# --- figures -----------------------------------------------------------------------------------------


def _draw_flows(trajectories: dict[str, of.Trajectory]) -> Any:
    fig, axes = of.plot.figure(2, 3, size=(10.5, 7.0))
    for ax, (name, traj) in zip(axes.flat, trajectories.items(), strict=True):
        of.plot.trails(traj, ax=ax, color=traj.measures[0].coords[0][:, 0].numpy(), size=9.0)
        ax.set_title(f"{name} attention")
        ax.set_aspect("equal", adjustable="datalim")
    return fig


def _draw_radius(trajectories: dict[str, of.Trajectory], bounds: dict[str, float]) -> Any:
    fig, axes = of.plot.figure(1, 1, size=(7.0, 4.0))
    ax = axes[0, 0]
    for (name, traj), colour in zip(trajectories.items(), of.plot.COLOURS, strict=False):
        radius = traj.observed["radius"]
        ax.plot(traj.ts, radius, color=colour, label=name)
        if name in bounds:
            ax.plot(
                traj.ts,
                radius[0] * torch.exp(bounds[name] * traj.ts),
                color=colour,
                linestyle=":",
                linewidth=1,
            )
    ax.set(
        yscale="log",
        xlabel="time (depth)",
        ylabel="radius of the cloud",
        title="measured (solid), bound (dotted; softmax, L2 and sigmoid share theirs)",
    )
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig


def _draw_blow_up() -> Any:
    """One token's path, and the exact one: E_1(x^2) = 2 (T - t)."""
    fig, axes = of.plot.figure(1, 1, size=(7.0, 4.0))
    ax = axes[0, 0]
    for x0, colour in zip((0.1, 0.5, 1.0), of.plot.COLOURS, strict=False):
        end = float(exp1(x0**2)) / 2
        times = end * (1 - np.geomspace(1.0, 1e-6, 200))
        traj = of.flow(
            of.Particles([[x0]]),
            of.UnnormalisedAttention(*[[[1.0]]] * 3),
            of.Dopri5(),
            t1=times[-1],
            save_at=times,
        )
        x = traj.stacked.coords[0].flatten().numpy()
        ax.plot(traj.ts, x, color=colour, label=f"x(0) = {x0:g}")
        grid = np.geomspace(x0, x[-1], 25)
        ax.plot(end - exp1(grid**2) / 2, grid, "o", color=colour, markersize=3)
        ax.axvline(end, color=colour, linestyle=":", linewidth=1)
    ax.set(
        xlabel="time",
        ylabel="the token",
        title="unnormalised attention: computed (line), exact (dots), blow-up (dotted)",
    )
    ax.legend(loc="upper center", frameon=False)
    return fig


def _draw_rates(spread: dict[str, dict[int, float]]) -> Any:
    fig, axes = of.plot.figure(1, 1, size=(7.0, 4.0))
    ax = axes[0, 0]
    for (name, values), colour in zip(spread.items(), of.plot.COLOURS, strict=False):
        ax.loglog(
            list(values),
            list(values.values()),
            "o-",
            color=colour,
            label=f"{name}: slope {_slope(values):.2f}",
        )
    n = np.array(list(spread["softmax"]), dtype=float)
    ax.loglog(n, spread["softmax"][int(n[0])] * (n / n[0]) ** -0.5, "k--", linewidth=1, label="slope -0.5")
    ax.set(
        xlabel="number of tokens n",
        ylabel="standard deviation",
        title="fluctuation of the second moment at t = 1",
    )
    ax.minorticks_off()
    ax.set_xticks(n, [f"{k:g}" for k in n])
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig
