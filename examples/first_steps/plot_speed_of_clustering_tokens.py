r"""
How fast do clustered tokens move?
==================================

The speed of a curve of measures is its metric derivative,

.. math::

   |\dot\mu|(t) = \lim_{h \to 0} \frac{W_2(\mu_{t+h}, \mu_t)}{h},

and for tokens that follow a velocity field :math:`v` which is a gradient it equals
:math:`\bigl(\int |v|^2 \, d\mu_t\bigr)^{1/2}`. This gives a test that no solver of transport problems can
argue with: late in a flow, when tokens sit in tight clusters and hardly move, the costs inside a cluster are
tiny and those between clusters are not, and a solver that works with one absolute tolerance no longer sees
the small ones.
"""

import matplotlib.pyplot as plt
import numpy as np
import ot
import torch

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# Forty-five tokens under mean-shift attention: :math:`v(x)` is the average of the tokens with weights
# :math:`e^{-|Qx - Qy|^2}`, minus :math:`x`. They gather in three clusters, too far apart to see each other.

rng = np.random.default_rng(4)
eye = torch.eye(2, dtype=torch.float64)
attraction = of.L2Attention(1.5 * eye, 1.5 * eye, eye) + of.Perceptron(W=-eye, U=eye, activation=None)
corners = np.array([[-2.0, -1.2], [2.0, -1.2], [0.0, 2.3]])
start = of.Particles(np.repeat(corners, 15, axis=0) + rng.uniform(-0.9, 0.9, (45, 2)))
traj = of.flow(start, attraction, of.Dopri5(rtol=1e-12, atol=1e-14), t1=24.0, save_at=np.linspace(0, 24, 97))

# %%
# ``traj.speed()`` solves an optimal transport problem between every two save times. Each answer carries a
# certificate, a pair of potentials that proves it optimal; without one there would be an exception here.

speed = traj.speed()
last = of.solve(traj.measures[-1], traj.measures[-2])
print(last, f"relative duality gap {last.gap.item():.0e}")

# %%
# The same problems by POT's network simplex as it comes, and the root mean square velocity of the tokens
# between the save times.

pairs = list(zip(traj.measures[:-1], traj.measures[1:], strict=True))
steps = torch.diff(traj.ts)
plain = [ot.emd2([], [], ot.dist(a.x.numpy(), b.x.numpy())) ** 0.5 for a, b in pairs]
moved = torch.stack([(b.x - a.x).square().sum(-1).mean().sqrt() for a, b in pairs])

blue, orange, green, *_ = of.plot.COLOURS
fig, (cloud, curve) = plt.subplots(1, 2, figsize=(9.0, 3.8), layout="constrained", width_ratios=[1, 1.5])
of.plot.trails(traj, ax=cloud, size=14)
cloud.set_title("tokens gather")
cloud.legend(loc="upper left")
t = (traj.ts[:-1] + traj.ts[1:]) / 2
curve.semilogy(t, torch.tensor(plain) / steps, color=orange, label="POT as it comes, labelled optimal")
curve.semilogy(t, moved / steps, color="black", lw=3, alpha=0.25, label="tokens, root mean square")
curve.semilogy(t, speed, color=blue, label="otflow, certified")
curve.set(xlabel="$t$", ylabel=r"speed $|\dot\mu|$", title="the metric derivative, down to rounding")
curve.legend()
plt.show()
