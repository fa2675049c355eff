"""Trajectories: sequences of measures, joints of runs, and datasets that give everything back."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import xarray
from torch import Tensor

import otflow as of
from otflow.measures.parts import alike, fixed
from tests.samples import normal, unit

PULL = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
EYE = torch.eye(2, dtype=torch.float64)
CENTRES = (np.arange(8) + 0.5) / 8


def run(mu: of.Measure, t0: float = 0.0, steps: int = 4, **options: Any) -> of.Trajectory:
    options = {"observe": {"F": PULL.energy}} | options
    return of.flow(mu, PULL, of.Euler(), t0=t0, t1=t0 + steps / 64, dt=1 / 64, **options)


def hill(*shape: int) -> np.ndarray:
    rho = 1 + np.random.default_rng(0).random(shape)
    return rho / rho.mean(tuple(range(-1, -3, -1)) if len(shape) > 1 else -1, keepdims=True)


# --- a sequence ----------------------------------------------------------------------------------------


def test_a_trajectory_is_indexed_and_visited_like_the_tuple_of_its_measures() -> None:
    traj = run(of.Particles(normal(3, 2)))
    assert [traj[k] for k in range(-5, 5)] == [traj.measures[k] for k in range(-5, 5)]
    assert traj[np.int64(1)] is traj.measures[1]
    assert list(traj) == list(traj.measures)
    assert list(reversed(traj)) == list(reversed(traj.measures))
    assert traj[2] in traj
    for wrong in (5, -6):
        with pytest.raises(IndexError):
            traj[wrong]
    with pytest.raises(TypeError, match="indices"):
        traj[0, 1]  # type: ignore[call-overload]


def test_a_slice_is_a_trajectory() -> None:
    traj = run(of.Particles(normal(2, 3, 2)))
    part = traj[1:-1]
    assert part.ts.tolist() == traj.ts[1:4].tolist()
    assert part.measures == traj.measures[1:4]
    assert torch.equal(part.observed["F"], traj.observed["F"][1:4])
    assert part.steps == traj.steps
    assert repr(traj[3:2]) == "Trajectory(nothing saved, status='ok x 2')"
    with pytest.raises(of.InputError, match=r"time runs forward.*reversed"):
        traj[::-1]


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_certificates_of_every_kth_time_go_back_to_the_one_before(start: int, step: int) -> None:
    values = torch.tensor([0.0, 5.0, 1.0, 7.0, 2.0, 3.0, 9.0, 4.0])
    traj = run(of.Particles(normal(3, 2)), steps=7)
    part = replace(traj, certificates={"residual": values})[start::step].certificates["residual"]
    kept = list(range(8))[start::step]
    expected = [values[kept[0]], *(values[a + 1 : b + 1].max() for a, b in pairwise(kept))]
    assert part.tolist() == [float(e) for e in expected]


def test_positions_are_stacked_along_time() -> None:
    traj = run(of.Particles(normal(2, 3, 2)))
    assert torch.equal(traj.x, traj.stacked.coords[0])
    assert traj.x.shape == (5, 2, 3, 2)
    line = of.flow(of.Quantiles([0.0, 1.0, 4.0], [0.0, 0.5, 1.0]), PULL, of.Euler(), t1=0.1, dt=0.1)
    assert line.x.shape == (2, 3)


@pytest.mark.parametrize(
    ("mu", "words"),
    [
        (of.Gaussian([0.0, 1.0], root=EYE), r"Gaussian has no x; it has mean and root: .*stacked\.mean"),
        (of.Grid(hill(8), [CENTRES]), r"Grid has no x; it has density: take traj\.stacked\.density"),
    ],
)
def test_measures_without_positions_say_what_they_have(mu: of.Measure, words: str) -> None:
    traj = run(mu, steps=1)
    with pytest.raises(AttributeError, match=words):
        _ = traj.x
    assert not hasattr(traj, "x")


def test_a_batch_tells_how_often_each_status_occurs() -> None:
    start = of.Particles([[[1.0]], [[0.1]], [[0.1]]])
    grow = of.SteepestDescent(of.Potential(lambda x: -(x**4).sum(-1)), of.Wasserstein())
    traj = of.flow(start, grow, of.Dopri5(), t1=1.0)
    assert "status='ok x 2, blow_up x 1')" in repr(traj)
    assert repr(traj.member(0)).endswith("status='blow_up')")


# --- certificates --------------------------------------------------------------------------------------


def test_certificates_are_numbers_from_the_start() -> None:
    traj = of.flow(of.Particles(normal(3, 2)), PULL, of.JKO(), t1=0.3, dt=0.1)
    assert all(float(a[0]) == 0 for a in traj.certificates.values())
    assert all(math.isfinite(float(a.max())) for a in traj.certificates.values())


class Silent(of.Euler):
    """Euler steps of which only the first leaves a certificate."""

    def step(
        self, field: of.VelocityField, t: Tensor, dt: Tensor, mu: of.Measure, memory: Any
    ) -> of.steppers.Step:
        step = super().step(field, t, dt, mu, memory)
        return replace(step, certificate={"residual": torch.tensor(0.5)} if float(t) == 0 else {})


def test_a_step_without_certificate_is_not_known_rather_than_zero() -> None:
    traj = of.flow(of.Particles(normal(3, 2)), PULL, Silent(), t1=0.2, dt=0.1)
    first, second, third = traj.certificates["residual"].tolist()
    assert (first, second) == (0.0, 0.5)
    assert math.isnan(third)


# --- joints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,)])
def test_joined_runs_are_one_run(batch: tuple[int, ...]) -> None:
    mu = of.Particles(normal(*batch, 3, 2), w=[0.2, 0.3, 0.5])
    whole, first = run(mu, steps=6), run(mu, steps=2)
    second = run(first.final, t0=2 / 64, steps=3)
    joined = first.join(second, run(second.final, t0=5 / 64, steps=1))
    same(joined, whole)


def test_joined_certificates_are_kept_once() -> None:
    mu = of.Particles(normal(3, 2))
    first = of.flow(mu, PULL, of.JKO(), t1=0.2, dt=0.1)
    second = of.flow(first.final, PULL, of.JKO(), t0=0.2, t1=0.4, dt=0.1)
    cost = first.join(second).certificates["cost"]
    assert cost.tolist() == [*first.certificates["cost"].tolist(), *second.certificates["cost"][1:].tolist()]


def test_a_certificate_that_one_run_does_not_have_is_not_known_there() -> None:
    first = run(of.Particles(normal(3, 2)), steps=2, observe={})
    second = of.flow(first.final, PULL, of.JKO(), t0=2 / 64, t1=4 / 64, dt=1 / 64)
    cost = first.join(second).certificates["cost"]
    assert cost.isnan().tolist() == [True] * 3 + [False] * 2


def test_a_run_that_was_cut_short_can_be_continued() -> None:
    first = failed()
    second = of.flow(first.final, PULL, of.Euler(), t0=float(first.ts[-1]), t1=1.0, dt=0.1)
    joined = first.join(second)
    assert (first.status, joined.status, joined.steps) == ("budget", "ok", 10)
    assert torch.equal(joined.x[-1], second.x[-1])
    assert joined.message == first.message != ""


def test_joints_refuse_what_does_not_follow_on() -> None:
    mu = of.Particles(normal(3, 2))
    first = run(mu)
    end = 4 / 64
    with pytest.raises(of.InputError, match=r"other\.ts\[0\] = 0\.0.*ends at 0\.0625.*t0="):
        first.join(run(first.final))
    with pytest.raises(of.InputError, match=r"other\[0\].*another measure.*traj\.final"):
        first.join(run(mu, t0=end))
    heavy = of.Particles(first.final.coords[0], w=[0.5, 0.25, 0.25])
    with pytest.raises(of.InputError, match=r"another measure"):
        first.join(run(heavy, t0=end))
    with pytest.raises(of.InputError, match=r"observed \['F'\].*observe the same"):
        first.join(run(first.final, t0=end, observe={}))
    with pytest.raises(of.InputError, match="Trajectory"):
        first.join(first.final)  # type: ignore[arg-type]


def test_joints_refuse_members_that_ended_early() -> None:
    first = run(of.Particles([[[1.0]], [[2.0]]]), stop=lambda t, mu: mu.coords[0][:, 0, 0] < 0.99)
    assert first.status.tolist() == ["stopped", "ok"]
    with pytest.raises(of.InputError, match=r"min\(traj\.ended\) = 0\.015625.*member"):
        first.join(run(first.final, t0=4 / 64))


# --- datasets ------------------------------------------------------------------------------------------


def bits(a: Any, b: Any) -> None:
    """Two tensors are the same, NaN being equal to NaN."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert torch.equal(a.isnan(), b.isnan())
    assert torch.equal(a[~a.isnan()], b[~b.isnan()])


