"""All families: importing this package fills `engine.FAMILIES`."""

from __future__ import annotations

from tests.fuzz.families import bures, closed_forms_attention, energies, entropic_transport, exact_transport, fields, measures

LOADED = (bures, closed_forms_attention, energies, entropic_transport, exact_transport, fields, measures)
