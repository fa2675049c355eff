"""Rescaled self-attention and its matrix, against plain attention, closed forms and published numbers."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import torch
from torch import Tensor

import otflow as of
from otflow.base.errors import InputError
from otflow.dynamics.trajectory import Trajectory
from otflow.papers import clusters

EYE = {d: torch.eye(d, dtype=torch.float64) for d in (1, 2, 3)}


def weights(d: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    Q, K, V = torch.from_numpy(rng.normal(size=(3, d, d)) / math.sqrt(d))
    return Q, K, V


def starts() -> tuple[np.ndarray, np.ndarray]:
    """The clouds behind the reference numbers: 12 tokens on a line, and 40 in a square."""
    rng = np.random.default_rng(5)
    return rng.uniform(-5, 5, (12, 1)), rng.uniform(-5, 5, (40, 2))


def in_square(n: int, d: int, seeds: int) -> np.ndarray:
    return np.stack([np.random.default_rng(seed).uniform(-5, 5, (n, d)) for seed in range(seeds)])


def matrices(traj: Trajectory, V: Tensor) -> list[Tensor]:
    one = torch.eye(len(V), dtype=torch.float64)
    return [
        clusters.attention_matrix(t, mu, one, one, V)
        for t, mu in zip(traj.ts.tolist(), traj.measures, strict=True)
    ]


# --- the flow ------------------------------------------------------------------------------------------


@pytest.mark.slow(but_for=["*-1", "False-2"])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("symmetric", [False, True])
def test_rescaled_tokens_are_plain_ones_without_their_growth(d: int, symmetric: bool) -> None:
    rng = np.random.default_rng(d)
    Q, K, V = weights(d, rng)
    V = V + V.mT if symmetric else V
    x, tight = of.Particles(rng.normal(size=(7, d))), of.Dopri5(1e-11, 1e-13)
    z = of.flow(x, clusters.rescaled(Q, K, V), tight, t1=1.5).final.coords[0]
    plain = of.flow(x, of.SoftmaxAttention(Q, K, V), tight, t1=1.5).final.coords[0]
    torch.testing.assert_close(z, plain @ torch.linalg.matrix_exp(-1.5 * V).mT, rtol=1e-8, atol=1e-9)


def test_the_velocity_is_the_formula() -> None:
    rng, t = np.random.default_rng(0), 0.7
    Q, K, V = weights(3, rng)
    z = torch.from_numpy(rng.normal(size=(6, 3)))
    x = z @ torch.linalg.matrix_exp(t * V).mT
    v = torch.zeros_like(z)
    for i in range(6):
        P = torch.softmax(torch.stack([(Q @ x[i]) @ (K @ x[j]) for j in range(6)]), 0)
        v[i] = sum(P[j] * (V @ (z[j] - z[i])) for j in range(6))
    torch.testing.assert_close(clusters.rescaled(Q, K, V)(t, of.Particles(z))[0], v, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_batch_moves_like_its_members() -> None:
    x, V = in_square(10, 2, 3), torch.tensor([[1.0, 0.3], [0.0, 0.5]], dtype=torch.float64)
    together = clusters.run(x, EYE[2], EYE[2], V, t1=5.0, save_at=[5.0]).final.coords[0]
    for own, member in zip(x, together, strict=True):
        alone = clusters.run(own, EYE[2], EYE[2], V, t1=5.0, save_at=[5.0]).final.coords[0]
        torch.testing.assert_close(member, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_run_to_the_horizon_stays_finite_and_its_error_is_small() -> None:
    x = starts()[1]
    fast = clusters.run(x, EYE[2], EYE[2], EYE[2], t1=15.0, save_at=[2.0, 15.0])
    tight = clusters.run(
        x, EYE[2], EYE[2], EYE[2], t1=15.0, save_at=[2.0, 15.0], stepper=of.Dopri5(1e-10, 1e-12)
    )
    assert fast.steps < 150
    torch.testing.assert_close(fast.stacked.coords[0], tight.stacked.coords[0], rtol=0, atol=2e-6)


def test_the_horizon_is_where_a_quarter_is_lost() -> None:
    x = [[3.0, 4.0], [1.0, 0.0]]
    expected = math.log(0.25 / 2.0**-52 / 25) / 2
    t = clusters.horizon(x, EYE[2], EYE[2], EYE[2])
    assert math.isclose(t, expected, rel_tol=1e-8)
    clusters.attention_matrix(t * (1 - 1e-8), x, EYE[2], EYE[2], EYE[2])
    for call in (
        lambda: clusters.run(x, EYE[2], EYE[2], EYE[2], t1=1.001 * t),
        lambda: clusters.attention_matrix(1.001 * t, x, EYE[2], EYE[2], EYE[2]),
    ):
        with pytest.raises(InputError, match=rf"t = {expected:.4g} on"):
            call()
    assert clusters.horizon(x, EYE[2], EYE[2], -EYE[2]) == math.inf
    assert clusters.horizon([[1e9]], EYE[1], EYE[1], EYE[1]) == 0.0


@pytest.mark.slow
def test_the_horizon_is_the_first_crossing_where_norms_rise_and_fall() -> None:
    V = torch.tensor([[-10.0, 1e9], [0.0, -10.0]], dtype=torch.float64)
    t = clusters.horizon([[1.0, 1.0]], EYE[2], EYE[2], V)

    def blur(t: float) -> float:  # e^(tV) (1, 1) = e^(-10 t) (1 + 1e9 t, 1)
        return float(2.0**-52 * math.exp(-20 * t) * ((1 + 1e9 * t) ** 2 + 1))

    assert blur(t) == pytest.approx(0.25, rel=1e-6)
    assert max(blur(s) for s in np.linspace(0, t, 1000)) <= 0.2500001
    assert blur(5.0) < 1e-20  # at the end all is well again, but not on the way
    with pytest.raises(InputError, match=rf"t = {t:.4g} on"):
        clusters.run([[1.0, 1.0]], EYE[2], EYE[2], V, t1=5.0)
    slow = torch.tensor([[-10.0, 1e6], [0.0, -10.0]], dtype=torch.float64)
    assert clusters.horizon([[1.0, 1.0]], EYE[2], EYE[2], slow) == math.inf
    assert clusters.horizon([[0.0, 0.0]], EYE[2], EYE[2], EYE[2]) == math.inf


@pytest.mark.parametrize("size", [1e-20, 1e14])
def test_covariances_of_all_sizes_decay(size: float) -> None:
    S = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 1.0]], dtype=torch.float64)  # singular
    torch.testing.assert_close(clusters.decay(3.0 / size, size * S) / size, clusters.decay(3.0, S))
    for bad in ([[1.0, 0.0], [0.0, -1e-3]], [[1.0, 1e-3], [0.0, 1.0]]):
        with pytest.raises(InputError, match="semidefinite"):
            clusters.decay(1.0, size * torch.tensor(bad, dtype=torch.float64))


@pytest.mark.slow
def test_tokens_keep_their_weights() -> None:
    """Two tokens at one place are one of twice the weight."""
    x = starts()[0][:5]
    w = np.array([2, 1, 1, 1, 1]) / 6
    merged = clusters.run(of.Particles(x, w), EYE[1], EYE[1], EYE[1], t1=6.0, save_at=[6.0]).final.coords[0]
    twice = clusters.run(np.vstack([x[:1], x]), EYE[1], EYE[1], EYE[1], t1=6.0, save_at=[6.0]).final.coords[0]
    torch.testing.assert_close(merged, twice[1:], rtol=1e-6, atol=1e-6)


# --- the attention matrix ------------------------------------------------------------------------------


def test_the_matrix_is_a_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    Q, K, V = weights(3, rng)
    mu = of.Particles(rng.normal(size=(2, 9, 3)), rng.dirichlet(np.ones(9), 2))
    x = mu.x @ torch.linalg.matrix_exp(0.4 * V).mT
    expected = torch.softmax((x @ Q.mT) @ (x @ K.mT).mT + mu.w.log()[:, None, :], -1)
    torch.testing.assert_close(clusters.attention_matrix(0.4, mu, Q, K, V), expected, rtol=1e-12, atol=1e-14)
    monkeypatch.setattr("otflow.base.kernels.TILE", 40)
    torch.testing.assert_close(clusters.attention_matrix(0.4, mu, Q, K, V), expected, rtol=1e-12, atol=1e-14)


def test_many_tokens_have_a_matrix() -> None:
    z = np.random.default_rng(2).normal(size=(700, 2))
    P = clusters.attention_matrix(1.0, z, EYE[2], EYE[2], EYE[2])
    expected = torch.softmax(math.e**2 * torch.from_numpy(z @ z.T), -1)
    torch.testing.assert_close(P, expected, rtol=1e-11, atol=1e-15)


def test_boolean_matrices_have_as_many_leaders_as_their_rank() -> None:
    rng = np.random.default_rng(3)
    target = rng.integers(0, 9, (50, 12))
    B = torch.nn.functional.one_hot(torch.from_numpy(target), 12).double()
    assert clusters.is_boolean(B).all()
    many = torch.tensor([len(set(row)) for row in target.tolist()])
    assert torch.equal(clusters.rank(B), many)
    assert torch.equal(clusters.leaders(B).sum(-1), many)
    assert torch.equal(torch.linalg.matrix_rank(B), many)
    near = 0.999 * B + 0.001 / 12
    assert torch.equal(clusters.boolean_limit(near), B)
    assert not clusters.is_boolean(near).any()
    assert clusters.is_boolean(near, atol=1e-3).all()
    near[0, 4] = 1 / 12
    assert clusters.undecided(near, atol=1e-3).nonzero().tolist() == [[0, 4]]


# --- what is published ---------------------------------------------------------------------------------


def test_on_a_line_the_matrix_becomes_boolean_of_rank_two_with_the_reference_limits() -> None:
    x = starts()[0]
    traj = clusters.run(x, EYE[1], EYE[1], EYE[1], t1=12.0, save_at=[12.0])
    (P,) = matrices(traj, EYE[1])
    assert clusters.distinct(traj.final.coords[0][:, 0], 1e-3).round(decimals=3).tolist() == [-4.522, 4.992]
    assert torch.equal(P, clusters.boolean_limit(P))  # to the last bit
    assert clusters.rank(P) == 2
    assert clusters.leaders(P).nonzero().flatten().tolist() == sorted([x.argmin(), x.argmax()])


@pytest.mark.slow
def test_on_a_line_this_is_so_for_every_start_with_both_signs() -> None:
    x = in_square(12, 1, 12)
    traj = clusters.run(x, EYE[1], EYE[1], EYE[1], t1=12.0, save_at=[12.0])
    (P,) = matrices(traj, EYE[1])
    assert clusters.is_boolean(P, atol=1e-12).all()
    assert (clusters.rank(P) == 2).all()
    led = torch.zeros(12, 12, dtype=torch.bool)
    for k, cloud in enumerate(x):
        led[k, [cloud.argmin(), cloud.argmax()]] = True
    assert torch.equal(clusters.leaders(P), led)
    above = clusters.run(x[0] + 6, EYE[1], EYE[1], EYE[1], t1=12.0, save_at=[12.0])
    assert clusters.rank(matrices(above, EYE[1])[0]) == 1  # all of one sign: one leader


def test_in_the_plane_the_reference_numbers_come_out() -> None:
    """Positions are distinct if they differ in the second decimal, as in the count that was published."""
    traj = clusters.run(starts()[1], EYE[2], EYE[2], EYE[2], t1=9.0, save_at=[0.0, 2.0, 5.0, 9.0])
    z = traj.stacked.coords[0][1:]
    areas = [clusters.hull(p).volume.item() for p in z]
    assert [round(a, 2) for a in areas] == [65.63, 64.63, 64.57]
    assert [len(np.unique(p.numpy().round(2), axis=0)) for p in traj.stacked.coords[0]] == [40, 40, 29, 5]
    left = [clusters.violation(p, clusters.hull(p).vertices, EYE[2]).max().item() for p in z]
    assert [round(v, k) for v, k in zip(left, (2, 2, 3), strict=True)] == [4.66, 0.27, 0.005]
    P = matrices(traj, EYE[2])
    assert [clusters.rank(p).item() for p in P[1:]] == [8, 6, 5]
    assert clusters.leaders(P[-1]).sum() == 5
    assert len(clusters.distinct(z[-1], 0.02)) == 5


@pytest.mark.slow
def test_in_the_plane_tokens_end_at_the_vertices_and_the_hull_shrinks() -> None:
    x = in_square(40, 2, 5)
    traj = clusters.run(x, EYE[2], EYE[2], EYE[2], t1=12.0, save_at=[0.0, 1.0, 3.0, 6.0, 9.0, 12.0])
    P = matrices(traj, EYE[2])[-1]
    assert clusters.is_boolean(P).all()
    for z, p in zip(traj.stacked.coords[0].transpose(0, 1), P, strict=True):
        for before, after in itertools.pairwise(z):
            assert clusters.hull(before).excess(after).max() < 1e-6
        led = clusters.leaders(p)
        K = clusters.hull(z[-1][led])
        S = clusters.limit_set(K.vertices, EYE[2])
        assert len(K.vertices) == led.sum() == clusters.rank(p) == len(clusters.distinct(z[-1], 1e-2))
        assert clusters.violation(z[-1], K.vertices, EYE[2]).max() < 1e-3
        assert torch.cdist(z[-1], S).amin(1).max() < 1e-3
        assert torch.cdist(K.vertices, S).amin(1).max() < 1e-9
        assert S[torch.cdist(S, K.vertices).amin(1) > 1e-3].norm(dim=1).min() < 1e-9  # 0 is in S


@pytest.mark.slow
def test_another_metric_has_another_polytope() -> None:
    Q = torch.tensor([[1.0, 0.4], [0.0, 0.6]], dtype=torch.float64)
    led = {}
    for name, root in (("Q", Q), ("I", EYE[2])):
        mu = clusters.run(starts()[1], root, root, EYE[2], t1=12.0, save_at=[12.0]).final
        led[name] = clusters.leaders(clusters.attention_matrix(12.0, mu, root, root, EYE[2]))
        A, z = clusters.metric(root, root), mu.coords[0]
        assert clusters.violation(z, z[led[name]], A).max() < 1e-3
        assert torch.cdist(z, clusters.limit_set(z[led[name]], A)).amin(1).max() < 1e-3
    assert not torch.equal(led["Q"], led["I"])


# --- closed forms --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_covariance_of_a_gaussian_decays_as_predicted() -> None:
    S0 = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    m0 = torch.tensor([1.0, -2.0], dtype=torch.float64)
    mu = of.Gaussian(m0, root=torch.linalg.cholesky(S0))
    field = of.SoftmaxAttention(EYE[2], EYE[2], -EYE[2])
    traj = of.flow(mu, field, of.Dopri5(1e-11, 1e-13), t1=20.0, save_at=[0.0, 1.0, 20.0])
    torch.testing.assert_close(
        of.observables.covariance(traj.stacked), clusters.decay(traj.ts, S0), rtol=1e-8, atol=1e-10
    )
    values, U = torch.linalg.eigh(S0)
    shrink = math.exp(-1.0) * (U * (1 + 2 * values) ** -0.5) @ U.mT
    torch.testing.assert_close(traj.measures[1].coords[0], shrink @ m0, rtol=1e-8, atol=1e-10)


def test_the_decay_solves_its_equation() -> None:
    S0 = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.0]]) + 0.1 * np.eye(3)
    slope = lambda _, s: (-2 * s.reshape(3, 3) @ s.reshape(3, 3)).flatten()  # noqa: E731
    found = scipy.integrate.solve_ivp(slope, (0, 7), S0.flatten(), rtol=1e-11, atol=1e-13).y[:, -1]
    np.testing.assert_allclose(clusters.decay(7.0, S0).flatten(), found, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(2e6 * clusters.decay(1e6, S0), np.eye(3), atol=1e-4)


@pytest.mark.slow
def test_tokens_repelled_by_their_values_decay_like_a_gaussian() -> None:
    """2t S(t) is I up to O(1/t), and the largest norm falls like t^(-1/2)."""
    x = of.Particles(in_square(20, 2, 3))
    field = of.SoftmaxAttention(EYE[2], EYE[2], -EYE[2])
    traj = of.flow(x, field, of.Dopri5(1e-6, 1e-10), t1=800.0, save_at=[200.0, 800.0])
    values = torch.linalg.eigvalsh(of.observables.covariance(traj.stacked)) * 2 * traj.ts[:, None, None]
    assert (values[0] - 1).abs().max() < 5e-3
    assert (values[1] - 1).abs().max() < 5e-3 / 3.5
    radius = of.observables.radius(traj.stacked)
    assert ((radius[1] / radius[0] * 2) - 1).abs().max() < 2e-3
    assert of.observables.mean(traj.final).norm(dim=-1).max() < 1e-7


@pytest.mark.slow
def test_a_pair_ends_where_the_integral_says() -> None:
    heights = [0.35, 0.5, 1.0]
    x = [[[1.0, y], [1.0, -y]] for y in heights]
    traj = clusters.run(x, EYE[2], EYE[2], EYE[2], t1=15.0, save_at=[15.0], stepper=of.Dopri5(1e-11, 1e-15))
    ends = clusters.pair_limit(heights)
    torch.testing.assert_close(traj.final.coords[0][:, 0, 1], ends, rtol=1e-8, atol=0)
    torch.testing.assert_close(traj.final.coords[0][:, 1, 1], -ends, rtol=1e-8, atol=0)
    (P,) = matrices(traj, EYE[2])
    torch.testing.assert_close(P, EYE[2].expand_as(P), rtol=0, atol=1e-12)


@pytest.mark.parametrize("y", [0.03, 0.1, 0.7, 3.0, 9.0])
def test_the_integral_of_the_pair_has_all_digits(y: float) -> None:
    with mpmath.workdps(30):
        points = [mpmath.mpf(y) ** 2 * 4**k for k in range(9)] + [mpmath.inf]
        exact = y * mpmath.exp(-mpmath.quad(lambda w: 1 / (w * mpmath.expm1(2 * w)), points))
    assert math.isclose(clusters.pair_limit(y), exact, rel_tol=1e-9)


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clusters.rescaled(EYE[2], EYE[3], EYE[2]), "Q.shape, K.shape, V.shape"),
        (lambda: clusters.rescaled(EYE[2], EYE[2], EYE[3]), "Q.shape, K.shape, V.shape"),
        (lambda: clusters.rescaled(EYE[2][None], EYE[2], EYE[2]), "Q.shape"),
        (lambda: clusters.run([1.0], EYE[1], EYE[1], EYE[1], t1=1.0), "x.shape"),
        (lambda: clusters.run([[1.0]], EYE[1], EYE[1], EYE[1], t1=-1.0), "t1"),
        (lambda: clusters.run([[math.nan]], EYE[1], EYE[1], EYE[1], t1=1.0), "finite"),
        (lambda: clusters.attention_matrix(0.0, [[1.0, 2.0]], EYE[1], EYE[1], EYE[1]), "x.shape"),
        (lambda: clusters.rank([[0.5, 0.5]]), "P.shape"),
        (lambda: clusters.leaders([[0.5, 0.6], [0.5, 0.5]]), "sum to one"),
        (lambda: clusters.undecided([[1.0]], atol=0.0), "atol"),
        (lambda: clusters.decay(-1.0, EYE[2]), "min"),
        (lambda: clusters.decay(1.0, [[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (lambda: clusters.decay(1.0, [[-1.0]]), "semidefinite"),
        (lambda: clusters.pair_limit(0.0), "height"),
    ],
)
def test_wrong_input_is_named(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]