def same(a: of.Trajectory, b: of.Trajectory) -> None:
    """Two trajectories agree in everything, bit for bit."""
    assert len(a) == len(b)
    for mu, nu in zip(a, b, strict=True):
        assert type(mu) is type(nu)
        assert all(alike(x, y) for x, y in zip(mu.coords, nu.coords, strict=True))
        rest, other = fixed(mu), fixed(nu)
        assert rest.keys() == other.keys()
        assert all(alike(rest[name], other[name]) for name in rest)
    for table, other_table in ((a.observed, b.observed), (a.certificates, b.certificates)):
        assert table.keys() == other_table.keys()
        for name, value in table.items():
            bits(value, other_table[name])
    for name in ("ts", "ended", "blow_up_time"):
        bits(getattr(a, name), getattr(b, name))
    assert type(a.status) is type(b.status)
    assert np.array_equal(a.status, b.status)
    assert np.asarray(a.status).dtype.kind == np.asarray(b.status).dtype.kind
    assert (a.message, a.steps) == (b.message, b.steps)
    assert dict(a.origin) == dict(b.origin)


def weighted() -> of.Trajectory:
    w = np.random.default_rng(1).random((2, 3))
    mu = of.Particles(normal(2, 3, 2), w=w / w.sum(-1, keepdims=True), label=[3.0, 1.0, 2.0**60 + 2**10])
    return run(mu, observe={"F": PULL.energy, "mean": lambda mu: mu.x.mean(-2), "one": lambda mu: 1})


