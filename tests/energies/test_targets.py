"""Energies that draw towards a target: transport, its entropic version, and discrepancies of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.stats import energy_distance

import otflow as of
from otflow.energies.targets import MMD, SinkhornDivergence, SquaredWasserstein
from otflow.transport.discrepancy import EnergyKernel, GaussianKernel, LaplaceKernel
from tests import zoo
from tests.samples import Largest, by_quantiles, hill, largest, normal, rate, slope, unit

W2 = of.Wasserstein()


def cloud(seed: int, n: int, d: int, *batch: int, uniform: bool = False) -> of.Particles:
    w = zoo.weights(seed + 100, *batch, n)
    return of.Particles(normal(*batch, n, d, seed=seed), None if uniform else w)


def gaussian(seed: int, d: int, r: int, *batch: int) -> of.Gaussian:
    return of.Gaussian(normal(*batch, d, seed=seed), root=0.8 * normal(*batch, d, r, seed=seed + 50))


def on_sphere(seed: int, n: int) -> of.Particles:
    return of.Particles(unit(n, 3, seed=seed), zoo.weights(seed, n), space=of.Sphere())


def on_torus(seed: int, n: int) -> of.Particles:
    return of.Particles(np.random.default_rng(seed).uniform(0, 2, (n, 2)), space=of.Torus(2.0))


Make = Callable[[of.Measure], of.Energy]
ENERGIES: dict[str, Make] = {
    "transport": SquaredWasserstein,
    "sinkhorn": lambda target: SinkhornDivergence(target, of.Sinkhorn(0.7, tol=1e-12)),
    "gaussian_mmd": lambda target: MMD(target, GaussianKernel(1.3)),
    "laplace_mmd": lambda target: MMD(target, LaplaceKernel(0.9)),
    "energy_mmd": lambda target: MMD(target, EnergyKernel()),
}
CLOUDS: dict[str, Callable[[], tuple[of.Measure, of.Measure]]] = {
    "uniform": lambda: (cloud(1, 6, 2, uniform=True), cloud(2, 6, 2, uniform=True)),
    "weighted": lambda: (cloud(3, 5, 3), cloud(4, 7, 3)),
    "line": lambda: (cloud(5, 6, 1), cloud(6, 4, 1)),
    "batched": lambda: (cloud(7, 5, 2, 3), cloud(8, 6, 2, 3)),
    "shared": lambda: (cloud(7, 5, 2, 3), cloud(8, 6, 2)),
    "sphere": lambda: (on_sphere(9, 5), on_sphere(10, 4)),
    "labelled": lambda: (zoo.MEASURES["labelled"](), cloud(11, 6, 3)),
}
GAUSSIANS: dict[str, Callable[[], tuple[of.Measure, of.Measure]]] = {
    "square": lambda: (gaussian(1, 3, 3), gaussian(2, 3, 3)),
    "narrow": lambda: (gaussian(3, 3, 2), gaussian(4, 3, 3)),
    "wide": lambda: (gaussian(5, 3, 5), gaussian(6, 3, 3)),
    "batch": lambda: (gaussian(7, 2, 2, 4), gaussian(8, 2, 2, 4)),
    "shared": lambda: (gaussian(7, 2, 2, 4), gaussian(8, 2, 2)),
}
CASES = [(e, CLOUDS[m]) for e in ENERGIES for m in CLOUDS]
CASES += [(e, GAUSSIANS[m]) for e in ("transport", "sinkhorn") for m in GAUSSIANS]
CASES += [("transport", lambda: (on_torus(12, 5), on_torus(13, 5)))]
NAMES = [f"{e}-{m}" for e in ENERGIES for m in CLOUDS]
NAMES += [f"{e}-gaussian_{m}" for e in ("transport", "sinkhorn") for m in GAUSSIANS] + ["transport-torus"]
every_case = pytest.mark.parametrize(("energy", "pair"), CASES, ids=NAMES)


# --- what all of them have in common -------------------------------------------------------------------


@pytest.mark.slow(but_for=["transport-*", "*_mmd-*", "*-gaussian_*", "sinkhorn-uniform", "sinkhorn-batched"])
@every_case
def test_the_energy_falls_by_the_squared_speed(energy: str, pair: Any) -> None:
    mu, target = pair()
    F = ENERGIES[energy](target)
    v = of.SteepestDescent(F, W2)(0.0, mu)
    speed = mu.inner(v, v)
    assert F(mu).shape == mu.batch
    assert bool((speed > 1e-4).all())
    torch.testing.assert_close(rate(F, mu, v), -speed, rtol=1e-8, atol=0)


@pytest.mark.slow(but_for=["transport-*", "*_mmd-*", "*-gaussian_*", "sinkhorn-uniform", "sinkhorn-batched"])
@every_case
def test_the_remainder_of_taylor_has_slope_two(energy: str, pair: Any) -> None:
    mu, target = pair()
    F = ENERGIES[energy](target)
    u = mu.tangent(mu.coords.map(lambda c: torch.tensor(normal(*c.shape, seed=3))))
    linear = sum((a * b).sum() for a, b in zip(F.differential(mu), u, strict=True))
    steps, start = 2.0 ** -np.arange(8, 14), F(mu)
    rests = [abs(float((F(mu.move(h * u)) - start).sum() - h * linear)) for h in steps.tolist()]
    if energy == "energy_mmd" and target.coords[0].shape[-1] == 1:
        assert max(rests) < 1e-14  # distances on the line are linear between the tokens
    else:
        assert slope(steps, rests) == pytest.approx(2.0, abs=0.1)


@every_case
def test_value_and_slope_vanish_at_the_target(energy: str, pair: Any) -> None:
    _, target = pair()
    F = ENERGIES[energy](target)
    at = target.at(target.coords.map(torch.clone))
    assert largest(F(at)) < 1e-13
    assert max(largest(c) for c in F.differential(at)) < 1e-7 * (energy == "sinkhorn") + 1e-13


@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("name", ["batched", "shared"])
def test_members_of_a_batch_do_not_see_each_other(energy: str, name: str) -> None:
    mu, target = CLOUDS[name]()
    F, make = ENERGIES[energy](target), ENERGIES[energy]
    alone = [make(target[i] if target.batch else target) for i in range(3)]
    values = torch.stack([one(mu[i]) for i, one in enumerate(alone)])
    torch.testing.assert_close(F(mu), values, rtol=1e-9, atol=1e-12)
    slopes = torch.stack([one.differential(mu[i])[0] for i, one in enumerate(alone)])
    torch.testing.assert_close(F.differential(mu)[0], slopes, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("energy", "pair"),
    [(e, CLOUDS["weighted"]) for e in ENERGIES]
    + [(e, GAUSSIANS["square"]) for e in ("transport", "sinkhorn")],
)
def test_single_precision_stays_single(energy: str, pair: Any) -> None:
    mu, target = pair()
    wide = ENERGIES[energy](target)
    narrow = ENERGIES[energy](single(target))
    c = narrow.differential(single(mu))
    assert narrow(single(mu)).dtype == c[0].dtype == torch.float32
    assert narrow(single(mu)).item() == pytest.approx(wide(mu).item(), rel=1e-4)
    for found, wanted in zip(c, wide.differential(mu), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-5)


def single(mu: of.Measure) -> of.Measure:
    if isinstance(mu, of.Particles):
        return of.Particles(mu.x.float(), mu.w.float())
    return of.Gaussian(mu.mean.float(), root=mu.root.float())


@pytest.mark.parametrize("energy", ENERGIES)
def test_a_differential_can_be_differentiated_in_measure_and_target(energy: str) -> None:
    x, y = (torch.tensor(normal(3, 2, seed=s), requires_grad=True) for s in (1, 2))

    def differential(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ENERGIES[energy](of.Particles(y)).differential(of.Particles(x))[0]

    assert torch.autograd.gradcheck(differential, (x, y), atol=1e-5)
    fixed = ENERGIES[energy](of.Particles(y.detach())).differential(of.Particles(x.detach()))[0]
    torch.testing.assert_close(differential(x, y).detach(), fixed, rtol=1e-9, atol=1e-11)
    assert not fixed.requires_grad


@pytest.mark.parametrize("energy", ["transport", "sinkhorn"])
def test_between_gaussians_it_can_be_differentiated_too(energy: str) -> None:
    mu, target = GAUSSIANS["square"]()
    inputs = [c.clone().requires_grad_() for c in (*mu.coords, *target.coords)]

    def differential(*c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(ENERGIES[energy](target.at(c[2:])).differential(mu.at(c[:2])))

    assert torch.autograd.gradcheck(differential, inputs, atol=1e-5)


@pytest.mark.parametrize("energy", ENERGIES)
def test_values_have_derivatives_in_the_weights(energy: str) -> None:
    mu, target = cloud(3, 4, 2), cloud(4, 3, 2)
    logits = torch.tensor(normal(4), requires_grad=True)

    def value(logits: torch.Tensor) -> torch.Tensor:
        return ENERGIES[energy](target)(of.Particles(mu.x, torch.softmax(logits, -1)))

    assert torch.autograd.gradcheck(value, (logits,), atol=1e-5)


@pytest.mark.parametrize("energy", ENERGIES)
def test_the_field_has_directional_derivatives(energy: str) -> None:
    mu, target = CLOUDS["weighted"]()
    field, h = of.SteepestDescent(ENERGIES[energy](target), W2), 1e-4
    u = of.Tangent([torch.tensor(normal(*mu.coords[0].shape, seed=5))])
    ahead, behind = (field(0.0, mu.at(mu.coords + s * u)) for s in (h, -h))
    expected = (ahead - behind)[0] / (2 * h)
    if energy != "sinkhorn":  # of potentials there are first derivatives, and forward mode needs second ones
        torch.testing.assert_close(field.jvp(0.0, mu, u)[0], expected, rtol=1e-5, atol=1e-6)
    c = of.Tangent([torch.tensor(normal(*mu.coords[0].shape, seed=6))])
    paired = float((c[0] * expected).sum())
    assert float((field.vjp(0.0, mu, c)[0] * u[0]).sum()) == pytest.approx(paired, rel=1e-5)


@pytest.mark.slow(but_for=["transport", "*_mmd"])
@pytest.mark.parametrize("energy", ENERGIES)
def test_the_energy_decreases_along_its_flow_towards_zero(energy: str) -> None:
    mu, target = cloud(1, 6, 2, uniform=True), cloud(2, 6, 2, uniform=True)
    F = ENERGIES[energy](target)
    traj = of.flow(mu, of.SteepestDescent(F, W2), of.RK4(), t1=1.0, dt=0.1, observe={"F": F})
    values = traj.observed["F"]
    assert bool((values.diff() < 0).all())
    assert values[-1] < 0.8 * values[0]


# --- transport -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["uniform", "weighted", "line", "labelled"])
def test_squared_wasserstein_is_the_cost_that_pot_finds(name: str) -> None:
    mu, target = CLOUDS[name]()
    (x, w), (y, v) = ([a.contiguous().numpy() for a in m.nodes()] for m in (mu, target))
    C = ot.dist(x, y)
    F = SquaredWasserstein(target)
    assert F(mu).item() == pytest.approx(ot.emd2(w, v, C), rel=1e-12)
    average = ot.emd(w, v, C) @ y / w[:, None]
    np.testing.assert_allclose(F.differential(mu)[0], 2 * w[:, None] * (x - average), atol=1e-12)


@pytest.mark.parametrize("name", ["square", "batch", "wide"])
def test_squared_wasserstein_of_gaussians_is_the_formula_of_bures(name: str) -> None:
    mu, target = GAUSSIANS[name]()
    F = SquaredWasserstein(target)
    value, (by_mean, by_root) = F(mu), F.differential(mu)
    for i in np.ndindex(*mu.batch):
        S, T = mu.cov[i].numpy(), target.cov[i].numpy()
        root = np.real(sqrtm(S))
        middle = np.real(sqrtm(root @ T @ root))
        shift = (mu.mean - target.mean)[i].numpy()
        expected = shift @ shift + np.trace(S + T - 2 * middle)
        optimal = np.linalg.solve(root, middle) @ np.linalg.inv(root)
        assert value[i].item() == pytest.approx(expected, rel=1e-9)
        np.testing.assert_allclose(by_mean[i], 2 * shift, rtol=1e-12)
        np.testing.assert_allclose(by_root[i], 2 * (np.eye(len(S)) - optimal) @ mu.root[i].numpy(), atol=1e-9)


@pytest.mark.thorough
def test_the_flow_of_squared_wasserstein_contracts_at_the_rate_four() -> None:
    """x' = -2 (x - Tx) with a plan that stays: x - Tx decays like exp(-2t), and F like exp(-4t)."""
    mu, target = CLOUDS["uniform"]()
    for start, to in ((mu, target), GAUSSIANS["square"]()):
        F = SquaredWasserstein(to)
        traj = of.flow(start, of.SteepestDescent(F, W2), of.RK4(), t1=0.5, dt=0.01, observe={"F": F})
        expected = F(start) * torch.exp(-4 * traj.ts)
        torch.testing.assert_close(traj.observed["F"], expected, rtol=1e-7, atol=0)


