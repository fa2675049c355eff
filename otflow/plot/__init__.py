"""Pictures of measures and trajectories: each function draws on ``ax``, by default pyplot's, and returns it.

The house style `STYLE` is applied to what is created here and never set globally; axes of your own get it by
``with matplotlib.rc_context(otflow.plot.STYLE): ...``.
"""

from otflow.plot.clouds import SPHERE, particles, trails
from otflow.plot.curves import energy, ranks, spectra
from otflow.plot.densities import density
from otflow.plot.gaussians import cone, disk, ellipses
from otflow.plot.stability import ladder
from otflow.plot.style import COLOURS, FAINT, INK, PAPER, SEQUENCE, STYLE, figure, panel, spatial
from otflow.plot.trajectories import animate, trajectory

__all__ = [
    "figure",
    "panel",
    "spatial",
    "trajectory",
    "animate",
    "particles",
    "trails",
    "density",
    "ellipses",
    "disk",
    "cone",
    "energy",
    "ranks",
    "spectra",
    "ladder",
    "STYLE",
    "COLOURS",
    "SEQUENCE",
    "INK",
    "FAINT",
    "PAPER",
    "SPHERE",
]
