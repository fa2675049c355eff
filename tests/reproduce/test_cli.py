"""The program otflow: exit codes, messages, what it leaves on disk, and how fast it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from otflow import __version__, cli
from otflow.cli import main
from tests import fakes

HEAVY = ("torch", "matplotlib", "jinja2", "scipy", "numpy")
PROGRAM = Path(sys.executable).with_name("otflow")


@pytest.fixture(autouse=True)
def fake_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "REGISTRY", fakes.registry("good", "failing", "crashing"))
    for name, module in fakes.modules().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Register other fake experiments than the usual ones."""
    return lambda *names: monkeypatch.setattr(cli, "REGISTRY", fakes.registry(*names))


def exit_code(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def in_a_process(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


@pytest.mark.thorough
def test_the_script_and_the_module_are_the_same_program() -> None:
    script = in_a_process(PROGRAM, "reproduce", "--help")
    module = in_a_process(sys.executable, "-m", "otflow", "reproduce", "--help")
    assert script.stdout == module.stdout
    assert "Usage: otflow reproduce" in script.stdout


def test_version_is_that_of_the_package() -> None:
    answer = in_a_process(sys.executable, "-m", "otflow", "--version")
    assert (answer.stdout, answer.returncode) == (f"otflow {__version__}\n", 0)


def test_a_wrong_name_exits_with_2_in_a_real_process(tmp_path: Path) -> None:
    answer = in_a_process(PROGRAM, "reproduce", "attention-flow", "--out", tmp_path / "out")
    assert answer.returncode == 2
    assert "Did you mean 'attention-flows'?" in answer.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("reproduce") == 0
    listing = capsys.readouterr().out
    for name, entry in cli.REGISTRY.own.items():
        assert all(word in listing for word in (name, entry.title, entry.source))


def test_claims_that_hold_exit_with_0_and_everything_is_written(tmp_path: Path) -> None:
    assert exit_code("reproduce", "good", "--out", tmp_path) == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    names = {"claims.json", "data.npz", "two_clouds.png", "two_clouds.svg"}
    assert written == {f"good/{name}" for name in names} | {"index.html"}


def test_the_data_load_without_pickle(tmp_path: Path) -> None:
    exit_code("reproduce", "good", "--out", tmp_path)
    with np.load(tmp_path / "good" / "data.npz", allow_pickle=False) as data:
        assert {name: data[name].tolist() for name in data} == {"file": [0.0, 1.0, 2.0]}


def test_the_terminal_shows_predicted_against_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code("reproduce", "failing", "--out", tmp_path)
    table = capsys.readouterr().out
    rows = [line.split()[:4] for line in table.splitlines() if line.startswith("  ") and "mass" in line]
    assert rows == [["holds", "1", "1", "exact"], ["fails", "1", "2", "exact"]]
    assert "2 claims in 1 experiment: 1 holds, 1 fails." in table


def test_quick_is_handed_to_the_experiment_and_noted(tmp_path: Path) -> None:
    exit_code("reproduce", "good", "--quick", "--out", tmp_path)
    document = json.loads((tmp_path / "good" / "claims.json").read_text(encoding="utf-8"))
    assert document["quick"] is True
    assert document["claims"][1]["statement"] == "quick"


def test_a_failing_claim_exits_with_1(tmp_path: Path) -> None:
    assert exit_code("reproduce", "failing", "--out", tmp_path) == 1


def test_an_erratum_counts_as_success(tmp_path: Path, offer: Callable[..., None]) -> None:
    offer("erratum")
    assert exit_code("reproduce", "erratum", "--out", tmp_path) == 0
    assert "1 erratum found" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_after_a_crash_the_others_run_and_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("reproduce", "crashing", "good", "--out", tmp_path) == 1
    message = "FloatingPointError: the cloud left the plane"
    assert message in capsys.readouterr().err
    assert message in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert message in (tmp_path / "crashing" / "traceback.txt").read_text(encoding="utf-8")
    assert (tmp_path / "good" / "claims.json").exists()


def test_a_figure_that_cannot_be_drawn_costs_neither_claims_nor_exit_code(
    tmp_path: Path, offer: Callable[..., None]
) -> None:
    offer("unwritable")
    assert exit_code("reproduce", "unwritable", "--out", tmp_path) == 1
    assert (tmp_path / "unwritable" / "claims.json").exists()
    assert "ZeroDivisionError" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not leftovers(tmp_path)


def test_a_crash_removes_the_verdicts_of_an_earlier_run(tmp_path: Path) -> None:
    stale = tmp_path / "crashing" / "claims.json"
    stale.parent.mkdir()
    stale.write_text("{}")
    exit_code("reproduce", "crashing", "--out", tmp_path)
    assert not stale.exists()


def test_a_success_removes_the_traceback_of_an_earlier_run(tmp_path: Path) -> None:
    stale = tmp_path / "good" / "traceback.txt"
    stale.parent.mkdir()
    stale.write_text("old")
    exit_code("reproduce", "good", "--out", tmp_path)
    assert not stale.exists()


def test_a_module_that_cannot_be_imported_is_a_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offer: Callable[..., None]
) -> None:
    offer("absent")
    assert exit_code("reproduce", "absent", "--out", tmp_path) == 1
    assert "ModuleNotFoundError: No module named 'fake_absent'" in capsys.readouterr().err


def test_all_runs_every_experiment_once(tmp_path: Path, offer: Callable[..., None]) -> None:
    offer("erratum", "good")
    assert exit_code("reproduce", "good", "all", "good", "--out", tmp_path) == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert [page.count(f'<section id="{name}">') for name in ("erratum", "good")] == [1, 1]


def test_every_wrong_name_is_reported_and_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("reproduce", "god", "good", "fayling", "--out", tmp_path) == 2
    message = capsys.readouterr().err
    assert "unknown experiment 'god'. Did you mean 'good'?" in message
    assert "unknown experiment 'fayling'. Did you mean 'failing'?" in message
    assert "good, failing, crashing" in message
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_is_a_file_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("mine")
    assert exit_code("reproduce", "good", "--out", tmp_path / "taken") == 2
    assert "--out" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_an_out_that_is_not_writable_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert exit_code("reproduce", "good", "--out", tmp_path) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_a_file_in_the_place_of_an_experiments_folder_is_a_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good").write_text("mine")
    assert exit_code("reproduce", "good", "--out", tmp_path) == 1
    assert "NotADirectoryError" in capsys.readouterr().err
    assert (tmp_path / "good").read_text() == "mine"


def test_after_an_interrupt_what_was_finished_is_written(tmp_path: Path, offer: Callable[..., None]) -> None:
    offer("good", "interrupted", "erratum")
    assert exit_code("reproduce", "all", "--out", tmp_path) == 130
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "The good experiment" in page
    assert "Interrupted before these experiments were finished: interrupted, erratum." in page
    assert not (tmp_path / "erratum").exists()


def test_without_arguments_the_program_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code()
    shown = capsys.readouterr()
    assert "Usage: otflow" in shown.out + shown.err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from otflow.cli import main\n"
        "try: main(['--help'])\n"
        f"finally: print(sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)"
    ).replace(repr(HEAVY), repr(set(HEAVY)))
    assert in_a_process(sys.executable, "-c", code).stderr.strip() == "[]"


def test_importing_otflow_does_not_import_torch() -> None:
    code = f"import sys, otflow; print(sorted({set(HEAVY)!r} & sys.modules.keys()))"
    assert in_a_process(sys.executable, "-c", code).stdout.strip() == "[]"


def best_seconds(*command: str | Path, repeats: int = 7) -> float:
    """The least wall time of several runs: what the program needs when nothing disturbs it."""

    def durations() -> Iterator[float]:
        for _ in range(repeats):
            started = time.perf_counter()
            subprocess.run(
                command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            yield time.perf_counter() - started

    return min(durations())


@pytest.mark.thorough
def test_help_answers_within_400_ms() -> None:
    assert best_seconds(PROGRAM, "--help") < 0.4


def test_importing_otflow_takes_less_than_100_ms() -> None:
    start = best_seconds(sys.executable, "-c", "pass")
    assert best_seconds(sys.executable, "-c", "import otflow") - start < 0.1
