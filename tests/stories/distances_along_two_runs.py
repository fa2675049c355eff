"""Two clouds under one attention: how far apart they are as time goes on."""

import numpy as np

import otflow as of

rng = np.random.default_rng(0)
mu, nu = of.Particles(rng.normal(size=(20, 2))), of.Particles(rng.normal(size=(25, 2)) + 1)
field = of.SoftmaxAttention(np.eye(2), np.eye(2), -np.eye(2))
a, b = (of.flow(start, field, of.RK4(), t1=1.0, dt=0.25) for start in (mu, nu))
far = of.observables.distances(a, b)
assert far.shape == (5,)
assert abs(far[0].item() - of.wasserstein(mu, nu).item()) < 1e-9
