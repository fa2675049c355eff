"""The derivative of the flow map against differences, closed forms and numpy's singular values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag, expm
from torch import Tensor

import otflow as of
from otflow.stability.propagator import Propagator, singular_values
from tests.samples import DECAY, Given, Linear, double_well, hill, normal, random_tangent, unit
from tests.zoo import bell

M = np.array([[0.3, 1.0], [-0.4, -0.6]])
RUN: dict[str, Any] = {"t1": 0.4, "dt": 0.2}


def attention(
    *batch: int, kind: Callable[..., of.VelocityField] = of.SoftmaxAttention, **options: Any
) -> Any:
    return kind(*(torch.from_numpy(0.8 * normal(*batch, 2, 2, seed=s)) for s in (1, 2, 3)), **options)


def weights(*shape: int) -> np.ndarray:
    w = np.random.default_rng(9).uniform(0.2, 1.0, shape)
    return np.asarray(w / w.sum(-1, keepdims=True))


def masked() -> of.Particles:
    return of.Particles(normal(3, 5, 2), weights(3, 5), label=[2.0, 0.0, 1.0, 1.0, 3.0])


WELLS = of.Potential(double_well) + of.Interaction(bell)
WAVES = of.Interaction(lambda x, y: -torch.cos(x - y).sum(-1))
CASES: dict[str, tuple[of.Measure, of.VelocityField]] = {
    "plain": (of.Particles(normal(5, 2)), attention()),
    "weighted": (of.Particles(normal(5, 2), weights(5)), attention(kind=of.L2Attention)),
    "batched": (of.Particles(normal(3, 4, 2), weights(3, 4)), attention(3, kind=of.SigmoidAttention)),
    "two_batch_axes": (of.Particles(normal(2, 3, 4, 2)), attention(3)),
    "masked": (masked(), attention(3, causal=True)),
    "sinkhorn": (
        of.Particles(normal(2, 4, 2), weights(4)),
        attention(2, kind=of.SinkhornAttention, eps=of.Sinkhorn(1.0, tol=1e-12)),
    ),
    "sphere": (of.Particles(unit(5, 2), weights(5), space=of.Sphere()), attention()),
    "sum": (of.Particles(normal(4, 2)), attention() + 0.5 * of.Perceptron(M, M.T, activation=torch.tanh)),
    "descent": (of.Particles(normal(4, 2), weights(4)), of.SteepestDescent(WELLS, of.Wasserstein())),
    "torus": (of.Particles(normal(2, 4, 1), space=of.Torus()), of.SteepestDescent(WAVES, of.Wasserstein())),
    "gaussian": (of.Gaussian(normal(2), root=0.5 * normal(2, 2)), attention()),
    "gaussians": (of.Gaussian(normal(3, 2), root=0.5 * normal(3, 2, 2)), attention(3, kind=of.L2Attention)),
}


def made(case: str, stepper: of.Stepper | None = None, **options: Any) -> Propagator:
    mu, field = CASES[case]
    return Propagator(mu, field, of.RK4() if stepper is None else stepper, **{**RUN, **options})


def far(a: of.Tangent, b: of.Tangent) -> float:
    return max(float((x - y).abs().max() / (1 + y.abs().max())) for x, y in zip(a, b, strict=True))


def scaled_matrix(prop: Propagator) -> Tensor:
    """The matrix of DPhi between orthonormal coordinates."""
    J, mu = prop.matrix(), prop.mu0
    if not isinstance(mu, of.Particles):
        return J
    root = mu.w.sqrt().repeat_interleave(mu.d, -1)
    return J * root[..., :, None] / root[..., None, :]


# --- the derivative ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_push_is_the_slope_of_the_flow_map(case: str) -> None:
    prop = made(case)
    u, h = prop.mu0.tangent(random_tangent(prop.mu0, seed=5)), 1e-5
    ahead, behind = (prop.run(prop.mu0.exp(s * u)).coords for s in (h, -h))
    assert far(prop.push(u), (ahead - behind) / (2 * h)) < 1e-8


@pytest.mark.parametrize("case", CASES)
def test_pull_is_the_transpose_of_push(case: str) -> None:
    prop = made(case)
    u, c = (mu.tangent(random_tangent(mu, seed=s)) for mu, s in ((prop.mu0, 1), (prop.final, 2)))
    left, right = prop.final.inner(prop.push(u), c), prop.mu0.inner(u, prop.pull(c))
    assert torch.allclose(left, right, rtol=1e-9, atol=1e-10)


def test_it_is_the_derivative_of_the_steps_not_of_the_exact_flow() -> None:
    prop = Propagator(of.Particles([[1.0], [3.0]]), DECAY, of.Euler(), t1=1.0, dt=0.5)
    assert torch.allclose(prop.matrix(), 0.25 * torch.eye(2, dtype=torch.float64))


def test_several_tangents_go_together() -> None:
    prop = made("masked")
    many = [prop.mu0.tangent(random_tangent(prop.mu0, seed=s)) for s in range(6)]
    stacked = of.Tangent([torch.stack([u[0] for u in many]).reshape(2, 3, *many[0][0].shape)])
    for f in (prop.push, prop.pull):
        together = f(stacked)[0].flatten(0, 1)
        assert far(of.Tangent([together]), of.Tangent([torch.stack([f(u)[0] for u in many])])) < 1e-12


def test_members_of_a_batch_are_independent() -> None:
    (mu, _), prop = CASES["batched"], made("batched")
    for k in range(3):
        own = Propagator(mu[k], _member(k), of.RK4(), **RUN)
        assert torch.allclose(prop.matrix()[k], own.matrix(), atol=1e-13)


def _member(k: int) -> of.VelocityField:
    field: Any = attention(3, kind=of.SigmoidAttention)
    return of.SigmoidAttention(*(f(torch.tensor(0.0))[k] for f in (field.Q, field.K, field.V)))


def test_final_is_the_end_of_the_run() -> None:
    mu, field = CASES["weighted"]
    end = of.flow(mu, field, of.RK4(), **RUN).final
    assert torch.allclose(made("weighted").final.coords[0], end.coords[0], rtol=1e-14)


def test_weights_that_require_grad_do_not_matter() -> None:
    Q = torch.eye(2, dtype=torch.float64, requires_grad=True)
    prop = Propagator(of.Particles(normal(3, 2)), of.SoftmaxAttention(Q, Q, Q), of.RK4(), **RUN)
    u = random_tangent(prop.mu0)
    assert not prop.push(u)[0].requires_grad
    assert not prop.pull(u)[0].requires_grad
    assert not prop.final.coords[0].requires_grad


# --- closed forms --------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_without_scores_only_the_mean_moves_the_tokens() -> None:
    # A = 0: x_i(t) = x_i(0) + (exp(tV) - I) mean, whatever the weights.
    mu, zero = of.Particles(normal(4, 2), weights(4)), np.zeros((2, 2))
    prop = Propagator(mu, of.SoftmaxAttention(zero, zero, M), of.RK4(), t1=1.0, dt=0.05)
    growth = expm(M) - np.eye(2)
    exact = np.eye(8) + np.kron(np.outer(np.ones(4), mu.w.numpy()), growth)
    assert np.allclose(prop.matrix().numpy(), exact, atol=1e-6)
    u = normal(4, 2, seed=3)
    moved = u + (mu.w.numpy() @ u) @ growth.T
    assert np.allclose(prop.push(of.Tangent([torch.from_numpy(u)]))[0].numpy(), moved, atol=1e-6)


def test_a_linear_field_has_the_exponential_of_its_matrix() -> None:
    mu = of.Particles(normal(3, 2))
    prop = Propagator(mu, of.Perceptron(M, np.eye(2), activation=None), of.RK4(), t1=1.5, dt=0.05, t0=0.5)
    assert np.allclose(prop.matrix().numpy(), block_diag(*[expm(M)] * 3), atol=1e-6)


def test_on_a_gaussian_a_linear_field_moves_mean_and_root_alike() -> None:
    mu = of.Gaussian(normal(2), root=normal(2, 2))
    prop = Propagator(mu, of.Perceptron(M, np.eye(2), activation=None), of.Lie(), t1=1.0, dt=0.5)
    exact = block_diag(expm(M), np.kron(expm(M), np.eye(2)))
    assert np.allclose(prop.matrix().numpy(), exact, atol=1e-12)


# --- singular values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_small_problems_have_the_singular_values_of_their_matrix(case: str) -> None:
    mu, field = CASES[case]
    found = singular_values(mu, field, of.RK4(), **RUN, k=3)
    exact = np.linalg.svd(scaled_matrix(made(case)).numpy(), compute_uv=False)[..., :3]
    assert np.allclose(found.values.numpy(), exact, rtol=1e-9, atol=1e-12)
    assert set(np.atleast_1d(found.status).ravel()) == {"ok"}


@pytest.mark.parametrize("case", ["weighted", "masked", "sphere", "gaussians"])
def test_singular_vectors_are_orthonormal_and_belong_together(case: str) -> None:
    prop, (mu, field) = made(case), CASES[case]
    found = singular_values(mu, field, of.RK4(), **RUN, k=2)
    one, two = (of.Tangent(a[i] for a in found.initial) for i in (0, 1))
    image = found.final.map(lambda a: a[0]) * found.values[..., 0]
    assert far(prop.push(one), image) < 1e-10
    assert torch.allclose(mu.inner(one, one), torch.ones(mu.batch, dtype=torch.float64))
    assert torch.allclose(mu.inner(one, two), torch.zeros(mu.batch, dtype=torch.float64), atol=1e-12)
    assert far(mu.tangent(one), one) < 1e-12


def large(*batch: int, n: int = 40) -> tuple[of.Particles, of.VelocityField]:
    return of.Particles(normal(*batch, n, 2), weights(*batch, n)), attention(*batch)


@pytest.mark.thorough
@pytest.mark.parametrize(("batch", "k"), [((), 1), ((), 4), ((3,), 2)])
def test_large_problems_are_iterated_to_the_same_values(batch: tuple[int, ...], k: int) -> None:
    mu, field = large(*batch)
    found = singular_values(mu, field, of.RK4(), **RUN, k=k, tol=1e-7)
    J = scaled_matrix(Propagator(mu, field, of.RK4(), **RUN)).numpy()
    exact = np.linalg.svd(J, compute_uv=False)[..., :k]
    assert np.allclose(found.values.numpy(), exact, rtol=1e-10)
    assert bool((found.residuals <= 1e-7 * found.values[..., :1]).all())
    assert 2 < found.iterations < 40


def test_multiple_values_are_found_as_often_as_they_occur() -> None:
    # A = 0 and V = I: e on the translations, which are two-dimensional, and 1 elsewhere.
    zero, mu = np.zeros((2, 2)), of.Particles(normal(40, 2), weights(40))
    found = singular_values(mu, of.SoftmaxAttention(zero, zero, np.eye(2)), of.RK4(), t1=1.0, dt=0.1, k=5)
    assert np.allclose(found.values.numpy(), [math.e, math.e, 1, 1, 1], rtol=1e-6)


def test_exponents_are_rates_per_time() -> None:
    mu, spin = of.Particles(normal(3, 2)), Linear(np.diag([0.7, -0.2]))
    found = singular_values(mu, spin, of.RK4(), t1=5.0, dt=0.1, t0=1.0, k=6)
    assert np.allclose(found.exponents.numpy(), [0.7] * 3 + [-0.2] * 3, atol=1e-5)


def test_stopping_early_is_an_error_that_keeps_an_honest_residual() -> None:
    mu, field = large()
    with pytest.raises(of.errors.ConvergenceError, match="relative residual") as caught:
        singular_values(mu, field, of.RK4(), **RUN, max_iter=2, tol=1e-9)
    found = caught.value.result
    assert found.status == "max_iter"
    J = scaled_matrix(Propagator(mu, field, of.RK4(), **RUN)).numpy()
    off = np.abs(np.linalg.svd(J, compute_uv=False) - found.values.item()).min()
    assert 0 < off <= found.residuals.item()
    again = singular_values(mu, field, of.RK4(), **RUN, max_iter=2, tol=1e-9, on_failure="return")
    assert torch.equal(again.values, found.values)


def test_a_flow_that_forgets_everything_has_the_value_zero() -> None:
    found = singular_values(of.Particles(normal(3, 2)), DECAY, of.Euler(), t1=1.0, dt=1.0, k=2)
    assert torch.equal(found.values, torch.zeros(2, dtype=torch.float64))
    assert found.status == "ok"


def test_a_spectrum_says_what_it_holds() -> None:
    one = singular_values(of.Particles([[1.0]]), DECAY, of.Euler(), t1=1.0, dt=0.5)
    assert repr(one) == "Spectrum(values=[0.25], status='ok')"
    many = singular_values(of.Particles(normal(3, 2, 1)), DECAY, of.Euler(), t1=1.0, dt=0.5)
    assert repr(many) == "Spectrum(values=(3, 1), status=['ok'])"


# --- wrong input ---------------------------------------------------------------------------------------


def test_adaptive_steppers_are_refused() -> None:
    with pytest.raises(of.InputError, match="use RK4"):
        made("plain", of.Dopri5())
    assert made("plain", of.Dopri5(adaptive=False)).final.coords[0].shape == (5, 2)


def test_steppers_without_derivative_say_so() -> None:
    pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    with pytest.raises(of.errors.DerivativeError, match="JKO"):
        Propagator(of.Particles([[1.0]]), pull, of.JKO(), t1=1.0, dt=0.5)


def test_a_run_that_blows_up_has_no_flow_map() -> None:
    mu = of.Particles([[[0.1]], [[0.9]]])
    with pytest.raises(of.errors.FlowError, match="1 of 2 members") as caught:
        Propagator(mu, Given(lambda t, x: x**3), of.RK4(), t1=1.3, dt=0.05)
    assert caught.value.trajectory.status.tolist() == ["ok", "blow_up"]


def test_tokens_without_mass_and_densities_are_refused() -> None:
    with pytest.raises(of.InputError, match="without mass"):
        Propagator(of.Particles([[0.0], [1.0]], [1.0, 0.0]), DECAY, of.RK4(), **RUN)
    with pytest.raises(of.InputError, match="Particles and Gaussians"):
        Propagator(hill(8), DECAY, of.RK4(), **RUN)


def test_tangents_of_other_shapes_are_refused() -> None:
    prop = made("batched")
    with pytest.raises(of.InputError, match=r"u\.shape"):
        prop.push(of.Tangent([torch.zeros(4, 2, dtype=torch.float64)]))
    bare: Any = torch.zeros(3, 4, 2)
    with pytest.raises(of.InputError, match="a Tangent is needed"):
        prop.pull(bare)


def test_more_values_than_coordinates_are_refused() -> None:
    with pytest.raises(of.InputError, match="k = 11"):
        singular_values(*CASES["plain"], of.RK4(), **RUN, k=11)


def test_inference_mode_is_refused() -> None:
    with torch.inference_mode(), pytest.raises(of.errors.DerivativeError, match="inference_mode"):
        made("plain")


def test_a_matrix_too_large_to_hold_is_refused() -> None:
    with pytest.raises(of.InputError, match="entries"):
        Propagator(of.Particles(normal(20_000, 1)), DECAY, of.Euler(), t1=1.0, dt=1.0).matrix()


@pytest.mark.slow(but_for=["1e-06"])
@pytest.mark.parametrize("tol", [1e-6, 1e-9])
def test_the_last_bit_of_single_precision_does_not_decide_whether_singular_values_are_found(
    tol: float,
) -> None:
    """Small tokens and sharp scores: residuals stay at a few rounding errors, which may be above 1e-6."""
    eye = torch.eye(2)
    field, limit = of.SoftmaxAttention(1e6 * eye, eye, -eye), 100 * torch.finfo(torch.float32).eps
    x = (1e-3 * normal(40, 2, seed=1)).astype(np.float32)
    for shake in range(3):
        if shake:
            x = np.nextafter(x, np.random.default_rng(shake).choice(np.float32([-1, 1]), x.shape))
        found = singular_values(
            of.Particles(x), field, of.RK4(), t1=1.0, dt=0.25, k=3, tol=tol, on_failure="return"
        )
        assert found.status == "ok"
        assert bool((found.residuals <= limit * found.values[0]).all())
