"""The implicit stepper: order, stiff problems, batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otflow as of
from otflow.steppers.rosenbrock import _jacobian


def problem(batch: tuple[int, ...] = ()) -> tuple[of.Gaussian, of.VelocityField]:
    """A law under softmax attention whose queries depend on time."""
    rng = np.random.default_rng(0)
    Q, V = torch.from_numpy(rng.standard_normal((3, 3))) / 4, rng.standard_normal((3, 3)) / 3
    mu = of.Gaussian(rng.standard_normal((*batch, 3)), root=rng.standard_normal((*batch, 3, 3)) / 2)
    return mu, of.SoftmaxAttention(lambda t: torch.cos(3 * t)[..., None, None] * Q, -Q, V)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["0.0001", "1e-06"])
@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8])
def test_the_error_follows_the_tolerance(rtol: float) -> None:
    mu, field = problem((4,))
    exact = of.flow(mu, field, of.Dopri5(1e-12, 1e-13), t1=1.0, save_at=[0.0]).final
    got = of.flow(mu, field, of.Rosenbrock(rtol, rtol), t1=1.0, save_at=[0.0]).final
    assert all(float((a - b).abs().max()) < 30 * rtol for a, b in zip(got.coords, exact.coords, strict=True))


@pytest.mark.slow
def test_a_hundredth_of_the_tolerance_takes_a_hundred_to_a_third_steps() -> None:
    """Order three: the error of a step is of order four, of which the controller keeps three."""
    mu, field = problem()
    few, many = (
        of.flow(mu, field, of.Rosenbrock(tol, tol), t1=1.0, save_at=[0.0]).steps for tol in (1e-8, 1e-11)
    )
    assert many / few == pytest.approx(10.0, rel=0.3)


@pytest.mark.slow
def test_fast_modes_do_not_hold_up_the_steps() -> None:
    """Eigenvalues -1e8 and -1: an explicit method would need 1e7 steps."""
    decay = of.Perceptron(np.diag([-1e8, -1.0]), np.eye(2), activation=None)
    traj = of.flow(of.Gaussian([1.0, 1.0], root=np.eye(2)), decay, of.Rosenbrock(1e-7), t1=5.0, save_at=[0.0])
    assert traj.steps < 2500
    assert traj.final.mean[1].item() == pytest.approx(np.exp(-5), rel=1e-5)
    assert abs(traj.final.mean[0].item()) < 1e-9


@pytest.mark.slow
def test_members_of_a_batch_go_at_their_own_pace() -> None:
    mu, field = problem((5,))
    together = of.flow(mu, field, of.Rosenbrock(), t1=1.0, save_at=[0.0]).final
    for i in range(5):
        alone = of.flow(mu[i], field, of.Rosenbrock(), t1=1.0, save_at=[0.0]).final
        assert float((alone.root - together[i].root).abs().max()) < 1e-12


def test_members_that_wait_for_others_at_a_save_time_stand_still() -> None:
    one, roots = np.ones((1, 1)), np.array([[[0.3]], [[0.9]]])
    ts = np.linspace(0.0, 0.5, 41)
    traj = of.flow(
        of.Gaussian(np.zeros((2, 1)), root=roots),
        of.SoftmaxAttention(one, one, one),
        of.Rosenbrock(),
        t1=0.5,
        save_at=ts,
    )
    s0 = roots[:, 0, 0] ** 2
    exact = s0 / (1 - 2 * s0 * ts[:, None])
    got = np.stack([g.cov.numpy()[:, 0, 0] for g in traj.measures])  # type: ignore[attr-defined]
    assert np.abs(got / exact - 1).max() < 1e-4


def test_a_few_tokens_can_be_stepped_too() -> None:
    rng = np.random.default_rng(1)
    mu = of.Particles(rng.standard_normal((4, 2)))
    field = of.SoftmaxAttention(*(rng.standard_normal((2, 2)) for _ in range(3)))
    got = of.flow(mu, field, of.Rosenbrock(1e-8, 1e-10), t1=0.5, save_at=[0.0]).final.x
    exact = of.flow(mu, field, of.Dopri5(1e-11, 1e-13), t1=0.5, save_at=[0.0]).final.x
    assert float((got - exact).abs().max()) < 1e-6


@pytest.mark.thorough
def test_an_explosion_is_timed() -> None:
    one = np.ones((1, 1))
    traj = of.flow(of.Gaussian([0.0], root=one), of.SoftmaxAttention(one, one, one), of.Rosenbrock(), t1=2.0)
    assert traj.status == "blow_up"
    assert float(traj.blow_up_time) == pytest.approx(0.5, rel=1e-3)


def test_gradients_are_refused() -> None:
    mu = of.Gaussian(torch.zeros(1).double(), root=torch.ones(1, 1, dtype=torch.float64, requires_grad=True))
    with pytest.raises(of.errors.DerivativeError, match="Dopri5"):
        of.flow(mu, of.SoftmaxAttention(*[[[1.0]]] * 3), of.Rosenbrock(), t1=0.1)


@pytest.mark.thorough
def test_gradient_flows_have_a_jacobian() -> None:
    A = torch.tensor([[1.0, 0.3], [0.3, 0.5]], dtype=torch.float64)
    mu = of.Gaussian([0.0, 0.0], root=[[1.0, 0.2], [0.0, 0.7]])
    descent = of.SteepestDescent(of.SquaredScores(A), of.Wasserstein())
    attention = of.SoftmaxAttention(A, torch.eye(2).double(), -A)
    u = of.Tangent([torch.zeros(2).double(), torch.tensor([[0.3, 1.0], [-0.5, 0.1]], dtype=torch.float64)])
    expected = attention.jvp(0.0, mu, u)[1]
    for field in (descent, descent + 0.0 * attention):
        assert torch.allclose(field.jvp(0.0, mu, u)[1], expected, atol=1e-12)
    steps = [of.flow(mu, f, of.Rosenbrock(), t1=1.0, save_at=[0.0]).steps for f in (descent, attention)]
    assert steps[0] == steps[1]


def test_single_precision_stays_single() -> None:
    eye = torch.eye(2)
    final = of.flow(
        of.Gaussian(torch.zeros(2), root=eye),
        of.SoftmaxAttention(eye, -eye, eye),
        of.Rosenbrock(1e-4),
        t1=1.0,
    )
    assert final.final.root.dtype == torch.float32
    assert final.final.cov[0, 0].item() == pytest.approx(1 / 3, rel=1e-3)


@pytest.mark.slow
def test_layers_of_a_batch_are_those_of_each_member() -> None:
    rng = np.random.default_rng(3)
    W, eye = torch.from_numpy(rng.standard_normal((3, 7, 2, 2))), np.eye(2)
    mu = of.Gaussian(rng.standard_normal((7, 2)), root=rng.standard_normal((7, 2, 2)))
    together = of.flow(
        mu, of.Perceptron(of.Layers(W), eye, activation=None), of.Rosenbrock(1e-7), t1=2.5, save_at=[0.0]
    ).final
    for i in (0, 4):
        field = of.Perceptron(of.Layers(W[:, i]), eye, activation=None)
        alone = of.flow(mu[i], field, of.Rosenbrock(1e-7), t1=2.5, save_at=[0.0]).final
        assert float((together[i].mean - alone.mean).abs().max()) < 1e-8


class Swing(of.VelocityField):
    """-cos(t) x, which takes one clock only."""

    def velocity(self, t: torch.Tensor, mu: of.Measure) -> of.Tangent:
        return of.Tangent([-mu.coords[0] * torch.cos(t)])


@pytest.mark.parametrize("x", [[[1.0]], [[1.0, 2.0]], [[1.0, 2.0], [0.5, -1.0]], [[1.0], [2.0], [3.0]]])
def test_a_field_that_takes_one_clock_moves_one_measure(x: list[list[float]]) -> None:
    """Also for the Jacobian: clocks of its copies broadcast in silence where an axis is as long."""
    final = of.flow(of.Particles(x), Swing(), of.Rosenbrock(1e-9, 1e-11), t1=1.0, save_at=[0.0]).final
    torch.testing.assert_close(final.x, torch.tensor(x).double() * np.exp(-np.sin(1.0)), rtol=1e-6, atol=0)


def test_the_jacobian_is_that_of_each_member_at_its_own_clock() -> None:
    class Heavy(Swing):
        def velocity(self, t: torch.Tensor, mu: of.Measure) -> of.Tangent:
            x = mu.coords[0]
            return of.Tangent([-torch.cos(t)[..., None, None] * x - x**3])

    x, t = torch.tensor([[[1.0, 2.0]], [[0.5, -1.0]]]).double(), torch.tensor([0.3, 0.8]).double()
    J, slope = _jacobian(Heavy(), t, of.Particles(x))
    expected = torch.diag_embed(-torch.cos(t)[:, None] - 3 * x[:, 0] ** 2)
    torch.testing.assert_close(J, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(slope, torch.sin(t)[:, None] * x[:, 0], rtol=1e-14, atol=0)
    torch.testing.assert_close(_jacobian(Heavy(), t[1], of.Particles(x[1]))[0], J[1], rtol=0, atol=0)
