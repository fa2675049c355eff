"""Pictures and films of trajectories: which one each measure gets, and what has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.animation import FuncAnimation
from matplotlib.colors import to_hex
from PIL import Image

import otflow as of
from otflow import plot
from tests.samples import normal, unit

PULL = of.SteepestDescent(of.Potential(lambda x: (x - 1).square().sum(-1) / 2), of.Wasserstein())
EYE = np.eye(3)
CENTRES = (np.arange(16) + 0.5) / 16


@pytest.fixture(autouse=True)
def _no_open_figures() -> Iterator[None]:
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def run(mu: of.Measure, steps: int = 4, **options: object) -> of.Trajectory:
    return of.flow(mu, PULL, of.Euler(), t1=steps / 64, dt=1 / 64, **options)  # type: ignore[arg-type]


def hump(*axes: np.ndarray) -> np.ndarray:
    square = sum(np.meshgrid(*[(a - 0.4) ** 2 for a in axes], indexing="ij"))
    rho = np.exp(-20 * square)
    return rho / rho.mean()


def sphere() -> of.Trajectory:
    mu = of.Particles(unit(6, 3), space=of.Sphere())
    return of.flow(mu, of.SoftmaxAttention(EYE, EYE, EYE), of.RK4(), t1=0.4, dt=0.1)


RUNS: dict[str, Callable[[], of.Trajectory]] = {
    "line": lambda: run(of.Particles(normal(5, 1))),
    "plane": lambda: run(of.Particles(normal(5, 2), label=np.arange(5.0))),
    "space": lambda: run(of.Particles(normal(5, 3))),
    "torus": lambda: run(of.Particles(normal(5, 2), space=of.Torus())),
    "sphere": sphere,
    "Gaussian on the line": lambda: run(of.Gaussian([0.0], root=[[1.0]])),
    "Gaussian": lambda: run(of.Gaussian([0.0, 1.0], root=[[1.0, 0.0], [0.5, 0.3]])),
    "Gaussians": lambda: run(of.Gaussian(normal(3, 2), root=normal(3, 2, 2))),
    "grid": lambda: run(of.Grid(hump(CENTRES), [CENTRES])),
    "plane grid": lambda: run(of.Grid(hump(CENTRES, CENTRES), [CENTRES, CENTRES])),
    "quantiles": lambda: run(of.Quantiles([0.0, 1.0, 4.0], [0.0, 0.5, 1.0])),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_measure_has_a_picture(name: str) -> None:
    traj = RUNS[name]()
    fig, axes = plot.figure(spatial=name in ("space", "sphere"))
    assert traj.plot(axes[0, 0]) is axes[0, 0]
    fig.draw_without_rendering()
    assert axes[0, 0].has_data()
    assert traj[:1].plot().has_data()  # one time, on the axes of pyplot


@pytest.mark.thorough
@pytest.mark.parametrize("name", RUNS)
def test_every_picture_moves(name: str, tmp_path: Path) -> None:
    film = RUNS[name]().animate(interval=40)
    assert isinstance(film, FuncAnimation)
    film.save(tmp_path / "run.gif", writer="pillow", dpi=40)
    with Image.open(tmp_path / "run.gif") as gif:
        frames = []
        for k in range(gif.n_frames):
            gif.seek(k)
            frames.append(np.asarray(gif.convert("RGB")).copy())
            assert gif.info["duration"] == 40
    assert len(frames) == 5
    assert all((a != b).any() for a, b in pairwise(frames))


def test_densities_are_coloured_by_time() -> None:
    traj = RUNS["grid"]()
    _, axes = plot.figure()
    lines = traj.plot(axes[0, 0]).get_lines()
    assert [to_hex(line.get_color()) for line in lines] == [
        to_hex(plot.SEQUENCE(k / 4)) for k in (0.0, 1.0, 2.0, 3.0, 4.0)
    ]
    for line, mu in zip(lines, traj, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), mu.coords[0].numpy())


def test_a_batch_shows_what_was_observed() -> None:
    traj = run(of.Particles(normal(2, 5, 2)), observe={"F": PULL.energy})
    _, axes = plot.figure()
    assert traj.plot(axes[0, 0]).get_ylabel() == "F"
    assert len(axes[0, 0].get_lines()) == 2


@pytest.mark.parametrize(
    ("mu", "words"),
    [
        (of.Particles(normal(2, 5, 2)), r"this is a batch; pick a member: traj\.member\(0\)"),
        (of.Particles(normal(2, 3, 5, 2)), r"traj\.member\(\(0, 0\)\)"),
        (of.Particles(normal(5, 4)), r"at most 3 dimensions, and this has 4; project"),
        (of.Gaussian(normal(3), root=np.eye(3)), r"at most 2 dimensions, and this has 3; take a marginal"),
        (of.Grid(hump(*[CENTRES] * 3), [CENTRES] * 3), r"at most 2 dimensions, .*sum the density"),
    ],
    ids=["batch", "two axes", "particles", "Gaussian", "grid"],
)
def test_what_has_no_picture_says_so(mu: of.Measure, words: str) -> None:
    traj = run(mu, steps=1)
    with pytest.raises(of.InputError, match=words + r".*observe="):
        traj.plot()
    with pytest.raises(of.InputError, match=words):
        traj.animate()


def test_nothing_saved_has_no_picture() -> None:
    with pytest.raises(of.InputError, match="needs a measure"):
        RUNS["line"]()[2:2].plot()


def test_a_film_plays_in_a_notebook_and_shows_some_of_the_times() -> None:
    film = run(of.Particles(normal(5, 2)), steps=8).animate(frames=3)
    html = film._repr_html_()
    assert html.count("data:image/png;base64") == 3
    assert "<input" in html


def test_the_axes_of_a_film_stay_where_they_are() -> None:
    film = RUNS["Gaussian"]().animate()
    ax = film._fig.axes[0]
    film._draw_frame(0)
    first = ax.get_xlim(), ax.get_ylim(), ax.get_title()
    film._draw_frame(4)
    assert (ax.get_xlim(), ax.get_ylim()) == first[:2]
    assert (first[2], ax.get_title()) == ("$t = 0$", "$t = 0.0625$")
    film._draw_was_started = True  # or matplotlib complains that nobody looked at it


def test_pictures_leave_the_style_of_others_alone() -> None:
    before = dict(mpl.rcParams)
    RUNS["plane"]().plot()
    RUNS["plane"]().animate()._repr_html_()
    assert dict(mpl.rcParams) == before
