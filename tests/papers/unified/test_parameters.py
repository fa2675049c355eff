"""The weights of the figures are those of the released scripts, and so is the trouble with their steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import otflow as of
from otflow.papers.unified import parameters as castin
from otflow.papers.unified.parameters import Outcome, Panel

PANELS = castin.panels()
HISTOGRAMS = castin.histograms()
I2 = np.eye(2)

# As the scripts print them: all digits that are known.
INDEFINITE = (
    [[0.67641327, 1.52109919], [-0.51187625, 1.15019464]],
    [[-0.59071681, -0.76876525], [-0.33500917, 0.09299944]],
)
POSITIVE = (
    [[-0.09678416, 0.42220166], [-0.22546156, -0.63794309]],
    [[-0.01628630, 1.04421678], [-1.08488033, -2.20592483]],
)
UNIFORM = [[0.458054948, 0.308349607], [0.231487045, 0.277424552]]
q = np.array([[0.406323647, 0.913729224]])
PRINTED = {
    "1a": (UNIFORM, -np.array(UNIFORM), [[2.66937761, -0.69153017], [-0.69153017, 2.68744612]]),
    "1b": (q, -q, I2),
    "1d": (*INDEFINITE, [[-0.34889445, 0.98370343], [0.58092283, 0.07028444]]),
    "2a": (*POSITIVE, I2),
    "2d": (*INDEFINITE, [[1.83175301, -0.37688784], [0.34811234, -0.11628156]]),
}
SAME = {
    "1a": ("A1 L2", "A1 heads", "A Sinkhorn 1a"),
    "1b": ("1c", "A2 L2 rank one"),
    "1d": ("A2 L2 mixed",),
    "2a": ("2b", "2c", "A Sinkhorn 2a"),
    "2d": ("A3 L2", "A3 heads"),
}
SPECTRA = {  # of A + A^T, to the printed digits
    "1a": ([-0.8564, -0.01449], [5e-5, 5e-6]),
    "1d": ([-3.3213, 0.7403], [5e-5, 5e-5]),
    "2a": ([0.16145, 4.02715], [5e-6, 5e-6]),
}


def run(panel: Panel, integrate: object = castin.projected_euler, **options: float) -> Outcome:
    limits = {"h": panel.h, "tol_low": panel.tol, "tol_high": panel.high, "max_iter": panel.max_iter}
    out: Outcome = integrate(panel.rate(), torch.tensor(panel.covariances), **limits | options)  # type: ignore[operator]
    return out


@pytest.mark.parametrize("name", PRINTED)
def test_weights_are_those_of_the_scripts_to_all_printed_digits(name: str) -> None:
    for panel in (PANELS[name], *(PANELS[other] for other in SAME[name])):
        for found, printed in zip((panel.Q, panel.K, panel.V), PRINTED[name], strict=True):
            digits = 5e-10 if name in ("1a", "1b") and np.max(np.abs(printed)) < 1 else 5e-9
            np.testing.assert_allclose(found, printed, rtol=0, atol=1.01 * digits)


@pytest.mark.parametrize("name", SPECTRA)
def test_scores_have_the_printed_eigenvalues(name: str) -> None:
    printed, digits = SPECTRA[name]
    A = PANELS[name].A
    assert (np.abs(np.linalg.eigvalsh(A + A.T) - printed) <= digits).all()


def test_every_weight_is_accounted_for() -> None:
    assert {*PRINTED, *(other for names in SAME.values() for other in names)} == PANELS.keys()


def test_drawing_does_not_touch_the_global_generator() -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    castin.panels()
    castin.histograms()
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize(
    ("name", "count"), [("1a", 100), ("1b", 100), ("1d", 276), ("2a", 1184), ("2d", 648)]
)
def test_covariances_fill_a_grid_of_definite_matrices_with_trace_one(name: str, count: int) -> None:
    S = PANELS[name].covariances
    assert len(np.unique(S, axis=0)) == count
    np.testing.assert_allclose(np.trace(S, axis1=1, axis2=2), 1.0)
    assert np.linalg.eigvalsh(S).min() > 0
    assert {len(PANELS[other].covariances) for other in SAME[name]} == {count}


@pytest.mark.parametrize("name", PANELS)
def test_the_rate_of_a_panel_moves_covariances_as_its_field_does(name: str) -> None:
    panel = PANELS[name]
    mu = panel.gaussians()
    S = torch.tensor(panel.covariances)
    torch.testing.assert_close(panel.rate()(S) @ S, panel.field()(0.0, mu)[1] @ mu.root.mT)


@pytest.mark.parametrize("key", HISTOGRAMS)
def test_the_rate_of_a_histogram_moves_covariances_as_its_field_does(key: tuple[str, int, int]) -> None:
    panel = HISTOGRAMS[key]
    mu = panel.gaussians()
    S = torch.tensor(panel.covariances)
    torch.testing.assert_close(panel.rate()(S) @ S, panel.field()(0.0, mu)[1] @ mu.root.mT)


def test_scores_are_scaled_by_the_root_of_the_dimension_except_those_of_sinkhorn() -> None:
    S = torch.tensor([[0.6, 0.1], [0.1, 0.4]]).double()
    soft, l2, sink = PANELS["2a"], PANELS["2c"], PANELS["A Sinkhorn 2a"]
    A, K = torch.tensor(soft.A), torch.tensor(soft.K)
    torch.testing.assert_close(soft.rate()(S), S @ A / 2**0.5)
    tilted = torch.linalg.inv(torch.linalg.inv(S) + 2 * K.T @ K)
    torch.testing.assert_close(l2.rate()(S), 2 * tilted @ A / 2**0.5)
    B = sink.rate()(S)  # the plan has precision -A off the diagonal: (S - C S^-1 C^T)^-1 C S^-1 = A, C = BS
    C = B @ S
    torch.testing.assert_close(torch.linalg.solve(S - C @ torch.linalg.solve(S, C.T), B), A)


def test_a_head_without_rows_of_queries_does_nothing() -> None:
    panel, S = PANELS["1c"], torch.tensor([[0.6, 0.1], [0.1, 0.4]]).double()
    e1 = np.diag([1.0, 0.0])
    expected = torch.tensor(e1) @ S @ torch.tensor(-panel.Q.T @ panel.Q)
    torch.testing.assert_close(panel.rate()(S), expected)


def test_two_heads_take_a_row_each_of_queries_keys_and_values() -> None:
    panel, S = PANELS["A3 heads"], np.array([[0.6, 0.1], [0.1, 0.4]])
    parts = [np.outer(I2[h], panel.V[h]) @ S @ np.outer(panel.K[h], panel.Q[h]) for h in range(2)]
    np.testing.assert_allclose(panel.rate()(torch.tensor(S)), sum(parts))


def test_one_head_is_softmax() -> None:
    panel = PANELS["2d"]
    mu = panel.gaussians()
    torch.testing.assert_close(castin.multihead(panel, 1)(0.0, mu)[1], castin.softmax(panel)(0.0, mu)[1])


@pytest.mark.parametrize("d", castin.DIMENSIONS)
def test_histograms_start_from_the_same_draws_in_both_figures(d: int) -> None:
    first = HISTOGRAMS["3", 1, d]
    assert first.Q.shape == (100, d // 2, d)
    for key in (("3", 2, d), ("A5", 1, d), ("A5", 2, d)):
        assert (HISTOGRAMS[key].Q == first.Q).all()
        assert (HISTOGRAMS[key].covariances == first.covariances).all()
    S = np.random.RandomState(41).randn(d, d)
    np.testing.assert_allclose(first.covariances[0], S @ S.T)


def test_one_step_of_every_integrator_is_the_formula_of_its_name() -> None:
    rng = np.random.default_rng(0)
    R, B, h = rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 3)), 0.3
    S = R @ R.swapaxes(-1, -2)
    once = {"h": h, "tol_low": 0.0, "max_iter": 1}
    rate, S0 = (lambda _: torch.tensor(B)), torch.tensor(S)
    T = np.stack([s + h * (b @ s + s @ b.T) for b, s in zip(B, S, strict=True)])
    values, vectors = np.linalg.eigh(T)
    assert (values < 0).any()  # so that the projection has something to do
    projected = (vectors * np.where(values < 0, 1e-14, values)[:, None]) @ vectors.swapaxes(-1, -2)
    layer = np.stack([(np.eye(3) + h * b) @ s @ (np.eye(3) + h * b).T for b, s in zip(B, S, strict=True)])
    exact = np.stack([expm(h * b) @ s @ expm(h * b).T for b, s in zip(B, S, strict=True)])
    for integrate, expected in (
        (castin.projected_euler, projected),
        (castin.residual, layer),
        (castin.lie, exact),
    ):
        np.testing.assert_allclose(integrate(rate, S0, **once).covariances, expected, atol=1e-12)


@pytest.mark.parametrize("integrate", [castin.projected_euler, castin.lie, castin.residual])
def test_runs_end_one_by_one_and_keep_their_last_finite_state(integrate: object) -> None:
    S0 = torch.tensor([1.0, 1.0, 1.0]).double()[:, None, None]
    sign = torch.tensor([-1.0, 1.0, 0.0]).double()[:, None, None]
    out = integrate(lambda S: sign * S, S0, h=0.1, tol_low=1e-3, tol_high=50.0, max_iter=5000)  # type: ignore[operator]
    assert out.converged.tolist() == [True, False, True]
    assert out.diverged.tolist() == [False, True, False]
    assert out.steps[2] == 1
    assert out.covariances.isfinite().all()
    # dS/dt = -2 S^2 is below 1e-3 from S = sqrt(5e-4) on
    assert out.covariances[0].item() == pytest.approx(5e-4**0.5, rel=0.02)
    assert out.covariances[1] > 50.0


def test_a_step_that_overflows_counts_as_divergence() -> None:
    out = castin.lie(lambda S: 1e4 * S, torch.eye(1).double()[None], h=1.0, tol_low=0.0)
    assert out.diverged.all()
    assert out.covariances.item() == 1.0


def test_a_number_of_heads_that_does_not_divide_the_dimension_is_refused() -> None:
    with pytest.raises(of.InputError, match="heads = 3: it must divide d = 2"):
        castin.multihead(PANELS["2d"], 3)


def test_two_heads_have_limits_of_full_rank_on_the_plane_that_theory_gives() -> None:
    out = run(PANELS["1c"])
    assert out.converged.all()
    low = torch.linalg.eigvalsh(out.covariances)[:, 0]
    assert 0.085 < low.min() < 0.095
    assert 0.295 < low.max() < 0.305
    residue = out.covariances[:, 0] @ torch.tensor(PANELS["1c"].Q[0])  # e1.Sq, which is 0 in the limit
    assert residue.abs().max() < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("integrate", [castin.projected_euler, castin.lie])
def test_the_grid_of_648_splits_into_limits_and_blow_ups(integrate: object) -> None:
    out = run(PANELS["2d"], integrate)
    assert (int(out.converged.sum()), int(out.diverged.sum())) == (591, 57)


@pytest.mark.parametrize(("d", "euler", "lie", "layer"), [(3, 12, 0, 19), (4, 34, 1, 68), (5, 28, 2, 57)])
def test_coarse_steps_diverge_where_the_flow_cannot(d: int, euler: int, lie: int, layer: int) -> None:
    """With V > 0 and A + A^T <= 0, tr(V^-1 S) does not grow (Lyapunov), so every blow-up is spurious."""
    panel = HISTOGRAMS["3", 2, d]
    assert np.linalg.eigvalsh(panel.V).min() > 0
    assert np.linalg.eigvalsh(panel.A).max() < 1e-12
    spurious = run(panel, max_iter=100)
    assert int(spurious.diverged.sum()) == euler
    assert int(run(panel, castin.lie, max_iter=100).diverged.sum()) == lie
    assert int(run(panel, castin.residual, max_iter=100).diverged.sum()) == layer
    last = int(spurious.steps[spurious.diverged].max())
    fine = run(panel, castin.lie, h=panel.h / 8, max_iter=8 * last)  # over the time that they needed
    assert not fine.diverged.any()


def limit(S: np.ndarray, q: np.ndarray) -> np.ndarray:
    """N (N^T S^-1 N)^-1 N^T: where (S^-1 + 2 t q^T q)^-1 goes, with N a basis of the kernel of q."""
    N = np.linalg.svd(q)[2][len(q) :].T
    return np.asarray(N @ np.linalg.inv(N.T @ np.linalg.solve(S, N)) @ N.T)


@pytest.mark.parametrize("d", [3, 4])
def test_the_spread_of_ranks_comes_from_the_threshold_and_from_the_projection(d: int) -> None:
    """For V = I every limit has rank d - floor(d/2); fewer are above 0.1, and projection loses more."""
    panel = HISTOGRAMS["3", 1, d]
    exact = np.linalg.eigvalsh([limit(*pair) for pair in zip(panel.covariances, panel.Q, strict=True)])
    assert ((exact > 1e-8).sum(-1) == d - d // 2).all()

    def above(integrate: object) -> np.ndarray:
        return (torch.linalg.eigvalsh(run(panel, integrate, max_iter=600).covariances) > 0.1).sum(-1).numpy()

    visible = (exact > 0.1).sum(-1)
    assert (visible < d - d // 2).sum() > 25
    wrong = {step: (above(step) != visible).sum() for step in (castin.projected_euler, castin.lie)}
    assert wrong[castin.projected_euler] > wrong[castin.lie] + 10
