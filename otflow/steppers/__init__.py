"""Steppers: how a field moves a measure over one step of time.

Each is loaded when it is asked for: explicit steps need none of the solvers of minimising movements.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
