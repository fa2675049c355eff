"""Entropic transport by our engine, by POT and by GeomLoss: one answer."""

import numpy as np

import otflow as of

rng = np.random.default_rng(0)
mu, nu = of.Particles(rng.normal(size=(20, 2))), of.Particles(rng.normal(size=(30, 2)))
engines = of.transport.NewtonSinkhorn(), of.transport.POT(), of.transport.GeomLoss()
costs = [of.sinkhorn(mu, nu, of.Sinkhorn(1.0, tol=1e-8, engine=e)).cost for e in engines]
assert max(costs) - min(costs) < 1e-6
