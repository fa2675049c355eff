"""Causal attention with ALiBi: the field against its definition, the law of tokens against the mean field."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import i0, iv

import otflow as of
from otflow.base.errors import InputError
from otflow.base.tangent import Tangent
from otflow.papers import lost_in_the_middle as causal


def dense(theta: np.ndarray, beta: float, lam: float) -> np.ndarray:
    """The double sum of the definition."""
    N = len(theta)
    v = np.zeros(N)
    for j in range(1, N):
        x, weight = theta[j] - theta[:j], np.exp(-lam * (j - 1 - np.arange(j)) / N)
        v[j] = (weight * -beta * np.sin(x) * np.exp(beta * np.cos(x))).sum() / weight.sum()
    return v


def velocity(field: causal.CausalAlibi, theta: Any) -> torch.Tensor:
    return field(0.0, causal.tokens(theta))[0][..., 0]


@pytest.mark.parametrize("beta", [0.0, 0.01, 1.0, 9.0, 60.0, 700.0])
@pytest.mark.parametrize("lam", [0.0, 1e-9, 1.0, 59.0, 61.0, 500.0, 1e4, 1e7])
def test_the_field_is_the_double_sum(beta: float, lam: float) -> None:
    rng = np.random.default_rng(int(beta))
    for N in (1, 2, 3, 50, 777):
        theta = rng.uniform(0, 2 * np.pi, N)
        error = np.abs(velocity(causal.CausalAlibi(beta, lam), theta).numpy() - dense(theta, beta, lam)).max()
        assert error <= 1e-14 * beta * math.exp(beta)


def test_the_error_is_absolute_and_distant_forces_keep_six_digits_up_to_beta_8() -> None:
    x = np.linspace(0.1, 3.0, 30)
    pairs = np.stack([np.zeros(30), x], -1)
    for beta in (1.0, 8.0, 150.0):
        v = velocity(causal.CausalAlibi(beta, 1.0), pairs)[:, 1].numpy()
        exact = -beta * np.sin(x) * np.exp(beta * np.cos(x))
        assert np.abs(v - exact).max() < 1e-14 * beta * math.exp(beta)
        if beta <= 8:
            np.testing.assert_allclose(v, exact, rtol=1e-6)
        near = np.exp(-beta * (1 - np.cos(x))) > 1e-12
        np.testing.assert_allclose(v[near], exact[near], rtol=0.1)


def test_tokens_that_sit_together_keep_their_digits() -> None:
    """Near 0 the sines of the modes are small, and near pi they cancel."""
    rng = np.random.default_rng(0)
    theta = np.concatenate([1e-6 * rng.normal(size=20), np.pi + 1e-6 * rng.normal(size=20)])
    np.testing.assert_allclose(
        velocity(causal.CausalAlibi(2.0, 1.0), theta), dense(theta, 2.0, 1.0), rtol=0, atol=1e-13
    )


def test_seven_modes_leave_an_error_of_1e_6_and_the_default_drops_nothing() -> None:
    theta = np.random.default_rng(1).uniform(0, 2 * np.pi, 300)
    exact = dense(theta, 1.0, 1.0)
    assert causal.CausalAlibi(1.0, 1.0).modes == 14
    tail = 2 * sum(n * iv(n, 1.0) for n in range(8, 40))
    assert tail == pytest.approx(1.7e-6, rel=0.01)
    assert 0 < np.abs(velocity(causal.CausalAlibi(1.0, 1.0, modes=7), theta).numpy() - exact).max() <= tail
    for beta in (0.1, 3.0, 40.0, 300.0):
        m = causal.CausalAlibi(beta, 1.0).modes
        size = np.array([n * iv(n, beta) for n in range(1, m + 200)])
        assert size[m:].sum() <= 1e-14 * size.sum() < size[m - 1 :].sum()


def test_batches_and_labels_are_sequences_of_their_own() -> None:
    rng = np.random.default_rng(2)
    theta = rng.uniform(0, 2 * np.pi, (2, 3, 30))
    field = causal.CausalAlibi(2.0, 3.0)
    for prompt, v in zip(theta.reshape(-1, 30), velocity(field, theta).reshape(-1, 30), strict=True):
        np.testing.assert_allclose(v, dense(prompt, 2.0, 3.0), atol=1e-13)
    label = np.stack([rng.permutation(30) for _ in range(3)])
    shuffled = of.Particles(np.take_along_axis(theta[0], label, -1)[..., None], label=label, space=of.Torus())
    moved = field(0.0, shuffled)[0][..., 0].numpy()
    np.testing.assert_allclose(
        moved, np.take_along_axis(velocity(field, theta[0]).numpy(), label, -1), atol=1e-14
    )
    np.testing.assert_allclose(causal.angles(shuffled), theta[0], atol=1e-15)


def test_the_first_token_stays_and_the_past_does_not_feel_the_future() -> None:
    rng = np.random.default_rng(3)
    theta = rng.uniform(0, 2 * np.pi, 20)
    other = np.concatenate([theta[:12], rng.uniform(0, 2 * np.pi, 8)])
    field = causal.CausalAlibi(1.0, 1.0)
    ends = [
        causal.angles(of.flow(causal.tokens(x), field, of.RK4(), t1=2.0, dt=0.1).final)
        for x in (theta, other)
    ]
    assert ends[0][0] == theta[0]
    assert torch.equal(ends[0][:12], ends[1][:12])
    assert not torch.equal(ends[0][12:], ends[1][12:])


def test_float32_tokens_are_moved_in_double_precision() -> None:
    theta = torch.rand(500)
    v = velocity(causal.CausalAlibi(1.0, 400.0), theta)
    assert v.dtype == torch.float32
    np.testing.assert_allclose(v, dense(theta.double().numpy(), 1.0, 400.0), atol=1e-6)


@pytest.mark.parametrize("lam", [1.0, 300.0])
def test_derivatives_are_right_forwards_and_backwards(lam: float) -> None:
    rng = np.random.default_rng(4)
    field, mu = (
        causal.CausalAlibi(1.5, lam),
        causal.tokens(rng.uniform(0, 2 * np.pi, (2, 7))),
    )
    torch.autograd.gradcheck(
        lambda x: field.velocity(torch.tensor(0.0), mu.at([x]))[0],
        mu.x.clone().requires_grad_(),
        fast_mode=False,
    )
    u, c = (Tangent([torch.from_numpy(rng.normal(size=(2, 7, 1)))]) for _ in range(2))
    h = 1e-6
    slope = (field(0.0, mu.move(h * u))[0] - field(0.0, mu.move(-h * u))[0]) / (2 * h)
    ours = field.jvp(0.0, mu, u)[0]
    np.testing.assert_allclose(ours, slope, atol=1e-8)
    assert (c[0] * ours).sum().item() == pytest.approx(
        (field.vjp(0.0, mu, c)[0] * u[0]).sum().item(), rel=1e-12
    )


MEMORY = """
import resource
import numpy as np
from otflow.papers.lost_in_the_middle import causal
mu = causal.prompts(200_000, rng=np.random.default_rng(0))
causal.CausalAlibi(1.0, 100.0, modes=1)(0.0, mu)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
causal.CausalAlibi(1.0, 100.0, modes=200)(0.0, mu)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_modes() -> None:
    """All modes of 200,000 tokens would need 640 MB, all pairs 320 GB."""
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 60


