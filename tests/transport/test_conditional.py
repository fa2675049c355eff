"""Conditional distances against numpy, linear programmes, POT, and the laws of a distance."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

import otflow as of
from otflow.transport.exact import network_simplex
from otflow.transport.exact.conditional import conditional_wasserstein, relaxed_conditional
from otflow.transport.exact.sliced import sliced_wasserstein
from otflow.transport.exact.wasserstein import wasserstein

Array = np.ndarray
SEEDS = st.integers(0, 10**6)
ORDERS = st.sampled_from([1.0, 1.5, 2.0, 3.0])
LABELS = np.array([2.0, 0.0, 2.0, 1.0, 0.0, 2.0, 5.0])  # out of order, with ties


def cloud(seed: int, *, d: int = 2, label: Array = LABELS, batch: tuple[int, ...] = ()) -> of.Particles:
    """Random tokens, whose fibres all have the mass that LABELS says, however it is distributed."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.2, 1.0, (*batch, len(label)))
    own = label[:, None] == label
    w = share / (share @ own) * own.mean(0)
    return of.Particles(rng.normal(size=(*batch, len(label), d)), w, label)


def by_linear_programme(mu: of.Particles, nu: of.Particles, p: float) -> float:
    """The best coupling among those that keep labels."""
    i, j = np.nonzero((mu.label[:, None] == nu.label).numpy())
    cost = mu.space.pairwise(mu.x, nu.x).numpy()[i, j] ** p
    rows = np.concatenate([i == np.arange(mu.n)[:, None], j == np.arange(nu.n)[:, None]]).astype(float)
    mass = np.concatenate([mu.w.numpy(), nu.w.numpy()])
    answer = linprog(cost, A_eq=rows[:-1], b_eq=mass[:-1], method="highs-ds")
    assert answer.status == 0
    return float(answer.fun ** (1 / p))


@pytest.mark.parametrize("p", [1, 2, 3.5, math.inf])
def test_tokens_with_distinct_labels_are_compared_label_by_label(p: float) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 7, 3))
    s, t = (np.stack([rng.permutation(7) for _ in range(5)]) for _ in range(2))
    d = conditional_wasserstein(of.Particles(x, label=s), of.Particles(y, label=t), p)
    for b in range(5):
        r = np.linalg.norm(x[b][np.argsort(s[b])] - y[b][np.argsort(t[b])], axis=-1)
        assert d[b].item() == pytest.approx(np.linalg.norm(r, p) / 7 ** (1 / p), rel=1e-14)


@pytest.mark.parametrize("space", ["plane", "sphere", "torus"])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_it_is_the_best_coupling_that_keeps_labels(space: str, p: float) -> None:
    mu, nu = cloud(1, d=3), cloud(2, d=3)
    if space == "sphere":
        mu, nu = (
            of.Particles(m.x / m.x.norm(dim=-1, keepdim=True), m.w, m.label, of.Sphere()) for m in (mu, nu)
        )
    if space == "torus":
        mu, nu = (of.Particles(m.x, m.w, m.label, of.Torus(1.5)) for m in (mu, nu))
    assert conditional_wasserstein(mu, nu, p).item() == pytest.approx(
        by_linear_programme(mu, nu, p), rel=1e-9
    )


def test_fibres_are_weighted_by_the_law_of_labels() -> None:
    mu, nu = cloud(3), cloud(4)
    total = 0.0
    for s in np.unique(LABELS):
        own = s == LABELS
        a, b = (m.w.numpy()[own] / m.w.numpy()[own].sum() for m in (mu, nu))
        total += own.mean() * ot.emd2(a, b, ot.dist(mu.x.numpy()[own], nu.x.numpy()[own]))
    assert conditional_wasserstein(mu, nu).item() == pytest.approx(math.sqrt(total), rel=1e-12)


def test_fibres_may_have_different_numbers_of_atoms() -> None:
    mu = of.Particles([[0.0], [1.0], [5.0]], [0.25, 0.25, 0.5], label=[0, 0, 1])
    nu = of.Particles([[5.0], [6.0], [2.0]], [0.25, 0.25, 0.5], label=[1, 1, 0])
    assert conditional_wasserstein(mu, nu, 1).item() == pytest.approx(0.25 * 2 + 0.25 * 1 + 0.25 * 1)


