"""The registry lists experiments without loading them, and what it lists exists."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from otflow import papers
from otflow.reproduce.claim import FILE_NAME


@pytest.mark.parametrize("name", papers.REGISTRY.names())
def test_a_registered_experiment_can_be_loaded_and_run(name: str) -> None:
    assert list(inspect.signature(papers.REGISTRY.load(name).run).parameters) == ["frame"]


@pytest.mark.parametrize("name", papers.REGISTRY.names())
def test_the_title_is_the_first_line_of_the_docstring(name: str) -> None:
    first = (papers.REGISTRY.load(name).__doc__ or "").partition("\n")[0]
    assert first.rstrip(".") == papers.REGISTRY[name].title.rstrip(".")


@pytest.mark.parametrize("name", papers.REGISTRY.names())
def test_the_name_can_be_a_folder_and_is_not_the_word_for_everything(name: str) -> None:
    assert FILE_NAME.fullmatch(name)
    assert name != "all"


@pytest.mark.parametrize("name", papers.REGISTRY.names())
def test_the_source_can_be_looked_up(name: str) -> None:
    assert papers.REGISTRY[name].source.strip()


def test_an_unknown_name_raises_with_the_nearest_one() -> None:
    with pytest.raises(
        ValueError, match=r"unknown experiment 'atention-flows'\. Did you mean 'attention-flows'"
    ):
        papers.REGISTRY.load("atention-flows")


def test_a_name_like_no_other_gets_the_list_but_no_suggestion() -> None:
    message = papers.REGISTRY.unknown("zzz")
    assert "Did you mean" not in message
    assert "attention-flows" in message


def test_listing_the_experiments_imports_none_of_them_and_nothing_heavy() -> None:
    code = (
        "import sys; from otflow import papers; import otflow.reproduce.claim; papers.REGISTRY.names();"
        "modules = {entry.module for entry in papers.REGISTRY.own.values()};"
        "modules |= {'torch', 'numpy', 'matplotlib', 'scipy'};"
        "print(sorted(modules & sys.modules.keys()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
