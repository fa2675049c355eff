"""Closures and flows of the library against the closed forms, at the precision that they promise."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import otflow as of
from otflow import closed_forms
from tests import dense
from tests.measures.test_gaussian_closures import affine, hermite, motion

Array = np.ndarray
KINDS = {"softmax": of.SoftmaxAttention, "l2": of.L2Attention, "sinkhorn": of.SinkhornAttention}


def rate(kind: str, S: Array, Q: Array, K: Array, V: Array) -> torch.Tensor:
    """dS/dt from the formulas of section 4 of Castin et al. 2025."""
    A = np.swapaxes(K, -1, -2) @ Q
    if kind == "l2":
        return closed_forms.l2_rate(S, Q, K, V)
    return {"softmax": closed_forms.softmax_rate, "sinkhorn": closed_forms.sinkhorn_rate}[kind](S, A, V)


def draw(seed: int, d: int, k: int, r: int) -> tuple[Array, Array, Array, of.Gaussian]:
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((20, *shape)) / np.sqrt(d) for shape in ((k, d), (k, d), (d, d)))
    return (
        Q,
        K,
        V,
        of.Gaussian(rng.standard_normal((20, d)), root=rng.standard_normal((20, d, r)) / np.sqrt(r)),
    )


@pytest.mark.parametrize("rank", ["full", "thin", "singular"])
@pytest.mark.parametrize("d", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_right_hand_sides_agree_with_the_formulas_to_thirteen_digits(kind: str, d: int, rank: str) -> None:
    Q, K, V, mu = draw(d, d, max(1, d // 2) if rank == "thin" else d, d)
    if rank == "singular":
        Q[:, 0] = K[:, -1] = 0.0
    _, got = motion(KINDS[kind](Q, K, V), mu)
    exact = rate(kind, mu.cov.numpy(), Q, K, V).numpy()
    size = np.linalg.norm(V, 2, (1, 2)) * np.linalg.norm(mu.cov.numpy(), 2, (1, 2))
    assert (np.abs(got - exact).max((1, 2)) <= 1e-13 * np.maximum(np.abs(exact).max((1, 2)), size)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_right_hand_sides_equal_quadrature_of_the_definition_to_ten_digits(kind: str, d: int) -> None:
    """Narrow laws, for which 48 (Sinkhorn: 30) Gauss-Hermite nodes an axis are exact to rounding."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        Q, K, V = (0.5 * rng.standard_normal((d, d)) for _ in range(3))
        mu = of.Gaussian(0.5 * rng.standard_normal(d), root=0.4 * rng.standard_normal((d, d)))
        z = rng.standard_normal((5, d))
        y, w = hermite(mu, 30 if kind == "sinkhorn" else 48)
        points = mu.mean.numpy() + z @ mu.root.numpy().T
        formula: Any = dense.sinkhorn if kind == "sinkhorn" else dense.VELOCITIES[kind]
        exact = formula(Q, K, V, y, w, points)
        assert np.abs(affine(KINDS[kind](Q, K, V), mu, z) - exact).max() < 1e-10


def exploding(seed: int, n: int, d: int) -> tuple[Array, of.Gaussian, torch.Tensor]:
    rng = np.random.default_rng(seed)
    A, mu = rng.standard_normal((n, d, d)), of.Gaussian(np.zeros((n, d)), root=rng.standard_normal((n, d, d)))
    return A, mu, closed_forms.softmax_blow_up_time(mu.cov, A)


def path(root: torch.Tensor, A: Array, t: torch.Tensor) -> Array:
    """(S^-1 - t (A + A^T))^-1 with fifty digits."""
    with mpmath.workdps(50):
        R, a = mpmath.matrix(root.tolist()), mpmath.matrix(A.tolist())
        S = ((R * R.T) ** -1 - mpmath.mpf(float(t)) * (a + a.T)) ** -1
        return np.array(S.tolist(), dtype=float)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["*-1"])
