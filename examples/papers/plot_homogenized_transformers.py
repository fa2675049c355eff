r"""
Random layers: tokens that freeze or collapse
=============================================

Draw the weights of every head of a deep Transformer at random, and let tokens on the sphere pass through very
many layers,

.. math::

   x_i \leftarrow N\Big(x_i + \frac{\eta}{H} \sum_{h} \sum_k
   \mathrm{softmax}_k\big(\beta \langle A_h x_i, x_k \rangle\big)\, V_h x_k\Big), \qquad N(x) = x / |x| .

With centred weights the limit is an SDE whose noise all tokens share, and it runs on the clock
:math:`\eta^2 L / H` (Koubbi, Geshkovski and Rigollet, *Homogenized Transformers*, 2026). How fast tokens
collapse depends on the temperature and on the number of tokens through one number.
"""

import math

import matplotlib.pyplot as plt
import numpy as np

import otflow as of
from otflow.papers import homogenized as hom

plt.rcParams.update(of.plot.STYLE)

# %%
# Eight orthonormal tokens in dimension 64 pass through 144 layers, at two temperatures. The overlap of tokens
# at equal angles solves an ODE, in which :math:`d` appears; its limit for large :math:`d` is too fast.

n, d = 8, 64
law = hom.GaussianWeights(d)
runs = {}
for beta in (1.0, 40.0):
    run = hom.chain(
        hom.simplex(n, d),
        weights=law,
        beta=beta,
        eta=0.2,
        layers=144,
        samples=100,
        rng=0,
        save_at=list(range(0, 145, 12)),
    )
    t, b = run.clock, law.logit_scale(beta)
    runs[beta] = run, hom.simplex_overlap(t, n, b, d=d), hom.simplex_overlap(t, n, b)
    overlap = run.pair_overlap[6].mean()
    print(f"beta = {beta:g}: overlap {overlap:.3f} at t = {t[6]:.2f}, ODE {runs[beta][1][6]:.3f}")

# %%
# Why is the cold run slower? Scores of orthonormal tokens are independent and normal, of deviation
# :math:`b = \beta \sigma_A^2 \sqrt d`. Beyond :math:`b_c = \sqrt{2 \log n}` the largest one wins, as in a
# random-energy model: the head copies one token instead of averaging many, and rotates tokens without drawing
# them together. The participation ratio of the softmax tells.

for size in (8, 2000):
    critical = hom.critical_scale(size).item()
    f = hom.participation(critical * np.array([0.5, 1.0, 2.0]), size)
    print(f"n = {size}: b_c = {critical:.2f}, ratio at b_c / 2, b_c, 2 b_c:", np.round(f.numpy(), 3))

# %%
# Left: chains and their ODEs. Middle: the ratio as the number of tokens grows. Right: the time to collapse
# over temperature and length of context.

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.7), layout="constrained")
for (beta, (run, exact, large)), colour in zip(runs.items(), of.plot.COLOURS, strict=False):
    overlaps = run.pair_overlap.numpy()
    left.plot(run.clock, overlaps[:, :25], color=colour, linewidth=0.4, alpha=0.35)
    left.plot(
        run.clock, overlaps.mean(1), "o", color=colour, markersize=4, label=rf"chain, $\beta = {beta:g}$"
    )
    left.plot(run.clock, exact, color=colour, label="ODE, $d = 64$")
    left.plot(run.clock, large, ":", color=colour, label=r"ODE, $d = \infty$")
left.set(xlabel=r"clock $\eta^2 L / H$", ylabel="overlap", title="Orthonormal tokens collapse")
left.set_ylim(-0.35, 1.02)
left.set_yticks(np.linspace(0, 1, 6))
left.legend(loc="lower right", ncols=2)

ratio = np.linspace(0.02, 4, 80)
for k, size in enumerate((20, 2000, 10**7)):
    f = hom.participation(ratio * hom.critical_scale(size).item(), size)
    middle.plot(ratio, f, color=of.plot.SEQUENCE(k / 2), label=f"$n = {size:,}$".replace(",", r"\,"))
middle.plot(ratio, np.maximum(1 - 1 / ratio, 0), "--", color=of.plot.INK, label=r"$n = \infty$")
middle.set(xlabel="$b / b_c$", ylabel="participation ratio", title=r"Heads freeze at $b_c = \sqrt{2 \log n}$")
middle.legend(loc="lower right")

betas, lengths = np.geomspace(2, 200, 40), np.unique(np.geomspace(4, 1e5, 40).astype(int))
diagram = hom.collapse_diagram(betas, lengths, d)
mesh = right.pcolormesh(lengths, 1 / betas, diagram.time.log10(), cmap=of.plot.SEQUENCE, shading="nearest")
right.plot(lengths, 1 / (hom.critical_scale(lengths) * math.sqrt(d)), color="white", linewidth=1.6)
right.set(xscale="log", yscale="log", xlabel="length of context $n$", ylabel=r"temperature $1/\beta$")
right.set(title="Time to collapse; line: $b = b_c$", ylim=(1 / betas[-1], 1 / betas[0]))
fig.colorbar(mesh, ax=right, label=r"$\log_{10}$ of the time")
plt.show()
