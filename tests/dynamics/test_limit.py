"""Limits of Gaussian flows against closed forms, theorems, and laws without a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import otflow as of
from otflow import closed_forms
from otflow.dynamics.precision import in_double

Array = np.ndarray


def random_case(seed: int, n: int, d: int, k: int | None = None) -> tuple[Array, of.Gaussian]:
    """Queries (n, k, d) and centred laws; with K = -Q, A = -Q^T Q has rank k."""
    rng = np.random.default_rng(seed)
    Q = rng.standard_normal((n, k or d // 2, d))
    return Q, of.Gaussian(np.zeros((n, d)), root=rng.standard_normal((n, d, d)))


def transposed(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def positive(seed: int, n: int, d: int) -> Array:
    """V = V^T > 0, as in Figure 3 of Castin et al. 2025; a few of them have condition 1e5 and more."""
    W = np.random.default_rng(seed).standard_normal((n, d, d))
    return transposed(W) @ W


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest relative difference of covariances."""
    return float(((a - b).abs().amax((-1, -2)) / b.abs().amax((-1, -2))).max())


@pytest.mark.thorough
@pytest.mark.slow(but_for=["3"])
@pytest.mark.parametrize("d", [3, 4, 5])
def test_softmax_with_identity_values_ends_in_the_known_limit(d: int) -> None:
    Q, mu = random_case(d, 60, d)
    found = of.limit(mu, of.SoftmaxAttention(Q, -Q, np.eye(d)))
    assert (found.status == "ok").all()
    assert bool((found.rank == d - d // 2).all())
    assert gap(found.measure.cov, closed_forms.softmax_limit(mu.cov, -transposed(Q) @ Q)) < 1e-6
    assert float((found.rate - 1).abs().max()) < 1e-3  # the error falls like 1/t


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 4, 5])
def test_a_thousand_limits_with_identity_values_have_the_exact_rank(d: int) -> None:
    for k in range(1, d):
        Q, mu = random_case(10 * d + k, 1000 // (d - 1) + 1, d, k)
        found = of.limit(mu, of.SoftmaxAttention(Q, -Q, np.eye(d)))
        assert bool((found.rank == d - k).all())


def positive_case(d: int, part: int, size: int) -> tuple[Array, of.Gaussian, Array]:
    """The given part of a thousand laws with V > 0 and A = -Q^T Q of rank d // 2."""
    Q, mu = random_case(100 + d, 1000, d)
    some = slice(part * size, (part + 1) * size)
    return Q[some], mu[some], positive(200 + d, 1000, d)[some]


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 4, 5])
@pytest.mark.parametrize("part", range(4))
def test_limits_with_positive_values_have_at_most_the_rank_of_the_theorem(d: int, part: int) -> None:
    """Every verdict is right; as an open one is no error, all that is asked of their number is 95 %."""
    Q, mu, V = positive_case(d, part, 250)
    found = of.limit(mu, of.SoftmaxAttention(Q, -Q, V), on_failure="return")
    assert not (found.status == "blow_up").any()  # the Lyapunov function tr(V^-1 S) forbids it
    ok = found.status == "ok"
    assert bool((found.rank[torch.as_tensor(ok)] <= d - d // 2).all())
    assert ok.mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("index", [48, 189, 751, 803])
def test_laws_on_which_rounding_decides_have_no_verdict_or_the_right_one(index: int) -> None:
    """48: V has condition 5e9, so the fourth eigenvalue, 6e-5, falls with a time scale of about 1e13."""
    Q, mu, V = positive_case(5, index, 1)
    found = of.limit(mu, of.SoftmaxAttention(Q, -Q, V), on_failure="return").member(0)
    assert found.status in ("ok", "budget")
    assert found.status == "budget" or int(found.rank) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 4])