def test_batches_broadcast_and_give_what_a_loop_gives() -> None:
    mu, nu = cloud(5, batch=(3, 1)), cloud(6, batch=(2,))
    d = conditional_wasserstein(mu, nu)
    assert d.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            assert d[i, j].item() == pytest.approx(conditional_wasserstein(mu[i, 0], nu[j]).item(), rel=1e-14)


def test_powers_average_over_a_batch_of_sequences() -> None:
    x, y = np.random.default_rng(7).normal(size=(2, 4, 6, 2))
    label = np.arange(24.0).reshape(4, 6)
    d = conditional_wasserstein(of.Particles(x, label=label[0]), of.Particles(y, label=label[0]), 3)
    flat = (of.Particles(z.reshape(24, 2), label=label.flatten()) for z in (x, y))
    assert conditional_wasserstein(*flat, 3).item() == pytest.approx(
        (d**3).mean().item() ** (1 / 3), rel=1e-14
    )


def test_atoms_without_mass_are_ignored() -> None:
    mu = of.Particles([[0.0], [7.0], [1.0]], [0.5, 0.0, 0.5], label=[0, 9, 1])
    nu = of.Particles([[1e300], [2.0], [1.0], [3.0]], [0.0, 0.5, 0.5, 0.0], label=[0, 1, 0, 1])
    assert conditional_wasserstein(mu, nu, 1).item() == pytest.approx(1.0)


def test_different_laws_of_labels_are_refused_by_name() -> None:
    x = np.zeros((2, 3, 1))
    mu, nu = of.Particles(x, label=[0, 1, 2]), of.Particles(x, label=[[2, 1, 0], [0, 1, 4]])
    with pytest.raises(
        of.InputError, match=r"label 2\.0 in member \[1\].* 0\.3333333333 in mu and 0 in nu.*relaxed"
    ):
        conditional_wasserstein(mu, nu)
    heavy = of.Particles(x[0], [0.5, 0.25, 0.25], label=[0, 1, 2])
    with pytest.raises(of.InputError, match=r"mass of label 0\.0 = 0\.5 in mu and 0\.25 in nu"):
        conditional_wasserstein(heavy, of.Particles(x[0], [0.25, 0.5, 0.25], label=[0, 1, 2]))


def test_masses_within_the_tolerance_are_equal() -> None:
    x, y = [[0.0], [1.0]], [[1.0], [3.0]]
    mu = of.Particles(x, [0.5, 0.5], label=[0, 1])
    assert conditional_wasserstein(
        mu, of.Particles(y, [0.5 + 9e-10, 0.5 - 9e-10], label=[0, 1]), 1
    ).item() == pytest.approx(1.5, rel=1e-8)
    with pytest.raises(of.InputError, match="law of labels"):
        conditional_wasserstein(mu, of.Particles(y, [0.5 + 3e-9, 0.5 - 3e-9], label=[0, 1]))


def test_wrong_measures_are_refused() -> None:
    plain, labelled = of.Particles([[0.0]]), of.Particles([[0.0]], label=[0])
    with pytest.raises(of.InputError, match="labels are needed"):
        conditional_wasserstein(plain, labelled)
    with pytest.raises(of.InputError, match="labels are needed"):
        conditional_wasserstein(labelled, plain)
    with pytest.raises(of.InputError, match="one space"):
        conditional_wasserstein(labelled, of.Particles([[0.0, 1.0]], label=[0]))
    with pytest.raises(of.InputError, match=r"p = 0\.5"):
        conditional_wasserstein(labelled, labelled, 0.5)
    with pytest.raises(of.InputError, match="finite p"):
        conditional_wasserstein(cloud(0), cloud(1), math.inf)


def test_single_precision_is_computed_in_double_precision() -> None:
    mu, nu = cloud(8), cloud(9)
    single = (of.Particles(m.x.float(), m.w.float(), m.label) for m in (mu, nu))
    d = conditional_wasserstein(*single)
    assert d.dtype == torch.float32
    assert d.item() == pytest.approx(conditional_wasserstein(mu, nu).item(), rel=1e-6)


