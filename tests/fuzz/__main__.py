"""`make fuzz`: new cases for a while, then the table of how they ended. Exit status 1 if any is a fault."""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatchcase

from tests.fuzz.engine import FAMILIES, GOOD, Tally, draw, judge, report, table
from tests.fuzz.families import LOADED

SHOWN = 3  # failures printed for each family: the rest is counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long")
    parser.add_argument("--seed", type=int, default=1, help="0 is what the tests take")
    parser.add_argument("--family", default="*", help="patterns, as for file names, with commas")
    asked = parser.parse_args()
    patterns = asked.family.split(",")
    names = [name for name in sorted(FAMILIES) if any(fnmatchcase(name, one) for one in patterns)]
    if not names:
        parser.error(f"no family is called {asked.family}; there are {', '.join(sorted(FAMILIES))}")
    tallies, spent = {name: Tally() for name in names}, dict.fromkeys(names, 0.0)
    start = now = time.monotonic()
    while now < start + asked.seconds:
        name = min(names, key=spent.__getitem__)  # as much time for each: quick families get more cases
        one(name, asked.seed, sum(tallies[name].count.values()), tallies[name])
        before, now = now, time.monotonic()
        spent[name] += now - before
    ended = f"seed {asked.seed}, {now - start:.0f} s, {len(LOADED)} files of families"
    sys.stdout.write(f"{table(tallies)}\n{ended}\n")
    return int(any(t.count[end] for t in tallies.values() for end in t.count if end not in GOOD))


def one(name: str, seed: int, index: int, tally: Tally) -> None:
    case = draw(name, seed, index)
    outcome = judge(case)
    tally.add(outcome)
    if outcome.end not in GOOD and sum(tally.count[end] for end in tally.count if end not in GOOD) <= SHOWN:
        sys.stdout.write(report(name, seed, index, case, outcome) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
