"""Distances between sequences of any length, against fractions, linear programmes and laws."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import linprog
from torch import Tensor

import otflow as of
from otflow.transport.exact.conditional import conditional_wasserstein
from otflow.transport.exact.sequences import positions, sequence_distance
from otflow.transport.exact.wasserstein import wasserstein

Array = np.ndarray
SEEDS = st.integers(0, 10**6)
ORDERS = st.sampled_from([1.0, 1.5, 2.0, 4.0])


def sequence(seed: int, n: int, *batch: int, d: int = 2, ties: bool = False) -> of.Particles:
    """Random tokens, weights and labels, out of order; with ties, a third of the labels are distinct."""
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.2, 1.0, (*batch, n))
    label = rng.integers(0, max(1, n // 3), (*batch, n)) if ties else rng.normal(size=(*batch, n))
    return of.Particles(rng.normal(size=(*batch, n, d)), w / w.sum(-1, keepdims=True), label)


def plain(n: int, x: Array) -> of.Particles:
    return of.Particles(x, label=np.arange(n))


def by_fractions(x: Array, y: Array, p: float) -> float:
    """The L^p norm of the difference of two step functions with equal steps, cut by exact arithmetic."""
    n, m = len(x), len(y)
    cuts = sorted({Fraction(i, n) for i in range(n + 1)} | {Fraction(j, m) for j in range(m + 1)})
    total = 0.0
    for low, high in pairwise(cuts):
        u = (low + high) / 2
        total += float(high - low) * np.linalg.norm(x[int(u * n)] - y[int(u * m)]) ** p
    return float(total ** (1 / p))


def by_linear_programmes(mu: of.Particles, nu: of.Particles, p: float) -> float:
    """One linear programme for each pair of fibres whose intervals meet, found by testing all pairs."""
    total = 0.0
    for (low, high), x, a in fibres(mu):
        for (start, end), y, b in fibres(nu):
            length = min(high, end) - max(low, start)
            if length > 1e-14:
                cost = np.linalg.norm(x[:, None] - y, axis=-1) ** p
                total += length * transport(cost, a, b)
    return float(total ** (1 / p))


def fibres(mu: of.Particles) -> list[tuple[tuple[float, float], Array, Array]]:
    x, w, s = mu.x.numpy(), mu.w.numpy(), mu.label.numpy()
    return [
        ((w[s < one].sum(), w[s <= one].sum()), x[s == one], w[s == one] / w[s == one].sum())
        for one in np.unique(s[w > 0])
    ]


def transport(cost: Array, a: Array, b: Array) -> float:
    n, m = cost.shape
    rows = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    answer = linprog(cost.flatten(), A_eq=rows[:-1], b_eq=np.concatenate([a, b])[:-1], method="highs-ds")
    assert answer.status == 0
    return float(answer.fun)


# --- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 4.5])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 6), (7, 5), (6, 9), (100, 200), (300, 299)])
def test_sequences_without_weights_are_step_functions(n: int, m: int, p: float) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(n, 3)), rng.normal(size=(m, 3))
    d = sequence_distance(plain(n, x), plain(m, y), p)
    assert d.item() == pytest.approx(by_fractions(x, y, p), rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("ties", [(False, False), (True, False), (True, True)])
def test_fibres_are_compared_wherever_their_intervals_meet(ties: tuple[bool, bool], p: float) -> None:
    mu, nu = sequence(1, 9, ties=ties[0]), sequence(2, 14, ties=ties[1])
    assert sequence_distance(mu, nu, p).item() == pytest.approx(by_linear_programmes(mu, nu, p), rel=1e-9)


def test_a_long_sequence_on_a_curve_is_the_curve() -> None:
    curve = lambda s: np.stack([np.cos(3 * s), s**2], -1)  # noqa: E731
    x = np.random.default_rng(3).normal(size=(5, 2))
    exact = math.sqrt(
        sum(
            quad(lambda s, i=i: float(((curve(np.array(s)) - x[i]) ** 2).sum()), i / 5, (i + 1) / 5)[0]
            for i in range(5)
        )
    )
    fine = of.Particles(curve(positions(20_000).numpy()), label=positions(20_000))
    # The middles of the intervals make this the midpoint rule, up to the four jumps of the other one.
    assert sequence_distance(plain(5, x), fine).item() == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_at_one_law_of_labels_it_is_the_conditional_distance(p: float) -> None:
    mu = sequence(4, 12, 3, ties=True)
    order = np.random.default_rng(5).permutation(12)
    x = np.random.default_rng(6).normal(size=(3, 12, 2))
    nu = of.Particles(x, mu.w[:, order], mu.label[:, order])
    expected = conditional_wasserstein(mu, nu, p)
    assert sequence_distance(mu, nu, p).tolist() == pytest.approx(expected.tolist(), rel=1e-12)


def test_only_the_order_of_labels_and_their_masses_matter() -> None:
    mu, nu = sequence(7, 8), sequence(8, 5)
    other = of.Particles(nu.x, nu.w, torch.exp(3 * nu.label) + 40)
    assert sequence_distance(mu, nu).item() == sequence_distance(mu, other).item()
    with pytest.raises(of.InputError, match="law of labels"):
        conditional_wasserstein(nu, other)


def test_one_common_label_gives_the_plain_distance() -> None:
    rng = np.random.default_rng(9)
    x, y = rng.normal(size=(11, 2)), rng.normal(size=(7, 2))
    mu, nu = of.Particles(x, label=np.zeros(11)), of.Particles(y, label=np.ones(7))
    assert sequence_distance(mu, nu, 3).item() == pytest.approx(wasserstein(mu, nu, 3).item(), rel=1e-9)


def test_the_largest_distance_of_tokens_that_meet() -> None:
    x, y = [[0.0], [1.0], [2.0]], [[0.0], [7.0]]
    assert sequence_distance(plain(3, x), plain(2, y), math.inf).item() == 6.0  # the middle token meets both
    rng = np.random.default_rng(10)
    x, y = rng.normal(size=(100, 2)), rng.normal(size=(200, 2))
    exact = np.linalg.norm(np.repeat(x, 2, axis=0) - y, axis=-1).max()
    assert sequence_distance(plain(100, x), plain(200, y), math.inf).item() == pytest.approx(exact, rel=1e-14)
    mu = of.Particles(x[:2], label=[0, 0])
    assert sequence_distance(mu, plain(1, y[:1]), math.inf).item() == pytest.approx(
        np.linalg.norm(x[:2] - y[0], axis=-1).max()
    )


@pytest.mark.parametrize("n", [100, 3000])
def test_rounding_of_cumulative_weights_joins_no_wrong_tokens(n: int) -> None:
    """High powers would show a sliver of mass 1e-16 between tokens that never meet."""
    x = np.where(np.arange(n) % 2, 1.0, -1.0)[:, None]
    mu, nu = plain(n, x), plain(7 * n, np.repeat(x, 7, axis=0) + 1e-3)
    assert sequence_distance(mu, nu, 64).item() == pytest.approx(1e-3, rel=1e-9)
    assert sequence_distance(mu, nu, math.inf).item() == pytest.approx(1e-3, rel=1e-9)


def test_batches_broadcast_and_give_what_a_loop_gives() -> None:
    mu, nu = sequence(11, 9, 3, 1, ties=True), sequence(12, 6, 2, ties=True)
    d = sequence_distance(mu, nu)
    assert d.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            assert d[i, j].item() == pytest.approx(sequence_distance(mu[i, 0], nu[j]).item(), rel=1e-12)


def test_atoms_without_mass_are_ignored() -> None:
    mu = of.Particles([[0.0], [7.0], [1.0]], [0.5, 0.0, 0.5], label=[0, -9, 1])
    nu = of.Particles([[1e300], [2.0], [1.0], [3.0]], [0.0, 0.75, 0.25, 0.0], label=[0, 1, 0, 1])
    assert sequence_distance(mu, nu, 1).item() == pytest.approx(0.25 * 1 + 0.25 * 2 + 0.5 * 1)


def test_distances_on_spheres_and_tori_are_geodesic() -> None:
    sphere = [of.Particles(np.eye(3)[:k], label=np.arange(k), space=of.Sphere()) for k in (1, 3)]
    assert sequence_distance(*sphere, 1).item() == pytest.approx(math.pi / 3)
    torus = [
        of.Particles([[z]] * k, label=np.arange(k), space=of.Torus(1.0)) for z, k in ((0.1, 2), (0.9, 3))
    ]
    assert sequence_distance(*torus).item() == pytest.approx(0.2)


def test_single_precision_is_computed_in_double_precision() -> None:
    mu, nu = sequence(13, 20), sequence(14, 30)
    d = sequence_distance(*(of.Particles(m.x.float(), m.w.float(), m.label) for m in (mu, nu)))
    assert d.dtype == torch.float32
    assert d.item() == pytest.approx(sequence_distance(mu, nu).item(), rel=1e-6)


# --- laws ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=40)
@given(seed=SEEDS, p=ORDERS, ties=st.booleans())
def test_it_is_symmetric_and_obeys_the_triangle_inequality(seed: int, p: float, ties: bool) -> None:
    a, b, c = (sequence(seed + i, n, ties=ties) for i, n in enumerate((5, 8, 6)))
    ab, ba, bc, ac = (sequence_distance(*two, p).item() for two in ((a, b), (b, a), (b, c), (a, c)))
    assert ab == pytest.approx(ba, rel=1e-9)
    assert ac <= (ab + bc) * (1 + 1e-9)
    assert sequence_distance(a, a, p).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.thorough
@settings(max_examples=40)
@given(seed=SEEDS)
def test_it_exceeds_the_distance_that_does_not_see_labels_and_grows_with_the_order(seed: int) -> None:
    mu, nu = sequence(seed, 6, ties=True), sequence(seed + 1, 9)
    values = [wasserstein(mu, nu, 1).item(), *(sequence_distance(mu, nu, p).item() for p in (1, 2, 4))]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(values))
    assert wasserstein(mu, nu).item() <= values[2] * (1 + 1e-9)


@settings(max_examples=40)
@given(seed=SEEDS, p=ORDERS)
def test_a_token_said_twice_with_half_the_weight_is_the_same_sequence(seed: int, p: float) -> None:
    mu, nu = sequence(seed, 5), sequence(seed + 1, 7)
    rank = mu.label.argsort().argsort()
    label = (rank[:, None] + torch.tensor([0.0, 0.5])).flatten()
    double = of.Particles(mu.x.repeat_interleave(2, 0), mu.w.repeat_interleave(2) / 2, label)
    assert sequence_distance(mu, double, p).item() == pytest.approx(0.0, abs=1e-12)
    assert sequence_distance(double, nu, p).item() == pytest.approx(
        sequence_distance(mu, nu, p).item(), rel=1e-9
    )


# --- derivatives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("ties", [False, True])
def test_gradients_in_the_tokens_agree_with_differences(ties: bool, p: float) -> None:
    mu, nu = sequence(15, 6, 2, ties=ties), sequence(16, 4, ties=ties)
    x, y = mu.x.requires_grad_(), nu.x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: sequence_distance(mu.at([x]), nu.at([y]), p), (x, y))


@pytest.mark.parametrize("ties", [False, True])
def test_gradients_in_the_weights_agree_with_differences(ties: bool) -> None:
    mu, nu = sequence(17, 6, ties=ties), sequence(18, 4)

    def f(w: Tensor) -> Tensor:
        return sequence_distance(of.Particles(mu.x, w / w.sum(), mu.label), nu)

    assert torch.autograd.gradcheck(f, mu.w.clone().requires_grad_())


def test_second_derivatives_exist() -> None:
    mu, nu = sequence(19, 5), sequence(20, 3)
    x = mu.x.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: sequence_distance(mu.at([x]), nu), x)


# --- errors --------------------------------------------------------------------------------------------


def test_wrong_input_is_refused() -> None:
    no_label, labelled = of.Particles([[0.0]]), of.Particles([[0.0]], label=[0])
    for two in ((no_label, labelled), (labelled, no_label)):
        with pytest.raises(of.InputError, match="a sequence has labels"):
            sequence_distance(*two)
    with pytest.raises(of.InputError, match=r"p = 0\.5"):
        sequence_distance(labelled, labelled, 0.5)
    with pytest.raises(of.InputError, match="one space"):
        sequence_distance(labelled, of.Particles([[0.0, 1.0]], label=[0]))
    with pytest.raises(of.InputError, match="label"):
        of.Particles([[0.0]], label=[math.nan])
    fibre = of.Particles([[0.0], [1.0]], label=[0, 0])
    with pytest.raises(of.InputError, match="finite p"):
        sequence_distance(fibre, fibre, math.inf)
    with pytest.raises(of.InputError, match="n = 0"):
        positions(0)


def test_labels_that_became_infinite_are_refused() -> None:
    mu = of.Particles([[0.0], [1.0]], label=[0, 1])
    mu.label[1] = math.inf  # type: ignore[index]
    with pytest.raises(of.InputError, match=r"mu\.label\[1\]"):
        sequence_distance(mu, mu)
