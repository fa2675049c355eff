"""Identities that every distance, energy and field obeys, whatever its formula.

A measure does not know the order of its atoms, nor whether an atom is one or two of half the mass, nor atoms
without mass; a member of a batch is what it is alone; distances scale, and do not see rotations and shifts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.fuzz import draws
from tests.fuzz.draws import Array, Rng
from tests.fuzz.engine import Case, family

LOOSE = 1e-8  # relative to the size of the clouds, to the power that is the degree; tolerances are 1e-9
SINGLE = 1e-4  # the same in single precision


class Number(NamedTuple):
    """Code for a number of mu and nu in a unit s of length, and its degree in it."""

    code: str
    degree: float
    labelled: bool = False


DISTANCES = (
    Number("of.wasserstein(mu, nu).square()", 2),
    Number("of.wasserstein(mu, nu, 1)", 1),
    Number("of.wasserstein(mu, nu, 3) ** 3", 3),
    Number("of.solve(mu, nu).cost", 2),
    Number("of.conditional_wasserstein(mu, nu).square()", 2, True),
    Number("of.sequence_distance(mu, nu).square()", 2, True),
    Number("of.transport.relaxed_conditional(mu, nu, s * s).distance.square()", 2, True),
    Number("of.mmd(mu, nu, of.transport.EnergyKernel()).square() * s", 2),
    Number("of.mmd(mu, nu, of.transport.GaussianKernel(s)).square() * s**2", 2),
    Number("of.mmd(mu, nu, of.transport.LaplaceKernel(s)).square() * s**2", 2),
    Number("of.sinkhorn(mu, nu, s * s).cost", 2),
    Number("of.sinkhorn(mu, nu, s * s).regularised_cost", 2),
    Number("of.sinkhorn(mu, nu, s, cost=of.transport.PowerCost(1)).regularised_cost", 1),
    Number("of.sinkhorn_divergence(mu, nu, s * s)", 2),
    Number("of.MMD(nu, of.transport.EnergyKernel())(mu) * s", 2),
    Number("of.SquaredWasserstein(nu)(mu)", 2),
    Number("of.SinkhornDivergence(nu, s * s)(mu)", 2),
    Number("of.distance(mu, nu, of.Wasserstein()).square()", 2),
)
ENERGIES = (
    Number("of.QuadraticInteraction(eye)(mu)", 2),
    Number("of.QuadraticPotential(eye)(mu)", 2),
    Number("of.Interaction(lambda x, y: (x - y).square().sum(-1).square())(mu)", 4),
    Number("of.Potential(lambda x: x.square().sum(-1).square())(mu)", 4),
    Number("of.SquaredScores(eye)(mu)", 4),
    Number("of.ExponentialInteraction(eye / s**2)(mu) * s", 1),
    Number("of.SigmoidInteraction(eye / s**2)(mu) * s", 1),
    Number("of.SelfTransport(eye, s * s)(mu) * s", 1),
    Number("of.observables.second_moment(mu)", 2),
    Number("of.observables.covariance(mu).diagonal(dim1=-2, dim2=-1).sum(-1)", 2),
)
FIELDS = (
    "of.SoftmaxAttention(A, A.T, B)",
    "of.L2Attention(A, B, B)",
    "of.SigmoidAttention(A, B, A)",
    "of.UnnormalisedAttention(A, B, A)",
    "of.SinkhornAttention(A, B, B)",
    "of.MultiHead([of.SoftmaxAttention(A, A, B), of.L2Attention(B, A, A)])",
    "of.SteepestDescent(of.SelfTransport(A + A.T), of.Wasserstein())",
    "of.SteepestDescent(of.SinkhornDivergence(of.Particles(B), 1.0), of.Wasserstein())",
    "of.SteepestDescent(of.MMD(of.Particles(B), of.transport.GaussianKernel(1.0)), of.Wasserstein())",
    "of.SteepestDescent(of.SquaredScores(A), of.Wasserstein())",
    "of.SteepestDescent(of.ExponentialInteraction(A + A.T), of.Twisted(of.metrics.Partition(A + A.T)))",
    "of.SteepestDescent(of.QuadraticPotential(A @ A.T), of.Twisted(matrix=A @ A.T + np.eye(len(A))))",
)


class Atoms(NamedTuple):
    x: Array
    w: Array
    label: Array


def atoms(rng: Rng, n: int, d: int, shift: float) -> Atoms:
    """Masses k / 12 and few labels, alike for any two clouds: each label has the same share in all."""
    x = rng.standard_normal((n, d)) + shift
    label = np.arange(n) % 2 / 2
    w = np.where(label == 0, 0.5, 0.5)
    for s in (0.0, 0.5):
        here = label == s
        share = (0.5 if n > 1 else 1.0) if here.any() else 0.0
        w[here] = share * rng.dirichlet(np.full(here.sum(), 3.0)) if here.any() else 0.0
    return Atoms(x, w, label)


def permuted(rng: Rng, a: Atoms) -> Atoms:
    i = rng.permutation(len(a.x))
    return Atoms(a.x[i], a.w[i], a.label[i])


def split(rng: Rng, a: Atoms) -> Atoms:
    """One atom becomes two of a part of the mass each."""
    i, part = int(rng.integers(len(a.x))), float(rng.uniform(0.1, 0.9))
    w = np.append(a.w, part * a.w[i])
    w[i] *= 1 - part
    return Atoms(np.vstack([a.x, a.x[i]]), w, np.append(a.label, a.label[i]))


def padded(rng: Rng, a: Atoms) -> Atoms:
    """An atom without mass, anywhere."""
    far = a.x.mean(0) + 10 * rng.standard_normal(a.x.shape[1])
    return Atoms(np.vstack([a.x, far]), np.append(a.w, 0.0), np.append(a.label, 0.0))


REARRANGED = {"permuted": permuted, "split": split, "padded": padded}


def arrays(name: str, a: Atoms) -> dict[str, Array]:
    return {f"x{name}": a.x, f"w{name}": a.w, f"s{name}": a.label}


def cloud(name: str, labelled: bool) -> str:
    return f"of.Particles(x{name}, w{name}{f', label=s{name}' if labelled else ''})"


def two(rng: Rng) -> tuple[int, Atoms, Atoms]:
    d, n, m = draws.dimension(rng), int(rng.integers(2, 7)), int(rng.integers(2, 7))
    return d, atoms(rng, n, d, 0.0), atoms(rng, m, d, 0.5)


def extent(*clouds: Atoms) -> float:
    return 1 + max(float(abs(a.x).max()) for a in clouds) * 2 * np.sqrt(clouds[0].x.shape[1])


@family
def numbers_of_rearranged_atoms(rng: Rng) -> Case:
    d, a, b = two(rng)
    one = draws.pick(rng, (*DISTANCES, *ENERGIES))
    change = draws.pick(rng, tuple(REARRANGED.values()))
    other = change(rng, a)
    return Case(
        f"s, eye = 1.0, np.eye({d})\n"
        f"mu, nu, other = {cloud('1', one.labelled)}, {cloud('2', one.labelled)}, "
        f"{cloud('3', one.labelled)}\n"
        f"before = {one.code}\nmu = other\n{one.code} - before",
        {**arrays("1", a), **arrays("2", b), **arrays("3", other)},
        lambda: 0.0,
        lambda: (
            LOOSE
            * extent(a, b) ** one.degree
            * 10
            * (np.exp(extent(a) ** 2) if "Exponential" in one.code else 1)
        ),
    )


@family
def numbers_of_scaled_atoms(rng: Rng) -> Case:
    """Powers of two change no digit, so that nothing but ranges and thresholds can be in the way."""
    d, a, b = two(rng)
    one, power = draws.pick(rng, (*DISTANCES, *ENERGIES)), int(rng.integers(-40, 41))
    return Case(
        f"s, eye = 1.0, np.eye({d})\n"
        f"mu, nu = {cloud('1', one.labelled)}, {cloud('2', one.labelled)}\n"
        f"before, s = {one.code}, 2.0**{power}\n"
        f"mu, nu = (of.Particles(s * one.x, one.w, one.label) for one in (mu, nu))\n"
        f"({one.code}) * 2.0**{-power * one.degree!r} - before",
        {**arrays("1", a), **arrays("2", b)},
        lambda: 0.0,
        lambda: (
            LOOSE
            * extent(a, b) ** one.degree
            * 10
            * (np.exp(extent(a) ** 2) if "Exponential" in one.code else 1)
        ),
    )


@family
def distances_of_moved_atoms(rng: Rng) -> Case:
    """Rotations and shifts, and which measure comes first, make no difference."""
    d, a, b = two(rng)
    one = draws.pick(rng, [n for n in DISTANCES if n.code != "of.SquaredWasserstein(nu)(mu)"])
    q, shift = np.linalg.qr(rng.standard_normal((d, d)))[0], rng.standard_normal(d)
    return Case(
        f"s, q = 1.0, torch.from_numpy(q)\n"
        f"mu, nu = {cloud('1', one.labelled)}, {cloud('2', one.labelled)}\n"
        f"before = {one.code}\n"
        "nu, mu = (of.Particles(one.x @ q + torch.from_numpy(shift), one.w, one.label) for one in (mu, nu))\n"
        f"({one.code}) - before",
        {**arrays("1", a), **arrays("2", b), "q": q, "shift": shift},
        lambda: 0.0,
        lambda: LOOSE * (extent(a, b) + abs(shift).max()) ** one.degree * 10,
    )


@family
def numbers_of_batches_and_single_precision(rng: Rng) -> Case:
    """A batch gives what its members give, and single precision the first digits."""
    d, a, b = two(rng)
    c = atoms(rng, len(a.x), d, 1.0)
    one = draws.pick(rng, (*DISTANCES, *ENERGIES))
    exponential = np.exp(extent(a, c) ** 2) if "Exponential" in one.code else 1
    size = extent(a, b, c) ** one.degree * 10 * exponential
    label = ", label=np.stack([s1, s3])" if one.labelled else ""
    return Case(
        f"s, eye, alone = 1.0, np.eye({d}), []\n"
        f"first, nu, second = {cloud('1', one.labelled)}, {cloud('2', one.labelled)}, "
        f"{cloud('3', one.labelled)}\n"
        "for mu in (first, second):\n"
        f"    alone.append({one.code})\n"
        f"mu = of.Particles(np.stack([x1, x3]), np.stack([w1, w3]){label})\n"
        f"together = {one.code}\n"
        "mu, nu = first.to(torch.float32), nu.to(torch.float32)\n"
        "eye = np.float32(eye)\n"
        f"rough = {one.code}\n"
        "together - torch.stack(alone), rough - alone[0]",
        {**arrays("1", a), **arrays("2", b), **arrays("3", c)},
        lambda: (np.zeros(2), 0.0),
        lambda: (LOOSE * size, SINGLE * size),
    )


@family
def fields_on_rearranged_atoms(rng: Rng) -> Case:
    """The velocity of a token depends on the law: on the tokens that stay, all is as before."""
    d, a, _ = two(rng)
    A, B = 0.4 * rng.standard_normal((2, d, d))
    field, name = str(draws.pick(rng, FIELDS)), str(draws.pick(rng, ("permuted", "split")))
    i = rng.permutation(len(a.x))
    other = Atoms(a.x[i], a.w[i], a.label[i]) if name == "permuted" else split(rng, a)
    kept = i if name == "permuted" else np.arange(len(a.x))
    return Case(
        f"mu, other, field = {cloud('1', False)}, {cloud('2', False)}, {field}\n"
        f"v, w = field(0.0, mu)[0][kept], field(0.0, other)[0][:{len(a.x)}]\n"
        "(w - v) / (1 + v.abs().max())",
        {**arrays("1", a), **arrays("2", other), "A": A, "B": B, "kept": kept},
        lambda: np.zeros(a.x.shape),
        lambda: 10 * LOOSE / a.w.min(),
    )


GAUSSIANS = (
    "of.bures_wasserstein(mu, nu).square()",
    "of.wasserstein(mu, nu).square()",
    "of.sinkhorn(mu, nu, 1.0).regularised_cost",
    "of.sinkhorn_divergence(mu, nu, 1.0)",
    "of.solve(mu, nu).cost",
    "of.SquaredWasserstein(nu)(mu)",
    "of.SinkhornDivergence(nu, 1.0)(mu)",
    "of.QuadraticPotential(A @ A.T)(mu)",
    "of.SquaredScores(A)(mu)",
    "of.SelfTransport(A + A.T)(mu)",
    "of.ExponentialInteraction((A + A.T) / 20)(mu)",
    "of.SigmoidInteraction(A + A.T)(mu)",
    "of.L2Energy(A)(mu)",
    "of.observables.effective_rank(mu)",
    "of.SoftmaxAttention(A, A, A)(0.0, mu)[0]",
    "of.L2Attention(A, A, A)(0.0, mu)[0]",
    "of.SinkhornAttention(A, A, A)(0.0, mu)[0]",
    "of.GaussianProjection(of.SigmoidAttention(A, A, A))(0.0, mu)[0]",
    "of.GaussianProjection(of.Perceptron(A, A, activation=torch.relu))(0.0, mu)[0]",
)


@family
def gaussians_by_other_roots(rng: Rng) -> Case:
    """R, R O with O orthogonal, and R with a column of zeros are roots of one covariance."""
    d = int(rng.integers(1, 4))
    k = int(rng.integers(1, d + 1))
    m, p, A = rng.standard_normal(d), rng.standard_normal(d), 0.4 * rng.standard_normal((d, d))
    R, S = 0.5 * rng.standard_normal((d, k)), 0.5 * rng.standard_normal((d, d))
    wide = np.hstack([R, np.zeros((d, 1))]) if draws.chance(rng, 0.3) else R
    q = np.linalg.qr(rng.standard_normal((wide.shape[1],) * 2))[0]
    number = str(draws.pick(rng, GAUSSIANS))
    size = (1 + abs(m).max() + abs(p).max() + abs(R).max() + abs(S).max()) ** 2 * (1 + abs(A).max())
    return Case(
        f"mu, nu = of.Gaussian(m, root=R), of.Gaussian(p, root=S)\n"
        f"before, mu = {number}, of.Gaussian(m, root=T)\n{number} - before",
        {"m": m, "p": p, "A": A, "R": R, "S": S, "T": wide @ q},
        lambda: np.zeros(d) if number.endswith("[0]") else 0.0,
        lambda: LOOSE * size,
    )
