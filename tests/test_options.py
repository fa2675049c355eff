"""Options of one name have one meaning: default, types and words, read from all public callables."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch

import otflow as of
from otflow.base import checks, progress
from otflow.errors import InputError

REQUIRED = inspect.Parameter.empty
SEED = frozenset({int, np.random.Generator})
# Names that would say what one of the five says already.
SYNONYMS = {"seed", "generator", "random_state", "maxiter", "n_iter", "verbose", "show_progress", "strict"}

TYPES: dict[str, frozenset[Any]] = {
    "on_failure": frozenset({Literal["raise", "return"]}),
    "progress": frozenset({bool}),
    "rng": SEED,
    "tol": frozenset({float}),
    "max_iter": frozenset({int}),
}
# The words with which the entry of a docstring starts.
WORDS = {
    "on_failure": r'"raise" raises `\w+`, which carries .*"return" returns',
    "progress": r"show a bar",
    "rng": r"a seed or a `numpy\.random\.Generator`",
    "tol": r"bound on ",
    "max_iter": r"limit on ",
}
# What is drawn is not the answer: it says where a search starts, or which samples a mean is over.
SEARCHES = {
    "adversary",
    "interpolate",
    "knothe_rosenblatt",
    "ladder",
    "local_constant",
    "simplex_overlap",
    "simplex_ratios",
    "singular_values",
}
# Something else may take the place of rng, and one of both is needed.
INSTEAD = {
    "CommonNoise": "path",
    "HeadNoise": "path",
    "IndependentNoise": "path",
    "Noise": "path",
    "sliced_wasserstein": "directions",
}
# Default of tol: 1e-9, but for these, each with its reason.
TOL: dict[str, tuple[float | None, str]] = {
    "JKO": (None, "every kind of measure has a solver, and every dtype a rounding, of its own"),
    "jko_step": (None, "as JKO"),
    "bures_barycentre": (1e-12, "Newton's method has the last digits for one more step"),
    "find_atoms": (1e-8, "positions of atoms are known to the root of the rounding of the energy"),
    "interpolate": (1e-3, "an angle, up to which a construction is exact on purpose"),
    "limit": (1e-7, "a rate of change, below which eigenvalues are told from zero"),
    "local_constant": (1e-6, "values are right to its square"),
    "singular_values": (1e-6, "values are right to its square"),
}
# Default of max_iter: 1000, but for these.
MAX_ITER: dict[str, tuple[int | None, str]] = {
    "JKO": (None, "every kind of measure has a solver of its own"),
    "jko_step": (None, "as JKO"),
    "Sinkhorn": (10_000, "an iteration is one product with a kernel"),
    "find_atoms": (10_000, "an iteration is one gradient"),
    "singular_values": (50, "an iteration is many runs of the flow"),
}
# Not called by users: engines get the numbers of `Sinkhorn`, a path the tolerance that it was built for.
HANDED_ON = {"potential", "solve", "Path", "MovementProblem"}


class Option(NamedTuple):
    owner: Callable[..., Any]
    name: str
    default: Any
    types: frozenset[Any]
    keyword: bool

    def __repr__(self) -> str:
        return f"{self.owner.__module__}.{self.called}({self.name})"

    @property
    def called(self) -> str:
        return self.owner.__name__


def public() -> Iterator[Any]:
    """Everything that otflow and its sub-packages list, papers included."""
    names = ["otflow", *(m.name for m in pkgutil.walk_packages(of.__path__, "otflow.") if m.ispkg)]
    for name in names:
        package = importlib.import_module(name)
        for thing in (getattr(package, word) for word in getattr(package, "__all__", ())):
            own = vars(thing).values() if inspect.ismodule(thing) and not hasattr(thing, "__path__") else ()
            yield from (f for f in own if getattr(f, "__module__", "") == thing.__name__)
            yield thing


def callables() -> Iterator[Callable[..., Any]]:
    for thing in public():
        if inspect.isclass(thing):
            own = (k for k in vars(thing) if not k.startswith("_"))
            yield from (f for k in own if inspect.isfunction(f := inspect.getattr_static(thing, k)))
        if (inspect.isclass(thing) and not issubclass(thing, Exception)) or inspect.isfunction(thing):
            yield thing


def alternatives(hint: Any) -> frozenset[Any]:
    """The types of a union, without None."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset(parts) - {type(None)}