def test_on_a_grid_the_density_is_constant_on_cells_and_the_slope_a_potential() -> None:
    mu, target = hill(40, at=-0.3), hill(40, at=0.35)
    F = SquaredWasserstein(target)
    assert F(mu).item() == pytest.approx(by_quantiles(mu, target) ** 2, rel=1e-12)
    u = of.Tangent([0.1 * mu.density * (torch.tensor(normal(40)) - 0.2)])
    u = of.Tangent([u[0] - u[0].mean()])
    h = 1e-4
    found = (F.differential(mu)[0] * u[0]).sum().item()
    ahead, behind = (F(mu.at(mu.coords + s * u)) for s in (h, -h))
    assert found == pytest.approx(float(ahead - behind) / (2 * h), rel=1e-9)
    v = of.SteepestDescent(F, W2)(0.0, mu)[0]
    assert bool((v[5:-5] > 0).all())  # all mass is to go to the right


@pytest.mark.parametrize("energy", ENERGIES)
def test_the_energy_of_a_grid_decreases_along_its_flow(energy: str) -> None:
    F = ENERGIES[energy](hill(24, at=0.3))
    traj = of.flow(
        hill(24, at=-0.3), of.SteepestDescent(F, W2), of.Euler(), t1=0.02, dt=0.002, observe={"F": F}
    )
    assert bool((traj.observed["F"].diff() < 0).all())


