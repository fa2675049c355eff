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
from otflow.reproduce.frame import Frame

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
GROWTH = PAPER.at("Theorem 3.1")
EPS = 2.0  # of Sinkhorn attention: not 1, so that a rate without it would be seen
SEED = 2025
STARTS = (0.1, 0.5, 1.0)  # of single tokens that blow up
LENGTH = 3.0  # of the flows in time; the claim on the mean names it
Fields = dict[str, of.VelocityField]
Flows = dict[str, of.Trajectory]
Bounds = dict[str, tuple[float, str]]
Spread = dict[str, dict[int, float]]


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    rng = np.random.default_rng(SEED)
    m = _weights(rng)
    fields, bounds = _fields(m), _growth(m)
    mu0 = of.Particles(rng.uniform(-1.0, 1.0, (frame.size(60, 200), 2)))
    flows = {}
    for i, (name, field) in enumerate(fields.items()):
        frame.stage(0.5 * i / len(fields), f"{name} attention")
        flows[name] = _flow(mu0, field)
    frame.stage(0.5, "claims")
    claims = [
        *_radius_claims(flows, bounds),
        _varying_claim(mu0, m),
        *_blow_up_claims(),
        _mean_claim(flows["Sinkhorn"], m["V"]),
        *_equivariance_claims(mu0, fields, rng),
    ]
    spread = _fluctuations(fields, rng, frame)
    figures = {
        "flows": _draw_flows(flows),
        "radius": _draw_radius(flows, bounds),
        "blow-up": _draw_blow_up(),
        "fluctuations": _draw_rates(spread),
    }
    return Result([*claims, *_rate_claims(spread)], figures, _data(flows, spread))


def _weights(rng: np.random.Generator) -> dict[str, Tensor]:
    """Two heads' worth of random Q and K, values that rotate and contract a little, mixing matrices."""
    drawn = {name: rng.normal(size=(2, 2)) for name in ("Q", "K", "Q2", "K2")}
    values = {"V": [[0.15, -0.75], [0.75, 0.15]], "V2": [[-0.6, 0.2], [0.2, 0.3]]}
    # Rounded to single precision, which the numbers on the page know of.
    W, W2 = np.array([[[0.8, 0.0], [0.3, 0.5]], [[0.4, 0.3], [0.0, -0.6]]], dtype=np.float32)
    given = drawn | values | {"W": W, "W2": W2}
    return {name: torch.tensor(a, dtype=torch.float64) for name, a in given.items()}


def _fields(m: dict[str, Tensor]) -> Fields:
    Q, K, V = m["Q"], m["K"], m["V"]
    soft = of.SoftmaxAttention(Q, K, V)
    return {
        "softmax": soft,
        "L2": of.L2Attention(Q, K, V),
        "Sinkhorn": of.SinkhornAttention(Q, K, V, eps=EPS),
        "sigmoid": of.SigmoidAttention(Q, K, V),
        # Half the weights, since nothing bounds its growth.
        "unnormalised": of.UnnormalisedAttention(0.5 * Q, 0.5 * K, V),
        "multi-head": of.MultiHead(
            [soft, of.SoftmaxAttention(m["Q2"], m["K2"], m["V2"])], mix=[m["W"], m["W2"]]
        ),
    }


def _flow(mu0: of.Particles, field: of.VelocityField) -> of.Trajectory:
    return of.flow(mu0, field, of.Dopri5(), t1=LENGTH, observe={"radius": of.observables.radius})


def _norm(a: Tensor) -> float:
    return float(torch.linalg.matrix_norm(a, 2))


def _growth(m: dict[str, Tensor]) -> Bounds:
    """The rate r in R(t) <= exp(r t) R(0), for the fields that have one, and how it is written."""
    v, heads = _norm(m["V"]), _norm(m["W"] @ m["V"]) + _norm(m["W2"] @ m["V2"])
    plain = dict.fromkeys(("softmax", "L2", "sigmoid"), (v, "t |V|"))
    return plain | {"Sinkhorn": (v / EPS, "t |V| / eps"), "multi-head": (heads, "t sum_h |W_h V_h|")}


# --- claims ------------------------------------------------------------------------------------------


def _over(traj: of.Trajectory, bound: Tensor) -> Tensor:
    """The largest R(t) / (bound(t) R(0)) at t > 0: at the start it is one, and would hide a smaller one."""
    radius = traj.observed["radius"]
    return (radius / (radius[0] * bound))[1:].max()


