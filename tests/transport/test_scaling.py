"""Bistochastic scaling: marginals measured by other code, honest reports, warm starts, strong coupling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import otflow as of
from otflow.transport.entropic.engines import Scaling, scale
from otflow.transport.entropic.log_kernel import Bilinear
from otflow.transport.entropic.newton import NewtonSinkhorn
from otflow.transport.entropic.scaling import AbsorbedKernel
from tests import dense, zoo
from tests.regimes import REGIMES, regime

FORMS = {
    "positive": np.eye(3),
    "negative": -np.eye(3),
    "indefinite": np.diag([1.0, -1.0, 0.5]),
    "general": np.array([[0.3, 1.0, 0.0], [-0.7, 0.2, 0.4], [0.1, -0.3, -1.0]]),
}


@dataclass(frozen=True)
class Problem:
    """Scores <q_i, k_j> whose largest is ``size``."""

    q: Tensor
    k: Tensor
    logw: Tensor

    @property
    def scores(self) -> np.ndarray:
        return (self.q @ self.k.mT).numpy()

    @property
    def w(self) -> np.ndarray:
        return self.logw.exp().numpy()

    def solve(
        self,
        form: str = "general",
        *,
        tol: float = 1e-9,
        max_iter: int = 10_000,
        start: Tensor | None = None,
    ) -> Scaling:
        q, k, logw = (z if self.q.ndim == 3 else z[None] for z in (self.q, self.k, self.logw))
        kernel = AbsorbedKernel(Bilinear(q, k), logw, logw, symmetric=form != "general")
        start = None if start is None else start.reshape(logw.shape)
        return scale(kernel, NewtonSinkhorn(), tol=tol, max_iter=max_iter, start=start)


def problem(
    seed: int, form: str, *, n: int = 8, size: float = 5.0, weighted: bool = True, move: float = 0.0
) -> Problem:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((n, 3)), rng.uniform(0.2, 1.0, n)
    x = x + move * rng.standard_normal((n, 3))
    q = x @ FORMS[form]
    q *= size / np.abs(q @ x.T).max()
    w = w / w.sum() if weighted else np.full(n, 1 / n)
    return Problem(torch.from_numpy(q), torch.from_numpy(x), torch.from_numpy(np.log(w)))


def column_error(p: Problem, g: Tensor) -> float:
    """sum_j |sum_i P_ij - w_j| for the plan P whose rows are normalised exactly, in numpy."""
    with np.errstate(divide="ignore"):
        a = p.scores + (g + p.logw).numpy()
    plan = p.w[:, None] * np.exp(a - dense.log_sum_exp(a, 1)[:, None])
    return float(np.abs(plan.sum(0) - p.w).sum())


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("form", FORMS)
def test_a_converged_scaling_has_both_marginals(form: str, how: str) -> None:
    p = problem(1, form)
    with regime(how):
        s = p.solve(form, tol=1e-11)
    assert bool(s.converged)
    assert float(s.error) <= 1e-11
    assert column_error(p, s.G[0]) <= 2e-11


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("form", FORMS)
def test_atoms_without_mass_are_ignored(form: str, how: str) -> None:
    p = problem(2, form)
    w = p.w.copy()
    w[[1, 4]] = 0.0
    w /= w.sum()
    with np.errstate(divide="ignore"):
        p = Problem(p.q, p.k, torch.from_numpy(np.log(w)))
    keep = torch.from_numpy(w > 0)
    rest = Problem(p.q[keep], p.k[keep], p.logw[keep])
    with regime(how):
        s, alone = p.solve(form, tol=1e-12), rest.solve(form, tol=1e-12)
    assert bool(s.converged)
    gap = s.G[0, keep] - alone.G[0]
    assert float((gap - gap.mean()).abs().max()) < 1e-9  # a constant has no meaning


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("max_iter", [1, 2, 3, 5, 9])
def test_the_reported_error_bounds_the_measured_one_also_when_stopped_early(form: str, max_iter: int) -> None:
    for seed in range(5):
        p = problem(seed, form, size=20.0)
        s = p.solve(form, tol=1e-13, max_iter=max_iter)
        assert column_error(p, s.G[0]) <= float(s.error) * (1 + 1e-9) + 1e-13
        assert bool(s.converged) == (float(s.error) <= 1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [10.0, 50.0, 200.0, 600.0])
def test_convergence_is_never_claimed_where_the_marginals_say_otherwise(form: str, size: float) -> None:
    """At such scores Newton's matrix is singular to working precision: a step may be anything."""
    for seed in range(8):
        p = problem(seed, form, n=5, size=size, weighted=False)
        s = p.solve(form, max_iter=2000)
        assert column_error(p, s.G[0]) <= float(s.error) + 1e-11 * size


