"""Pictures of covariances: the disk, the cone, histograms of ranks, spectra."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgb
from mpl_toolkits.mplot3d.art3d import Line3DCollection

import otflow as of
from otflow import plot

EYE = torch.eye(2, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _no_open_figures() -> Iterator[None]:
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def axes(*, spatial: bool = False) -> Axes:
    ax: Axes = plot.figure(spatial=spatial)[1][0, 0]
    return ax


def gaussians(*covariances: list[list[float]]) -> of.Gaussian:
    return of.Gaussian(np.zeros((len(covariances), 2)), cov=np.array(covariances))


def run(mu: of.Measure, sign: float = -1.0, t1: float = 1.0) -> of.Trajectory:
    """dS/dt = 2 sign S^2: to zero, or a blow-up of I at t = 1/2."""
    return of.flow(
        mu, of.SoftmaxAttention(EYE, EYE, sign * EYE), of.Dopri5(), t1=t1, save_at=np.linspace(0, t1, 6)
    )


def offsets(ax: Axes) -> list[np.ndarray]:
    return [np.asarray(c.get_offsets()) for c in ax.collections if isinstance(c, PathCollection)]


def in_space(ax: Axes) -> list[np.ndarray]:
    """Positions (K, 3) of dots, collection by collection."""
    found = [c for c in ax.collections if isinstance(c, PathCollection)]
    return [np.stack([np.asarray(a) for a in c._offsets3d], -1) for c in found]  # type: ignore[attr-defined]


RANK_ONE = [[1.0, 1.0], [1.0, 1.0]]
KNOWN = {  # covariance -> its place
    "isotropic": ([[3.0, 0.0], [0.0, 3.0]], (0.0, 0.0)),
    "first axis": ([[5.0, 0.0], [0.0, 0.0]], (1.0, 0.0)),
    "second axis": ([[0.0, 0.0], [0.0, 1e-30]], (-1.0, 0.0)),
    "diagonal": (RANK_ONE, (0.0, 1.0)),
    "huge": ([[3e200, 1e200], [1e200, 1e200]], (0.5, 0.5)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_covariance_has_its_place_in_the_disk_whatever_its_size(name: str) -> None:
    S, place = KNOWN[name]
    (dots,) = offsets(plot.disk(gaussians(S), ax=axes()))
    np.testing.assert_allclose(dots, [place], atol=1e-12)


def test_a_covariance_has_its_place_in_the_cone() -> None:
    (dots,) = in_space(plot.cone(gaussians([[3.0, 0.5], [0.5, 1.0]], RANK_ONE), ax=axes(spatial=True)))
    np.testing.assert_allclose(dots, [[2.0, 1.0, 4.0], [0.0, 2.0, 2.0]], atol=1e-12)


def test_a_zero_covariance_is_left_out_of_the_disk_without_complaint() -> None:
    ax = plot.disk(of.Gaussian(np.zeros((2, 2)), root=np.stack([np.zeros((2, 2)), np.eye(2)])), ax=axes())
    ax.figure.canvas.draw()
    (dots,) = [np.ma.masked_invalid(xy) for xy in offsets(ax)]
    np.testing.assert_allclose(dots.compressed(), [0.0, 0.0])


def test_every_member_is_a_line_from_a_small_dot_to_a_bigger_one() -> None:
    traj = run(gaussians([[0.9, 0.0], [0.0, 0.1]], [[0.5, 0.2], [0.2, 0.5]]))
    ax = plot.disk(traj, ax=axes(), color=["red", "blue"])
    (lines,) = [c for c in ax.collections if isinstance(c, LineCollection)]
    S = traj.stacked.cov.numpy()  # type: ignore[attr-defined]
    u, w = S[..., 0, 0] - S[..., 1, 1], 2 * S[..., 0, 1]
    expected = np.stack([u, w], -1) / np.trace(S, axis1=-2, axis2=-1)[..., None]
    np.testing.assert_allclose(np.array(lines.get_segments()), expected.swapaxes(0, 1), atol=1e-12)
    start, end = (c for c in ax.collections if isinstance(c, PathCollection))
    assert start.get_sizes()[0] < end.get_sizes()[0]
    np.testing.assert_allclose(end.get_offsets(), expected[-1], atol=1e-12)
    np.testing.assert_allclose(end.get_facecolor()[:, :3], [to_rgb("red"), to_rgb("blue")])


def test_a_batch_of_any_shape_and_an_array_of_numbers_give_one_colour_per_member() -> None:
    S = np.broadcast_to(0.1 * np.eye(2), (2, 3, 2, 2))
    mu = of.Gaussian(np.zeros((2, 3, 2)), cov=S)
    ax = plot.disk(run(mu), ax=axes(), color=np.arange(6.0))
    end = [c for c in ax.collections if isinstance(c, PathCollection)][-1]
    assert len(np.unique(end.get_facecolor(), axis=0)) == 6


@pytest.mark.thorough
@pytest.mark.parametrize("draw", [plot.disk, plot.cone])
def test_members_that_blow_up_have_a_colour_of_their_own_and_a_legend(draw: Callable[..., Axes]) -> None:
    traj = run(gaussians([[1.0, 0.0], [0.0, 1.0]], [[0.1, 0.0], [0.0, 0.1]]), sign=1.0)
    assert traj.status.tolist() == ["blow_up", "ok"]
    ax = draw(traj, ax=axes(spatial=draw is plot.cone))
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["ok", "blow up"]
    assert draw(run(gaussians(RANK_ONE)), ax=axes(spatial=draw is plot.cone)).get_legend() is None


@pytest.mark.thorough
def test_a_blow_up_leaves_the_cone_through_its_lid_and_does_not_stretch_it() -> None:
    traj = run(gaussians([[1.0, 0.0], [0.0, 1.0]], [[0.1, 0.0], [0.0, 0.1]]), sign=1.0)
    assert np.trace(traj.final.cov[0].numpy()) > 1e6  # type: ignore[attr-defined]
    ax = plot.cone(traj, ax=axes(spatial=True))
    assert ax.get_zlim()[1] == pytest.approx(4 * 2.0)  # type: ignore[attr-defined]
    ends, starts, exits = in_space(ax)
    np.testing.assert_allclose(exits, [[0.0, 0.0, 8.0]], atol=1e-12)
    assert (len(ends), len(starts)) == (1, 2)
    paths = [c for c in ax.collections if isinstance(c, Line3DCollection)][-1]
    ax.figure.canvas.draw()
    assert max(np.max(np.asarray(piece)[:, 2]) for piece in paths._segments3d) <= 8.0 + 1e-9


def test_the_lid_of_the_cone_can_be_chosen() -> None:
    ax = plot.cone(
        gaussians([[1.0, 0.0], [0.0, 1.0]], [[9.0, 0.0], [0.0, 9.0]]), ax=axes(spatial=True), top=5.0
    )
    (dots,) = in_space(ax)
    np.testing.assert_allclose(dots, [[0.0, 0.0, 2.0]], atol=1e-12)


def test_a_huge_covariance_does_not_spoil_the_cone() -> None:
    mu = of.Gaussian(np.zeros((2, 2)), root=np.stack([1e200 * np.eye(2), np.eye(2)]))
    ax = plot.cone(mu, ax=axes(spatial=True), top=3.0)
    ax.figure.canvas.draw()
    (dots,) = in_space(ax)
    np.testing.assert_allclose(dots, [[0.0, 0.0, 2.0]])


def test_the_boundary_is_drawn_once_in_a_disk() -> None:
    ax = axes()
    plot.disk(gaussians(RANK_ONE), ax=ax)
    before = len(ax.patches)
    plot.disk(gaussians(RANK_ONE), ax=ax)
    assert len(ax.patches) == before == 1


def test_bars_of_ranks_carry_their_counts() -> None:
    ax = plot.ranks(np.array([0, 2, 2, 3]), d=3, ax=axes())
    (bars,) = ax.containers
    assert [bar.get_height() for bar in bars] == [1, 0, 2, 1]  # type: ignore[union-attr]
    assert [text.get_text() for text in ax.texts] == ["1", "", "2", "1"]
    assert ax.get_legend() is None


def test_two_series_of_ranks_stand_side_by_side_under_a_legend() -> None:
    ax = plot.ranks({"exact": [2, 2], "threshold": torch.tensor([1, 2])}, d=2, ax=axes())
    first, second = ([bar.get_x() + bar.get_width() / 2 for bar in bars] for bars in ax.containers)  # type: ignore[union-attr]
    assert all(a < k < b for a, k, b in zip(first, range(3), second, strict=True))
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["exact", "threshold"]


def test_spectra_are_sorted_and_kept_above_the_floor() -> None:
    largest, smallest = offsets(plot.spectra([[0.0, 1.0], [3.0, 1e-5]], ax=axes(), floor=1e-8))
    np.testing.assert_allclose(largest, [[0, 1.0], [1, 3.0]])
    np.testing.assert_allclose(smallest, [[0, 1e-8], [1, 1e-5]])


def test_spectra_run_along_time_with_a_line_per_member_and_eigenvalue() -> None:
    traj = run(gaussians([[0.9, 0.0], [0.0, 0.1]], [[0.5, 0.2], [0.2, 0.5]], [[0.5, 0.0], [0.0, 0.5]]))
    values = torch.linalg.eigvalsh(traj.stacked.cov)  # type: ignore[attr-defined]
    ax = plot.spectra(values, t=traj.ts, ax=axes())
    assert (len(ax.lines), ax.get_xlabel()) == (6, "$t$")
    assert len(plot.spectra(values[:, 0], t=traj.ts, ax=axes()).lines) == 2
    np.testing.assert_allclose(ax.lines[0].get_ydata(), values[:, 0, 1])


SOLID = of.Gaussian(np.zeros(3), root=np.eye(3))
REFUSED: dict[str, tuple[Callable[[], Axes], str]] = {
    "tokens": (
        lambda: plot.disk(of.Particles(np.zeros((3, 2)))),
        "Gaussians are needed; use otflow.plot.part",
    ),
    "dimension": (lambda: plot.cone(SOLID), "d = 3: covariances of the plane are needed; take a marginal"),
    "plane axes": (lambda: plot.cone(gaussians(RANK_ONE), ax=axes()), "3-d axes are needed"),
    "top": (lambda: plot.cone(gaussians(RANK_ONE), top=0.0), "top = 0.0: a finite number > 0"),
    "colour": (lambda: plot.disk(gaussians(RANK_ONE), color=["red"] * 3), r"one per member \(1\)"),
    "rank": (lambda: plot.ranks([4], d=3), r"values = 4.*: ranks are whole numbers from 0 to 3"),
    "named rank": (lambda: plot.ranks({"exact": [0.5]}, d=3), "exact = 0.5: ranks are whole numbers"),
    "flat": (lambda: plot.spectra([1.0, 2.0]), r"eigenvalues.shape = \(2,\): members x d are needed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused_with_argument_value_and_remedy(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(of.InputError, match=message):
        call()