def _radius_claims(flows: Flows, bounds: Bounds) -> list[Claim]:
    return [
        GROWTH(f"{name} attention: R(t) / (exp({word}) R(0)) is at most one (largest over t)").at_most(
            1.0, _over(flows[name], torch.exp(rate * flows[name].ts)), slack=1e-9
        )
        for name, (rate, word) in bounds.items()
    ]


def _varying_claim(mu0: of.Particles, m: dict[str, Tensor]) -> Claim:
    """Values V(t) = cos(2t) V, so that the bound is exp(|V| int |cos 2s| ds)."""
    traj = _flow(
        mu0, of.SoftmaxAttention(m["Q"], m["K"], lambda t: torch.cos(2 * t)[..., None, None] * m["V"])
    )
    s = np.linspace(0.0, LENGTH, 30_001)
    middle = np.abs(np.cos(2 * (s[1:] + s[:-1]) / 2))
    integral = np.concatenate([[0.0], np.cumsum(middle * np.diff(s))])  # by the midpoint rule
    bound = torch.from_numpy(np.exp(_norm(m["V"]) * np.interp(traj.ts.numpy(), s, integral)))
    return GROWTH(
        "softmax, V(t) = cos(2t) V: R(t) / (exp(int |V|) R(0)) is at most one (largest over t)"
    ).at_most(1.0, _over(traj, bound), slack=1e-9)


def _one_token(x0: float, t1: float, **options: Any) -> of.Trajectory:
    """x' = exp(x^2) x, which a single token obeys under unnormalised attention with A = V = I."""
    return of.flow(of.Particles([[x0]]), of.UnnormalisedAttention(*[[[1.0]]] * 3), t1=t1, **options)


def _blow_up_claims() -> list[Claim]:
    source = Source(
        "separation of variables in x' = exp(x^2) x; Theorem 3.1 leaves unnormalised attention out"
    )
    fine = of.Dopri5(rtol=1e-10, atol=1e-12)
    return [
        source(f"unnormalised attention, one token at {x0:g}, A = V = 1: blow-up at t = E_1(x0^2) / 2").equal(
            exp1(x0**2) / 2, _one_token(x0, 10.0, stepper=fine, save_at=[0.0]).blow_up_time, rtol=1e-6
        )
        for x0 in STARTS
    ]


def _mean_claim(traj: of.Trajectory, V: Tensor) -> Claim:
    start, end = (of.observables.mean(mu).numpy() for mu in (traj.measures[0], traj.final))
    exact = expm(float(traj.ts[-1]) * V.numpy() / EPS) @ start
    return PAPER.at("section 4 (double stochasticity)")(
        "Sinkhorn attention: the mean follows dm/dt = V m / eps (relative error at t = 3)"
    ).at_most(1e-6, np.linalg.norm(end - exact) / np.linalg.norm(exact))


def _equivariance_claims(mu0: of.Particles, fields: Fields, rng: np.random.Generator) -> list[Claim]:
    order = torch.from_numpy(rng.permutation(mu0.n))

    def error(field: of.VelocityField) -> Tensor:
        clouds = mu0, of.Particles(mu0.x[order])
        a, b = (of.flow(mu, field, of.RK4(), t1=1.0, dt=0.1).final.coords[0] for mu in clouds)
        return (a[order] - b).abs().max()

    return [
        Source("permutation equivariance of attention without mask")(
            f"{name} attention: shuffled tokens, shuffled flow (largest difference at t = 1)"
        ).at_most(1e-8, error(field))
        for name, field in fields.items()
    ]


def _fluctuations(fields: Fields, rng: np.random.Generator, frame: Frame) -> Spread:
    """The standard deviation of the second moment at t = 1 over independent clouds, against n."""
    copies = frame.size({25: 128, 100: 128}, {25: 400, 100: 400, 400: 120})
    out: Spread = {name: {} for name in fields}
    for i, (n, count) in enumerate(copies.items()):
        clouds = of.Particles(rng.uniform(-1.0, 1.0, (count, n, 2)))
        for name, field in fields.items():
            frame.stage(0.6 + 0.4 * i / len(copies), f"{count} clouds of {n} tokens, {name}")
            final = of.flow(clouds, field, of.RK4(), t1=1.0, dt=0.25).final
            out[name][n] = float(of.observables.second_moment(final).std())
    return out


def _slope(spread: dict[int, float]) -> float:
    return slope(list(spread), list(spread.values()))


def _rate_claims(spread: Spread) -> list[Claim]:
    return [
        PAPER.at("Theorem 3.1 (mean-field limit)")(
            f"{name} attention: the second moment fluctuates like n^-0.5 (slope from n to 4n)"
        ).within(-0.65, -0.35, _slope(values))
        for name, values in spread.items()
    ]


