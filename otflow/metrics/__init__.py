"""Metrics on measures: how a differential becomes a velocity, what a move costs, how far measures are."""

from otflow.metrics.base import Metric, Wasserstein, distance, path_action
from otflow.metrics.contract import check
from otflow.metrics.geodesic import TwistedTransport, solve_twisted
from otflow.metrics.partition import Partition
from otflow.metrics.twisted import Twisted, twist

__all__ = [
    "Metric",
    "Partition",
    "Twisted",
    "TwistedTransport",
    "Wasserstein",
    "check",
    "distance",
    "path_action",
    "twist",
    "solve_twisted",
]
