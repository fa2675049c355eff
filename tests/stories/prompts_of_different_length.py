"""Two prompts of different length under causal attention, compared through their positions."""

import numpy as np

import otflow as of

rng = np.random.default_rng(0)
field = of.SoftmaxAttention(np.eye(2), np.eye(2), np.eye(2), causal=True)
runs = []
for n in (20, 30):
    prompt = of.Particles(rng.normal(size=(n, 2)), label=of.transport.positions(n))
    runs.append(of.flow(prompt, field, of.RK4(), t1=0.5, dt=0.1))
far = of.sequence_distance(runs[0].final, runs[1].final)
assert far.item() > 0