def test_orders_whose_powers_leave_floating_point_are_refused() -> None:
    mu, nu = (of.Particles(x, label=[0, 1]) for x in ([[0.0], [1.0]], [[1.7], [2.7]]))
    assert conditional_wasserstein(mu, nu, 500).item() == pytest.approx(1.7, rel=1e-12)
    assert conditional_wasserstein(mu, nu, math.inf).item() == pytest.approx(1.7, rel=1e-12)
    with pytest.raises(of.InputError, match="beyond 500 powers of distances"):
        conditional_wasserstein(mu, nu, 2000)


def test_small_displacements_keep_their_digits() -> None:
    x = np.random.default_rng(10).normal(size=(50, 3))
    for h in (1e-3, 1e-9, 1e-15):
        mu, nu = (of.Particles(z, label=np.arange(50)) for z in (x, x + h * x))
        exact = np.sqrt((((x + h * x) - x) ** 2).sum(-1).mean())
        assert conditional_wasserstein(mu, nu).item() == pytest.approx(exact, rel=1e-14)


# --- laws ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(seed=SEEDS, p=ORDERS)
def test_it_is_symmetric_and_obeys_the_triangle_inequality(seed: int, p: float) -> None:
    a, b, c = (cloud(seed + i) for i in range(3))
    ab, ba, bc, ac = (conditional_wasserstein(*pair, p).item() for pair in ((a, b), (b, a), (b, c), (a, c)))
    assert ab == pytest.approx(ba, rel=1e-12)
    assert ac <= (ab + bc) * (1 + 1e-9)
    assert conditional_wasserstein(a, a, p).item() == 0.0


@pytest.mark.slow
@given(seed=SEEDS, p=ORDERS, power=st.integers(-100, 100))
def test_it_scales_with_the_tokens_and_does_not_see_shifts(seed: int, p: float, power: int) -> None:
    mu, nu = cloud(seed), cloud(seed + 1)
    d = conditional_wasserstein(mu, nu, p).item()
    scaled = conditional_wasserstein(mu.at([mu.x * 10.0**power]), nu.at([nu.x * 10.0**power]), p).item()
    assert scaled == pytest.approx(d * 10.0**power, rel=1e-9)
    assert conditional_wasserstein(mu.at([mu.x + 3.0]), nu.at([nu.x + 3.0]), p).item() == pytest.approx(d)


@pytest.mark.thorough
@given(seed=SEEDS, p=ORDERS)
def test_splitting_an_atom_within_its_fibre_changes_nothing(seed: int, p: float) -> None:
    mu, nu = cloud(seed), cloud(seed + 1)
    w = torch.cat([mu.w, mu.w[:1] / 3])
    w[0] = mu.w[0] * 2 / 3
    split = of.Particles(torch.cat([mu.x, mu.x[:1]]), w, torch.cat([mu.label, mu.label[:1]]))
    assert conditional_wasserstein(split, nu, p).item() == pytest.approx(
        conditional_wasserstein(mu, nu, p).item(), rel=1e-9
    )


@pytest.mark.slow
@given(seed=SEEDS)
def test_conditional_exceeds_relaxed_exceeds_plain_exceeds_sliced(seed: int) -> None:
    mu, nu = cloud(seed), cloud(seed + 1)
    relaxed = relaxed_conditional(mu, nu, [1e-3, 1e-1, 1.0, 10.0, 1e3])
    chain = [sliced_wasserstein(mu, nu, rng=seed), wasserstein(mu, nu), *relaxed.values, relaxed.conditional]
    assert bool((torch.stack(chain).diff() >= -1e-9).all())
    assert relaxed.shortfall.item() >= -1e-9


# --- derivatives ---------------------------------------------------------------------------------------


def distance_of(mu: of.Particles, nu: of.Particles, p: float, x: Tensor, y: Tensor) -> Tensor:
    return conditional_wasserstein(mu.at([x]), nu.at([y]), p)


@pytest.mark.thorough
@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("labels", ["distinct", "tied"])
def test_gradients_agree_with_differences(labels: str, p: float) -> None:
    label = LABELS if labels == "tied" else np.random.default_rng(0).permutation(7).astype(float)
    mu, nu = cloud(11, label=label, batch=(2,)), cloud(12, label=label)
    x, y = mu.x.requires_grad_(), nu.x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: distance_of(mu, nu, p, x, y), (x, y))


