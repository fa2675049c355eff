"""Verdicts follow from the numbers, and from nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otflow.reproduce.claim import Claim, Result, Source, Verdict, show

BROKEN = [math.nan, math.inf, -math.inf]
STATEMENT = Source("Nobody 2025, Theorem 1")("the radius shrinks")
finite = st.floats(min_value=-1e100, max_value=1e100)


def one_claim() -> Claim:
    return STATEMENT.equal(1.0, 1.0)


@pytest.mark.parametrize(
    ("measured", "verdict"), [(1.0, "holds"), (1.05, "holds"), (1.2, "fails"), (0.9, "holds"), (0.8, "fails")]
)
def test_equality_holds_up_to_the_relative_tolerance(measured: float, verdict: str) -> None:
    assert STATEMENT.equal(1.0, measured, rtol=0.11).verdict == verdict


def test_equality_adds_the_two_tolerances() -> None:
    assert STATEMENT.equal(10.0, 11.4, rtol=0.1, atol=0.5).verdict == "holds"
    assert STATEMENT.equal(10.0, 11.6, rtol=0.1, atol=0.5).verdict == "fails"


def test_equality_without_tolerance_is_exact() -> None:
    claim = STATEMENT.equal(1.0, math.nextafter(1.0, 2.0))
    assert (claim.verdict, claim.tolerance) == (Verdict.FAILS, "exact")


def test_equality_of_words_is_exact() -> None:
    assert STATEMENT.equal("blow_up", "blow_up").verdict == "holds"
    assert STATEMENT.equal("blow_up", "ok", rtol=1.0).verdict == "fails"
    assert STATEMENT.equal("1.0", 1.0).verdict == "fails"


@pytest.mark.thorough
@given(finite, finite, st.floats(0, 1), st.floats(0, 1))
def test_equality_is_numpys_isclose(predicted: float, measured: float, rtol: float, atol: float) -> None:
    claim = STATEMENT.equal(predicted, measured, rtol=rtol, atol=atol)
    assert (claim.verdict is Verdict.HOLDS) == bool(np.isclose(measured, predicted, rtol=rtol, atol=atol))


@pytest.mark.parametrize(
    ("measured", "verdict"), [(2.0, "holds"), (2.1, "holds"), (2.3, "fails"), (-9.0, "holds")]
)
def test_a_bound_may_be_exceeded_by_the_slack_only(measured: float, verdict: str) -> None:
    assert STATEMENT.at_most(2.0, measured, slack=0.1).verdict == verdict


def test_slack_loosens_a_negative_bound_too() -> None:
    assert STATEMENT.at_most(-1.0, -0.95, slack=0.1).verdict == "holds"
    assert STATEMENT.at_most(-1.0, -0.95).verdict == "fails"


@pytest.mark.parametrize(
    ("measured", "verdict"), [(1.0, "holds"), (2.0, "holds"), (0.99, "fails"), (2.01, "fails")]
)
def test_an_interval_contains_its_ends(measured: float, verdict: str) -> None:
    assert STATEMENT.within(1.0, 2.0, measured).verdict == verdict


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [(3.0, "erratum found"), (3.05, "erratum found"), (2.0, "fails"), (2.5, "fails")],
)
def test_an_erratum_needs_the_corrected_value_and_refutes_the_printed_one(
    measured: float, verdict: str
) -> None:
    claim = STATEMENT.erratum(printed=2.0, corrected=3.0, measured=measured, atol=0.1)
    assert claim.verdict == verdict


def test_an_erratum_whose_tolerance_covers_both_values_fails() -> None:
    claim = STATEMENT.erratum(printed=2.0, corrected=3.0, measured=2.5, atol=1.0)
    assert claim.verdict is Verdict.FAILS


def test_an_erratum_shows_both_values() -> None:
    claim = STATEMENT.erratum(printed="always", corrected="never", measured="never")
    assert (claim.predicted, claim.verdict) == ("never (printed: always)", Verdict.ERRATUM)


@pytest.mark.parametrize("measured", BROKEN)
def test_a_measurement_that_is_not_finite_never_holds(measured: float) -> None:
    claims = [
        STATEMENT.equal(measured, measured, rtol=1.0, atol=1.0),
        STATEMENT.equal(1.0, measured, rtol=1.0),
        STATEMENT.at_most(1.0, measured),
        STATEMENT.within(-math.inf, math.inf, measured),
        STATEMENT.erratum(printed=1.0, corrected=measured, measured=measured, atol=1.0),
    ]
    assert {claim.verdict for claim in claims} == {Verdict.FAILS}


@pytest.mark.parametrize("predicted", BROKEN)
def test_a_prediction_that_is_not_finite_never_holds(predicted: float) -> None:
    assert STATEMENT.equal(predicted, 1.0, rtol=1.0).verdict == "fails"
    assert STATEMENT.at_most(predicted, 1.0, slack=1.0).verdict == "fails"


@pytest.mark.parametrize("tolerance", [-1e-3, math.nan, math.inf])
def test_a_tolerance_that_decides_alone_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match=r"rtol = .* give a finite number >= 0"):
        STATEMENT.equal(1.0, 1.0, rtol=tolerance)
    with pytest.raises(ValueError, match="slack = "):
        STATEMENT.at_most(1.0, 1.0, slack=tolerance)


@pytest.mark.parametrize(("low", "high"), [(2.0, 1.0), (math.nan, 1.0)])
def test_an_empty_interval_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="enclose nothing"):
        STATEMENT.within(low, high, 1.5)


def test_scalars_of_numpy_become_plain_floats() -> None:
    claim = STATEMENT.equal(np.float64(0.5), np.float64(0.5))
    assert (type(claim.predicted), type(claim.measured)) == (float, float)


def test_numbers_are_shown_with_six_digits_and_words_as_they_are() -> None:
    assert [show(1 / 3), show(1e-12), show(math.nan), show("blow_up")] == [
        "0.333333",
        "1e-12",
        "nan",
        "blow_up",
    ]


def test_a_result_without_claims_is_refused() -> None:
    with pytest.raises(ValueError, match="claims is empty"):
        Result(claims=[], figures={}, data={})


@pytest.mark.parametrize("key", ["../escape", "a/b", "", ".hidden", "two words", "tail\n"])
@pytest.mark.parametrize("where", ["figures", "data"])
def test_a_key_that_is_no_file_name_is_refused(where: str, key: str) -> None:
    parts: dict[str, dict[str, Any]] = {"figures": {}, "data": {}, where: {key: np.zeros(1)}}
    with pytest.raises(ValueError, match=f"{where} has the key"):
        Result(claims=[one_claim()], **parts)


@pytest.mark.parametrize("value", [np.array([None]), [1.0], 3.0])
def test_data_that_is_no_plain_array_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"data\['x'\] is .*numpy.asarray"):
        Result(claims=[one_claim()], figures={}, data={"x": value})
