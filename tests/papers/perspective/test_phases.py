"""Phase diagrams against the closed form, against plain sums, and against themselves in other dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

import otflow as of
from otflow.base.errors import InputError
from otflow.papers import perspective
from otflow.papers.perspective.phases import share_met, tokens_in_span

RNG = np.random.default_rng


def small(**changes: Any) -> perspective.PhaseDiagram:
    options: dict[str, Any] = {"n": 4, "d": 3, "samples": 6, "rng": RNG(0), "dt": 0.1}
    return perspective.phase_diagram(
        changes.pop("beta", [0.5, 2.0]), changes.pop("t", [0.0, 1.0, 4.0]), **options | changes
    )


@pytest.mark.parametrize("normalised", [True, False])
def test_a_diagram_is_what_a_plain_loop_gives(normalised: bool) -> None:
    """Euler and renormalisation written out, for every pair."""
    n, d, samples, dt, delta = 5, 3, 7, 0.1, 0.02
    beta, t = [0.0, 1.3], np.array([0.0, 0.5, 1.0, 3.0])
    found = perspective.phase_diagram(
        beta, t, n=n, d=d, samples=samples, rng=RNG(3), delta=delta, normalised=normalised, dt=dt
    )
    start = perspective.uniform(n, d, rng=RNG(3), batch=(samples,)).x.numpy()
    i, j = np.triu_indices(n, 1)
    for column, b in enumerate(beta):
        h = dt if normalised else dt / max(np.sqrt(b) * np.exp(b - 0.5), 1.0)
        x, now = start.copy(), 0.0
        for row, end in enumerate(t):
            while now < end - 1e-12:
                step = min(h, end - now)
                e = np.exp(b * x @ x.transpose(0, 2, 1))
                v = e @ x / (e.sum(-1, keepdims=True) if normalised else n)
                x = x + step * (v - (v * x).sum(-1, keepdims=True) * x)
                x, now = x / np.linalg.norm(x, axis=-1, keepdims=True), now + step
            met = ((x[:, i] * x[:, j]).sum(-1) >= 1 - delta).mean(1)
            assert found.probability[row, column].item() == pytest.approx(met.mean(), abs=1e-12)
            assert found.stderr[row, column].item() == pytest.approx(
                met.std(ddof=1) / np.sqrt(samples), abs=1e-12
            )


def _invariants(x: torch.Tensor) -> list[torch.Tensor]:
    gram = x @ x.mT
    return [gram[:, 0, 1], gram[:, 1, 2], torch.linalg.det(gram)]


def test_tokens_in_their_span_have_the_law_of_uniform_tokens() -> None:
    """Inner products and the determinant of the Gram matrix, which see the law up to rotation."""
    n, d, samples = 3, 7, 4000
    a, b = (
        tokens_in_span(n, d, samples, rng=RNG(0)).x,
        perspective.uniform(n, d, rng=RNG(1), batch=(samples,)).x,
    )
    assert a.shape == (samples, n, n)
    for one, two in zip(_invariants(a), _invariants(b), strict=True):
        assert ks_2samp(one.numpy(), two.numpy()).pvalue > 1e-3
    assert tokens_in_span(3, 2, 5, rng=RNG(0)).d == 2


def test_in_the_span_tokens_move_as_in_the_whole_space() -> None:
    x = perspective.uniform(4, 9, rng=RNG(2)).x
    inner = torch.linalg.qr(x.mT).R.mT
    grams = []
    for y in (x, inner):
        mu = of.Particles(y, space=of.Sphere())
        z = of.flow(mu, perspective.attention(2.0, y.shape[-1]), of.Euler(), t1=2.0, dt=0.1).final.coords[0]
        grams.append(z @ z.mT)
    assert torch.allclose(grams[0], grams[1], atol=1e-13)


@pytest.mark.slow
def test_in_high_dimension_tokens_meet_along_the_closed_form() -> None:
    beta = [0.5, 2.0, 3.5]
    diagram = perspective.phase_diagram(
        beta, np.arange(0.0, 9.0, 0.1), n=8, d=4096, samples=8, rng=RNG(4), dt=0.02
    )
    half = diagram.boundary()
    assert torch.allclose(half, diagram.prediction, rtol=0.02)
    assert torch.equal(diagram.prediction, perspective.collapse_time(beta, 8, 1e-3))
    assert bool((diagram.boundary(0.1) <= half).all() and (half <= diagram.boundary(0.9)).all())


def test_euler_steps_of_a_tenth_are_five_percent_too_fast() -> None:
    times = np.arange(0.0, 8.0, 0.1)
    fine, coarse = (
        perspective.phase_diagram([1.0], times, n=8, d=64, samples=8, rng=RNG(5), dt=dt).boundary()
        for dt in (0.01, 0.1)
    )
    assert 0.94 < float(coarse / fine) < 0.99


def test_samples_that_have_met_are_not_followed_and_stay_met() -> None:
    many = perspective.phase_diagram([1.0], np.linspace(0, 40, 60), n=4, d=8, samples=5, rng=RNG(6))
    few = perspective.phase_diagram([1.0], many.t[[0, 20, 59]], n=4, d=8, samples=5, rng=RNG(6))
    assert bool((many.probability[-20:] == 1).all())
    assert few.probability[-1].item() == 1.0


def test_a_boundary_is_interpolated_and_infinite_if_not_reached() -> None:
    one = torch.tensor([0.0, 1.0, 2.0]).double()
    p = torch.tensor([[0.0, 0.6, 0.0], [0.25, 0.7, 0.1], [0.75, 0.8, 0.2]]).double()
    diagram = perspective.PhaseDiagram(one, one, p, 0 * p, 4, 3, 5, 1e-3, True)
    assert diagram.boundary().tolist() == [1.5, 0.0, float("inf")]


def test_the_probability_grows_with_time_and_starts_at_zero() -> None:
    diagram = small()
    assert diagram.probability.shape == (3, 2)
    assert diagram.probability[0].tolist() == [0.0, 0.0]
    assert (diagram.n, diagram.d, diagram.samples, diagram.delta, diagram.normalised) == (4, 3, 6, 1e-3, True)
    assert torch.equal(small().probability, diagram.probability)
    assert small(samples=1).stderr.abs().max() == 0
    assert small(t=[0.0]).probability.tolist() == [[0.0, 0.0]]


def test_shares_count_pairs() -> None:
    mu = perspective.circle([[0.0, 0.0, 0.0, 3.0], [0.0, 1.0, 2.0, 3.0]])
    assert share_met(mu, 1e-3).tolist() == [0.5, 0.0]


@pytest.mark.slow
def test_the_diagram_of_the_paper_takes_two_minutes_on_one_core() -> None:
    import time

    start = time.process_time()
    diagram = perspective.phase_diagram(
        np.linspace(0.1, 9, 90), np.linspace(0, 30, 200), n=32, d=128, samples=64, rng=RNG(7)
    )
    assert time.process_time() - start < 120
    low = diagram.beta < 4.5
    assert torch.allclose(diagram.boundary()[low], diagram.prediction[low], rtol=0.05)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: small(beta=[]), "beta.shape"),
        (lambda: small(beta=[-1.0]), "min\\(beta\\)"),
        (lambda: small(t=[1.0, 0.5]), "t = "),
        (lambda: small(t=1.0), "t.shape"),
        (lambda: small(n=1), "n = 1"),
        (lambda: small(d=0), "d = 0"),
        (lambda: small(samples=0), "samples = 0"),
        (lambda: small(delta=0.0), "delta"),
        (lambda: small(delta=1.5), "delta"),
        (lambda: small(dt=0.0), "dt"),
        (lambda: small(rng=None), "rng"),
        (lambda: small(beta=[1.0, 800.0], normalised=False), "beta = 800.0"),
        (lambda: share_met(perspective.circle([0.0]), 1e-3), "mu.n = 1"),
        (lambda: small().boundary(0.0), "level"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}"):
        call()