@pytest.mark.parametrize(
    ("size", "n", "seed"),
    [
        (300, 5, 34),
        (600, 5, 10),
        (600, 5, 14),
        (600, 5, 27),
        (600, 6, 20),
        (900, 4, 2),
        (900, 4, 17),
        (900, 5, 54),
    ],
)
def test_a_newton_step_of_astronomic_size_is_not_taken_for_convergence(
    size: float, n: int, seed: int
) -> None:
    """Potentials of 1e16 have no digits left in which to see that the marginals are wrong."""
    rng = np.random.default_rng(seed)
    x, A = rng.standard_normal((n, 3)), rng.standard_normal((3, 3))
    q = x @ A
    q *= size / np.abs(q @ x.T).max()
    p = Problem(*(torch.from_numpy(a) for a in (q, x, np.full(n, -np.log(n)))))
    s = p.solve(max_iter=2000)
    assert column_error(p, s.G[0]) <= float(s.error) + 1e-8


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("form", FORMS)
def test_scores_of_size_50_converge_through_newton(form: str, how: str) -> None:
    p = problem(3, form, n=20, size=50.0)
    with regime(how):
        s = p.solve(form, tol=1e-9)
    assert bool(s.converged)
    assert column_error(p, s.G[0]) <= 1e-9


def test_newton_reaches_what_plain_sweeps_do_not() -> None:
    p = problem(4, "general", n=20, size=50.0)
    s = p.solve(tol=1e-9)
    g = np.zeros(20)
    for _ in range(s.sweeps):
        f = -dense.log_sum_exp(p.scores + g + p.logw.numpy(), 1)
        g = -dense.log_sum_exp(p.scores + (f + p.logw.numpy())[:, None], 0)
    assert bool(s.converged)
    assert column_error(p, torch.from_numpy(g)) > 1e-8


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("size", [750.0, 1e4, 1e6])
def test_scores_beyond_the_range_of_exp_converge_when_tokens_are_apart(size: float, how: str) -> None:
    k = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0], [4.0, 4.0]], dtype=torch.float64)
    w = torch.full((4,), -np.log(4.0), dtype=torch.float64)
    p = Problem(size * k, k, w)
    with regime(how):
        s = p.solve("positive")
    assert bool(s.converged)
    assert column_error(p, s.G[0]) <= 1e-9


@pytest.mark.parametrize("form", FORMS)
def test_a_warm_start_nearby_needs_fewer_sweeps(form: str) -> None:
    p, near = problem(5, form, n=12, size=20.0), problem(5, form, n=12, size=20.0, move=1e-4)
    cold, first = near.solve(form, tol=1e-10), p.solve(form, tol=1e-10)
    warm = near.solve(form, tol=1e-10, start=first.G)
    assert warm.sweeps < cold.sweeps
    assert column_error(near, warm.G[0]) <= 1e-10


@pytest.mark.parametrize("form", FORMS)
def test_a_solution_handed_back_is_recognised_at_once(form: str) -> None:
    p = problem(6, form)
    s = p.solve(form, tol=1e-11)
    again = p.solve(form, tol=1.01e-11, start=s.G)
    assert again.sweeps == 1
    assert torch.equal(again.G, s.G) or float((again.G - s.G).abs().max()) < 1e-13


def test_a_start_that_is_not_finite_is_forgotten() -> None:
    p = problem(7, "general")
    assert bool(p.solve(start=torch.full((8,), torch.nan, dtype=torch.float64)).converged)


