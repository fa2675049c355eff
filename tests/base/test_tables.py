"""What notebooks show: a table of every object that people look at, and a small picture of most."""

from __future__ import annotations

from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import otflow as of
from otflow.base.tables import named, shown, table
from otflow.reproduce.claim import Source
from tests.samples import normal

MU, NU = of.Particles(normal(5, 2)), of.Particles(normal(4, 2))
FIELD = of.SoftmaxAttention(np.eye(2), np.eye(2), -np.eye(2))
PULL = of.SteepestDescent(of.QuadraticPotential(np.eye(2)), of.Wasserstein())
X = (np.arange(4) + 0.5) / 4
SHOWN = {
    "particles": (MU, "standard deviation"),
    "batch": (of.Particles(normal(3, 5, 2)), "(3,)"),
    "gaussian": (of.Gaussian([0.0, 3.0], cov=np.diag([4.0, 1.0])), "0, 3"),
    "grid": (of.Grid(np.ones(4), [X]), "0.5"),
    "quantiles": (of.Quantiles([0.0, 1.0], [0.0, 1.0]), "0.5"),
    "plan": (of.solve(MU, NU), "gap"),
    "entropic plan": (of.sinkhorn(MU, NU, 1.0), "regularised cost"),
    "trajectory": (
        of.flow(MU, FIELD, of.RK4(), t1=1.0, dt=0.5, observe={"r": of.observables.radius}),
        "r, at the end",
    ),
    "ladder": (of.ladder(MU, FIELD, t1=0.2, steps=2), "log C, adversary"),
    "balance": (of.energy_balance(of.flow(MU, PULL, of.Euler(), t1=0.2, dt=0.1), PULL), "relative residual"),
    "claim": (Source("Euler 1735")("a < b").equal(1.0, 1.0), "holds"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_shows_a_table(name: str) -> None:
    thing, word = SHOWN[name]
    html = thing._repr_html_()
    assert word in html
    rows = list(ElementTree.fromstring(html).iter("tr"))  # well-formed
    assert len(rows) >= 2
    assert all(len(row) == 2 for row in rows)


@pytest.mark.parametrize(
    ("values", "words"), [(-0.0, "0"), (1 / 3, "0.333333"), (torch.zeros(40, 3), "an array (40, 3)")]
)
def test_a_value_is_shown_in_few_words(values: object, words: str) -> None:
    assert shown(values) == words


@pytest.mark.parametrize(
    ("f", "word"),
    [(len, "len"), (lambda x: x, "lambda"), (partial(max, 1), "max"), (torch.nn.Linear(1, 1), "Linear")],
)
def test_a_function_has_one_word(f: object, word: str) -> None:
    assert named(f) == word


def test_words_of_the_user_are_escaped() -> None:
    assert "<b>" not in table("<b>", {"<b>": "<b>"})


def test_a_failed_batch_counts_its_statuses() -> None:
    mu = of.Particles(torch.tensor([[[0.1]], [[3.0]]], dtype=torch.float64))
    run = of.flow(mu, of.UnnormalisedAttention(*[[[1.0]]] * 3), of.Dopri5(), t1=0.05)
    assert "ok x 1, blow_up x 1" in run._repr_html_()
