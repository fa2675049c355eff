"""Experiments of other packages: listed without being imported, run when asked for, harmless when broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import otflow
from otflow import papers

ROOT = Path(otflow.__file__).parents[1]
MODULES = {
    "stranger_good": '''"""A stranger's experiment.

    x = 1
"""

from pathlib import Path

from otflow.reproduce.claim import Result, Source

Path(__file__).with_suffix(".imported").touch()


def run(frame):
    return Result(claims=[Source("Stranger 2025")("the mass is one").equal(1.0, 1.0)], figures={}, data={})
''',
    "stranger_raises": 'raise ImportError("no such thing as a free lunch")\n',
    "stranger_exits": "import sys\n\nsys.exit(0)\n",
    "stranger_empty": "",
}
POINTS = """[otflow.papers]
foreign-good = stranger_good
foreign-missing = stranger_missing
foreign-raises = stranger_raises
foreign-exits = stranger_exits
foreign-empty = stranger_empty
foreign-nonsense = :: not a module !
foreign-nothing =
foreign-relative = .stranger_good
attention-flows = stranger_good
all = stranger_good
../outside = stranger_good
"""
BROKEN = ("missing", "raises", "exits", "empty", "nonsense", "nothing", "relative")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages: modules, and the metadata that announce them."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    install(folder, "stranger", POINTS, "Metadata-Version: 2.1\nName: stranger\nVersion: 1.2\n")
    return folder


def install(folder: Path, name: str, points: str, metadata: str | None) -> None:
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    if metadata is not None:
        (info / "METADATA").write_text(metadata, encoding="utf-8")


def reproduce(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return in_a_process(site, "-m", "otflow", "reproduce", *arguments)


def in_a_process(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def imported(site: Path) -> bool:
    return (site / "stranger_good.imported").exists()


def test_a_foreign_experiment_is_listed_with_its_package_and_not_imported(site: Path) -> None:
    listing = reproduce(site)
    assert (listing.returncode, listing.stderr) == (0, "")
    assert (
        "foreign-good\n    an experiment of the package stranger 1.2\n    stranger_good\n" in listing.stdout
    )
    assert not imported(site)


def test_broken_ones_are_lines_of_the_list(site: Path) -> None:
    names = [line for line in reproduce(site).stdout.splitlines() if line and not line.startswith(" ")]
    assert names[: len(papers.REGISTRY.own)] == list(papers.REGISTRY.own)
    assert names[len(papers.REGISTRY.own) : -1] == sorted(f"foreign-{kind}" for kind in ("good", *BROKEN))


def test_metadata_that_cannot_be_read_hide_no_other_package(site: Path) -> None:
    install(site, "aaa", "[otflow.papers]\nno value at all\n", "Name: aaa\n")
    install(site, "nameless", "[otflow.papers]\nforeign-nameless = stranger_good\n", None)
    install(site, "zzz", "foreign-early = before_any_group\n[otflow.papers\n", "")
    (site / "zzz-1.2.dist-info" / "entry_points.txt").write_bytes(b"[otflow.papers]\nx = \xff\n")
    listing = reproduce(site)
    assert (listing.returncode, listing.stderr) == (0, "")
    assert "foreign-good\n" in listing.stdout
    assert "foreign-nameless\n    an experiment of the package" in listing.stdout


def test_asking_for_its_name_runs_it(site: Path) -> None:
    answer = reproduce(site, "foreign-good", "--out", "out")
    assert answer.returncode == 0, answer.stderr
    assert "the mass is one" in answer.stdout
    assert imported(site)
    assert (site.parent / "out" / "foreign-good" / "claims.json").exists()


def test_broken_ones_fail_by_themselves_and_the_others_run(site: Path) -> None:
    asked = [f"foreign-{kind}" for kind in BROKEN]
    answer = reproduce(site, *asked, "foreign-good", "--out", "out")
    assert answer.returncode == 1
    assert "Traceback" not in answer.stdout + answer.stderr
    assert [line.split(" in ")[0] for line in answer.stdout.splitlines()[: len(asked) + 1]] == [
        *(f"{name}: crashed" for name in asked),
        "foreign-good: done",
    ]
    assert "no such thing as a free lunch" in answer.stderr


def test_all_means_ours_and_a_name_of_ours_stays_ours(site: Path) -> None:
    code = "from otflow import cli; print(*(cli.REGISTRY[one].module for one in cli._resolve(['all'])))"
    answer = in_a_process(site, "-c", code)
    assert answer.stdout.split() == [entry.module for entry in papers.REGISTRY.own.values()]
    assert not imported(site)


def test_a_name_that_is_no_folder_cannot_be_asked_for(site: Path) -> None:
    answer = reproduce(site, "../outside", "--out", "out")
    assert answer.returncode == 2
    assert "unknown experiment" in answer.stderr
