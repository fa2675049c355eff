"""A case of the fuzzer: plain otflow code, what it should give by other means, and how far off it may be.

A family draws cases from a seed. A case is held as the code that a user would write and the numbers that it
reads, so that a failure is its own replay. It ends in one of six ways:

* agreed: all numbers within the bound, which was known before the code ran;
* refused: an error of otflow with a message, or a status other than "ok" that says so;
* wrong: beyond the bound, of another shape, or NaN or infinite where the truth is finite;
* raw: an exception or a warning that is none of otflow's, for input that a user may well have;
* hang: no answer within `PATIENCE` seconds of processor time, as a loaded machine is no fault;
* oracle: the independent computation itself failed, which is a fault of the fuzzer.
"""

from __future__ import annotations

import ast
import math
import signal
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

import otflow as of

PATIENCE = 30  # seconds that a case may take
GOOD = ("agreed", "refused")
ENDS = (*GOOD, "wrong", "raw", "hang", "oracle")
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """Code and what it should give.

    Attributes:
        code: lines of plain otflow, the last of which is an expression; reads `values`, of, np and torch.
        values: name -> array, number or list.
        truth: the same quantities by independent means: one, or a tuple of as many as the code gives.
        bound: of the absolute error, that broadcasts to it; one for all or one for each.
    """

    code: str
    values: dict[str, Any]
    truth: Callable[[], Any]
    bound: Callable[[], Any]

    def snippet(self) -> str:
        """The case as a script."""
        head = [
            "import numpy as np",
            "import torch",
            "from numpy import inf, nan",
            "",
            "import otflow as of",
            "",
        ]
        return "\n".join([*head, *(f"{name} = {literal(v)}" for name, v in self.values.items()), self.code])


Maker = Callable[[np.random.Generator], Case]
FAMILIES: dict[str, Maker] = {}
SLOW: set[str] = set()  # families whose cases take tenths of a second


def family(make: Maker) -> Maker:
    """Adds a family, by the name of its function."""
    name = make.__name__
    if name in FAMILIES:
        raise ValueError(f"two families are called {name}")
    FAMILIES[name] = make
    return make


def slow_family(make: Maker) -> Maker:
    """Adds a family that the fast tests leave out."""
    SLOW.add(make.__name__)
    return family(make)


def draw(name: str, seed: int, index: int) -> Case:
    with np.errstate(all="ignore"):
        return FAMILIES[name](np.random.default_rng([seed, zlib.crc32(name.encode()), index]))


def literal(value: Any) -> str:
    """Code for a value, to the last bit."""
    if not isinstance(value, np.ndarray):
        return repr(value)
    shape = f".reshape({value.shape})" if value.size == 0 else ""
    return f"np.array({value.tolist()}, dtype=np.{value.dtype}){shape}"


# --- how a case ends ----------------------------------------------------------------------------------


class Outcome(NamedTuple):
    end: str
    share: float = 0.0  # the largest error, in units of its bound
    told: str = ""


class Hang(BaseException):
    """Not an Exception, so that no handler on the way takes it for one."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run(case: Case) -> Any:
    """What the last line of the code gives."""
    names = {"np": np, "torch": torch, "of": of, "math": math, "inf": math.inf, **fresh(case.values)}
    tree = ast.parse(case.code)
    last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    exec(compile(tree, "<case>", "exec"), names)
    return eval(compile(last, "<case>", "eval"), names)


def fresh(values: dict[str, Any]) -> dict[str, Any]:
    return {name: v.copy() if isinstance(v, np.ndarray) else v for name, v in values.items()}


def judge(case: Case, seconds: float = PATIENCE) -> Outcome:
    """Runs a case and says how it ended."""
    torch.manual_seed(0)
    try:
        with patience(seconds), warnings.catch_warnings():
            warnings.simplefilter("error")
            got = run(case)
    except Hang:
        return Outcome("hang", told=f"no answer within {seconds} s")
    except of.OtflowError as error:
        message = f"{type(error).__name__}: {error}"
        return Outcome("refused" if str(error) else "raw", told=message)
    except Exception:
        return Outcome("raw", told=traceback.format_exc(limit=-3))
    try:
        with np.errstate(all="ignore"):
            truth, bound = case.truth(), case.bound()
    except Exception:
        return Outcome("oracle", told=traceback.format_exc(limit=-3))
    return compare(got, truth, bound)


def compare(got: Any, truth: Any, bound: Any) -> Outcome:
    found, wanted = numbers(got), numbers(truth)
    failed = [word for word in statuses(got) if word not in ("ok", "stopped")]
    if failed:
        return Outcome("refused", told=f"status {failed[0]}")
    if [a.shape for a in found] != [a.shape for a in wanted]:
        return Outcome(
            "wrong", math.inf, f"shapes {[a.shape for a in found]}, not {[a.shape for a in wanted]}"
        )
    bounds = list(bound) if isinstance(bound, tuple) else [bound] * len(found)
    with np.errstate(all="ignore"):
        shares = [worst(*one) for one in zip(found, wanted, bounds, strict=True)]
    share = max(shares, default=0.0)
    if share <= 1:
        return Outcome("agreed", share)
    k = shares.index(share)
    told = f"item {k}: got {found[k]}\n  should be {wanted[k]}\n  within {bounds[k]}"
    return Outcome("wrong", share, told)


def worst(found: Array, wanted: Array, bound: Any) -> float:
    """max |found - wanted| / bound; 0 where they are the same, infinities included; inf for no number."""
    error = np.where(found == wanted, 0, np.abs(found - wanted))
    share = np.where(error == 0, 0, error / np.asarray(bound, dtype=np.longdouble))
    share = np.where(np.isnan(share) | ~np.isfinite(found) & (found != wanted), np.inf, share)
    share = np.where(np.isposinf(bound) & ~np.isnan(found), 0, share)  # anything goes, but no NaN
    return float(share.max()) if share.size else 0.0


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def numbers(value: Any) -> list[Array]:
    return [real(one) for one in leaves(value) if not is_text(one)]


def real(value: Any) -> Array:
    """In extended precision, so that no difference is lost here."""
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return array.astype(np.longdouble)


def is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind in "UO")


def statuses(value: Any) -> list[str]:
    return [
        str(word) for one in leaves(value) if is_text(one) for word in np.ravel(np.asarray(one, dtype=object))
    ]


# --- many cases -----------------------------------------------------------------------------------------


@dataclass
class Tally:
    """How the cases of a family ended."""

    count: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    share: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.count[outcome.end] += 1
        if outcome.end == "agreed":
            self.share = max(self.share, outcome.share)


def table(tallies: dict[str, Tally]) -> str:
    """One line for each family; the last column is the worst error that agreed, as a share of its bound."""
    heads = ["family", "cases", *ENDS, "worst / bound"]
    rows = [
        [name, str(sum(t.count.values())), *(str(t.count[end]) for end in ENDS), f"{t.share:.1e}"]
        for name, t in sorted(tallies.items())
    ]
    total = [sum(t.count[end] for t in tallies.values()) for end in ENDS]
    rows.append(["all", str(sum(total)), *map(str, total), ""])
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(
        row[0].ljust(widths[0]) + "".join("  " + a.rjust(w) for a, w in zip(row[1:], widths[1:], strict=True))
        for row in [heads, *rows]
    )


def report(name: str, seed: int, index: int, case: Case, outcome: Outcome) -> str:
    """What is printed of a failure: what happened, and the script that replays it."""
    title = f"{outcome.end}: {name}, seed {seed}, case {index}"
    return f"--- {title}\n{outcome.told.rstrip()}\n\n{case.snippet()}\n"
