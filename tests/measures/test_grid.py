"""Densities on cells: axes, faces, upwind steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import otflow as of
from tests.samples import centres, hill, plateau


def uniform(*shape: int) -> of.Grid:
    return of.Grid(np.full(shape, 0.5 ** len(shape)), [centres(n) for n in shape])


def test_a_grid_knows_its_cells() -> None:
    mu = uniform(4, 5)
    assert mu.spacing == pytest.approx((0.5, 0.4))
    assert mu.cell == pytest.approx(0.2)
    assert repr(mu) == "Grid(shape=(4, 5))"
    assert repr(plateau(3, 4, 2)) == "Grid(shape=(3, 4), batch=(2,))"


def test_nodes_are_cell_centres_and_their_masses() -> None:
    mu = plateau(3, 4, 2)
    x, w = mu.nodes()
    assert x.shape == (2, 12, 2)
    expected = np.stack(np.meshgrid(centres(3), centres(4), indexing="ij"), -1).reshape(12, 2)
    np.testing.assert_allclose(x[0], expected, rtol=1e-15)
    torch.testing.assert_close(w, mu.density.reshape(2, 12) * mu.cell)
    torch.testing.assert_close(w.sum(-1), torch.ones(2, dtype=torch.float64))


def test_a_density_is_renormalised_within_rounding() -> None:
    mu = of.Grid(np.full(4, 0.5 * (1 + 1e-7)), [centres(4)])
    assert mu.density.sum().item() * mu.cell == pytest.approx(1.0, abs=1e-15)


def test_other_coordinates_keep_the_axes() -> None:
    mu = uniform(4)
    nu = mu.at([torch.ones(3, 2, 4, dtype=torch.float64)])
    assert nu.batch == (3, 2)
    assert nu.axes is mu.axes


@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4)])
def test_tangents_live_on_the_interior_faces(shape: tuple[int, ...]) -> None:
    mu = uniform(*shape)
    pieces = mu.sharp(mu.coords)
    for axis, piece in enumerate(pieces):
        assert piece.shape == tuple(n - (a == axis) for a, n in enumerate(shape))


def test_sharp_is_the_discrete_gradient_of_the_first_variation() -> None:
    mu = plateau(5, 4)
    variation = mu.nodes()[0] @ torch.tensor([2.0, -3.0], dtype=torch.float64)  # of the potential 2x - 3y
    g = mu.sharp(of.Tangent([variation.reshape(5, 4) * mu.cell]))
    torch.testing.assert_close(g[0], torch.full((4, 4), 2.0, dtype=torch.float64))
    torch.testing.assert_close(g[1], torch.full((5, 3), -3.0, dtype=torch.float64))


def test_the_inner_product_weighs_a_face_by_the_mean_of_its_cells() -> None:
    mu = of.Grid([0.2, 0.6, 0.2], [[0.0, 1.0, 2.0]])
    u = of.Tangent([torch.tensor([1.0, 2.0], dtype=torch.float64)])
    assert mu.inner(u, u).item() == pytest.approx(0.4 * 1 + 0.4 * 4)


def test_an_upwind_step_takes_from_the_cell_that_the_wind_leaves() -> None:
    mu = of.Grid([0.2, 0.6, 0.2], [[0.0, 1.0, 2.0]])
    right = mu.move(of.Tangent([torch.tensor([0.5, 0.0], dtype=torch.float64)]))
    assert right.density.tolist() == pytest.approx([0.1, 0.7, 0.2])
    left = mu.move(of.Tangent([torch.tensor([0.0, -0.5], dtype=torch.float64)]))
    assert left.density.tolist() == pytest.approx([0.2, 0.7, 0.1])


def test_a_step_of_one_cell_shifts_the_density() -> None:
    mu = of.Grid([0.25, 0.75, 0.0, 0.0], [[0.0, 1.0, 2.0, 3.0]])
    assert mu.move(of.Tangent([torch.ones(3, dtype=torch.float64)])).density.tolist() == [
        0.0,
        0.25,
        0.75,
        0.0,
    ]


@pytest.mark.parametrize("axis", [0, 1])
def test_mass_moves_along_the_axis_of_its_velocity(axis: int) -> None:
    mu = uniform(6, 6)
    pieces = [torch.zeros(5, 6, dtype=torch.float64), torch.zeros(6, 5, dtype=torch.float64)]
    pieces[axis] += 0.01
    x, w = mu.nodes()
    moved = mu.move(of.Tangent(pieces)).nodes()[1]
    shift = moved @ x - w @ x
    assert shift[axis].item() == pytest.approx(0.01 * 5 / 6)
    assert abs(shift[1 - axis].item()) < 1e-15


def test_a_step_is_first_order_in_the_width_of_a_cell() -> None:
    """Transport of a smooth hill by a constant wind, against the shifted hill."""
    gaps = []
    for cells in (100, 200, 400):
        mu, t = hill(cells), 0.1
        for _ in range(cells // 10):
            mu = mu.move(of.Tangent([torch.full((cells - 1,), 10 * t / cells, dtype=torch.float64)]))
        inside = slice(cells // 4, 3 * cells // 4)
        gaps.append(float((mu.density - hill(cells, at=t).density)[inside].abs().max()))
    assert gaps[0] / gaps[1] == pytest.approx(2.0, abs=0.3)
    assert gaps[1] / gaps[2] == pytest.approx(2.0, abs=0.3)


def test_a_velocity_that_is_not_finite_ends_a_run_and_is_named() -> None:
    class Wild(of.VelocityField):
        def velocity(self, t: Any, mu: of.Measure) -> of.Tangent:
            return mu.sharp(mu.coords).map(lambda u: torch.full_like(u, torch.nan))

    with pytest.raises(of.errors.FlowError, match=r"invalid.*velocity of .*Wild"):
        of.flow(uniform(5), Wild(), of.Euler(), t1=1.0, dt=0.1)


def test_the_steps_are_differentiable() -> None:
    axes = [centres(5)]

    def end(rho: torch.Tensor) -> torch.Tensor:
        mu = of.Grid(rho / rho.sum() * 2.5, axes)
        field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1)), of.Wasserstein())
        return of.flow(mu, field, of.Euler(), t1=0.02, dt=0.01).final.density

    assert torch.autograd.gradcheck(
        end, torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    )


WRONG: dict[str, tuple[Any, list[Any], str]] = {
    "no axes": (np.ones(4) / 2, [], "one, two or three axes"),
    "four axes": (np.ones((2,) * 4), [[0, 1]] * 4, "one, two or three axes"),
    "axis of another length": (np.ones(4) / 2, [centres(5)], r"density\.shape = \(4,\)"),
    "axis a matrix": (np.ones(4) / 2, [centres(4)[:, None]], r"density\.shape"),
    "one cell": (np.ones(1), [[0.0]], "each >= 2"),
    "decreasing": (np.ones(4) / 2, [centres(4)[::-1]], r"axes\[0\] = steps from"),
    "uneven": (np.ones(3) / 3, [[0.0, 1.0, 2.1]], "equal steps"),
    "negative": (np.array([-0.5, 1.5]), [[0.0, 1.0]], "weights must be >= 0"),
    "of mass two": (np.ones(4), [centres(4)], "sum"),
    "nan": (np.array([np.nan, 1.0]), [[0.0, 1.0]], r"density\[0\] = nan"),
    "nan in an axis": (np.ones(2) / 2, [[0.0, np.nan]], r"axes\[0\]\[1\] = nan"),
    "axis of another dtype": (np.ones(2) / 2, [np.array([0.0, 1.0], dtype=np.float32)], "float32"),
    "fewer axes than the density has": (np.array(0.5), [[0.0, 1.0]], r"density\.shape = \(\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_grids_are_refused(name: str) -> None:
    density, axes, words = WRONG[name]
    with pytest.raises(of.InputError, match=words):
        of.Grid(density, axes)


@pytest.mark.parametrize("cells", [30, 48, 100, 1000])
@pytest.mark.parametrize("centre", [0.0, 3.0, 100.0])
def test_axes_in_single_precision_are_equal_steps_up_to_their_rounding(cells: int, centre: float) -> None:
    x = (centre + 4 * (np.arange(cells) + 0.5) / cells - 2).astype(np.float32)
    mu = of.Grid(np.full(cells, 0.25, np.float32) * 4 / (cells * (x[1] - x[0])), [x])
    assert mu.density.dtype == torch.float32
    x[cells // 2] += 0.1 * (x[1] - x[0])
    with pytest.raises(of.InputError, match="equal steps"):
        of.Grid(np.ones(cells, np.float32), [x])
