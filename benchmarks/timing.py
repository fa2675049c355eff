"""How long something takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def timed(f: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """The best of a few times, and what came out."""
    best, out = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        out = f()
        best = min(best, time.perf_counter() - start)
    return best, out


def peak_memory() -> float:
    """The most memory in use so far, in KB on Linux; NaN on systems that do not tell Python."""
    try:
        import resource
    except ImportError:  # not POSIX
        return float("nan")
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
