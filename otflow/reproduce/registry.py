"""The registry of experiments: a table of words, and what other packages announce by an entry point.

Listing loads nothing. Our own experiments stand in a table (`otflow.papers`); another package adds one by
an entry point of the group `otflow.papers`, whose value is a module like ours, with a function `run`. What
others announce may be wrong in every way: it is listed as it stands, and fails when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, distributions
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from otflow.reproduce.frame import Experiment

GROUP = "otflow.papers"


class Entry(NamedTuple):
    """Where an experiment lives, and what the list of experiments says about it."""

    module: str
    title: str
    source: str


@dataclass(frozen=True)
class Registry:
    """Experiments by name: `own` in running order, then those of other packages, alphabetically."""

    own: Mapping[str, Entry]

    @cached_property
    def foreign(self) -> dict[str, EntryPoint]:
        """What other packages announce; a name that is taken stays with whom it belongs to."""
        found: dict[str, EntryPoint] = {}
        for point in _points():
            if _is_name(point.name) and point.name not in self.own:
                found.setdefault(point.name, point)
        return found

    def names(self) -> tuple[str, ...]:
        """Our own experiments, in running order: those that 'all' means."""
        return tuple(self.own)

    def __contains__(self, name: str) -> bool:
        return name in self.own or name in self.foreign

    def __getitem__(self, name: str) -> Entry:
        if name in self.own:
            return self.own[name]
        if name in self.foreign:
            return _announced(self.foreign[name])
        raise ValueError(self.unknown(name))

    def __iter__(self) -> Iterator[str]:
        """Every name that can be asked for."""
        return iter((*self.own, *sorted(self.foreign)))

    def unknown(self, name: str) -> str:
        """What to tell somebody who asked for an experiment that does not exist."""
        from difflib import get_close_matches

        near = get_close_matches(name, list(self), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"unknown experiment {name!r}.{hint} The experiments are: {', '.join(self)}."

    def load(self, name: str) -> Experiment:
        """Import the experiment `name`: a module with a docstring and a function `run`."""
        return cast("Experiment", import_module(self[name].module))


def _points() -> Iterator[EntryPoint]:
    """Package by package, so that one whose metadata cannot be read hides no other."""
    for package in distributions():
        with suppress(Exception):
            yield from [point for point in package.entry_points if point.group == GROUP]


def _is_name(name: str) -> bool:
    """Whether results can lie in a folder of this name."""
    from otflow.reproduce.claim import FILE_NAME

    return FILE_NAME.fullmatch(name) is not None and name != "all"


def _announced(point: EntryPoint) -> Entry:
    """What is known of a foreign experiment before any of its code has run."""
    package = "(without metadata)"
    with suppress(Exception):
        if point.dist:
            package = f"{point.dist.metadata['Name']} {point.dist.metadata['Version']}"
    return Entry(point.value, f"an experiment of the package {package}", point.value)
