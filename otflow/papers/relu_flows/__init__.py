"""Flows of width one: a ReLU neuron at a time, in closed form, builds permutations and transport maps.

The flow of

    x' = w(t) (a(t).x + b(t))_+,     w, a, b piecewise constant,

is a composition of maps x -> x + w (a.x + b)_+ T phi1(kappa T), kappa = a.w, each with log det = kappa T on
one side of a hyperplane and 0 on the other. Shears (a orthogonal to w) keep volume, stretches (a along w) are
gradients of convex functions. From these two, monotone maps, staircases, permutations of cells,
approximations of diffeomorphisms and transport maps are put together, with inverse and density exact. That
such flows approximate maps and laws, and with how many switches, is in

    Geshkovski, Ruiz-Balet, "Constructive conditional normalizing flows", 2026, arXiv 2602.08606;
    Alvarez-Lopez, Geshkovski, Ruiz-Balet, "Constructive approximate transport maps with normalizing flows",
    Applied Mathematics and Optimization 2025, arXiv 2412.19366.

The constructions here are ours, made after the abstracts of these papers; constants and counts of pieces need
not be theirs.
"""

from __future__ import annotations

from otflow.papers.relu_flows.knothe import knothe_rosenblatt
from otflow.papers.relu_flows.laws import Law, Mixture1d
from otflow.papers.relu_flows.neurons import lie_trotter, maurey
from otflow.papers.relu_flows.pieces import Piece, PiecewiseFlow, phi1
from otflow.papers.relu_flows.polar_maps import Polar, polar
from otflow.papers.relu_flows.shears import monotone, permutation, shear, staircase
from otflow.papers.relu_flows.transport import ReluTransport, transport_1d

__all__ = [
    "Piece",
    "PiecewiseFlow",
    "phi1",
    "monotone",
    "shear",
    "staircase",
    "permutation",
    "polar",
    "Polar",
    "maurey",
    "lie_trotter",
    "transport_1d",
    "knothe_rosenblatt",
    "ReluTransport",
    "Law",
    "Mixture1d",
]
