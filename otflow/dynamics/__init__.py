"""Time: the flow, what it records, its noise, its energy balance, and where it ends."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
