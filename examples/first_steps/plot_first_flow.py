r"""
A first flow
============

A measure, a field and a stepper go into ``flow``; a trajectory comes out. Here the measure is a cloud of
sixty tokens in the plane, and the field is softmax attention together with a decay,

.. math::

   \dot x_i = \sum_j \frac{e^{x_i \cdot x_j}}{\sum_k e^{x_i \cdot x_k}}\, x_j - x_i .

Each token moves to a weighted mean of all of them, in which those in its own direction count most.
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# The cloud, and the field with :math:`Q = K = V = I`. Fields can be added.

tokens = of.Particles(np.random.default_rng(1).normal(size=(60, 2)))
eye = np.eye(2)
attention = of.SoftmaxAttention(eye, eye, eye)
field = attention + of.Perceptron(W=-eye, U=eye, activation=None)

# %%
# Dormand and Prince's method chooses its own steps. What should be known along the way is observed.

observe = {"radius": of.observables.radius, "variance": lambda mu: mu.x.var(0, correction=0).sum()}
traj = of.flow(tokens, field, of.Dopri5(), t1=6.0, save_at=np.linspace(0, 6, 61), observe=observe)
print(traj)

# %%
# A trajectory knows how it ended, and is a sequence of measures.

print("status:", traj.status)
print("start: ", traj.measures[0])
print("spread of the last cloud:", f"{traj.observed['variance'][-1]:.3f}")
print("W2 from the first to the last:", f"{of.wasserstein(traj.measures[0], traj.final).item():.3f}")

# %%
# Left, the way of every token, from the rings to the dots. Right, what was observed.

fig, (cloud, curves) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
of.plot.trails(traj, ax=cloud, size=14)
cloud.set_title("Tokens gather")
cloud.legend(loc="lower right")
of.plot.energy(traj, ax=curves)
curves.set(title="What was observed", ylim=(0, None))
plt.show()
