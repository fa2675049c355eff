"""Lie steps: exact for frozen fields, order one, and true to the rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

import otflow as of
from otflow.steppers import Memory
from tests import zoo

KINDS: dict[str, Any] = {
    "softmax": of.SoftmaxAttention,
    "l2": of.L2Attention,
    "sinkhorn": of.SinkhornAttention,
}


def law(seed: int, d: int, r: int, batch: tuple[int, ...] = ()) -> of.Gaussian:
    rng = np.random.default_rng(seed)
    return of.Gaussian(rng.standard_normal((*batch, d)), root=0.5 * rng.standard_normal((*batch, d, r)))


def weights(seed: int, k: int, d: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [0.6 * rng.standard_normal(shape) for shape in ((k, d), (k, d), (d, d))]


@pytest.mark.parametrize("r", [2, 4, 6])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_of_a_field_acts_on_the_root_as_the_field_does(kind: str, k: int, r: int) -> None:
    mu, field = law(1, 4, r, (3,)), KINDS[kind](*weights(2, k, 4))
    t = torch.tensor(0.0)
    assert float((field.matrix(t, mu) @ mu.root - field(0.0, mu)[1]).abs().max()) < 1e-13


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_of_a_field_is_its_slope_off_the_range_of_the_covariance_too(kind: str) -> None:
    """A small direction e added to the root moves by B e."""
    mu, field = law(3, 4, 2), KINDS[kind](*weights(4, 3, 4))
    e = 1e-7 * torch.eye(4, dtype=torch.float64)
    wide = of.Gaussian(mu.mean, root=torch.cat([mu.root, e], -1))
    slope = field(0.0, wide)[1][:, 2:] / 1e-7
    assert float((field.matrix(torch.tensor(0.0), mu) - slope).abs().max()) < 1e-6


def test_the_matrices_of_heads_sums_and_linear_blocks_add_up() -> None:
    mu, t = law(5, 4, 4), torch.tensor(0.0)
    a, b = of.SoftmaxAttention(*weights(6, 2, 4)), of.L2Attention(*weights(7, 3, 4))
    mix = [zoo.matrix(8, 4, 4), zoo.matrix(9, 4, 4)]
    block = of.Perceptron(zoo.matrix(10, 4, 3), zoo.matrix(11, 3, 4), activation=None)
    field = of.MultiHead([a, b], mix=mix) + 0.5 * block - of.SinkhornAttention(*weights(12, 2, 4))
    assert float((field.matrix(t, mu) @ mu.root - field(0.0, mu)[1]).abs().max()) < 1e-13


def test_a_field_that_does_not_know_its_matrix_finds_it_from_a_law_of_full_rank() -> None:
    A = torch.tensor([[1.0, 0.3], [0.3, 0.5]], dtype=torch.float64)
    pull = of.SteepestDescent(of.SquaredScores(A), of.Wasserstein())
    mu, t = of.Gaussian([0.0, 0.0], root=[[1.0, 0.2], [0.0, 0.7]]), torch.tensor(0.0)
    assert torch.allclose(pull.matrix(t, mu), -A @ mu.cov @ A, atol=1e-13)
    with pytest.raises(of.InputError, match=r"singular covariance.*Euler"):
        pull.matrix(t, of.Gaussian([0.0, 0.0], root=[[1.0], [0.0]]))


@pytest.mark.parametrize("h", [0.1, 1.0, 30.0])
def test_a_step_is_the_exponential_of_the_frozen_field(h: float) -> None:
    mu, field = law(13, 3, 3), of.SoftmaxAttention(*weights(14, 3, 3))
    B, b = field.matrix(torch.tensor(0.0), mu).numpy(), field(0.0, mu)[0].numpy()
    t, dt = torch.zeros(()).double(), torch.tensor(h, dtype=torch.float64)
    moved = of.Lie().step(field, t, dt, mu, Memory()).mu
    exact = scipy.linalg.expm(h * B) @ mu.root.numpy()
    assert np.abs(moved.root.numpy() - exact).max() <= 1e-12 * np.abs(exact).max()
    shift = np.linalg.solve(B, (scipy.linalg.expm(h * B) - np.eye(3)) @ b)
    assert np.abs(moved.mean.numpy() - mu.mean.numpy() - shift).max() <= 1e-10 * np.abs(shift).max()


def test_the_order_is_one() -> None:
    mu, field = law(15, 3, 3), of.SoftmaxAttention(*weights(16, 3, 3))
    exact = of.flow(mu, field, of.Dopri5(1e-12, 1e-13), t1=0.5, save_at=[0.5]).final.cov
    errors = [
        float((of.flow(mu, field, of.Lie(), t1=0.5, dt=0.5 / n).final.cov - exact).abs().max())
        for n in (64, 128)
    ]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(1.0, abs=0.1)


def test_long_steps_neither_lose_rank_nor_explode_where_residual_layers_do() -> None:
    """A = -I, V = I contracts; I + hB turns inside out and explodes, exp(hB) does not."""
    eye = np.eye(2)
    mu, field = of.Gaussian(np.zeros(2), root=3 * eye), of.SoftmaxAttention(eye, -eye, eye)
    assert of.flow(mu, field, of.Euler(), t1=20.0, dt=1.0, on_failure="return").status == "unstable"
    traj = of.flow(mu, field, of.Lie(), t1=20.0, dt=1.0)
    trace = torch.stack([g.cov.trace() for g in traj.measures])  # type: ignore[attr-defined]
    assert traj.status == "ok"
    assert bool((trace.diff() < 0).all())
    assert float(trace[-1]) > 0


def test_members_of_a_batch_move_as_they_do_alone() -> None:
    mu, field = law(17, 3, 3, (600,)), of.L2Attention(*weights(18, 2, 3))
    together = of.flow(mu, field, of.Lie(), t1=1.0, dt=0.25).final
    alone = of.flow(mu[7], field, of.Lie(), t1=1.0, dt=0.25).final
    assert float((together[7].root - alone.root).abs().max()) < 1e-13
    assert float((together[7].mean - alone.mean).abs().max()) < 1e-13


def test_weights_that_depend_on_time_are_taken_at_the_start_of_a_step() -> None:
    values = torch.stack([torch.eye(1), -torch.eye(1)]).double()
    field = of.Perceptron(of.Layers(values), [[1.0]], activation=None)
    final = of.flow(of.Gaussian([1.0], root=[[1.0]]), field, of.Lie(), t1=2.0, dt=1.0).final
    assert final.root.item() == pytest.approx(1.0, rel=1e-14)
    assert final.mean.item() == pytest.approx(1.0)


def test_a_step_has_gradients() -> None:
    Q, K, V = (torch.from_numpy(w).requires_grad_() for w in weights(19, 2, 2))
    mu = law(20, 2, 2)

    def moved(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return of.flow(mu, of.SoftmaxAttention(Q, K, V), of.Lie(), t1=0.4, dt=0.2).final.root

    assert torch.autograd.gradcheck(moved, (Q, K, V))


def test_clouds_are_refused() -> None:
    with pytest.raises(of.InputError, match=r"Particles.*Gaussian.*Euler"):
        of.flow(of.Particles([[1.0]]), of.SoftmaxAttention(*[[[1.0]]] * 3), of.Lie(), t1=1.0, dt=0.1)


def test_directions_that_single_precision_does_not_resolve_are_not_frozen_in_silence() -> None:
    pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    thin = of.Gaussian(torch.zeros(2), root=torch.diag(torch.tensor([1.0, 1e-8])))
    with pytest.raises(of.InputError, match="singular covariance"):
        of.flow(thin, pull, of.Lie(), t1=1.0, dt=0.1)
