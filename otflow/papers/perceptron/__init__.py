"""Perceptrons and the landscape of attention on a sphere: atoms instead of a uniform spread.

Attention without softmax and a perceptron whose output weights are its input weights, scaled, move tokens on
the sphere along the gradient of one energy (Alvarez-Lopez, Geshkovski, Ruiz-Balet, "Perceptrons and
localization of attention's mean-field landscape", 2026, arXiv 2601.21366),

    E[mu] = 1/(2 beta) int int exp(beta (x.y - 1)) dmu dmu + 1/2 int v dmu,   v = sum_j omega_j phi(a_j.x),

with phi' = 2 sigma, so that the perceptron's drift is u = P_x sum_j omega_j sigma(a_j.x) a_j = grad v / 2.
Ascent draws tokens together, descent spreads them. Without perceptron the uniform law is the one minimiser;
with it, minimisers are finitely many atoms.

One normalisation is used throughout: the kernel is exp(beta (x.y - 1)) <= 1. The paper prints exp(beta x.y).
Both are the same landscape, E_printed(beta, e^beta omega) = e^beta E(beta, omega), with time running e^beta
times faster; `printed_weights` converts. The bounds `mass_bound` and `atom_bound` are in the printed one.
"""

from otflow.papers.perceptron.atoms import Atoms, find_atoms
from otflow.papers.perceptron.landscape import (
    GELU,
    Activation,
    ReLU,
    SecondVariation,
    Tanh,
    first_variation,
    residual,
    second_variation,
)
from otflow.papers.perceptron.mass_bounds import (
    MassClusters,
    ascent,
    atom_bound,
    cluster_masses,
    descent,
    empty_arcs,
    energy,
    kernel_mass_bound,
    mass_bound,
    perceptron_constant,
    printed_weights,
)

__all__ = [
    "Activation",
    "ReLU",
    "GELU",
    "Tanh",
    "energy",
    "ascent",
    "descent",
    "printed_weights",
    "first_variation",
    "residual",
    "second_variation",
    "SecondVariation",
    "find_atoms",
    "Atoms",
    "perceptron_constant",
    "mass_bound",
    "kernel_mass_bound",
    "atom_bound",
    "empty_arcs",
    "cluster_masses",
    "MassClusters",
]