def test_limits_with_positive_values_exist_whatever_their_condition(d: int) -> None:
    Q, mu = random_case(300 + d, 40, d)
    V = positive(400 + d, 40, d)
    found = of.limit(mu, of.SoftmaxAttention(Q, -Q, V))
    assert bool((found.rank == d - d // 2).all())
    S = found.measure.cov
    assert float(torch.linalg.matrix_norm(torch.from_numpy(Q) @ S).max()) < 1e-3  # Q S = 0 in the limit
    falls = closed_forms.softmax_lyapunov(S, V) <= closed_forms.softmax_lyapunov(mu.cov, V) * (1 + 1e-6)
    assert bool(falls.all())


@pytest.mark.slow
def test_a_root_that_turns_for_ever_does_not_hide_the_limit_of_its_law() -> None:
    """A has a skew part, under which R turns while R R^T converges."""
    Q, mu = random_case(1, 10, 3)
    X = np.random.default_rng(2).standard_normal((10, 3, 3))
    A = -transposed(Q) @ Q + X - transposed(X)
    found = of.limit(mu, of.SoftmaxAttention(A, np.eye(3), np.eye(3)))
    assert bool((found.rank == 2).all())
    assert gap(found.measure.cov, closed_forms.softmax_limit(mu.cov, A)) < 1e-4


@pytest.mark.slow
def test_a_negative_definite_matrix_takes_everything_to_zero() -> None:
    rng = np.random.default_rng(3)
    Q, V = rng.standard_normal((3, 3)), positive(4, 1, 3)[0] + np.eye(3)
    found = of.limit(
        of.Gaussian(np.zeros(3), root=rng.standard_normal((3, 3))), of.SoftmaxAttention(Q, -Q, V)
    )
    assert found.status == "ok"
    assert int(found.rank) == 0
    assert bool((found.measure.cov == 0).all())


@pytest.mark.thorough
@pytest.mark.slow(but_for=["1e-60"])
@pytest.mark.parametrize("scale", [1e-60, 1e-8, 1e8, 1e60])
def test_limits_do_not_depend_on_units(scale: float) -> None:
    Q, mu = random_case(5, 4, 3)
    field, other = (
        of.SoftmaxAttention(Q, -Q, np.eye(3)),
        of.SoftmaxAttention(Q / scale, -Q / scale, np.eye(3)),
    )
    wide = of.limit(of.Gaussian(mu.mean, root=scale * mu.root), other)
    assert gap(wide.measure.cov / scale**2, of.limit(mu, field).measure.cov) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 4])
def test_explosions_are_timed(d: int) -> None:
    rng = np.random.default_rng(d)
    A, mu = (
        rng.standard_normal((50, d, d)),
        of.Gaussian(np.zeros((50, d)), root=rng.standard_normal((50, d, d))),
    )
    found = of.limit(mu, of.SoftmaxAttention(A, np.eye(d), np.eye(d)), on_failure="return")
    exact = closed_forms.softmax_blow_up_time(mu.cov, A)
    finite = torch.isfinite(exact)
    assert bool(finite.any())
    assert (found.status[finite.numpy()] == "blow_up").all()
    assert float((found.blow_up_time / exact - 1)[finite].abs().max()) < 1e-3


@pytest.mark.slow
def test_growth_without_end_is_an_explosion_at_infinity() -> None:
    """Sinkhorn attention with V = A = I never blows up in finite time, but grows."""
    found = of.limit(
        of.Gaussian([0.0, 0.0], root=np.eye(2)), of.SinkhornAttention(np.eye(2), np.eye(2), np.eye(2))
    )
    assert found.status == "blow_up"
    assert float(found.blow_up_time) == np.inf


@pytest.mark.slow
def test_a_mean_that_grows_makes_the_law_diverge() -> None:
    field = of.SoftmaxAttention([[1.0, 0.0]], [[-1.0, 0.0]], np.eye(2))
    assert of.limit(of.Gaussian([0.0, 1.0], root=np.eye(2)), field).status == "blow_up"
    assert of.limit(of.Gaussian([0.0, 0.0], root=np.eye(2)), field).status == "ok"


def test_a_law_at_rest_is_its_own_limit() -> None:
    field = of.SoftmaxAttention([[1.0, 0.0]], [[-1.0, 0.0]], np.eye(2))
    mu = of.Gaussian([0.0, 0.0], root=[[0.0], [2.0]])
    found = of.limit(mu, field)
    assert found.status == "ok"
    assert int(found.rank) == 1
    assert torch.equal(found.measure.cov, mu.cov)


@pytest.mark.slow
def test_exponential_convergence_has_a_large_rate() -> None:
    """Linear decay of one direction: S11 = exp(-2t)."""
    field = of.Perceptron([[-1.0, 0.0], [0.0, 0.0]], np.eye(2), activation=None)
    found = of.limit(of.Gaussian([0.0, 0.0], root=np.eye(2)), field)
    assert int(found.rank) == 1
    assert float(found.rate) > 3
    assert float((found.measure.cov - torch.diag(torch.tensor([0.0, 1.0]))).abs().max()) < 1e-7


