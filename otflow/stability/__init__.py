"""How far two solutions drift apart: observed, worst, bounded along a run, bounded beforehand."""

from otflow.stability.aposteriori import APosteriori, a_posteriori
from otflow.stability.apriori import APriori, a_priori
from otflow.stability.balls import Constants, constants, hardy_factor
from otflow.stability.families import perturbations, scaled
from otflow.stability.local import LocalConstant, local_constant
from otflow.stability.propagator import Propagator, Spectrum, singular_values
from otflow.stability.rungs import Ladder, ladder
from otflow.stability.runs import Coupled, coupled
from otflow.stability.smoothness import (
    adversarial_tokens,
    ball_bound,
    data_bound,
    discrete_bound,
    mean_field_bound,
)
from otflow.stability.worst import Adversary, adversary

__all__ = [
    "APosteriori",
    "APriori",
    "Adversary",
    "Constants",
    "Coupled",
    "Ladder",
    "LocalConstant",
    "Propagator",
    "Spectrum",
    "a_posteriori",
    "a_priori",
    "adversarial_tokens",
    "adversary",
    "ball_bound",
    "constants",
    "coupled",
    "data_bound",
    "discrete_bound",
    "hardy_factor",
    "ladder",
    "local_constant",
    "mean_field_bound",
    "perturbations",
    "scaled",
    "singular_values",
]
