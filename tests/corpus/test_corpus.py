"""Bad input and hard input that broke other libraries, by number: 33 to 60 concern flows and measures.

33-40 are failures seen elsewhere (blow-up, silent NaN, masked rows, ...); 43-60 are awkward inputs that must
either work exactly or be refused with the name of the argument, its value and a remedy.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

import otflow as of
from otflow.base import kernels, linalg, spaces
from tests import dense, zoo
from tests.corpus.refusals import refuses
from tests.regimes import REGIMES, regime

KINDS: dict[str, Any] = {
    "softmax": of.SoftmaxAttention,
    "l2": of.L2Attention,
    "sigmoid": of.SigmoidAttention,
    "unnormalised": of.UnnormalisedAttention,
    "sinkhorn": of.SinkhornAttention,
}
PLAIN = [kind for kind in KINDS if kind != "sinkhorn"]
FIXED = {"euler": of.Euler, "heun": of.Heun, "rk4": of.RK4}


class Growth(of.VelocityField):
    """x' = x^2, which leaves at t = 1 / x0."""

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return mu.coords.map(torch.square)


class Broken(of.VelocityField):
    """A velocity that is not a number from time ``start`` on."""

    def __init__(self, start: float) -> None:
        self.start = start

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return mu.coords.map(lambda x: x * torch.where(t >= self.start, torch.nan, 0.1).to(x.dtype))


# --- 33-35: blow-up -----------------------------------------------------------------------------------


def test_33_step_size_underflow_is_a_blow_up_with_its_time() -> None:
    traj = of.flow(of.Particles([[2.0]]), Growth(), of.Dopri5(), t1=3.0)
    assert traj.status == "blow_up"
    assert traj.blow_up_time.item() == pytest.approx(0.5, abs=1e-5)
    assert all(mu.finite() for mu in traj.measures)


@pytest.mark.thorough
def test_33_a_gaussian_under_softmax_blows_up_at_the_known_time() -> None:
    s0 = 0.8
    mu, one = of.Gaussian([0.0], root=[[math.sqrt(s0)]]), np.ones((1, 1))
    traj = of.flow(mu, of.SoftmaxAttention(one, one, one), of.Dopri5(), t1=5.0)
    assert traj.status == "blow_up"
    assert traj.blow_up_time.item() == pytest.approx(1 / (2 * s0), rel=1e-5)


@pytest.mark.thorough
def test_33_one_token_under_unnormalised_attention_blows_up_at_the_known_time() -> None:
    x0, one = 0.5, np.ones((1, 1))
    traj = of.flow(of.Particles([[x0]]), of.UnnormalisedAttention(one, one, one), of.Dopri5(), t1=5.0)
    assert traj.status == "blow_up"  # x' = x exp(x^2) reaches infinity after E1(x0^2) / 2
    assert traj.blow_up_time.item() == pytest.approx(scipy.special.exp1(x0**2) / 2, rel=1e-5)


@pytest.mark.thorough
def test_33_members_of_a_batch_blow_up_one_by_one_while_the_others_go_on() -> None:
    mu = of.Particles([[[2.0]], [[0.1]], [[4.0]]])
    traj = of.flow(mu, Growth(), of.Dopri5(), t1=1.0)
    assert traj.status.tolist() == ["blow_up", "ok", "blow_up"]
    assert traj.blow_up_time[[0, 2]].tolist() == pytest.approx([0.5, 0.25], abs=1e-5)
    assert traj.blow_up_time[1].isnan()
    assert traj.final.x[1].item() == pytest.approx(1 / 9, rel=1e-6)
    assert bool(traj.final.finite().all())


@pytest.mark.thorough
def test_33_a_first_velocity_that_is_nan_ends_the_run_at_once() -> None:
    traj = of.flow(of.Particles([[1.0]]), Broken(0.0), of.Dopri5(), t1=1.0, on_failure="return")
    assert traj.status == "invalid"  # nothing is known of the solution
    assert "Broken" in traj.message
    assert float(traj.ended) == 0.0
    assert traj.final.x.item() == 1.0


def test_33_a_velocity_that_turns_nan_ends_the_run_just_before() -> None:
    with pytest.raises(of.errors.FlowError, match=r"invalid at t = 0\.5.*velocity of .*Broken") as caught:
        of.flow(of.Particles([[1.0]]), Broken(0.5), of.Dopri5(), t1=1.0)
    traj = caught.value.trajectory
    assert traj.status == "invalid"  # nothing grew: the field ended, not the solution
    assert float(traj.ts[-1]) == pytest.approx(0.5, abs=1e-9)
    assert traj.final.x.item() == pytest.approx(math.exp(0.05), rel=1e-6)


@pytest.mark.thorough
def test_33_a_stiff_field_takes_many_steps_but_no_wrong_ones() -> None:
    field = of.Perceptron([[-1e4]], [[1.0]], activation=lambda z: z)
    traj = of.flow(of.Particles([[1.0]]), field, of.Dopri5(), t1=0.1, save_at=[0.1])
    assert traj.status == "ok"
    assert abs(traj.final.x.item()) < 1e-8


@pytest.mark.thorough
def test_33_nothing_depends_on_assert_statements_that_python_o_removes() -> None:
    package = Path(of.__file__).parent
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), path.name


@pytest.mark.parametrize("stepper", FIXED)
def test_34_a_fixed_step_never_returns_nan_silently(stepper: str) -> None:
    traj = of.flow(of.Particles([[2.0], [1.0]]), Growth(), FIXED[stepper](), t1=3.0, dt=0.01)
    assert traj.status == "blow_up"
    assert abs(traj.blow_up_time.item() - 0.5) <= traj.blow_up_error.item() < 0.05
    assert all(mu.finite() for mu in traj.measures)
    assert traj.ts[-1] <= traj.blow_up_time


@pytest.mark.parametrize("stepper", FIXED)
def test_34_members_of_a_batch_fail_alone_with_fixed_steps_too(stepper: str) -> None:
    mu = of.Particles([[[2.0]], [[0.1]]])
    traj = of.flow(mu, Growth(), FIXED[stepper](), t1=1.0, dt=0.01)
    assert traj.status.tolist() == ["blow_up", "ok"]
    assert traj.final.x[1].item() == pytest.approx(1 / 9, rel=2e-3)
    assert bool(traj.final.finite().all())


