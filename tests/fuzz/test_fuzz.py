"""The fuzzer on fixed seeds, what it covers, and that it would see what it looks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tests.fuzz.__main__ as fuzz
from otflow.steppers import lie
from tests.fuzz import coverage, families
from tests.fuzz.engine import FAMILIES, GOOD, SLOW, Case, compare, draw, judge, report, run

SEED = 0
ROUNDS = 3  # cases of each family in `make test`; all of them together take a few seconds
MORE = 20  # in `make slow`
EVERY = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(FAMILIES)]


@pytest.mark.parametrize("name", EVERY)
def test_public_names_agree_with_independent_oracles_or_refuse_in_words(name: str) -> None:
    check(name, range(ROUNDS))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_more_cases_agree_or_are_refused_in_words(name: str) -> None:
    check(name, range(ROUNDS, MORE))


def check(name: str, indices: range) -> None:
    ends = []
    for index in indices:
        case = draw(name, SEED, index)
        outcome = judge(case)
        assert outcome.end in GOOD, "\n" + report(name, SEED, index, case, outcome)
        ends.append(outcome.end)
    assert "agreed" in ends, "a family that only refuses checks nothing"


def case(code: str, truth: Any = 1.0, bound: Any = 1e-9, **values: Any) -> Case:
    return Case(code, values, lambda: truth, lambda: bound)


FAULTS: dict[str, tuple[Case, str]] = {
    "a wrong number": (case("1.0 + 1e-8"), "wrong"),
    "a wrong shape": (case("np.ones(2)"), "wrong"),
    "not a number": (case("of.Particles(x).x[0, 0] * float('nan')", x=np.ones((1, 1))), "wrong"),
    "infinity": (case("np.inf"), "wrong"),
    "a right number": (case("1.0 + 1e-10"), "agreed"),
    "infinity that is meant": (case("np.inf", np.inf), "agreed"),
    "an error of another library": (case("np.linalg.inv(np.zeros((2, 2)))"), "raw"),
    "a warning of another library": (case("np.float64(1) / np.float64(0)"), "raw"),
    "an error of otflow": (case("of.Particles([])"), "refused"),
    "a status": (case("1.0, 'stalled'", (1.0,)), "refused"),
    "no answer": (case("while True: pass\n1.0"), "hang"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_of_fault_is_seen(name: str) -> None:
    one, end = FAULTS[name]
    assert judge(one, seconds=0.3).end == end


@pytest.mark.slow
def test_a_fault_of_a_library_below_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exponentials of single matrices, as torch computes them: off by 1e-11 in a Lie step."""
    case = draw("linear_flows", 11, 5)
    assert judge(case).end == "agreed"
    monkeypatch.setattr(lie, "matrix_exp", torch.linalg.matrix_exp)
    assert judge(case).end == "wrong"


def test_the_fuzzer_ends_in_time_with_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--seconds", "0.05", "--seed", "3", "--family", "positions_*"]
    monkeypatch.setattr("sys.argv", ["fuzz", *options])
    assert fuzz.main() == 0
    said = capsys.readouterr().out
    assert "positions_of_labels" in said
    assert "seed 3" in said


def test_a_bound_of_zero_allows_equal_numbers_only() -> None:
    assert compare(1.0, 1.0, 0.0).end == "agreed"
    assert compare(1.0, 1.0 + 1e-16, 0.0).end == "agreed"
    assert compare(1.0, np.nextafter(1.0, 2.0), 0.0).end == "wrong"


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_case_is_drawn_again_to_the_last_bit_and_its_snippet_says_the_same(name: str) -> None:
    first, again = (draw(name, SEED, 1) for _ in range(2))
    assert first.snippet() == again.snippet()
    names: dict[str, Any] = {}
    head = first.snippet().split("\n" + first.code)[0]
    exec(head, names)
    for key, value in first.values.items():
        assert np.array_equal(np.asarray(names[key]), np.asarray(value)), key
        assert np.asarray(names[key]).dtype == np.asarray(value).dtype


def test_numbers_of_a_case_are_out_of_reach_of_its_code() -> None:
    """What a run changes in place must not change the oracle."""
    one = case("x[:] = 2.0\nx.sum()", x=np.ones(2))
    run(one)
    assert one.values["x"].tolist() == [1.0, 1.0]


def test_every_public_name_is_in_the_code_of_a_case_or_has_a_reason_why_not() -> None:
    used, wanted = coverage.used(), coverage.public()
    missing = sorted(set(wanted) - used - set(coverage.WITHOUT))
    assert not missing, f"public names that no family of {families.__name__} uses: {missing}"


def test_reasons_are_given_only_where_they_are_needed() -> None:
    public = coverage.public()
    assert sorted(set(coverage.WITHOUT) - set(public)) == []
    assert sorted(set(coverage.WITHOUT) & coverage.used()) == []
