"""A run to a file and back, bit for bit."""

import tempfile

import numpy as np
import xarray as xr

import otflow as of

start = of.Particles(np.random.default_rng(0).normal(size=(5, 2)), label=np.arange(5))
field = of.SoftmaxAttention(np.eye(2), np.eye(2), -np.eye(2))
run = of.flow(start, field, of.Dopri5(), t1=1.0, observe={"radius": of.observables.radius})
with tempfile.NamedTemporaryFile(suffix=".nc") as file:
    run.to_xarray().to_netcdf(file.name)
    back = of.Trajectory.from_xarray(xr.load_dataset(file.name))
assert (back.x == run.x).all()
assert back.status == "ok"
