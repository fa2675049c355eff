"""What a refusal must look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import otflow as of


def refuses(call: Callable[[], Any], *parts: str) -> None:
    """An InputError that is a ValueError and whose message contains all the parts, remedy last."""
    with pytest.raises(of.InputError) as caught:
        call()
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    for part in parts:
        assert part in message, f"{part!r} is missing in: {message}"
    remedy = message.rpartition(";")[2]
    assert len(remedy.split()) >= 2, f"no remedy in: {message}"
