"""Sweeps: weights with batch axes times a batch of measures is one run, with names for its axes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import otflow as of
from tests import zoo
from tests.samples import normal

EYE = torch.eye(2, dtype=torch.float64)
CLOUDS = of.Particles(normal(4, 6, 2))
LABELLED = of.Particles(normal(4, 6, 2), zoo.weights(0, 4, 6), normal(4, 6))
LAWS = of.Gaussian(normal(4, 2), root=normal(4, 2, 2))
W = torch.from_numpy(0.6 * normal(5, 1, 2, 2, seed=8))
FieldOf = Callable[[Tensor], of.VelocityField]

SWEEPS: dict[str, tuple[FieldOf, of.Measure]] = {
    "softmax": (lambda w: of.SoftmaxAttention(w, EYE, -EYE), CLOUDS),
    "sinkhorn": (lambda w: of.SinkhornAttention(EYE, EYE, w), CLOUDS),
    "of time": (lambda w: of.SoftmaxAttention(EYE, EYE, lambda t: torch.cos(t) * w), CLOUDS),
    "layers": (lambda w: of.SoftmaxAttention(EYE, EYE, of.Layers(torch.stack([w, -w]), dt=0.2)), CLOUDS),
    "causal": (lambda w: of.L2Attention(w, EYE, EYE, causal=True), LABELLED),
    "heads": (lambda w: of.MultiHead([of.SoftmaxAttention(EYE, EYE, EYE)] * 2, mix=[w, EYE]), CLOUDS),
    "block": (
        lambda w: of.SigmoidAttention(EYE, EYE, EYE) + of.Perceptron(EYE, EYE, w[..., 0, :]),
        CLOUDS,
    ),
    "law": (lambda w: of.SoftmaxAttention(w, EYE, -EYE), LAWS),
    "projection": (lambda w: of.GaussianProjection(of.SigmoidAttention(w, EYE, -EYE)), LAWS),
}


@pytest.mark.slow(but_for=["*-fixed", "softmax-adaptive", "of time-adaptive"])
@pytest.mark.parametrize("stepper", [of.RK4(), of.Dopri5(rtol=1e-4)], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("name", SWEEPS)
def test_weights_times_measures_is_one_batch(name: str, stepper: of.Stepper) -> None:
    make, mu = SWEEPS[name]

    def run(field: of.VelocityField, mu0: of.Measure) -> of.Trajectory:
        return of.flow(mu0, field, stepper, t1=0.4, dt=None if stepper.adaptive else 0.1, save_at=[0.0, 0.4])

    tol = 1e-3 if stepper.adaptive else 1e-9
    found = run(make(W), mu)
    assert found[0].batch == found.final.batch == (5, 4)
    for i, j in ((2, 3), (4, 1)):
        alone = run(make(W[i, 0]), mu[j]).final
        for a, b in zip(found.final[i, j].coords, alone.coords, strict=True):
            torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@pytest.mark.slow
def test_the_limits_of_laws_times_weights_are_one_batch() -> None:
    eye = EYE.float()
    laws = of.Gaussian(torch.zeros(3, 2), root=torch.from_numpy(normal(3, 2, 2)).float())
    found = of.limit(laws, of.SoftmaxAttention(eye, eye, -torch.stack([eye, 2 * eye])[:, None]))
    assert found.measure.batch == (2, 3)
    assert (found.rank == 0).all()


def test_a_sweep_has_names_and_ticks_and_comes_back_bit_for_bit() -> None:
    make, mu = SWEEPS["softmax"]
    run = of.flow(mu, make(W), of.RK4(), t1=0.2, dt=0.1, observe={"r": of.observables.radius})
    ds = run.to_xarray(batch={"beta": [0.1, 0.2, 0.3, 0.4, 0.5], "seed": [7, 8, 9, 10]})
    assert dict(ds["r"].sizes) == {"t": 3, "beta": 5, "seed": 4}
    one = of.Trajectory.from_xarray(ds.sel(beta=0.3, seed=9))
    assert torch.equal(one.x, run.member((2, 2)).x)
    back = of.Trajectory.from_xarray(ds)
    assert torch.equal(back.x, run.x)
    assert torch.equal(back.observed["r"], run.observed["r"])


def test_gradients_of_a_sweep_reach_the_weights_and_the_measures() -> None:
    x, w = torch.from_numpy(normal(4, 6, 2)).requires_grad_(), W.clone().requires_grad_()
    final = of.flow(of.Particles(x), SWEEPS["softmax"][0](w), of.RK4(), t1=0.2, dt=0.1).final
    final.coords[0].square().sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    assert x.grad.shape == x.shape
    assert (w.grad != 0).any(-1).all()


def test_a_batch_that_does_not_fit_the_weights_is_refused() -> None:
    field = of.SoftmaxAttention(normal(5, 2, 2), EYE, EYE)
    with pytest.raises(of.InputError, match=r"batch axes \(5,\) do not match .* \(4,\)"):
        of.flow(CLOUDS, field, of.Euler(), t1=1.0, dt=0.5)


@pytest.mark.parametrize(
    "mu", [CLOUDS, LABELLED, LAWS, of.Grid(*zoo.bump(4)), of.Quantiles([0.0, 1.0], [0.0, 1.0])]
)
def test_an_expanded_measure_is_itself_at_every_place(mu: of.Measure) -> None:
    big = mu.expand(3, *mu.batch)
    assert big.batch == (3, *mu.batch)
    for one in big:
        assert all(torch.equal(a, b) for a, b in zip(one.parts().values(), mu.parts().values(), strict=True))
    with pytest.raises(of.InputError, match="axes to which that broadcasts"):
        mu.expand(7, 2).expand(3)
