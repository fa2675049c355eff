"""What runs on an accelerator stays there, and the host does not wait for it inside a step."""

from __future__ import annotations

import ast
import importlib
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.base import checks
from otflow.base.parameters import leaves
from otflow.dynamics import flow as driver
from otflow.dynamics import stepping
from otflow.dynamics.recorder import Recorder
from otflow.steppers.base import Memory
from otflow.transport.entropic.log_kernel import Bilinear, LogKernel, Pairwise
from otflow.transport.entropic.newton import refine
from otflow.transport.entropic.scaling import AbsorbedKernel
from otflow.transport.exact import wasserstein
from tests import zoo
from tests.accelerator import CUDA, STAND_IN, Accelerator, Answers, HostReads, far_away
from tests.samples import random_tangent

NOW = torch.zeros((), dtype=torch.float64)


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    """torch loads much for its first fake tensors, and no single test is to pay for that."""
    with Accelerator(CUDA) as there:
        a = there.tensor(torch.eye(2, dtype=torch.float64))
        (a @ a).sum()


# --- velocities ----------------------------------------------------------------------------------------

# Fields with an inner solver or a quadrature look at their numbers: the page on devices lists them.
SOLVING = ("sinkhorn", "multihead", "difference", "transport_descent", "projected")
WITHOUT_SOLVER = ("multihead_plain", "multihead_causal")
# What torch asks by itself, on Gaussians: whether a decomposition has converged.
WAITING = {
    name: "_linalg_eigh" if name == "l2_descent" else "_linalg_svd"
    for name in zoo.FIELDS
    if name == "l2_descent" or (name.startswith(SOLVING) and name not in WITHOUT_SOLVER)
}
# On Gaussians they ask whether their quadrature is good, and make a mesh on the host where it is not.
INTEGRATED = ("descent", "matrix_descent")
# One of each kind; the others are variants of these.
FEW = ("softmax", "softmax_of_time", "softmax_of_layers", "l2", "sinkhorn", "sigmoid", "unnormalised")
FEW += ("multihead", "softmax_causal", "multihead_causal", "perceptron", "block")
FEW += ("descent", "twisted_descent", "matrix_descent", "l2_descent")


def solves(field: str, measure: str) -> bool:
    """Whether a field looks at numbers on this kind of measure."""
    if not field.startswith(SOLVING) or field in WITHOUT_SOLVER:
        return False
    return field.startswith("projected") or "gaussian" not in measure


PAIRS = [(f, m) for f, m in zoo.PAIRS if not solves(f, m)]
FIELDS = tuple(dict.fromkeys(f for f, _ in PAIRS))


def measures(field: str) -> list[of.Measure]:
    """A weighted cloud, if the field moves clouds, and one of each other kind that it moves."""
    names = [m for f, m in PAIRS if f == field]
    clouds = [m for m in ("weighted", "batched_labelled") if m in names][:1]
    others = [m for m in ("gaussian_of_rank_two", "grid_2d") if m in names]
    return [zoo.MEASURES[m]() for m in clouds + others]


def quietly(field: of.VelocityField) -> of.VelocityField:
    """Without the question at the end whether all is finite, which a step does not ask."""
    field.insist = lambda carry, v: None  # type: ignore[method-assign]
    return field


def moved(
    device: torch.device, name: str, mu: of.Measure
) -> tuple[Accelerator, of.VelocityField, of.Measure]:
    there = Accelerator(device)
    return there, quietly(there.take(zoo.FIELDS[name]())), there.take(mu)


@pytest.mark.slow(but_for=FEW)
@pytest.mark.parametrize("name", FIELDS)
def test_velocities_and_jacobian_products_stay_on_the_device_and_ask_nothing(name: str) -> None:
    for mu in measures(name):
        tangent, found = random_tangent(mu), []
        forward, twice = not isinstance(mu, of.Grid), name != "transport_descent"
        if name not in zoo.DESCENTS:  # whose velocity is a backward pass
            there, field, nu = moved(CUDA, name, mu)
            u, t = there.take(tangent), there.tensor(NOW)
            with there:
                found += [(CUDA, field.evaluate(t, nu)[0]), (CUDA, field.jvp(t, nu, u))]
        there, field, nu = moved(STAND_IN, name, mu)
        u, t = there.take(tangent), there.tensor(NOW)
        with there, Answers(yes=True) as answers:
            found += [(STAND_IN, field.evaluate(t, nu)[0])]
            found += [(STAND_IN, field.jvp(t, nu, u))] if forward and twice else []
            found += [(STAND_IN, field.vjp(t, nu, u))] if twice else []
        assert all(a.device == device for device, v in found for a in v)
        assert (answers.asked > 0) == integrated(name, mu)


