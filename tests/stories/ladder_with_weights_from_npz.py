"""Weights from a file, and the ladder of stability estimates."""

import tempfile

import numpy as np

import otflow as of

rng = np.random.default_rng(0)
with tempfile.NamedTemporaryFile(suffix=".npz") as file:
    np.savez(file.name, Q=0.5 * rng.normal(size=(2, 2)), K=0.5 * rng.normal(size=(2, 2)), V=np.eye(2))
    weights = np.load(file.name)
    field = of.SoftmaxAttention(weights["Q"], weights["K"], weights["V"])
rungs = of.ladder(of.Particles(rng.normal(size=(10, 2))), field, t1=0.5, steps=10)
assert "a priori" in str(rungs)
assert bool(rungs.holds())