# --- entropic transport --------------------------------------------------------------------------------


def entropic(x: Any, w: Any, y: Any, v: Any, eps: float) -> float:
    C = ot.dist(x, y)
    P = ot.bregman.sinkhorn_log(w, v, C, eps, stopThr=1e-12, numItermax=5000, warn=False)
    return float((P * C).sum() + eps * (P * np.log(P / np.outer(w, v))).sum())


@pytest.mark.parametrize("eps", [3.0, 8.0])
def test_the_sinkhorn_divergence_is_what_three_runs_of_pot_give(eps: float) -> None:
    mu, target = CLOUDS["weighted"]()
    a, b = ([z.contiguous().numpy() for z in m.nodes()] for m in (mu, target))
    expected = entropic(*a, *b, eps) - (entropic(*a, *a, eps) + entropic(*b, *b, eps)) / 2
    assert SinkhornDivergence(target, eps)(mu).item() == pytest.approx(expected, rel=1e-9)


def test_a_small_eps_approaches_transport() -> None:
    mu, target = CLOUDS["uniform"]()
    F, G = SinkhornDivergence(target, 1e-3), SquaredWasserstein(target)
    assert F(mu).item() == pytest.approx(G(mu).item(), rel=1e-6)
    torch.testing.assert_close(F.differential(mu)[0], G.differential(mu)[0], rtol=1e-5, atol=1e-6)


