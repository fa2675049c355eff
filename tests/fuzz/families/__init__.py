"""All families: importing this package fills `engine.FAMILIES`."""

from __future__ import annotations

from tests.fuzz.families import (
    batches,
    bures,
    closed_forms_attention,
    closed_forms_diffusion,
    energies,
    entropic_transport,
    exact_transport,
    fields,
    flows,
    gaussian_fields,
    gaussian_integrals,
    gradients,
    identities,
    measures,
    metrics,
    minimising_movements,
    non_convex_movements,
    runs,
    stability,
    verdicts_on_runs,
)

LOADED = (
    batches,
    bures,
    closed_forms_attention,
    closed_forms_diffusion,
    energies,
    entropic_transport,
    exact_transport,
    fields,
    flows,
    gaussian_fields,
    gaussian_integrals,
    gradients,
    identities,
    measures,
    metrics,
    minimising_movements,
    non_convex_movements,
    runs,
    stability,
    verdicts_on_runs,
)