@pytest.mark.parametrize("size", [1.0, 10.0, 40.0])
@pytest.mark.parametrize("form", ["positive", "negative", "indefinite"])
def test_the_iteration_for_symmetric_kernels_finds_the_same_scaling(form: str, size: float) -> None:
    p = problem(8, form, size=size)
    a, b = p.solve(form, tol=1e-13), p.solve("general", tol=1e-13)
    gap = a.G - b.G
    assert float((gap - gap.mean()).abs().max()) < 1e-8


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("form", ["positive", "general"])
def test_members_of_a_batch_do_not_disturb_each_other(form: str, how: str) -> None:
    parts = [problem(9, form, size=size) for size in (1.0, 40.0, 10.0)]
    batch = Problem(*(torch.stack([getattr(p, name) for p in parts]) for name in ("q", "k", "logw")))
    with regime(how):
        together = batch.solve(form, tol=1e-11)
    assert together.error.shape == together.converged.shape == (3,)
    assert bool(together.converged.all())
    for p, g in zip(parts, together.G, strict=True):
        assert column_error(p, g) <= 2e-11


def test_a_member_of_a_batch_that_cannot_converge_does_not_stop_the_others() -> None:
    easy, hard = problem(10, "general", size=3.0), problem(10, "general", size=600.0)
    batch = Problem(*(torch.stack([getattr(p, name) for p in (easy, hard)]) for name in ("q", "k", "logw")))
    s = batch.solve(tol=1e-9, max_iter=60)
    assert s.converged.tolist() == [True, False]
    assert column_error(easy, s.G[0]) <= 1e-9


@pytest.mark.parametrize("max_iter", [1, 2, 7, 40, 100])
def test_the_limit_on_sweeps_is_kept(max_iter: int) -> None:
    p = problem(11, "general", n=20, size=300.0)
    assert p.solve(tol=1e-13, max_iter=max_iter).sweeps <= max_iter + 4  # a step already begun is finished


# --- as the attention field uses it -----------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**31), n=st.integers(1, 15), eps=st.sampled_from([0.3, 1.0, 5.0]), same=st.booleans()
)
def test_the_mean_moves_by_the_value_matrix_alone(seed: int, n: int, eps: float, same: bool) -> None:
    rng = np.random.default_rng(seed)
    x, (Q, K, V) = rng.standard_normal((n, 3)), 0.6 * rng.standard_normal((3, 3, 3))
    w = rng.uniform(0.1, 1, n)
    w /= w.sum()
    v = of.SinkhornAttention(Q, Q if same else K, V, of.Sinkhorn(eps, tol=1e-11))(0.0, of.Particles(x, w))[
        0
    ].numpy()
    assert np.abs(w @ v - V @ (w @ x) / eps).max() < 1e-9 / eps


@pytest.mark.slow
def test_the_mean_law_integrates_to_a_matrix_exponential() -> None:
    mu, V = zoo.MEASURES["weighted"](), zoo.matrix(1)
    field = of.SinkhornAttention(zoo.matrix(2), zoo.matrix(3), V, of.Sinkhorn(2.0, tol=1e-11))
    final = of.flow(mu, field, of.Dopri5(rtol=1e-10, atol=1e-12), t1=1.0, save_at=[1.0]).final
    expected = torch.linalg.matrix_exp(V / 2.0) @ (mu.w @ mu.x)
    assert float((final.w @ final.x - expected).abs().max()) < 1e-8


def test_a_tolerance_out_of_reach_raises_with_the_velocity() -> None:
    mu, (Q, K, V) = zoo.MEASURES["weighted"](), zoo.QKV(4)
    with pytest.raises(of.errors.ConvergenceError, match=r"tol = 1\.00e-13.*max_iter") as caught:
        of.SinkhornAttention(Q, K, V, of.Sinkhorn(3.0, tol=1e-13, max_iter=5))(0.0, mu)
    good = of.SinkhornAttention(Q, K, V, of.Sinkhorn(3.0, tol=1e-13))(0.0, mu)
    error = float((caught.value.result[0] - good[0]).abs().max())
    assert 1e-13 < error < 1e-2


