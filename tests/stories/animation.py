"""A film of a cloud, saved as a GIF."""

import tempfile

import numpy as np

import otflow as of

start = of.Particles(np.random.default_rng(0).normal(size=(20, 2)))
field = of.SoftmaxAttention(np.eye(2), np.eye(2), -np.eye(2))
run = of.flow(start, field, of.RK4(), t1=1.0, dt=0.25)
with tempfile.NamedTemporaryFile(suffix=".gif") as file:
    run.animate().save(file.name, writer="pillow")
    assert file.read(3) == b"GIF"
