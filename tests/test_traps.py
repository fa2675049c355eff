"""Traps: uses that once went wrong without a word, each kept shut by a test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.base import kernels
from otflow.base.linalg import contraction
from otflow.fields import sinkhorn
from tests.samples import normal

EYE = torch.eye(2, dtype=torch.float64)
DECAY = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())


def softmax(seed: int = 0) -> of.SoftmaxAttention:
    return of.SoftmaxAttention(*normal(3, 2, 2, seed=seed))


@pytest.mark.thorough
def test_a_trajectory_of_sinkhorn_attention_starts_each_scaling_from_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweeps: list[int] = []
    scale = sinkhorn.scale

    with_memory = [True]

    def counted(*args: Tensor, start: Tensor | None, **options: float) -> object:
        found = scale(*args, start=start if with_memory[0] else None, **options)
        sweeps.append(found.sweeps)
        return found

    monkeypatch.setattr(sinkhorn, "scale", counted)

    def total(memory: bool) -> int:
        sweeps.clear()
        with_memory[0] = memory
        field = of.SinkhornAttention(*normal(3, 2, 2))
        of.flow(of.Particles(normal(10, 2)), field, of.RK4(), t1=0.2, dt=0.01)
        return sum(sweeps)

    assert total(memory=True) < 0.7 * total(memory=False)


@pytest.mark.thorough
@pytest.mark.parametrize("V", [lambda t: torch.cos(t) * EYES, lambda t: np.cos(float(t)) * EYES.numpy()])
def test_weights_with_batch_axes_may_depend_on_time_in_adaptive_runs(V: object) -> None:
    mu = of.Particles(normal(3, 5, 2))
    Q, K = normal(2, 2, 2)
    adaptive = of.flow(mu, of.SoftmaxAttention(Q, K, V), of.Dopri5(), t1=1.0).final.coords[0]
    fixed = of.flow(mu, of.SoftmaxAttention(Q, K, V), of.RK4(), t1=1.0, dt=0.005).final.coords[0]
    torch.testing.assert_close(adaptive, fixed, rtol=0, atol=1e-6)


EYES = torch.stack([EYE, 2 * EYE, -EYE])


@pytest.mark.thorough
def test_layers_with_batch_axes_run_adaptively() -> None:
    V = of.Layers(torch.stack([EYES, 0.5 * EYES]), [0.0, 0.5, 1.0])
    mu, (Q, K) = of.Particles(normal(3, 5, 2)), normal(2, 2, 2)
    together = of.flow(mu, of.SoftmaxAttention(Q, K, V), of.Dopri5(), t1=1.0).final
    for i in range(3):
        own = of.Layers(torch.stack([EYES[i], 0.5 * EYES[i]]), [0.0, 0.5, 1.0])
        alone = of.flow(mu[i], of.SoftmaxAttention(Q, K, own), of.Dopri5(), t1=1.0).final
        torch.testing.assert_close(together[i].coords[0], alone.coords[0], rtol=0, atol=1e-7)


def test_a_constant_weight_with_more_axes_than_the_clocks_is_not_paired_with_them() -> None:
    mu, V = of.Particles(normal(3, 5, 2)), normal(3, 3, 2, 2)
    with pytest.raises(of.InputError, match=r"V.shape = \(3, 3, 2, 2\).*mu.expand\(3, 3\)"):
        of.SoftmaxAttention(EYE, EYE, V)(0.0, mu)
    found = of.flow(mu, of.SoftmaxAttention(EYE, EYE, V), of.Dopri5(), t1=0.1, save_at=[0.1]).final
    for i, j in ((0, 2), (2, 1)):
        alone = of.flow(mu[j], of.SoftmaxAttention(EYE, EYE, V[i, j]), of.RK4(), t1=0.1, dt=0.01).final
        torch.testing.assert_close(found[i, j].coords[0], alone.coords[0], rtol=0, atol=1e-6)


def test_a_stack_of_layers_under_one_cloud_is_not_taken_for_a_sweep() -> None:
    field = of.SoftmaxAttention(EYE, EYE, normal(12, 2, 2))
    with pytest.raises(of.InputError, match=r"Layers\(V\); for a sweep .* mu.expand\(12\)"):
        of.flow(of.Particles(normal(5, 2)), field, of.Euler(), t1=1.0, dt=0.5)


def test_directions_of_another_shape_are_refused_by_jvp_and_vjp() -> None:
    mu, narrow = of.Particles(normal(4, 2)), of.Tangent([torch.ones(4, 1, dtype=torch.float64)])
    for call in (softmax().jvp, softmax().vjp):
        with pytest.raises(of.InputError, match=r"\(4, 1\).*\(4, 2\)"):
            call(0.0, mu, narrow)


def test_energies_and_fields_do_not_add_to_each_other() -> None:
    with pytest.raises(TypeError):
        DECAY + DECAY.energy  # type: ignore[operator]
    with pytest.raises(TypeError):
        DECAY.energy + DECAY  # type: ignore[operator]


def test_a_list_of_tensors_with_a_graph_makes_layers() -> None:
    leaves = [EYE.clone().requires_grad_() for _ in range(2)]
    mu = of.Particles(normal(4, 2))
    final = of.flow(mu, of.SoftmaxAttention(EYE, EYE, of.Layers(leaves)), of.RK4(), t1=2.0, dt=0.5).final
    grads = torch.autograd.grad(final.coords[0].sum(), leaves)
    assert all(bool((g != 0).any()) for g in grads)


def test_a_tensor_is_not_taken_for_a_tangent() -> None:
    class Bare(of.VelocityField):
        def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
            return mu.coords[0]  # type: ignore[return-value]

    class Loud(of.dynamics.Noise):
        def increment(self, t: Tensor, mu: of.Measure, dW: Tensor) -> of.Tangent:
            return dW  # type: ignore[return-value]

    mu = of.Particles(normal(3, 2))
    for call in (
        lambda: of.flow(mu, Bare(), of.RK4(), t1=1.0, dt=0.5),
        lambda: of.flow(mu, DECAY, of.Euler(), t1=1.0, dt=0.5, noise=Loud(rng=0)),
        lambda: mu.move(mu.x),  # type: ignore[arg-type]
        lambda: softmax().jvp(0.0, mu, mu.x),  # type: ignore[arg-type]
        lambda: softmax().vjp(0.0, mu, mu.x),  # type: ignore[arg-type]
    ):
        with pytest.raises(of.InputError, match=r"Tangent.*wrap it: Tangent\(\[v\]\)"):
            call()


def test_a_velocity_of_another_shape_is_refused() -> None:
    class Wide(of.VelocityField):
        def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
            return of.Tangent([mu.coords[0].expand(3, 4, 2)])

    with pytest.raises(of.InputError, match=r"\(3, 4, 2\).*\(4, 2\)"):
        of.flow(of.Particles(normal(4, 2)), Wide(), of.RK4(), t1=1.0, dt=0.5)


def test_a_measure_does_not_change_with_the_tensor_it_was_made_of() -> None:
    x = torch.ones(3, 2, dtype=torch.float64)
    mu, g = of.Particles(x), of.Gaussian(x[0], root=EYE)
    x.zero_()
    assert bool((mu.x == 1).all())
    assert bool((g.mean == 1).all())


def test_an_energy_without_a_graph_is_an_error_and_not_a_zero_velocity() -> None:
    mu = of.Particles(normal(3, 2))
    cut = of.SteepestDescent(of.Potential(lambda x: x.detach().square().sum(-1)), of.Wasserstein())
    with pytest.raises(of.errors.DerivativeError, match="torch operations"):
        cut(0.0, mu)
    with torch.inference_mode(), pytest.raises(of.errors.DerivativeError, match="inference_mode"):
        DECAY(0.0, mu)
    with torch.inference_mode(), pytest.raises(of.errors.DerivativeError, match="inference_mode"):
        softmax().vjp(0.0, mu, mu.coords)


def test_parameters_of_an_energy_get_the_right_gradient() -> None:
    def loss(theta: Tensor) -> Tensor:
        descent = of.SteepestDescent(of.Potential(lambda x: theta * x.square().sum(-1) / 2), of.Wasserstein())
        attraction = of.Interaction(lambda x, y: theta * (x - y).square().sum(-1) / 2)
        field = descent + of.SteepestDescent(attraction, of.Wasserstein()) + softmax()
        mu = of.flow(of.Particles(normal(4, 2)), field, of.Euler(), t1=0.4, dt=0.2).final
        return mu.coords[0].square().sum()

    assert torch.autograd.gradcheck(loss, (torch.tensor(0.7, dtype=torch.float64, requires_grad=True),))


def test_weights_of_tokens_and_sigma_keep_the_graph() -> None:
    w = torch.full((4,), 0.25, dtype=torch.float64, requires_grad=True)
    moved = of.flow(of.Particles(normal(4, 2), w), softmax(), of.Euler(), t1=0.2, dt=0.1).final
    assert bool((torch.autograd.grad(moved.coords[0].square().sum(), w)[0] != 0).any())
    sigma = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    noise = of.CommonNoise(sigma, rng=0)
    moved = of.flow(of.Particles(normal(4, 2)), DECAY, of.Euler(), t1=0.2, dt=0.1, noise=noise).final
    assert torch.autograd.grad(moved.coords[0].sum(), sigma)[0].item() != 0


@pytest.mark.thorough
def test_methods_keep_their_order_across_a_jump_at_time_zero() -> None:
    V = of.Layers(torch.stack([EYE, -3 * EYE]), [-1.0, 0.0, 1.0])
    mu, (Q, K) = of.Particles(normal(4, 2)), normal(2, 2, 2)

    def final(dt: float) -> Tensor:
        return of.flow(mu, of.SoftmaxAttention(Q, K, V), of.RK4(), t0=-1.0, t1=1.0, dt=dt).final.coords[0]

    exact = final(1 / 256)
    errors = [float((final(dt) - exact).abs().max()) for dt in (1 / 8, 1 / 16, 1 / 32)]
    assert errors[0] / errors[1] > 10
    assert errors[1] / errors[2] > 10


def test_cubature_that_does_not_resolve_an_energy_is_refused() -> None:
    law = of.Gaussian(np.zeros(8), root=np.eye(8))
    with pytest.raises(of.InputError, match=r"quadrature error.*degree five.*Particles"):
        of.Potential(lambda x: torch.exp(-x.square().sum(-1) / 2))(law)
    assert of.Potential(lambda x: x.square().sum(-1))(law).item() == pytest.approx(8.0, rel=1e-12)
    bell = of.Interaction(lambda x, y: torch.exp(-5 * (x - y).square().sum(-1)))
    with pytest.raises(of.InputError, match="quadrature error"):  # not only where the value is asked for
        of.SteepestDescent(bell, of.Wasserstein())(0.0, law)
    root = np.random.default_rng(0).standard_normal((5, 5))
    odd = of.Potential(lambda x: x[..., 0])(of.Gaussian(np.zeros(5), root=root))  # zero, up to rounding
    assert abs(odd.item()) < 1e-14
    with pytest.raises(of.InputError, match="no atoms"):
        of.Interaction(lambda x, y: -(x - y).abs().sum(-1), diagonal=False)(of.Gaussian([0.0], root=[[1.0]]))


@pytest.mark.slow(but_for=["stepper0-*", "stepper1-None-field1"])
@pytest.mark.parametrize(
    "field", [of.SinkhornAttention(EYE, EYE, 50 * EYE), of.Perceptron(50 * EYE, EYE, None, None)]
)
@pytest.mark.parametrize(("stepper", "dt"), [(of.Euler(), 10.0), (of.Dopri5(), None)])
def test_growth_at_a_constant_rate_beyond_the_finite_numbers_is_no_blow_up(
    field: of.VelocityField, stepper: of.Stepper, dt: float | None
) -> None:
    """From 1e290 on, which spares the thousands of steps by which an adaptive run follows e^(50 t)."""
    mu0 = of.Particles(1e290 * normal(3, 2))
    traj = of.flow(mu0, field, stepper, t1=1e5, dt=dt, save_at=[1e5], on_failure="return")
    assert traj.status == "overflow"
    assert bool(traj.final.finite())


def test_members_that_have_ended_are_not_solved_any_more() -> None:
    """Nor do they spoil the certificate of the others."""
    x = np.stack([normal(4, 2), 1e160 * normal(4, 2)])
    field = of.SinkhornAttention(EYE, EYE, -EYE)
    traj = of.flow(of.Particles(x), field, of.RK4(), t1=0.5, dt=0.1, on_failure="return")
    assert traj.status[0] == "ok"
    assert traj.status[1] != "ok"
    assert float(traj.certificates["residual"][-1]) <= 1e-9
    assert float(traj.ended[1]) == 0.0


def test_times_at_which_members_stopped_are_kept() -> None:
    mu = of.Particles(np.array([[[1.0]], [[4.0]]]))
    traj = of.flow(mu, DECAY, of.RK4(), t1=3.0, dt=0.5, stop=lambda t, nu: nu.x[..., 0, 0] < 0.9)
    assert traj.ended.tolist() == [0.5, 1.5]
    assert traj.member(0).final.coords[0].item() == traj.final.coords[0][0].item()


def test_causal_attention_of_a_large_batch_goes_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, label = torch.from_numpy(normal(50, 9, 2)), torch.from_numpy(normal(50, 9))
    whole = kernels.attend(x, x, x, None, (label, label))
    monkeypatch.setattr(kernels, "DENSE", 0)
    monkeypatch.setattr(kernels, "TILE", 100)
    for a, b in zip(kernels.attend(x, x, x, None, (label, label)), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_symmetry_is_judged_matrix_by_matrix() -> None:
    Q = torch.stack([1e15 * EYE, EYE])
    K = torch.stack([EYE, torch.tensor([[1.0, 0.5], [-0.5, 1.0]], dtype=torch.float64)])
    x = torch.from_numpy(normal(5, 2))
    mu = of.Particles(torch.stack([1e-8 * x, x]))
    both = of.SinkhornAttention(Q, K, EYE).evaluate(torch.tensor(0.0), mu)[0][0][1]
    alone = of.SinkhornAttention(Q[1], K[1], EYE)(0.0, of.Particles(x))[0]
    torch.testing.assert_close(both, alone, rtol=0, atol=1e-8)


def test_the_contraction_has_a_finite_derivative_for_huge_matrices() -> None:
    n = (1e16 * EYE).requires_grad_()
    (grad,) = torch.autograd.grad(contraction(n).sum(), n)
    assert bool(torch.isfinite(grad).all())


def test_a_linear_perceptron_keeps_gaussians_gaussian() -> None:
    law, block = of.Gaussian([1.0, 2.0], root=EYE), of.Perceptron(-EYE, EYE, [0.5, 0.0], activation=None)
    mean, root = block(0.0, law)
    assert mean.tolist() == [-1.5, -2.0]
    assert torch.equal(root, -EYE)
    with pytest.raises(of.InputError, match="Gaussians Gaussian"):
        of.Perceptron(-EYE, EYE)(0.0, law)


def test_one_common_path_may_drive_all_members_of_a_batch() -> None:
    mu = of.Particles(normal(2, 3, 2))
    noise = of.CommonNoise(1.0, path=of.dynamics.BrownianPath(0, 2))
    shift = of.flow(mu, 0.0 * DECAY, of.Euler(), t1=1.0, dt=0.5, noise=noise).final.coords[0] - mu.x
    torch.testing.assert_close(shift, shift[0, 0].expand_as(shift))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda mu: of.flow(mu, DECAY, of.Euler(), t1=1.0, dt=0.5, noise=0.5), "noise = 0.5.*Noise"),
        (lambda mu: of.flow(mu, DECAY, of.Euler(), t1=1.0, dt=0.5, observe=[len]), "observe = .*names"),
        (
            lambda mu: of.flow(mu, DECAY, of.Euler(), t1=1.0, dt=0.5, observe={"a": lambda mu: None}),
            "a.*numbers",
        ),
        (lambda mu: of.flow(mu.x, DECAY, of.Euler(), t1=1.0, dt=0.5), r"(?s)mu0 = .*Particles\(x\)"),
        (lambda mu: of.flow(mu, of.Perceptron, of.Euler(), t1=1.0, dt=0.5), r"call it: Perceptron\(\)"),
        (lambda mu: of.SteepestDescent(of.Wasserstein(), DECAY.energy), "energy = Wasserstein.*Energy"),
        (lambda mu: of.SteepestDescent(DECAY.energy, of.Wasserstein), r"call it: Wasserstein\(\)"),
        (lambda mu: of.Potential(3.0), "U = 3.0.*function"),
        (lambda mu: DECAY(mu, 0.0), "time first"),
        (lambda mu: of.Perceptron(EYE, EYE, activation="relu"), "activation = 'relu'"),
        (lambda mu: of.CommonNoise(1.0, path=0), "path = 0.*BrownianPath"),
        (lambda mu: of.IndependentNoise(np.ones(2), rng=0), r"sigma.shape = \(2,\)"),
    ],
)
def test_what_is_handed_over_wrongly_is_named(call: object, words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        call(of.Particles(normal(3, 2)))  # type: ignore[operator]


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(AttributeError, match="did you mean 'SoftmaxAttention'"):
        _ = of.SoftMaxAttention
