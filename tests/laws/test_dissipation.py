"""Along a gradient flow the energy falls by the squared speed: d/dt F = -|grad F|^2."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import simpson

import otflow as of
from tests import zoo
from tests.samples import ENERGIES, MEASURES, double_well, hill, makes_sense, slope

SMOOTH = ["potential", "interaction", "sum", "double_well"]
CLOUDS = ["cloud", "weighted", "labelled", "batched", "sphere"]
GAUSSIANS = ["gaussian_on_the_line", "gaussian_with_cubature", "gaussian_batch"]
CASES = [(name, energy) for name in CLOUDS + GAUSSIANS for energy in SMOOTH if makes_sense(name, energy)]
CASES.remove(("sphere", "potential"))  # the harmonic potential is constant there


def check_dissipation(mu0: of.Measure, energy: of.Energy, metric: of.Metric) -> None:
    field = of.SteepestDescent(energy, metric)

    def power(mu: of.Measure) -> torch.Tensor:
        v = field(0.0, mu)
        return metric.inner(mu, v, v)

    traj = of.flow(mu0, field, of.RK4(), t1=0.1, dt=0.0025, observe={"F": energy, "power": power})
    F, rate, ts = (a.numpy() for a in (traj.observed["F"], traj.observed["power"], traj.ts))
    loss = F[0] - F[-1]
    assert np.all(loss > 1e-5), "nothing moved"
    np.testing.assert_allclose(simpson(rate, x=ts, axis=0), loss, rtol=1e-5)
    np.testing.assert_allclose((F[2:] - F[:-2]) / 0.005, -rate[1:-1], rtol=1e-2)
    assert np.all(np.diff(F, axis=0) < 0)


@pytest.mark.parametrize(("name", "energy"), CASES)
def test_energy_is_dissipated_in_the_wasserstein_metric(name: str, energy: str) -> None:
    check_dissipation(MEASURES[name](), ENERGIES[energy](), of.Wasserstein())


@pytest.mark.parametrize("name", CLOUDS)
def test_energy_is_dissipated_in_a_twisted_metric(name: str) -> None:
    check_dissipation(MEASURES[name](), ENERGIES["interaction"](), of.Twisted(zoo.partition))


@pytest.mark.parametrize("name", ["weighted", "gaussian_with_cubature"])
def test_energy_is_dissipated_in_the_metric_of_a_matrix(name: str) -> None:
    mu = MEASURES[name]()
    d = mu.coords[0].shape[-1]
    check_dissipation(mu, ENERGIES["double_well"](), of.Twisted(matrix=np.eye(d) + 0.3 * np.ones((d, d))))


def test_energy_is_dissipated_on_the_torus() -> None:
    mu = of.Particles(np.array([[0.1, 6.2], [3.0, 1.0], [5.9, 3.0]]), space=of.Torus())
    periodic = of.Potential(lambda x: torch.cos(x).sum(-1)) + of.Interaction(
        lambda x, y: -torch.cos(x - y).sum(-1)
    )
    check_dissipation(mu, periodic, of.Wasserstein())


def test_the_ascent_of_an_energy_is_the_descent_of_its_negative() -> None:
    F, mu = ENERGIES["double_well"](), MEASURES["cloud"]()
    up = of.SteepestDescent(-F, of.Wasserstein())
    down = of.SteepestDescent(F, of.Wasserstein())
    torch.testing.assert_close(up(0.0, mu)[0], -down(0.0, mu)[0])
    start = F(mu).item()
    assert F(of.flow(mu, up, of.RK4(), t1=0.01, dt=0.01).final).item() > start
    assert F(of.flow(mu, down, of.RK4(), t1=0.01, dt=0.01).final).item() < start


def test_softmax_attention_is_a_gradient_flow_in_its_twisted_metric() -> None:
    """V = -A with A = Q^T Q: descent of 1/2 int int exp(Ax.y), each point weighed by int exp(Ax.y) dmu(y)."""
    Q = zoo.matrix(22)
    A, mu = Q.mT @ Q, MEASURES["weighted"]()
    energy = of.Interaction(lambda x, y: torch.exp(((x @ A) * y).sum(-1)))
    metric = of.Twisted(lambda mu, x: (torch.exp((x @ A) @ mu.x.mT) * mu.w[..., None, :]).sum(-1))
    attention = of.SoftmaxAttention(Q, Q, -A)
    descent = of.SteepestDescent(energy, metric)
    torch.testing.assert_close(descent(0.0, mu)[0], attention(0.0, mu)[0], rtol=1e-12, atol=1e-13)


def test_a_grid_dissipates_up_to_the_first_order_of_its_cells() -> None:
    """The step is upwind, the inner product central: they differ by the width of a cell."""
    field = of.SteepestDescent(of.Potential(double_well), of.Wasserstein())
    cells, gaps = [40, 80, 160, 320, 640], []
    for n in cells:
        mu = hill(n)
        v, dt = field(0.0, mu), 1e-4 / n
        change = (field.energy(mu.move(dt * v)) - field.energy(mu)) / dt
        gaps.append(abs(float(change / mu.inner(v, v)) + 1))
    assert slope(1 / np.array(cells), gaps) == pytest.approx(1.0, abs=0.15)
    assert gaps[-1] < 0.01


@pytest.mark.parametrize("energy", ["potential", "double_well", "interaction", "sum"])
@pytest.mark.parametrize("name", ["grid", "grid_2d", "grid_3d"])
def test_the_energy_of_a_grid_decreases(name: str, energy: str) -> None:
    F = ENERGIES[energy]()
    field = of.SteepestDescent(F, of.Wasserstein())
    traj = of.flow(MEASURES[name](), field, of.Euler(), t1=0.02, dt=1e-3, observe={"F": F})
    assert bool((traj.observed["F"].diff(dim=0) < 0).all())
