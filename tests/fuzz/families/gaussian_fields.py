"""Fields on Gaussians against integrals by the trapezoidal rule, limits, and modules of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tests.fuzz import draws
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family, slow_family
from tests.fuzz.families.closed_forms_attention import bistochastic

Kernel = Callable[[Array, Array], Array]


def trapezoids(d: int) -> tuple[Array, Array]:
    """Nodes and weights for N(0, I), exact to rounding for what is analytic and grows moderately; d <= 2."""
    z = np.linspace(-13, 13, 521 if d == 1 else 105)
    p = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    nodes = np.stack(np.meshgrid(*[z] * d, indexing="ij"), -1).reshape(-1, d)
    mass = p if d == 1 else np.outer(p, p).ravel()
    return nodes, mass


def tilted(kernel: Kernel, points: Array, y: Array, p: Array, V: Array, *, normalised: bool) -> Array:
    """int V y k(x, y) dmu(y), over int k(x, y) dmu(y) or not."""
    k = kernel(points, y) * p
    return np.asarray((k / k.sum(1, keepdims=True) if normalised else k) @ y @ V.T)


@family
def attention_on_gaussians(rng: Rng) -> Case:
    """Softmax and L2 attention are affine: known from integrals at m and m + r for columns r of R."""
    d, kind = int(rng.integers(1, 3)), str(draws.pick(rng, ("Softmax", "L2")))
    m, R = 0.5 * rng.standard_normal(d), draws.matrix(rng, d, d, size=0.7)
    Q, K, V = (draws.matrix(rng, d, d, size=0.5) for _ in range(3))
    K = K * min(1.0, 1.5 / max(1e-9, np.linalg.norm(K @ R)))  # the kernel is no narrower than the mesh
    tilt = np.linalg.norm(np.vstack([m, m + R.T]) @ Q.T @ K @ R, axis=1).max()
    Q = Q * min(1.0, 3 / max(1e-9, tilt))  # and the tilted law stays within the nodes
    z, p = trapezoids(d)
    y = m + z @ R.T

    def kernel(x: Array, y: Array) -> Array:
        if kind == "L2":
            return np.asarray(np.exp(-(((x @ Q.T)[:, None] - (y @ K.T)[None]) ** 2).sum(-1)))
        s = (x @ Q.T) @ (y @ K.T).T
        return np.asarray(np.exp(s - s.max(1, keepdims=True)))

    values = tilted(kernel, np.vstack([m, m + R.T]), y, p, V, normalised=True)
    size = 1 + abs(values).max()
    return Case(
        f"mu = of.Gaussian(m, root=R)\nv = of.{kind}Attention(Q, K, V)(0.0, mu)\nv[0], v[1]",
        {"m": m, "R": R, "Q": Q, "K": K, "V": V},
        lambda: (values[0], (values[1:] - values[0]).T),
        lambda: 1e-12 * size,
    )


@family
def sinkhorn_attention_on_gaussians(rng: Rng) -> Case:
    """B = V C S^-1 / eps, C of the iteration on quadratic potentials; the mean moves with V m / eps."""
    d, eps = draws.dimension(rng), float(10 ** rng.uniform(0, 1.5))
    S, m, V = draws.spd(rng, d, d, condition=10.0), rng.standard_normal(d), draws.matrix(rng, d, d)
    Q, K = draws.matrix(rng, d, d, size=0.5), draws.matrix(rng, d, d, size=0.5)
    L = np.linalg.cholesky(S)
    C = bistochastic(S, K.T @ Q, eps)
    return Case(
        f"v = of.SinkhornAttention(Q, K, V, eps={eps!r})(0.0, of.Gaussian(m, root=L))\nv[0], v[1]",
        {"m": m, "L": L, "Q": Q, "K": K, "V": V},
        lambda: (V @ m / eps, V @ C @ np.linalg.inv(S) @ L / eps),
        lambda: 1e-13 * (1 + abs(V).max()) * 10 * (1 + abs(S).max()) ** 2 * d,
    )


@family
def projections(rng: Rng) -> Case:
    """(E v(X), E v(X) Z) on the line, of sigmoid and unnormalised attention and perceptrons."""
    m, r = 0.5 * float(rng.normal()), float(rng.uniform(0.2, 1))
    a, v, b = float(rng.uniform(-0.8, 0.8)), float(rng.normal()), float(rng.normal())
    z, p = trapezoids(1)
    x = m + r * z
    kind = str(draws.pick(rng, ("Sigmoid", "Unnormalised", "Perceptron")))
    if kind == "Perceptron":
        code = f"of.Perceptron([[{v!r}]], [[{a!r}]], [{b!r}], torch.tanh)"
        values = v * np.tanh(a * x[:, 0] + b)
    else:
        code = f"of.{kind}Attention([[{a!r}]], [[1.0]], [[{v!r}]])"
        s = a * np.outer(x[:, 0], x[:, 0])
        gate = np.exp(s) if kind == "Unnormalised" else 1 / (1 + np.exp(-s))
        values = gate @ (p * x[:, 0]) * v
    size = 1e-12 * (1 + abs(v))
    return Case(
        f"mu, field = of.Gaussian([{m!r}], root=[[{r!r}]]), {code}\n"
        "t, v = torch.tensor(0.0, dtype=torch.float64), of.GaussianProjection(field)(0.0, mu)\n"
        "w = of.fields.project(field, t, mu)\nv[0][0], v[1][0, 0], w[0][0], w[1][0, 0]",
        {},
        lambda: ((p * values).sum(), (p * values * z[:, 0]).sum()) * 2,
        lambda: size,
    )


@family
def score_energies_of_gaussians(rng: Rng) -> Case:
    """(1/2) E f(a X Y) for independent X, Y on the line, f = exp or log(1 + exp)."""
    m, r = 0.5 * float(rng.normal()), float(rng.uniform(0.2, 1))
    a = float(rng.uniform(-0.8, 0.8))

    @cache
    def known() -> tuple[float, float]:
        z = np.linspace(-30, 30, 1501)  # exp(a X Y) tilts the law by as much as 20 deviations
        x, log = m + r * z, np.log((z[1] - z[0]) / np.sqrt(2 * np.pi)) - z**2 / 2
        s, logs = a * np.outer(x, x), log[:, None] + log
        return float(np.exp(s + logs).sum() / 2), float((np.logaddexp(0, s) * np.exp(logs)).sum() / 2)

    return Case(
        f"mu = of.Gaussian([{m!r}], root=[[{r!r}]])\n"
        f"of.ExponentialInteraction([[{a!r}]])(mu), of.SigmoidInteraction([[{a!r}]])(mu)",
        {},
        known,
        lambda: 1e-12 * (1 + known()[0]),
    )


@slow_family
def limits(rng: Rng) -> Case:
    """Softmax with V = I and A = -B of rank r converges to N (N^T S^-1 N)^-1 N^T, N the kernel of B."""
    d = int(rng.integers(1, 4))
    r = int(rng.integers(1, d + 1))
    S = draws.spd(rng, d, d, condition=1e4)
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = -(q[:, :r] * rng.uniform(0.5, 2, r)) @ q[:, :r].T
    A = (A + A.T) / 2
    N = q[:, r:]
    end = N @ np.linalg.inv(N.T @ np.linalg.inv(S) @ N) @ N.T
    return Case(
        f"found = of.limit(of.Gaussian(np.zeros({d}), cov=S), of.SoftmaxAttention(A, np.eye({d}), "
        f"np.eye({d})))\n"
        "found.measure.cov, found.rank, found.status",
        {"S": S, "A": A},
        lambda: (end, d - r),
        lambda: (1e-5 * abs(S).max(), 0.0),
    )


@family
def gradient_flows_of_attention(rng: Rng) -> Case:
    """`as_gradient_flow` finds a descent with the same velocity."""
    kind = str(draws.pick(rng, ("Softmax", "Sigmoid", "Unnormalised", "Sinkhorn")))
    n, d = draws.size(rng), draws.dimension(rng)
    x, A = rng.standard_normal((n, d)), draws.symmetric(rng, d)
    return Case(
        f"mu, field = of.Particles(x), of.{kind}Attention(A, np.eye({d}), -A)\n"
        "(field.as_gradient_flow()(0.0, mu)[0] - field(0.0, mu)[0]).abs().max()",
        {"x": x, "A": A},
        lambda: 0.0,
        lambda: 1e-7 * (1 + abs(x).max()) * (1 + np.exp((abs(x) @ abs(A) @ abs(x).T).max())),
    )


@family
def modules_of_torch(rng: Rng) -> Case:
    """Multi-head attention of torch from its definition, as a field and back, and flows as layers."""
    heads, k, n = int(rng.integers(1, 4)), int(rng.integers(1, 4)), draws.size(rng)
    d = heads * k
    W, out, x = (
        rng.standard_normal((3 * d, d)) / 2,
        rng.standard_normal((d, d)) / 2,
        rng.standard_normal((n, d)),
    )
    Q, K, V = (W[i * d : (i + 1) * d].astype(LONG).reshape(heads, k, d) for i in range(3))

    def layer(x: Any) -> Any:
        parts = []
        for q, key, value in zip(Q, K, V, strict=True):
            s = (x @ q.T) @ (x @ key.T).T / np.sqrt(LONG(k))
            e = np.exp(s - s.max(1, keepdims=True))
            parts.append(e / e.sum(1, keepdims=True) @ x @ value.T)
        return np.concatenate(parts, 1) @ out.T

    v = layer(x.astype(LONG))
    step = x + 0.25 * v
    euler = step + 0.25 * layer(step)
    return Case(
        f"module = torch.nn.MultiheadAttention({d}, {heads}, bias=False, batch_first=True, "
        "dtype=torch.float64)\n"
        "with torch.no_grad():\n"
        "    module.in_proj_weight.copy_(torch.from_numpy(W))\n"
        "    module.out_proj.weight.copy_(torch.from_numpy(out))\n"
        "x, field = torch.from_numpy(x), of.nn.from_torch(module)\n"
        "back = of.nn.to_torch(field)\n"
        "net = of.nn.Flow(field, of.Euler(), t1=0.5, dt=0.25)\n"
        "row = of.nn.ModuleField(torch.nn.Softmax(-1))(0.0, of.Particles(x))[0]\n"
        "of.nn.FieldModule(field)(x), back(x, x, x)[0], net(x), row",
        {"W": W, "out": out, "x": x},
        lambda: (v, v, euler, np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        lambda: 1e-14 * (1 + abs(x).max()) * d**2,
    )


@family
def verdicts(rng: Rng) -> Case:
    """A claim holds where a number is as near as it says."""
    a, off, slack = float(rng.normal()), float(10 ** rng.uniform(-6, 0)), float(10 ** rng.uniform(-6, 0))
    near, below = abs(a + off - a) <= slack, a + off <= a + slack * abs(a)
    return Case(
        "says = of.reproduce.Source('Nobody 2025').at('(1)')('a number')\n"
        f"claims = says.equal({a!r}, {a + off!r}, atol={slack!r}), says.at_most({a!r}, {a + off!r}, "
        f"slack={slack!r}), "
        f"says.within({a!r}, {a + off!r}, {a!r})\n"
        f"frame = of.reproduce.Frame(quick=True)\n"
        "[c.verdict is of.reproduce.Verdict.HOLDS for c in claims], frame.size(quick=1, full=2)",
        {},
        lambda: (float(near), float(below), 1.0, 1.0),
        lambda: 0.0,
    )