def _data(flows: Flows, spread: Spread) -> dict[str, np.ndarray]:
    data = {"t": flows["softmax"].ts.numpy()}
    for name, traj in flows.items():
        key = name.replace("-", "_")
        data[f"tokens_{key}"] = traj.stacked.coords[0].numpy()
        data[f"radius_{key}"] = traj.observed["radius"].numpy()
        data[f"spread_{key}"] = np.array(list(spread[name].items()))
    return data


# --- figures -----------------------------------------------------------------------------------------


def _draw_flows(flows: Flows) -> Any:
    """One scale for all panels, since the flows differ in how far they carry the same tokens."""
    fig, axes = of.plot.figure(1, len(flows), size=(10.8, 3.6))
    x = torch.cat([traj.stacked.coords[0].flatten(0, 1) for traj in flows.values()])
    low, high = (x.amin(0) - 0.15).tolist(), (x.amax(0) + 0.15).tolist()
    one: Any = {"xlim": (low[0], high[0]), "ylim": (low[1], high[1]), "adjustable": "box"}
    for ax, (name, traj) in zip(axes.flat, flows.items(), strict=True):
        start = traj.measures[0].coords[0]
        of.plot.trails(traj, ax=ax, color=start[:, 0].numpy(), size=70.0 / len(start) ** 0.5)
        of.plot.panel(ax, f"{name} attention", **one).label_outer()
    of.plot.panel(axes[0, -1], legend="beside")
    return fig


def _draw_radius(flows: Flows, bounds: Bounds) -> Any:
    fig, ((ax,),) = of.plot.figure(1, 1, size=(7.0, 4.0))
    for (name, traj), colour in zip(flows.items(), of.plot.COLOURS, strict=False):
        radius = traj.observed["radius"]
        ax.plot(traj.ts, radius, color=colour, label=name)
        if name in bounds:
            bound = radius[0] * torch.exp(bounds[name][0] * traj.ts)
            ax.plot(traj.ts, bound, color=colour, linestyle=":", linewidth=1)
    title = "measured (solid), bound (dotted; softmax, L2 and sigmoid share theirs)"
    of.plot.panel(
        ax,
        title,
        "time $t$ (depth)",
        "radius of the cloud",
        yscale="log",
        legend="beside",
        yticks=[1, 2, 5, 10, 20],
    )
    return fig


def _draw_blow_up() -> Any:
    """One token's path, and the exact one: E_1(x^2) = 2 (T - t)."""
    fig, ((ax,),) = of.plot.figure(1, 1, size=(7.0, 4.0))
    for x0, colour in zip(STARTS, of.plot.COLOURS, strict=False):
        end = exp1(x0**2) / 2
        times = end * (1 - np.geomspace(1.0, 1e-6, 200))  # ever denser, since the path turns upwards late
        traj = _one_token(x0, times[-1], stepper=of.Dopri5(), save_at=times)
        x = traj.stacked.coords[0].flatten().numpy()
        ax.plot(traj.ts, x, color=colour, label=f"$x(0) = {x0:g}$")
        grid = np.geomspace(x0, x[-1], 25)
        ax.plot(end - exp1(grid**2) / 2, grid, "o", color=colour, markersize=3)
        ax.axvline(end, color=colour, linestyle=":", linewidth=1)
    title = "unnormalised attention: computed (line), exact (dots), blow-up (dotted)"
    of.plot.panel(ax, title, "time $t$", "the token $x(t)$", legend="upper center")
    return fig


def _draw_rates(spread: Spread) -> Any:
    fig, ((ax,),) = of.plot.figure(1, 1, size=(7.0, 4.0))
    for (name, values), colour in zip(spread.items(), of.plot.COLOURS, strict=False):
        label = f"{name}: slope ${_slope(values):.2f}$"
        ax.loglog(list(values), list(values.values()), "o-", color=colour, label=label)
    n = np.array(list(spread["softmax"]), dtype=float)
    ax.loglog(n, spread["softmax"][int(n[0])] * (n / n[0]) ** -0.5, "k--", linewidth=1, label="slope $-0.5$")
    ticks = [0.02, 0.05, 0.1, 0.2, 0.5]
    title = "fluctuation of the second moment at $t = 1$"
    of.plot.panel(
        ax, title, "number of tokens $n$", "standard deviation", xticks=n, yticks=ticks, legend="beside"
    )
    return fig