@pytest.mark.slow
def test_a_law_that_oscillates_has_no_limit_and_says_so() -> None:
    turn = of.Perceptron([[0.0, -1.0], [1.0, 0.0]], np.eye(2), activation=None)
    mu = of.Gaussian([0.0, 0.0], root=np.diag([2.0, 1.0]))
    with pytest.raises(of.errors.ConvergenceError, match=r"1 of 1 laws.*oscillate.*on_failure") as caught:
        of.limit(mu, turn, max_steps=200)
    assert caught.value.result.status == "budget"
    assert of.limit(mu, turn, max_steps=200, on_failure="return").status == "budget"


@pytest.mark.thorough
def test_members_of_a_batch_have_verdicts_of_their_own() -> None:
    A = np.stack([np.diag([-1.0, 0.0]), np.diag([1.0, 0.0]), np.zeros((2, 2))])
    mu = of.Gaussian(np.zeros((3, 2)), root=np.stack([np.eye(2)] * 3))
    found = of.limit(mu, of.SoftmaxAttention(A, np.eye(2), np.eye(2)))
    assert found.status.tolist() == ["ok", "blow_up", "ok"]
    assert found.rank[[0, 2]].tolist() == [1, 2]
    assert found.blow_up_time[1].item() == pytest.approx(0.5, rel=1e-6)
    one = found.member(0)
    assert one.status == "ok"
    assert repr(one).startswith("Limit(status='ok', rank=1, spectrum=[1, ")
    assert repr(found) == "Limit(batch=(3,), status='ok x 2, blow_up x 1')"


@pytest.mark.slow
def test_batches_of_several_axes_keep_their_shape() -> None:
    Q, mu = random_case(6, 6, 3)
    wide = of.Gaussian(mu.mean.reshape(2, 3, 3), root=mu.root.reshape(2, 3, 3, 3))
    field = of.SoftmaxAttention(
        Q.reshape(2, 3, 1, 3), -Q.reshape(2, 3, 1, 3), positive(7, 6, 3).reshape(2, 3, 3, 3)
    )
    flat = of.SoftmaxAttention(Q, -Q, positive(7, 6, 3))
    a, b = of.limit(wide, field), of.limit(mu, flat)
    assert a.status.shape == (2, 3)
    assert a.spectrum.shape == (2, 3, 3)
    assert gap(a.measure.cov.reshape(6, 3, 3), b.measure.cov) < 1e-9


EYE = np.eye(2)


def slow_decay(a: float, root: Array, V: Array = EYE, **options: Any) -> Any:
    """What is found for A = -diag(1, a); every a > 0 has the limit zero, and a = 0 one of rank 1."""
    field = of.SoftmaxAttention(np.diag([-1.0, -a]), np.eye(2), V)
    return of.limit(of.Gaussian(np.zeros(2), root=root), field, on_failure="return", **options)


ALONG, ACROSS = np.eye(2), np.array([[1.0, 0.5], [0.5, 1.0]])


def no_unkind_word(found: Any, rank: int) -> bool:
    """Whether the status is not kinder than the truth."""
    return bool(found.status == "budget" or (found.status == "ok" and int(found.rank) == rank))


@pytest.mark.slow(but_for=["1e-17"])
@pytest.mark.parametrize("a", [1e-15, 1e-16, 1e-17, 1e-20, 1e-30, 1e-39, 1e-100])
def test_a_mode_that_falls_slowly_is_followed_until_it_has_vanished(a: float) -> None:
    found = slow_decay(a, ALONG)
    assert (found.status, int(found.rank)) == ("ok", 0)


@pytest.mark.slow
@pytest.mark.parametrize("a", [1e-12, 1e-17, 1e-30, 1e-60, 1e-300])
def test_a_mode_slower_than_the_transients_that_hide_it_is_no_limit(a: float) -> None:
    assert no_unkind_word(slow_decay(a, ACROSS), 0)


@pytest.mark.slow
@pytest.mark.parametrize("a", [1e-12, 1e-17])
def test_a_slow_mode_beside_a_stiff_one_is_no_limit(a: float) -> None:
    """At 1e-30 it is not seen: steps are short from t = 1e10 on, and the transients hide it until 1e15."""
    assert no_unkind_word(slow_decay(a, ACROSS, np.array([[2.0, 0.5], [0.5, 1.0]])), 0)


@pytest.mark.slow
@pytest.mark.parametrize("decades", [20, 40, 300])
@pytest.mark.parametrize("root", [ALONG, ACROSS, 1e-15 * ACROSS], ids=["along", "across", "small"])
def test_what_lies_beyond_the_time_followed_has_no_verdict(decades: int, root: Array) -> None:
    assert no_unkind_word(slow_decay(1e-250, root, decades=decades), 0)  # the velocity is no zero
    rest = slow_decay(0.0, root, decades=decades)
    assert (rest.status, int(rest.rank)) == ("ok", 1)


