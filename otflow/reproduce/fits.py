"""Exponents of power laws."""

from __future__ import annotations

from typing import Any

import numpy as np


def slope(x: Any, y: Any) -> float:
    """The exponent of the power law between positive numbers x and y, fitted by least squares.

    >>> from otflow.reproduce.fits import slope
    >>> round(slope([1.0, 2.0, 4.0], [3.0, 12.0, 48.0]), 9)
    2.0
    """
    return float(np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1)[0])
