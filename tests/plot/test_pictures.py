"""Pictures: where they are drawn, what is in them, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from scipy.stats import chi2

import otflow as of
from otflow import plot
from otflow.plot.style import at_time

EYE = torch.eye(2, dtype=torch.float64)
ATTENTION = of.SoftmaxAttention(EYE, EYE, -EYE)


@pytest.fixture(autouse=True)
def _no_open_figures() -> Iterator[None]:
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def axes(*, spatial: bool = False) -> Axes:
    ax: Axes = plot.figure(spatial=spatial)[1][0, 0]
    return ax


def cloud(
    n: int = 5, d: int = 2, space: of.measures.Space | None = None, **options: np.ndarray
) -> of.Particles:
    x = np.random.default_rng(n + d).normal(size=(n, d))
    if isinstance(space, of.Sphere):
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    return of.Particles(x, space=space, **options)


def run(mu: of.Measure, steps: int = 3, field: of.VelocityField = ATTENTION) -> of.Trajectory:
    observe = {"F": lambda mu: mu.coords[0].square().sum(-1) + 1, "G": lambda mu: mu.coords[0].sum(-1)}
    return of.flow(mu, field, of.Euler(), t1=0.1 * steps, dt=0.1, observe=observe)


def dots(ax: Axes) -> list[PathCollection]:
    return [c for c in ax.collections if isinstance(c, PathCollection)]


def lines(ax: Axes) -> LineCollection:
    """The last collection of lines."""
    return [c for c in ax.collections if isinstance(c, LineCollection)][-1]


def test_importing_otflow_does_not_import_matplotlib() -> None:
    code = "import sys, otflow; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_figure_has_an_array_of_axes_and_stays_out_of_pyplot() -> None:
    fig, array = plot.figure(2, 3)
    assert array.shape == (2, 3)
    assert array[1, 2].figure is fig
    assert plt.get_fignums() == []


def test_the_house_style_is_not_set_globally() -> None:
    before = dict(mpl.rcParams)
    plot.energy(run(cloud()))
    assert dict(mpl.rcParams) == before


GAUSS = of.Gaussian(np.zeros(2), root=np.eye(2))
DRAW: dict[str, Callable[[Axes | None], Axes]] = {
    "particles": lambda ax: plot.particles(cloud(), ax=ax),
    "trails": lambda ax: plot.trails(run(cloud()), ax=ax),
    "energy": lambda ax: plot.energy(run(cloud()), "F", ax=ax),
    "ellipses": lambda ax: plot.ellipses(GAUSS, ax=ax),
}


@pytest.mark.parametrize("name", DRAW)
def test_every_picture_is_drawn_on_the_given_axes_or_on_those_of_pyplot(name: str) -> None:
    ax = axes()
    assert DRAW[name](ax) is ax
    assert plt.get_fignums() == []
    current = DRAW[name](None)
    assert current is plt.gca()
    assert DRAW[name](None) is current


def test_a_cloud_in_space_gets_axes_of_its_own_from_pyplot() -> None:
    flat = plot.particles(cloud())
    solid = plot.particles(cloud(d=3))
    assert solid is not flat
    assert solid.name == "3d"


def test_tokens_are_drawn_where_they_are_with_areas_in_proportion_to_their_weights() -> None:
    w = np.array([0.5, 0.25, 0.25, 0.0])
    mu = cloud(n=4, w=w)
    (scatter,) = dots(plot.particles(mu, ax=axes(), size=10.0))
    assert np.allclose(scatter.get_offsets(), mu.x)
    assert np.allclose(scatter.get_sizes(), 10.0 * 4 * w)


def test_labels_give_every_token_its_own_colour() -> None:
    (scatter,) = dots(plot.particles(cloud(label=np.arange(5.0)), ax=axes()))
    assert len(np.unique(scatter.get_facecolor(), axis=0)) == 5


def test_tokens_on_a_line_lie_on_the_axis() -> None:
    mu = cloud(d=1)
    (scatter,) = dots(plot.particles(mu, ax=axes()))
    assert np.allclose(scatter.get_offsets(), np.c_[mu.x.flatten(), np.zeros(5)])


def test_trails_have_a_segment_per_token_and_step_and_grow_stronger() -> None:
    traj = run(cloud(n=5), steps=3)
    ax = plot.trails(traj, ax=axes())
    segments = np.array(lines(ax).get_segments())
    x = torch.stack([mu.coords[0] for mu in traj.measures]).numpy()
    assert segments.shape == (15, 2, 2)
    assert np.allclose(segments[:5, 0], x[0])
    assert np.allclose(segments[-5:, 1], x[-1])
    opacity = lines(ax).get_colors()[:, 3]
    assert opacity[0] < opacity[-1]
    start, end = dots(ax)
    assert start.get_facecolor()[0, 3] < end.get_facecolor()[0, 3]
    assert np.allclose(end.get_offsets(), x[-1])


def test_a_legend_of_trails_tells_the_rings_of_the_start_from_the_dots_of_the_end_once() -> None:
    ax = plot.trails(run(cloud()), ax=axes())
    plot.trails(run(cloud(n=3)), ax=ax)
    handles, labels = ax.get_legend_handles_labels()
    assert labels == ["$t = 0$", "$t = 0.3$"]
    assert [handle.get_markerfacecolor() for handle in handles] == ["none", plot.INK]
    rings, disks = dots(ax)[:2]
    assert not rings.get_facecolor()[:, 3].any()
    assert disks.get_facecolor()[:, 3].all()


def test_times_are_written_with_powers_of_ten_where_they_are_huge() -> None:
    assert at_time(2.5) == "$t = 2.5$"
    assert at_time(1.2e5) == r"$t = 1.2 \times 10^{5}$"


def test_trails_on_a_line_run_along_time() -> None:
    one = EYE[:1, :1]
    traj = run(cloud(n=2, d=1), steps=4, field=of.SoftmaxAttention(one, one, one))
    ax = plot.trails(traj, ax=axes())
    assert ax.get_xlabel() == "$t$"
    assert np.allclose(dots(ax)[1].get_offsets()[:, 0], 0.4)


def test_trails_do_not_cross_a_torus_where_they_leave_it() -> None:
    drift = of.SteepestDescent(of.Potential(lambda x: -x[..., 0]), of.Wasserstein())
    mu = of.Particles([[0.85, 0.5], [0.2, 0.5]], space=of.Torus(1.0))
    segments = np.array(lines(plot.trails(run(mu, field=drift), ax=axes())).get_segments())
    assert len(segments) == 2 * 3 - 1
    assert np.abs(segments[:, 0] - segments[:, 1]).max() < 0.2


def test_a_sphere_is_drawn_once_and_its_far_side_is_paler() -> None:
    ax = axes(spatial=True)
    ax.view_init(elev=0, azim=0)  # seen from (1, 0, 0)
    mu = of.Particles([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], space=of.Sphere())
    plot.particles(mu, ax=ax)
    with_sphere = len(ax.collections)
    plot.particles(mu, ax=ax)
    assert len(ax.collections) == with_sphere + 1
    ax.figure.canvas.draw()  # sorts the tokens by depth, the farthest first
    far, near = dots(ax)[0].get_facecolor()[:, 3]
    assert far < near / 2


def test_energy_draws_what_was_observed_one_line_per_member() -> None:
    traj = run(
        GAUSS.at([torch.rand(4, 2), torch.rand(4, 2, 2)]), field=of.SoftmaxAttention(*[EYE.float()] * 3)
    )
    ax = plot.energy(traj, "F", ax=axes(), log=True)
    assert np.allclose(np.array([line.get_ydata() for line in ax.lines]).T, traj.observed["F"])
    assert len({line.get_color() for line in ax.lines}) == 1
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "F")


def test_several_observables_get_a_legend() -> None:
    traj = run(GAUSS)
    legend = plot.energy(traj, ax=axes()).get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["F", "G"]


def test_an_ellipse_holds_the_mass_of_its_level() -> None:
    S, m = np.array([[2.0, 0.7], [0.7, 1.0]]), np.array([1.0, -1.0])
    ax = plot.ellipses(of.Gaussian(m, cov=S), ax=axes(), level=0.8)
    (curve,) = lines(ax).get_segments()
    z = np.asarray(curve) - m
    assert np.allclose(np.einsum("ni,ij,nj->n", z, np.linalg.inv(S), z), chi2(2).ppf(0.8))


def test_a_trajectory_of_a_batch_shows_as_many_times_as_asked_for_in_colours_of_time() -> None:
    traj = run(GAUSS.at([torch.zeros(3, 2).double(), EYE.expand(3, 2, 2)]), steps=8)
    ax = plot.ellipses(traj, ax=axes(), count=5)
    assert len(lines(ax).get_segments()) == 5 * 3
    assert len(np.unique(lines(ax).get_colors(), axis=0)) == 5
    assert len(ax.figure.axes) == 2  # the colour bar


def test_pictures_share_both_axes_without_complaint() -> None:
    fig, array = plt.subplots(1, 2, sharex=True, sharey=True)
    for ax in array:
        plot.particles(cloud(), ax=ax)
    fig.canvas.draw()
    assert {ax.get_adjustable() for ax in array} == {"box"}


BATCH = of.Particles(np.zeros((2, 5, 2)))
REFUSED: dict[str, tuple[Callable[[], Axes], str]] = {
    "batch": (
        lambda: plot.particles(BATCH),
        r"mu.batch = \(2,\): one cloud is drawn at a time; pick a member",
    ),
    "batch of trails": (lambda: plot.trails(run(BATCH)), r"traj.final.batch = \(2,\)"),
    "dimension": (lambda: plot.particles(cloud(d=4)), "d = 4: at most 3 dimensions can be drawn; project"),
    "gaussian": (lambda: plot.particles(GAUSS), "Particles are needed; use otflow.plot.ellipses"),
    "plane axes": (lambda: plot.particles(cloud(d=3), ax=axes()), "3-d axes are needed; make them with"),
    "3-d axes": (lambda: plot.energy(run(cloud()), ax=axes(spatial=True)), "plane axes are needed"),
    "colour": (lambda: plot.particles(cloud(), color=["red", "blue"]), "one colour, or one per token"),
    "numbers": (lambda: plot.particles(cloud(), color=np.arange(3.0)), "one colour, or one per token"),
    "name": (lambda: plot.energy(run(cloud()), "H"), "name = 'H': this run observed 'F', 'G'; add it to"),
    "log": (lambda: plot.energy(run(of.Gaussian([-1.0, 0.0], root=EYE)), "G", log=True), "needs values > 0"),
    "nothing": (
        lambda: plot.energy(of.flow(cloud(), ATTENTION, of.Euler(), t1=0.1, dt=0.1)),
        "nothing was observed; pass flow",
    ),
    "level": (lambda: plot.ellipses(GAUSS, level=1.0), r"level = 1\.0: a mass between 0 and 1"),
    "no ellipse": (lambda: plot.ellipses(run(cloud())), "ellipses show Gaussians; use otflow.plot.particles"),
    "space": (
        lambda: plot.ellipses(of.Gaussian(np.zeros(3), root=np.eye(3))),
        "d = 3: ellipses are drawn in the",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused_with_argument_value_and_remedy(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(of.InputError, match=message):
        call()