def test_shifted_gaussians_are_apart_by_their_means() -> None:
    nu = gaussian(1, 3, 3)
    mu = nu.at([nu.mean + 2.0, nu.root])
    F = SinkhornDivergence(nu, 0.5)
    assert F(mu).item() == pytest.approx(12.0, rel=1e-12)
    mean, root = F.differential(mu)
    torch.testing.assert_close(mean, torch.full((3,), 4.0, dtype=torch.float64))
    assert largest(root) < 1e-12


def test_a_divergence_that_does_not_converge_says_so() -> None:
    mu, target = CLOUDS["weighted"]()
    with pytest.raises(of.errors.ConvergenceError):
        SinkhornDivergence(target, of.Sinkhorn(1e-3, max_iter=1))(mu)


# --- discrepancies -------------------------------------------------------------------------------------

KERNELS = {
    "gaussian": (GaussianKernel(1.3), lambda r: np.exp(-(r**2) / 2 / 1.3**2)),
    "laplace": (LaplaceKernel(0.9), lambda r: np.exp(-r / 0.9)),
    "energy": (EnergyKernel(), lambda r: -r),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_value_is_half_the_squared_discrepancy(name: str) -> None:
    kernel, profile = KERNELS[name]
    mu, target = CLOUDS["weighted"]()
    points = np.concatenate([mu.x, target.x])
    mass = np.concatenate([mu.w, -target.w])
    expected = sum(
        mass[i] * mass[j] * profile(np.linalg.norm(points[i] - points[j]))
        for i in range(len(mass))
        for j in range(len(mass))
    )
    assert MMD(target, kernel)(mu).item() == pytest.approx(expected / 2, rel=1e-12)


def test_with_the_energy_kernel_it_is_half_the_energy_distance() -> None:
    mu, target = CLOUDS["line"]()
    expected = energy_distance(mu.x[:, 0], target.x[:, 0], mu.w, target.w) ** 2 / 2
    assert MMD(target, EnergyKernel())(mu).item() == pytest.approx(expected, rel=1e-12)


def test_tokens_follow_the_witness() -> None:
    """x' = -grad f with f = int k(., y) d(mu - target), by hand for the Gaussian kernel."""
    mu, target = CLOUDS["weighted"]()
    v = of.SteepestDescent(MMD(target, GaussianKernel(1.3)), W2)(0.0, mu)[0]
    points = np.concatenate([mu.x, target.x])
    mass = np.concatenate([mu.w, -target.w])
    for i, x in enumerate(mu.x.numpy()):
        k = np.exp(-((x - points) ** 2).sum(-1) / (2 * 1.3**2)) * mass
        np.testing.assert_allclose(v[i], (k[:, None] * (x - points)).sum(0) / 1.3**2, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", KERNELS)
def test_the_streamed_differential_equals_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mu, target = CLOUDS["batched"]()
    F = MMD(target, KERNELS[name][0])
    x = mu.coords[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(F(mu.at([x])).sum(), x)
    monkeypatch.setattr("otflow.base.kernels.TILE", 1)
    torch.testing.assert_close(F.differential(mu)[0], expected, rtol=1e-10, atol=1e-13)


def test_tiles_can_be_differentiated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otflow.base.kernels.TILE", 1)
    x, y = (torch.tensor(normal(3, 2, seed=s), requires_grad=True) for s in (1, 2))
    kernel = GaussianKernel(1.3)
    assert torch.autograd.gradcheck(
        lambda x, y: MMD(of.Particles(y), kernel).differential(of.Particles(x))[0], (x, y)
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_no_array_is_larger_than_the_clouds_or_a_tile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, mu, target = 1000, cloud(1, 1000, 2), cloud(2, 1000, 2)
    monkeypatch.setattr("otflow.base.kernels.TILE", 16 * n)
    with Largest() as mode:
        MMD(target, KERNELS[name][0]).differential(mu)
    assert mode.size <= 16 * n


def test_near_the_target_the_slope_keeps_the_digits_that_the_value_loses() -> None:
    """At a distance t along u, F = t^2 <u, H u> / 2 and its slope is t H u, also where F is all rounding."""
    target = cloud(1, 5, 2)
    F, u = MMD(target, GaussianKernel(1.0)), torch.tensor(normal(5, 2, seed=4))
    far, near = (F.differential(target.at([target.x + t * u]))[0] / t for t in (1e-5, 1e-10))
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-4)


def test_a_kernel_with_parameters_keeps_its_graph() -> None:
    mu, target = CLOUDS["uniform"]()
    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)

    def differential(scale: torch.Tensor) -> torch.Tensor:
        F = MMD(target, lambda x, y: torch.exp(-(x - y).square().sum(-1) / (2 * scale**2)))
        return F.differential(mu)[0]

    assert torch.autograd.gradcheck(differential, (scale,))
    torch.testing.assert_close(
        differential(scale).detach(), MMD(target, GaussianKernel(1.3)).differential(mu)[0]
    )


def test_where_kinks_meet_second_derivatives_are_refused() -> None:
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64, requires_grad=True)
    c = MMD(of.Particles([[1.0], [3.0]]), EnergyKernel()).differential(of.Particles(x))[0]
    with pytest.raises(of.errors.DerivativeError):
        torch.autograd.grad(c.sum(), x)


def test_on_a_torus_a_kernel_must_be_periodic() -> None:
    mu, target = on_torus(1, 4), on_torus(2, 4)
    with pytest.raises(of.InputError, match="wrap around"):
        MMD(target, GaussianKernel(1.0)).differential(mu)
    F = MMD(target, lambda x, y: torch.exp(torch.cos(np.pi * (x - y)).sum(-1)))
    v = of.SteepestDescent(F, W2)(0.0, mu)
    torch.testing.assert_close(rate(F, mu, v), -mu.inner(v, v), rtol=1e-8, atol=0)


# --- refusals ------------------------------------------------------------------------------------------

BAD: dict[str, tuple[of.Measure, of.Measure, str]] = {
    "dimension": (cloud(1, 3, 2), cloud(2, 3, 1), "target = .* in dimension 1"),
    "space": (on_sphere(1, 4), cloud(2, 4, 3), "target = "),
    "dtype": (cloud(1, 3, 2), of.Particles(np.zeros((2, 2), np.float32)), "target = a tensor of dtype"),
    "batch": (cloud(1, 3, 2, 2), cloud(1, 3, 2, 3), r"target\.batch"),
    "more_axes": (cloud(1, 3, 2), cloud(1, 3, 2, 3), r"target\.batch"),
}


@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("name", BAD)
def test_targets_that_do_not_fit_are_refused_by_name(energy: str, name: str) -> None:
    mu, target, match = BAD[name]
    F = ENERGIES[energy](target)
    for f in (F, F.differential):
        with pytest.raises(of.InputError, match=match):
            f(mu)


@pytest.mark.parametrize("energy", ["transport", "sinkhorn"])
def test_a_gaussian_and_a_cloud_do_not_compare(energy: str) -> None:
    for mu, target in ((cloud(1, 3, 2), gaussian(1, 2, 2)), (gaussian(1, 2, 2), cloud(1, 3, 2))):
        with pytest.raises(of.InputError, match=r"target = .*sample"):
            ENERGIES[energy](target)(mu)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: SquaredWasserstein(np.zeros((3, 2))), "target"),  # type: ignore[arg-type]
        (lambda: SinkhornDivergence(cloud(1, 3, 2), 0.0), "eps"),
        (lambda: SinkhornDivergence(cloud(1, 3, 2), of.Sinkhorn(1.0, tol=-1.0)), "tol"),
        (lambda: SinkhornDivergence(cloud(1, 3, 2), of.Sinkhorn(1.0, max_iter=0)), "max_iter"),
        (lambda: SinkhornDivergence(cloud(1, 3, 2), of.Sinkhorn(1.0, engine=3)), "engine"),  # type: ignore[arg-type]
        (lambda: MMD(gaussian(1, 2, 2), EnergyKernel()), "target.*sample"),
        (lambda: MMD(cloud(1, 3, 2), 1.0), "kernel"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused_by_name(make: Any, match: str) -> None:
    with pytest.raises(of.InputError, match=match):
        make()


def test_energies_print_their_target() -> None:
    target = of.Particles([[0.0]])
    assert repr(SquaredWasserstein(target)) == "SquaredWasserstein(Particles(n=1, d=1, space=Euclidean()))"
    assert repr(SinkhornDivergence(target, 0.5)).endswith(", eps=0.5)")
    assert SinkhornDivergence(target, of.Sinkhorn(0.5, tol=1e-7)).precision == 1e-7
    assert repr(MMD(target, EnergyKernel())).endswith(", EnergyKernel())")


def test_a_kernel_is_an_instance() -> None:
    with pytest.raises(of.InputError, match="call it"):
        of.MMD(of.Particles([[0.0]]), of.transport.EnergyKernel)  # type: ignore[arg-type]