@pytest.mark.slow
@pytest.mark.parametrize("a", [1e-13, 1e-20, 1e-24])
def test_slow_modes_across_the_axes_are_seen_where_the_weights_have_the_digits(a: float) -> None:
    """Of diag(1, sqrt a) O^T all digits are given, of O diag(1, a) O^T those of a > 1e-16 only."""
    c, s = np.cos(1.0), np.sin(1.0)
    Q = np.diag([1.0, a**0.5]) @ np.array([[c, s], [-s, c]])
    mu = of.Gaussian(np.zeros(2), root=ACROSS)
    assert no_unkind_word(of.limit(mu, of.SoftmaxAttention(Q, -Q, np.eye(2)), on_failure="return"), 0)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "k"), [(2, 1), (3, 2), (5, 2)])
def test_rounding_of_the_weights_is_no_motion(d: int, k: int) -> None:
    """The product -Q^T Q has eigenvalues of size 1e-16, of either sign, where it should have none."""
    Q, mu = random_case(7 * d + k, 200, d, k)
    found = of.limit(mu, of.SoftmaxAttention(-transposed(Q) @ Q, np.eye(d), np.eye(d)))
    assert bool((found.rank == d - k).all())


@pytest.mark.slow
def test_slow_growth_slow_turning_and_slow_means_are_no_limits() -> None:
    def linear(A: Array) -> of.Perceptron:
        return of.Perceptron(A, np.eye(3), activation=None)

    law = of.Gaussian(np.zeros(3), root=np.diag([2.0, 1.0, 1.0]))
    turn = np.array([[0.0, -1e-20, 0.0], [1e-20, 0.0, 0.0], [0.0, 0.0, -1.0]])
    assert of.limit(law, linear(turn), on_failure="return").status == "budget"
    assert of.limit(law, linear(np.diag([-1.0, 1e-20, 0.0])), on_failure="return").status == "blow_up"
    moved = of.Gaussian([1.0, 1.0, 0.0], root=np.eye(3))
    falls = of.limit(moved, linear(np.diag([-1.0, -1e-20, -1.0])), on_failure="return")
    assert falls.status == "budget" or float(falls.measure.mean.abs().max()) < 1e-6


def test_members_of_a_batch_are_followed_for_as_long_as_each_needs() -> None:
    A = np.stack([np.diag([-1.0, -a]) for a in (0.0, 0.1, 1e-17)])
    mu = of.Gaussian(np.zeros((3, 2)), root=np.stack([np.eye(2)] * 3))
    found = of.limit(mu, of.SoftmaxAttention(A, np.eye(2), np.eye(2)))
    assert found.rank.tolist() == [1, 0, 0]
    assert found.member(torch.tensor([True, False, False])).rank.tolist() == [1]


def test_a_survivor_far_below_the_first_law_is_no_zero() -> None:
    """It was taken for nothing because the law had shrunk by 1e-12, though 1e-14 of it stays."""
    found = slow_decay(0.0, np.diag([1.0, 1e-7]))
    assert (found.status, int(found.rank)) == ("ok", 1)
    assert float(found.measure.cov[1, 1]) == pytest.approx(1e-14, rel=1e-9)


def test_one_member_of_one_is_found_by_a_mask() -> None:
    mu = of.Gaussian(np.zeros((1, 2)), root=[[[0.0], [2.0]]])
    found = of.limit(mu, of.SoftmaxAttention([[1.0, 0.0]], [[-1.0, 0.0]], np.eye(2)))
    assert found.member(torch.tensor([True])).status.tolist() == ["ok"]


