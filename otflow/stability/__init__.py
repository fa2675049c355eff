"""How far two solutions drift apart: observed, worst, bounded along a run, bounded beforehand."""

from otflow.stability.adversary import Adversary, adversary
from otflow.stability.bounds.a_posteriori import APosteriori, a_posteriori
from otflow.stability.bounds.a_priori import APriori, a_priori
from otflow.stability.bounds.constants import Constants, constants, hardy_factor
from otflow.stability.coupled import Coupled, coupled
from otflow.stability.ladder import Ladder, ladder
from otflow.stability.local_constant import LocalConstant, local_constant
from otflow.stability.perturbations import perturbations, scaled
from otflow.stability.propagator import Propagator, Spectrum, singular_values
from otflow.stability.smoothness import (
    adversarial_tokens,
    ball_bound,
    data_bound,
    discrete_bound,
    mean_field_bound,
)

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
