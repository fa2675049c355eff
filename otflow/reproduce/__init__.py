"""What it takes to hold a paper against a computation: claims, the frame of an experiment, the report."""

from otflow.reproduce.claim import Claim, Result, Source, Statement, Verdict
from otflow.reproduce.frame import Experiment, Frame

__all__ = ["Claim", "Experiment", "Frame", "Result", "Source", "Statement", "Verdict"]