def test_prompts_are_uniform_words_or_angles() -> None:
    rng = np.random.default_rng(5)
    words = causal.angles(causal.prompts(1000, 8, rng=rng, batch=(3, 4)))
    assert words.shape == (3, 4, 1000)
    m = words * 8 / (2 * np.pi)
    np.testing.assert_allclose(m, m.round(), atol=1e-12)
    assert torch.bincount(m.round().long().flatten(), minlength=8).min() > 1300
    free = causal.angles(causal.prompts(100_000, rng=rng))
    assert torch.exp(1j * free).mean().abs() < 4 / math.sqrt(100_000)
    assert free.unique().numel() == 100_000
    seeded = causal.angles(causal.prompts(5, rng=3, batch=4))
    assert torch.equal(
        seeded,
        causal.angles(causal.prompts(5, rng=np.random.default_rng(3), batch=(4,))),
    )


# --- the mean field does not see positions -------------------------------------------------------------


def vonmises(theta: Any) -> Any:
    return np.exp(0.8 * np.cos(theta - 1))


def late(prompts: np.ndarray, t: float = 1.0) -> torch.Tensor:
    start, field = causal.tokens(prompts), causal.CausalAlibi(1.0, 1.0, modes=8)
    return causal.angles(of.flow(start, field, of.RK4(), t1=t, dt=0.25, save_at=[t]).final)


@pytest.mark.slow
def test_the_law_of_tokens_is_that_of_the_mean_field_at_every_late_position() -> None:
    """Means over tokens j and prompts: a bias of order 1/j, an error of order (number of tokens)^(-1/2)."""
    rng = np.random.default_rng(6)
    moved = late(rng.vonmises(1.0, 0.8, (40, 2000)))
    exact = causal.correlation_functions(vonmises, 1.0, 1.0)
    start = iv(1, 0.8) / i0(0.8)
    for q in (1, 2):
        quarters = [torch.exp(1j * q * part).mean() for part in moved[:, 400:].chunk(4, -1)]
        for mean in quarters:
            assert (mean - exact.mean(q)).abs() < 4 / math.sqrt(40 * 400)
    assert exact.mean(1).abs() > 1.3 * start  # tokens have gathered
    assert exact.mean(1).angle().item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.slow
