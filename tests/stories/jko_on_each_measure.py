"""The same JKO scheme on particles, Gaussians, quantiles and a grid: the mean follows m' = -m."""

import numpy as np

import otflow as of

spring, x = of.QuadraticPotential([[1.0]]), np.linspace(-4.95, 4.95, 100)
for start in (
    of.Particles([[0.5], [1.5]]),
    of.Gaussian([1.0], cov=[[0.1]]),
    of.Quantiles([0.5, 1.0, 1.5], [0.0, 0.5, 1.0]),
    of.Grid.from_function(lambda x: np.exp(-10 * (x - 1) ** 2), [x]),
):
    energy = spring if isinstance(start, of.Particles) else spring + of.Entropy()
    descent = of.SteepestDescent(energy, of.Wasserstein())
    end = of.flow(start, descent, of.JKO(), t1=0.5, dt=0.1).final
    assert abs(of.observables.mean(end).item() - 1.1**-5) < 1e-3