@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
def test_paths_with_identity_values_are_right_to_nine_digits_almost_until_they_explode(
    d: int, fraction: float
) -> None:
    A, mu, end = exploding(d, 50, d)
    A, mu, end = A[torch.isfinite(end).numpy()], mu[torch.isfinite(end)], end[torch.isfinite(end)]
    assert len(A) > 10
    # A member of its own pace: time in units of its own explosion.
    field = of.SoftmaxAttention(end[:, None, None].numpy() * A, np.eye(d), np.eye(d))
    final = of.flow(mu, field, of.Dopri5(1e-13, 1e-15), t1=fraction, save_at=[0.0]).final
    exact = np.stack([path(R, a, t) for R, a, t in zip(mu.root, A, fraction * end, strict=True)])
    gap = np.abs(final.cov.numpy() - exact).max((1, 2)) / np.abs(exact).max((1, 2))
    assert gap.max() < 1e-9
    # The oracle knows the covariance only, in which small eigenvalues have fewer digits than in the root.
    closed = closed_forms.softmax_path(mu.cov, A, fraction * end).numpy()
    assert np.median(np.abs(closed - exact).max((1, 2)) / np.abs(exact).max((1, 2))) < 1e-12


@pytest.mark.thorough
@pytest.mark.slow(but_for=["1"])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_explosions_are_detected_and_timed_within_a_tenth_of_a_percent(d: int) -> None:
    A, mu, end = exploding(10 + d, 200, d)
    finite = torch.isfinite(end)
    traj = of.flow(
        mu,
        of.SoftmaxAttention(A, np.eye(d), np.eye(d)),
        of.Dopri5(),
        t1=float(2 * end[finite].max()),
        save_at=[0.0],
    )
    assert ((traj.status == "blow_up") == finite.numpy()).all()
    assert float((traj.blow_up_time / end - 1)[finite].abs().max()) < 1e-3
    assert bool(traj.blow_up_time[~finite].isnan().all())


@pytest.mark.slow
def test_sinkhorn_attention_never_explodes_and_keeps_within_its_bound() -> None:
    rng = np.random.default_rng(0)
    for d, n, eps in ((2, 500, 0.5), (3, 300, 1.0), (4, 200, 2.0)):
        Q, K, V = (rng.standard_normal((n, d, d)) for _ in range(3))
        mu = of.Gaussian(np.zeros((n, d)), root=rng.standard_normal((n, d, d)))
        ts = np.linspace(0.0, 1.0, 5)
        traj = of.flow(mu, of.SinkhornAttention(Q, K, V, eps), of.Dopri5(1e-5, 1e-8), t1=1.0, save_at=ts)
        assert (traj.status == "ok").all()
        for t, g in zip(traj.ts, traj.measures, strict=True):
            trace = g.cov.diagonal(dim1=-1, dim2=-2).sum(-1)  # type: ignore[attr-defined]
            bound = closed_forms.sinkhorn_trace_bound(mu.cov, V, float(t) * torch.ones(n).double(), eps=eps)
            assert bool((trace <= bound * (1 + 1e-4)).all())


@pytest.mark.thorough
def test_the_l2_counterexample_explodes_when_it_should() -> None:
    example = closed_forms.l2_counterexample()
    S0 = np.array([[1.0, 0.5], [0.5, 1.0]])
    traj = of.flow(
        of.Gaussian(np.zeros(2), cov=S0),
        of.L2Attention(example.Q, example.K, example.V),
        of.Dopri5(),
        t1=10.0,
    )
    assert traj.status == "blow_up"
    assert float(traj.blow_up_time) == pytest.approx(3.0, rel=1e-3)


@pytest.mark.thorough
def test_the_lyapunov_function_falls_along_softmax_flows_with_positive_values() -> None:
    rng = np.random.default_rng(5)
    Q, W = rng.standard_normal((2, 4)), rng.standard_normal((4, 4))
    V = W @ W.T + 0.1 * np.eye(4)
    mu = of.Gaussian(np.zeros(4), root=rng.standard_normal((4, 4)))
    traj = of.flow(mu, of.SoftmaxAttention(Q, -Q, V), of.Dopri5(1e-9, 1e-12), t1=5.0)
    values = closed_forms.softmax_lyapunov(traj.stacked.cov, V)  # type: ignore[attr-defined]
    assert bool((values.diff() < 0).all())
