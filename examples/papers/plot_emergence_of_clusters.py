r"""
Clusters at the vertices of a polytope
======================================

Without normalisation, tokens that attend to each other with the same weights in every layer,

.. math::

   \dot x_i = \sum_j P_{ij}\, V x_j , \qquad
   P_{ij} = \frac{e^{\langle Q x_i, K x_j \rangle}}{\sum_k e^{\langle Q x_i, K x_k \rangle}} ,

grow like :math:`e^{tV}`. For :math:`V = I` and :math:`Q^\top K > 0`, the rescaled tokens
:math:`z_i = e^{-t} x_i` converge, and as a rule to the vertices of a convex polytope (Geshkovski, Letrouit,
Polyanskiy and Rigollet, *The emergence of clusters in self-attention dynamics*, 2023, Theorem 3.1).
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import otflow as of

plt.rcParams.update(of.plot.STYLE)

clusters = of.papers.clusters

# %%
# Eighty tokens in a square. The rescaled flow is run until :math:`t = 12`; the scores grow like
# :math:`e^{2t}`, and not far beyond, at the horizon, float64 no longer tells them apart.

eye = torch.eye(2, dtype=torch.float64)
x = np.random.default_rng(3).uniform(-5, 5, (80, 2))
print(f"horizon: t = {clusters.horizon(x, eye, eye, eye):.1f}")
flow = clusters.run(x, eye, eye, eye, t1=12.0, save_at=[*np.linspace(0, 3, 61), *range(4, 13)])
z = flow.stacked.x

# %%
# In the end every token attends to one other alone. Those that are attended to are leaders, and the rank
# of the attention matrix is their number.

P = clusters.attention_matrix(12.0, flow.final, eye, eye, eye)
led = clusters.leaders(P)
print(f"Boolean: {clusters.is_boolean(P)}, rank {clusters.rank(P)}, leaders {led.sum()}")

# %%
# The leaders span the polytope :math:`K`. All points at which a token could end are known:
# :math:`S = \{x \in K : |x|^2 = \max_v \langle x, v \rangle\}` holds the vertices, the origin, and feet of
# perpendiculars from the origin to edges. Only the vertices attract.

K = clusters.hull(z[-1][led])
S = clusters.limit_set(K.vertices, eye)
ring = torch.cat([K.vertices, K.vertices[:1]])
goal = torch.cdist(z[-1], K.vertices).argmin(1)

# %%
# Left, the ways of the tokens. Right, the distance from :math:`S` falls like :math:`e^{-t}`, and the rank of
# the attention matrix falls to 4.

gap = clusters.violation(z, K.vertices, eye).amax(-1)
rank = of.observables.along(
    flow, lambda t, mu: clusters.rank(clusters.attention_matrix(t, mu, eye, eye, eye))
)

blue, orange, *_ = of.plot.COLOURS
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
for k in range(len(K.vertices)):
    colour = of.plot.COLOURS[k % len(of.plot.COLOURS)]
    left.plot(*z[:, goal == k].permute(2, 0, 1), color=colour, linewidth=0.7)
    left.plot(*z[0, goal == k].T, ".", color=colour, markersize=5)
left.plot(*ring.T, color=of.plot.INK, linewidth=1.2)
left.plot(*S.T, "x", color=of.plot.INK, label="points of $S$")
left.plot(*K.vertices.T, "s", color=of.plot.INK, label="leaders")
left.set(title="Tokens go to the vertices", aspect="equal", xlim=(-6, 6), ylim=(-6, 7))
left.set(xlabel="$z_1$", ylabel="$z_2$")
left.legend(loc="upper center", ncols=2)

right.semilogy(flow.ts, gap, color=blue, label=r"$\max_i (\max_v z_i \cdot v - |z_i|^2)$")
right.semilogy(flow.ts, rank, color=orange, label="rank of $P$")
right.semilogy(flow.ts, 60 * torch.exp(-flow.ts), "--", color=of.plot.INK, linewidth=1, label=r"$60\,e^{-t}$")
right.set(title="Approach to $S$, and loss of rank", xlabel="time $t$")
right.legend(loc="lower left")
plt.show()
