"""The page and the files: self-contained, escaped, complete or absent."""

from __future__ import annotations

import base64
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otflow import __version__
from otflow.reproduce import report
from otflow.reproduce.claim import Claim, Source, Verdict
from tests import fakes

HOSTILE = '<script>alert("x")</script>'


def section(folder: Path, *claims: Claim, **changes: Any) -> report.Section:
    words: dict[str, Any] = {"name": "good", "title": "A title", "source": "Nobody 2025", "prose": "Prose."}
    pictures = report.write_result(folder, fakes.result(*claims), quick=False)
    return report.Section(**words | changes, claims=claims or (fakes.claim(),), pictures=pictures)


def page(out: Path, *sections: report.Section, quick: bool = False) -> str:
    return report.write_page(out, sections, quick=quick).read_text(encoding="utf-8")


class Elements(HTMLParser):
    """All start tags of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_needs_no_network_and_no_script(tmp_path: Path) -> None:
    elements = Elements(page(tmp_path, section(tmp_path / "a"), section(tmp_path / "b"))).found
    links = [
        value for _, attrs in elements for key, value in attrs.items() if key in {"src", "href", "srcset"}
    ]
    assert len(links) == 4
    assert all(link.startswith(("data:", "#")) for link in links if link)
    assert not {tag for tag, _ in elements} & {"script", "link", "iframe", "object", "embed"}


def test_the_style_loads_nothing(tmp_path: Path) -> None:
    style = re.search(r"<style>(.*)</style>", page(tmp_path, section(tmp_path / "a")), re.DOTALL)
    assert style is not None
    assert not re.search(r"url\(|@import|https?:", style[1])


def test_the_picture_on_the_page_is_the_one_on_disk(tmp_path: Path) -> None:
    text = page(tmp_path, section(tmp_path / "good"))
    embedded = re.search(r'src="data:image/png;base64,([^"]+)"', text)
    assert embedded is not None
    assert base64.b64decode(embedded[1]) == (tmp_path / "good" / "two_clouds.png").read_bytes()


def test_hostile_text_is_escaped_wherever_it_appears(tmp_path: Path) -> None:
    claim = Source(HOSTILE)(HOSTILE).equal(HOSTILE, HOSTILE)
    changes = dict.fromkeys(("name", "title", "source", "prose", "error"), HOSTILE)
    text = page(tmp_path, section(tmp_path / "a", claim, **changes), section(tmp_path / "b"))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 9
    assert "script" not in {tag for tag, _ in Elements(text).found}


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_is_worded_and_coloured(tmp_path: Path, verdict: Verdict) -> None:
    claim = Claim(statement="s", source="t", predicted=1.0, measured=1.0, tolerance="exact", verdict=verdict)
    text = page(tmp_path, section(tmp_path / "a", claim))
    assert f'<span class="verdict {verdict.name.lower()}">{verdict}</span>' in text
    assert f".{verdict.name.lower()} {{ color: var(--{verdict.name.lower()})" in text


def test_a_claim_shows_all_its_parts(tmp_path: Path) -> None:
    claim = Source("Nobody, (3.2)")("it decays").equal(1 / 3, 0.3334, rtol=1e-3)
    text = page(tmp_path, section(tmp_path / "a", claim))
    for part in ("it decays", "Nobody, (3.2)", "0.333333", "0.3334", "relative 0.001", "holds"):
        assert part in text


def test_the_prose_keeps_formulas_and_code(tmp_path: Path) -> None:
    text = page(tmp_path, section(tmp_path / "a", prose="\nOne ``flow``\nline.\n\n    x' = -x\n      y\n"))
    assert "<p>One <code>flow</code> line.</p>" in text
    assert "<pre>x&#39; = -x\n  y</pre>" in text


def test_a_quick_run_is_marked_as_such(tmp_path: Path) -> None:
    assert "A quick run" in page(tmp_path, quick=True)
    assert "A quick run" not in page(tmp_path, quick=False)


def test_the_page_adapts_to_dark_mode_and_small_screens(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "prefers-color-scheme: dark" in text
    assert '<meta name="viewport" content="width=device-width' in text


def test_the_page_names_the_version_and_the_date(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert f"otflow {__version__}" in text
    assert re.search(r'<time datetime="\d{4}-\d\d-\d\dT', text)


def test_claims_survive_the_way_to_disk_and_back(tmp_path: Path) -> None:
    claims = [
        fakes.claim(),
        Source("Euler")("π").equal("ok", "blow_up"),
        Source("Nobody")("bound").at_most(0.1, 0.1 + 1e-17, slack=0.5),
        Source("Nobody")("rate").erratum(printed=2.0, corrected=1.0, measured=1.0),
    ]
    report.write_claims(tmp_path, claims, quick=False)
    entries = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["claims"]
    assert [Claim(**(entry | {"verdict": Verdict(entry["verdict"])})) for entry in entries] == claims


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_claims_with_broken_numbers_are_still_valid_json(tmp_path: Path, value: float) -> None:
    report.write_claims(tmp_path, [fakes.claim(measured=value)], quick=False)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = (tmp_path / "claims.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse)["claims"][0]["measured"] == str(value)


def test_data_keep_dtype_shape_and_any_key(tmp_path: Path) -> None:
    data = {
        "file": np.arange(6, dtype=np.float32).reshape(2, 3),
        "allow_pickle": np.array(7),
        "words": np.array(["a", "bc"]),
        "transposed": np.arange(6).reshape(2, 3).T,
        "empty": np.zeros((0, 2)),
    }
    report.write_data(tmp_path, data)
    with np.load(tmp_path / "data.npz", allow_pickle=False) as loaded:
        assert set(loaded) == set(data)
        for name, array in data.items():
            assert loaded[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[name], array)


def test_figures_are_written_as_png_and_svg(tmp_path: Path) -> None:
    report.write_figure(tmp_path, "cloud", fakes.picture())
    assert (tmp_path / "cloud.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "cloud.svg").read_text(encoding="utf-8")


def test_a_crash_while_writing_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")

    def crash() -> None:
        with report.replacing(target) as temporary:
            temporary.write_text("half of the n")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        crash()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file.txt", "old")]


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        ([1.0], "1 claim in 1 experiment: 1 holds."),
        ([1.0, 1.0], "2 claims in 1 experiment: 2 hold."),
        ([1.0, 2.0, 2.0], "3 claims in 1 experiment: 1 holds, 2 fail."),
        ([1.0] * 10, "10 claims in 1 experiment: 10 hold."),
    ],
)
def test_the_summary_counts_and_inflects(measured: list[float], line: str) -> None:
    claims = [fakes.claim(measured=value) for value in measured]
    one = report.Section(name="a", title="", source="", prose="", claims=claims)
    assert report.summary([one]) == line


def test_the_summary_counts_crashes() -> None:
    crashed = report.Section(name="a", title="", source="", prose="", error="ValueError: no")
    assert report.summary([crashed, crashed]) == "0 claims in 2 experiments: 2 experiments crashed."
    assert not crashed.succeeded