def options_of(f: Callable[..., Any]) -> Iterator[Option]:
    target = f.__init__ if inspect.isclass(f) else f  # type: ignore[misc]
    for p in inspect.signature(f).parameters.values():
        if p.name in TYPES:
            hint = get_type_hints(target)[p.name]
            yield Option(f, p.name, p.default, alternatives(hint), p.kind is p.KEYWORD_ONLY)


@cache
def options() -> tuple[Option, ...]:
    out = (o for f in set(callables()) for o in options_of(f) if o.called not in HANDED_ON)
    return tuple(sorted(out, key=repr))


def named(name: str) -> list[Option]:
    found = [o for o in options() if o.name == name]
    assert found
    return found


def entry(o: Option) -> str | None:
    """What the docstring says of an option, up to the next one; None if it says nothing."""
    text = inspect.getdoc(o.owner) or ""
    lines = re.search(rf"^ +([\w, ]+, )?{o.name}(, [\w, ]+)?: (?P<words>.*(\n {{8,}}.*)*)", text, re.M)
    return re.sub(r"\s+", " ", lines["words"]) if lines else None


@pytest.mark.thorough  # imports every paper
def test_on_failure_raises_everywhere() -> None:
    assert {o.default for o in named("on_failure")} == {"raise"}
    assert {"flow", "sinkhorn", "limit", "jko_step"} <= {o.called for o in named("on_failure")}


@pytest.mark.thorough
def test_progress_is_off_everywhere() -> None:
    assert {o.default for o in named("progress")} == {False}
    assert {o.called for o in named("progress")} >= {"flow", "coupled", "distances", "speed"}


@pytest.mark.thorough
def test_rng_has_to_be_given_wherever_what_is_drawn_is_the_answer() -> None:
    expected = {
        o: 0 if o.called in SEARCHES else None if o.called in INSTEAD else REQUIRED for o in named("rng")
    }
    assert [o for o, default in expected.items() if o.default is not default] == []
    for o in named("rng"):
        assert o.called not in INSTEAD or INSTEAD[o.called] in inspect.signature(o.owner).parameters


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "usual", "others"), [("tol", 1e-9, TOL), ("max_iter", 1000, MAX_ITER)])
def test_limits_of_solvers_have_one_default_or_a_reason(
    name: str, usual: float, others: dict[str, tuple[float | None, str]]
) -> None:
    expected = {o: others.get(o.called, (usual, ""))[0] for o in named(name)}
    assert [(o, o.default) for o, default in expected.items() if o.default != default] == []


@pytest.mark.thorough
def test_no_exception_is_left_over() -> None:
    known = {name: {o.called for o in named(name)} for name in TYPES}
    assert known["rng"] >= SEARCHES | set(INSTEAD)
    assert known["tol"] >= set(TOL)
    assert known["max_iter"] >= set(MAX_ITER)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TYPES)
def test_an_option_takes_the_same_types_everywhere(name: str) -> None:
    assert [(o, o.types) for o in named(name) if o.types != TYPES[name]] == []


@pytest.mark.thorough
def test_options_are_passed_by_name() -> None:
    # `BrownianPath(rng, shape)` is made of its randomness, `Sinkhorn` is nothing but options.
    positional = {o.called for o in options() if not o.keyword}
    assert positional == {"BrownianPath", "Sinkhorn"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TYPES)
def test_docstrings_say_it_in_the_same_words(name: str) -> None:
    said = {o: entry(o) for o in named(name)}
    wrong = {
        o: words for o, words in said.items() if words and not re.match(rf"{WORDS[name]}|(as|see) ", words)
    }
    assert wrong == {}
    assert sum(words is not None for words in said.values()) >= len(said) / 2  # the test finds the entries


@pytest.mark.thorough
def test_no_other_name_is_used_for_these_options() -> None:
    taken = {f: set(inspect.signature(f).parameters) & SYNONYMS for f in callables() if inspect.isfunction(f)}
    assert {f: names for f, names in taken.items() if names} == {}