def attention(space: of.measures.Space, x: np.ndarray) -> of.Trajectory:
    field = of.SoftmaxAttention(EYE, EYE, EYE) if isinstance(space, of.Sphere) else PULL
    return of.flow(of.Particles(x, space=space), field, of.RK4(), t1=0.5, dt=0.1)


def single_precision() -> of.Trajectory:
    mu = of.Particles(normal(3, 2).astype(np.float32), w=torch.tensor([0.2, 0.3, 0.5]))
    field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    return of.flow(mu, field, of.JKO(), t1=0.2, dt=0.1, observe={"F": field.energy})


@cache
def blow_up() -> of.Trajectory:
    start = of.Particles([[[[1.0]], [[0.1]], [[0.1]]]] * 2)
    grow = of.SteepestDescent(of.Potential(lambda x: -(x**4).sum(-1)), of.Wasserstein())
    return of.flow(start, grow, of.Dopri5(), t1=1.0, save_at=[0.0, 0.5])


def densities(*shape: int) -> of.Trajectory:
    mu = of.Grid(hill(*shape), [CENTRES] * min(len(shape), 2))
    return of.flow(mu, PULL, of.Euler(), t1=0.02, dt=0.01, observe={"x": lambda mu: mu.density.amax()})


def quantiles() -> of.Trajectory:
    x = torch.tensor([[0.0, 1.0, 4.0], [-1.0, 0.5, 2.0]])
    return of.flow(of.Quantiles(x, [0.0, 1 / 3, 1.0]), PULL, of.Euler(), t1=0.2, dt=0.1)


def strange() -> of.Trajectory:
    """Observables of all dtypes, with names that clash, or that files do not know."""
    observe: dict[str, Callable[[Any], Any]] = {
        "x": lambda mu: mu.x.sum(),
        "t": lambda mu: 1.5,
        "token": lambda mu: mu.x.sum(-1),
        "status": lambda mu: mu.x.mean() > 0,
        "certificate_cost": lambda mu: 0.0,
        "F/2 of é →": lambda mu: torch.tensor([2**40, -1]),
        "F_2 of é →": lambda mu: torch.tensor([7, -1]),
        "int": lambda mu: torch.tensor(3, dtype=torch.uint8),
        "": lambda mu: mu.x.half(),
        "coarse": lambda mu: mu.x.bfloat16(),
        "nothing": lambda mu: math.nan,
        "mean": lambda mu: mu.x.mean(-2),
        "mean_dim0": lambda mu: mu.x.numpy()[..., 0] > 0,
    }
    return of.flow(of.Particles(normal(3, 2)), PULL, of.JKO(), t1=0.2, dt=0.1, observe=observe)


def failed() -> of.Trajectory:
    mu = of.Particles(normal(3, 2))
    return of.flow(mu, PULL, of.Euler(), t1=1.0, dt=0.1, max_steps=3, on_failure="return")


RUNS: dict[str, Callable[[], of.Trajectory]] = {
    "plain": lambda: run(of.Particles(normal(3, 2))),
    "weights, labels, batch": weighted,
    "sphere": lambda: attention(of.Sphere(1e-4), unit(4, 2)),
    "torus": lambda: attention(of.Torus(math.e), normal(4, 2)),
    "float32": single_precision,
    "blow-up": blow_up,
    "Gaussian": lambda: run(of.Gaussian(normal(2), root=normal(2, 3))),
    "Gaussian batch": lambda: run(of.Gaussian(normal(4, 1, 2), root=normal(4, 1, 2, 2))),
    "grid": lambda: densities(8),
    "plane grid": lambda: densities(8, 8),
    "grid batch": lambda: densities(3, 8, 8),
    "quantiles": quantiles,
    "strange": strange,
    "failed": failed,
}