def test_gradients_in_the_weights_within_fibres_agree_with_differences() -> None:
    mu, nu = cloud(23), cloud(24)
    own = torch.from_numpy((LABELS[:, None] == LABELS).astype(float))

    def f(share: Tensor) -> Tensor:
        return conditional_wasserstein(of.Particles(mu.x, share / (own @ share) * own.mean(0), LABELS), nu)

    assert torch.autograd.gradcheck(f, mu.w.clone().requires_grad_())


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("space", ["plane", "sphere"])
def test_second_derivatives_are_right_also_where_tokens_coincide(space: str, p: float) -> None:
    x, y = np.random.default_rng(13).normal(size=(2, 4, 3))
    y[1] = x[1]

    def f(x: Tensor, y: Tensor) -> Tensor:
        if space == "plane":
            mu, nu = of.Particles(x, label=range(4)), of.Particles(y, label=range(4))
        else:
            x, y = (z / z.norm(dim=-1, keepdim=True) for z in (x, y))
            mu, nu = (of.Particles(z, label=range(4), space=of.Sphere()) for z in (x, y))
        return conditional_wasserstein(mu, nu, p)

    assert torch.autograd.gradgradcheck(f, [torch.from_numpy(z).requires_grad_() for z in (x, y)])


def test_the_gradient_at_distance_zero_is_zero_and_the_second_derivative_refused() -> None:
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    d = conditional_wasserstein(of.Particles(x, label=range(3)), of.Particles(x.detach(), label=range(3)))
    (slope,) = torch.autograd.grad(d, x, create_graph=True)
    assert d.item() == 0.0
    assert bool((slope == 0).all())
    with pytest.raises(of.errors.DerivativeError, match="coincide"):
        torch.autograd.grad(slope.sum(), x)


def test_second_derivatives_at_a_kink_are_refused() -> None:
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64, requires_grad=True)
    nu = of.Particles([[0.0], [3.0]], label=[0, 1])
    (slope,) = torch.autograd.grad(
        conditional_wasserstein(of.Particles(x, label=[0, 1]), nu, 1), x, create_graph=True
    )
    assert slope.flatten().tolist() == [0.0, -0.5]
    with pytest.raises(of.errors.DerivativeError, match="coincide"):
        torch.autograd.grad(slope.sum(), x)


# --- relaxed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.01, 1.0, 30.0])
def test_the_relaxed_distance_is_transport_with_a_price_on_labels(beta: float) -> None:
    mu, nu = cloud(14), of.Particles(cloud(15).x, label=np.arange(7.0))
    relaxed = relaxed_conditional(mu, nu, beta)
    s, t = mu.label.numpy()[:, None], nu.label.numpy()
    cost = beta * (s - t) ** 2 + ot.dist(mu.x.numpy(), nu.x.numpy())
    plan = ot.emd(mu.w.numpy(), nu.w.numpy(), cost)
    assert relaxed.distance.item() == pytest.approx(math.sqrt((plan * cost).sum()), rel=1e-9)
    assert relaxed.moved.item() == pytest.approx((plan * (s - t) ** 2).sum(), rel=1e-6)
    assert relaxed.conditional.item() == math.inf
    assert relaxed.shortfall.item() == math.inf
    assert relaxed.status == "ok"


def test_the_conditional_distance_is_reached_at_a_finite_price() -> None:
    mu, nu = cloud(16), cloud(17)
    beta = wide = float(mu.space.pairwise(mu.x, nu.x).max()) ** 2  # labels are one apart, at least
    relaxed = relaxed_conditional(mu, nu, [1e-6 * wide, 1e-3 * wide, beta])
    assert bool((relaxed.values.diff() > 0).all())
    assert relaxed.moved[0] > relaxed.moved[1] > relaxed.moved[2] == 0
    assert relaxed.shortfall.item() == pytest.approx(0.0, abs=1e-12)
    assert relaxed.values[0].item() == pytest.approx(wasserstein(mu, nu).item(), rel=1e-3)


