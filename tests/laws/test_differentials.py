"""Differentials against the energies themselves: the remainder of Taylor's formula has slope two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otflow as of
from tests import zoo
from tests.samples import ENERGIES, MEASURES, makes_sense, normal, slope

STEPS = 2.0 ** -np.arange(8, 14)
LINEAR = [(m, e) for m in MEASURES for e in ("potential", "double_well") if m.startswith("grid")]
CURVED = [(m, e) for m in MEASURES for e in ENERGIES if (m, e) not in LINEAR and makes_sense(m, e)]


def remainders(energy: of.Energy, mu: of.Measure) -> np.ndarray:
    """|F(coords + h u) - F(coords) - h <dF, u>| summed over the batch, for the steps h."""
    generator = torch.Generator().manual_seed(3)
    u = mu.coords.map(lambda c: torch.randn(c.shape, generator=generator, dtype=c.dtype))
    u = u if isinstance(mu, of.Particles | of.Gaussian) else u.map(lambda p: p * mu.coords[0])
    slope_of_f = sum((a * b).sum() for a, b in zip(energy.differential(mu), u, strict=True))
    start = energy(mu)
    return np.array(
        [
            abs(float((energy(mu.at(mu.coords + h * u)) - start).sum() - h * slope_of_f))
            for h in STEPS.tolist()
        ]
    )


@pytest.mark.parametrize(("name", "energy"), CURVED)
def test_the_remainder_of_the_first_order_has_slope_two(name: str, energy: str) -> None:
    found = remainders(ENERGIES[energy](), MEASURES[name]())
    assert slope(STEPS, found) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(("name", "energy"), LINEAR)
def test_nothing_remains_when_the_energy_is_linear_in_the_density(name: str, energy: str) -> None:
    found = remainders(ENERGIES[energy](), MEASURES[name]())
    assert found.max() < 1e-14


@pytest.mark.parametrize("energy", ENERGIES)
def test_the_streamed_differential_equals_autograd(energy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of one row each, against the gradient of the value."""
    mu, F = MEASURES["batched"](), ENERGIES[energy]()
    x = mu.coords[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(F(mu.at([x])).sum(), x)
    monkeypatch.setattr("otflow.base.kernels.TILE", 1)
    torch.testing.assert_close(F.differential(mu)[0], expected)
    torch.testing.assert_close(F(mu), F(mu.at([x])).detach())


@pytest.mark.parametrize("energy", ENERGIES)
def test_a_differential_can_be_differentiated_again(energy: str) -> None:
    F = ENERGIES[energy]()
    x = torch.tensor(normal(3, 2), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: F.differential(of.Particles(x))[0], x)


@pytest.mark.parametrize("energy", ENERGIES)
def test_a_differential_leaves_no_graph_behind(energy: str) -> None:
    mu = MEASURES["cloud"]()
    with torch.no_grad():
        c = ENERGIES[energy]().differential(mu)[0]
    assert c.grad_fn is None
    assert not c.requires_grad
    assert not mu.coords[0].requires_grad


# --- values ------------------------------------------------------------------------------------------


def test_the_interaction_energy_is_half_the_double_sum() -> None:
    mu = MEASURES["weighted"]()
    x, w = mu.nodes()
    expected = 0.5 * sum(
        float(w[i] * w[j] * zoo.bell(x[i], x[j])) for i in range(len(w)) for j in range(len(w))
    )
    assert of.Interaction(zoo.bell)(mu).item() == pytest.approx(expected, rel=1e-13)


def test_without_the_diagonal_no_token_meets_itself() -> None:
    mu = MEASURES["weighted"]()
    x, w = mu.nodes()
    expected = 0.5 * sum(
        float(w[i] * w[j] * zoo.log_distance(x[i], x[j]))
        for i in range(len(w))
        for j in range(len(w))
        if i != j
    )
    assert of.Interaction(zoo.log_distance, diagonal=False)(mu).item() == pytest.approx(expected, rel=1e-13)


def test_a_singular_kernel_leaves_the_gradient_of_other_pairs_alone() -> None:
    """Two tokens at distance two repel as -log: x' = 1/2 * 1/2 * sign, weights one half each."""
    field = of.SteepestDescent(of.Interaction(zoo.log_distance, diagonal=False), of.Wasserstein())
    v = field(0.0, of.Particles([[0.0], [2.0]]))[0].flatten()
    assert v.tolist() == pytest.approx([-0.25, 0.25])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_potential_integrates_moments_of_a_gaussian(order: int) -> None:
    m, s = 0.7, 1.3
    moments = {1: m, 2: m**2 + s**2, 3: m**3 + 3 * m * s**2, 4: m**4 + 6 * m**2 * s**2 + 3 * s**4}
    g = of.Gaussian([m], root=[[s]])
    assert of.Potential(lambda x: x[..., 0] ** order)(g).item() == pytest.approx(moments[order], rel=1e-12)


def test_quadratic_attraction_on_a_gaussian_is_its_variance() -> None:
    g = of.Gaussian(normal(2), root=normal(2, 2))
    F = of.Interaction(lambda x, y: (x - y).square().sum(-1) / 2)
    assert F(g).item() == pytest.approx(g.cov.trace().item() / 2, rel=1e-12)


# --- algebra -----------------------------------------------------------------------------------------


def algebra() -> list[tuple[of.Energy, float, float]]:
    """Combinations a F + b G of F = the interaction and G = the potential."""
    F, G = ENERGIES["interaction"](), ENERGIES["double_well"]()
    return [
        (F + G, 1, 1), (F - G, 1, -1), (2 * F + G * 3.0, 2, 3), (-F, -1, 0), (-(F - 2 * G), -1, 2),
        (F + (G - F) + 0.5 * (F + G), 0.5, 1.5), (np.float64(0.5) * F, 0.5, 0), (F * np.float32(0.5), 0.5, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize("name", ["batched", "gaussian_in_the_plane", "grid_2d"])
def test_energies_add_and_scale(name: str, case: int) -> None:
    mu, F, G = MEASURES[name](), ENERGIES["interaction"](), ENERGIES["double_well"]()
    total, a, b = algebra()[case]
    assert isinstance(total, of.Energy)
    torch.testing.assert_close(total(mu), a * F(mu) + b * G(mu), rtol=1e-12, atol=1e-14)
    expected = a * F.differential(mu) + b * G.differential(mu)
    for found, wanted in zip(total.differential(mu), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), "2", None])
def test_energies_scale_by_finite_numbers_only(factor: object) -> None:
    with pytest.raises(of.InputError, match="factor"):
        ENERGIES["potential"]() * factor


def test_an_energy_and_a_number_do_not_add() -> None:
    with pytest.raises(TypeError):
        ENERGIES["potential"]() + 1.0


def test_a_potential_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(of.InputError, match=r"U\(x\)\.shape"):
        of.Potential(lambda x: x)(MEASURES["cloud"]())


def test_a_kernel_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(of.InputError, match=r"W\(x, y\)\.shape"):
        of.Interaction(lambda x, y: x - y)(MEASURES["cloud"]())


def test_functions_written_for_numpy_are_told_about_torch() -> None:
    mu = MEASURES["cloud"]()
    for U in (lambda x: x.numpy().sum(-1), lambda x: np.sum(x, axis=-1), lambda x: 1.0):
        with pytest.raises(of.InputError, match="torch operations"):
            of.Potential(U).differential(mu)
    with pytest.raises(of.InputError, match="torch operations"):
        of.Interaction(lambda x, y: np.sum(x - y, axis=-1))(mu)
