"""References: what an object copies, what it holds live, and what it hands out.

One table of public classes and the arrays they are built from; the oracle is the same object built afresh
from the values of the moment, and central differences of objects built afresh.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

import otflow as of
from otflow.fields.weights import Slice
from otflow.transport import BilinearCost
from tests.samples import normal

EYE, ONE = torch.eye(2, dtype=torch.float64), torch.eye(1, dtype=torch.float64)
X = torch.from_numpy(normal(5, 2))
LABEL = torch.tensor([0.0, 3.0, 1.0, 4.0, 2.0], dtype=torch.float64)
CLOUD, ORDERED = of.Particles(X), of.Particles(X, label=LABEL)
LAW = of.Gaussian([0.1, -0.2], root=[[0.3, 0.0], [0.1, 0.2]])
LINE = of.Gaussian([0.1], root=[[0.3]])
ANYWHERE, TIGHT = torch.tensor([[1.0, 2.0], [-0.5, 0.7]], dtype=torch.float64), of.Sinkhorn(1.0, tol=1e-13)
SYMMETRIC = torch.tensor([[1.0, 0.4], [0.4, -0.6]], dtype=torch.float64)
H = 1e-5  # of central differences: h^2 from the third derivative, and 1e-13 / h from inner solvers


@dataclass(frozen=True)
class Case:
    """How to build an object of arrays, and how to ask it for numbers that depend on all of them."""

    build: Callable[..., Any]
    given: dict[str, Tensor]  # the identity wherever that may be
    ask: Callable[[Any], Any]
    ways: dict[str, Tensor]  # a direction for each array that may be learnt
    snapshot: bool = False  # whether later changes of a parameter are not followed


def velocity(mu: of.Measure, t: float = 0.5) -> Callable[[of.VelocityField], Any]:
    return lambda field: field(t, mu)


def attention(kind: Callable[..., Any], mu: of.Measure = CLOUD) -> Case:
    return weighted(kind, *"QKV", mu=mu)


def weighted(kind: Callable[..., Any], *names: str, mu: of.Measure = CLOUD) -> Case:
    return Case(kind, dict.fromkeys(names, EYE), velocity(mu), dict.fromkeys(names, ANYWHERE))


def turned(t: Tensor) -> Tensor:
    return torch.cos(t) * ANYWHERE


def descent(kind: Callable[..., of.Energy], given: dict[str, Tensor], mu: of.Measure = CLOUD) -> Case:
    def ask(energy: of.Energy) -> Any:
        return energy(mu), *of.SteepestDescent(energy, of.Wasserstein())(0.0, mu)

    def way(a: Tensor) -> Tensor:
        return SYMMETRIC[: len(a), : len(a)] if a.ndim == 2 else torch.ones_like(a)

    return Case(kind, given, ask, {name: way(a) for name, a in given.items()})


def metric(kind: Callable[..., of.Metric], name: str) -> Case:
    def ask(one: of.Metric) -> Any:
        u = of.Tangent([X.flip(0)])
        return one.inner(CLOUD, u, u), *one.gradient(CLOUD, u)

    return Case(kind, {name: EYE}, ask, {name: SYMMETRIC})


def measure(kind: Callable[..., of.Measure], ways: dict[str, Tensor], **given: Tensor) -> Case:
    def ask(mu: of.Measure) -> Any:
        return *mu.nodes(), *mu.parts().values(), *mu.coords, mu.inner(mu_tangent(mu), mu_tangent(mu))

    return Case(kind, given, ask, ways, snapshot=True)


def mu_tangent(mu: of.Measure) -> of.Tangent:
    return of.Tangent([torch.ones(shape, dtype=torch.float64) for shape in mu.shapes()])


def shaken(noise: of.dynamics.Noise) -> Any:
    return noise.increment(torch.zeros(()), CLOUD, X.flip(0)[..., : noise.shape(CLOUD)[-1]][: len(X)])


MASS = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15], dtype=torch.float64)
CELLS = torch.tensor([0.125, 0.375, 0.625, 0.875], dtype=torch.float64)
RHO = torch.tensor([0.4, 1.6, 1.2, 0.8], dtype=torch.float64)
BOTH = torch.stack([EYE, 2 * EYE])

CASES: dict[str, Case] = {
    "softmax": attention(of.SoftmaxAttention),
    "l2": attention(of.L2Attention),
    "sigmoid": attention(of.SigmoidAttention),
    "unnormalised": attention(of.UnnormalisedAttention),
    "sinkhorn": attention(lambda Q, K, V: of.SinkhornAttention(Q, K, V, TIGHT)),
    "softmax_causal": attention(lambda Q, K, V: of.SoftmaxAttention(Q, K, V, causal=True), ORDERED),
    "softmax_gaussian": attention(of.SoftmaxAttention, LAW),
    "l2_gaussian": attention(of.L2Attention, LAW),
    "sinkhorn_gaussian": attention(of.SinkhornAttention, LAW),
    "projection": attention(lambda Q, K, V: of.GaussianProjection(of.UnnormalisedAttention(Q, K, V)), LAW),
    "sum": weighted(lambda Q, K, V, W: of.SigmoidAttention(Q, K, V) - 2 * of.Perceptron(W, turned), *"QKVW"),
    "heads": weighted(lambda Q, K, V, W: of.MultiHead([of.SoftmaxAttention(Q, K, V)], [W]), *"QKVW"),
    "layers": Case(
        lambda values, edges: of.SoftmaxAttention(turned, of.Layers(values, edges), turned),
        {"values": BOTH, "edges": torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)},
        lambda field: (*field(0.5, CLOUD), *field(1.5, CLOUD)),
        {"values": torch.stack([ANYWHERE, ANYWHERE.mT])},
    ),
    "slices": Case(
        lambda whole: of.SoftmaxAttention(turned, Slice(whole, slice(0, 2), slice(None)), turned),
        {"whole": torch.cat([EYE, EYE])},
        velocity(CLOUD),
        {"whole": torch.cat([ANYWHERE, EYE])},
    ),
    "perceptron": Case(
        lambda W, U, b: of.Perceptron(W, U, b, torch.tanh),
        {"W": EYE, "U": EYE, "b": torch.zeros(2, dtype=torch.float64)},
        velocity(CLOUD),
        {"W": ANYWHERE, "U": ANYWHERE, "b": ANYWHERE[0]},
    ),
    "quadratic_potential": descent(of.QuadraticPotential, {"A": EYE, "b": EYE[0]}),
    "quadratic_interaction": descent(of.QuadraticInteraction, {"K": EYE}),
    "exponential": descent(of.ExponentialInteraction, {"A": EYE}),
    "sigmoid_energy": descent(of.SigmoidInteraction, {"A": EYE}),
    "squared_scores": descent(of.SquaredScores, {"A": EYE}),
    "self_transport": descent(lambda A: of.SelfTransport(A, TIGHT), {"A": EYE}),
    "self_transport_gaussian": descent(of.SelfTransport, {"A": EYE}, LAW),
    "l2_energy": descent(of.L2Energy, {"K": EYE}, LAW),
    "exponential_gaussian": descent(of.ExponentialInteraction, {"A": ONE}, LINE),
    "matrix_metric": metric(lambda matrix: of.Twisted(matrix=matrix), "matrix"),
    "partition_metric": metric(lambda A: of.Twisted(of.metrics.Partition(A)), "A"),
    "bilinear_cost": Case(
        BilinearCost,
        {"A": EYE},
        lambda cost: of.sinkhorn(CLOUD, ORDERED, TIGHT, cost=cost).regularised_cost,
        {"A": ANYWHERE},
    ),
    "noise": Case(lambda s: of.IndependentNoise(s, rng=0), {"s": EYE}, shaken, {"s": ANYWHERE}),
    "particles": measure(of.Particles, {"x": X, "w": MASS - 0.2}, x=X, w=MASS, label=LABEL),
    "gaussian": measure(
        lambda mean, root: of.Gaussian(mean, root=root),
        {"mean": X[0, :1], "root": 2 * ONE},
        mean=X[1, :1],
        root=ONE,
    ),
    "gaussian_by_cov": measure(
        lambda mean, cov: of.Gaussian(mean, cov=cov), {"cov": 2 * ONE}, mean=X[1, :1], cov=ONE
    ),
    "grid": measure(lambda density, x: of.Grid(density, [x]), {"density": RHO - 1}, density=RHO, x=CELLS),
    "quantiles": measure(
        of.Quantiles, {"x": torch.ones(4).double()}, x=CELLS, levels=torch.tensor([0, 0.2, 0.7, 1]).double()
    ),
}
MEASURES = [name for name, case in CASES.items() if case.snapshot]
# Those with derivatives of their own, or by autograd, which torch.func does not follow.
NO_FUNC = {
    *("sinkhorn", "sinkhorn_gaussian", "bilinear_cost", "gaussian_by_cov", "self_transport"),
    *("self_transport_gaussian", "l2_energy", "exponential_gaussian", "squared_scores"),
    *("quadratic_potential", "quadratic_interaction"),
}
EVERY = [(name, arg) for name, case in CASES.items() for arg in case.given]
LEARNT = [(name, arg) for name, case in CASES.items() for arg in case.ways]


def asked(case: Case, one: Any) -> Tensor:
    """All numbers that the object is asked for, in one vector."""
    answer = case.ask(one)
    return torch.cat([a.flatten() for a in ([answer] if isinstance(answer, Tensor) else answer)])


def afresh(case: Case, **other: Any) -> Tensor:
    """The answer of an object that is built now, of plain numbers unless told."""
    return asked(case, case.build(**{name: a.clone() for name, a in case.given.items()} | other))


def slope(case: Case, arg: str) -> Tensor:
    """The derivative along the way of one array, by central differences of objects built afresh."""
    a, way = case.given[arg], case.ways[arg]
    return (afresh(case, **{arg: a + H * way}) - afresh(case, **{arg: a - H * way})) / (2 * H)


@pytest.mark.parametrize(("name", "arg"), EVERY)
def test_what_is_plain_is_copied(name: str, arg: str) -> None:
    case = CASES[name]
    for plain in (case.given[arg].clone(), case.given[arg].numpy().copy()):
        one = case.build(**case.given | {arg: plain})
        before = asked(case, one)
        plain[...] = 3 * plain + 1
        assert torch.equal(asked(case, one), before)


@pytest.mark.parametrize(("name", "arg"), LEARNT)
def test_what_learns_is_live(name: str, arg: str) -> None:
    """Edited in place, as by an optimiser, and through .data: as if the object were built anew."""
    case = CASES[name]
    p = nn.Parameter(case.given[arg].clone())
    one = case.build(**case.given | {arg: p})
    before, new = asked(case, one).detach(), case.given[arg] + 0.1 * case.ways[arg]
    expected = before if case.snapshot else afresh(case, **{arg: new})
    with torch.no_grad():
        p.copy_(new)
    torch.testing.assert_close(asked(case, one).detach(), expected, rtol=1e-12, atol=1e-12)
    p.data.copy_(case.given[arg])
    torch.testing.assert_close(asked(case, one).detach(), before, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "arg"), LEARNT)
def test_gradients_at_the_identity_are_those_of_the_numbers(name: str, arg: str) -> None:
    """Of the object built of a parameter, and after a step of an optimiser and one back."""
    case = CASES[name]
    expected, p = slope(case, arg), nn.Parameter(case.given[arg].clone())
    one = case.build(**{key: a.clone() for key, a in case.given.items()} | {arg: p})
    for factor in (1.0, 2.0, 0.5):
        if not case.snapshot:
            with torch.no_grad():
                p.mul_(factor)
    (g,) = torch.autograd.grad(asked(case, one), p, expected)
    torch.testing.assert_close((g * case.ways[arg]).sum(), expected.square().sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "arg"), [pair for pair in LEARNT if pair[0] != "self_transport"])
def test_tangents_at_the_identity_are_those_of_the_numbers(name: str, arg: str) -> None:
    case = CASES[name]
    with forward_ad.dual_level():
        out = afresh(case, **{arg: forward_ad.make_dual(case.given[arg].clone(), case.ways[arg])})
        tangent = forward_ad.unpack_dual(out).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, slope(case, arg), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "arg"), [pair for pair in LEARNT if pair[0] not in NO_FUNC])
def test_torch_func_at_the_identity_gives_what_the_numbers_give(name: str, arg: str) -> None:
    """Also where another transformation stands in between, behind which a tangent cannot be seen."""
    case = CASES[name]
    a, way = case.given[arg].clone(), case.ways[arg]
    one = torch.ones((), dtype=a.dtype)

    def scaled(a: Tensor) -> Tensor:
        return torch.func.jvp(lambda s: s * afresh(case, **{arg: a}), (one,), (one,))[1]

    for f in (lambda a: afresh(case, **{arg: a}), scaled):
        torch.testing.assert_close(torch.func.jvp(f, (a,), (way,))[1], slope(case, arg), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "arg"), [pair for pair in LEARNT if pair[0] in NO_FUNC])
def test_what_torch_func_cannot_follow_is_refused(name: str, arg: str) -> None:
    case = CASES[name]
    a, way = case.given[arg].clone(), case.ways[arg]
    words = (
        None if name in ("bilinear_cost", "self_transport") else r"torch\.func .* use torch\.autograd\.grad"
    )
    with pytest.raises(RuntimeError if words is None else of.errors.DerivativeError, match=words):
        torch.func.jvp(lambda a: afresh(case, **{arg: a}), (a,), (way,))
    with pytest.raises(of.errors.DerivativeError, match=r"torch\.func .* use torch\.autograd\.grad"):
        torch.func.jacrev(lambda a: afresh(case, **{arg: a}))(a)


def test_no_torch_func_passes_attention_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of.base.kernels, "DENSE", 0)
    for kind in (of.SoftmaxAttention, of.SigmoidAttention):
        with pytest.raises(of.errors.DerivativeError, match=r"torch\.func"):
            torch.func.jvp(lambda Q, kind=kind: kind(Q, EYE, EYE)(0.0, CLOUD)[0], (EYE,), (ANYWHERE,))
        with pytest.raises(of.errors.DerivativeError, match=r"torch\.func"):
            torch.func.vmap(lambda x, kind=kind: kind(EYE, EYE, EYE)(0.0, CLOUD.at([x]))[0])(X[None])


def test_every_formula_with_derivatives_is_ready_for_torch_func_or_refuses_it() -> None:
    """A bare autograd.Function answers with what torch wants changed in otflow."""
    for path in Path(of.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and "torch.autograd.Function" in map(ast.unparse, node.bases):
                names = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
                assert node.name == "ByFormula" or "setup_context" in names, f"{path.name}: {node.name}"


def test_a_tangent_that_a_differential_loses_is_refused() -> None:
    with forward_ad.dual_level():
        A = forward_ad.make_dual(EYE.clone(), SYMMETRIC)
        with pytest.raises(of.errors.DerivativeError, match="SinkhornAttention"):
            of.SteepestDescent(of.SelfTransport(A), of.Wasserstein())(0.0, CLOUD)
        mean = forward_ad.make_dual(LAW.mean.clone(), LAW.mean)
        field = of.SteepestDescent(of.ExponentialInteraction(A), of.Wasserstein())
        out = field(0.0, LAW.at([mean, LAW.root]))
        assert all(forward_ad.unpack_dual(part).tangent is not None for part in out)


def test_a_zero_mean_behind_two_transformations_has_a_derivative() -> None:
    """A mean of zero is left out of products, unless somebody follows it."""
    field, root, one = (
        of.SoftmaxAttention(EYE, EYE, ANYWHERE),
        EYE.clone(),
        torch.ones((), dtype=torch.float64),
    )

    def b(mean: Tensor) -> Tensor:
        return torch.func.jvp(lambda s: s * field(0.0, LAW.at([mean, root]))[0], (one,), (one,))[1]

    zero = torch.zeros(2, dtype=torch.float64)
    along = torch.func.jvp(b, (zero,), (LAW.mean,))[1]
    torch.testing.assert_close(along, (b(H * LAW.mean) - b(-H * LAW.mean)) / (2 * H), rtol=1e-8, atol=1e-10)


# --- what is handed out --------------------------------------------------------------------------------


def handed_out(one: Any, name: str = "", depth: int = 3) -> Iterator[tuple[str, Tensor]]:
    """The tensors that public attributes give, and those of what they give."""
    if isinstance(one, Tensor):
        yield name, one
    elif isinstance(one, tuple | list):
        for i, part in enumerate(one):
            yield from handed_out(part, f"{name}[{i}]", depth)
    elif depth and type(one).__module__.startswith("otflow"):
        for key in dir(one):
            if not key.startswith("_"):
                yield from handed_out(getattr(one, key, None), f"{name}.{key}", depth - 1)
    if isinstance(one, of.Measure):
        yield from handed_out(one.nodes(), f"{name}.nodes()", depth)


def edited(a: Tensor) -> Tensor:
    return a + 0.1 * SYMMETRIC if a.shape == SYMMETRIC.shape else a.square() + 0.1 * a


@pytest.mark.parametrize("name", CASES)
def test_an_edit_of_what_is_handed_out_is_one_of_a_copy_or_of_all(name: str) -> None:
    """No number of the object may remain what it was, unless all of them do; others like it never change."""
    case = CASES[name]
    fresh = afresh(case)
    wholes = [afresh(case, **{arg: edited(a)}) for arg, a in case.given.items() if name not in MEASURES]
    for place, _ in handed_out(case.build(**case.given)):
        one = case.build(**case.given)
        a = dict(handed_out(one))[place]
        try:
            a.copy_(edited(a))
        except RuntimeError:
            continue  # expanded: torch refuses
        after = asked(case, one)
        known = name in MEASURES or any(
            torch.allclose(after, w, rtol=1e-9, atol=1e-9) for w in [fresh, *wholes]
        )
        assert known, place
        assert torch.equal(afresh(case), fresh), place


def test_a_matrix_that_is_handed_out_is_checked_again() -> None:
    energy, field = of.QuadraticPotential(EYE), of.SoftmaxAttention(EYE, EYE, EYE)
    energy.A[0, 1] += 1.0
    with pytest.raises(of.InputError, match="symmetric"):
        energy(CLOUD)
    V = field.V.value.requires_grad_()
    field(0.0, CLOUD)[0].sum().backward()
    assert bool(V.grad.any())


@pytest.mark.parametrize(
    ("name", "arg"), [("softmax", "V"), ("exponential", "A"), ("quadratic_potential", "b")]
)
def test_what_was_to_learn_is_held_when_it_is_frozen(name: str, arg: str) -> None:
    case = CASES[name]
    a = case.given[arg].clone().requires_grad_()
    with torch.no_grad():
        one = case.build(**case.given | {arg: a})
    asked(case, one)
    a.requires_grad_(requires_grad=False).mul_(2.0)
    torch.testing.assert_close(asked(case, one), afresh(case, **{arg: 2 * case.given[arg]}))


def test_masses_and_cells_that_are_edited_are_looked_at_again() -> None:
    mu, grid = of.Particles(X, MASS), of.Grid(RHO, [CELLS])
    mu.sharp(of.Tangent([X]))
    mu.w[0], mu.w[1] = 0.0, 0.3
    with pytest.raises(of.InputError, match="min"):
        mu.sharp(of.Tangent([X]))
    assert grid.spacing == (0.25,)
    grid.axes[0].mul_(2.0)
    assert grid.spacing == (0.5,)


def test_what_is_plain_in_a_list_with_what_learns_is_copied() -> None:
    """Layers of which some are frozen; an array among them is as good as a tensor."""
    p, plain, array = nn.Parameter(EYE.clone()), 2 * EYE, 3 * EYE.numpy()
    layers = of.Layers([p, plain, array])
    plain.mul_(5.0)
    array *= 5.0
    with torch.no_grad():
        p.mul_(7.0)
    for t, factor in ((0.5, 7.0), (1.5, 2.0), (2.5, 3.0)):
        assert torch.equal(layers(torch.tensor(t)), factor * EYE)
    assert [id(a) for a in layers.parameters()] == [id(p)]


def test_edges_are_held_without_a_graph() -> None:
    """They have no derivative, and what is held with one cannot be copied."""
    edges = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    layers = of.Layers(BOTH, edges)
    assert not layers.edges.requires_grad
    assert torch.equal(copy.deepcopy(layers).edges, edges)


@pytest.mark.parametrize("kind", [of.IndependentNoise, of.CommonNoise])
@pytest.mark.parametrize("sigma", [np.array(0.3), np.eye(2), torch.tensor(0.3), EYE.clone()], ids=str)
def test_noise_copies_its_strength_and_draws_its_path_once(kind: Any, sigma: Any) -> None:
    rng = np.random.default_rng(0)
    path = of.dynamics.BrownianPath(rng, [2])  # type: ignore[arg-type]
    noise, before, w = kind(sigma, path=path), torch.as_tensor(sigma).clone().double(), path(0.7)
    sigma[...] = 5.0
    rng.random(100)
    assert torch.equal(noise.sigma.double(), before)
    assert np.array_equal(path(0.7), w)


def test_lists_of_axes_and_save_times_may_be_edited() -> None:
    axes, ts = [CELLS.clone()], np.array([0.0, 0.1, 0.2])
    grid = of.Grid(RHO, axes)
    traj = of.flow(CLOUD, CASES["softmax"].build(EYE, EYE, EYE), of.Euler(), t1=0.2, dt=0.1, save_at=ts)
    axes[0].mul_(2.0)
    axes.clear()
    ts *= 7.0
    assert torch.equal(grid.axes[0], CELLS)
    assert traj.ts.tolist() == [0.0, 0.1, 0.2]


def test_a_moved_measure_has_numbers_of_its_own() -> None:
    """Those that move; weights, labels, levels and axes are one and the same for all of a run."""
    for name in MEASURES:
        mu = CASES[name].build(**CASES[name].given)
        moved = mu.move(0.0 * mu_tangent(mu))
        before = [a.clone() for a in moved.coords]
        for a in mu.coords:
            a.mul_(2.0)
        assert all(torch.equal(a, b) for a, b in zip(moved.coords, before, strict=True)), name


def test_a_brownian_path_hands_out_copies() -> None:
    path, other = (of.dynamics.BrownianPath(3, (2,)) for _ in range(2))
    for t in (0.0, 0.25, 0.3, 1.0, 2.0):
        path(t)[...] += 7.0
        path.increment(0.0, t)[...] -= 5.0
        assert np.array_equal(path(t), other(t))


def test_tables_of_quadrature_are_not_handed_out() -> None:
    """The weights of the nodes were those of all Gaussians of the process."""
    law = of.Gaussian([0.0, 0.0], root=EYE)
    law.nodes()[1].mul_(2.0)
    assert float(of.Gaussian([0.0, 0.0], root=EYE).nodes()[1].sum()) == pytest.approx(1.0, rel=1e-14)


# --- what outlives a call ------------------------------------------------------------------------------


def test_what_is_computed_from_a_measure_does_not_hang_on_it() -> None:
    """Targets, plans, maps and moments are asked again when the measure may have been edited."""
    mu, nu, law = of.Particles(X), of.Particles(X.flip(0) + 1.0), of.Gaussian([1.0], cov=[[4.0]])
    plan, energy = of.sinkhorn(mu, nu, 1.0), of.SquaredWasserstein(nu)
    found, edges = of.solve(law, of.Gaussian([0.0], cov=[[1.0]])), of.Quantiles(CELLS, [0.0, 0.2, 0.7, 1.0])
    answers: list[Callable[[], Tensor]] = [
        lambda: plan.cost,
        plan.barycentric,
        lambda: energy(CLOUD),
        lambda: found.map(torch.ones(1, 1, dtype=torch.float64)),
        lambda: found.potentials[0](torch.ones(1, 1, dtype=torch.float64)),
    ]
    before = [f().clone() for f in answers]
    for a in (mu.x, nu.x, law.mean, law.root):
        a.mul_(3.0)
    for f, value in zip(answers, before, strict=True):
        torch.testing.assert_close(f(), value, rtol=1e-13, atol=1e-13)
    of.observables.mean(law).zero_()
    edges.density()[0].zero_()
    assert law.mean.item() == 3.0
    assert torch.equal(edges.x, CELLS)