def integrated(field: str, mu: of.Measure) -> bool:
    return field in INTEGRATED and isinstance(mu, of.Gaussian)


@pytest.mark.parametrize("name", FIELDS)
def test_velocities_far_away_are_those_at_hand_and_make_nobody_wait(name: str) -> None:
    for mu in measures(name):
        field = zoo.FIELDS[name]()
        here, _ = field.evaluate(NOW, mu)
        with far_away(), HostReads() as reads:
            there, _ = field.evaluate(NOW, mu)
        for a, b in zip(here, there, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        expected = {WAITING[name]} if name in WAITING and isinstance(mu, of.Gaussian) else set()
        assert integrated(name, mu) or set(reads.found) == expected


def test_a_velocity_that_is_asked_for_by_its_user_asks_once_whether_it_is_finite() -> None:
    mu, field = zoo.MEASURES["gaussian"](), zoo.FIELDS["softmax"]()
    for call in (lambda: field(0.0, mu), lambda: field.jvp(0.0, mu, mu.coords)):
        with far_away(), HostReads() as reads:
            call()
        assert reads.total == 1


def test_large_attention_streams_on_cuda() -> None:
    n, there = 700, Accelerator(CUDA)
    x = zoo.rng().standard_normal((n, 3))
    mu = there.take(of.Particles(x, label=np.arange(n)))
    for name in ("softmax", "softmax_causal", "sigmoid_causal"):
        field = there.take(zoo.FIELDS[name]())
        with there:
            field.evaluate(there.tensor(NOW), mu)
            quietly(field).jvp(there.tensor(NOW), mu, mu.coords)
    there = Accelerator(STAND_IN)
    mu = there.take(of.Particles(x, label=np.arange(n)))
    field = quietly(there.take(zoo.FIELDS["softmax_causal"]()))
    with there:
        field.vjp(there.tensor(NOW), mu, mu.coords)


# --- energies ------------------------------------------------------------------------------------------


def small() -> Tensor:
    return zoo.spd() / 40


ENERGIES: dict[str, tuple[Callable[[], of.Energy], tuple[str, ...]]] = {
    "potential": (lambda: of.Potential(zoo.harmonic), ("weighted", "gaussian", "grid_2d")),
    "quadratic_potential": (lambda: of.QuadraticPotential(small()), ("weighted", "gaussian", "grid_3d")),
    "interaction": (lambda: of.Interaction(zoo.bell), ("weighted",)),
    "without_diagonal": (lambda: of.Interaction(zoo.log_distance, diagonal=False), ("weighted",)),
    "quadratic_interaction": (lambda: of.QuadraticInteraction(small()), ("weighted", "gaussian")),
    "exponential": (lambda: of.ExponentialInteraction(small()), ("weighted", "gaussian")),
    "sigmoid": (lambda: of.SigmoidInteraction(small()), ("weighted",)),
    "squared_scores": (lambda: of.SquaredScores(small()), ("weighted", "gaussian")),
    "self_transport": (lambda: of.SelfTransport(small()), ("gaussian",)),
    "l2": (lambda: of.L2Energy(small()), ("gaussian",)),
    "entropy": (of.Entropy, ("gaussian", "grid_2d")),
    "porous_medium": (lambda: of.PorousMedium(2.0), ("gaussian", "grid_2d")),
    "sum": (lambda: of.Interaction(zoo.bell) - 0.5 * of.Potential(zoo.harmonic), ("weighted",)),
}
DECOMPOSING = {"self_transport": {"_linalg_svd"}, "l2": {"_linalg_eigh"}}


def read(name: str, kind: str) -> set[str]:
    """What the host waits for: decompositions, or the answer whether a quadrature is good."""
    if (name, kind) == ("potential", "gaussian"):
        return {"_local_scalar_dense"}
    return DECOMPOSING.get(name, set())


@pytest.mark.parametrize("name", ENERGIES)
def test_energies_and_their_differentials_stay_where_the_measure_is(name: str) -> None:
    make, kinds = ENERGIES[name]
    for kind in kinds:
        there = Accelerator(CUDA)
        F, mu = there.take(make()), there.take(zoo.MEASURES[kind]())
        with there, torch.no_grad(), Answers(yes=True):
            assert F(mu).device == CUDA
        there = Accelerator(STAND_IN)
        F, mu = there.take(make()), there.take(zoo.MEASURES[kind]())
        with there, Answers(yes=True):
            assert all(p.device == STAND_IN for p in F.differential(mu))


@pytest.mark.parametrize("name", ENERGIES)
def test_energies_far_away_are_those_at_hand_and_make_nobody_wait(name: str) -> None:
    make, kinds = ENERGIES[name]
    for kind in kinds:
        F, mu = make(), zoo.MEASURES[kind]()
        here = F(mu), *F.differential(mu)
        with far_away(), HostReads() as reads:
            there = F(mu), *F.differential(mu)
        for a, b in zip(here, there, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert set(reads.found) == read(name, kind)
        assert reads.total <= 2 or name in DECOMPOSING  # one for each of the two


# --- steps ---------------------------------------------------------------------------------------------

STEPS = [
    ("euler", "descent", "weighted"),
    ("euler", "softmax", "batched"),
    ("heun", "block", "sphere"),
    ("rk4", "softmax_of_layers", "cloud"),
    ("dopri5", "softmax", "batched"),
    ("dopri5_fixed", "softmax", "gaussian"),
    ("rosenbrock", "l2", "gaussian"),
]
ASKS = {"rosenbrock": 1}  # whether the state leaps, as past a pole


@pytest.mark.parametrize(("stepper", "field", "measure"), STEPS)
def test_a_step_and_its_acceptance_stay_on_the_device(stepper: str, field: str, measure: str) -> None:
    device = STAND_IN if field == "descent" else CUDA
    there, method = Accelerator(device), zoo.STEPPERS[stepper]()
    v, mu = there.take(zoo.FIELDS[field]()), there.take(zoo.MEASURES[measure]())
    with there, Answers():
        run = driver._start(mu, v, method, driver.FlowTimes(0.0, 1.0, None if method.adaptive else 0.1))
        assert method.step(v, run.t, run.dt, mu, Memory()).mu.device == device
        with Answers() as answers:
            left, problem = stepping._left(run, 1.0), stepping.FlowProblem(v, method, None, None)
            new = stepping._step(run, problem, 1.0, left, Recorder({}))
        assert {new.t.device, new.mu.device, new.codes.device} == {device}
        assert answers.asked == 1 + ASKS.get(stepper, 0)  # whether a member of the batch has failed


@pytest.mark.parametrize(("stepper", "field", "measure"), STEPS)
def test_a_step_asks_nothing_and_a_flow_twice_per_step(stepper: str, field: str, measure: str) -> None:
    mu, v, method = zoo.MEASURES[measure](), zoo.FIELDS[field](), zoo.STEPPERS[stepper]()
    dt = None if method.adaptive else 0.01
    t = torch.zeros(mu.batch if method.adaptive else (), dtype=torch.float64)
    with far_away(), HostReads() as reads:
        method.step(v, t, torch.full_like(t, 0.01), mu, Memory())
    assert reads.total == ASKS.get(stepper, 0)
    runs = [counted(mu, v, method, t1, dt) for t1 in (0.02, 0.08)]
    assert runs[1][0] > runs[0][0] or method.adaptive
    assert runs[1][1] - runs[0][1] == (2 + ASKS.get(stepper, 0)) * (runs[1][0] - runs[0][0])


def counted(
    mu: of.Measure,
    v: of.VelocityField,
    method: of.Stepper,
    t1: float,
    dt: float | None,
    save_at: Any = (0.0,),
) -> tuple[int, int]:
    """Steps of a flow, and what was read back to the host."""
    with far_away(), HostReads() as reads:
        traj = of.flow(mu, v, method, t1=t1, dt=dt, save_at=save_at)
    return traj.steps, reads.total


def test_a_saved_time_and_a_stage_on_a_grid_ask_once_more() -> None:
    cases = {
        "every step saved": ("cloud", "softmax", 0.1, None),
        "on a grid": ("grid", "descent", 1e-4, [0.0]),
    }
    for measure, field, dt, save_at in cases.values():
        short, long = (
            counted(zoo.MEASURES[measure](), zoo.FIELDS[field](), of.Euler(), k * dt, dt, save_at)
            for k in (2, 8)
        )
        assert long[1] - short[1] == 3 * (long[0] - short[0])


def test_what_a_flow_skips_far_away_changes_no_result() -> None:
    """Members that fail or stop at different times are what its questions are about."""
    mu = of.Particles([[[0.1]], [[4.0]], [[1.0]]])
    field, stop = of.UnnormalisedAttention([[1.0]], [[1.0]], [[1.0]]), lambda t, nu: nu.x[..., 0, 0] > 2.0
    for method, dt in ((of.RK4(), 0.01), (of.Dopri5(), None)):
        here = of.flow(mu, field, method, t1=0.5, dt=dt, save_at=[0.1, 0.5], stop=stop)
        with far_away():
            there = of.flow(mu, field, method, t1=0.5, dt=dt, save_at=[0.1, 0.5], stop=stop)
        np.testing.assert_array_equal(here.status, there.status)
        assert len(set(np.ravel(here.status))) > 1
        torch.testing.assert_close(here.final.x, there.final.x, rtol=1e-12, atol=0, equal_nan=True)
        torch.testing.assert_close(here.ended, there.ended, rtol=1e-12, atol=0, equal_nan=True)


# --- Sinkhorn ------------------------------------------------------------------------------------------


def clouds(batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    x, y = zoo.matrix(1, batch, 9, 2), zoo.matrix(2, batch, 9, 2)
    return x, y, torch.from_numpy(zoo.weights(3, batch, 9)).log()


def products(x: Tensor, y: Tensor) -> LogKernel:
    return Bilinear(2 * x, y)


def distances(x: Tensor, y: Tensor) -> LogKernel:
    one = torch.ones_like(x[:, 0, 0])
    return Pairwise(of.transport.PowerCost(2.0), x, y, of.Euclidean(), 1.0, one)


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("scores", [products, distances])
def test_a_sweep_of_sinkhorn_stays_on_cuda_and_asks_nothing(
    scores: Callable[[Tensor, Tensor], LogKernel], symmetric: bool, absorbed: bool
) -> None:
    there = Accelerator(CUDA)
    x, y, logw = (there.tensor(a) for a in clouds())
    with there:
        kernel = AbsorbedKernel(scores(x, x if symmetric else y), logw, logw, symmetric)
        state = kernel.state(torch.zeros_like(logw))
        state = state.absorbed() if absorbed else state
        assert state.moved(state.sweep).error.device == CUDA


def test_sweeps_ask_once_each() -> None:
    x, y, logw = clouds()
    kernel = AbsorbedKernel(products(x, y), logw, logw)
    with far_away(), HostReads() as reads:
        _, sweeps, _ = refine(kernel.state(torch.zeros_like(logw)), 1e-12, 100)
    assert 3 < sweeps < 20
    assert reads.found == {"tolist": sweeps + 2}  # at the start, and when the kernel has been absorbed


def test_a_state_that_has_moved_far_says_so_and_is_renewed() -> None:
    x, y, logw = clouds()
    for symmetric in (False, True):
        kernel = AbsorbedKernel(products(x, x if symmetric else y), logw, logw, symmetric)
        state = kernel.state(torch.zeros_like(logw)).absorbed()
        far = state.moved(torch.linspace(0, 900, 9, dtype=torch.float64)[None])
        assert far.strained
        assert not state.strained
        assert not far.renewed().strained
        torch.testing.assert_close(far.renewed().G, kernel.state(far.G).absorbed().G, rtol=0, atol=0)


# --- what is found out once ------------------------------------------------------------------------------


def test_weights_of_layers_move_with_their_times_which_stay_exact() -> None:
    field = of.SoftmaxAttention(*(of.Layers(torch.ones(2, 1, 1).double(), [0.0, 0.1, 0.3]) for _ in "QKV"))
    field.to(dtype=torch.float32)
    assert field.Q.edges.tolist() == [0.0, 0.1, 0.3]
    field.to(device="meta")
    assert {a.device.type for _, a in leaves(field)} == {"meta"} == {field.Q.edges.device.type}


def test_masses_are_looked_at_once_unless_they_are_rounded() -> None:
    mu = of.Particles([[0.0], [1.0]], [1e-60, 1.0])
    with HostReads() as reads:
        mu.move(mu.coords).detach().sharp(mu.coords)
    assert reads.total == 0
    with pytest.raises(of.InputError, match="without mass"):
        mu.to(torch.float32).sharp(mu.to(torch.float32).coords)
    with pytest.raises(of.InputError, match="without mass"):
        of.Particles([[0.0], [1.0]], [0.0, 1.0]).move(mu.coords).sharp(mu.coords)
    pair = of.Particles([[[0.0], [1.0]], [[0.0], [1.0]]], [[0.0, 1.0], [0.5, 0.5]])
    assert pair[1].sharp(pair[1].coords)[0].isfinite().all()


def test_cells_keep_their_width_and_lose_digits_with_their_axes() -> None:
    mu = of.Grid(np.full(3, 1 / 0.3), [np.array([0.1, 0.2, 0.3])])
    with HostReads() as reads:
        assert mu.at(mu.coords).detach().spacing == mu.spacing
    assert reads.total == 0
    assert mu.to(torch.float32).spacing[0] == float(np.float32(0.2) - np.float32(0.1)) != mu.spacing[0]


# --- what is not looked at is not trusted ----------------------------------------------------------------


def test_numbers_that_the_host_does_not_look_at_become_nan_rather_than_wrong() -> None:
    mu = of.Particles([[1e200], [1.0]])
    F, a = of.ExponentialInteraction([[1e200]]), of.metrics.Partition([[1e3]])
    twisted = of.Twisted(lambda nu, x: -torch.ones_like(x[..., 0]))
    field = of.SteepestDescent(of.Potential(zoo.harmonic), twisted)
    near = of.Particles([[1.0], [2.0]])
    for call in (lambda: F(mu), lambda: a(near, near.x), lambda: field(0.0, near)):
        with pytest.raises((of.errors.NotFiniteError, of.InputError)):
            call()
    with far_away():
        assert F(mu).isnan()
        assert a(near, near.x).isnan().all()
        traj = of.flow(near, field, of.Euler(), t1=1.0, dt=0.5, on_failure="return")
    assert traj.status == "invalid"
    assert traj.final.x.isfinite().all()


# --- MPS, and systems that are not POSIX ----------------------------------------------------------------


def test_a_device_without_float64_is_refused_and_the_remedy_named() -> None:
    mu, field = of.Particles([[1.0]], label=[0.0]), of.Perceptron([[1.0]], [[1.0]])
    tokens = Accelerator(torch.device("mps", 0)).tensor(torch.ones(2, 2))
    for call in (
        lambda: mu.to("mps"),
        lambda: mu.to(torch.float32, "mps"),
        lambda: mu.to(device=torch.device("mps")),
        lambda: field.to(device="mps"),
        lambda: of.Particles(tokens),
    ):
        with pytest.raises(of.InputError, match=r"'mps.*no float64.*CPU, or use a CUDA device"):
            call()


def test_a_measure_goes_to_a_device_by_name_and_to_no_odd_precision() -> None:
    mu = of.Particles([[1.0]], label=[0.5])
    assert mu.to("meta").device.type == mu.to("meta").label.device.type == "meta"
    assert mu.to("meta").to(torch.float32).dtype == torch.float32
    for dtype in (torch.float16, torch.int64):
        with pytest.raises(of.InputError, match="float32 or float64"):
            mu.to(dtype)


POSIX = ("resource", "fcntl", "pwd", "grp", "termios", "syslog", "posix", "pty")
AT_ONCE = re.compile(rf"^(import|from) ({'|'.join(POSIX)})\b", re.MULTILINE)
ROOT = Path(__file__).parents[1]


def test_no_module_imports_at_once_what_only_posix_has() -> None:
    folders = ("otflow", "examples", "benchmarks", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    suspects = {path: text for path, text in texts.items() if AT_ONCE.search(text)}
    assert suspects  # scripts in strings, which tests run in processes of their own
    assert not [str(path) for path, text in suspects.items() if at_once(ast.parse(text)) & set(POSIX)]


def at_once(module: ast.Module) -> set[str]:
    """What the statements of a module import, those in functions left out."""
    plain = {alias.name for node in module.body if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in module.body if isinstance(node, ast.ImportFrom)}


def test_without_posix_the_memory_is_guessed_or_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    peak_memory = importlib.import_module("timing").peak_memory
    assert peak_memory() > 1e4
    assert wasserstein._memory() != 2**33
    for name in POSIX:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr("os.sysconf", raising=False)
    monkeypatch.delattr("os.sysconf_names", raising=False)
    assert wasserstein._memory() == 2**33
    assert math.isnan(peak_memory())


# --- these tests can fail ----------------------------------------------------------------------------------


def test_the_accelerator_notices_two_devices_and_questions() -> None:
    there = Accelerator(CUDA)
    a = there.tensor(torch.ones(3))
    with there:
        for wrong in (
            lambda: a + torch.ones(3),
            lambda: bool(a.any()),
            lambda: a[a > 0],
            lambda: a.cpu() + a,
        ):
            with pytest.raises((RuntimeError, AssertionError)):
                wrong()


def test_every_way_of_reading_is_counted() -> None:
    a = torch.ones(3)
    with HostReads() as reads:
        ways: list[Callable[[], object]] = [
            lambda: bool(a.any()),
            lambda: a[0].item(),
            lambda: a.tolist(),
            lambda: a.numpy(),
            lambda: a[a > 0],
            lambda: a.nonzero(),
            lambda: torch.equal(a, a),
            lambda: torch.linalg.inv(torch.eye(2)),
        ]
        for k, way in enumerate(ways, 1):
            way()
            assert reads.total >= k
    assert checks.on_host(a)
    assert not checks.on_host(Accelerator(CUDA).tensor(a))
