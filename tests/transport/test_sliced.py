"""Sliced distances against POT, scipy, closed forms, and the laws of a distance."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from torch import Tensor

import otflow as of
from otflow.base import kernels
from otflow.transport.exact.sliced import sliced_wasserstein
from otflow.transport.exact.wasserstein import wasserstein
from tests.samples import hill, normal, unit

SEEDS = st.integers(0, 10**6)
ORDERS = st.sampled_from([1.0, 1.5, 2.0, 3.0])
FRAME = unit(9, 3, seed=5)


def weighted(seed: int, n: int = 12, d: int = 3, batch: tuple[int, ...] = ()) -> of.Particles:
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.1, 1.0, (*batch, n))
    return of.Particles(rng.normal(size=(*batch, n, d)), w / w.sum(-1, keepdims=True))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("weights", ["uniform", "unequal numbers", "weighted"])
def test_it_agrees_with_pot_on_the_same_directions(p: float, weights: str) -> None:
    mu, nu = weighted(1), weighted(2, n=12 if weights == "uniform" else 17)
    if weights != "weighted":
        mu, nu = of.Particles(mu.x), of.Particles(nu.x)
    theirs = ot.sliced_wasserstein_distance(
        mu.x.numpy(), nu.x.numpy(), mu.w.numpy(), nu.w.numpy(), projections=FRAME.T, p=p
    )
    assert sliced_wasserstein(mu, nu, p, directions=FRAME).item() == pytest.approx(theirs, rel=1e-12)


def test_on_the_line_every_slice_is_the_wasserstein_distance() -> None:
    mu, nu = weighted(3, d=1), weighted(4, n=20, d=1)
    theirs = wasserstein_distance(*(a.flatten().numpy() for a in (mu.x, nu.x, mu.w, nu.w)))
    assert sliced_wasserstein(mu, nu, 1, directions=[[1.0], [-1.0]]).item() == pytest.approx(
        theirs, rel=1e-12
    )
    assert sliced_wasserstein(mu, nu, 3, rng=0).item() == pytest.approx(
        wasserstein(mu, nu, 3).item(), rel=1e-12
    )


def test_infinite_order_is_the_longest_way_in_any_slice() -> None:
    mu, nu = of.Particles([[0.0, 0.0], [1.0, 1.0]]), of.Particles([[0.0, 0.5], [1.0, 4.0]])
    assert sliced_wasserstein(mu, nu, math.inf, directions=np.eye(2)).item() == 3.0


def test_a_shift_is_seen_by_its_projections() -> None:
    mu, h = weighted(5), np.array([1.0, -2.0, 0.5])
    d = sliced_wasserstein(mu, mu.at([mu.x + torch.from_numpy(h)]), directions=FRAME).item()
    assert d == pytest.approx(math.sqrt(np.mean((FRAME @ h) ** 2)), rel=1e-12)
    many = sliced_wasserstein(mu, mu.at([mu.x + torch.from_numpy(h)]), directions=20_000, rng=0).item()
    assert many == pytest.approx(np.linalg.norm(h) / math.sqrt(3), rel=0.02)


def test_gaussian_clouds_have_the_distance_of_gaussians() -> None:
    # On each line N(0, S) is N(0, s^2) with s^2 = theta.S theta, and W2 = |s - s'|.
    n, roots = 40_000, (np.diag([1.0, 2.0, 0.5]), np.diag([0.3, 1.0, 2.0]))
    mu, nu = (of.Particles(normal(n, 3, seed=i) @ root) for i, root in enumerate(roots))
    s, t = (np.linalg.norm(FRAME @ root, axis=-1) for root in roots)
    d = sliced_wasserstein(mu, nu, directions=FRAME).item()
    assert d == pytest.approx(math.sqrt(np.mean((s - t) ** 2)), rel=0.02)


def test_dilating_a_cloud_has_a_closed_form() -> None:
    x = normal(30, 4, seed=6)
    q, _ = np.linalg.qr(normal(4, 4, seed=7))
    d = sliced_wasserstein(of.Particles(x), of.Particles(3 * x), directions=q).item()
    assert d == pytest.approx(2 * math.sqrt(np.mean(np.sum(x**2, -1)) / 4), rel=1e-12)


def test_small_moves_of_weighted_atoms_keep_their_digits() -> None:
    mu = weighted(8)
    for h in (1e-6, 1e-12):
        order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
        nu = of.Particles((mu.x * (1 + h))[order], mu.w[order])
        exact = h * math.sqrt(np.mean([(mu.w.numpy() * (mu.x.numpy() @ t) ** 2).sum() for t in FRAME]))
        assert sliced_wasserstein(mu, nu, directions=FRAME).item() == pytest.approx(
            exact, rel=1e-15 / h + 1e-12
        )


def test_clouds_far_from_the_origin_keep_their_digits() -> None:
    mu, nu = of.Particles(normal(20, 3, seed=1).round(3)), of.Particles(normal(20, 3, seed=2).round(3))
    d = sliced_wasserstein(mu, nu, directions=FRAME).item()
    far = sliced_wasserstein(mu.at([mu.x + 2.0**30]), nu.at([nu.x + 2.0**30]), directions=FRAME).item()
    assert far == pytest.approx(d, rel=1e-6)


def test_batches_broadcast_and_grids_are_atoms() -> None:
    mu, nu = weighted(9, batch=(2, 1)), weighted(10, batch=(3,))
    d = sliced_wasserstein(mu, nu, directions=FRAME)
    assert d.shape == (2, 3)
    one = sliced_wasserstein(mu[1, 0], nu[2], directions=FRAME)
    assert d[1, 2].item() == pytest.approx(one.item(), rel=1e-14)
    rho, sigma = hill(20), hill(20, at=0.5)
    assert sliced_wasserstein(rho, sigma, rng=0).item() == pytest.approx(
        wasserstein(rho, sigma).item(), rel=1e-9
    )


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mu, nu = weighted(11), of.Particles(normal(12, 3, seed=12))
    for one in (mu, of.Particles(mu.x)):
        results = []
        for tile in (2**20, 50):  # all directions at once, then two at a time
            monkeypatch.setattr(kernels, "TILE", tile)
            x = one.x.clone().requires_grad_()
            d = sliced_wasserstein(one.at([x]), nu, directions=FRAME)
            (slope,) = torch.autograd.grad(d, x, create_graph=True)
            (bend,) = torch.autograd.grad(slope[0, 0], x)
            results.append(torch.cat([d[None], slope.flatten(), bend.flatten()]))
        assert torch.allclose(*results, rtol=1e-12, atol=1e-14)


def test_wrong_input_is_refused() -> None:
    mu = weighted(13)
    with pytest.raises(of.InputError, match="rng"):
        sliced_wasserstein(mu, mu)
    with pytest.raises(of.InputError, match="unit vectors"):
        sliced_wasserstein(mu, mu, directions=2 * FRAME)
    with pytest.raises(of.InputError, match=r"directions.shape = \(3, 2\)"):
        sliced_wasserstein(mu, mu, directions=np.eye(3)[:, :2])
    with pytest.raises(of.InputError, match="directions"):
        sliced_wasserstein(mu, mu, directions=0, rng=0)
    circle = of.Particles([[0.1]], space=of.Torus())
    with pytest.raises(of.InputError, match="torus"):
        sliced_wasserstein(circle, circle, rng=0)
    with pytest.raises(of.InputError, match="atoms"):
        sliced_wasserstein(of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([0.0], root=[[1.0]]), rng=0)


def test_seeds_and_generators_are_sources_of_directions() -> None:
    mu, nu = weighted(14), weighted(15)
    d, again = (sliced_wasserstein(mu, nu, rng=3).item() for _ in range(2))
    assert d == again == sliced_wasserstein(mu, nu, rng=np.random.default_rng(3)).item()
    rng = np.random.default_rng(3)
    assert sliced_wasserstein(mu, nu, rng=rng).item() != sliced_wasserstein(mu, nu, rng=rng).item()


def test_single_precision_is_computed_in_double_precision() -> None:
    mu, nu = weighted(16), weighted(17)
    single = (of.Particles(m.x.float(), m.w.float()) for m in (mu, nu))
    d = sliced_wasserstein(*single, directions=FRAME)
    assert d.dtype == torch.float32
    assert d.item() == pytest.approx(sliced_wasserstein(mu, nu, directions=FRAME).item(), rel=1e-6)


# --- laws ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(seed=SEEDS, p=ORDERS)
def test_it_is_a_distance_below_the_wasserstein_distance(seed: int, p: float) -> None:
    a, b, c = weighted(seed), weighted(seed + 1, n=8), weighted(seed + 2)
    ab, ba, bc, ac = (
        sliced_wasserstein(*pair, p, directions=FRAME).item() for pair in ((a, b), (b, a), (b, c), (a, c))
    )
    assert ab == pytest.approx(ba, rel=1e-12)
    assert ac <= (ab + bc) * (1 + 1e-12)
    assert ab <= wasserstein(a, b, p).item() * (1 + 1e-9)
    assert sliced_wasserstein(a, a, p, directions=FRAME).item() == 0.0


@pytest.mark.thorough
@given(seed=SEEDS, p=ORDERS, power=st.integers(-100, 100))
def test_it_scales_with_the_tokens_and_does_not_see_shifts(seed: int, p: float, power: int) -> None:
    mu, nu = weighted(seed), weighted(seed + 1)
    d = sliced_wasserstein(mu, nu, p, directions=FRAME).item()
    scaled = (one.at([one.x * 10.0**power]) for one in (mu, nu))
    assert sliced_wasserstein(*scaled, p, directions=FRAME).item() == pytest.approx(
        d * 10.0**power, rel=1e-11
    )
    shifted = (one.at([one.x + 3.0]) for one in (mu, nu))
    assert sliced_wasserstein(*shifted, p, directions=FRAME).item() == pytest.approx(d, rel=1e-12)


@pytest.mark.thorough
@given(seed=SEEDS, p=ORDERS, parts=st.integers(2, 5))
def test_splitting_atoms_changes_nothing(seed: int, p: float, parts: int) -> None:
    mu, nu = of.Particles(normal(7, 3, seed=seed)), weighted(seed + 1)
    split = of.Particles(mu.x.repeat(parts, 1))
    d = sliced_wasserstein(mu, nu, p, directions=FRAME).item()
    assert sliced_wasserstein(split, nu, p, directions=FRAME).item() == pytest.approx(d, rel=1e-12)
    assert sliced_wasserstein(split, mu, p, directions=FRAME).item() <= 1e-15  # rounding of projections


# --- derivatives ---------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow(but_for=["6-1", "6-2", "9-1.5"])
@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("m", [6, 9])
def test_gradients_agree_with_differences(m: int, p: float) -> None:
    x, y = (torch.from_numpy(normal(2, k, 3, seed=i)).requires_grad_() for i, k in enumerate((6, m)))
    f = lambda x, y: sliced_wasserstein(of.Particles(x), of.Particles(y), p, directions=FRAME)  # noqa: E731
    assert torch.autograd.gradcheck(f, (x, y))
    assert torch.autograd.gradgradcheck(f, (x, y))


def test_gradients_in_weights_and_directions_agree_with_differences() -> None:
    mu, nu = weighted(18, n=5), weighted(19, n=4)

    def f(w: Tensor, theta: Tensor) -> Tensor:
        theta = theta / theta.norm(dim=-1, keepdim=True)
        return sliced_wasserstein(of.Particles(mu.x, w / w.sum()), nu, directions=theta)

    theta = torch.from_numpy(FRAME[:3].copy())
    assert torch.autograd.gradcheck(f, (mu.w.clone().requires_grad_(), theta.requires_grad_()))


def test_the_gradient_at_distance_zero_is_zero() -> None:
    x = torch.from_numpy(normal(5, 3)).requires_grad_()
    d = sliced_wasserstein(of.Particles(x), of.Particles(x.detach()), rng=0)
    d.backward()
    assert d.item() == 0.0
    assert bool((x.grad == 0).all())
