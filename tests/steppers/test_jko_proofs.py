"""What the statuses "ok" and "local" of a JKO step promise: brute force on fine grids is the judge."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.base.status import STATUSES
from tests.samples import normal

FINE = torch.linspace(-6, 6, 4001, dtype=torch.float64)
TAUS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0, 7.0, 10.0)


class Wells(NamedTuple):
    """U(z) = sum_k a (z_k^2 - 1)^2 / 4 + b cos(w z_k + p), another one for each member of a batch."""

    a: Tensor
    b: Tensor
    w: Tensor
    p: Tensor

    @staticmethod
    def drawn(count: int, seed: int) -> Wells:
        rng = np.random.default_rng(seed)
        ranges = ((0.2, 1.5), (-1.0, 1.0), (1.0, 6.0), (0.0, 2 * math.pi))
        return Wells(*(torch.from_numpy(rng.uniform(*r, (count, 1, 1))) for r in ranges))

    @staticmethod
    def one(seed: int) -> Wells:
        """One function, for clouds with any batch."""
        return Wells(*(c[0, 0] for c in Wells.drawn(1, seed)))

    def each(self, z: Tensor) -> Tensor:
        return self.a * (z.square() - 1).square() / 4 + self.b * torch.cos(self.w * z + self.p)

    def __call__(self, z: Tensor) -> Tensor:
        return self.each(z).sum(-1)

    def curvature(self, lower: Tensor, upper: Tensor) -> Tensor:
        """a (3 z^2 - 1) - b w^2 cos(...) from below, on boxes."""
        nearest = torch.where((lower < 0) & (upper > 0), 0.0, torch.minimum(lower.abs(), upper.abs()))
        return (self.a * (3 * nearest.square() - 1) - self.b.abs() * self.w.square()).amin(-1)

    def least(self, x: Tensor, tau: float) -> Tensor:
        """The least value of U(z) + |z - x|^2 / (2 tau), which splits into coordinates, by brute force."""
        z, members = FINE[:, None], range(len(x))
        rows = []
        for k in members:
            own = Wells(*(c[k] for c in self))
            rows.append((own.each(z) + (z - x[k]).square() / (2 * tau)).amin(0).sum())
        return torch.stack(rows)


def swept(d: int, count: int, tau: float, seed: int, *, known: str, **options: Any) -> tuple[Any, Any]:
    """Statuses of one-particle steps, and where they are not the argmin."""
    U = Wells.drawn(count, seed)
    x = torch.from_numpy(np.random.default_rng(seed + 1).uniform(-2.5, 2.5, (count, 1, d)))
    given: dict[str, Any] = {"curvature": U.curvature, "infimum": -d} if known == "bounds" else {}
    F = of.Potential(U if known == "formula" else opaque(U), **given)
    move = of.jko_step(of.Particles(x), F, tau, on_failure="return", **options)
    value = U(move.mu.x)[:, 0] + move.cost / (2 * tau)
    return np.atleast_1d(move.status), (value > U.least(x[:, 0], tau) + 1e-4).numpy()


def opaque(U: Wells) -> Any:
    """The same function in an operation that interval arithmetic does not know: nothing is known of it."""
    return lambda z: torch.einsum("...k->...", U.each(z))


@pytest.mark.parametrize("known", ["nothing", "formula", "bounds"])
@pytest.mark.parametrize("d", [1, 2])
def test_no_step_that_is_ok_misses_the_argmin(d: int, known: str) -> None:
    for k, tau in enumerate((0.1, 0.7, 4.0)):
        status, wrong = swept(d, 12, tau, seed=10 * k + d, known=known)
        assert not bool((wrong & (status == "ok")).any())
        assert bool((status == "ok").all()) == (known != "nothing")


@pytest.mark.slow
@pytest.mark.parametrize("known", ["nothing", "formula", "bounds"])
@pytest.mark.parametrize(("d", "count"), [(1, 750), (2, 100)])
def test_no_step_of_thousands_that_is_ok_misses_the_argmin(d: int, count: int, known: str) -> None:
    """7,500 steps on the line; a search that fails says so, and is counted as not proved."""
    found = [swept(d, count, tau, seed=k, known=known) for k, tau in enumerate(TAUS)]
    status, wrong = (np.concatenate(column) for column in zip(*found, strict=True))
    ok = status == "ok"
    assert not bool((wrong & ok).any())
    assert set(status.tolist()) <= {"ok", "local", "max_iter", "stalled", "uncertified"}
    assert ok.mean() == 0 if known == "nothing" else ok.mean() > 0.95
    if known == "nothing":  # so a sample of curvatures proves nothing
        assert bool(wrong[status == "local"].any())


def interacting(seed: int) -> tuple[str, bool]:
    """The status of a step of two particles that interact by a cosine, and whether it misses the argmin."""
    rng, U = np.random.default_rng(seed), Wells.one(seed)
    a, w, tau = rng.uniform(-1, 1), rng.uniform(0.5, 3), float(10 ** rng.uniform(-1.5, 0.7))
    x = rng.uniform(-2, 2, (2, 1))
    F = of.Potential(U) + of.Interaction(lambda x, y: a * torch.cos(w * (x - y)).sum(-1))

    def phi(p: Tensor, q: Tensor) -> Tensor:
        pair = a * (torch.cos(w * (p - q)) + 1) / 4
        paid = ((p - x[0, 0]) ** 2 + (q - x[1, 0]) ** 2) / (4 * tau)
        return (U(p[..., None]) + U(q[..., None])) / 2 + pair + paid

    line = torch.linspace(-3.2, 3.2, 401, dtype=torch.float64)
    move = of.jko_step(of.Particles(x), F, tau, on_failure="return")
    least = phi(*torch.meshgrid(line, line, indexing="ij")).min()
    return move.status, float(phi(*move.mu.x)) > float(least) + 1e-3


@pytest.mark.slow
def test_no_step_of_particles_that_interact_is_ok_and_misses_the_argmin() -> None:
    found = {interacting(seed) for seed in range(60)}
    assert ("ok", True) not in found
    assert {("ok", False), ("local", False), ("local", True)} <= found


# --- what is proved, and by what ---------------------------------------------------------------------------


def test_local_is_the_last_status_and_a_success() -> None:
    assert STATUSES[-1] == "local"
    mu, F = of.Particles([[0.3]]), of.Potential(opaque(Wells.one(0)))
    move = of.jko_step(mu, F, 2.0)  # nothing raises
    assert move.status == "local"
    assert int(move.failed) == 0
    assert "curvature=" in move.message
    assert of.flow(mu, of.SteepestDescent(F, of.Wasserstein()), of.JKO(), t1=1.0, dt=0.5).status == "local"


def test_a_bound_given_proves_a_step_up_to_the_length_that_it_allows() -> None:
    U = Wells.one(3)
    F = of.Potential(opaque(U), curvature=float(-(U.a + U.b.abs() * U.w.square())))
    short = 0.9 / -F.curvature  # type: ignore[operator]
    mu = of.Particles(normal(20, 2))
    assert of.jko_step(mu, F, short).status == "ok"
    assert of.jko_step(mu, F, 1.2 * short).status == "local"


def test_a_bound_below_confines_the_minimiser_to_a_ball() -> None:
    """Convex beyond |z| = 1/2 only: a particle far out is proved to stay there, for steps of some length."""
    bump = {"curvature": lambda a, b: torch.where((a > 0.5) | (b < -0.5), 0.0, -40.0)[..., 0], "infimum": 0.0}
    F = of.Potential(lambda z: torch.einsum("...k->...", 10 * torch.relu(z.abs() - 0.5).square()), **bump)  # type: ignore[arg-type]
    mu = of.Particles([[0.55]])
    assert of.jko_step(mu, F, 0.05).status == "ok"
    cloud = of.Particles(normal(3, 4), w=[0.5, 0.25, 0.25])  # in more dimensions than branch and bound takes
    flat = of.Potential(F.U, curvature=-40.0)
    assert of.jko_step(cloud, flat, 0.05).status == "local"


def test_the_infimum_is_held_against_what_is_met() -> None:
    U = Wells.one(1)
    with pytest.raises(of.InputError, match="infimum"):
        of.jko_step(of.Particles([[0.9]]), of.Potential(opaque(U), curvature=-40.0, infimum=2.0), 1.0)


CONVEX = {
    "quadratic": (of.QuadraticPotential(np.diag([1.0, 0.0])), 50.0),
    "concave enough": (of.QuadraticPotential(np.diag([-1.0, 2.0])), 0.9),
    "quartic": (of.Potential(lambda x: x.square().sum(-1).square()), 50.0),
    "attraction": (of.Interaction(lambda x, y: (x - y).square().sum(-1).square()), 50.0),
    "repulsion": (of.Interaction(lambda x, y: -(x - y).square().sum(-1) / 2), 0.9),
    "opaque": (of.Interaction(lambda x, y: torch.einsum("...k->...", (x - y) ** 4), curvature=0.0), 50.0),
    "scores": (of.SquaredScores(np.diag([1.0, 0.5])), 50.0),
    "sum": (0.5 * of.QuadraticPotential(np.eye(2)) - of.QuadraticInteraction(0.5 * np.eye(2)), 50.0),
    "kernel": (of.MMD(of.Particles(normal(4, 2, seed=1)), of.transport.GaussianKernel(1.0)), 0.6),
}


@pytest.mark.parametrize("name", CONVEX)
def test_energies_that_know_a_bound_are_proved(name: str) -> None:
    F, tau = CONVEX[name]
    assert of.jko_step(of.Particles(normal(5, 2)), F, tau).status == "ok"


@pytest.mark.parametrize("name", CONVEX)
def test_bounds_hold_for_second_differences_of_the_energy(name: str) -> None:
    """Along displacements of any direction and length, (F(x - u) - 2 F(x) + F(x + u)) >= low |u|^2."""
    F, rng = CONVEX[name][0], np.random.default_rng(7)
    for seed in range(20):
        mu = of.Particles(normal(5, 2, seed=seed), w=rng.dirichlet(np.ones(5)))
        u = of.Tangent([torch.from_numpy(rng.standard_normal((5, 2))) * 10.0 ** rng.uniform(-2, 1)])
        second = F(mu.move(u)) - 2 * F(mu) + F(mu.move(-u))
        low, high = (torch.as_tensor(b, dtype=torch.float64) for b in F.curvature_bounds(mu))
        size, slack = mu.inner(u, u), 1e-9 * (1 + F(mu.move(u)).abs())
        assert float(low * size - slack) <= float(second) <= float(high * size + slack)


def test_gaussian_steps_are_proved_for_energies_that_are_convex_on_gaussians() -> None:
    mu, A = of.Gaussian([0.3, -0.2], cov=np.diag([1.0, 2.0])), np.diag([1.0, 0.5])
    medium = of.PorousMedium(2.0) + of.Potential(lambda x: x.square().sum(-1))
    for F in (of.SquaredScores(A), of.SelfTransport(A, 0.7), of.L2Energy(A), medium):
        assert of.jko_step(mu, F, 2.0).status == "ok"
    assert of.jko_step(mu, of.SquaredScores(np.diag([1.0, -0.5])), 0.1).status == "local"
    assert of.jko_step(mu, -1 * of.L2Energy(A), 0.01).status == "local"


def test_steps_in_quantiles_are_proved_by_the_same_bounds() -> None:
    mu = of.Quantiles.from_ppf(lambda s: s - 0.5, 40)
    well = of.Potential(lambda x: ((x**2 - 1) ** 2).sum(-1) / 4)  # with D^2 U >= -1
    assert of.jko_step(mu, well + of.Entropy(), 0.9).status == "ok"
    assert of.jko_step(mu, of.Potential(lambda x: torch.einsum("...k->...", x**4)), 0.1).status == "local"


def test_no_proof_is_claimed_where_displacements_do_not_add() -> None:
    flat = of.Potential(lambda x: 0.0 * x.sum(-1), curvature=0.0)
    assert of.jko_step(of.Particles([[1.0, 0.0]]), flat, 0.1).status == "ok"
    for space in (of.Sphere(), of.Torus()):
        assert of.jko_step(of.Particles([[1.0, 0.0]], space=space), flat, 0.1).status == "local"


def test_twisted_steps_are_proved_for_convex_energies() -> None:
    metric = of.Twisted(lambda mu, x: 1 + x[..., 0].square())
    mu, bowl = of.Particles(normal(4, 2)), of.QuadraticPotential(np.eye(2))
    assert of.jko_step(mu, bowl, 0.5, metric=metric).status == "ok"
    assert of.jko_step(mu, -1 * bowl, 0.01, metric=metric).status == "local"


# --- several starts, and branch and bound ------------------------------------------------------------------


def test_several_starts_leave_fewer_steps_in_a_minimum_that_is_not_the_best() -> None:
    one, many = (swept(1, 60, 4.0, seed=5, known="nothing", starts=k) for k in (1, 12))
    assert many[1].sum() < one[1].sum() / 4
    assert set(many[0].tolist()) == {"local"}  # which refutes, and never proves


def test_particles_in_potentials_choose_their_starts_each_for_itself() -> None:
    """Eight particles between two wells each: no one start has to suit all of them."""
    U, x = Wells.one(8), np.linspace(-2.0, 2.0, 8)[:, None]
    mu, tau = of.Particles(x), 3.0
    move = of.jko_step(mu, of.Potential(opaque(U)), tau, starts=8)
    best = Wells.drawn(1, 8).least(torch.tensor(x.tolist())[None, :, 0], tau) / 8
    value = of.Potential(U)(move.mu) + move.cost / (2 * tau)
    assert float(value) == pytest.approx(float(best), abs=1e-4)


def test_starts_are_those_of_every_member_alone() -> None:
    U = Wells.one(2)
    mu = of.Particles(normal(2, 3, 1))
    F = of.Potential(opaque(U)) + of.Interaction(lambda x, y: (x - y).square().sum(-1) / 9)
    together = of.jko_step(mu, F, 2.0, starts=5)
    for k in range(2):
        alone = of.jko_step(mu[k], F, 2.0, starts=5)
        torch.testing.assert_close(together.mu.x[k], alone.mu.x, rtol=0, atol=1e-8)


def test_branch_and_bound_leaves_a_hill_on_which_the_search_stands_still() -> None:
    mu = of.Particles([[0.0], [0.0], [3.0]])
    move = of.jko_step(mu, of.Potential(lambda x: ((x**2 - 1) ** 2).sum(-1) / 4), 2.0)
    assert move.status == "ok"
    # y^3 - y + y / 2 = 0 from 0, and y^3 - y / 2 = 3 / 2 from 3
    torch.testing.assert_close(move.mu.x[:2].abs(), torch.full((2, 1), 0.5**0.5).double())
    y = np.roots([1.0, 0.0, -0.5, -1.5])
    assert move.mu.x[2].item() == pytest.approx(float(y[np.isreal(y)].real[0]), abs=1e-9)


def test_weights_do_not_matter_where_particles_go_each_by_itself() -> None:
    U, x = Wells.one(4), normal(5, 2)
    F = of.Potential(U) + of.QuadraticPotential(0.1 * np.eye(2))
    plain, weighted = (of.jko_step(of.Particles(x, w), F, 3.0) for w in (None, np.arange(1, 6) / 15))
    assert plain.status == weighted.status == "ok"
    torch.testing.assert_close(plain.mu.x, weighted.mu.x, rtol=0, atol=1e-8)


# --- how runs and batches end ------------------------------------------------------------------------------


def two_members() -> tuple[of.Particles, of.Energy]:
    """A member that is proved, and one that is not: a step in a bowl, and on a hill by a matrix each."""
    A = torch.tensor([[[1.0]], [[-1.0]]]).double()
    hidden = of.Potential(lambda x: torch.einsum("...k->...", x**4) / 4, curvature=0.0)
    return of.Particles([[[1.0]], [[1.0]]]), of.QuadraticPotential(A) + hidden


def test_each_member_of_a_batch_has_a_status_of_its_own() -> None:
    mu, F = two_members()
    assert of.jko_step(mu, F, 1.5).status.tolist() == ["ok", "local"]
    field = of.SteepestDescent(F, of.Wasserstein())
    for stepper in (of.JKO(), of.Extrapolated(of.JKO())):
        traj = of.flow(mu, field, stepper, t1=3.0, dt=1.5)
        assert traj.status.tolist() == ["ok", "local"]
        assert [traj.member(k).status for k in range(2)] == ["ok", "local"]
        assert bool(traj.ended.isnan().all())  # both arrived
        assert of.Trajectory.from_xarray(traj.to_xarray()).status.tolist() == ["ok", "local"]


def test_one_local_step_makes_a_run_local_and_no_worse_end_better() -> None:
    mu, F = two_members()
    field, short = of.SteepestDescent(F, of.Wasserstein()), {"t1": 0.5, "dt": 0.5}
    first = of.flow(mu, field, of.JKO(), t1=1.5, dt=1.5)
    later = of.flow(first.final, field, of.JKO(), t0=1.5, t1=2.0, dt=0.5)
    assert later.status.tolist() == ["ok", "ok"]
    assert first.join(later).status.tolist() == ["ok", "local"]
    stopped = of.flow(mu, field, of.JKO(), t1=3.0, dt=1.5, stop=lambda t, mu: True)
    assert stopped.status.tolist() == ["stopped", "stopped"]
    assert of.flow(mu, field, of.JKO(), **short).status.tolist() == ["ok", "ok"]
    sloped = of.Potential(lambda x: 0.1 * x.sum(-1))
    split = of.SteepestDescent(F + sloped, of.Wasserstein())
    assert of.flow(mu, split, of.ForwardBackward(sloped), t1=1.5, dt=1.5).status.tolist() == ["ok", "local"]


def test_potentials_may_tell_particles_apart() -> None:
    """As "a well for each": U is called with clouds of as many points, whatever is asked for."""
    centre = torch.tensor([[0.0], [1.0], [-2.0]]).double()
    F = of.Potential(lambda x: (((x - centre) ** 2 - 1) ** 2 / 4).sum(-1), curvature=-1.0, infimum=0.0)
    move = of.jko_step(of.Particles(centre + 0.1), F, 5.0, starts=3)
    assert move.status == "ok"
    torch.testing.assert_close(move.mu.x - centre, (move.mu.x - centre)[:1].expand(3, 1))


def test_single_precision_and_cancelling_terms_are_no_wrong_infimum() -> None:
    for dtype in (torch.float32, torch.float64):
        mu = of.Particles(torch.linspace(0.9, 1.1, 40, dtype=dtype)[:, None])
        F = of.Potential(
            lambda x: (x**2 - 2 * x + 1).sum(-1) + 1e-3 * torch.cos(40 * x).sum(-1), infimum=-1e-3
        )
        assert of.jko_step(mu, F, 5.0).status == "ok"


def test_modules_and_pairs_of_runs_take_local_steps_for_what_they_are() -> None:
    pull = of.SteepestDescent(of.Potential(opaque(Wells.one(2))), of.Wasserstein())
    mu, nu = of.Particles([[0.3]]), of.Particles([[0.5]])
    with torch.no_grad():
        net = of.nn.Flow(pull, of.JKO(), t1=0.2, dt=0.1)
        assert net(mu).x.shape == (1, 1)  # nothing raises
    assert of.coupled(mu, nu, pull, of.JKO(), t1=0.2, dt=0.1).status == "local"


def test_a_curvature_that_is_wrong_is_found_out_by_the_check_of_energies() -> None:
    mu = of.Particles(normal(4, 2))
    for F in CONVEX.values():
        assert of.energies.check(F[0], mu)["curvature"] < 1e-6
    for wrong in (
        of.Potential(lambda x: -x.square().sum(-1), curvature=-1.0),
        of.Interaction(lambda x, y: -(x - y).square().sum(-1), curvature=0.0),
    ):
        with pytest.raises(of.InputError, match="curvature"):
            of.energies.check(wrong, mu)


# --- a curvature that is not one ------------------------------------------------------------------------


def well(x: Tensor) -> Tensor:
    """Its second derivative is -20 at 0."""
    return 5 * (x.square() - 1).square().sum(-1)


@pytest.mark.parametrize("curvature", [5.0, 0.0, -3.0])
@pytest.mark.parametrize("x", [[[0.1]], [[0.5]], [[0.3], [0.4], [0.5]], [[0.2, 0.4]]])
def test_a_curvature_that_the_search_refutes_is_refused(curvature: float, x: list[list[float]]) -> None:
    """It was called ok before, with a `concavity` that says otherwise."""
    mu = of.Particles(x)
    for energy in (
        of.Potential(well, curvature=curvature),
        of.Potential(well, curvature=curvature) + of.QuadraticInteraction(torch.eye(mu.d).double()),
        of.Interaction(lambda x, y: well(x) + well(y), curvature=curvature),
    ):
        with pytest.raises(of.InputError, match=r"curvature = .* where the search met it; pass a number"):
            of.jko_step(mu, energy, 1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("stiff", [1e-3, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("tau", [1e-6, 1e-2, 1.0, 100.0])
def test_a_true_curvature_is_never_refused(stiff: float, tau: float, dtype: torch.dtype) -> None:
    """Far from the origin, too, and with large constants, where differences of gradients are noisy."""
    mu = of.Particles(torch.from_numpy(normal(4, 2) + 50).to(dtype))
    for U, curvature in (
        (lambda x: stiff * (x - 50).square().sum(-1) / 2 + 1e5, stiff),
        (lambda x: (stiff * (x - 48).square() / 2 + torch.cos(3 * x)).sum(-1), stiff - 9.0),
        (lambda x: stiff * torch.nn.functional.softplus(x - 50).sum(-1), 0.0),
    ):
        of.jko_step(mu, of.Potential(U, curvature=curvature), tau, max_iter=8, on_failure="return")
