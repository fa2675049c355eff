"""A refusal says what to do: read from the source, every message of otflow that ends in a remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "otflow"
SOURCES = sorted(PACKAGE.rglob("*.py"))
REMEDY = {"fail": 3, "require": 4, "insist": 4}  # function -> which argument the remedy is

# What tells nothing to do: another one, look again, a verb alone, larger or smaller without a number.
VERB = r"(choose|use|pass|take|try|pick|give|select|set|make|find|draw|return|compare|add)"
PRONOUN = r"( (it|them|one|one of (them|these)))?( (up|down|first|again))?"
EMPTY = re.compile(
    rf"{VERB} (another|other|others|a different|something|such|as many$|more$|fewer$|one$|it$|them$|any$)"
    rf"|{VERB} one of (these|them)$"
    r"|(check|see|look at|change|adjust|repair|inspect|correct|verify|consider|resize)\b"
    r"|(reshape|pass) [\w{}]+$"
    rf"|(reshape|rescale|scale|perturb|normalise|enlarge|shrink|mask|sort|drop|swap|exchange|project|replace"
    rf"|flatten|transpose|raise|lower|shift|expand)( or (expand|repair|replace|transpose))?{PRONOUN}$"
    r"|(choose|use|pass|take) an? (smaller|larger|later|earlier|finer|coarser|better|positive|shorter)"
    r"( one| [\w{}]+)?$"
    r"|(choose|use|take|pass) (shorter|smaller|larger|fewer|more) \w+$"
)


def tells_nothing(remedy: str) -> bool:
    return EMPTY.match(remedy.strip().rstrip(".")) is not None


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call of a function that refuses, by the name of that function."""
    for node in nodes(path):
        if isinstance(node, ast.Call):
            holder, _, name = ast.unparse(node.func).rpartition(".")
            if name in REMEDY and holder in ("", "checks", "numbers"):
                yield node, name


def words(node: ast.expr) -> str | None:
    """A text of the source; what an f-string fills in is shown as {}."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return None


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """All texts of more than one word, but for docstrings."""
    within = {id(v) for node in nodes(path) if isinstance(node, ast.JoinedStr) for v in node.values}
    within |= {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    for node in nodes(path):
        text = words(node) if isinstance(node, ast.expr) and id(node) not in within else None
        if text and " " in text:
            yield node.lineno, text


def has_remedy(call: ast.Call, name: str) -> bool:
    starred = any(isinstance(a, ast.Starred) for a in call.args)  # a rule and its remedy, handed on together
    return starred or len(call.args) > REMEDY[name] or any(k.arg == "remedy" for k in call.keywords)


@pytest.mark.thorough
def test_every_refusal_has_a_remedy() -> None:
    wrong, seen = [], 0
    for path in SOURCES:
        local = path.parent.name == "interpolation"  # `fail(words)` there makes an error of a whole sentence
        for call, name in calls(path):
            whole = local and isinstance(call.func, ast.Name)
            seen += 1
            if not (has_remedy(call, name) or (whole and "; " in (words(call.args[0]) or ""))):
                wrong.append(f"{path.relative_to(PACKAGE)}:{call.lineno}")
    assert not wrong
    assert seen > 400  # the test sees the calls


@pytest.mark.thorough
def test_every_remedy_says_what_to_do() -> None:
    """Every text of the package counts, so that a remedy is found wherever it is put together."""
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in SOURCES
        if path.name != "reproduce.py"  # whose texts are those of a page
        for line, text in texts(path)
        if any(tells_nothing(clause) for clause in text.split("; "))
    ]
    assert not wrong


@pytest.mark.parametrize(
    "remedy",
    [
        "choose another beta",
        "use one of these",
        "check the function",
        "reshape {}",
        "reshape or expand it",
        "pass as many",
        "perturb it",
        "choose a smaller p",
        "scale it down",
        "change t0, t1 or save_at",
    ],
)
def test_remedies_that_were_none_are_recognised(remedy: str) -> None:
    assert tells_nothing(remedy)


@pytest.mark.parametrize(
    "remedy",
    [
        "pass p=500 or less",
        "pass a smaller t1, 0.5 say",
        "call .to_dense() on it",
        "use Wasserstein()",
        "drop it, or pass w=None",
        "choose t1 > t0",
        "divide A by 10",
    ],
)
def test_remedies_that_can_be_followed_pass(remedy: str) -> None:
    assert not tells_nothing(remedy)
