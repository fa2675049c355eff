"""Three engines, one answer, and nobody is believed without a look at the marginals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.transport.entropic import engines, laplacian
from otflow.transport.entropic.costs import BilinearCost, PowerCost
from otflow.transport.entropic.engines import POT, ColumnPotential, Engine, GeomLoss, scale
from otflow.transport.entropic.log_kernel import Bilinear
from otflow.transport.entropic.newton import NewtonSinkhorn
from otflow.transport.entropic.scaling import AbsorbedKernel
from otflow.transport.entropic.sinkhorn import EntropicTransport, sinkhorn, sinkhorn_divergence
from tests import zoo
from tests.regimes import REGIMES, regime

OTHERS: dict[str, Engine] = {"pot": POT(), "geomloss": GeomLoss()}
A = np.array([[0.5, 1.0], [-0.3, 0.2]])


def cloud(seed: int, n: int, *batch: int, empty: tuple[int, ...] = ()) -> of.Particles:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((*batch, n, 2)), rng.uniform(0.2, 1.0, (*batch, n))
    w[..., list(empty)] = 0.0
    return of.Particles(x, w / w.sum(-1, keepdims=True))


def sphere(seed: int, n: int) -> of.Particles:
    x = cloud(seed, n).x
    return of.Particles(x / x.norm(dim=-1, keepdim=True), space=of.Sphere())


def uneven(x: Tensor, y: Tensor) -> Tensor:
    return (x - 2 * y).abs().sum(-1)


PROBLEMS: dict[str, Callable[[], tuple[of.Measure, of.Measure, Any, float]]] = {
    "squared": lambda: (cloud(1, 9), cloud(2, 14), None, 0.5),
    "sharp": lambda: (cloud(1, 9), cloud(2, 8), None, 0.05),
    "blurred": lambda: (cloud(1, 9), cloud(2, 14), None, 1e3),
    "distance": lambda: (cloud(1, 9), cloud(2, 14), PowerCost(1), 0.3),
    "bilinear": lambda: (cloud(1, 9), cloud(2, 14), BilinearCost(A), 0.5),
    "function": lambda: (cloud(1, 9), cloud(2, 14), uneven, 0.5),
    "sphere": lambda: (sphere(1, 6), sphere(2, 8), None, 0.5),
    "grids": lambda: (zoo_grid(1, 6), zoo_grid(2, 5), None, 0.2),
    "without mass": lambda: (cloud(1, 9, empty=(0, 4)), cloud(2, 14, empty=(3, 13)), None, 0.5),
    "batch": lambda: (cloud(1, 5, 3, 1), cloud(2, 6, 2), None, 0.5),
    "batch without mass": lambda: (cloud(1, 5, 3, empty=(1,)), cloud(2, 6, empty=(0, 5)), None, 0.5),
    "one atom": lambda: (cloud(1, 1), cloud(2, 6), None, 0.5),
}


def zoo_grid(seed: int, cells: int) -> of.Grid:
    rho = np.random.default_rng(seed).uniform(0.0, 1.0, cells)
    x = -1 + 2 * (np.arange(cells) + 0.5) / cells
    return of.Grid(rho / rho.sum() * cells / 2, [x])


def columns(plan: EntropicTransport, nu: of.Measure) -> Tensor:
    """The L1 error of the columns of the matrix."""
    return (plan.plan.sum(-2) - nu.nodes()[1]).abs().sum(-1)


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_all_engines_find_the_same_plan(name: str, engine: str) -> None:
    mu, nu, cost, eps = PROBLEMS[name]()
    ours = sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-11), cost=cost)
    theirs = sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-11, engine=OTHERS[engine], max_iter=100_000), cost=cost)
    torch.testing.assert_close(theirs.plan, ours.plan, rtol=1e-6, atol=1e-10)
    torch.testing.assert_close(theirs.regularised_cost, ours.regularised_cost, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(theirs.cost, ours.cost, rtol=1e-7, atol=1e-9)
    assert bool((columns(theirs, nu) <= 1.1e-11).all())
    assert bool(torch.isfinite(theirs.f).all() & torch.isfinite(theirs.g).all())
    assert theirs.f.shape == ours.f.shape
    assert theirs.g.shape == ours.g.shape


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("name", ["squared", "distance", "bilinear", "function", "without mass", "batch"])
def test_all_engines_find_the_same_divergence(name: str, engine: str) -> None:
    mu, nu, cost, eps = PROBLEMS[name]()
    ours = sinkhorn_divergence(mu, nu, of.Sinkhorn(eps, tol=1e-10), cost=cost)
    theirs = sinkhorn_divergence(
        mu, nu, of.Sinkhorn(eps, tol=1e-10, engine=OTHERS[engine], max_iter=100_000), cost=cost
    )
    torch.testing.assert_close(theirs, ours, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("how", REGIMES)
def test_all_engines_give_the_same_gradient(engine: str, how: str) -> None:
    mu, nu, _, eps = PROBLEMS["squared"]()
    gradients = []
    for who in (NewtonSinkhorn(), OTHERS[engine]):
        x = mu.nodes()[0].clone().requires_grad_()
        with regime(how):
            value = sinkhorn(
                of.Particles(x, mu.nodes()[1]), nu, of.Sinkhorn(eps, tol=1e-10, engine=who)
            ).regularised_cost
            gradients.append(torch.autograd.grad(value, x)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("measure", ["weighted", "batched"])
def test_attention_is_the_same_with_every_engine(measure: str, engine: str) -> None:
    mu, (Q, K, V) = zoo.MEASURES[measure](), zoo.QKV(4)
    for keys in (K, Q):  # a symmetric kernel has a way of its own
        ours, theirs = (
            of.SinkhornAttention(Q, keys, V, of.Sinkhorn(3.0, tol=1e-10, max_iter=100_000, engine=who))(
                0.0, mu
            )[0]
            for who in (NewtonSinkhorn(), OTHERS[engine])
        )
        torch.testing.assert_close(theirs, ours, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_that_need_more_sweeps_say_so(engine: str) -> None:
    mu, nu = cloud(1, 12), cloud(2, 14)
    with pytest.raises(of.errors.ConvergenceError, match="max_iter") as caught:
        sinkhorn(mu, nu, of.Sinkhorn(0.01, engine=OTHERS[engine], max_iter=50))
    plan = caught.value.result
    assert plan.status == "max_iter"
    assert plan.sweeps <= 52
    assert plan.error.item() == pytest.approx(columns(plan, nu).item(), rel=1e-6)
    assert plan.error.item() > 1e-9


@pytest.mark.parametrize("engine", [NewtonSinkhorn(), *OTHERS.values()], ids=repr)
@pytest.mark.parametrize("eps", [1e-1, 1e-3, 1e-5, 1e-8])
def test_no_engine_claims_more_than_the_matrix_shows(eps: float, engine: Engine) -> None:
    mu, nu = cloud(3, 12), cloud(4, 10)
    plan = sinkhorn(mu, nu, of.Sinkhorn(eps, engine=engine, max_iter=300), on_failure="return")
    rounding = 1e-13 + 1e-14 * float(plan.g.abs().max() + plan.f.abs().max()) / eps
    assert abs(plan.error.item() - columns(plan, nu).item()) <= 1e-6 * plan.error.item() + rounding
    assert (plan.status == "ok") == (plan.error.item() <= 1e-9)


@dataclass(frozen=True)
class Liar(Engine):
    """Returns whatever it likes and says that all went well."""

    lie: Callable[[AbsorbedKernel], Tensor]

    def potential(
        self, kernel: AbsorbedKernel, *, tol: float, max_iter: int, start: Tensor | None
    ) -> ColumnPotential:
        return ColumnPotential(self.lie(kernel), 1, torch.zeros(kernel.scores.shape[0], dtype=torch.bool))


def noise(kernel: AbsorbedKernel) -> Tensor:
    return torch.randn(kernel.logb.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


LIES: dict[str, Callable[[AbsorbedKernel], Tensor]] = {
    "zeros": lambda kernel: torch.zeros_like(kernel.logb),
    "noise": noise,
    "large noise": lambda kernel: 1e5 * noise(kernel),
    "astronomic noise": lambda kernel: 1e17 * noise(kernel),
    "overflow": lambda kernel: 1e308 * noise(kernel),
    "nan": lambda kernel: torch.full_like(kernel.logb, torch.nan),
    "infinity": lambda kernel: torch.full_like(kernel.logb, torch.inf),
    "one nan": lambda kernel: noise(kernel).index_fill(-1, torch.tensor([2]), torch.nan),
}


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("name", LIES)
def test_a_lying_engine_is_caught(name: str, how: str) -> None:
    mu, nu, liar = cloud(1, 9), cloud(2, 14), Liar(LIES[name])
    with regime(how):
        with pytest.raises((of.errors.ConvergenceError, of.errors.NotFiniteError)):
            sinkhorn(mu, nu, of.Sinkhorn(0.1, engine=liar))
        with pytest.raises((of.errors.ConvergenceError, of.errors.NotFiniteError)):
            sinkhorn_divergence(mu, nu, of.Sinkhorn(0.1, engine=liar))
        plan = sinkhorn(mu, nu, of.Sinkhorn(0.1, engine=liar), on_failure="return")
    assert plan.status != "ok"
    assert not plan.error.item() <= 1e-3


def test_attention_catches_a_lying_engine_too() -> None:
    mu, (Q, K, V) = zoo.MEASURES["weighted"](), zoo.QKV(4)
    with pytest.raises(of.errors.ConvergenceError, match="Sinkhorn"):
        of.SinkhornAttention(Q, K, V, of.Sinkhorn(1.0, engine=Liar(LIES["noise"])))(0.0, mu)


def test_one_lie_in_a_batch_is_found_where_it_is() -> None:
    mu, nu = cloud(1, 5, 3), cloud(2, 6)
    right = sinkhorn(mu, nu, 0.5)

    def lie(kernel: AbsorbedKernel) -> Tensor:
        G = NewtonSinkhorn().potential(kernel, tol=1e-9, max_iter=1000, start=None).G.clone()
        G[1, 0] += 1e-3
        return G

    plan = sinkhorn(mu, nu, of.Sinkhorn(0.5, engine=Liar(lie)), on_failure="return")
    assert (plan.status == "ok").tolist() == [True, False, True]
    torch.testing.assert_close(
        plan.regularised_cost[[0, 2]], right.regularised_cost[[0, 2]], rtol=1e-9, atol=0
    )
    assert 1e-6 < plan.error[1].item() < 1e-3


def test_a_constant_in_the_potential_has_no_meaning() -> None:
    mu, nu = cloud(1, 9), cloud(2, 14)

    def shifted(kernel: AbsorbedKernel) -> Tensor:
        return NewtonSinkhorn().potential(kernel, tol=1e-9, max_iter=1000, start=None).G + 1234.5

    plan, right = sinkhorn(mu, nu, of.Sinkhorn(0.5, engine=Liar(shifted))), sinkhorn(mu, nu, 0.5)
    torch.testing.assert_close(plan.g, right.g, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("engine", OTHERS)
def test_matrices_that_are_too_large_are_refused_before_they_are_made(engine: str) -> None:
    mu, nu = of.Particles(torch.zeros(20_000, 1)), of.Particles(torch.zeros(10_000, 1))
    with pytest.raises(of.InputError, match=r"20000 x 10000.*1\.6 GB.*NewtonSinkhorn"):
        sinkhorn(mu, nu, of.Sinkhorn(1.0, engine=OTHERS[engine]))


@pytest.mark.parametrize("engine", OTHERS)
def test_the_limit_is_on_one_member_of_a_batch(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "DENSE", 30)
    assert sinkhorn(
        cloud(1, 5, 4), cloud(2, 6), of.Sinkhorn(1.0, engine=OTHERS[engine])
    ).regularised_cost.shape == (4,)
    with pytest.raises(of.InputError, match="NewtonSinkhorn"):
        sinkhorn(cloud(1, 5), cloud(2, 7), of.Sinkhorn(1.0, engine=OTHERS[engine]))


@pytest.mark.parametrize(
    "wrong", [POT, GeomLoss, NewtonSinkhorn, "pot", 3, sinkhorn], ids=lambda w: str(w)[:20]
)
def test_an_engine_is_an_object(wrong: Any) -> None:
    with pytest.raises(of.InputError, match="engine"):
        sinkhorn(cloud(1, 5), cloud(2, 7), of.Sinkhorn(1.0, engine=wrong))
    with pytest.raises(of.InputError, match="engine"):
        of.SinkhornAttention(*zoo.QKV(4), eps=of.Sinkhorn(1.0, engine=wrong))


@pytest.mark.parametrize("annealing", [0, -3, 2.5])
def test_annealing_takes_a_whole_number_of_iterations(annealing: Any) -> None:
    with pytest.raises(of.InputError, match="annealing"):
        sinkhorn(cloud(1, 5), cloud(2, 7), of.Sinkhorn(1.0, engine=GeomLoss(annealing)))


@pytest.mark.parametrize("engine", [NewtonSinkhorn(), *OTHERS.values()], ids=repr)
def test_engines_look_at_no_gradient(engine: Engine) -> None:
    q = torch.randn(1, 4, 2, dtype=torch.float64, requires_grad=True)
    logw = torch.full((1, 4), 0.25, dtype=torch.float64).log()
    with torch.no_grad():
        s = scale(AbsorbedKernel(Bilinear(q, q), logw, logw), engine, tol=1e-9, max_iter=10_000)
    assert bool(s.converged.all())
    assert not s.G.requires_grad


# --- the inner works of our own engine --------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_newton_solves_a_laplacian_between_columns(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """(diag(b s) - P^T a P) d = rhs, by numpy's pseudo-inverse."""
    monkeypatch.setattr(laplacian, "FACTORISE", 0 if sparse else 3072)
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.1, 1.0, 12), rng.uniform(0.1, 1.0, 9)
    a, b = a / a.sum(), b / b.sum()
    P = np.exp(-8 * rng.uniform(0, 1, (12, 9)))
    P /= P.sum(1, keepdims=True)
    L = np.diag(a @ P) - P.T @ (a[:, None] * P)
    rhs = rng.standard_normal(9)
    rhs -= rhs.mean()
    d = laplacian.solve(*(torch.from_numpy(z)[None] for z in (P, a, b, rhs)))
    assert d is not None
    expected, got = np.linalg.pinv(L) @ rhs, d[0].numpy()
    gap = got - expected - (got - expected).mean()
    assert np.abs(gap).max() < (1e-2 if sparse else 1e-9) * np.abs(expected).max()


