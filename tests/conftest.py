"""Settings for all tests, and which of them a run takes: `--quick`, `--share K/N`, `slow(but_for=...)`."""

from __future__ import annotations

import importlib
import warnings
import zlib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# torch's forward mode imports this on first use, which warns of a deprecation within torch itself.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("torch._decomp.decompositions_for_jvp")

# The same examples every time: a red run must be red again.
settings.register_profile("otflow", derandomize=True, deadline=None)
settings.load_profile("otflow")

# A docstring cannot carry a mark. Those below take more than a second.
SLOW_DOCTESTS = {
    "otflow.papers.crowd_motion.runs.on_line",
    "otflow.papers.gradient_flows.runs.infinite_path",
    "otflow.papers.gradient_flows.draw.structure",
    "otflow.papers.homogenized.closed_laws.low_temperature_paths",
    "otflow.papers.jko.runs.aggregation",
    "otflow.papers.jko.runs.attention",
    "otflow.papers.jko.runs.brackets",
    "otflow.papers.jko.runs.fokker_planck",
    "otflow.papers.jko.runs.on_line",
    "otflow.papers.stability_estimate.convex.cloud_claims",
    "otflow.papers.stability_estimate.draw.convex",
}
# Collecting their docstrings would import them: stories run in processes of their own, and the families of
# the fuzzer register themselves once.
collect_ignore = [
    path
    for folder in ("stories", "fuzz")
    for path in (Path(__file__).parent / folder).rglob("*.py")
    if not path.name.startswith("test_")
]
ROOMS = ("tests/papers", "otflow/papers")  # what stands above the library


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """torch's gradchecks draw from the global generator, whose state depends on which tests came before."""
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="The inner loop: nothing thorough, no papers, first and last case of each test.",
    )
    parser.addoption(
        "--share",
        type=share,
        metavar="K/N",
        help="Part K = 0, ..., N - 1 of the tests, by a hash of their ids.",
    )


def share(text: str) -> tuple[int, int]:
    k, n = map(int, text.split("/"))
    if not 0 <= k < n:
        raise ValueError(f"share {text}: K/N needs 0 <= K < N")
    return k, n


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        root = Path(__file__).parents[1]
        config.option.ignore = [*(config.option.ignore or []), *(str(root / room) for room in ROOMS)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Before `-m` is asked, take `slow` off the cases that it does not mean; afterwards, thin out."""
    excepted = {item.nodeid for item in items if is_excepted(item)}
    refuse_exceptions_of_nothing(items, excepted)
    for item in items:
        if item.nodeid in excepted:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "slow"]
        elif isinstance(item, pytest.DoctestItem) and item.name in SLOW_DOCTESTS:
            item.add_marker("slow")
        if isinstance(item, pytest.DoctestItem) and item.dtest is not None:
            item.dtest.globs.clear()  # examples are read alone, so they import what they use
    yield
    if config.getoption("quick"):
        keep(config, items, quick(items))
    if part := config.getoption("share"):
        k, n = part
        keep(config, items, [item for item in items if zlib.crc32(item.nodeid.encode()) % n == k])


def is_excepted(item: pytest.Item) -> bool:
    """Whether `slow(but_for=[...])` leaves this case in: the patterns are those of file names."""
    mark, case = item.get_closest_marker("slow"), item.nodeid.partition("[")[2][:-1]
    return mark is not None and any(fnmatchcase(case, one) for one in mark.kwargs.get("but_for", ()))


def refuse_exceptions_of_nothing(items: list[pytest.Item], excepted: set[str]) -> None:
    """A case that was renamed must not fall asleep among the slow ones."""
    for name, cases in by_function(items).items():
        mark = cases[0].get_closest_marker("slow")
        if mark and "but_for" in mark.kwargs and cases[1:] and not any(c.nodeid in excepted for c in cases):
            raise pytest.UsageError(f"{name}: but_for= means none of {[case.name for case in cases]}")


def by_function(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return functions


def quick(items: list[pytest.Item]) -> list[pytest.Item]:
    """The first and the last case of each function that is not thorough."""
    fast = by_function(item for item in items if not item.get_closest_marker("thorough"))
    return [case for cases in fast.values() for case in (cases[0], *cases[1:][-1:])]


def keep(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    ids = {item.nodeid for item in chosen}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in ids])
    items[:] = chosen
