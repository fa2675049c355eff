"""Distances between measures as a metric sees them, along trajectories, and the speed of a trajectory."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm
from torch import Tensor

import otflow as of
from otflow.metrics import distance
from otflow.observables import distances
from otflow.transport.exact import network_simplex
from otflow.transport.exact.conditional import conditional_wasserstein
from otflow.transport.exact.sliced import sliced_wasserstein
from otflow.transport.exact.wasserstein import solve, wasserstein
from tests.samples import DECAY, Given, Linear, hill, normal

SPIN = Linear([[0.0, 1.0], [-1.0, 0.0]])


def run(
    x: Any, field: of.VelocityField = DECAY, *, label: Any = None, t1: float = 1.0, **options: Any
) -> of.Trajectory:
    return of.flow(of.Particles(x, label=label), field, of.RK4(), t1=t1, dt=0.1, **options)


def matched(x: np.ndarray, y: np.ndarray) -> float:
    """W2 of uniform clouds by scipy."""
    cost = ((x[:, None] - y) ** 2).sum(-1)
    return math.sqrt(cost[linear_sum_assignment(cost)].mean())


# --- the geometry of a pair ----------------------------------------------------------------------------


def test_the_measures_decide_which_distance_wasserstein_means() -> None:
    x, y = normal(6, 2, seed=1), normal(6, 2, seed=2)
    plain = distance(of.Particles(x), of.Particles(y), of.Wasserstein())
    assert plain.item() == pytest.approx(matched(x, y), rel=1e-12)
    labelled = (of.Particles(z, label=range(6)) for z in (x, y))
    assert distance(*labelled, of.Wasserstein()).item() == pytest.approx(
        math.sqrt(((x - y) ** 2).sum(-1).mean()), rel=1e-12
    )
    bells = (
        of.Gaussian([0.0, 1.0], root=np.diag([1.0, 2.0])),
        of.Gaussian([3.0, 1.0], root=np.diag([3.0, 1.0])),
    )
    assert distance(*bells, of.Wasserstein()).item() == pytest.approx(math.sqrt(9 + 4 + 1), rel=1e-12)
    hills = hill(20), hill(20, at=0.3)
    assert distance(*hills, of.Wasserstein()).item() == wasserstein(*hills).item()


def test_half_labelled_pairs_are_refused() -> None:
    x = normal(3, 1)
    for pair in ((None, range(3)), (range(3), None)):
        with pytest.raises(of.InputError, match="only one of the measures has labels"):
            distance(*(of.Particles(x, label=label) for label in pair), of.Wasserstein())
    with pytest.raises(of.InputError, match="Gaussian"):
        distance(of.Gaussian([0.0], root=[[1.0]]), of.Particles(x), of.Wasserstein())


def test_metrics_without_a_distance_say_so() -> None:
    mu = of.Particles(normal(3, 1))
    with pytest.raises(of.InputError, match="solve_twisted"):
        distance(mu, mu, of.Twisted(lambda mu, x: 1 + x[..., 0] ** 2))
    with pytest.raises(of.InputError, match="call it"):
        distance(mu, mu, of.Wasserstein)  # type: ignore[arg-type]


# --- distances along two trajectories ------------------------------------------------------------------


def test_distances_are_those_at_every_save_time() -> None:
    a, b = run(normal(8, 2, seed=3), SPIN), run(normal(8, 2, seed=4))
    d = distances(a, b)
    assert d.shape == (11,)
    exact = [matched(m.x.numpy(), n.x.numpy()) for m, n in zip(a.measures, b.measures, strict=True)]
    assert d.tolist() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    "of_",
    [
        wasserstein,
        solve,
        conditional_wasserstein,
        functools.partial(solve, p=1),
        functools.partial(sliced_wasserstein, rng=0),
        lambda mu, nu: (mu.x - nu.x).abs().max().item(),
    ],
)
def test_any_function_of_two_measures_will_do(of_: Any) -> None:
    a, b = (run(normal(5, 2, seed=i), label=range(5)) for i in range(2))
    values = [of_(m, n) for m, n in zip(a.measures, b.measures, strict=True)]
    expected = [float(getattr(v, "distance", v)) for v in values]
    assert distances(a, b, of_).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_trajectory_may_be_compared_with_one_measure() -> None:
    a, goal = run(normal(4, 2, seed=5)), of.Particles([[0.0, 0.0]])
    exact = [math.sqrt((m.x**2).sum(-1).mean()) for m in a.measures]
    assert distances(a, goal).tolist() == pytest.approx(exact, rel=1e-12)


def test_gaussians_and_batches_have_distances_too() -> None:
    bells = of.flow(of.Gaussian(normal(3, 2), root=np.eye(2)), DECAY_OF_GAUSSIANS, of.Euler(), t1=1.0, dt=0.5)
    d = distances(bells, of.Gaussian([0.0, 0.0], root=np.eye(2)))
    assert d.shape == (3, 3)
    assert d[:, 1].tolist() == pytest.approx(
        (np.linalg.norm(normal(3, 2)[1]) * np.array([1, 0.5, 0.25])).tolist()
    )
    clouds = distances(run(normal(2, 5, 2, seed=6)), run(normal(5, 2, seed=7)))
    assert clouds.shape == (11, 2)


DECAY_OF_GAUSSIANS = Given(lambda t, x: -x)
DECAY_OF_GAUSSIANS.velocity = lambda t, mu: of.Tangent([-mu.mean, 0 * mu.root])  # type: ignore[method-assign]


def test_each_solve_starts_from_the_one_before() -> None:
    a, b, starts = run(normal(6, 2, seed=8), SPIN), run(normal(6, 2, seed=9)), []

    def spy(mu: of.Measure, nu: of.Measure, *, start: Any = None) -> Any:
        starts.append(start)
        return solve(mu, nu, start=start)

    d = distances(a, b, spy)
    assert starts[0] is None
    assert [s.distance.item() for s in starts[1:]] == d[:-1].tolist()


def test_different_save_times_are_refused_by_name() -> None:
    a = run(normal(3, 1))
    with pytest.raises(of.InputError, match=r"b.ts\[1\] = 0.25: a was saved at 0.1.*save_at"):
        distances(a, run(normal(3, 1), save_at=[0.0, 0.25, 1.0]))
    with pytest.raises(of.InputError, match=r"b.ts\[6\] = None"):
        distances(a, run(normal(3, 1), t1=0.5))
    with pytest.raises(of.InputError, match=r"b.ts\[11\] = 1.1.*not saved as often"):
        distances(a, run(normal(3, 1), t1=1.2))
    with pytest.raises(of.InputError, match="Trajectory or a measure"):
        distances(a, [1.0])  # type: ignore[arg-type]
    with pytest.raises(of.InputError, match="a function is needed"):
        distances(a, a, 2)  # type: ignore[arg-type]
    with pytest.raises(of.InputError, match="a distance is a number"):
        distances(a, a, lambda mu, nu: "far")


def test_one_failure_does_not_lose_the_other_times(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, calls = run(normal(6, 2, seed=10), SPIN), run(normal(6, 2, seed=11)), []
    good = distances(a, b)

    def moody(mu: of.Measure, nu: of.Measure, *, start: Any = None) -> Any:
        calls.append(start)
        with monkeypatch.context() as patch:
            if len(calls) == 4:
                patch.setattr(network_simplex, "TOL", -1.0)  # nothing is good enough
            return solve(mu, nu, start=start)

    with pytest.raises(of.errors.ConvergenceError, match=r"1 of 11 distances.*t = 0.3.*\.result") as caught:
        distances(a, b, moody)
    assert caught.value.result.tolist() == pytest.approx(good.tolist(), rel=1e-9)
    assert calls[4] is None  # no start from a failure
    assert calls[5] is not None


def test_a_failure_without_a_value_is_nan_in_what_the_error_carries() -> None:
    a = run(normal(3, 1))

    def never(mu: of.Measure, nu: of.Measure) -> Tensor:
        raise of.errors.ConvergenceError("no luck.", None)

    with pytest.raises(of.errors.ConvergenceError, match="11 of 11") as caught:
        distances(a, a, never)
    assert bool(caught.value.result.isnan().all())


@pytest.mark.thorough
def test_distances_have_gradients_in_the_initial_state() -> None:
    y = run(normal(4, 2, seed=13))

    def f(x: Tensor) -> Tensor:
        return distances(run(x), y)

    assert torch.autograd.gradcheck(f, torch.from_numpy(normal(4, 2, seed=12)).requires_grad_())


def test_distances_keep_the_precision_of_the_tokens() -> None:
    a, b = (run(torch.from_numpy(normal(4, 2, seed=i)).float()) for i in range(2))
    assert distances(a, b).dtype == torch.float32


def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    a = run(normal(3, 1))
    distances(a, a)
    assert capsys.readouterr().err == ""
    distances(a, a, progress=True)
    assert "11/11" in capsys.readouterr().err


# --- speed ---------------------------------------------------------------------------------------------


def test_the_speed_of_a_decay_is_exponential() -> None:
    x = normal(5, 3, seed=14)
    traj = of.flow(of.Particles(x), DECAY, of.Dopri5(rtol=1e-11, atol=1e-13), t1=1.0)
    middle = (traj.ts[1:] + traj.ts[:-1]) / 2
    exact = math.sqrt((x**2).sum(-1).mean()) * torch.exp(-middle)
    assert torch.allclose(traj.speed(), exact, rtol=1e-5)


def test_a_flow_that_only_relabels_moves_when_labels_count() -> None:
    # Two tokens on a circle turn by half a turn: as a set they come back, as labelled tokens they do not.
    x = [[1.0, 0.0], [-1.0, 0.0]]
    half = {
        label: of.flow(
            of.Particles(x, label=label), SPIN, of.RK4(), t1=math.pi, dt=math.pi / 400, save_at=[0.0, math.pi]
        )
        for label in (None, (0, 1))
    }
    assert half[None].speed().item() == pytest.approx(0.0, abs=1e-8)
    assert half[0, 1].speed().item() == pytest.approx(2 / math.pi, rel=1e-8)
    assert half[0, 1].speed(wasserstein).item() == pytest.approx(0.0, abs=1e-8)


def test_small_steps_give_accurate_speeds() -> None:
    x = normal(6, 2, seed=15)
    for label in (None, range(6)):
        traj = of.flow(of.Particles(x, label=label), SPIN, of.RK4(), t1=1e-9, dt=1e-10)
        exact = math.sqrt((x**2).sum(-1).mean())
        assert traj.speed().tolist() == pytest.approx([exact] * 10, rel=1e-5)  # eps |x| / dt


def test_members_that_have_ended_stand_still() -> None:
    # Members walk at speed 1 and 2 until they reach 1, so the second one ends at time 0.5.
    pace = torch.tensor([1.0, 2.0], dtype=torch.float64)[:, None, None]
    traj = of.flow(
        of.Particles(np.zeros((2, 1, 1))),
        Given(lambda t, x: pace.expand_as(x)),
        of.Euler(),
        t1=2.0,
        dt=0.125,
        save_at=[0.0, 0.2, 0.75, 2.0],
        stop=lambda t, mu: mu.x[..., 0, 0] >= 1.0,
    )
    assert traj.ts.tolist() == [0.0, 0.2, 0.75, traj.ended[0].item()]
    speed = traj.speed()
    assert speed[:, 0].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert speed[:, 1].tolist() == pytest.approx([2.0, 2.0, 0.0])


def test_a_speed_needs_two_save_times() -> None:
    with pytest.raises(of.InputError, match="two save times"):
        run(normal(3, 1), save_at=[1.0]).speed()


def test_a_speed_that_is_not_certified_is_kept_by_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    traj = run(normal(4, 2, seed=16))
    good = traj.speed()
    monkeypatch.setattr(network_simplex, "TOL", -1.0)
    with pytest.raises(of.errors.ConvergenceError, match="10 of 10") as caught:
        traj.speed()
    assert caught.value.result.tolist() == pytest.approx(good.tolist(), rel=1e-9)


def test_speeds_of_gaussians_are_those_of_their_laws() -> None:
    bells = of.flow(of.Gaussian([1.0], root=[[2.0]]), DECAY_OF_GAUSSIANS, of.RK4(), t1=0.02, dt=0.01)
    assert bells.speed().tolist() == pytest.approx([math.exp(-0.005), math.exp(-0.015)], rel=1e-4)


def along_a_line(gap: float) -> of.Trajectory:
    """A normal law that moves with speed one, as the masses of cells of width 0.1; ``gap`` between saves."""
    walls = np.linspace(-6, 6, 121)
    ts = gap * np.arange(4)
    mass = np.diff(norm.cdf(walls, ts[:, None]), axis=-1)
    laws = [of.Grid(m / m.sum() / 0.1, [(walls[1:] + walls[:-1]) / 2]) for m in mass]
    plain = of.flow(laws[0], Given(lambda t, rho: 0 * rho[..., 1:]), of.Euler(), t1=gap, dt=gap)
    return replace(plain, ts=torch.tensor(ts), measures=tuple(laws), ended=torch.tensor(math.nan))


@pytest.mark.parametrize("cells", [3.0, 1.0, 0.1, 0.01, 0.001])
def test_the_speed_on_a_line_does_not_depend_on_how_often_it_is_saved(cells: float) -> None:
    assert along_a_line(0.1 * cells).speed().tolist() == pytest.approx([1.0] * 3, rel=1e-3)
    a, b = along_a_line(0.1 * cells)[:1], along_a_line(0.1 * cells)[1:2]
    apart = distances(replace(a, ts=b.ts), b).item()
    assert apart == pytest.approx(0.1 * cells, rel=1e-3)
    assert distance(a[0], b[0], of.Wasserstein()).item() == apart


def block(shift: float, cells: int, lines: int) -> of.Grid:
    """A block, ``cells`` wide, that advanced by ``shift`` cells of width 0.1, on a line or in a plane."""
    walls = np.arange(2.0 * cells + 1)
    mass = np.diff(np.clip(walls, cells / 2 + shift, 1.5 * cells + shift)) * np.ones((lines, 1))
    axes = [0.1 * np.arange(lines), 0.1 * (walls[1:] - 0.5)]
    k = 0 if lines > 1 else 1
    return of.Grid((mass / mass.sum() / 0.1 ** (2 - k))[0 if k else slice(None)], axes[k:])


def apart(mu: of.Grid, nu: of.Grid) -> of.Trajectory:
    """A trajectory from one to the other in the time 0.1."""
    return replace(along_a_line(0.1)[:2], measures=(mu, nu))


@pytest.mark.parametrize("lines", [1, 4])
def test_a_front_that_enters_empty_cells_has_the_speed_of_its_law(lines: int) -> None:
    for cells in (3.0, 1.0, 0.3, 1e-2, 1e-4):
        speed = apart(block(0.0, 40, lines), block(cells, 40, lines)).speed().item()
        assert speed == pytest.approx(cells, rel=0.05)


@pytest.mark.parametrize("lines", [1, 4])
def test_a_front_of_a_few_cells_has_no_speed_that_is_known(lines: int) -> None:
    with pytest.raises(of.errors.ConvergenceError, match=r"not known to 5%.*refine the grid") as caught:
        apart(block(0.0, 4, lines), block(1e-2, 4, lines)).speed()
    assert caught.value.result.shape == (1,)


@pytest.mark.parametrize("dt", [0.05, 0.005])
def test_a_porous_medium_has_the_speed_of_its_steps(dt: float) -> None:
    x = (np.arange(80) + 0.5) / 20 - 2
    medium = of.Grid.from_function(lambda x: np.maximum(1 - x**2, 0), [x])
    field = of.SteepestDescent(of.PorousMedium(2.0), of.Wasserstein())
    traj = of.flow(medium, field, of.JKO(), t1=3 * dt, dt=dt)
    costs = traj.certificates["cost"][1:]
    assert traj.speed().tolist() == pytest.approx((costs.sqrt() / dt).tolist(), rel=1e-2)


def test_a_speed_in_the_plane_is_that_of_the_law() -> None:
    line = along_a_line(0.01)
    still = np.ones(4) / 0.4
    laws = [
        of.Grid(mu.density[:, None] * torch.tensor(still), [mu.axes[0], 0.1 * np.arange(4)]) for mu in line
    ]
    assert replace(line, measures=tuple(laws)).speed().tolist() == pytest.approx([1.0] * 3, rel=1e-2)
