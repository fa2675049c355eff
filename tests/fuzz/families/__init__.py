"""All families: importing this package fills `engine.FAMILIES`."""

from __future__ import annotations

from tests.fuzz.families import bures, entropic_transport, exact_transport, fields

LOADED = (bures, entropic_transport, exact_transport, fields)
