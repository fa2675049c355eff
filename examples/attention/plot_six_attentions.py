r"""
Six kinds of attention on one cloud
===================================

Attention draws a token :math:`x` towards a weighted mean of what the other tokens say. The kinds of attention
differ in the weights alone. Here the same eighty tokens follow

.. math:: \dot x = \Gamma_\mu(x) - x

for six different :math:`\Gamma`. The term :math:`-x` keeps the tokens in place; without it, most of these
flows would run off to infinity.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# The cloud has four groups, with their centre of mass at the origin.

rng = np.random.default_rng(3)
group = np.repeat(np.arange(4), 20)
centres = np.array([[1.6, 0.2], [0.3, 1.5], [-1.5, 0.6], [-0.4, -1.4]])
x = centres[group] + 0.42 * rng.normal(size=(80, 2))
cloud = of.Particles(x - x.mean(axis=0))

# %%
# Queries and keys are :math:`Q = K = \sqrt 2\, I`, so that tokens compare by :math:`2\, x \cdot y`.
#
# * **softmax** averages over the tokens in the direction of :math:`x`: outer tokens win.
# * **L2** compares by :math:`-2\,|x - y|^2` instead: tokens follow their neighbours. With :math:`V = I`
#   this is the mean-shift algorithm, in continuous time.
# * **Sinkhorn** gives every token the same total influence, so the mean of the cloud cannot move. With
#   :math:`\varepsilon = 1/2` it is the kernel of L2 made bistochastic; :math:`V = \varepsilon I` undoes the
#   factor :math:`1/\varepsilon` in its definition.
# * **sigmoid** does not normalise: what a token hears depends on how many others it agrees with. As the
#   weights are 1/2 on average, :math:`V = 2I` balances the decay of the mean.
# * **unnormalised** attention drops the denominator of softmax altogether.
# * **two heads** of softmax look at one coordinate each, and each moves that coordinate only.

eye = torch.eye(2, dtype=torch.float64)
Q = 2**0.5 * eye
turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
heads = [of.SoftmaxAttention(Q[:1], Q[:1], eye[:1]), of.SoftmaxAttention(Q[1:], Q[1:], eye[1:])]

attentions = {
    "softmax": of.SoftmaxAttention(Q, Q, eye),
    "L2": of.L2Attention(Q, Q, eye),
    "Sinkhorn": of.SinkhornAttention(Q, Q, 0.5 * eye, eps=0.5),
    "sigmoid": of.SigmoidAttention(Q, Q, 2 * eye),
    "unnormalised": of.UnnormalisedAttention(0.6 * eye, 0.6 * eye, 1.5 * turn),
    "two heads": of.MultiHead(heads, mix=[eye[:, :1], eye[:, 1:]]),
}
decay = of.Perceptron(W=-eye, U=eye, activation=None)
flows = {name: of.flow(cloud, field + decay, of.Dopri5(), t1=8.0) for name, field in attentions.items()}

# %%
# Unnormalised attention has other weights than the rest, for a reason: with theirs it blows up in finite
# time. This is a result, not an error, and the trajectory knows when it happened. The smaller weights
# above turn what they average by 90 degrees, and the tokens spiral into the origin.

boom = of.flow(cloud, of.UnnormalisedAttention(Q, Q, eye) + decay, of.Dopri5(), t1=8.0)
print(f"unnormalised attention with Q = K = √2 I, V = I: {boom.status} at t = {boom.blow_up_time:.1e}")

# %%
# The way of every token until :math:`t = 8`, in the colour of its group; where they end, in black; and the
# number of clusters that are left (tokens within a distance of 0.1 are in one cluster). Softmax has drawn two
# of the groups together, L2 and Sinkhorn attention keep the four apart, and the two heads sort the tokens by
# the signs of their coordinates.

fig, axes = plt.subplots(2, 3, figsize=(9, 5.6), layout="constrained", sharex=True, sharey=True)
for ax, (name, traj) in zip(axes.flat, flows.items(), strict=True):
    count = int(of.observables.cluster_count(traj.final, radius=0.1))
    of.plot.trails(traj, ax=ax, color=[of.plot.COLOURS[g] for g in group])
    of.plot.particles(traj.final, ax=ax, color=of.plot.INK)
    ax.set_title(f"{name}: {count} cluster{'s' * (count > 1)}")
    ax.label_outer()
fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
plt.show()
