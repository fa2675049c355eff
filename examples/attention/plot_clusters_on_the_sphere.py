r"""
Clusters on the sphere, and how long they last
==============================================

With layer normalisation, tokens live on a sphere. Softmax attention with :math:`Q = K = \sqrt\beta\, I` and
:math:`V = I` then reads

.. math::

   \dot x_i = P_{x_i} \sum_j \frac{e^{\beta x_i \cdot x_j}}{\sum_k e^{\beta x_i \cdot x_k}}\, x_j ,
   \qquad P_x = I - x x^\top ,

and from almost every start all tokens meet in one point in the long run (Geshkovski, Letrouit, Polyanskiy and
Rigollet, *A mathematical perspective on Transformers*, 2023). But not at once: groups form quickly, and then
wait for a very long time before they merge.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# A hundred and fifty tokens, uniform on the sphere in three dimensions.

beta = 5.0
rng = np.random.default_rng(1)
x = rng.normal(size=(150, 3))
tokens = of.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=of.Sphere())

eye = torch.eye(3, dtype=torch.float64)
attention = of.SoftmaxAttention(beta**0.5 * eye, beta**0.5 * eye, eye)

# %%
# Three numbers are recorded on the way. The energy
#
# .. math:: E(\mu) = \frac12 \iint e^{\beta (x \cdot y - 1)}\, d\mu(x)\, d\mu(y)
#
# grows along this flow, up to 1/2 when all tokens agree. The diameter is the largest angle between two
# tokens. Clusters are counted as the components of the graph in which tokens at an angle of at most 0.1
# are neighbours.

observe = {
    "energy": of.Interaction(lambda x, y: torch.exp(beta * ((x * y).sum(-1) - 1))),
    "diameter": of.observables.diameter,
    "clusters": lambda mu: of.observables.cluster_count(mu, radius=0.1),
}
times = np.geomspace(0.1, 500, 321)
early, late = times[times < 9], times[times >= 9]
form = of.flow(tokens, attention, of.Dopri5(), t1=9.0, save_at=[0.0, *early], observe=observe)
merge = of.flow(form.final, attention, of.Dopri5(), t0=9.0, t1=500.0, save_at=[9.0, *late], observe=observe)

# %%
# First row: the start, the formation of clusters, and their encounters. Second row: what was recorded,
# against time on a logarithmic scale. Three clusters are there at :math:`t = 9`; two of them meet before
# :math:`t = 50`, and the last two need until :math:`t \approx 270`, where the black point is. Each
# plateau is a metastable state, and lasts exponentially long in :math:`\beta` (Geshkovski, Koubbi,
# Polyanskiy and Rigollet, *Dynamic metastability in the self-attention model*, 2024).

fig = plt.figure(figsize=(9, 5.8), layout="constrained")
globes = [fig.add_subplot(2, 3, k, projection="3d") for k in (1, 2, 3)]
curves = [fig.add_subplot(2, 3, k) for k in (4, 5, 6)]

blue, orange, *_ = of.plot.COLOURS
of.plot.particles(tokens, ax=globes[0], color=blue, size=12)
of.plot.trails(form, ax=globes[1], color=blue, size=12)
of.plot.trails(merge, ax=globes[2], color=orange, size=12)
of.plot.particles(form.final, ax=globes[2], color=blue, size=20)
of.plot.particles(merge.final, ax=globes[2], color="black", size=30)
for ax, title in zip(globes, ("$t = 0$", "until $t = 9$", "from $t = 9$ to $t = 500$"), strict=True):
    ax.set_title(title)
for ax, name in zip(curves, observe, strict=True):
    of.plot.energy(form, name, ax=ax)
    of.plot.energy(merge, name, ax=ax)
    ax.set(xscale="log", xlim=(0.1, 500))
curves[1].set_yticks(np.pi * np.arange(3) / 2, ["0", r"$\pi/2$", r"$\pi$"])
curves[2].set_yscale("log")
curves[2].set_yticks([1, 2, 3, 10, 100], ["1", "2", "3", "10", "100"])
plt.show()
