"""Progress bars say how far a run is, in every place, and warn nobody."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest

from otflow.base import progress


def test_a_bar_is_shown_only_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (False, True):
        with progress.bar(3, "walk", "steps", progress=wanted) as bar:
            bar.update(3)
        assert ("3/3 steps" in capsys.readouterr().err) == wanted


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)


def test_a_notebook_without_widgets_gets_text_and_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", SimpleNamespace())  # by this newer versions know
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    forget(monkeypatch)
    with pytest.warns(Warning, match="IProgress not found"):
        importlib.import_module("tqdm.auto")
    forget(monkeypatch)
    progress._kind.cache_clear()
    bar = progress.bar(1, "walk", "steps", progress=True)  # warnings are errors
    progress._kind.cache_clear()
    assert not bar.disable
    bar.close()
