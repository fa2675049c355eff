"""A sweep over temperatures as one batch, and its table."""

import numpy as np

import otflow as of

rng = np.random.default_rng(0)
beta = np.linspace(0.1, 1.0, 10)
field = of.SoftmaxAttention(beta[:, None, None] * np.eye(2), np.eye(2), -np.eye(2))
start = of.Particles(np.broadcast_to(rng.normal(size=(30, 2)), (10, 30, 2)))
runs = of.flow(start, field, of.RK4(), t1=1.0, dt=0.25, observe={"radius": of.observables.radius})
table = runs.to_xarray(batch=["beta"])["radius"].assign_coords(beta=beta).to_pandas()
assert table.shape == (5, 10)
assert (table.iloc[-1] < table.iloc[0]).all()
