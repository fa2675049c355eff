"""Settings for all tests."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from hypothesis import settings

# torch's forward mode imports this on first use, which warns of a deprecation within torch itself.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("torch._decomp.decompositions_for_jvp")

# The same examples every time: a red run must be red again.
settings.register_profile("otflow", derandomize=True, deadline=None)
settings.load_profile("otflow")


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """torch's gradchecks draw from the global generator, whose state depends on which tests came before."""
    torch.manual_seed(0)
