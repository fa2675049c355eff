"""Metrics on measures: how a differential becomes a velocity, what a move costs, how far measures are."""

from otflow.metrics.base import Metric, Wasserstein, distance, path_action
from otflow.metrics.contract import check
from otflow.metrics.geodesic import TwistedGeodesic, twisted_wasserstein
from otflow.metrics.partition import Partition
from otflow.metrics.twisted import Twisted, twist

__all__ = [
    "Metric",
    "Partition",
    "Twisted",
    "TwistedGeodesic",
    "Wasserstein",
    "check",
    "distance",
    "path_action",
    "twist",
    "twisted_wasserstein",
]
