"""Constraints for `make lowest`: the oldest version of everything that pyproject.toml promises, but torch.

Tools and torch keep the versions of constraints.txt. What those libraries bring along is left to pip, but for
what appeared after them and says nowhere that it does not fit.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEWEST = {"torch"}
TOO_NEW = ("click<8.2", "pandas<3", "pyparsing<3.3")


def lowest() -> list[str]:
    """Lines for pip, in the order of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    bounds = dict(re.findall(r"([\w-]+)>=([\w.]+)", " ".join([*project["dependencies"], *extras["xarray"]])))
    tools = {re.split(r"[>=\[]", one)[0].lower() for one in extras["dev"]} | NEWEST
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [
        *(f"{name}=={version}" for name, version in bounds.items() if name not in NEWEST),
        *(pin for pin in pins if pin.partition("==")[0].lower() in tools),
        *TOO_NEW,
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join([*lowest(), ""]))