def test_the_mean_field_is_the_attention_of_all_to_all() -> None:
    """Quantiles of the law under the same force between all pairs, without a mask."""
    n, grid = 200, np.linspace(0, 2 * np.pi, 40_001)
    cdf = np.concatenate([[0], np.cumsum((vonmises(grid)[1:] + vonmises(grid)[:-1]) / 2)])
    theta = np.interp((np.arange(n) + 0.5) / n, cdf / cdf[-1], grid)
    pull = of.Interaction(lambda x, y: -torch.exp(torch.cos((x - y)[..., 0])))
    field = of.SteepestDescent(pull, of.Wasserstein())
    end = of.flow(causal.tokens(theta), field, of.RK4(), t1=1.0, dt=0.1, save_at=[1.0]).final
    exact = causal.correlation_functions(vonmises, 1.0, 1.0)
    for q in (1, 2, 3):
        assert abs(torch.exp(1j * q * causal.angles(end)).mean() - exact.mean(q)) < 2e-4


def test_uniform_prompts_stay_uniform() -> None:
    moved = late(np.random.default_rng(7).uniform(0, 2 * np.pi, (400, 200)))
    for q in (1, 2, 3):
        assert torch.exp(1j * q * moved).mean(0).abs().max() < 5 / math.sqrt(400)
    assert abs(causal.correlation_functions(np.ones_like, 2.0, 1.0).mean(1)) < 1e-15


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: causal.CausalAlibi(-1.0, 1.0), "beta"),
    (lambda: causal.CausalAlibi(701.0, 1.0), "exp"),
    (lambda: causal.CausalAlibi(1.0, -1.0), "lam"),
    (lambda: causal.CausalAlibi(1.0, math.inf), "lam"),
    (lambda: causal.CausalAlibi(1.0, 1.0, modes=0), "modes = 0"),
    (lambda: causal.CausalAlibi(1.0, 1.0)(0.0, of.Particles([[0.0]])), "circle"),
    (
        lambda: causal.CausalAlibi(1.0, 1.0)(0.0, of.Particles([[0.0, 1.0]], space=of.Torus())),
        "circle",
    ),
    (
        lambda: causal.CausalAlibi(1.0, 1.0)(0.0, of.Particles([[0.0]], space=of.Torus(1.0))),
        "period",
    ),
    (
        lambda: causal.CausalAlibi(1.0, 1.0)(0.0, of.Particles([[0.0]], w=[1.0], space=of.Torus())),
        "weights",
    ),
    (lambda: causal.tokens(1.0), "theta"),
    (lambda: causal.prompts(0, rng=np.random.default_rng(0)), "N = 0"),
    (lambda: causal.prompts(3, rng=None), "rng = None"),  # type: ignore[arg-type]
    (lambda: causal.prompts(3, rng=0, batch=-1), "batch = -1"),
    (lambda: causal.prompts(3, 0, rng=np.random.default_rng(0)), "M = 0"),
    (lambda: causal.correlations([0.0, 1.0], [0.0]), "shape"),
    (lambda: causal.correlations(np.zeros((3, 2)), np.zeros(2)), "shape"),
    (lambda: causal.correlations(np.zeros((3, 2)), np.zeros(3), 0), "n = 0"),
    (
        lambda: causal.gradient_correlations(np.zeros((3, 2)), np.zeros(3), np.zeros(3)),
        "slope.shape",
    ),
    (lambda: causal.correlation_functions(lambda x: -np.ones_like(x), 1.0, 1.0), "density"),
    (lambda: causal.correlation_functions(lambda x: np.ones(3), 1.0, 1.0), "density"),
    (lambda: causal.correlation_functions(1.0, 1.0, 1.0), "density"),  # type: ignore[arg-type]
    (lambda: causal.correlation_functions(np.ones_like, 0.0, 1.0), "t = 0"),
    (lambda: causal.correlation_functions(np.ones_like, 1.0, 1e-310), "beta = 1e-310"),
    (lambda: causal.correlation_functions(np.ones_like, 1.0, 1.0, p=9, modes=8), "p = 9"),
    (lambda: causal.correlation_functions(np.ones_like, 1.0, 1.0).mean(99), "q = 99"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_wrong_input_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
