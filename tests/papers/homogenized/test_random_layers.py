"""Random deep Transformers: the chain, its ODE, its SDE, and the drift of overlaps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from torch import Tensor

import otflow as of
from otflow.base.errors import InputError, NotFiniteError
from otflow.papers import homogenized as hom


def cloud(n: int, d: int, seed: int = 3) -> Tensor:
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d)))
    return x / x.norm(dim=-1, keepdim=True)


def strays(sample: Tensor, truth: Any) -> float:
    """How many standard errors the mean over the first axis is off, at worst."""
    error = sample.std(0) / math.sqrt(len(sample))
    gap = (sample.mean(0) - truth).abs()
    return float((gap / error.clamp(min=1e-12)).max())


def off(M: Tensor) -> Tensor:
    """Entries above the diagonal."""
    i, j = np.triu_indices(M.shape[-1], 1)
    return M[..., i, j]


def by_hand(x: np.ndarray, V: np.ndarray, A: np.ndarray, beta: float, eta: float) -> np.ndarray:
    """One layer, with loops."""
    heads, out = len(V), []
    for z in x:
        step = np.zeros_like(z)
        for v, a in zip(V, A, strict=True):
            p = np.exp([beta * (a @ z) @ y for y in x])
            step += sum(w * (v @ y) for w, y in zip(p / p.sum(), x, strict=True))
        y = z + eta / heads * step
        out.append(y / np.linalg.norm(y))
    return np.array(out)


# --- the chain -----------------------------------------------------------------------------------------


def test_layers_are_those_of_a_loop_over_heads_tokens_and_keys() -> None:
    rng = np.random.default_rng(0)
    V, A = rng.standard_normal((2, 2, 3, 4, 4))  # two layers of three heads
    x0, drawn = cloud(5, 4), iter(zip(V, A, strict=True))
    run = hom.chain(
        x0,
        weights=lambda _, shape: [M[None] for M in next(drawn)],
        beta=1.3,
        eta=0.4,
        heads=3,
        layers=2,
        rng=0,
    )
    expected = x0.numpy()
    for v, a in zip(V, A, strict=True):
        expected = by_hand(expected, v, a, 1.3, 0.4)
    np.testing.assert_allclose(run.x[-1].numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("n", "d", "heads"), [(3, 6, 1), (6, 3, 1), (3, 5, 4)])
def test_weights_that_are_not_drawn_have_the_law_of_those_that_are(n: int, d: int, heads: int) -> None:
    law = hom.GaussianWeights(d, 0.8, 0.9, mean_A=0.3)
    common: dict[str, Any] = {"beta": 1.5, "eta": 0.7, "heads": heads, "layers": 1, "samples": 6000}
    x = cloud(n, d)
    short = hom.chain(x, weights=law, rng=0, **common).x[-1]
    long = hom.chain(x, weights=lambda rng, shape: law(rng, shape), rng=1, **common).x[-1]
    for f in (lambda y: y, lambda y: y @ y.mT, lambda y: (y @ y.mT) ** 2, lambda y: y[:, :1] * y):
        a, b = f(short), f(long)
        z = (a.mean(0) - b.mean(0)) / ((a.var(0) + b.var(0)) / 6000).sqrt().clamp(min=1e-12)
        assert z.abs().max() < 4.5


def test_members_are_independent_and_tokens_share_their_weights() -> None:
    x = torch.stack([cloud(1, 5)[0]] * 2)  # two tokens at one place
    run = hom.chain(x, weights=hom.GaussianWeights(5), beta=1.0, eta=0.5, layers=4, samples=3, rng=0)
    end = run.x[-1]
    torch.testing.assert_close(end[:, 0], end[:, 1], rtol=0, atol=1e-12)
    assert (end[0] - end[1]).abs().max() > 0.01


def test_the_same_seed_gives_the_same_run_and_saves_do_not_matter() -> None:
    def run(save_at: list[int] | None) -> Tensor:
        law = hom.GaussianWeights(4)
        return hom.chain(cloud(3, 4), weights=law, beta=1.0, eta=0.1, layers=6, rng=7, save_at=save_at).x

    assert torch.equal(run(None)[-1], run([0, 2, 6])[-1])


def test_opposite_values_cancel_the_noise_of_first_order() -> None:
    x, law = cloud(3, 6), hom.GaussianWeights(6)
    run = hom.chain(x, weights=law, beta=1.0, eta=1e-4, layers=1, samples=400, rng=0, antithetic=True)
    moved = (run.overlaps[-1] - run.overlaps[0]).reshape(200, 2, 3, 3)
    assert off(moved).std() > 1e-5
    assert off(moved.mean(1)).std() < 1e-7


def test_clocks_count_layers() -> None:
    law = hom.GaussianWeights(3)
    run = hom.chain(torch.eye(3), weights=law, beta=0.0, eta=0.2, heads=4, layers=10, rng=0, save_at=[5, 10])
    torch.testing.assert_close(run.clock, torch.tensor([0.05, 0.1]), check_dtype=False)
    torch.testing.assert_close(run.depth, torch.tensor([1.0, 2.0]), check_dtype=False)
    R = run.overlaps
    torch.testing.assert_close(run.mean_overlap, R.mean((-1, -2)))
    torch.testing.assert_close(run.pair_overlap, off(R).mean(-1))


# --- drift and bracket ---------------------------------------------------------------------------------


def one_layer(beta: float, samples: int) -> None:
    n, d, eta = 4, 8, 0.03
    x, law = cloud(n, d), hom.GaussianWeights(d)
    s = hom.s_matrix(x, weights=law, beta=beta, draws=samples, rng=1)
    R = x @ x.mT
    run = hom.chain(x, weights=law, beta=beta, eta=eta, layers=1, samples=samples, antithetic=True, rng=2)
    moved = run.overlaps[-1] - R
    mean = off(moved).reshape(-1, 2, 6).mean(1) / eta**2
    square = (off(moved) ** 2).reshape(-1, 2, 6).mean(1) / eta**2
    assert strays(mean, off(hom.overlap_drift(R, s, d))) < 3
    assert strays(square, off(hom.overlap_bracket(R, s, d))) < 3


def test_one_layer_moves_overlaps_by_the_drift_and_spreads_them_by_the_bracket() -> None:
    one_layer(6.0, 40_000)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 2.0, 20.0])
def test_drift_and_bracket_hold_to_three_digits(beta: float) -> None:
    one_layer(beta, 400_000)


def test_at_beta_0_s_is_exact_and_the_drift_has_a_closed_form() -> None:
    x = cloud(5, 7)
    s = hom.s_matrix(x, weights=hom.GaussianWeights(7), beta=0.0, rng=0)
    torch.testing.assert_close(s, torch.full((5, 5), x.mean(0).square().sum().item(), dtype=torch.float64))
    R = x @ x.mT
    torch.testing.assert_close(hom.flat_drift(R, 7), hom.overlap_drift(R, s, 7), rtol=1e-12, atol=1e-14)


def test_s_of_a_fixed_a_is_that_of_the_librarys_attention() -> None:
    x, A = cloud(5, 3), torch.from_numpy(np.random.default_rng(0).standard_normal((3, 3)))
    law, eye = hom.GaussianWeights(3, sigma_A=0.0, mean_A=A), torch.eye(3, dtype=torch.float64)
    m = of.SoftmaxAttention(2.0 * A, eye, eye)(0.0, of.Particles(x))[0]
    torch.testing.assert_close(hom.s_matrix(x, weights=law, beta=2.0, rng=0), m @ m.mT)


def test_equal_tokens_and_a_batch_are_no_trouble() -> None:
    x = torch.stack([cloud(4, 5), cloud(1, 5).expand(4, 5)])
    s = hom.s_matrix(x, weights=hom.GaussianWeights(5), beta=3.0, draws=50, rng=0)
    torch.testing.assert_close(s[1], torch.ones(4, 4, dtype=torch.float64))
    drift = hom.overlap_drift(x @ x.mT, s, 5)
    assert drift[1].abs().max() < 1e-12
    assert drift.diagonal(dim1=-2, dim2=-1).abs().max() < 1e-12  # norms stay


# --- ODE -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_randomness_the_ode_is_the_librarys_attention_and_the_chain_tends_to_it_at_order_eta() -> (
    None
):
    x, V = cloud(6, 3), [[1.0, 0.4, 0.0], [-0.2, 0.8, 0.1], [0.0, 0.3, 1.2]]
    law, eye = hom.GaussianWeights(3, 0.0, 0.0, mean_V=V, mean_A=1.0), torch.eye(3, dtype=torch.float64)
    field = of.SoftmaxAttention(2.0 * eye, eye, V)
    truth = of.flow(of.Particles(x, space=of.Sphere()), field, of.Dopri5(rtol=1e-10), t1=1.0).final.x
    ours = hom.ode(x, weights=law, beta=2.0, t1=1.0, rng=0).final
    torch.testing.assert_close(ours.coords[0], truth, rtol=1e-5, atol=1e-5)
    errors = [
        (hom.chain(x, weights=law, beta=2.0, eta=1 / k, layers=k, rng=0).x[-1] - truth).norm().item()
        for k in (10, 20, 40)
    ]
    assert errors[0] < 0.1
    assert [a / b for a, b in itertools.pairwise(errors)] == pytest.approx([2, 2], rel=0.1)


@pytest.mark.slow
def test_a_random_chain_tends_to_the_ode_as_eta_over_heads_tends_to_0() -> None:
    x, law = cloud(4, 4), hom.GaussianWeights(4, mean_V=1.0, mean_A=0.5)
    truth = hom.ode(x, weights=law, beta=1.0, t1=1.0, rng=0, draws=4000).final.coords[0]
    gaps = []
    for layers, heads in ((8, 2), (16, 16), (32, 128)):
        run = hom.chain(
            x, weights=law, beta=1.0, eta=1 / layers, layers=layers, heads=heads, samples=60, rng=1
        )
        gaps.append((run.x[-1] - truth).square().sum((-1, -2)).mean().sqrt().item())
    # fluctuations are of order sqrt(eta / H): each row divides them by 4
    assert gaps[1] < 0.4 * gaps[0]
    assert gaps[2] < 0.4 * gaps[1]
    assert gaps[2] < 0.07


def test_the_mean_field_is_the_mean_of_many_heads() -> None:
    x, law = cloud(4, 3), hom.GaussianWeights(3, 0.0, 0.8, mean_V=[[1.0, 0, 0], [0, 2.0, 0], [0, 1.0, 1.0]])
    mu = of.Particles(x, space=of.Sphere())
    v = hom.ExpectedAttention(law, 2.0, draws=20_000, rng=0)(0.0, mu)[0]
    eta = 1e-5
    run = hom.chain(x, weights=law, beta=2.0, eta=eta, layers=1, samples=20_000, rng=1)
    assert strays((run.x[-1] - x) / eta, v) < 4.5


# --- SDE -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_correction_of_ito_comes_from_the_normalisation() -> None:
    d, dt, samples = 5, 1e-3, 40_000
    x, law = cloud(3, d), hom.GaussianWeights(d)
    s = hom.s_matrix(x, weights=law, beta=3.0, draws=40_000, rng=0)
    end = hom.sde(x, weights=law, beta=3.0, t1=dt, dt=dt, draws=2, rng=1, samples=samples).final.coords[0]
    radial = ((end * x).sum(-1) - 1) / dt  # the only part of dx that is not tangent
    assert strays(radial, -(d - 1) / (2 * d) * s.diagonal()) < 3


def compare(beta: float, samples: int, eta: float, t1: float, dt: float) -> None:
    d, n, heads = 6, 4, 2
    x, law = cloud(n, d), hom.GaussianWeights(d)
    layers = round(t1 * heads / eta**2)
    run = hom.chain(x, weights=law, beta=beta, eta=eta, layers=layers, heads=heads, samples=samples, rng=0)
    end = hom.sde(x, weights=law, beta=beta, t1=t1, dt=dt, samples=samples, draws=4, rng=1).final.coords[0]
    a, b = off(run.overlaps[-1]), off(end @ end.mT)
    variances = (a.var(0) + b.var(0)) / samples
    assert ((a.mean(0) - b.mean(0)).abs() / variances.sqrt()).max() < 3
    fourth = ((a - a.mean(0)) ** 2).var(0) + ((b - b.mean(0)) ** 2).var(0)
    assert ((a.var(0) - b.var(0)).abs() / (fourth / samples).sqrt()).max() < 3


@pytest.mark.slow
def test_the_sde_by_flow_has_the_law_of_the_chain() -> None:
    compare(5.0, 4000, eta=0.2, t1=0.5, dt=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 1.0, 30.0])
def test_the_sde_by_flow_has_the_law_of_the_chain_at_small_steps(beta: float) -> None:
    compare(beta, 20_000, eta=0.1, t1=1.0, dt=0.005)


@pytest.mark.slow
def test_a_mean_of_values_and_random_scores_add_the_noise_of_barycentres() -> None:
    """Depth eta L, rate eta / H: one layer against one step of the SDE, in covariance."""
    x, law = cloud(3, 3), hom.GaussianWeights(3, 0.3, 1.2, mean_V=1.5)
    eta, samples = 0.02, 30_000
    run = hom.chain(x, weights=law, beta=3.0, eta=eta, layers=1, samples=samples, rng=0)
    sde = hom.sde(
        x, weights=law, beta=3.0, t1=eta, dt=eta, rate=eta, samples=samples, rng=1, draws=8, bank=16
    )
    a, b = ((y - x).flatten(1) / eta for y in (run.x[-1], sde.final.coords[0]))
    products = [(y - y.mean(0))[:, :, None] * (y - y.mean(0))[:, None, :] for y in (a, b)]
    p, q = products
    assert ((p.mean(0) - q.mean(0)).abs() / ((p.var(0) + q.var(0)) / samples).sqrt()).max() < 4.5


def pair_mean(t: float, d: int) -> tuple[float, float]:
    """E R and E R^2 at time t for two tokens at beta = 0 from R = 0, by the backward equation on polynomials.

    With m = (1 + R)/2 the drift is m (1 - R)(d - 2 - R)/d and the bracket 2 m (1 - R^2)(1 - R)/d; the
    generator is applied by collocation at Chebyshev points, where no condition at the ends is needed.
    """
    k = 40
    R = np.cos(np.pi * (2 * np.arange(k) + 1) / (2 * k))
    T = np.polynomial.chebyshev
    V = T.chebvander(R, k - 1)
    first = np.stack([T.chebval(R, T.chebder(row)) for row in np.eye(k)], 1)
    second = np.stack([T.chebval(R, T.chebder(row, 2)) for row in np.eye(k)], 1)
    m = (1 + R) / 2
    L = (m * (1 - R) * (d - 2 - R) / d)[:, None] * first + (m * (1 - R**2) * (1 - R) / d)[:, None] * second
    at_0 = T.chebvander(np.zeros(1), k - 1) @ expm(t * np.linalg.solve(V, L))
    return tuple(float((at_0 @ np.linalg.solve(V, f))[0]) for f in (R, R**2))  # type: ignore[return-value]


def weak_errors(samples: int, steps: tuple[int, ...]) -> tuple[np.ndarray, float]:
    d, t1 = 4, 1.0
    truth, _ = pair_mean(t1, d)
    errors, worst = [], 0.0
    for k in steps:
        run = hom.chain(
            torch.eye(d)[:2],
            weights=hom.GaussianWeights(d),
            beta=0.0,
            eta=math.sqrt(t1 / k),
            layers=k,
            samples=samples,
            antithetic=True,
            rng=k,
        )
        R = run.overlaps[-1, :, 0, 1].reshape(-1, 2).mean(1)
        errors.append(R.mean().item() - truth)
        worst = max(worst, (R.std() / math.sqrt(len(R))).item())
    return np.array(errors), worst


@pytest.mark.slow
def test_the_chain_has_the_mean_of_the_sde_up_to_the_order_of_eta_squared_over_heads() -> None:
    (coarse, fine), error = weak_errors(60_000, (2, 16))
    assert abs(coarse) > 8 * error  # a layer of eta = 0.7 is seen to be coarse
    assert abs(fine) < abs(coarse) / 8 + 3 * error


@pytest.mark.slow
def test_the_weak_error_halves_with_the_step_of_the_clock() -> None:
    errors, error = weak_errors(2_000_000, (2, 4, 8))
    assert error < 4e-4
    ratios = errors[:-1] / errors[1:]
    assert (np.abs(ratios - 2) < 0.5).all(), (errors, error)


@pytest.mark.slow
def test_paths_refine_and_runs_repeat() -> None:
    x, law = of.Particles(cloud(3, 4), space=of.Sphere()), hom.GaussianWeights(4)
    path = of.dynamics.BrownianPath(0, (3, 4))
    field = hom.ExpectedAttention(law, 0.0, rng=0)

    def end(dt: float) -> Tensor:
        return of.flow(x, field, of.Euler(), t1=1.0, dt=dt, noise=hom.HeadNoise(law, 0.0, path=path)).final.x

    assert torch.equal(end(0.01), end(0.01))
    fine = end(1 / 1024)
    gaps = [(end(dt) - fine).norm().item() for dt in (1 / 8, 1 / 64)]
    assert gaps[1] < gaps[0] / 1.8  # strong order 1/2


# --- wrong input ---------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"weights": hom.GaussianWeights(3), "beta": 1.0, "eta": 0.1, "layers": 2, "rng": 0}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"beta": -1.0}, "beta = -1.0"),
    ({"beta": math.nan}, "beta"),
    ({"heads": 0}, "heads"),
    ({"heads": 1.5}, "heads"),
    ({"layers": 0}, "layers"),
    ({"eta": 0.0}, "eta"),
    ({"eta": "0.1"}, "eta"),
    ({"samples": -2}, "samples"),
    ({"samples": 3, "antithetic": True}, "pairs"),
    ({"antithetic": True, "samples": 2, "weights": lambda rng, shape: None}, "antithetic"),
    ({"weights": hom.GaussianWeights(4)}, r"weights.d = 4: tokens have dimension 3"),
    ({"weights": hom.GaussianWeights}, "an instance is needed"),
    ({"weights": 3.0}, "a function is needed"),
    ({"weights": lambda rng, shape: None}, "a pair V, A"),
    ({"weights": lambda rng, shape: (np.eye(3), np.eye(3))}, "shape of V"),
    ({"weights": lambda rng, shape: (np.full((*shape, 3, 3), np.nan),) * 2}, "finite"),
    ({"rng": None}, "rng"),
    ({"save_at": [2, 1]}, "save_at"),
    ({"save_at": [0, 3]}, "save_at"),
    ({"save_at": [0.5]}, "save_at"),
    ({"save_at": []}, "save_at"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_a_chain_refuses_what_makes_no_sense(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        hom.chain(torch.eye(3), **(GOOD | change))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (2 * torch.eye(3), "norm 1"),
        (torch.zeros(3), "shape"),
        ([[1.0, 0.0], [0.0]], "rectangular"),
        (torch.full((2, 3), math.nan), "finite"),
        ("tokens", "real numbers"),
        (of.Particles(np.eye(3), w=[0.5, 0.25, 0.25], space=of.Sphere()), "weight"),
        (np.zeros((0, 3)), "at least one token"),
    ],
    ids=str,
)
def test_tokens_are_on_the_sphere(x: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        hom.chain(x, **GOOD)
    with pytest.raises(InputError, match=words):
        hom.s_matrix(x, weights=GOOD["weights"], beta=1.0, rng=0)


def test_tokens_may_be_lists_float32_or_require_grad() -> None:
    for x in ([[1, 0, 0], [0, 1, 0]], torch.eye(3, dtype=torch.float32), torch.eye(3, requires_grad=True)):
        run = hom.chain(x, **GOOD)
        assert run.x.dtype == torch.float64
        assert not run.x.requires_grad


def test_values_that_overflow_are_reported_with_what_was_computed() -> None:
    law = hom.GaussianWeights(3, 0.0, mean_V=1e308)
    with pytest.raises(NotFiniteError, match="rescale the weights") as caught:
        hom.chain(torch.eye(3), **(GOOD | {"weights": law, "eta": 10.0}))
    assert caught.value.result.shape == (2, 1, 3, 3)


def test_tokens_whose_norm_overflows_do_not_end_at_the_origin() -> None:
    law = hom.GaussianWeights(3, mean_V=1e200)
    with pytest.raises(NotFiniteError, match="rescale the weights"):
        hom.chain(torch.eye(3), **(GOOD | {"weights": law, "layers": 1}))


def test_scores_that_overflow_leave_no_nan_in_s() -> None:
    with pytest.raises(NotFiniteError, match="smaller beta"):
        hom.s_matrix(torch.eye(3), weights=hom.GaussianWeights(3, mean_A=1e308), beta=1e3, rng=0)


def test_without_a_mean_of_values_no_bank_of_matrices_is_kept() -> None:
    assert hom.ExpectedAttention(hom.GaussianWeights(64), 1.0, draws=256, rng=0).A.shape == (1, 64, 64)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hom.GaussianWeights(0), "d = 0"),
        (lambda: hom.GaussianWeights(3, -1.0), "sigma_V"),
        (lambda: hom.GaussianWeights(3, 1.0, 1e200), "sigma_A"),
        (lambda: hom.GaussianWeights(3, mean_V=np.eye(2)), r"mean_V.shape"),
        (lambda: hom.HeadNoise(GOOD["weights"], 1.0, draws=1, rng=0), "draws"),
        (lambda: hom.HeadNoise(GOOD["weights"], 1.0, rate=0.0, rng=0), "rate"),
        (lambda: hom.HeadNoise(GOOD["weights"], 1.0), "path, rng"),
        (lambda: hom.ExpectedAttention(lambda rng, shape: None, 1.0, rng=0), "GaussianWeights"),  # type: ignore[arg-type]
        (lambda: hom.overlap_drift(np.eye(3), np.eye(2), 4), "shapes of R, s"),
        (lambda: hom.overlap_drift(2 * np.eye(3), np.eye(3), 4), "norm 1"),
        (lambda: hom.overlap_bracket(np.eye(3), np.eye(3), 0), "d = 0"),
        (lambda: hom.s_matrix(np.eye(3), weights=GOOD["weights"], beta=1.0, draws=0, rng=0), "draws"),
    ],
)
def test_limits_refuse_what_makes_no_sense(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_noise_needs_tokens_on_the_sphere() -> None:
    law = GOOD["weights"]
    noise, field = hom.HeadNoise(law, 1.0, rng=0), hom.ExpectedAttention(law, 1.0, rng=0)
    with pytest.raises(InputError, match="Sphere"):
        of.flow(of.Particles(torch.eye(3)), field, of.Euler(), t1=1.0, dt=0.1, noise=noise)
