"""Weights of attention, trained by an optimiser of torch."""

import numpy as np
import torch

import otflow as of

rng = np.random.default_rng(0)
start, goal = of.Particles(rng.normal(size=(20, 2))), of.Particles(rng.normal(size=(20, 2)) + 1)
V = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
field = of.SoftmaxAttention(np.eye(2), np.eye(2), V) + of.Perceptron(V, np.eye(2), [1.0, 1.0])
optimiser, losses = torch.optim.Adam(field.parameters(), lr=0.05), []
for _ in range(10):
    optimiser.zero_grad()
    losses.append(of.sinkhorn_divergence(of.flow(start, field, of.RK4(), t1=1.0, dt=0.5).final, goal, 0.5))
    losses[-1].backward()
    optimiser.step()
assert losses[-1] < losses[0]