@pytest.mark.parametrize("stepper", [of.Dopri5(), of.RK4()], ids=repr)
def test_35_times_after_a_blow_up_are_left_out_rather_than_filled(stepper: of.Stepper) -> None:
    wanted, dt = [0.1, 0.4, 0.9, 2.0], None if stepper.adaptive else 0.01
    seen = {"x": lambda mu: mu.x.sum()}
    traj = of.flow(of.Particles([[2.0]]), Growth(), stepper, t1=3.0, dt=dt, save_at=wanted, observe=seen)
    assert traj.ts[:2].tolist() == wanted[:2]
    assert float(traj.ts[-1]) <= traj.blow_up_time.item() < 0.9
    assert len(traj.ts) == len(traj.measures) == len(traj.observed["x"])
    assert bool(traj.observed["x"].isfinite().all())


@pytest.mark.parametrize("t1", [20.0, 40.0], ids=["finite", "beyond"])
@pytest.mark.thorough
def test_34_a_step_that_is_too_long_for_a_decay_is_unstable(t1: float) -> None:
    """R(-1000) = 4e10 for RK4: 1e226 after 20 steps, and beyond the finite numbers after 28."""
    field = of.Perceptron([[-1e3]], [[1.0]], activation=lambda z: z)
    with pytest.raises(of.errors.FlowError, match=r"unstable.*too long.*pass dt=0\.0026,"):
        of.flow(of.Particles([[1.0]]), field, of.RK4(), t1=t1, dt=1.0)


def test_34_a_descent_whose_energy_grows_580_fold_is_unstable() -> None:
    well = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    with pytest.raises(of.errors.FlowError, match=r"unstable.*dt = 3 is too long") as caught:
        of.flow(of.Particles([[1.0]]), well, of.RK4(), t1=30.0, dt=3.0)
    assert float(caught.value.trajectory.certificates["energy_gap"].max()) > 0


# --- 36-37: roots of matrices ---------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 5])
def test_36_root_of_identity_has_finite_gradient(d: int) -> None:
    s = torch.eye(d, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(linalg.sqrtm(s).sum(), s)
    assert float((grad - 0.5).abs().max()) < 1e-15


@pytest.mark.parametrize(
    "values", [[1.0, 1.0, 1.0], [2.0, 2.0, 0.5], [1.0, 1.0 + 1e-13, 3.0], [1e-8, 1e-8, 1.0]]
)
def test_36_the_root_is_differentiable_at_repeated_eigenvalues(values: list[float]) -> None:
    turn, _ = np.linalg.qr(zoo.rng(1).standard_normal((3, 3)))
    s = torch.from_numpy(turn @ np.diag(values) @ turn.T)
    ds = zoo.matrix(2)
    ds = ds + ds.mT
    s = (s + s.mT) / 2
    with forward_ad.dual_level():
        root, slope = forward_ad.unpack_dual(linalg.sqrtm(forward_ad.make_dual(s, ds)))
    # The derivative X of the root R solves R X + X R = dS.
    assert float((root @ slope + slope @ root - ds).abs().max()) < 1e-10
    assert float((root @ root - s).abs().max()) < 1e-14
    c = zoo.matrix(3)
    _, back = torch.autograd.functional.vjp(linalg.sqrtm, s, c)
    assert float((back * ds).sum()) == pytest.approx(float((c * slope).sum()), rel=1e-10)


def test_36_second_derivatives_of_the_root_are_right_or_refused() -> None:
    s, ds = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)), torch.eye(3, dtype=torch.float64)
    try:
        _, slope = torch.autograd.functional.jvp(linalg.sqrtm, s, ds)  # differentiates the backward pass
    except (RuntimeError, NotImplementedError):
        return
    assert slope.diagonal().tolist() == pytest.approx([0.5, 0.5 / math.sqrt(2), 0.25])


def test_36_a_flow_is_differentiable_in_a_covariance_with_equal_eigenvalues() -> None:
    cov = torch.eye(3, dtype=torch.float64, requires_grad=True)
    field = of.SoftmaxAttention(*zoo.QKV(3))
    final = of.flow(of.Gaussian(np.zeros(3), cov=cov), field, of.RK4(), t1=0.2, dt=0.1).final
    (grad,) = torch.autograd.grad(final.cov.diagonal().sum(), cov)
    assert bool(grad.isfinite().all())
    assert float(grad.abs().max()) > 0