@pytest.mark.parametrize("name", RUNS)
def test_a_dataset_gives_the_trajectory_back(name: str) -> None:
    traj = RUNS[name]()
    same(of.Trajectory.from_xarray(traj.to_xarray()), traj)


@pytest.mark.parametrize("name", RUNS)
def test_a_file_gives_the_trajectory_back(name: str, tmp_path: Path) -> None:
    traj = RUNS[name]()
    traj.to_xarray().to_netcdf(tmp_path / "run.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "run.nc", engine="scipy") as ds:
        same(of.Trajectory.from_xarray(ds), traj)


@pytest.mark.slow(but_for=["3-blow-up", "3-grid", "3-quantiles", "2-blow-up"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("form", [2, 3])
def test_a_zarr_store_gives_the_trajectory_back(form: Literal[2, 3], name: str, tmp_path: Path) -> None:
    traj, store = RUNS[name](), tmp_path / "run.zarr"
    traj.to_xarray().to_zarr(store, zarr_format=form, consolidated=False)  # format 3 warns of True
    same(of.Trajectory.from_xarray(xarray.open_zarr(store, consolidated=False)), traj)


def test_whole_numbers_beyond_double_precision_stay_in_the_dataset() -> None:
    traj = run(of.Particles(normal(3, 2)), observe={"n": lambda mu: torch.tensor(2**60 + 1)})
    same(of.Trajectory.from_xarray(traj.to_xarray()), traj)


def test_weights_that_change_along_time_are_kept() -> None:
    traj = run(of.Particles(normal(3, 2), w=[0.2, 0.3, 0.5]), steps=1, observe={})
    other = of.Particles(traj[1].coords[0], w=[0.5, 0.25, 0.25])
    traj = replace(traj, measures=(traj[0], other))
    assert traj.to_xarray()["w"].dims == ("t", "token")
    same(of.Trajectory.from_xarray(traj.to_xarray()), traj)


def test_a_run_says_what_it_was_started_with() -> None:
    mu, noise = of.Particles(normal(3, 2)), of.CommonNoise(0.1, rng=2**62 + 1)
    first = of.flow(mu, PULL, of.Euler(), t1=0.5, dt=0.25, noise=noise)
    ds = first.to_xarray()
    assert (ds.attrs["field"], ds.attrs["stepper"], ds.attrs["dt"]) == (repr(PULL), "Euler()", 0.25)
    assert first.origin["seed"] == int(ds.attrs["seed"]) == 2**62 + 1
    assert (first.origin["t0"], first.origin["t1"]) == (0.0, 0.5)
    assert of.flow(mu, PULL, of.Dopri5(), t1=0.1).origin.keys() == {"field", "stepper", "t0", "t1"}
    later = of.flow(first.final, PULL, of.RK4(), t0=0.5, t1=1.0, dt=0.25)
    joined = first.join(later).origin
    assert joined == {"field": repr(PULL), "t0": 0.0, "t1": 1.0, "dt": 0.25}


def test_axes_have_names_and_numbers() -> None:
    ds = blow_up().to_xarray(batch=("temperature", "seed"))
    assert ds["x"].dims == ("t", "temperature", "seed", "token", "coordinate")
    assert ds["status"].dims == ds["blow_up_time"].dims == ("temperature", "seed")
    assert ds["status"].values.tolist() == [["blow_up", "ok", "ok"]] * 2
    assert ds.attrs["status"] == "ok x 4, blow_up x 2"
    assert ds.attrs["otflow"] == of.__version__
    assert (ds.attrs["measure"], ds.attrs["dtype"]) == ("Particles", "float64")
    grid = densities(3, 8, 8).to_xarray()
    assert grid["density"].dims == ("t", "batch0", "x", "y")
    assert grid["x"].values.tolist() == CENTRES.tolist()
    assert grid["observed_x"].dims == ("t",)
    assert quantiles().to_xarray()["level"].values.tolist() == [0.0, 1 / 3, 1.0]
    assert RUNS["torus"]().to_xarray().attrs["space_period"] == math.e
    jko = single_precision().to_xarray()
    assert jko["certificate_cost"].dims == ("t",)
    assert jko["certificate_cost"].attrs["role"] == "certificate"


def test_a_part_of_a_dataset_is_the_trajectory_of_the_part() -> None:
    traj = weighted()
    ds = traj.to_xarray(batch=["seed"]).transpose("coordinate", "token", "seed", "t", ...)
    one = traj.member(1)[1:3]
    found = of.Trajectory.from_xarray(ds.isel(seed=1, t=slice(1, 3)))
    assert torch.equal(found.x, one.x)
    assert torch.equal(found[0].w, one[0].w)  # type: ignore[attr-defined]
    assert found.status == "ok"


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (("a",), r"the batch is \(2, 3\)"),
        (("a", "a"), "one name per batch axis"),
        ("ab", "one name per batch axis"),
        (("t", "a"), r"\['t'\].*uses this name itself"),
        (("token", "x"), r"\['token', 'x'\]"),
    ],
)
def test_names_of_batch_axes_are_checked(batch: Any, words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        blow_up().to_xarray(batch=batch)


@pytest.mark.parametrize(
    "seeds", [[7, 9, 11], np.array([7, 9, 11]), torch.tensor([7, 9, 11]), ["a", "b", "c"], None]
)
def test_batch_axes_have_the_ticks_that_are_given(seeds: Any, tmp_path: Path) -> None:
    traj = blow_up()
    ds = traj.to_xarray(batch={"beta": [0.5, 1.0], "seed": seeds})
    assert ds["x"].dims == ("t", "beta", "seed", "token", "coordinate")
    assert ds["beta"].values.tolist() == [0.5, 1.0]
    assert ("seed" in ds.coords) == (seeds is not None)
    same(of.Trajectory.from_xarray(ds), traj)
    ds.to_zarr(tmp_path / "run.zarr", zarr_format=3, consolidated=False)
    same(of.Trajectory.from_xarray(xarray.open_zarr(tmp_path / "run.zarr", consolidated=False)), traj)
    one = of.Trajectory.from_xarray(ds.sel(beta=1.0))
    assert torch.equal(one.x, traj.member(1).x)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"a": [1, 2, 3], "b": None}, r'batch\["a"\].shape = \(3,\): one entry per member .* \(2,\)'),
        ({"a": 1.0, "b": None}, r"a\"\].shape = \(\)"),
        ({"a": None}, "one name per batch axis"),
        ({"a": None, "label": [1, 2, 3]}, "uses this name itself"),
    ],
)
def test_ticks_of_batch_axes_are_checked(batch: Any, words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        blow_up().to_xarray(batch=batch)


def test_strings_in_a_dataset_are_strings_to_their_reader() -> None:
    ds = blow_up().to_xarray()
    assert (ds["status"] == "ok").values.tolist() == [[False, True, True]] * 2
    assert ds["status"].values[0, 0] == "blow_up"


def test_an_observable_may_have_the_name_of_a_batch_axis() -> None:
    traj = run(of.Particles(normal(2, 3, 2)))
    ds = traj.to_xarray(batch=["F"])
    assert ds["observed_F"].dims == ("t", "F")
    same(of.Trajectory.from_xarray(ds), traj)


def test_what_is_no_dataset_of_a_trajectory_is_refused() -> None:
    with pytest.raises(of.InputError, match=r"not a trajectory.*to_xarray"):
        of.Trajectory.from_xarray(xarray.Dataset())
    ds = run(of.Particles(normal(3, 2))).to_xarray()
    with pytest.raises(of.InputError, match=r"'measure'.*Cloud.*Particles, Gaussian, Grid, Quantiles"):
        of.Trajectory.from_xarray(ds.assign_attrs(measure="Cloud"))
    with pytest.raises(of.InputError, match=r"'space'.*Klein.*Euclidean, Sphere, Torus"):
        of.Trajectory.from_xarray(ds.assign_attrs(space="Klein"))
    with pytest.raises(of.InputError, match="needs a measure"):
        run(of.Particles(normal(3, 2)))[3:3].to_xarray()
    spun = run(of.Particles(normal(3, 2)), observe={"z": lambda mu: torch.tensor(1j)})
    with pytest.raises(of.InputError, match=r"z.*real numbers"):
        spun.to_xarray()


def test_without_xarray_the_error_gives_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    traj = run(of.Particles(normal(3, 2)))
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match="pip install"):
        traj.to_xarray()


def test_numpy_is_told_that_a_trajectory_is_more_than_one_array() -> None:
    traj = run(of.Particles(normal(3, 2)))
    for call in (np.asarray, np.mean, np.float64(2.0).__mul__):
        with pytest.raises(of.InputError, match=r"more than one array; take traj.stacked.numpy\(\)"):
            call(traj)
    assert traj.stacked.numpy()["x"].shape == (5, 3, 2)
