"""Piecewise ReLU flows against ODE solvers, autograd, exact arithmetic and the maps that they are to be."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.stats import norm
from torch import Tensor

import otflow as of
from otflow.base.errors import InputError, NotFiniteError
from otflow.papers import relu_flows as rf

Array = np.ndarray


def some_flow(L: int, d: int, seed: int = 0, size: float = 0.6) -> rf.PiecewiseFlow:
    rng = np.random.default_rng(seed)
    w, a = size * rng.standard_normal((2, L, d))
    return rf.PiecewiseFlow(rf.Piece(w, a, rng.standard_normal(L), rng.uniform(0.5, 1.5, L)))


def one_by_one(flow: rf.PiecewiseFlow, x: Any) -> Tensor:
    learned = rf.PiecewiseFlow(rf.Piece(flow.w.clone().requires_grad_(), flow.a, flow.b, flow.T))
    return learned(x).detach()


def points(n: int, d: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((n, d))


# --- the primitive -------------------------------------------------------------------------------------


@pytest.mark.parametrize("z", [0.0, 1e-300, 1e-12, -1e-5, 9.9e-3, -1.01e-2, 0.5, -30.0, 600.0])
def test_phi1_and_its_derivative_are_those_of_mpmath(z: float) -> None:
    t = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    value = rf.phi1(t)
    (slope,) = torch.autograd.grad(value, t)
    with mpmath.workdps(700):
        x = mpmath.mpf(z) if z else mpmath.mpf("1e-40")
        want, steep = mpmath.expm1(x) / x, (mpmath.exp(x) * (x - 1) + 1) / x**2
    assert value.item() == pytest.approx(float(want), rel=2e-15)
    assert slope.item() == pytest.approx(float(steep), rel=1e-11)


@pytest.mark.parametrize("kappa", [0.0, 1e-9, 1.3, -0.7])
def test_one_piece_solves_its_equation(kappa: float) -> None:
    a, w, b, T = np.array([1.0, 0.5]), np.array([0.5, kappa * 2 - 1.0]), 0.3, 1.7
    assert a @ w == pytest.approx(kappa, abs=1e-15)
    flow = rf.PiecewiseFlow([rf.Piece(w, a, b, T)])
    for x in ([0.4, -0.2], [-3.0, 1.0]):
        run = solve_ivp(lambda t, y: w * max(a @ y + b, 0.0), (0, T), x, rtol=1e-12, atol=1e-13)
        assert np.abs(flow(x).numpy() - run.y[:, -1]).max() < 1e-10


def test_the_library_integrates_the_same_flow() -> None:
    flow, x = some_flow(12, 3), points(40, 3)
    field = flow.field()
    assert isinstance(field, of.Perceptron)
    assert len(field.switches) == flow.switches == 11
    end = of.flow(of.Particles(x), field, of.Dopri5(rtol=1e-10, atol=1e-12), t1=flow.duration).final
    assert (end.x - flow(x)).abs().max() < 1e-8


@pytest.mark.parametrize("d", [1, 2, 5])
def test_forward_then_inverse_is_the_identity(d: int) -> None:
    flow, x = some_flow(40, d, size=0.6 / math.sqrt(d)), points(200, d)
    assert (flow.inverse(flow(x)) - torch.from_numpy(x)).abs().max() < 1e-10
    assert (flow(flow.inverse(x)) - torch.from_numpy(x)).abs().max() < 1e-10


@pytest.mark.parametrize("d", [1, 2, 4])
def test_log_det_is_that_of_the_jacobian_by_autograd(d: int) -> None:
    flow = some_flow(25, d)
    for x in torch.from_numpy(points(12, d)):
        jacobian = torch.autograd.functional.jacobian(flow, x)
        assert flow.log_det(x).item() == pytest.approx(torch.linalg.slogdet(jacobian)[1].item(), abs=1e-10)


@pytest.mark.parametrize(("L", "size"), [(40, 0.3), (40, 1.0), (100, 0.6)])
def test_the_inverse_is_as_good_as_its_conditioning(L: int, size: float) -> None:
    """|inverse(flow(x)) - x| <= 1e-14 times |x| on the way times what the way back stretches."""
    rng = np.random.default_rng(0)
    w, a = size * rng.standard_normal((2, L, 3))
    flow, x = rf.PiecewiseFlow(rf.Piece(w, a, rng.standard_normal(L))), points(50, 3)
    path = [torch.from_numpy(x)]
    for k in range(L):
        path.append(rf.PiecewiseFlow(flow.pieces[k : k + 1])(path[-1]))
    largest = torch.stack(path).norm(dim=-1).amax(0)
    error = (flow.inverse(path[-1]) - path[0]).norm(dim=-1)
    for k in range(0, 50, 17):
        steep = max(
            torch.linalg.matrix_norm(torch.autograd.functional.jacobian(part, place[k]), 2)
            for part, place in (
                (rf.PiecewiseFlow(flow.pieces[:m]).inverse, path[m]) for m in range(1, L + 1, 6)
            )
        )
        assert error[k] < 1e-14 * steep * largest[k]


def test_tables_have_the_log_det_of_their_jacobian() -> None:
    rng = np.random.default_rng(2)
    nodes = np.cumsum(rng.uniform(0.2, 1.0, (2, 9)), axis=1) - 2.5
    bend, squeeze = rf.shear(nodes[0], np.sin(nodes[0])), rf.monotone(*nodes, axis=1, d=2)
    flow = bend.then(squeeze).then(bend.reversed).then(rf.monotone(*nodes[::-1], d=2))
    for x in torch.from_numpy(points(30, 2)):
        J = torch.autograd.functional.jacobian(flow, x)
        assert flow.log_det(x).item() == pytest.approx(torch.linalg.slogdet(J)[1].item(), abs=1e-11)


def test_log_dets_of_a_flow_and_its_inverse_cancel() -> None:
    flow, x = some_flow(60, 3), points(300, 3)
    y, gain = flow.with_log_det(x)
    assert (gain + flow.reversed.log_det(y)).abs().max() < 1e-12


def test_gradients_in_all_parameters_are_those_of_differences() -> None:
    raw = some_flow(4, 2)
    x = torch.from_numpy(points(3, 2)).requires_grad_()

    def value(w: Tensor, a: Tensor, b: Tensor, T: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        flow = rf.PiecewiseFlow(rf.Piece(w, a, b, T))
        return flow.with_log_det(x)[0], flow.inverse(x)

    given = [p.clone().requires_grad_() for p in (raw.w, raw.a, raw.b, raw.T)]
    assert torch.autograd.gradcheck(value, (*given, x))


def test_a_shear_that_is_learned_has_gradients_in_weights_that_are_zero() -> None:
    w = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    flow = rf.PiecewiseFlow([rf.Piece(w, torch.tensor([1.0, 0.0]), 0.0)])
    flow([2.0, 0.0])[0].backward()
    assert w.grad is not None
    assert w.grad[0].item() == pytest.approx(2.0)


def test_the_inverse_follows_parameters_that_are_learned() -> None:
    raw = some_flow(4, 2)
    w, x = raw.w.clone().requires_grad_(), torch.from_numpy(points(5, 2))
    flow = rf.PiecewiseFlow(rf.Piece(w, raw.a, raw.b, raw.T))
    for _ in range(2):
        flow.log_density(x, lambda z: -z.square().sum(-1)).sum().backward()
        with torch.no_grad():
            w -= 0.01 * w.grad
        assert (flow(flow.inverse(x)) - x).abs().max() < 1e-11


def test_a_tensor_that_changes_later_does_not_change_a_flow() -> None:
    w = torch.ones(2, 1, dtype=torch.float64)
    flow = rf.PiecewiseFlow(rf.Piece(w, torch.ones(2, 1), 0.0))
    w.zero_()
    assert flow([1.0]).item() == pytest.approx(math.e**2)


def test_the_image_of_a_density_has_mass_one_and_the_right_moments() -> None:
    flow = some_flow(12, 1, seed=3)
    low, high = flow([[-9.0]]).item(), flow([[9.0]]).item()
    # kinks sit where a piece sees its threshold: carry each threshold to the end by the pieces that follow
    kinks = [
        rf.PiecewiseFlow(flow.pieces[k:])([[-flow.b[k].item() / flow.a[k, 0].item()]]).item()
        for k in range(len(flow))
    ]
    edges = np.unique([low, high, *(k for k in kinks if low < k < high)])
    edges = np.interp(np.arange(0, len(edges) - 1 + 1e-9, 1 / 64), np.arange(len(edges)), edges)
    z, w = np.polynomial.legendre.leggauss(12)
    y = edges[:-1, None] + np.diff(edges)[:, None] * (z + 1) / 2
    density = flow.log_density(y[..., None], lambda x: norm.logpdf(x[..., 0])).exp().numpy()
    part = density * w * np.diff(edges)[:, None] / 2
    mass, mean = part.sum(), (part * y).sum()
    sample = flow(points(400_000, 1)).numpy()
    assert mass == pytest.approx(1, abs=1e-10)
    assert abs(mean - sample.mean()) < 4 * sample.std() / math.sqrt(sample.size)


def test_batches_lists_and_float32_are_taken_and_float64_comes_out() -> None:
    flow, x = some_flow(5, 2), points(24, 2)
    want = flow(x)
    assert torch.equal(flow(x.reshape(2, 3, 4, 2)).reshape(24, 2), want)
    assert flow.log_det(x.reshape(2, 12, 2)).shape == (2, 12)
    assert torch.equal(flow(x.tolist()), want)
    assert flow(x[0]).shape == (2,)
    assert flow(torch.from_numpy(x).float()).dtype == torch.float64
    assert flow(np.zeros((0, 2))).shape == (0, 2)


def test_flows_compose_in_the_order_of_time() -> None:
    f, g, x = some_flow(3, 2), some_flow(4, 2, seed=5), points(9, 2)
    both = f.then(g)
    assert len(both) == 7
    assert (both(x) - g(f(x))).abs().max() < 1e-14
    again = rf.PiecewiseFlow(both.pieces)
    assert torch.equal(again(x), both(x))
    assert torch.equal(f.then(rf.PiecewiseFlow.identity(2))(x), f(x))


# --- tables --------------------------------------------------------------------------------------------


def test_merged_runs_are_the_pieces_one_by_one() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for k in range(60):
        i, j, kind = rng.integers(3), rng.integers(3), k // 6 % 4
        e, f = np.eye(3)[k // 12 % 3], np.eye(3)[(k // 12 + 1 + i % 2) % 3]
        s = rng.choice([-1.0, 1.0, 0.5])
        w, a = {0: (0.3 * e, s * e), 1: (f, s * e), 2: (0.4 * e, 0 * e), 3: (f, s * e)}[kind]
        rows.append(rf.Piece(rng.normal() * w, a if j or kind != 3 else 0 * a, rng.normal(), 1.3))
    flow, x = rf.PiecewiseFlow(rows), points(500, 3)
    learned = rf.PiecewiseFlow(rf.Piece(flow.w.clone().requires_grad_(), flow.a, flow.b, flow.T))
    merged, (y, gain) = flow.with_log_det(x), learned.with_log_det(x)
    assert len(flow._steps) < 40
    assert len(learned._steps) == 60
    assert (merged[0] - y).abs().max() < 1e-11
    assert (merged[1] - gain).abs().max() < 1e-13


def test_a_merged_staircase_is_exact_where_pieces_one_by_one_cancel() -> None:
    at = np.arange(40) + 0.25
    heights = np.random.default_rng(0).normal(size=40)
    flow = rf.staircase(at, heights, delta=1e-7)
    x = np.stack([np.arange(41.0) - 0.25, np.zeros(41)], -1)
    want = [float(sum((Fraction(h) for h in heights[:k]), Fraction(0))) for k in range(41)]
    assert np.abs(flow(x)[:, 1].numpy() - want).max() < 1e-14
    assert np.abs(one_by_one(flow, x)[:, 1].numpy() - want).max() > 1e-9


def test_a_merged_shear_is_exact_whatever_the_scale_of_its_readings() -> None:
    """Knots -b / s are rounded for s = 3, but heights are those of rational arithmetic all the same."""
    rng = np.random.default_rng(0)
    s, at = rng.choice([3.0, -7.0, 0.3], 30), np.sort(rng.uniform(0, 30, 30))
    pieces = [rf.Piece([0.0, sign * 1e7], [k, 0.0], -k * c + j) for k, c in zip(s, at, strict=True)
              for sign, j in ((1.0, 0.0), (-1.0, 1e-7))]  # fmt: skip
    x = np.stack([rng.uniform(0, 30, 50), np.zeros(50)], -1)
    want = [
        float(sum(Fraction(p.w[1]) * max(Fraction(p.a[0]) * Fraction(t) + Fraction(p.b), 0) for p in pieces))
        for t in x[:, 0]
    ]
    assert np.abs(rf.PiecewiseFlow(pieces)(x)[:, 1].numpy() - want).max() < 1e-13


@pytest.mark.parametrize("w", [[0.0, 1.0], [1.0, 0.0]])
def test_knots_far_away_cost_no_digits_of_a_table(w: list[float]) -> None:
    flow = rf.PiecewiseFlow([rf.Piece(w, [s, 0.0], 1.0) for s in (1e-9, -1e-9, 1e-12)])
    x = 1e-3 * points(20, 2)
    assert len(flow._steps) == 1
    assert (flow(x) - one_by_one(flow, x)).abs().max() < 2e-15


@pytest.mark.parametrize("big", [1e200, 1e-320])
def test_runs_that_leave_floating_point_are_taken_one_by_one(big: float) -> None:
    for w, a in (([0.0, big], [big, 0.0]), ([1e-3, 0.0], [min(big, 1e-300), 0.0])):
        flow = rf.PiecewiseFlow(
            [rf.Piece(w, a, 0.5), rf.Piece([0.1 * (w[0] > 0), 0.1 * (w[0] == 0)], [1.0, 0], 2)]
        )
        assert torch.equal(flow([-1.0, 0.5]), one_by_one(flow, [-1.0, 0.5]))


# --- monotone maps, shears, staircases -----------------------------------------------------------------


@pytest.mark.parametrize("outer", [{}, {"left": 0.2, "right": 3.0}])
def test_monotone_maps_hit_their_nodes_and_have_their_slopes(outer: dict[str, float]) -> None:
    rng = np.random.default_rng(4)
    x, y = np.cumsum(rng.uniform(0.5, 1.5, (2, 31)), axis=1) / 10
    flow = rf.monotone(x, y, **outer)
    assert len(flow) == 32 + len(outer) // 2
    assert np.abs(flow(x[:, None]).numpy()[:, 0] - y).max() < 4e-15
    middle = (x[1:] + x[:-1]) / 2
    slopes = np.diff(y) / np.diff(x)
    assert np.abs(flow.log_det(middle[:, None]).numpy() - np.log(slopes)).max() < 1e-12
    for side, place, inner in (("left", x[0] - 1, slopes[0]), ("right", x[-1] + 1, slopes[-1])):
        assert flow.log_det([[place]]).exp().item() == pytest.approx(outer.get(side, inner), rel=1e-11)
    assert np.abs(one_by_one(flow, x[:, None]).numpy()[:, 0] - y).max() < 1e-13


def test_nodes_of_wild_slopes_are_hit_up_to_their_conditioning() -> None:
    x, y = np.sort(np.random.default_rng(4).normal(size=(2, 31)))
    slopes = np.diff(y) / np.diff(x)
    error = np.abs(rf.monotone(x, y)(x[:, None]).numpy()[:, 0] - y).max()
    assert error < 1e-15 * slopes.max() / slopes.min()


def test_a_monotone_map_of_one_coordinate_leaves_the_others_alone() -> None:
    flow, x = rf.monotone([-1.0, 0.0, 2.0], [0.0, 3.0, 4.0], axis=1, d=3), points(50, 3)
    y = flow(x).numpy()
    assert np.array_equal(y[:, [0, 2]], x[:, [0, 2]])
    inside = (x[:, 1] > -1) & (x[:, 1] < 2)
    assert np.allclose(y[inside, 1], np.interp(x[inside, 1], [-1, 0, 2], [0, 3, 4]), atol=1e-14)


def test_a_shear_adds_the_interpolant_and_keeps_volume() -> None:
    t = np.linspace(-2, 2, 17)
    flow, x = rf.shear(t, np.sin(3 * t), source=2, target=0, d=3), points(300, 3).clip(-2, 2)
    y, gain = flow.with_log_det(x)
    assert np.abs(y.numpy()[:, 0] - x[:, 0] - np.interp(x[:, 2], t, np.sin(3 * t))).max() < 1e-14
    assert bool((gain == 0).all())
    assert len(flow) == 18


# --- permutations --------------------------------------------------------------------------------------


def permuted(perm: Array, x: Array) -> Array:
    K = np.array(perm.shape)
    cell = np.minimum((x * K).astype(int), K - 1)
    new = np.stack(np.unravel_index(perm[tuple(cell.T)], perm.shape), -1)
    return x + (new - cell) / K


@pytest.mark.parametrize("K", [3, 4, 8])
def test_permutations_are_exact_off_strips_and_keep_volume(K: int) -> None:
    rng = np.random.default_rng(K)
    perm, delta = rng.permutation(K * K).reshape(K, K), 1e-5
    flow = rf.permutation(perm, delta=delta)
    assert len(flow) == 6 * K * K + 4 * K - 7
    x = rng.random((200_000, 2))
    y, gain = flow.with_log_det(x)
    right = np.abs(y.numpy() - permuted(perm, x)).max(1) < 1e-12
    lost = 4 * (K - 1) * delta
    assert 1 - right.mean() <= lost + 4 * math.sqrt(lost / len(x))
    assert right.mean() >= {3: 0.9999, 4: 0.9998, 8: 0.9996}[K]
    assert bool((gain == 0).all())
    back = np.abs(flow.inverse(y).numpy() - x).max(1)
    assert back[right].max() < 1e-13


@pytest.mark.parametrize("shape", [(2, 3, 2), (3, 1, 4), (1, 5), (2, 2, 2, 2)])
def test_permutations_in_any_dimension_and_shape(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    perm = rng.permutation(math.prod(shape)).reshape(shape)
    flow, x = rf.permutation(perm, delta=1e-9), rng.random((3000, len(shape)))
    assert len(flow) == 6 * perm.size - 3 + 4 * (sum(shape[1:]) - len(shape) + 1)
    assert np.abs(flow(x).numpy() - permuted(perm, x)).max() < 1e-12
    low, high = np.arange(len(shape)) - 1.0, np.arange(len(shape)) + 3.0
    moved = rf.permutation(perm, delta=1e-9, box=(low, high))(low + 4 * x).numpy()
    assert np.abs(moved - low - 4 * permuted(perm, x)).max() < 1e-12


def test_in_strips_the_inverse_loses_digits_like_one_over_delta() -> None:
    """The conditioning that the docstring states: 1e-12 / delta, and nothing lost off strips."""
    rng = np.random.default_rng(1)
    perm = rng.permutation(64).reshape(8, 8)
    for delta in (1e-3, 1e-5, 1e-7, 1e-9):
        flow, x = rf.permutation(perm, delta=delta), rng.random((4000, 2))
        for axis in (0, 1):
            x[:2000, axis] = rng.integers(1, 8, 2000) / 8 + delta * (rng.random(2000) - 0.5)
        y, gain = flow.with_log_det(x)
        off = (np.abs(8 * x - np.round(8 * x)) > 8 * delta).all(1)
        assert np.abs(y.numpy() - permuted(perm, x))[off].max() < 1e-13
        back = np.abs(flow.inverse(y).numpy() - x).max(1)
        assert back[off].max() < 1e-13
        assert back.max() < 2e-11 / delta
        assert bool((gain == 0).all())


def test_points_in_strips_are_carried_injectively_and_continuously() -> None:
    flow = rf.permutation([[3, 1], [2, 0]], delta=0.05)
    low, high = 0.0, 1.0
    for _ in range(3):  # into the steepest place, again and again: no jump is left
        t = np.linspace(low, high, 20_001)
        jumps = flow(np.stack([t, 0.3 + 0 * t], -1)).diff(dim=0).norm(dim=-1)
        k = int(jumps.argmax())
        low, high = t[k], t[k + 1]
    assert jumps.max() < 1e-6
    for x in (0.5, 0.51, 0.49):
        J = torch.autograd.functional.jacobian(flow, torch.tensor([x, 0.3], dtype=torch.float64))
        assert torch.linalg.det(J).item() == pytest.approx(1, abs=1e-6)


# --- wrong input ---------------------------------------------------------------------------------------

P = rf.Piece([1.0, 0.0], [0.0, 1.0], 0.0)


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        "abc",
        None,
        3,
        [(1, 2)],
        [rf.Piece([1.0, 0.0], [1.0], 0.0)],
        [rf.Piece([[1.0]], [[1.0]], 0.0)],
        [rf.Piece(1.0, 1.0, 0.0)],
        [P, rf.Piece([1.0], [1.0], 0.0)],
        [rf.Piece([1.0, math.nan], [0.0, 1.0], 0.0)],
        [rf.Piece([1.0, 0.0], [0.0, 1.0], 0.0, 0.0)],
        [rf.Piece([1.0, 0.0], [0.0, 1.0], 0.0, -1.0)],
        [rf.Piece([1.0, 0.0], [0.0, 1.0], [0.0], 1.0)],
        [rf.Piece([1e3], [1e3], 0.0)],
        [rf.Piece([1e200, -1e200], [1e200, 1e200], 0.0)],
        rf.Piece([[1.0, 0.0]], [[0.0, 1.0]], [0.0, 1.0]),
        rf.Piece(np.zeros((2, 0)), np.zeros((2, 0)), 0.0),
    ],
)
def test_pieces_that_make_no_sense_are_refused(pieces: Any) -> None:
    with pytest.raises(InputError):
        rf.PiecewiseFlow(pieces)


def test_points_of_another_shape_are_refused() -> None:
    flow = rf.PiecewiseFlow([P])
    for x in ([1.0], 1.0, [[1.0, 2.0, 3.0]], [math.nan, 0.0], "ab", [[1.0], [2.0, 3.0]], None):
        with pytest.raises(InputError):
            flow(x)
    with pytest.raises(InputError, match="one number per point"):
        flow.log_density([1.0, 2.0], lambda x: x)
    with pytest.raises(InputError, match="numbers are needed"):
        flow.log_density([1.0, 2.0], lambda x: "a")
    with pytest.raises(InputError, match="numbers are needed"):
        flow.log_density([1.0, 2.0], lambda x: x.sum() * math.nan)
    with pytest.raises(InputError, match="dimension"):
        flow.then(rf.PiecewiseFlow.identity(3))
    with pytest.raises(InputError, match="at least one piece"):
        rf.PiecewiseFlow.identity(3).field()


def test_overflow_is_an_error_that_keeps_what_came_out() -> None:
    flow = rf.PiecewiseFlow([rf.Piece([600.0], [1.0], 0.0)] * 2)
    with pytest.raises(NotFiniteError) as caught:
        flow([[1.0], [-1.0]])
    assert caught.value.result.shape == (2, 1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: rf.monotone([0.0, 0.0], [0.0, 1.0]), "must increase"),
        (lambda: rf.monotone([0.0, 1.0], [1.0, 0.0]), "must increase"),
        (lambda: rf.monotone([0.0], [1.0]), "at least 2"),
        (lambda: rf.monotone([0.0, 1.0], [0.0, 1.0, 2.0]), "as many"),
        (lambda: rf.monotone([0.0, math.nan], [0.0, 1.0]), "finite"),
        (lambda: rf.monotone([0.0, 1.0], [0.0, 1.0], left=0.0), "left"),
        (lambda: rf.monotone([0.0, 1e-320], [0.0, 1e300]), "floating point"),
        (lambda: rf.staircase([0.0], [1.0], delta=[1.0, 2.0]), "one per step"),
        (lambda: rf.monotone([0.0, 1.0], [0.0, 1.0], axis=2, d=2), "coordinate"),
        (lambda: rf.shear([0.0, 1.0], [0.0, 1.0], source=1), "differ"),
        (lambda: rf.staircase([0.0, 1.0], [1.0, 1.0], delta=1.5), "overlap"),
        (lambda: rf.staircase([0.0, 1.0], [1.0], delta=0.1), "heights"),
        (lambda: rf.staircase([0.0, 1.0], [1.0, 1.0], delta=-0.1), "> 0"),
        (lambda: rf.staircase([1e6], [1.0], delta=1e-9), "1.4e-08"),
        (lambda: rf.permutation([[0, 1], [2, 2]]), "must come once"),
        (lambda: rf.permutation([[0, 1], [2, 4]]), "must come once"),
        (lambda: rf.permutation([[0.5, 1], [2, 3]]), "must come once"),
        (lambda: rf.permutation([1, 0, 2]), "d >= 2"),
        (lambda: rf.permutation([[1, 0]], delta=0.7), "strips"),
        (lambda: rf.permutation(np.arange(64).reshape(8, 8), delta=1e-13), "float64 resolves"),
        (lambda: rf.permutation([[1, 0]], delta=0.0), "delta"),
        (lambda: rf.permutation([[[1, 0]]], box=(0.0, [1.0, 1.0, 1e-6])), "lost in strips"),
        (lambda: rf.permutation([[1, 0]], box=(-1e308, 1e308)), "box"),
        (lambda: rf.staircase([0.0], [1.0], delta=5e-324), "floating point"),
        (lambda: rf.staircase([0.0], [1.0], delta=0.1, d=2.5), "d = 2.5"),
        (lambda: rf.shear([0.0, 1e-300], [0.0, 1e300]), "floating point"),
        (lambda: rf.monotone([-1e308, 1e308], [0.0, 1.0]), "floating point"),
        (lambda: rf.monotone([-1e308, 0.0], [1e308, 1.5e308]), "finite"),
        (lambda: rf.phi1(800.0), "floating point"),
        (lambda: rf.phi1("a"), "real numbers"),
        (lambda: rf.permutation([[1, 0]], box=(1.0, 0.0)), "low < high"),
        (lambda: rf.permutation([[1, 0]], box=3), "corners"),
    ],
)
def test_builders_refuse_what_they_cannot_build(build: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build()
