"""The conventions that docs/choosing.md promises: what eps means here and in other libraries."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from geomloss import SamplesLoss

import otflow as of
from tests.samples import normal

X, Y = normal(12, 2, seed=1), 0.5 * normal(9, 2, seed=2) + 1
MU, NU = of.Particles(X), of.Particles(Y)


@pytest.mark.parametrize("eps", [0.3, 2.0])
def test_eps_is_the_reg_of_pot_for_the_squared_distance(eps: float) -> None:
    a, b = np.full(12, 1 / 12), np.full(9, 1 / 9)
    P = ot.sinkhorn(a, b, ot.dist(X, Y), reg=eps, stopThr=1e-13, numItermax=100_000)
    np.testing.assert_allclose(of.sinkhorn(MU, NU, eps).plan.numpy(), P, atol=1e-9)


@pytest.mark.parametrize("blur", [0.5, 1.0])
def test_eps_is_twice_the_squared_blur_of_geomloss(blur: float) -> None:
    """GeomLoss takes the cost |x - y|^2 / 2, so that its value is half of ours."""
    loss = SamplesLoss("sinkhorn", p=2, blur=blur, scaling=0.999, debias=True, backend="tensorized")
    theirs = float(loss(torch.from_numpy(X), torch.from_numpy(Y)))
    assert of.sinkhorn_divergence(MU, NU, 2 * blur**2).item() == pytest.approx(2 * theirs, rel=1e-6)


def test_the_kernel_of_an_entropic_step_is_that_of_sinkhorn() -> None:
    """With F = 0 a step blurs by the Gaussian exp(-|x - y|^2 / eps), of variance eps / 2."""
    n, eps = 200, 4e-3
    x = (np.arange(n) + 0.5) / n
    mu = of.Grid.from_function(lambda x: np.exp(-((x - 0.5) ** 2) / 0.01), [x])
    still = of.SteepestDescent(0.0 * of.Entropy(), of.Wasserstein())
    nu = of.flow(mu, still, of.EntropicJKO(eps), t1=1.0, dt=1.0).final
    before, after = (of.observables.covariance(m).item() for m in (mu, nu))
    assert after - before == pytest.approx(eps / 2, rel=1e-3)


def test_halves_in_energies_are_as_written() -> None:
    far = of.Particles([[3.0]])
    here = of.Particles([[0.0]])
    assert of.SquaredWasserstein(far)(here).item() == pytest.approx(9.0)  # W2^2, no 1/2
    kernel = of.transport.GaussianKernel(1.0)
    assert of.MMD(far, kernel)(here).item() == pytest.approx(of.mmd(here, far, kernel).item() ** 2 / 2)
    pull = of.Interaction(lambda x, y: (x - y).square().sum(-1))
    pair = of.Particles([[0.0], [2.0]])
    assert pull(pair).item() == pytest.approx(0.5 * 0.5 * 4.0)  # 1/2 iint W
    law = of.Gaussian([0.0], cov=[[1.0]])
    assert of.Entropy()(law).item() == pytest.approx(-0.5 * math.log(2 * math.pi * math.e))
