r"""
How stable is your attention?
=============================

Bring your own :math:`Q`, :math:`K`, :math:`V` and tokens. The ladder tells how much two clouds that start
close together can drift apart: what simple perturbations do, the worst that an adversary finds, a bound along
the run, and a bound from the norms of the weights alone (Castin, Ablin, Carrillo, Peyré 2025, Theorem 3.1).
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of

plt.rcParams.update(of.plot.STYLE)

rng = np.random.default_rng(3)
Q, K, V = (A / np.linalg.norm(A, 2) for A in rng.normal(size=(3, 2, 2)))

# %%
# Five lines:

tokens = of.Particles(rng.uniform(-0.7, 0.7, size=(24, 2)))
field = of.SoftmaxAttention(Q, K, V)
found = of.ladder(tokens, field, t1=1.0)
print(found)
assert found.holds()

# %%
# The a-priori constant is the exponential of a huge number, the truth is a small one: the axis is linear near
# 0 and logarithmic far from it. To the right, where the adversary pushes: its perturbation, magnified, and
# what has become of it.

worst = found.adversary.nu0
run = of.coupled(tokens, worst, field, of.RK4(), t1=1.0, dt=0.02)
fig, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
of.plot.ladder(found, ax=left)
for ax, k, title in ((middle, 0, "perturbation at $t = 0$"), (right, -1, "and at $t = 1$")):
    x, y = run.mu.measures[k].x, run.nu.measures[k].x
    e = (y - x) / run.start / 5
    of.plot.particles(of.Particles(x), ax=ax)
    ax.quiver(
        *x.T.numpy(),
        *e.T.numpy(),
        color=of.plot.COLOURS[1],
        angles="xy",
        scale_units="xy",
        scale=1.0,
        width=0.005,
    )
    ax.set_aspect("equal", adjustable="box")
    ax.set(xlim=(-1.0, 1.0), ylim=(-1.0, 1.0), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    ax.set_title(f"{title}: {float(run.ratios[k]):.2f} long")

# %%
# Masked attention needs labels, and its distances never move them. The same call:

line = of.Particles(tokens.x, label=np.arange(24) / 24)
masked = of.SoftmaxAttention(Q, K, V, causal=True)
print(of.ladder(line, masked, t1=1.0))

plt.show()
