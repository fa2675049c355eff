"""Measure-to-measure interpolation: one Transformer takes several measures to their targets at once.

On the unit sphere of R^d, d >= 3, tokens with the law mu move with

    v[mu](x) = P_x(V A_B[mu](x) + w (a.x + c)_+),

attention and a perceptron of one neuron. With theta = (V, B, w, a, c) piecewise constant in time and the same
for all of them, N measures mu^1, ..., mu^N go to N given points, or atomic measures (Geshkovski, Rigollet,
Ruiz-Balet, "Measure-to-measure interpolation using Transformers", Found. Comput. Math. 2026, arXiv
2411.04551v3, Theorems 1.1 and 1.2). No field that is the same for all measures could do this where their
supports overlap; attention tells them apart by their means.

`interpolate` builds theta from samples: clouds are disentangled one at a time, gathered in points (or cut
into atoms), and the points are brought to their targets one at a time. The `Path` that comes out
can be run on any other measure. B = 0 throughout, so that A_B[mu] is the mean of mu and pieces are closed
forms. This, one direction alpha for each measure, and gates that gather instead of a phase of clustering, are
ours.
"""

from otflow.papers.interpolation.gates import ball
from otflow.papers.interpolation.path import Frames, Path, interpolate
from otflow.papers.interpolation.pieces import MeanAttention, SpherePiece

__all__ = ["interpolate", "Path", "Frames", "SpherePiece", "ball", "MeanAttention"]
