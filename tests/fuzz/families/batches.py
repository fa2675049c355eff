"""Batches: members are what they are alone, whatever the shape; scales of Gaussians."""

from __future__ import annotations

import numpy as np

from tests.fuzz import draws
from tests.fuzz.draws import Rng
from tests.fuzz.engine import Case, family

SHAPES = ((1,), (3,), (2, 2), (1, 1), (2, 1, 2))
CLOSE = 1e-12  # relative: another order of sums
C = "of.closed_forms"

CLOSED_FORMS = (
    f"{C}.softmax_rate(S, A, V)",
    f"{C}.l2_rate(S, A, V, A)",
    f"{C}.sinkhorn_rate(S, A, V)",
    f"{C}.sinkhorn_energy(S, A + A.swapaxes(-1, -2))",
    f"{C}.softmax_energy(S, A + A.swapaxes(-1, -2))",
    f"{C}.softmax_path(S, A, t / 50)",
    f"{C}.softmax_path_sensitivity(S, A, t / 50)",
    f"{C}.softmax_blow_up_time(S, A)",
    f"{C}.l2_energy(S, A, 0.7)",
    f"{C}.l2_trace_bound(S, A, T, V, t)",
    f"{C}.sinkhorn_trace_bound(S, V, t)",
    f"{C}.entropic_cross(S, T, 1.5)",
    f"{C}.entropic_value(S, T, 1.5)",
    f"{C}.debiased_rate(S, 1.5)",
    f"{C}.heat_path(S, t)",
    f"{C}.score(S)",
    f"{C}.l2_displacement(S, 0.5)",
    f"{C}.sinkhorn_displacement(S, 0.5)",
    f"{C}.twisted_energy(S, A / 50)",
    f"{C}.fokker_planck(t, m, S, T, m, 1.5)[0]",
    f"{C}.fokker_planck(t, m, S, T, m, 1.5)[1]",
    f"{C}.fokker_planck_step(m, S, T, m, 1.5, 0.3)[1]",
    "of.transport.bures(S, T)",
    "of.bures_wasserstein(of.Gaussian(m, cov=S), of.Gaussian(m, cov=T))",
    "of.transport.bures_map(of.Gaussian(m, cov=S), of.Gaussian(m, cov=T)).matrix",
    "of.transport.bures_geodesic(of.Gaussian(m, cov=S), of.Gaussian(m, cov=T), 0.3).cov",
    "of.sinkhorn(of.Gaussian(m, cov=S), of.Gaussian(m, cov=T), 1.5).cost",
    "of.SoftmaxAttention(A, V, V)(0.0, of.Gaussian(m, cov=S))[1]",
    "of.SinkhornAttention(A, V, V)(0.0, of.Gaussian(m, cov=S))[1]",
    "of.L2Attention(A, V, V)(0.0, of.Gaussian(m, cov=S))[1]",
    "of.GaussianProjection(of.SigmoidAttention(A / 9, V, V))(0.0, of.Gaussian(m, cov=S))[1]",
    "of.QuadraticPotential(T, m)(of.Gaussian(m / 2, cov=S))",
    "of.jko_step(of.Gaussian(m, cov=S), of.Entropy(), 0.3).mu.cov",
    "of.observables.effective_rank(of.Gaussian(m, cov=S))",
)


@family
def batches_of_covariances(rng: Rng) -> Case:
    """Functions of covariances on a batch of any shape are those of its members."""
    shape, d = draws.pick(rng, SHAPES), draws.dimension(rng)
    S, T = (draws.spd(rng, *shape, d, d, condition=10.0) for _ in range(2))
    A, V = (0.4 * rng.standard_normal((*shape, d, d)) for _ in range(2))
    m, t = rng.standard_normal((*shape, d)), rng.uniform(0, 1, shape)
    code = str(draws.pick(rng, CLOSED_FORMS))
    return Case(
        f"whole, parts, given = {code}, [], (S, T, A, V, m, t)\n"
        f"for k in np.ndindex({shape!r}):\n"
        "    S, T, A, V, m, t = (a[k] for a in given)\n"
        f"    parts.append({code})\n"
        f"alone = torch.stack(parts).reshape(whole.shape)\n"
        "off = torch.where(whole == alone, 0.0, (whole - alone).abs()).max()\n"
        "off / torch.where(alone.isfinite(), alone.abs(), 1e-300).max()",
        {"S": S, "T": T, "A": A, "V": V, "m": m, "t": t},
        lambda: 0.0,
        lambda: 1e3 * CLOSE,
    )


