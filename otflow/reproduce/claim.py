"""What an experiment hands back: claims with their verdicts, figures and data.

A claim is one statement of a paper next to the number that we measured. Its verdict is computed
from the two, never chosen, and a number that is not finite never holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import os

    import numpy as np

Value: TypeAlias = float | str
Progress: TypeAlias = Callable[[float, str], None]

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Verdict(StrEnum):
    """What became of a claim; an erratum is a printed statement shown false, with its correction."""

    HOLDS = "holds"
    FAILS = "fails"
    ERRATUM = "erratum found"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of the literature against one measurement.

    Made by `equal`, `at_most`, `within` or `erratum`, which compute the verdict. `source` names the
    paper and the number of the theorem or equation, `tolerance` says in words what was allowed.

    >>> Claim.equal("pi squared over six", "Euler 1735", predicted=1.645, measured=1.6449, atol=1e-3).verdict
    <Verdict.HOLDS: 'holds'>
    """

    statement: str
    source: str
    predicted: Value
    measured: Value
    tolerance: str
    verdict: Verdict

    @classmethod
    def equal(
        cls,
        statement: str,
        source: str,
        *,
        predicted: Value,
        measured: Value,
        rtol: float = 0.0,
        atol: float = 0.0,
    ) -> Claim:
        """|measured - predicted| <= atol + rtol |predicted|; words must be the same."""
        predicted, measured = _plain(predicted), _plain(measured)
        return cls(
            statement=statement,
            source=source,
            predicted=predicted,
            measured=measured,
            tolerance=_tolerance(rtol=rtol, atol=atol),
            verdict=_holds_if(_agree(measured, predicted, rtol=rtol, atol=atol)),
        )

    @classmethod
    def at_most(
        cls, statement: str, source: str, *, bound: float, measured: float, slack: float = 0.0
    ) -> Claim:
        """measured <= bound + slack |bound|, which is bound (1 + slack) for a positive bound."""
        _check_tolerances(slack=slack)
        bound, measured = float(bound), float(measured)
        return cls(
            statement=statement,
            source=source,
            predicted=bound,
            measured=measured,
            tolerance=f"at most, slack {slack:g}" if slack else "at most",
            verdict=_holds_if(_finite(bound, measured) and measured <= bound + slack * abs(bound)),
        )

    @classmethod
    def within(cls, statement: str, source: str, *, low: float, high: float, measured: float) -> Claim:
        """low <= measured <= high."""
        if not low <= high:
            raise ValueError(f"low = {low!r} and high = {high!r} enclose nothing: give low <= high")
        measured = float(measured)
        return cls(
            statement=statement,
            source=source,
            predicted=f"{low:.6g} to {high:.6g}",
            measured=measured,
            tolerance="ends included",
            verdict=_holds_if(_finite(measured) and low <= measured <= high),
        )

    @classmethod
    def erratum(
        cls,
        statement: str,
        source: str,
        *,
        printed: Value,
        corrected: Value,
        measured: Value,
        rtol: float = 0.0,
        atol: float = 0.0,
    ) -> Claim:
        """`measured` agrees with `corrected` and disagrees with `printed`; anything else fails."""
        measured = _plain(measured)
        right = _agree(measured, _plain(corrected), rtol=rtol, atol=atol)
        wrong = _agree(measured, _plain(printed), rtol=rtol, atol=atol)
        return cls(
            statement=statement,
            source=source,
            predicted=f"{show(corrected)} (printed: {show(printed)})",
            measured=measured,
            tolerance=_tolerance(rtol=rtol, atol=atol),
            verdict=Verdict.ERRATUM if right and not wrong else Verdict.FAILS,
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


class Experiment(Protocol):
    """A module whose docstring is its text on the page (first line: the title) and that can run."""

    __doc__: str | None

    def run(self, *, quick: bool, progress: Progress) -> Result:
        """Compute; `quick` asks for a rough version, `progress(fraction, message)` may be called often."""


def show(value: Value) -> str:
    """A value as people read it: words as they are, numbers with six digits.

    >>> show(2 / 3)
    '0.666667'
    """
    return value if isinstance(value, str) else f"{float(value):.6g}"


def _plain(value: Value) -> Value:
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
