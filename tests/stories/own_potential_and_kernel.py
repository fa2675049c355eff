"""A potential and a kernel of one's own, and the flow of their sum."""

import numpy as np

import otflow as of

well = of.Potential(lambda x: (x.square().sum(-1) - 1).square())
bumps = of.Interaction(lambda x, y: -(-(x - y).square().sum(-1)).exp())
descent = of.SteepestDescent(well + bumps, of.Wasserstein())
start = of.Particles(np.random.default_rng(0).normal(size=(30, 2)))
run = of.flow(start, descent, of.Dopri5(), t1=2.0, observe={"F": descent.energy})
assert run.observed["F"][-1] < run.observed["F"][0]
assert abs(of.observables.radius(run.final).item() - 1) < 0.3
