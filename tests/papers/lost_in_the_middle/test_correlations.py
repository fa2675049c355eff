"""Correlations of finite prompts, by simulation, against the theory of infinite ones."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import i0
from torch import Tensor

import otflow as of
from otflow.base.errors import InputError
from otflow.papers import lost_in_the_middle as causal
from otflow.papers.lost_in_the_middle import hierarchy

N, CHUNK = 64, 500
CUTS = np.cumsum([0, 2, 4, 6, 8, 10, 10, 10, 8, 5])  # blocks of positions before the last token
BLOCKS = list(pairwise(CUTS))
SIGMA0 = (np.arange(N - 1) + 0.5) / N
THEORY = [1.057, 0.800, 0.709, 0.678, 0.685, 0.719, 0.768, 0.823, 0.868]


class Runs(NamedTuple):
    """Prompts (B, N), where the last token is at t = 1 (B,), and its slopes (B, N) or nothing."""

    start: Tensor
    reader: Tensor
    slope: Tensor


def last_token(x: Tensor, dt: float = 0.25, modes: int = 7) -> Tensor:
    field = causal.CausalAlibi(1.0, 1.0, modes=modes)
    return causal.angles(of.flow(causal.tokens(x), field, of.RK4(), t1=1.0, dt=dt, save_at=[1.0]).final)[
        :, -1
    ]


def simulated(prompts: np.ndarray, *, slopes: bool) -> Runs:
    """In chunks that fit into the cache."""
    starts, readers, grads = list(torch.from_numpy(prompts).split(CHUNK)), [], []
    for x in starts:
        reader = last_token(x.requires_grad_(slopes))
        grads.append(torch.autograd.grad(reader.sum(), x)[0] if slopes else torch.zeros(0, N))
        readers.append(reader.detach())
    return Runs(torch.from_numpy(prompts), torch.cat(readers), torch.cat(grads))


@cache
def many_prompts() -> Runs:
    return simulated(np.random.default_rng(0).uniform(0, 2 * np.pi, (128_000, N)), slopes=False)


@cache
def some_prompts() -> Runs:
    return simulated(np.random.default_rng(1).uniform(0, 2 * np.pi, (4000, N)), slopes=True)


def blocks(values: Any) -> np.ndarray:
    """Means over the blocks of positions, (..., N) -> (..., 9)."""
    return np.stack([np.asarray(values)[..., a:b].mean(-1) for a, b in BLOCKS], -1)


def deviation(samples: np.ndarray, theory: np.ndarray) -> np.ndarray:
    """(mean - theory) in standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    return np.asarray(np.abs(samples.mean(0) - theory) / error)


def test_the_theory_in_blocks_is_that_of_the_reference() -> None:
    g = causal.response(1.0, 1.0, SIGMA0, causal.coupling(1, 1.0), 1.0)
    np.testing.assert_allclose(blocks(g), THEORY, atol=5e-4)


def test_the_steps_in_time_and_the_modes_are_fine_enough() -> None:
    """Errors of 1e-4 on average, where a standard error of N times a correlation is at least 0.04."""
    x = torch.from_numpy(np.random.default_rng(2).uniform(0, 2 * np.pi, (200, N)))
    assert torch.sin(last_token(x) - last_token(x, dt=1 / 32, modes=14)).abs().mean() < 1e-4


@pytest.mark.slow
def test_correlations_of_128_000_prompts_are_those_of_the_theory() -> None:
    runs = many_prompts()
    samples = np.concatenate(
        [
            blocks(N * torch.cos(reader[:, None] - start))
            for start, reader in zip(runs.start.split(4000), runs.reader.split(4000), strict=True)
        ]
    )
    g = blocks(causal.response(1.0, 1.0, SIGMA0, causal.coupling(1, 1.0), 1.0))
    assert (deviation(samples, g) < 3).all()
    error = samples.std(0) / math.sqrt(len(samples))
    reference = [0.089, 0.063, 0.052, 0.045, 0.040, 0.040, 0.040, 0.045, 0.057]
    np.testing.assert_allclose(error, reference, rtol=0.02, atol=5e-4)
    estimate = causal.correlations(runs.start, runs.reader)
    np.testing.assert_allclose(blocks(N * estimate.value), samples.mean(0), rtol=1e-12)
    np.testing.assert_allclose(estimate.error[:-1], 1 / math.sqrt(2 * 128_000), rtol=0.01)


