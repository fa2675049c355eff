"""Results on disk: figures, data and claims of each experiment, and one page that shows them all.

Every file is written under a temporary name and then renamed, so a crash leaves no half-written file.
The page needs no network and no script: images are embedded, text is escaped.
"""

from __future__ import annotations

import base64
import json
import math
import os
import textwrap
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otflow import __version__
from otflow.reproduce.claim import Claim, Figure, Result, Value, Verdict, show

if TYPE_CHECKING:
    import numpy as np

PNG_DPI = 200


@dataclass(frozen=True, kw_only=True)
class Section:
    """One experiment as the page shows it; `error` is the last line of a traceback, or empty."""

    name: str
    title: str
    source: str
    prose: str
    claims: Sequence[Claim] = ()
    pictures: Mapping[str, Path] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Nothing crashed and no claim fails."""
        return not self.error and all(claim.verdict is not Verdict.FAILS for claim in self.claims)


def write_claims(folder: Path, claims: Sequence[Claim], *, quick: bool) -> None:
    """Write `claims.json`, with what a reader needs to know where the numbers come from."""
    document = {
        "experiment": folder.name,
        "otflow": __version__,
        "quick": quick,
        "claims": [{key: _json_value(value) for key, value in asdict(claim).items()} for claim in claims],
    }
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(folder / "claims.json", text + "\n")


def write_data(folder: Path, data: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write `data.npz`, the format of `numpy.savez_compressed`, without pickle and with any key."""
    import numpy as np

    with (
        replacing(folder / "data.npz") as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, array in data.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def write_figure(folder: Path, name: str, figure: Figure) -> Path:
    """Write `name`.png and `name`.svg; the path of the former."""
    with replacing(folder / f"{name}.svg") as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})
    with replacing(folder / f"{name}.png") as temporary:
        figure.savefig(temporary, format="png", dpi=PNG_DPI)
    return folder / f"{name}.png"


def write_result(folder: Path, result: Result, *, quick: bool) -> dict[str, Path]:
    """Write everything an experiment handed back; the pictures for the page, by name."""
    write_claims(folder, result.claims, quick=quick)
    write_data(folder, result.data)
    return {name: write_figure(folder, name, figure) for name, figure in result.figures.items()}


def write_page(out: Path, sections: Sequence[Section], *, quick: bool, note: str = "") -> Path:
    """Write `index.html` in `out` and return its path."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("otflow.reproduce"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(show=show, data_uri=_data_uri, prose=_paragraphs, slug=_slug)
    page = environment.get_template("report.html").render(
        sections=sections,
        summary=summary(sections),
        succeeded=all(section.succeeded for section in sections),
        note=note,
        quick=quick,
        version=__version__,
        date=datetime.now(UTC),
    )
    write_text(out / "index.html", page)
    return out / "index.html"


def summary(sections: Sequence[Section]) -> str:
    """One line that counts the verdicts.

    >>> from otflow.reproduce.report import summary
    >>> summary([])
    '0 claims in 0 experiments.'
    """
    verdicts = Counter(claim.verdict for section in sections for claim in section.claims)
    crashed = sum(bool(section.error) for section in sections)
    total = f"{_count(verdicts.total(), 'claim')} in {_count(len(sections), 'experiment')}"
    parts = [
        f"{verdicts[Verdict.HOLDS]} {'holds' if verdicts[Verdict.HOLDS] == 1 else 'hold'}",
        f"{_count(verdicts[Verdict.ERRATUM], 'erratum', 'errata')} found",
        f"{verdicts[Verdict.FAILS]} {'fails' if verdicts[Verdict.FAILS] == 1 else 'fail'}",
        f"{_count(crashed, 'experiment')} crashed",
    ]
    said = [part for part in parts if not part.startswith("0 ")]
    return f"{total}{': ' if said else ''}{', '.join(said)}."


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, all of it or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place on success and vanishes on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _json_value(value: Value) -> Value:
    """JSON has no NaN and no infinity: those are written as words."""
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _data_uri(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode("ascii")


def _slug(verdict: Verdict) -> str:
    return verdict.name.lower()


def _paragraphs(text: str) -> list[tuple[bool, str]]:
    """Split at blank lines; the flag marks what is indented throughout, a formula to be kept as typed.

    >>> from otflow.reproduce.report import _paragraphs
    >>> _paragraphs("Words.\\n\\n    x = 1")
    [(False, 'Words.'), (True, 'x = 1')]
    """
    blocks = [block for block in text.split("\n\n") if block.strip()]
    kept = [all(line.startswith("  ") for line in block.splitlines() if line.strip()) for block in blocks]
    return [
        (flag, textwrap.dedent(block).strip("\n") if flag else " ".join(block.split()))
        for flag, block in zip(kept, blocks, strict=True)
    ]
