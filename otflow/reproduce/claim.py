"""A claim: one statement of a paper next to the number that we measured; with figures and data, a result.

Its verdict is computed from the two, never chosen, and a number that is not finite never holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsFloat, TypeAlias

if TYPE_CHECKING:
    import os

    import numpy as np

from otflow.base.tables import table

Value: TypeAlias = float | str
Number: TypeAlias = SupportsFloat | str

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Verdict(StrEnum):
    """What became of a claim; an erratum is a printed statement shown false, with its correction."""

    HOLDS = "holds"
    FAILS = "fails"
    ERRATUM = "erratum found"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of the literature against one measurement; a `Statement` computes its verdict.

    `source` names the paper and the number of the theorem or equation, `tolerance` says in words what was
    allowed.
    """

    statement: str
    source: str
    predicted: Value
    measured: Value
    tolerance: str
    verdict: Verdict

    def _repr_html_(self) -> str:
        names = ("source", "predicted", "measured", "tolerance")
        rows = {name: getattr(self, name) for name in names} | {"verdict": self.verdict.value}
        return table(self.statement, rows)


@dataclass(frozen=True)
class Source:
    """Where statements come from; called with one, it waits to be held against a measurement.

    >>> from otflow.reproduce.claim import Source
    >>> euler = Source("Euler 1735")
    >>> euler("pi squared over six").equal(1.645, 1.6449, atol=1e-3).verdict
    <Verdict.HOLDS: 'holds'>
    >>> euler.at("section 3").text
    'Euler 1735, section 3'
    """

    text: str

    def at(self, place: str) -> Source:
        """A place in this source: the number of a theorem, an equation, a figure."""
        return Source(f"{self.text}, {place}")

    def __call__(self, statement: str) -> Statement:
        return Statement(statement, self.text)

    def __str__(self) -> str:
        return self.text


class Statement(NamedTuple):
    """A statement and its source; each method makes the `Claim` that a measurement agrees with it."""

    statement: str
    source: str

    def equal(self, predicted: Number, measured: Number, *, rtol: float = 0.0, atol: float = 0.0) -> Claim:
        """|measured - predicted| <= atol + rtol |predicted|; words must be the same."""
        predicted, measured = _plain(predicted), _plain(measured)
        good = _agree(measured, predicted, rtol=rtol, atol=atol)
        return self._claim(predicted, measured, _tolerance(rtol=rtol, atol=atol), _holds_if(good))

    def at_most(self, bound: SupportsFloat, measured: SupportsFloat, *, slack: float = 0.0) -> Claim:
        """measured <= bound + slack |bound|, which is bound (1 + slack) for a positive bound."""
        _check_tolerances(slack=slack)
        bound, measured = float(bound), float(measured)
        good = _finite(bound, measured) and measured <= bound + slack * abs(bound)
        return self._claim(
            bound, measured, f"at most, slack {slack:g}" if slack else "at most", _holds_if(good)
        )

    def within(self, low: float, high: float, measured: SupportsFloat) -> Claim:
        """low <= measured <= high."""
        if not low <= high:
            raise ValueError(f"low = {low!r} and high = {high!r} enclose nothing: give low <= high")
        measured = float(measured)
        good = _finite(measured) and low <= measured <= high
        return self._claim(f"{low:.6g} to {high:.6g}", measured, "ends included", _holds_if(good))

    def erratum(
        self, *, printed: Number, corrected: Number, measured: Number, rtol: float = 0.0, atol: float = 0.0
    ) -> Claim:
        """`measured` agrees with `corrected` and disagrees with `printed`; anything else fails."""
        measured = _plain(measured)
        right = _agree(measured, _plain(corrected), rtol=rtol, atol=atol)
        wrong = _agree(measured, _plain(printed), rtol=rtol, atol=atol)
        predicted = f"{show(_plain(corrected))} (printed: {show(_plain(printed))})"
        verdict = Verdict.ERRATUM if right and not wrong else Verdict.FAILS
        return self._claim(predicted, measured, _tolerance(rtol=rtol, atol=atol), verdict)

    def _claim(self, predicted: Value, measured: Value, tolerance: str, verdict: Verdict) -> Claim:
        return Claim(
            statement=self.statement,
            source=self.source,
            predicted=predicted,
            measured=measured,
            tolerance=tolerance,
            verdict=verdict,
        )


class Figure(Protocol):
    """What is asked of a figure: matplotlib's `Figure` fits, and this module need not import it."""

    def savefig(self, fname: str | os.PathLike[str], **options: Any) -> None:
        """Write the figure to `fname`."""


@dataclass(frozen=True)
class Result:
    """The outcome of one experiment; keys of `figures` and `data` become names of files and arrays."""

    claims: Sequence[Claim]
    figures: Mapping[str, Figure]
    data: Mapping[str, np.ndarray[Any, Any]]

    def __post_init__(self) -> None:
        """Refuse what could not be written or would pass without saying anything."""
        if not self.claims:
            raise ValueError("claims is empty: an experiment states at least one claim that can fail")
        _check_names("figures", self.figures)
        _check_names("data", self.data)
        for name, array in self.data.items():
            _check_array(name, array)


def show(value: Value) -> str:
    """A value as people read it: words as they are, numbers with six digits.

    >>> from otflow.reproduce.claim import show
    >>> show(2 / 3)
    '0.666667'
    """
    return value if isinstance(value, str) else f"{float(value):.6g}"


def _plain(value: Number) -> Value:
    """Turn scalars of numpy and torch into Python's own numbers."""
    return value if isinstance(value, str) else float(value)


def _finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


def _holds_if(condition: bool) -> Verdict:
    return Verdict.HOLDS if condition else Verdict.FAILS


def _agree(measured: Value, reference: Value, *, rtol: float, atol: float) -> bool:
    """Words agree when equal, numbers when both are finite and close."""
    _check_tolerances(rtol=rtol, atol=atol)
    if isinstance(measured, str) or isinstance(reference, str):
        return measured == reference
    return _finite(measured, reference) and abs(measured - reference) <= atol + rtol * abs(reference)


def _tolerance(*, rtol: float, atol: float) -> str:
    parts = [f"relative {rtol:g}"] * (rtol > 0) + [f"absolute {atol:g}"] * (atol > 0)
    return ", ".join(parts) or "exact"


def _check_tolerances(**tolerances: float) -> None:
    for name, value in tolerances.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} = {value!r} allows nothing or everything: give a finite number >= 0")


def _check_names(argument: str, names: Iterable[str]) -> None:
    for name in names:
        if not FILE_NAME.fullmatch(name):
            raise ValueError(
                f"{argument} has the key {name!r}, which becomes a file name: use letters, digits, - and _"
            )


def _check_array(name: str, array: np.ndarray[Any, Any]) -> None:
    """Objects would need pickle, which no reader should have to trust."""
    import numpy as np

    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        kind = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"data[{name!r}] is {kind}, not a plain array: convert it with numpy.asarray(...)")
