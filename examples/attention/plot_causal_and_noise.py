r"""
Causal attention, alone and in common noise
===========================================

Under causal attention a token sees only the tokens up to its own place in the sequence. With labels
:math:`s_i = i/n`,

.. math::

   dx_i = \Bigl( \frac{\sum_{j \le i} e^{x_i \cdot x_j}\, x_j}{\sum_{j \le i} e^{x_i \cdot x_j}}
   - (1 + \kappa)\, x_i \Bigr)\, dt + \sigma\, dW .

The first token sees nobody but itself, so it follows :math:`dx_0 = -\kappa\, x_0\, dt + \sigma\, dW` whatever
the others do, and everybody else runs after it. The Brownian motion :math:`W` is the same for all tokens.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# Two clouds of sixty tokens on the line. A label is a place in the sequence; it is carried along and
# never changes.

n, kappa, sigma, t1 = 60, 0.4, 0.6, 10.0
rng = np.random.default_rng(2)
label = np.arange(n) / n
high = of.Particles(2.5 + rng.normal(size=(n, 1)), label=label)
low = of.Particles(-2.5 + rng.normal(size=(n, 1)), label=label)

eye = torch.eye(1, dtype=torch.float64)
decay = of.Perceptron(W=-(1 + kappa) * eye, U=eye, activation=None)
field = of.SoftmaxAttention(eye, eye, eye, causal=True) + decay

# %%
# Without noise, the tokens gather behind the first one, which goes to rest at the origin.

calm = of.flow(high, field, of.RK4(), t1=t1, dt=0.05)

# %%
# With noise, both clouds are driven by *the same* Brownian path, which is an object of its own and can be
# shared. For comparison, the second cloud also runs along another path.


def noisy(cloud: of.Particles, path: of.dynamics.BrownianPath) -> of.Trajectory:
    return of.flow(cloud, field, of.Euler(), t1=t1, dt=0.02, noise=of.CommonNoise(sigma, path=path))


shared, other = of.dynamics.BrownianPath(7, shape=(1,)), of.dynamics.BrownianPath(8, shape=(1,))
one, two, stranger = noisy(high, shared), noisy(low, shared), noisy(low, other)

# %%
# How far apart are the two clouds? A transport that must not change labels can only send :math:`x_i` to
# :math:`y_i`, so their conditional Wasserstein distance is :math:`(\frac1n \sum_i |x_i - y_i|^2)^{1/2}`.
# Along one path it falls, in the end like :math:`e^{-\kappa t}`: the noise cancels in the difference of
# the two first tokens, and everybody follows them onto one random curve. Along different paths it does
# not go to zero.


def distance(a: of.Trajectory, b: of.Trajectory) -> torch.Tensor:
    return (a.stacked.x - b.stacked.x).square().sum(-1).mean(-1).sqrt()


blue, orange, green, *_ = of.plot.COLOURS
fig, (quiet, pair, gap) = plt.subplots(1, 3, figsize=(10.5, 3.4), layout="constrained")
of.plot.trails(calm, ax=quiet, size=10)
quiet.plot(calm.ts, calm.stacked.x[:, 0, 0], color="black", label="first token")
quiet.legend()
quiet.set_title("no noise (later tokens are lighter)")
of.plot.trails(one, ax=pair, color=blue, size=10)
of.plot.trails(two, ax=pair, color=orange, size=10)
pair.set_title("two clouds, one Brownian path")
gap.semilogy(one.ts, distance(one, two), color=blue, label="same path")
gap.semilogy(one.ts, distance(one, stranger), color=green, label="different paths")
gap.semilogy(one.ts, 5 * torch.exp(-kappa * one.ts), "k:", linewidth=1, label=r"$5\,e^{-\kappa t}$")
gap.set(xlabel="$t$", ylabel="conditional Wasserstein distance", title="distance between the clouds")
gap.legend()
plt.show()
