r"""
The staircase of a clustering circle
====================================

At low temperature, tokens on a circle form clusters that stay where they are for a time exponential in the
inverse temperature :math:`\beta`; then two of them merge, and the rest waits again. With clusters of masses
:math:`m_q` at angles :math:`\theta_q`,

.. math::

   \dot\theta_p = -\sum_q m_q\, e^{\beta (\cos(\theta_p - \theta_q) - 1)} \sin(\theta_p - \theta_q) ,

and the energy :math:`\sum_{pq} m_p m_q\, e^{\beta (\cos(\theta_p - \theta_q) - 1)}` climbs from one plateau
:math:`\sum_q m_q^2` to the next (Geshkovski, Koubbi, Polyanskiy and Rigollet, *Dynamic metastability in the
self-attention model*, 2024). Two clusters alone at a gap :math:`\theta` need the time
:math:`T \simeq e^{\beta (1 - \cos\theta)} / ((m_p + m_q)\, \beta \sin^2\theta)`. Is this enough to predict
the whole staircase?
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of

plt.rcParams.update(of.plot.STYLE)

metastability = of.papers.metastability

# %%
# The prediction goes from pair to pair: the one that is through first merges, at a time that is known by
# quadrature. It needs no simulation, and lists who merges, when and where.

theta = [0.0, 0.6, 1.5, 3.2, 4.4]
masses = [0.1, 0.35, 0.25, 0.2, 0.1]
beta = 300.0
predicted = metastability.staircase(theta, beta, masses)
for pair, s, point in zip(predicted.pairs, predicted.log_times, predicted.merge_points, strict=True):
    print(f"{pair[0]} and {pair[1]} merge at log t / beta = {s:.4f} in {point:.4f}")

# %%
# The simulation knows nothing of pairs. The last merge takes about :math:`e^{575}` units of time, at
# velocities of order :math:`e^{-575}`, so that it runs along the arclength of the path, with all scores and
# the time as logarithms. Steps along the path are those of `flow`, with the classical Runge-Kutta method.

run = metastability.slow_flow(theta, beta, masses=masses)
errors = run.jumps / predicted.log_times - 1
print("relative errors of log t / beta:", " ".join(f"{e:.1e}" for e in errors))

# %%
# Left: the energy, and the predicted steps as dots. Right: the angles, and the predicted merges as circles.
# Without normalisation, clusters meet in their centre of mass.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")

s = np.concatenate([[0.0], run.s, [1.05 * run.s[-1]]])


def drawn(values):
    """A curve that starts at t = 1 and goes on for a while after the last merge."""
    return np.concatenate([values[:1], values, values[-1:]])


left.plot(s, drawn(run.energy.numpy()), color=of.plot.COLOURS[0], label="simulated")
at = np.linspace(0, s[-1], 120)
left.plot(at, predicted.energy(at), ".", color=of.plot.INK, markersize=3.5, label="predicted")
left.set(
    xlabel=r"$\log t \,/\, \beta$", ylabel="energy", title=rf"A staircase, $\beta = {beta:g}$", ylim=(0, 1.05)
)
left.legend(loc="upper left")

for token, color in zip(run.theta.T.numpy(), of.plot.COLOURS, strict=False):
    right.plot(s, drawn(token), color=color)
right.plot(
    predicted.log_times, predicted.merge_points, "o", color=of.plot.INK, fillstyle="none", label="predicted"
)
right.set(xlabel=r"$\log t \,/\, \beta$", ylabel=r"angle $\theta$", title="From saddle to saddle")
right.legend(loc="lower right")
plt.show()
