"""The experiment of Theorem 3.1: its claims hold, and every kind of attention has its ladder."""

from __future__ import annotations

from otflow.experiments import stability
from otflow.experiments.stability_cases import FIELDS


def test_every_claim_holds_and_every_ladder_is_in_order() -> None:
    result = stability.run(quick=True, progress=lambda _, __: None)
    assert [c.statement for c in result.claims if c.verdict != "holds"] == []
    assert len({c.statement for c in result.claims}) == len(result.claims)
    panels = result.figures["ladders"].axes  # type: ignore[attr-defined]
    assert [ax.get_title() for ax in panels] == list(FIELDS)
    for name in FIELDS:
        observed, worst, after, before = result.data[f"rungs-{name.replace(' ', '-')}"]
        assert observed <= worst <= after <= before
