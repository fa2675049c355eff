"""How far two solutions drift apart: observed, worst, bounded along a run, bounded beforehand."""

from otflow.stability.coupled import Coupled, coupled

__all__ = ["Coupled", "coupled"]