@pytest.mark.slow
def test_the_retrieval_score_of_128_000_prompts_is_that_of_the_theory() -> None:
    runs, M = many_prompts(), 8
    chance = math.sqrt(math.pi / 2) / M
    samples = np.concatenate(
        [
            blocks(
                (causal.soft_accuracy(reader[:, None], start, M) - chance) * M * N / math.sqrt(2 * math.pi)
            )
            for start, reader in zip(runs.start.split(4000), runs.reader.split(4000), strict=True)
        ]
    )
    S = blocks(causal.retrieval_profile(SIGMA0, 1.0, 1.0, 1.0, M))
    assert (deviation(samples, S) < 3).all()
    assert (samples.mean(0) > 5 * samples.std(0) / math.sqrt(len(samples))).all()  # well above chance


@pytest.mark.slow
def test_gradients_give_the_same_correlations_with_far_smaller_errors() -> None:
    """3% of the prompts, an eighth of the error: in the middle and at the end the theory holds to 4%."""
    runs = some_prompts()
    estimate = causal.gradient_correlations(runs.start, runs.reader, runs.slope)
    plain = causal.correlations(runs.start, runs.reader)
    ratio = ((estimate.value - plain.value) / (plain.error**2 + estimate.error**2).sqrt())[:-1]
    assert ratio.abs().max() < 4
    assert ratio.square().mean().sqrt() == pytest.approx(1.0, abs=0.3)
    assert (estimate.error[:-1] < plain.error[:-1] / 12).all()
    g = blocks(causal.response(1.0, 1.0, SIGMA0, causal.coupling(1, 1.0), 1.0))
    assert np.abs(blocks(N * estimate.value) / g - 1)[2:].max() < 0.04


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("t", [0.4, 2.0])
def test_the_hierarchy_of_uniform_prompts_is_the_closed_form(n: int, t: float) -> None:
    theory = causal.correlation_functions(np.ones_like, t, 1.0, p=n, hops=24)
    for lam in (0.0, 1.0, 5.0):
        found = theory.between([[0.6], [1.0]], [0.02, 0.3, 0.5, 0.9], lam, q=n)
        g = causal.response(t, [[0.6], [1.0]], [0.02, 0.3, 0.5, 0.9], causal.coupling(n, 1.0), lam)
        np.testing.assert_allclose(found.real, g, rtol=1e-9, atol=1e-12)
        assert found.imag.abs().max() < 1e-12
        assert theory.between(1.0, 0.5, lam, q=n + 1).abs() < 1e-12  # rotations keep the modes apart


KAPPA = 0.8


def vonmises(theta: Any) -> Any:
    return np.exp(KAPPA * np.cos(theta - 1))


def by_parts(theta: np.ndarray) -> np.ndarray:
    """F/f, F' = f (phi - <phi>), phi = exp(-i theta), for the density f of von Mises, by an FFT."""
    x = 2 * np.pi * np.arange(256) / 256
    f, phi = vonmises(x) / vonmises(x).mean(), np.exp(-1j * x)
    c = np.fft.fft(f * (phi - (f * phi).mean())) / 256
    q = np.fft.fftfreq(256, 1 / 256)
    few = (q != 0) & (np.abs(q) < 30)
    F = sum(c[k] / (1j * q[k]) * np.exp(1j * q[k] * theta) for k in np.flatnonzero(few))
    return np.asarray(F / (vonmises(theta) / i0(KAPPA)))


