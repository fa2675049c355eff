"""Every solution of a transport problem tells the same things, and they are true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import multivariate_normal

import otflow as of
from otflow.metrics import solve_twisted
from otflow.transport import GaussianTransport, Transport, solve_conditional
from tests.samples import normal

M = np.array([[2.0, 0.5], [0.5, 1.0]])
EPS = 0.7


def cloud(seed: int, n: int = 5) -> of.Particles:
    w = np.random.default_rng(seed).uniform(0.5, 1.5, n)
    return of.Particles(normal(n, 2, seed=seed), w=w / w.sum())


def labelled(seed: int) -> of.Particles:
    return of.Particles(normal(6, 2, seed=seed), label=[0, 0, 0, 1, 1, 2])


def bell(seed: int) -> of.Gaussian:
    return of.Gaussian(normal(2, seed=seed), root=normal(2, 2, seed=seed + 1))


SOLVED: dict[str, tuple[Callable[[], Any], Callable[[int], of.Measure]]] = {
    "exact": (lambda: of.solve, cloud),
    "exact, Gaussian": (lambda: of.solve, bell),
    "entropic": (lambda: lambda mu, nu: of.sinkhorn(mu, nu, EPS), cloud),
    "entropic, Gaussian": (lambda: lambda mu, nu: of.sinkhorn(mu, nu, EPS), bell),
    "conditional": (lambda: solve_conditional, labelled),
    "twisted": (lambda: lambda mu, nu: solve_twisted(mu, nu, of.Twisted(matrix=M)), cloud),
    "twisted, Gaussian": (lambda: lambda mu, nu: solve_twisted(mu, nu, of.Twisted(matrix=M)), bell),
    "twisted, labelled": (lambda: lambda mu, nu: solve_twisted(mu, nu, of.Twisted(matrix=M)), labelled),
}


def squares(mu: of.Measure, nu: of.Measure, A: np.ndarray | None = None) -> np.ndarray:
    """(x_i - y_j).A (x_i - y_j), by numpy."""
    u = mu.nodes()[0].numpy()[:, None] - nu.nodes()[0].numpy()
    return np.einsum("ijk,kl,ijl->ij", u, np.eye(2) if A is None else A, u)


def least(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """min <P, c> over the couplings of a and b, by HiGHS; infinite costs are forbidden pairs."""
    n, m = c.shape
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    upper = np.where(np.isinf(c), 0.0, np.inf).ravel()
    found = linprog(
        np.where(np.isinf(c), 0.0, c).ravel(),
        A_eq=np.vstack([rows, columns]),
        b_eq=np.concatenate([a, b]),
        bounds=np.stack([np.zeros(n * m), upper], 1),
    )
    return float(found.fun)


@pytest.mark.parametrize("name", SOLVED)
def test_every_solution_tells_the_same_things(name: str) -> None:
    solver, make = SOLVED[name][0](), SOLVED[name][1]
    found: Transport = solver(make(0), make(10))
    assert found.status == "ok"
    assert found.batch == found.cost.shape == found.distance.shape == ()
    torch.testing.assert_close(found.distance.square(), found.cost, rtol=1e-12, atol=0)
    assert len(found.potentials) == 2
    assert found.certificates
    assert all(value.shape == () for value in found.certificates.values())
    assert max(float(found.certificates[key]) for key in found.certificates if key != "lower") < 1e-9
    assert type(found).__name__ in found._repr_html_()  # type: ignore[attr-defined]
    assert repr(found).startswith(type(found).__name__)


@pytest.mark.parametrize("name", SOLVED)
def test_batches_tell_what_their_members_tell(name: str) -> None:
    solver, make = SOLVED[name][0](), SOLVED[name][1]
    mu, nu = (make(0), make(3)), (make(10), make(13))
    found = solver(*(stacked(pair) for pair in (mu, nu)))
    assert found.batch == found.cost.shape == (2,)
    assert found.status.tolist() == ["ok", "ok"]
    assert repr(found).startswith(type(found).__name__)
    for i in range(2):
        alone = solver(mu[i], nu[i])
        torch.testing.assert_close(found.cost[i], alone.cost, rtol=1e-9, atol=0)
        if isinstance(alone.plan, of.Gaussian):
            torch.testing.assert_close(found.plan[i].cov, alone.plan.cov, rtol=1e-9, atol=1e-12)
        else:
            torch.testing.assert_close(found.plan[i], alone.plan, rtol=1e-6, atol=1e-9)


def stacked(pair: tuple[of.Measure, ...]) -> of.Measure:
    if isinstance(pair[0], of.Gaussian):
        return of.Gaussian(
            *(torch.stack([g.coords[0] for g in pair]),), root=torch.stack([g.root for g in pair])
        )
    w = None if pair[0].uniform else torch.stack([one.w for one in pair])
    label = None if pair[0].label is None else torch.stack([one.label for one in pair])
    return of.Particles(torch.stack([one.x for one in pair]), w=w, label=label)


@pytest.mark.parametrize(
    ("name", "A"), [("exact", None), ("twisted", M), ("conditional", None), ("twisted, labelled", M)]
)
def test_plans_of_clouds_cost_what_linear_programming_finds_and_potentials_prove_it(
    name: str, A: np.ndarray | None
) -> None:
    solver, make = SOLVED[name][0](), SOLVED[name][1]
    mu, nu = make(0), make(10)
    c, a, b = squares(mu, nu, A), mu.w.numpy(), nu.w.numpy()
    if mu.label is not None:
        c = np.where(mu.label.numpy()[:, None] == nu.label.numpy(), c, np.inf)
    found = solver(mu, nu)
    P, (f, g) = found.plan.numpy(), (z.numpy() for z in found.potentials)
    assert found.cost.item() == pytest.approx(least(c, a, b), rel=1e-9)
    assert P[np.isfinite(c)] @ c[np.isfinite(c)] == pytest.approx(found.cost.item(), rel=1e-9)
    assert P[np.isinf(c)].sum() == 0
    np.testing.assert_allclose(P.sum(1), a, atol=1e-12)
    np.testing.assert_allclose(P.sum(0), b, atol=1e-12)
    assert (f[:, None] + g <= c + 1e-9).all()
    assert a @ f + b @ g == pytest.approx(found.cost.item(), rel=1e-8)


def test_the_entropic_plan_costs_what_it_says() -> None:
    mu, nu = cloud(0), cloud(10)
    found = of.sinkhorn(mu, nu, EPS)
    f, g = found.potentials
    P = mu.w[:, None] * nu.w * torch.exp((f[:, None] + g - torch.from_numpy(squares(mu, nu))) / EPS)
    torch.testing.assert_close(found.plan, P, rtol=1e-9, atol=1e-12)
    assert found.cost.item() == pytest.approx(float((P.numpy() * squares(mu, nu)).sum()), rel=1e-9)


# --- Gaussians -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "A"), [("exact", None), ("entropic", None), ("twisted", M)])
def test_plans_of_gaussians_have_the_marginals_and_the_cost(name: str, A: np.ndarray | None) -> None:
    mu, nu = bell(0), bell(10)
    found = SOLVED[f"{name}, Gaussian"][0]()(mu, nu)
    plan: of.Gaussian = found.plan
    torch.testing.assert_close(plan.mean, torch.cat([mu.mean, nu.mean]))
    torch.testing.assert_close(plan.cov[:2, :2], mu.cov, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(plan.cov[2:, 2:], nu.cov, rtol=1e-10, atol=1e-12)
    D = torch.cat([torch.eye(2), -torch.eye(2)], -1).double()
    second = D @ plan.cov @ D.mT + torch.outer(mu.mean - nu.mean, mu.mean - nu.mean)
    A = np.eye(2) if A is None else A
    assert found.cost.item() == pytest.approx(float((second * torch.from_numpy(A)).sum()), rel=1e-9)


def test_potentials_of_gaussians_prove_the_cost() -> None:
    mu, nu = bell(0), bell(10)
    found = of.solve(mu, nu)
    f, g = found.potentials
    x, y = (torch.from_numpy(5 * normal(400, 2, seed=s)) for s in (1, 2))
    assert bool((f(x) + g(y) <= (x - y).square().sum(-1) + 1e-9).all())
    near = f(x) + g(found.map(x)) - (x - found.map(x)).square().sum(-1)
    assert float(near.abs().max()) < 1e-9  # equality along the map
    X, wx = mu.nodes()
    Y, wy = nu.nodes()
    assert (wx @ f(X) + wy @ g(Y)).item() == pytest.approx(found.cost.item(), rel=1e-10)


def test_the_density_of_an_entropic_plan_of_gaussians_is_that_of_its_potentials() -> None:
    mu, nu = bell(0), bell(10)
    found = of.sinkhorn(mu, nu, EPS)
    assert isinstance(found, GaussianTransport)
    f, g = found.potentials
    x, y = normal(50, 2, seed=1), normal(50, 2, seed=2)
    log = lambda law, z: multivariate_normal(law.mean.numpy(), law.cov.numpy()).logpdf(z)  # noqa: E731
    density = log(found.plan, np.concatenate([x, y], 1)) - log(mu, x) - log(nu, y)
    expected = (f(x) + g(y)).numpy() / EPS - ((x - y) ** 2).sum(1) / EPS
    np.testing.assert_allclose(density, expected, rtol=1e-8, atol=1e-8)


def test_potentials_that_are_infinite_are_refused() -> None:
    point, law = of.Gaussian([0.0, 0.0], root=[[1.0], [0.0]]), bell(0)
    with pytest.raises(of.InputError, match="sinkhorn with a small eps"):
        _ = of.solve(point, law).potentials
    f, g = of.sinkhorn(point, law, 1e-2).potentials
    assert bool(torch.isfinite(f(np.ones((1, 2))) + g(np.ones((1, 2)))).all())


def test_potentials_with_a_weight_are_refused_because_there_are_none() -> None:
    way = solve_twisted(cloud(0), cloud(10), of.Twisted(of.metrics.Partition(0.1 * np.eye(2))), levels=1)
    assert set(way.certificates) == {"gap", "lower"}
    assert 0 < way.certificates["gap"] < 1
    with pytest.raises(of.InputError, match="read upper and lower"):
        _ = way.potentials


def test_what_has_no_closed_form_between_gaussians_is_refused() -> None:
    mu, nu = bell(0), bell(10)
    for call in (
        lambda: of.solve(mu, nu, 1),
        lambda: of.solve(mu, cloud(0)),
        lambda: of.sinkhorn(mu, nu, EPS, cost=of.transport.PowerCost(1)),
        lambda: of.sinkhorn(mu, cloud(0), EPS),
    ):
        with pytest.raises(of.InputError):
            call()