GAUSSIANS = {
    "of.bures_wasserstein(mu, nu)": 1,
    "of.transport.bures(mu.cov, nu.cov)": 1,
    "of.wasserstein(mu, nu)": 1,
    "of.transport.bures_map(mu, nu).matrix.diagonal().sum()": 0,
    "of.transport.bures_geodesic(mu, nu, 0.3).cov.diagonal().sum()": 2,
    "of.sinkhorn(mu, nu, s * s).cost": 2,
    "of.sinkhorn(mu, nu, s * s).regularised_cost": 2,
    "of.sinkhorn_divergence(mu, nu, s * s)": 2,
    "of.SelfTransport(A / s**2)(mu)": 0,
    "of.ExponentialInteraction(A / s**2)(mu)": 0,
    "of.SigmoidInteraction(A / s**2)(mu)": 0,
    "of.L2Energy(A / s)(mu)": 0,
    "of.SquaredScores(A)(mu)": 4,
    "of.SoftmaxAttention(A / s**2, eye, A)(0.0, mu)[1].norm()": 1,
    "of.SinkhornAttention(A / s**2, eye, A)(0.0, mu)[1].norm()": 1,
    "of.L2Attention(A / s, A / s, A)(0.0, mu)[1].norm()": 1,
    "of.GaussianProjection(of.SigmoidAttention(A / s**2, eye, A))(0.0, mu)[1].norm()": 1,
    "of.GaussianProjection(of.UnnormalisedAttention(A / s**2, eye, A))(0.0, mu)[1].norm()": 1,
    "of.jko_step(mu, of.Entropy(), s * s).mu.cov.diagonal().sum()": 2,
    "of.observables.effective_rank(mu)": 0,
    "of.transport.bures_barycentre(of.Gaussian(s * M, root=s * R)).measure.cov.diagonal().sum()": 2,
}


@family
def numbers_of_scaled_gaussians(rng: Rng) -> Case:
    """Powers of two change no digit, in single precision as in double, so that only thresholds can."""
    d, dtype, power = int(rng.integers(1, 4)), draws.precision(rng), int(rng.integers(-40, 41))
    power = int(np.clip(power, -12, 12)) if dtype is np.float32 else power  # a fourth power stays in range
    M, R = 0.3 * rng.standard_normal((2, d)), 0.5 * rng.standard_normal((2, d, d)) + np.eye(d)
    A = draws.symmetric(rng, d, size=0.1)
    M, R, A = (a.astype(dtype) for a in (M, R, A))
    code = str(draws.pick(rng, tuple(GAUSSIANS)))
    degree = GAUSSIANS[code]
    loose = 1e-6 if dtype is np.float64 else 1e-3
    return Case(
        "eye = np.eye(len(A), dtype=A.dtype)\n"
        "s, mu, nu = 1.0, of.Gaussian(M[0], root=R[0]), of.Gaussian(M[1], root=R[1])\n"
        f"before, s = {code}, {2.0**power!r}\n"
        "mu, nu = (of.Gaussian(s * m, root=s * r) for m, r in zip(M, R))\n"
        f"after, before = ({code}).double() / s**{degree}, before.double()\n"
        "torch.where(after == before, 0.0, after - before)",  # infinite energies are equal, too
        {"M": M, "R": R, "A": A},
        lambda: 0.0,
        lambda: loose * 10,
    )