@pytest.mark.thorough
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("eps", [1e-2, 1e-3, 1e-5])
def test_sharp_plans_converge_by_either_way_of_newton(
    eps: float, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laplacian, "FACTORISE", 0 if sparse else 3072)
    mu, nu = cloud(5, 60), cloud(6, 50)
    plan = sinkhorn(mu, nu, eps)
    assert columns(plan, nu).item() <= 1.1e-9


@pytest.mark.parametrize("how", REGIMES)
def test_the_gaussian_guess_is_right_for_gaussians(how: str) -> None:
    """Between fine discretisations of Gaussians nothing is left to be done but a sweep or two."""
    x = torch.linspace(-7, 7, 71, dtype=torch.float64)[:, None]
    weights = [torch.softmax(-((x[:, 0] - m) ** 2) / (2 * s * s), 0) for m, s in ((0.3, 1.0), (-0.5, 0.7))]
    mu, nu = (of.Particles(x, w) for w in weights)
    with regime(how):
        plan = sinkhorn(mu, nu, of.Sinkhorn(2.0, tol=1e-9))
    assert plan.sweeps <= 3


@pytest.mark.thorough
@pytest.mark.slow(but_for=["*-positive", "0.1-indefinite"])
@pytest.mark.parametrize(
    "A", [[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0]], ids=["negative", "indefinite", "positive"]
)
@pytest.mark.parametrize("eps", [0.1, 0.01])
def test_symmetric_kernels_of_any_sign_converge_with_uneven_weights(A: list[float], eps: float) -> None:
    """The averaged sweep contracts only where the kernel is positive; the alternating one always does."""
    cost = BilinearCost(np.diag(A))
    for seed in range(25):
        rng = np.random.default_rng(seed)
        x, w = rng.normal(size=(6, 2)), 10 ** rng.uniform(-2, 0, 6)
        mu = of.Particles(x, w / w.sum())
        twin = sinkhorn(mu, of.Particles(mu.x, mu.w), eps, cost=cost)
        value = sinkhorn(mu, mu, eps, cost=cost).regularised_cost
        torch.testing.assert_close(value, twin.regularised_cost, rtol=1e-8, atol=1e-9)


def test_attention_with_a_negative_kernel_converges() -> None:
    mu = of.Particles([[0.0], [2.0], [1.0]], [0.0025, 0.0131, 0.9844])
    v = of.SinkhornAttention([[1.0]], [[-1.0]], [[1.0]], eps=0.01)(0.0, mu)[0]
    assert (mu.w @ v).item() == pytest.approx((mu.w @ mu.x).item() / 0.01, rel=1e-6)  # the law of the mean