# --- the functions that check them -----------------------------------------------------------------------


@pytest.mark.parametrize("rng", [None, True, -1, 1.5, "0", torch.Generator().manual_seed(7)])
def test_what_is_no_seed_is_refused_everywhere_alike(rng: Any) -> None:
    drawn: list[Callable[[], Any]] = [
        lambda: of.Particles([[0.0]]).sample(2, rng=rng),
        lambda: of.Gaussian([0.0], cov=[[1.0]]).sample(2, rng=rng),
        lambda: of.Quantiles([0.0, 1.0], [0.0, 1.0]).sample(2, rng=rng),
        lambda: of.Grid([0.25, 0.75], [[0.5, 1.5]]).sample(2, rng=rng),
        lambda: of.dynamics.BrownianPath(rng, (1,)),
        lambda: of.stability.perturbations(of.Particles([[0.0], [1.0]]), 0.1, rng=rng),
    ]
    for draw in drawn:
        with pytest.raises(
            InputError, match=r"rng = .*: a seed >= 0 or a numpy\.random\.Generator is needed"
        ):
            draw()


def test_a_generator_of_torch_is_told_its_seed() -> None:
    with pytest.raises(InputError, match=r"pass rng=7\."):
        checks.generator(torch.Generator().manual_seed(7))  # type: ignore[arg-type]


def test_one_seed_and_its_generator_draw_the_same() -> None:
    mu = of.Gaussian([0.0, 1.0], cov=[[1.0, 0.0], [0.0, 2.0]])
    assert torch.equal(mu.sample(3, rng=5).x, mu.sample(3, rng=np.random.default_rng(5)).x)


@pytest.mark.parametrize(
    "call",
    [
        lambda **kw: of.sinkhorn(of.Particles([[0.0]]), of.Particles([[1.0]]), 1.0, **kw),
        lambda **kw: of.transport.solve(of.Particles([[0.0]]), of.Particles([[1.0]]), **kw),
        lambda **kw: of.jko_step(of.Gaussian([0.0], cov=[[1.0]]), of.Entropy(), 0.5, **kw),
    ],
    ids=["sinkhorn", "solve", "jko_step"],
)
def test_another_word_for_on_failure_is_refused_everywhere(call: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r'on_failure = .ignore.: it is "raise" or "return"'):
        call(on_failure="ignore")


# --- bars ------------------------------------------------------------------------------------------------


def pull() -> of.VelocityField:
    return of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())


def test_a_bar_of_fixed_steps_counts_steps(capsys: pytest.CaptureFixture[str]) -> None:
    of.flow(of.Particles([[1.0]]), pull(), of.Euler(), t1=1.0, dt=0.3, save_at=[0.5, 1.0], progress=True)
    out, err = capsys.readouterr()
    last = err.rstrip().splitlines()[-1].split("\r")[-1]
    assert out == ""
    assert last.startswith("flow by Euler: 100%|")
    assert "| 4/4 steps [" in last  # 0.3 and 0.2, twice


def test_a_bar_of_adaptive_steps_measures_time(capsys: pytest.CaptureFixture[str]) -> None:
    of.flow(of.Particles([[1.0]]), pull(), of.Dopri5(), t0=1.0, t1=3.5, progress=True)
    last = capsys.readouterr().err.rstrip().split("\r")[-1]
    assert last.startswith("flow by Dopri5: 100%|")
    assert "| 2.5/2.5 units of time [" in last


def test_a_bar_goes_on_when_a_member_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    mu, first = of.Particles([[[1.0]], [[0.1]]]), torch.tensor([True, False])
    traj = of.flow(mu, pull(), of.Dopri5(), t1=2.0, stop=lambda t, mu: first, progress=True)
    assert traj.status.tolist() == ["stopped", "ok"]
    assert "| 2/2 units of time [" in capsys.readouterr().err


def test_progress_is_true_or_false() -> None:
    with pytest.raises(InputError, match="progress = 'yes': an instance of bool is needed"):
        progress.bar(1, "flow", "steps", progress="yes")  # type: ignore[arg-type]
