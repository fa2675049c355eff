r"""
Covariances that lose a rank
============================

Softmax attention keeps Gaussians Gaussian. A law :math:`\mathcal N(0, \Sigma)` of tokens stays one, and its
covariance moves by

.. math:: \dot \Sigma = V \Sigma A \Sigma + \Sigma A^\top \Sigma V^\top , \qquad A = K^\top Q

(Castin, Ablin, Carrillo and Peyré, *A unified perspective on the dynamics of deep Transformers*, 2025). In
finite time its rank never changes, but in the limit it drops: this is how tokens collapse. In the plane one
can see all covariances at once. As points :math:`(\Sigma_{11} - \Sigma_{22},\, 2\Sigma_{12},\,
\operatorname{tr}\Sigma)` they fill a cone, whose surface is rank one; divided by the trace, they fill a disk,
whose circle is rank one.
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# A grid of covariances of trace one. They are one batch, and flow together.

u, w = np.stack(np.meshgrid(*[np.linspace(-1, 1, 16)] * 2), -1).reshape(-1, 2).T
u, w = (c[u**2 + w**2 < 0.98] for c in (u, w))
S = np.stack([np.stack([1 + u, w], -1), np.stack([w, 1 - u], -1)], -2) / 2
start = of.Gaussian(np.zeros(2), cov=S)

# %%
# First, :math:`A = -qq^\top` and :math:`V = I`. What lies along :math:`q` is used up, like :math:`1/t`; the
# limit is the part of :math:`\Sigma_0` across :math:`q`, in the sense of a Schur complement. A closed form of
# it is among the oracles in `otflow.closed_forms`, and `limit` follows the flow until it can tell.

q = np.array([[np.cos(1.15), np.sin(1.15)]])
across = of.SoftmaxAttention(q, -q, np.eye(2))
times = [0.0, *np.geomspace(0.01, 1e5, 60)]
fall = of.flow(start, across, of.Dopri5(), t1=1e5, save_at=times)

end = of.limit(start, across)
exact = of.closed_forms.softmax_limit(S, -q.T @ q)
print("ranks of the limits:", set(end.rank.tolist()))
print(f"distance to the closed form: {float((end.measure.cov - exact).abs().max()):.1e}")

# %%
# Second, scores of both signs: :math:`x \cdot Ax` is positive for some :math:`x` and negative for others, and
# :math:`V` is not symmetric. Now some covariances blow up in finite time, which is a status of the member and
# no error, and the others tend to multiples of one and the same :math:`uu^\top` with :math:`u \cdot Au = 0`.
# Members of a batch wait for each other at save times, so there are few of these where some of them explode.

K = np.array([[-0.59, -0.77], [-0.34, 0.09]])
Q = np.array([[0.68, 1.52], [-0.51, 1.15]])
V = np.array([[1.83, -0.38], [0.35, -0.12]])
times = [0.0, *np.geomspace(0.01, 9.5, 50), 12.0, 20.0]
both = of.flow(start, of.SoftmaxAttention(Q / 2**0.5, K, V), of.Dopri5(), t1=20.0, save_at=times)
exploded = both.status == "blow_up"
print(f"{exploded.sum()} of {exploded.size} blow up, the first at t = {np.nanmin(both.blow_up_time):.2f}")

# %%
# Small dots are starts, big ones are ends. The disk shows directions, the cone sizes too: triangles are where
# covariances leave the picture, because they blow up or because their limits are large. One law of the lower
# row still lingers near a saddle at :math:`t = 20`, to explode at :math:`t = 73`; one more is on its way.

fig = plt.figure(figsize=(9, 8.6), layout="constrained")
axes = [fig.add_subplot(2, 2, k + 1, projection="3d" if k % 2 else None) for k in range(4)]

for traj, (flat, solid), top, words in (
    (fall, axes[:2], 1.0, "$A = -qq^T$, $V = I$"),
    (both, axes[2:], 8.0, "$A$ of both signs"),
):
    of.plot.disk(traj, ax=flat)
    of.plot.cone(traj, ax=solid, top=top)
    flat.set_title(words + ": up to scale")
    solid.set_title(words + ": with their traces")
plt.show()
