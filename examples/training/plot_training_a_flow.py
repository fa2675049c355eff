r"""
Training a flow
===============

The weights of a flow can be learnt like those of any network. Here a block of two heads of softmax attention
and a perceptron moves tokens by

.. math:: \dot x = \sum_{h=1}^2 W_h \Gamma^h_\mu(x) + W \tanh(U x + b), \qquad 0 \le t \le 1,

so that a cloud from the normal law becomes two moons. The loss is the squared distance :math:`W_2^2` between
the law of the tokens at :math:`t = 1` and the target, exact and with its gradient; it compares clouds as
measures, no token is told where to go.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# Weights are parameters of torch. Those of the perceptron change half-way: two layers.

rng = np.random.default_rng(0)


def parameter(*shape):
    return nn.Parameter(torch.from_numpy(rng.standard_normal(shape) / shape[-1] ** 0.5))


neurons = 32
heads = [of.SoftmaxAttention(parameter(2, 2), parameter(2, 2), parameter(2, 2)) for _ in range(2)]
W, U, b = (
    of.Layers([parameter(*shape) for _ in range(2)], dt=0.5)
    for shape in ((2, neurons), (neurons, 2), (neurons,))
)
field = of.MultiHead(heads) + of.Perceptron(W, U, b, activation=torch.tanh)
net = of.nn.Flow(field, of.Heun(), t1=1.0, dt=1 / 6)
print(sum(p.numel() for p in net.parameters()), "numbers to learn")

# %%
# Both clouds are samples; each step of the optimiser sees another one.


def normal(n):
    return torch.from_numpy(rng.standard_normal((n, 2)))


def moons(n):
    angle, upper = np.pi * rng.random(n), np.arange(n) % 2 == 0
    x = np.where(upper, np.cos(angle), 1 - np.cos(angle))
    y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle))
    return torch.from_numpy(2 * np.stack([x - 0.5, y - 0.25], -1) + 0.08 * rng.standard_normal((n, 2)))


optimiser = torch.optim.Adam(net.parameters(), lr=0.03)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=150)
losses = []
for _ in range(150):
    optimiser.zero_grad()
    loss = of.wasserstein(of.Particles(net(normal(200))), of.Particles(moons(200))).square()
    loss.backward()
    optimiser.step()
    schedule.step()
    losses.append(loss.item())

# %%
# Two samples of the target are not at distance zero from one another either: no flow does much better than
# the dotted line.

pairs = [(of.Particles(moons(200)), of.Particles(moons(200))) for _ in range(20)]
floor = np.mean([of.wasserstein(mu, nu).square().item() for mu, nu in pairs])
print(f"loss {losses[0]:.3f} -> {np.mean(losses[-10:]):.3f}, two samples of the target: {floor:.3f}")

# %%
# Left: tokens that were not seen in training, before and after, with the way of some. Right: the loss.

with torch.no_grad():
    start = of.Particles(normal(600))
    path = of.flow(start, field, of.RK4(), t1=1.0, dt=0.025)
ways = torch.stack([mu.x for mu in path.measures]).numpy()

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
blue, red, *_ = of.plot.COLOURS
left.plot(*moons(600).T, "o", color=of.plot.FAINT, markersize=3, label="target")
left.plot(*ways[0].T, "o", color=blue, markersize=2, alpha=0.4, label="$t = 0$")
left.plot(*ways[-1].T, "o", color=red, markersize=2, label="$t = 1$")
for i in range(12):
    left.plot(*ways[:, i].T, color=of.plot.INK, linewidth=0.8, alpha=0.6)
left.set(title="tokens before and after", aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
left.legend(loc="upper left", bbox_to_anchor=(0.0, -0.12), ncols=3, markerscale=1.6)
right.semilogy(losses, color=blue)
right.axhline(floor, color=of.plot.INK, linestyle=":", linewidth=1.2, label="two samples of the target")
of.plot.panel(
    right, "squared distance to the target", "steps of Adam", "$W_2^2$", legend=True, yticks=[0.2, 0.5, 1, 2]
)
plt.show()