WRONG: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "a cloud": (of.SoftmaxAttention(*[[[1.0]]] * 3), of.Particles([[1.0]]), {}),
    "a field that is none": (lambda mu: mu, of.Gaussian([0.0], root=[[1.0]]), {}),
    "a tolerance of zero": (
        of.SoftmaxAttention(*[[[1.0]]] * 3),
        of.Gaussian([0.0], root=[[1.0]]),
        {"tol": 0.0},
    ),
    "no decades": (of.SoftmaxAttention(*[[[1.0]]] * 3), of.Gaussian([0.0], root=[[1.0]]), {"decades": 0}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused(name: str) -> None:
    field, mu, options = WRONG[name]
    with pytest.raises(of.InputError):
        of.limit(mu, field, **options)


def test_a_field_without_closure_is_refused_with_its_name() -> None:
    with pytest.raises(of.InputError, match="SigmoidAttention"):
        of.limit(of.Gaussian([0.0], root=[[1.0]]), of.SigmoidAttention(*[[[1.0]]] * 3))


@pytest.mark.parametrize("r", [1, 2, 3, 4])
def test_a_law_at_rest_is_its_own_limit_whatever_its_root(r: int) -> None:
    """Skew scores with V = I turn roots and move nothing."""
    rng = np.random.default_rng(r)
    mu = of.Gaussian(np.zeros(2), root=rng.standard_normal((2, r)))
    found = of.limit(mu, of.SoftmaxAttention([[0.0, 1.0], [-1.0, 0.0]], np.eye(2), np.eye(2)))
    assert int(found.rank) == min(2, r)
    assert gap(found.measure.cov, mu.cov) < 1e-6


def test_weights_that_jump_are_refused() -> None:
    V = of.Layers(torch.stack([torch.zeros(2, 2), -torch.eye(2)]).double(), edges=[0.0, 1.0, 2.0])
    with pytest.raises(of.InputError, match=r"switches.*last jump"):
        of.limit(of.Gaussian([0.0, 0.0], root=np.eye(2)), of.SoftmaxAttention(np.eye(2), np.eye(2), V))


@pytest.mark.slow
def test_a_gradient_flow_has_the_limit_of_the_attention_that_it_equals() -> None:
    A = np.diag([1.0, 0.0])
    mu = of.Gaussian([0.0, 0.0], root=[[1.0, 0.5], [0.2, 0.8]])
    descent = of.SteepestDescent(of.SquaredScores(A), of.Wasserstein())
    a, b = of.limit(mu, descent), of.limit(mu, of.SoftmaxAttention(A, np.eye(2), -A))
    assert int(a.rank) == int(b.rank) == 1
    assert gap(a.measure.cov, b.measure.cov) < 1e-6


@pytest.mark.thorough
def test_limits_in_single_precision_exist() -> None:
    eye = torch.eye(2)
    A = torch.tensor([[-1.0, 2.0], [-2.0, 0.0]])
    found = of.limit(
        of.Gaussian(torch.zeros(2), root=eye), of.SoftmaxAttention(A, eye, eye), tol=1e-4, rtol=1e-5
    )
    assert found.status == "ok"
    assert found.measure.root.dtype == torch.float32


DTYPES = (torch.float32, torch.float64)


@pytest.mark.slow(but_for=["0"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_last_bit_of_single_precision_does_not_decide_whether_there_is_a_limit(seed: int) -> None:
    """By default steps are to be accurate to 1e-9 and rest to 1e-7, which single precision cannot show."""
    rng, eye = np.random.default_rng(seed), torch.eye(2)
    B, root, V = (rng.standard_normal((2, 2)).astype(np.float32) for _ in range(3))
    A = torch.from_numpy(B @ B.T)
    field, wide = (of.SoftmaxAttention(*(w.to(d) for w in (A, eye, torch.from_numpy(V)))) for d in DTYPES)
    found = of.limit(of.Gaussian(torch.zeros(2), root=root), field, on_failure="return")
    exact = of.limit(of.Gaussian(np.zeros(2), root=root.astype(float)), wide, on_failure="return")
    assert (found.status, int(found.rank)) == (exact.status, int(exact.rank))
    assert found.measure.dtype == found.spectrum.dtype == found.slopes.dtype == torch.float32
    torch.testing.assert_close(found.spectrum.double(), exact.spectrum, rtol=1e-6, atol=1e-30)


def test_fields_of_every_make_are_followed_in_double_precision() -> None:
    """Sums, heads and energies of constant weights; a function of time that gives single stays single."""
    eye, mu = torch.eye(2), of.Gaussian(torch.zeros(2), root=torch.tensor([[1.0, 0.5], [0.2, 0.8]]))
    attention = of.SoftmaxAttention(eye, eye, -eye)
    for field in (
        attention + 0.5 * of.SoftmaxAttention(eye, eye, -eye),
        of.SteepestDescent(of.SquaredScores(eye), of.Wasserstein()),
        of.SteepestDescent(of.QuadraticPotential(eye), of.Wasserstein()),
    ):
        wide, nu = in_double(field, mu)
        assert nu.dtype == torch.float64
        a, b = field(0.0, mu), wide(0.0, nu)
        for one, other in zip(a, b, strict=True):
            assert (one.dtype, other.dtype) == DTYPES
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
    stubborn = of.SoftmaxAttention(lambda t: eye, eye, -eye)
    assert in_double(stubborn, mu)[1].dtype == torch.float32
    assert attention.Q(torch.zeros(())).dtype == torch.float32  # the field itself is left alone
