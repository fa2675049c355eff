"""Thumbnails: small, readable on any ground, and never the reason why a repr fails."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

import otflow as of
from otflow.plot import thumbnails
from tests import zoo
from tests.samples import normal, unit

EYE = np.eye(2)
FIELD = of.SoftmaxAttention(EYE, EYE, -EYE)
PULL = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
X = (np.arange(200) + 0.5) / 200
HUMP = of.Grid.from_function(lambda x: np.exp(-40 * (x - 0.5) ** 2), [X])


class Cross(of.Particles):
    """A kind of measure of its own."""


def run(mu: of.Measure) -> of.Trajectory:
    return of.flow(mu, FIELD, of.Euler(), t1=1.0, dt=0.1)


SHOWN: dict[str, Callable[[], object]] = {
    **zoo.MEASURES,
    "many tokens": lambda: of.Particles(normal(100_000, 2)),
    "many members": lambda: of.Particles(normal(50, 20, 5, 2)),
    "one token": lambda: of.Particles([[1.0, 2.0]]),
    "one number": lambda: of.Particles([[1.0]]),
    "far apart": lambda: of.Particles([[1e300, 0.0], [-1e300, 1.0]]),
    "a point": lambda: of.Gaussian([0.0, 1.0], root=np.zeros((2, 1))),
    "a line": lambda: of.Gaussian([0.0], cov=[[2.0]]),
    "laws": lambda: of.Gaussian(normal(300, 2), root=normal(300, 2, 2)),
    "graph": lambda: of.Particles(torch.ones(3, 2, dtype=torch.float64, requires_grad=True)),
    "single precision": lambda: of.Particles(np.ones((3, 2), dtype=np.float32)),
    "hump": lambda: HUMP,
    "image": lambda: of.Grid(np.ones((300, 200)), [(np.arange(300) + 0.5) / 300, X]),
    "images": lambda: of.Grid(np.ones((4, 200, 200)), [X, X]),
    "quantiles": lambda: of.Quantiles.from_ppf(lambda s: s**2, 2000),
    "a peak": lambda: of.Quantiles([0.0, 1e-9, 1.0], [0.0, 0.5, 1.0]),
    "own kind": lambda: Cross([[1.0, 2.0]]),
    "trajectory": lambda: run(of.Particles(normal(400, 2))),
    "trajectory of a batch": lambda: run(of.Particles(normal(3, 20, 2))),
    "trajectory on a sphere": lambda: of.flow(
        of.Particles(unit(20, 2), space=of.Sphere()), FIELD, of.Euler(), t1=1.0, dt=0.1
    ),
    "trajectory of a law": lambda: run(of.Gaussian([0.0, 1.0], cov=EYE)),
    "trajectory of a density": lambda: of.flow(HUMP, PULL, of.Euler(), t1=2e-3, dt=1e-3),
    "ladder": lambda: of.ladder(of.Particles(normal(4, 2)), FIELD, t1=0.2, steps=2),
    "ladder without bounds": lambda: of.ladder(of.Particles(normal(4, 2)), PULL, t1=0.2, steps=2),
}


def picture(html: str) -> Image.Image:
    found = re.search(
        r'<img width="200" height="150" alt="[^"]+" src="data:image/png;base64,([^"]+)"/>', html
    )
    assert found
    return Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGBA")


@pytest.mark.parametrize("name", SHOWN)
def test_a_picture_is_small_and_has_ink_on_a_transparent_ground(name: str) -> None:
    html = SHOWN[name]()._repr_html_()  # type: ignore[attr-defined]
    assert len(html) < 14_000
    opaque = np.asarray(picture(html))[..., 3] > 60
    assert opaque.any()
    assert opaque.mean() < 0.6


def test_an_object_without_a_picture_has_its_table() -> None:
    assert thumbnails.image(of.RK4()) == ""
    nothing = run(of.Particles(normal(3, 2)))[3:2]
    assert "<img" not in nothing._repr_html_()
    assert "<table>" in nothing._repr_html_()


def test_a_picture_that_fails_leaves_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(thing: object) -> str:
        raise RuntimeError("no fonts")

    monkeypatch.setattr(thumbnails, "image", broken)
    assert of.Particles([[0.0, 1.0]])._repr_html_().startswith("<table>")


def test_numbers_that_are_not_finite_leave_the_table() -> None:
    mu = of.Particles([[0.0, 1.0]])
    assert "<table>" in mu.at([mu.x / 0.0])._repr_html_()


def luminance(colour: str) -> float:
    """As defined by WCAG 2.2."""
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return float(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("colour", [thumbnails.START, thumbnails.END, thumbnails.FRAME, *thumbnails.RUNGS])
def test_colours_are_readable_on_light_and_on_dark_pages(colour: str) -> None:
    for ground in ("#FFFFFF", "#111111"):
        low, high = sorted((luminance(colour), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 3.0