@pytest.mark.slow
def test_correlations_of_prompts_that_are_not_uniform_follow_their_equations() -> None:
    """cov(psi, phi) = -E[psi'(theta_N) slope_i F/f], to 4% and 3 standard errors after the first tokens."""
    start = np.random.default_rng(3).vonmises(1.0, KAPPA, (4000, N))
    runs = simulated(start, slopes=True)
    reader, slope = runs.reader.numpy()[:, None], runs.slope.numpy()
    samples = blocks((-N * 1j * np.exp(1j * reader) * slope * by_parts(start))[:, :-1])
    theory = causal.correlation_functions(vonmises, 1.0, 1.0)
    exact = blocks(theory.between(1.0, SIGMA0, 1.0, q=1))
    gap, error = np.abs(samples.mean(0) - exact), samples.std(0) / math.sqrt(len(samples))
    assert (gap[1:] < 0.04 * np.abs(exact[1:]) + 3 * error[1:]).all()
    uniform = blocks(causal.response(1.0, 1.0, SIGMA0, causal.coupling(1, 1.0), 1.0))
    assert (np.abs(uniform - exact)[2:] > 8 * error[2:]).all()  # the density is felt


@pytest.mark.slow
def test_hops_and_modes_converge() -> None:
    fine = causal.correlation_functions(vonmises, 1.0, 1.0, modes=40, hops=24)
    coarse = causal.correlation_functions(vonmises, 1.0, 1.0)
    for q in (-2, 0, 1, 3):
        a, b = (c.between(1.0, [0.05, 0.5], 1.0, q=q) for c in (fine, coarse))
        np.testing.assert_allclose(a, b, atol=1e-9)
    assert fine.between(1.0, 0.5, 1.0, q=0).abs() < 1e-12  # mass is not correlated with anything
    assert fine.mean(0).item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
def test_a_density_that_concentrates_asks_for_more_modes_at_once() -> None:
    """And so do modes that the truncation has spoilt, while the low ones are right to 1e-8."""
    with pytest.raises(InputError, match="twice as many modes"):
        causal.correlation_functions(vonmises, 5.0, 1.0, hops=2)
    with pytest.raises(InputError, match=r"pass t=\S+ or less, or a smaller beta"):
        causal.correlation_functions(vonmises, 1e300, 1.0)
    coarse = causal.correlation_functions(vonmises, 1.3, 1.0, hops=2)
    fine = causal.correlation_functions(vonmises, 1.3, 1.0, modes=42, hops=2)
    assert 6 <= coarse.reliable < 20 < fine.reliable
    for q in range(coarse.reliable + 1):
        assert abs(coarse.mean(q) - fine.mean(q)) < 1e-8
    with pytest.raises(InputError, match="raise modes"):
        coarse.mean(coarse.reliable + 1)


def test_a_run_that_takes_too_many_steps_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchy, "MAX_STEPS", 20)
    with pytest.raises(InputError, match="steps"):
        causal.correlation_functions(np.ones_like, 1e-300, 700.0)


def test_the_unit_of_time_does_not_matter() -> None:
    """exp(700) 1e-304 is a moderate number, and each of its factors is not."""
    tiny = causal.correlation_functions(np.ones_like, 1e-304, 700.0)
    g = causal.response(1e-304, 1.0, 0.5, causal.coupling(1, 700.0), 1.0).item()
    assert tiny.between(1.0, 0.5, 1.0, q=1).real.item() == pytest.approx(g, rel=1e-9)


@pytest.mark.slow
def test_too_few_hops_are_noticed_and_enough_are_not() -> None:
    a, args = causal.coupling(1, 3.0), (np.ones_like, 0.4, 3.0)
    with pytest.raises(InputError, match="raise hops"):
        causal.correlation_functions(*args, hops=6, modes=6).between(1.0, 0.001, 1.0, q=1)
    found = causal.correlation_functions(*args, hops=24, modes=6).between(1.0, 0.001, 1.0, q=1)
    exact = causal.response(0.4, 1.0, 0.001, a, 1.0).item()
    assert found.real.item() == pytest.approx(exact, rel=1e-8)
    with pytest.raises(InputError, match="broadcast"):
        causal.correlation_functions(*args, modes=6).between([0.5, 1.0], [0.1, 0.2, 0.3], 1.0, q=1)
