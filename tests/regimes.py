"""The two ways in which otflow sums over pairs: dense when small, streamed in tiles when not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from otflow.base import kernels
from otflow.transport.entropic import scaling

REGIMES = {"dense": (10**9, 2**20), "streaming": (0, 16)}  # kernels.DENSE, kernels.TILE


@contextmanager
def regime(name: str) -> Iterator[None]:
    """Everything small inside is summed in this way."""
    dense, tile = REGIMES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "DENSE", dense)
        patch.setattr(kernels, "TILE", tile)
        patch.setattr(scaling, "ABSORB", dense)
        yield