def test_evaluate_reports_a_missed_tolerance_instead_of_raising() -> None:
    mu, (Q, K, V) = zoo.MEASURES["batched"](), zoo.QKV(4)
    v, carry = of.SinkhornAttention(Q, K, V, of.Sinkhorn(1.0, tol=1e-10, max_iter=1)).evaluate(
        torch.tensor(0.0), mu
    )
    assert v[0].shape == mu.x.shape
    assert carry.failed.tolist() == [True, True]
    assert carry.residual > 1e-10
    assert "1.00e-10" in carry.message


def test_a_field_that_converges_says_how_well() -> None:
    mu, (Q, K, V) = zoo.MEASURES["weighted"](), zoo.QKV(4)
    _, carry = of.SinkhornAttention(Q, K, V, of.Sinkhorn(1.0, tol=1e-10)).evaluate(torch.tensor(0.0), mu)
    assert not carry.failed.any()
    assert 0 < carry.residual <= 1e-10


@pytest.mark.parametrize("where", ["alone", "in a sum", "in a head"])
def test_a_missed_tolerance_is_heard_through_sums_and_heads(where: str) -> None:
    mu, sinkhorn = (
        zoo.MEASURES["weighted"](),
        of.SinkhornAttention(*zoo.QKV(4), eps=of.Sinkhorn(1.0, max_iter=1)),
    )
    softmax = of.SoftmaxAttention(*zoo.QKV(7))
    field = {
        "alone": sinkhorn,
        "in a sum": softmax + 0.5 * sinkhorn,
        "in a head": of.MultiHead([softmax, sinkhorn]),
    }[where]
    with pytest.raises(of.errors.ConvergenceError, match="Sinkhorn"):
        field(0.0, mu)
    with pytest.raises(of.errors.ConvergenceError, match="Sinkhorn"):
        field.at(0.0, mu, mu.x)


def test_a_flow_that_misses_its_tolerance_raises_with_what_it_has() -> None:
    mu, field = (
        zoo.MEASURES["weighted"](),
        of.SinkhornAttention(*zoo.QKV(4), eps=of.Sinkhorn(1.0, max_iter=1)),
    )
    with pytest.raises(of.errors.FlowError, match="max_iter") as caught:
        of.flow(mu, field, of.RK4(), t1=1.0, dt=0.1)
    assert caught.value.trajectory.status == "max_iter"
    assert len(caught.value.trajectory) >= 1
    back = of.flow(mu, field, of.RK4(), t1=1.0, dt=0.1, on_failure="return")
    assert back.status == "max_iter"


def test_a_flow_records_the_worst_residual_between_saves() -> None:
    mu, field = zoo.MEASURES["weighted"](), of.SinkhornAttention(*zoo.QKV(4), eps=of.Sinkhorn(1.0, tol=1e-8))
    residual = of.flow(mu, field, of.RK4(), t1=0.5, dt=0.1).certificates["residual"]
    assert residual[0] == 0  # nothing was solved before the first step
    assert bool((residual[1:] <= 1e-8).all())
    assert bool((residual[1:] > 0).all())


@pytest.mark.parametrize("how", REGIMES)
def test_single_precision_tokens_are_scaled_in_double_precision(how: str) -> None:
    rng = np.random.default_rng(12)
    x, Q, K, V = (torch.from_numpy(rng.standard_normal(s)).float() for s in ((9, 3), (3, 3), (3, 3), (3, 3)))
    with regime(how):
        v, carry = of.SinkhornAttention(Q, K, V, of.Sinkhorn(2.0, tol=1e-11)).evaluate(
            torch.tensor(0.0), of.Particles(x)
        )
    exact = dense.sinkhorn(
        *(a.double().numpy() for a in (Q, K, V, x)), np.full(9, 1 / 9), x.double().numpy(), eps=2.0
    )
    assert v[0].dtype == torch.float32
    assert carry.residual <= 1e-11
    assert np.abs(v[0].numpy() - exact).max() < 3e-6 * np.abs(exact).max()