SINGULAR = {
    "one_zero": np.diag([1.0, 1.0, 0.0]),
    "rank_one": np.outer([1.0, -2.0, 3.0], [1.0, -2.0, 3.0]),
    "zero": np.zeros((3, 3)),
    "tiny": 1e-30 * np.diag([1.0, 2.0, 0.0]),
    "huge": 1e30 * np.diag([1.0, 2.0, 0.0]),
    "graded": np.diag([1.0, 1e-9, 0.0]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SINGULAR)
def test_37_a_singular_covariance_has_a_real_root(name: str, dtype: Any) -> None:
    cov = SINGULAR[name].astype(dtype)
    mu = of.Gaussian(np.zeros(3, dtype), cov=cov)
    assert mu.root.dtype == torch.from_numpy(cov).dtype
    scale = max(float(np.abs(cov).max()), np.finfo(dtype).tiny)
    assert float(np.abs(mu.cov.numpy() - cov).max()) <= 10 * np.finfo(dtype).eps * scale


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_37_a_covariance_that_is_singular_up_to_rounding_is_accepted(dtype: Any) -> None:
    for seed in range(10):
        x = zoo.rng(seed).standard_normal((6, 2)).astype(dtype)
        mu = of.Gaussian(np.zeros(6, dtype), cov=x @ x.T)
        assert (
            float(np.abs(mu.cov.numpy() - x @ x.T).max()) < 100 * np.finfo(dtype).eps * np.abs(x @ x.T).max()
        )


def test_37_a_covariance_with_a_negative_eigenvalue_is_refused() -> None:
    refuses(lambda: of.Gaussian([0.0, 0.0], cov=np.diag([1.0, -0.1])), "cov", "-0.1", "positive semidefinite")


# --- 38-40: masked rows, zero norms, overflow -----------------------------------------------------------


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", PLAIN)
def test_38_a_fully_masked_row_gives_zero_and_finite_gradients(kind: str, how: str) -> None:
    Q, K, V = (m.requires_grad_() for m in zoo.QKV(4))
    mu = of.Particles(
        torch.from_numpy(zoo.rng(5).standard_normal((5, 3))).requires_grad_(), label=np.arange(5.0)
    )
    with regime(how):
        v = KINDS[kind](Q, K, V, causal=True).at(0.0, mu, np.ones((2, 3)), label=[-1.0, 2.0])
        grads = torch.autograd.grad(v.square().sum(), [mu.x, Q, K, V])
    assert (v[0] == 0).all()
    assert (v[1] != 0).any()
    assert all(bool(g.isfinite().all()) for g in grads)


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", PLAIN)
def test_38_scores_that_overflow_at_a_masked_position_do_not_leak(kind: str, how: str) -> None:
    x = zoo.rng(6).standard_normal((4, 3))
    far = np.vstack([x, [1e200, -1e200, 1e200]])
    Q, K, V = zoo.QKV(7)
    with regime(how):
        field = KINDS[kind](Q, K, V, causal=True)
        alone = field(0.0, of.Particles(x, label=np.arange(4.0)))[0]
        v = field.evaluate(torch.tensor(0.0), of.Particles(far, label=np.arange(5.0)))[0][0][:4]
    factor = 0.8 if kind in ("sigmoid", "unnormalised") else 1.0  # there are five weights now
    assert float((v - factor * alone).abs().max()) < 1e-12


@pytest.mark.parametrize("space", [of.Euclidean(), of.Sphere(), of.Torus(7.0)], ids=repr)
def test_39_distances_between_equal_points_have_zero_gradient(space: of.measures.Space) -> None:
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    distance = space.distance(x, x.detach())
    (grad,) = torch.autograd.grad(distance.sum(), x)
    assert (distance == 0).all()
    assert (grad == 0).all()


def test_39_antipodal_points_are_at_distance_pi_with_finite_gradient() -> None:
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    distance = of.Sphere().distance(x, -x.detach())
    (grad,) = torch.autograd.grad(distance.sum(), x)
    assert distance.item() == pytest.approx(math.pi, rel=1e-15)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("size", [1e-310, 1e-200, 1.0, 1e200, 1e308])
def test_39_norms_neither_overflow_nor_underflow(size: float) -> None:
    x = torch.tensor([size * 0.6, -size * 0.8], dtype=torch.float64)
    assert spaces.norm(x).item() == pytest.approx(size, rel=1e-12 if size > 1e-300 else 1e-10)


def test_39_the_zero_vector_is_refused_on_the_sphere() -> None:
    refuses(lambda: of.Particles([[1.0, 0.0], [0.0, 0.0]], space=of.Sphere()), "|x|", "1.0", "normalise x")


@pytest.mark.parametrize("size", [1e3, 1e5, 1e8])
@pytest.mark.parametrize("kind", ["softmax", "l2", "sigmoid"])
def test_40_scores_far_beyond_the_range_of_exp_give_finite_velocities(kind: str, size: float) -> None:
    x = np.array([[1.0, 0.0], [-1.0, 0.5], [0.3, 0.2]])
    Q, K = (size * np.eye(2), np.eye(2)) if kind != "l2" else (math.sqrt(size) * np.eye(2),) * 2
    v = KINDS[kind](Q, K, np.eye(2))(0.0, of.Particles(x))[0].numpy()
    exact = dense.exact(kind, Q, K, np.eye(2), x, np.full(3, 1 / 3), x)
    assert np.abs(v - exact).max() < 1e-15 * size + 1e-14


def test_40_the_logarithm_of_a_sum_of_exponentials_is_finite_where_the_sum_is_not() -> None:
    q = torch.tensor([[1e4]], dtype=torch.float64)
    _, lse = kernels.attend(q, torch.ones(3, 1, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64))
    assert lse.item() == pytest.approx(1e4 + math.log(3), rel=1e-15)


@pytest.mark.thorough
def test_40_unnormalised_attention_that_overflows_is_reported_and_named() -> None:
    mu = of.Particles([[100.0, 0.0], [0.0, 1.0]])
    for stepper, dt in ((of.Dopri5(), None), (of.RK4(), 0.1)):
        field = of.UnnormalisedAttention(*[np.eye(2)] * 3)
        traj = of.flow(mu, field, stepper, t1=1.0, dt=dt, on_failure="return")
        assert traj.status == "invalid"  # exp(10,000) is no number that a step could start with
        assert "velocity of UnnormalisedAttention" in traj.message
        assert torch.equal(traj.final.x, mu.x)


# --- 43-49: awkward clouds ------------------------------------------------------------------------------


def lone(kind: str, A: np.ndarray, V: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The velocity of a token that sees only itself."""
    s = x @ A @ x
    factor = {"sigmoid": 1 / (1 + math.exp(-s)), "unnormalised": math.exp(s)}.get(kind, 1.0)
    return factor * V @ x


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_43_one_particle_sees_only_itself(kind: str, d: int, how: str) -> None:
    rng = zoo.rng(8)
    x, (Q, K, V) = rng.standard_normal(d), 0.7 * rng.standard_normal((3, d, d))
    with regime(how):
        v = KINDS[kind](Q, K, V)(0.0, of.Particles(x[None]))[0].numpy()
    assert np.abs(v - lone(kind, K.T @ Q, V, x)).max() < 1e-13


@pytest.mark.thorough
@pytest.mark.parametrize("stepper", zoo.STEPPERS)
def test_43_one_particle_flows(stepper: str) -> None:
    one = np.ones((1, 1))
    dt = None if stepper == "dopri5" else 0.01
    traj = of.flow(
        of.Particles([[2.0]]), of.SoftmaxAttention(one, one, -one), zoo.STEPPERS[stepper](), t1=1.0, dt=dt
    )
    assert traj.final.x.item() == pytest.approx(2 * math.exp(-1), rel=1e-2 if stepper == "euler" else 1e-4)


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("number", "n", "d"), [(44, 5, 1), (45, 2, 6), (45, 3, 40)])
def test_44_one_dimension_and_45_fewer_particles_than_dimensions(
    kind: str, number: int, n: int, d: int, how: str
) -> None:
    rng = zoo.rng(number)
    x, (Q, K, V) = rng.standard_normal((n, d)), rng.standard_normal((3, d, d)) / d
    with regime(how):
        v = KINDS[kind](Q, K, V)(0.0, of.Particles(x))[0].numpy()
    truth = dense.VELOCITIES[kind](Q, K, V, x, np.full(n, 1 / n), x)
    assert np.abs(v - truth).max() < 1e-8 * np.abs(truth).max()


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_46_identical_particles_move_like_one(kind: str, how: str) -> None:
    x, (Q, K, V) = np.array([0.5, -1.0, 2.0]), (0.4 * m.numpy() for m in zoo.QKV(9))
    with regime(how):
        v = KINDS[kind](Q, K, V)(0.0, of.Particles(np.tile(x, (50, 1))))[0].numpy()
    assert np.abs(v - lone(kind, K.T @ Q, V, x)).max() < 1e-12


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_46_a_duplicated_particle_is_one_of_double_weight(kind: str, how: str) -> None:
    x, (Q, K, V) = zoo.rng(10).standard_normal((4, 3)), zoo.QKV(11)
    field = KINDS[kind](Q, K, V, **({"eps": of.Sinkhorn(1.0, tol=1e-12)} if kind == "sinkhorn" else {}))
    with regime(how):
        twice = field(0.0, of.Particles(np.vstack([x, x[:1]])))[0]
        merged = field(0.0, of.Particles(x, [0.4, 0.2, 0.2, 0.2]))[0]
    assert float((twice[:4] - merged).abs().max()) < 1e-9
    assert float((twice[4] - merged[0]).abs().max()) < 1e-9


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_47_a_particle_at_infinity_is_refused_by_its_index(value: float) -> None:
    x = np.zeros((4, 3))
    x[2, 1] = value
    refuses(lambda: of.Particles(x), f"x[2, 1] = {value}", "finite")


@pytest.mark.parametrize("far", [1e8, 1e100, 1e150])
@pytest.mark.parametrize("kind", ["softmax", "l2", "sigmoid"])
def test_47_a_particle_very_far_away_gives_finite_velocities(kind: str, far: float) -> None:
    x = np.array([[0.5, 0.1], [0.2, 0.9], [0.7, 0.4], [-far, 0.0]])
    eye = np.eye(2)
    v = KINDS[kind](eye, eye, eye)(0.0, of.Particles(x))[0].numpy()
    exact = dense.exact(kind, eye, eye, eye, x, np.full(4, 0.25), x)
    assert np.isfinite(v).all()
    assert np.abs(v[:3] - exact[:3]).max() < 1e-10
    assert np.abs(v[3] - exact[3]).max() <= 1e-10 * far


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_48_denormal_positions_average_exactly_enough(kind: str, how: str) -> None:
    x = zoo.rng(12).standard_normal((5, 3)) * 1e-310  # a unit in the last place is 5e-324
    Q, K, V = zoo.QKV(13)
    with regime(how):
        v = KINDS[kind](Q, K, V)(0.0, of.Particles(x))[0].numpy()
    factor = 0.5 if kind == "sigmoid" else 1.0  # all scores are zero
    assert np.abs(v - factor * V.numpy() @ x.mean(0)).max() < 1e-321


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_48_a_denormal_weight_counts_as_next_to_nothing(kind: str, how: str) -> None:
    x, w = zoo.rng(14).standard_normal((4, 3)), np.array([0.5, 0.25, 0.25, 1e-310])
    field = KINDS[kind](*zoo.QKV(15), **({"eps": of.Sinkhorn(1.0, tol=1e-12)} if kind == "sinkhorn" else {}))
    with regime(how):
        v, rest = field(0.0, of.Particles(x, w))[0][:3], field(0.0, of.Particles(x[:3], w[:3]))[0]
    assert float((v - rest).abs().max()) < 1e-9


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_49_at_beta_zero_everybody_attends_to_the_mean(kind: str, how: str) -> None:
    x, V = zoo.rng(16).standard_normal((6, 3)), zoo.matrix(17)
    with regime(how):
        K = np.zeros((3, 3)) if kind == "l2" else zoo.matrix(18)
        v = KINDS[kind](np.zeros((3, 3)), K, V)(0.0, of.Particles(x))[0].numpy()
    factor = 0.5 if kind == "sigmoid" else 1.0
    assert np.abs(v - factor * V.numpy() @ x.mean(0)).max() < 1e-14


@pytest.mark.parametrize("how", REGIMES)
def test_49_at_beta_a_million_everybody_attends_to_the_best(how: str) -> None:
    rng = zoo.rng(19)
    x, Q, K, V = rng.standard_normal((20, 3)), *rng.standard_normal((3, 3, 3))
    with regime(how):
        v = of.SoftmaxAttention(1e6 * Q, K, V)(0.0, of.Particles(x))[0].numpy()
    best = np.argmax(x @ Q.T @ K @ x.T, axis=1)
    assert np.abs(v - x[best] @ V.T).max() < 1e-12


def test_49_a_flow_at_beta_a_million_stays_in_the_convex_hull() -> None:
    x = zoo.rng(20).standard_normal((10, 2))
    traj = of.flow(
        of.Particles(x),
        of.SoftmaxAttention(1e6 * np.eye(2), np.eye(2), np.eye(2)),
        of.Euler(),
        t1=1.0,
        dt=0.1,
    )
    assert traj.status == "ok"
    assert float(traj.final.x.abs().max()) <= np.abs(x).max() * 1.1**10


# --- 50: time grids -------------------------------------------------------------------------------------

GRIDS = {
    "decreasing": ([0.5, 0.2], "save_at[1] = 0.2"),
    "repeated": ([0.2, 0.2], "save_at[1] = 0.2"),
    "empty": ([], "save_at"),
    "of two axes": ([[0.1, 0.2]], "save_at"),
    "after the end": ([0.5, 1.5], "1.5"),
    "before the start": ([-0.5, 0.5], "-0.5"),
    "with nan": ([0.1, math.nan], "save_at[1] = nan"),
}


def still(**options: Any) -> of.Trajectory:
    """A short flow of one token, to be spoiled by its options."""
    one = np.ones((1, 1))
    return of.flow(
        of.Particles([[1.0]]),
        of.SoftmaxAttention(one, one, -one),
        of.RK4(),
        **{"t1": 1.0, "dt": 0.1} | options,
    )


@pytest.mark.parametrize("grid", GRIDS)
def test_50_a_time_grid_that_makes_no_sense_is_refused(grid: str) -> None:
    times, part = GRIDS[grid]
    refuses(lambda: still(save_at=times), part)


@pytest.mark.parametrize(
    "times", [[0.0, 1.0], [1.0], [0.0], [0.05], np.linspace(0, 1, 4), torch.tensor([0.3])]
)
def test_50_a_time_grid_that_makes_sense_is_hit_exactly(times: Any) -> None:
    traj = still(save_at=times)
    wanted = sorted({*np.asarray(times, dtype=float).tolist(), 1.0})
    assert traj.ts.tolist() == wanted
    assert traj.final.x.item() == pytest.approx(math.exp(-1), rel=1e-5)


# --- 51-60: unusual arrays --------------------------------------------------------------------------------


def plain() -> np.ndarray:
    return zoo.rng(21).standard_normal((6, 3))


def strided() -> np.ndarray:
    wide = np.full((12, 6), np.nan)
    wide[::2, 1::2] = plain()
    return wide[::2, 1::2]


def read_only() -> np.ndarray:
    x = plain()
    x.flags.writeable = False
    return x


ARRAYS: dict[str, Callable[[], Any]] = {
    "51 a transposed array": lambda: np.asfortranarray(plain()),
    "51 an array with strides": strided,
    "51 an array read backwards": lambda: plain()[::-1].copy()[::-1],
    "51 a transposed tensor": lambda: torch.from_numpy(plain().T.copy()).T,
    "51 a tensor with strides": lambda: torch.from_numpy(strided()),
    "53 a read-only array": read_only,
    "54 a big-endian array": lambda: plain().astype(">f8"),
    "54 a little-endian array": lambda: plain().astype("<f8"),
    "57 nested lists": lambda: plain().tolist(),
    "57 extended precision": lambda: plain().astype(np.longdouble),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_51_53_54_57_unusual_layouts_give_the_usual_numbers(name: str) -> None:
    usual = of.Particles(plain())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mu = of.Particles(ARRAYS[name]())
    field = of.SinkhornAttention(*zoo.QKV(22), eps=of.Sinkhorn(1.0, tol=1e-12)) + of.SoftmaxAttention(
        *zoo.QKV(25)
    )
    assert torch.equal(mu.x, usual.x)
    assert float((field(0.0, mu)[0] - field(0.0, usual)[0]).abs().max()) < 1e-11


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_51_weights_with_strides_give_the_usual_velocities(kind: str, how: str) -> None:
    x, mats = plain(), [m.numpy() for m in zoo.QKV(28)]
    mu = of.Particles(torch.from_numpy(strided()))
    with regime(how):
        v = KINDS[kind](*(torch.from_numpy(np.asfortranarray(m)) for m in mats))(0.0, mu)[0]
        usual = KINDS[kind](*mats)(0.0, of.Particles(x))[0]
    assert float((v - usual).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint8, bool])
def test_51_integers_become_doubles(kind: Any) -> None:
    x = np.array([[0, 1], [1, 0]]).astype(kind)
    for given in (x, torch.from_numpy(x)):
        mu = of.Particles(given)
        assert mu.x.dtype == torch.float64
        assert mu.x.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_52_inputs_that_require_grad_keep_their_graph() -> None:
    leaf = torch.from_numpy(plain()).requires_grad_()
    mu = of.Particles(2 * leaf, weights := np.full(6, 1 / 6))
    v = of.SoftmaxAttention(*zoo.QKV(31))(0.0, mu)[0]
    (grad,) = torch.autograd.grad(v.square().sum(), leaf)
    assert float(grad.abs().max()) > 0
    assert weights.tolist() == [1 / 6] * 6


def test_52_under_no_grad_nothing_is_recorded() -> None:
    leaf = torch.from_numpy(plain()).requires_grad_()
    with torch.no_grad():
        traj = of.flow(of.Particles(leaf), of.SoftmaxAttention(*zoo.QKV(34)), of.Euler(), t1=0.2, dt=0.1)
    assert not traj.final.x.requires_grad


def test_52_weights_that_require_grad_are_differentiable_where_they_are_positive() -> None:
    raw = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)
    x = torch.from_numpy(plain()[:4])
    for kind in KINDS.values():
        field = kind(*zoo.QKV(37))
        assert torch.autograd.gradcheck(
            lambda w, field=field: field(0.0, of.Particles(x, w / w.sum()))[0], [raw], eps=1e-6, atol=1e-6
        )


def test_53_a_measure_does_not_change_with_the_array_it_came_from() -> None:
    x, w = plain(), np.full(6, 1 / 6)
    mu = of.Particles(x, w)
    x[:], w[:] = 7.0, 0.0
    assert torch.equal(mu.x, torch.from_numpy(plain()))
    assert mu.w.tolist() == pytest.approx([1 / 6] * 6)


def test_53_a_flow_does_not_change_its_inputs() -> None:
    x, (Q, K, V) = torch.from_numpy(plain()), zoo.QKV(40)
    before = [a.clone() for a in (x, Q, K, V)]
    of.flow(of.Particles(x), of.SinkhornAttention(Q, K, V), of.RK4(), t1=0.3, dt=0.1)
    assert all(torch.equal(a, b) for a, b in zip((x, Q, K, V), before, strict=True))


@pytest.mark.parametrize("code", [">f4", ">i4", ">u2"])
def test_54_big_endian_numbers_of_any_kind_are_read_right(code: str) -> None:
    x = np.array([[1, 2], [3, 500]]).astype(code)
    assert of.Particles(x).x.tolist() == [[1.0, 2.0], [3.0, 500.0]]


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(2, 2, dtype=torch.float16),
        torch.ones(2, 2, dtype=torch.bfloat16),
        np.ones((2, 2), np.float16),
    ],
    ids=["float16", "bfloat16", "numpy"],
)
def test_55_half_precision_is_refused(x: Any) -> None:
    refuses(lambda: of.Particles(x), "x = ", "float16", "half precision", "float")
    refuses(lambda: of.SoftmaxAttention(x, x, x), "Q = ", "float16", "half precision", "float")


@pytest.mark.parametrize(
    "x", [np.ones((2, 2), complex), torch.ones(2, 2, dtype=torch.complex128)], ids=["numpy", "torch"]
)
def test_56_complex_numbers_are_refused(x: Any) -> None:
    refuses(lambda: of.Particles(x), "x = ", "complex128")
    refuses(lambda: of.Gaussian([0.0, 0.0], root=x), "root = ", "complex128")


OBJECTS: dict[str, Any] = {
    "objects": np.array([[1.0, None]], dtype=object),
    "strings": np.array([["1.0", "2.0"]]),
    "ragged": [[1.0, 2.0], [3.0]],
    "none": None,
    "dates": np.array([["2020-01-01"]], dtype="datetime64[D]"),
    "a set": {1.0, 2.0},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_57_what_is_not_an_array_of_numbers_is_refused(name: str) -> None:
    with pytest.raises(of.InputError, match=r"^x (=|is) .*(dtype|rectangular|None).*;"):
        of.Particles(OBJECTS[name])


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_58_memory_mapped_arrays_are_read_and_let_go(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "x.npy"
    np.save(path, plain())
    mu = of.Particles(np.load(path, mmap_mode=mode))
    path.write_bytes(b"")
    assert torch.equal(mu.x, torch.from_numpy(plain()))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 4, 3), (2, 0, 3)])
def test_59_empty_clouds_are_refused(shape: tuple[int, ...]) -> None:
    refuses(lambda: of.Particles(np.zeros(shape)), "x.shape", str(shape), "non-empty")


def test_59_other_empty_arrays_are_refused() -> None:
    refuses(lambda: of.Gaussian(np.zeros(3), root=np.zeros((3, 0))), "root.shape", "(3, 0)")
    refuses(lambda: of.Gaussian(np.zeros(0), cov=np.zeros((0, 0))), "cov.shape", "(0, 0)")
    refuses(lambda: of.SoftmaxAttention(np.zeros((0, 3)), np.zeros((0, 3)), np.eye(3)), "Q.shape", "(0, 3)")
    refuses(lambda: of.Layers(np.zeros((0, 3, 3))), "values.shape", "(0, 3, 3)")
    refuses(lambda: of.MultiHead([]), "heads", "[]")


META = torch.zeros(2, 2, device="meta")
TWO = of.Particles(np.eye(2))
FIELD = of.SoftmaxAttention(np.eye(2), np.eye(2), np.eye(2))
DEVICES: dict[str, tuple[Callable[[], Any], str]] = {
    "x": (lambda: of.Particles(META), "x"),
    "w": (lambda: of.Particles(np.eye(2), META[0]), "w"),
    "label": (lambda: of.Particles(np.eye(2), label=META[0]), "label"),
    "mean": (lambda: of.Gaussian(META[0], root=np.eye(2)), "mean"),
    "root": (lambda: of.Gaussian(np.zeros(2), root=META), "root"),
    "density": (lambda: of.Grid(META, [[0.0, 1.0], [0.0, 1.0]]), "density"),
    "Q": (lambda: of.SoftmaxAttention(META, np.eye(2), np.eye(2)), "Q"),
    "Q of time": (lambda: of.SoftmaxAttention(lambda t: META.double(), np.eye(2), np.eye(2))(0.0, TWO), "Q"),
    "mix of time": (lambda: of.MultiHead([FIELD], mix=[lambda t: META.double()])(0.0, TWO), "mix[0]"),
    "U of time": (lambda: of.Perceptron(np.eye(2), lambda t: META.double())(0.0, TWO), "U"),
    "points": (lambda: FIELD.at(0.0, TWO, META), "points"),
    "save_at": (lambda: still(save_at=META[0]), "save_at"),
}


@pytest.mark.parametrize("name", DEVICES)
def test_60_tensors_on_another_device_are_refused_by_name(name: str) -> None:
    call, argument = DEVICES[name]
    refuses(call, f"{argument} = ", "meta", "move")


# --- arguments that make no sense, whatever their number --------------------------------------------------

EYE3 = np.eye(3)
CLOUD = of.Particles(plain())
BATCH = of.Particles(np.stack([plain(), plain()]))
SINGLE = of.Particles(plain().astype(np.float32))
GAUSS = of.Gaussian(np.zeros(3), root=EYE3)
SOFTMAX = of.SoftmaxAttention(EYE3, EYE3, EYE3)
CAUSAL = of.SoftmaxAttention(EYE3, EYE3, EYE3, causal=True)
NAN3 = np.array([[1.0, 0, 0], [0, math.nan, 0], [0, 0, 1.0]])

WRONG: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "positions of one axis": (
        lambda: of.Particles(np.zeros(3)),
        ("x.shape = (3,)", "(*batch, n, d)", "x[:, None]"),
    ),
    "a number for positions": (lambda: of.Particles(1.0), ("x.shape = ()",)),
    "nan in positions": (lambda: of.Particles(NAN3), ("x[1, 1] = nan", "finite")),
    "infinity in positions": (lambda: of.Particles([[math.inf]]), ("x[0, 0] = inf", "finite")),
    "too many weights": (lambda: of.Particles(plain(), np.full(7, 1 / 7)), ("w.shape = (7,)", "(6,)")),
    "weights of two axes": (
        lambda: of.Particles(plain(), np.full((2, 6), 1 / 6)),
        ("w.shape = (2, 6)", "(6,)"),
    ),
    "negative weights": (lambda: of.Particles(EYE3, [0.7, 0.5, -0.2]), ("w", "-0.2", ">= 0", "remove")),
    "weights that sum to two": (
        lambda: of.Particles(EYE3, [1.0, 0.5, 0.5]),
        ("sum(w) = 2.0", "1e-6", "w / w.sum()"),
    ),
    "weights that sum to zero": (
        lambda: of.Particles(EYE3, [0.0, 0.0, 0.0]),
        ("sum(w) = 0.0", "w / w.sum()"),
    ),
    "weights with nan": (lambda: of.Particles(EYE3, [0.5, math.nan, 0.5]), ("w[1] = nan", "finite")),
    "weights of another dtype": (
        lambda: of.Particles(EYE3.astype(np.float32), np.full(3, 1 / 3)),
        ("w = ", "float64", "float32", "convert w"),
    ),
    "too many labels": (lambda: of.Particles(plain(), label=np.zeros(7)), ("label.shape = (7,)", "(6,)")),
    "labels with nan": (lambda: of.Particles(EYE3, label=[0.0, math.nan, 1.0]), ("label[1] = nan", "finite")),
    "tokens off the sphere": (lambda: of.Particles(2 * EYE3, space=of.Sphere()), ("|x|", "1.0", "normalise")),
    "a period of zero": (lambda: of.Torus(0.0), ("period = 0.0", "> 0")),
    "a root with too few rows": (
        lambda: of.Gaussian(np.zeros(3), root=np.eye(2)),
        ("root.shape = (2, 2)", "(3,)"),
    ),
    "a root of another dtype": (
        lambda: of.Gaussian(np.zeros(3), root=EYE3.astype(np.float32)),
        ("root = ", "float32", "float64"),
    ),
    "a covariance that is not square": (
        lambda: of.Gaussian(np.zeros(3), cov=np.zeros((3, 2))),
        ("cov.shape = (3, 2)", "square"),
    ),
    "a covariance that is not symmetric": (
        lambda: of.Gaussian(np.zeros(2), cov=[[1.0, 0.5], [0.0, 1.0]]),
        ("cov", "0.5", "symmetric", "cov.T"),
    ),
    "a mean of another length": (lambda: of.Gaussian(np.zeros(2), cov=EYE3), ("(3, 3)", "(2,)")),
    "batches that do not match": (
        lambda: of.Gaussian(np.zeros((2, 3)), root=np.zeros((4, 3, 3))),
        ("root.shape = (4, 3, 3)", "(2, 3)"),
    ),
    "a density of the wrong mass": (lambda: of.Grid([1.0, 2.0], [[0.0, 1.0]]), ("density", "3.0")),
    "a negative density": (lambda: of.Grid([2.0, -1.0], [[0.0, 1.0]]), ("density", "-1.0", ">= 0")),
    "an axis that decreases": (
        lambda: of.Grid([0.5, 0.5], [[1.0, 0.0]]),
        ("axes[0]", "increase", "linspace"),
    ),
    "a grid without axes": (lambda: of.Grid([0.5, 0.5], []), ("len(axes) = 0",)),
    "a density of another shape": (
        lambda: of.Grid([0.5, 0.5], [[0.0, 1.0, 2.0]]),
        ("density.shape = (2,)", "(3,)"),
    ),
    "a vector for Q": (lambda: of.SoftmaxAttention(np.ones(3), EYE3, EYE3), ("Q.shape = (3,)", "reshape Q")),
    "nan in K": (lambda: of.SoftmaxAttention(EYE3, NAN3, EYE3), ("K[1, 1] = nan", "finite")),
    "Q for another dimension": (
        lambda: of.SoftmaxAttention(np.eye(2), np.eye(2), EYE3)(0.0, CLOUD),
        ("Q.shape = (2, 2)", "dimension 3", "3 columns"),
    ),
    "V for another dimension": (
        lambda: of.SoftmaxAttention(EYE3, EYE3, np.eye(2))(0.0, CLOUD),
        ("V.shape = (2, 2)", "dimension 3"),
    ),
    "values of too few dimensions": (
        lambda: of.SoftmaxAttention(EYE3, EYE3, EYE3[:2])(0.0, CLOUD),
        ("V.shape = (2, 3)", "dimension 3", "MultiHead"),
    ),
    "k larger than d": (
        lambda: of.SoftmaxAttention(np.ones((4, 3)), np.ones((4, 3)), EYE3)(0.0, CLOUD),
        ("Q.shape", "(4, 3)", "k <= d = 3", "Q = A and K = I"),
    ),
    "Q and K of different k": (
        lambda: of.SoftmaxAttention(EYE3[:2], EYE3, EYE3)(0.0, CLOUD),
        ("Q.shape, K.shape", "(2, 3)", "(3, 3)"),
    ),
    "a batch of matrices for one cloud": (
        lambda: of.SoftmaxAttention(np.stack([EYE3] * 4), EYE3, EYE3)(0.0, CLOUD),
        ("Q", "4"),
    ),
    "a batch of matrices for another batch": (
        lambda: of.SoftmaxAttention(np.stack([EYE3] * 4), EYE3, EYE3)(0.0, BATCH),
        ("Q", "4", "2"),
    ),
    "a batch of matrices for one Gaussian": (
        lambda: of.SoftmaxAttention(np.stack([EYE3] * 4), EYE3, EYE3)(0.0, GAUSS),
        ("Q", "4"),
    ),
    "double matrices for single tokens": (
        lambda: SOFTMAX(0.0, SINGLE),
        ("Q = ", "float64", "float32", "convert Q"),
    ),
    "layers of another dtype": (
        lambda: of.SoftmaxAttention(EYE3, EYE3, of.Layers(np.ones((2, 3, 3), np.float32)))(0.0, CLOUD),
        ("V = ", "float32", "float64"),
    ),
    "a function that returns a vector": (
        lambda: of.SoftmaxAttention(lambda t: torch.ones(3).double(), EYE3, EYE3)(0.0, CLOUD),
        ("Q.shape = (3,)",),
    ),
    "a function that returns nan": (
        lambda: of.SoftmaxAttention(lambda t: NAN3.tolist(), EYE3, EYE3)(0.0, CLOUD),
        ("Q(t)[1, 1] = nan",),
    ),
    "too few edges": (lambda: of.Layers(np.ones((2, 3, 3)), [0.0, 1.0]), ("edges = [0.0, 1.0]", "3")),
    "edges that decrease": (lambda: of.Layers(np.ones((2, 3, 3)), [0.0, 2.0, 1.0]), ("edges", "increasing")),
    "layers of no duration": (lambda: of.Layers(np.ones((2, 3, 3)), dt=0.0), ("dt = 0.0", "> 0")),
    "causal attention without labels": (lambda: CAUSAL(0.0, CLOUD), ("label = None", "causal", "label=")),
    "causal points without labels": (
        lambda: CAUSAL.at(0.0, zoo.MEASURES["labelled"](), plain()),
        ("label = None", "field.at", "label="),
    ),
    "labels for other points": (
        lambda: CAUSAL.at(0.0, zoo.MEASURES["labelled"](), plain(), label=np.zeros(5)),
        ("label.shape = (5,)", "(6,)"),
    ),
    "points of another dimension": (
        lambda: SOFTMAX.at(0.0, CLOUD, np.zeros((4, 2))),
        ("points.shape = (4, 2)", "3"),
    ),
    "points of one axis": (lambda: SOFTMAX.at(0.0, CLOUD, np.zeros(3)), ("points.shape = (3,)",)),
    "points of another dtype": (
        lambda: SOFTMAX.at(0.0, CLOUD, np.zeros((4, 3), np.float32)),
        ("points = ", "float32"),
    ),
    "points with nan": (lambda: SOFTMAX.at(0.0, CLOUD, NAN3), ("points[1, 1] = nan",)),
    "points for a Gaussian": (lambda: SOFTMAX.at(0.0, GAUSS, plain()), ("mu = Gaussian(d=3)", "Particles")),
    "attention on a grid": (lambda: SOFTMAX(0.0, zoo.MEASURES["grid"]()), ("mu = Grid", "Particles")),
    "eps of zero": (lambda: of.SinkhornAttention(EYE3, EYE3, EYE3, eps=0.0), ("eps = 0.0", "> 0")),
    "negative eps": (lambda: of.SinkhornAttention(EYE3, EYE3, EYE3, eps=-1.0), ("eps = -1.0", "> 0")),
    "a tolerance of nan": (
        lambda: of.SinkhornAttention(EYE3, EYE3, EYE3, of.Sinkhorn(1.0, tol=math.nan)),
        ("tol = nan", "> 0"),
    ),
    "no sweeps": (
        lambda: of.SinkhornAttention(EYE3, EYE3, EYE3, of.Sinkhorn(1.0, max_iter=0)),
        ("max_iter = 0",),
    ),
    "matrices where coordinates wrap": (
        lambda: SOFTMAX(0.0, of.Particles(np.ones((4, 3)), space=of.Torus(2.0))),
        ("Torus", "wrap", "Sphere()"),
    ),
    "half a sweep": (
        lambda: of.SinkhornAttention(EYE3, EYE3, EYE3, of.Sinkhorn(1.0, max_iter=0.5)),
        ("max_iter = 0.5",),
    ),
    "heads that are no attention": (
        lambda: of.MultiHead([of.Perceptron(EYE3, EYE3)]),
        ("heads", "Perceptron"),
    ),
    "too few mixing matrices": (lambda: of.MultiHead([SOFTMAX, SOFTMAX], mix=[EYE3]), ("len(mix) = 1", "2")),
    "a mixing matrix that does not fit": (
        lambda: of.MultiHead([SOFTMAX], mix=[EYE3[:, :2]])(0.0, CLOUD),
        ("mix[0].shape = (3, 2)", "3"),
    ),
    "thin values without mixing": (
        lambda: of.MultiHead([of.SoftmaxAttention(EYE3, EYE3, EYE3[:1])])(0.0, CLOUD),
        ("head 0", "dimension 1", "mix="),
    ),
    "a perceptron that does not fit": (
        lambda: of.Perceptron(np.ones((3, 4)), np.ones((5, 3)))(0.0, CLOUD),
        ("W.shape, U.shape", "(3, 4)", "(5, 3)"),
    ),
    "a bias that does not fit": (
        lambda: of.Perceptron(np.ones((3, 4)), np.ones((4, 3)), np.ones(5))(0.0, CLOUD),
        ("b", "(5,)", "4"),
    ),
    "a factor that is no number": (lambda: SOFTMAX * math.nan, ("factor = nan",)),
    "an end before the start": (lambda: still(t1=-1.0), ("t1 = -1.0", "t0 = 0.0", "t1 > t0")),
    "an end at the start": (lambda: still(t0=1.0), ("t1 = 1.0", "t0 = 1.0")),
    "an end at infinity": (lambda: still(t1=math.inf), ("t1 = inf", "finite")),
    "a start of nan": (lambda: still(t0=math.nan), ("t0 = nan", "finite")),
    "an end in words": (lambda: still(t1="1"), ("t1 = '1'", "number")),
    "a step of zero": (lambda: still(dt=0.0), ("dt = 0.0", "> 0")),
    "a negative step": (lambda: still(dt=-0.1), ("dt = -0.1", "> 0")),
    "a step of nan": (lambda: still(dt=math.nan), ("dt = nan", "> 0")),
    "no step": (lambda: still(dt=None), ("dt = None", "RK4()", "Dopri5()")),
    "a tolerance of zero": (lambda: of.Dopri5(rtol=0.0), ("rtol = 0.0", "> 0")),
    "a word for on_failure": (lambda: still(on_failure="ignore"), ("on_failure = 'ignore'", "return")),
    "a stepper that was not called": (
        lambda: of.flow(CLOUD, SOFTMAX, of.RK4, t1=1.0, dt=0.1),
        ("stepper = ", "RK4()"),
    ),
    "an array for a measure": (
        lambda: of.flow(plain(), SOFTMAX, of.RK4(), t1=1.0, dt=0.1),
        ("mu0 = ", "Measure"),
    ),
    "field and measure swapped": (
        lambda: of.flow(SOFTMAX, CLOUD, of.RK4(), t1=1.0, dt=0.1),
        ("mu0 = ", "order"),
    ),
    "noise with an adaptive stepper": (
        lambda: of.flow(CLOUD, SOFTMAX, of.Dopri5(), t1=1.0, noise=of.CommonNoise(0.1, rng=0)),
        ("stepper = Dopri5", "fixed step", "Euler()"),
    ),
    "a path of another shape": (
        lambda: still(noise=of.CommonNoise(0.1, path=of.dynamics.BrownianPath(0, (2,)))),
        ("path.shape = (2,)", "(1,)"),
    ),
    "noise without a source": (lambda: of.CommonNoise(0.1), ("path, rng", "rng=0")),
    "a gradient at an atom without mass": (
        lambda: of.Particles(EYE3, [0.5, 0.5, 0.0]).sharp(of.Tangent([torch.ones(3, 3).double()])),
        ("min(w) = 0.0", "field.at"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_that_makes_no_sense_is_refused_with_name_value_and_remedy(name: str) -> None:
    call, parts = WRONG[name]
    refuses(call, *parts)


NUMBERS = [np.float32(0.5), np.float64(0.5), np.array(0.5)[()]]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda v: type(v).__name__)
def test_numpy_scalars_are_numbers(value: Any) -> None:
    assert still(dt=value, t1=np.float32(1.0)).status == "ok"
    assert of.SinkhornAttention(EYE3, EYE3, EYE3, of.Sinkhorn(value, max_iter=np.int64(50))).eps == 0.5
    assert of.Torus(value).period == 0.5


def test_weights_within_a_millionth_are_renormalised_exactly() -> None:
    mu = of.Particles(EYE3, [0.5, 0.25, 0.25 + 5e-7])
    assert mu.w.sum().item() == pytest.approx(1.0, abs=1e-16)


def test_a_million_single_precision_weights_are_accepted() -> None:
    n = 1_000_000
    w = np.full(n, 1 / n, np.float32)
    assert of.Particles(np.zeros((n, 1), np.float32), w).w.sum().item() == pytest.approx(1.0, abs=1e-5)