def test_members_of_a_batch_have_their_own_limits() -> None:
    x = np.random.default_rng(18).normal(size=(2, 2, 4, 2))
    mu = of.Particles(x[0], label=np.arange(4))
    nu = of.Particles(x[1], label=[[3, 2, 1, 0], [0, 1, 2, 7]])
    relaxed = relaxed_conditional(mu, nu, [1.0, 100.0])
    assert relaxed.values.shape == relaxed.moved.shape == (2, 2)
    assert relaxed.conditional[0].item() == pytest.approx(conditional_wasserstein(mu[0], nu[0]).item())
    assert relaxed.conditional[1].item() == math.inf
    assert relaxed.status.tolist() == ["ok", "ok"]
    apart = relaxed_conditional(mu[1], nu[1], [1.0, 100.0])
    assert apart.values.tolist() == pytest.approx(relaxed.values[:, 1].tolist(), rel=1e-12)


def test_large_labels_of_one_member_do_not_disturb_another() -> None:
    x, y = np.random.default_rng(19).normal(size=(2, 2, 5, 2))
    label, back = (np.arange(5) + np.array([[0.0], [1e15]]), np.arange(5)[::-1] + np.array([[0.0], [1e15]]))
    both = relaxed_conditional(of.Particles(x, label=label), of.Particles(y, label=back), 0.3)
    for i in range(2):
        here = of.Particles(x[i], label=np.arange(5)), of.Particles(y[i], label=np.arange(5)[::-1].copy())
        assert both.distance[i].item() == pytest.approx(relaxed_conditional(*here, 0.3).distance.item())
    one = relaxed_conditional(of.Particles(x, label=label), of.Particles(y[0], label=back[0]), 0.3)
    alone = relaxed_conditional(of.Particles(x[0], label=label[0]), of.Particles(y[0], label=back[0]), 0.3)
    assert one.values.shape == (1, 2)
    assert one.distance[0].item() == pytest.approx(alone.distance.item(), rel=1e-12)


def test_large_labels_keep_their_digits() -> None:
    x, y = np.random.default_rng(19).normal(size=(2, 5, 2))
    near, far = (
        relaxed_conditional(
            of.Particles(x, label=np.arange(5) + c), of.Particles(y, label=np.arange(5)[::-1] + c), 0.3
        )
        for c in (0.0, 1e9)
    )
    assert near.distance.item() == pytest.approx(far.distance.item(), rel=1e-12)


@pytest.mark.thorough
def test_the_relaxed_distance_has_gradients() -> None:
    mu, nu = cloud(20), cloud(21)
    x, y = mu.x.requires_grad_(), nu.x.requires_grad_()
    f = lambda x, y: relaxed_conditional(mu.at([x]), nu.at([y]), [0.1, 1.0]).values  # noqa: E731
    assert torch.autograd.gradcheck(f, (x, y))


def test_plans_that_are_not_certified_are_reported_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    mu, nu = cloud(25), cloud(26)
    good = relaxed_conditional(mu, nu, [0.1, 1.0])
    d = conditional_wasserstein(mu, nu).item()
    monkeypatch.setattr(network_simplex, "TOL", -1.0)  # nothing is good enough
    with pytest.raises(of.errors.ConvergenceError, match="certified") as caught:
        conditional_wasserstein(mu, nu)
    assert caught.value.result.item() == pytest.approx(d, rel=1e-9)
    with pytest.raises(of.errors.ConvergenceError, match="certified") as caught:
        relaxed_conditional(mu, nu, [0.1, 1.0])
    back = relaxed_conditional(mu, nu, [0.1, 1.0], on_failure="return")
    for result in (caught.value.result, back):
        assert result.status == "uncertified"
        assert result.values.tolist() == pytest.approx(good.values.tolist(), rel=1e-9)
    with pytest.raises(of.InputError, match="on_failure"):
        relaxed_conditional(mu, nu, 1.0, on_failure="ignore")  # type: ignore[arg-type]


def test_wrong_prices_and_spaces_are_refused() -> None:
    mu = cloud(22)
    for betas in (0.0, [1.0, 1.0], [2.0, 1.0], [], [[1.0]]):
        with pytest.raises(of.InputError, match="betas"):
            relaxed_conditional(mu, mu, betas)
    circle = of.Particles([[0.1]], label=[0], space=of.Torus())
    with pytest.raises(of.InputError, match="Euclidean"):
        relaxed_conditional(circle, circle, 1.0)
