"""The estimate known beforehand, against exponential integrals and quadrature."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

import otflow as of
from otflow.base.errors import ConvergenceError
from otflow.stability.bounds.a_priori import APriori, a_priori, support_radius
from otflow.stability.bounds.constants import ZERO, Constants, constants
from otflow.stability.bounds.time_and_radius import log_radius, moment

EYE = torch.eye(2, dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def norm(m: Tensor) -> Any:
    return mp.mpf(float(np.linalg.norm(m.numpy(), 2)))


def softmax_log_C(a: Any, z0: Any, z1: Any) -> Any:
    """int L dt while R^2 grows from z0 to z1: by dz = 2 v z dt it is int (a/2 + (1 + 2az) e^2az / 2z) dz."""

    def primitive(z: Any) -> Any:
        return a * z / 2 + mp.ei(2 * a * z) / 2 + mp.exp(2 * a * z) / 2

    with mp.workdps(40):
        return primitive(mp.mpf(z1)) - primitive(mp.mpf(z0))


def test_the_primitive_of_the_oracle_is_one() -> None:
    a, v, R0, T = 0.7, 0.9, 1.2, 0.8

    def L(s: float) -> float:
        z = R0**2 * math.exp(2 * v * s)
        return v * a * z + v * (1 + 2 * a * z) * math.exp(2 * a * z)

    want = quad(L, 0, T, epsrel=1e-13)[0]
    assert float(softmax_log_C(a, R0**2, R0**2 * math.exp(2 * v * T))) == pytest.approx(want, rel=1e-12)


def check(run: APriori, want: Callable[[float], Any], rel: float) -> None:
    """log C at all times but the first, in long arithmetic, as it may overflow."""
    with mp.workdps(30):
        for s, got in zip(run.ts[1:].tolist(), run.log_log_C[1:].tolist(), strict=True):
            assert abs(mp.exp(mp.mpf(got)) / want(s) - 1) < rel


@pytest.mark.parametrize("T", [0.1, 1.0, 2.0])
def test_softmax_attention_has_its_exponential_integral(T: float) -> None:
    Q, K, V = (0.6 * draw(2, 2, seed=i) for i in range(3))
    a, v = norm(K.mT @ Q), norm(V)
    run = a_priori(of.SoftmaxAttention(Q, K, V), 1.3, t1=T)
    check(run, lambda s: softmax_log_C(a, 1.3**2, 1.3**2 * mp.exp(2 * v * s)), 1e-11)
    np.testing.assert_allclose(run.radius, 1.3 * np.exp(float(v) * run.ts.numpy()), rtol=1e-12)
    assert run.log_C[0].item() == 0
    assert run.log_log_C[0].item() == -math.inf


def test_c_overflows_at_time_one_and_its_logarithm_at_time_three() -> None:
    field = of.SoftmaxAttention(EYE, EYE, 1.1 * EYE)
    one, three = (a_priori(field, 1.0, t1=T) for T in (1.0, 3.0))
    assert one.log_C[-1].item() == pytest.approx(float(softmax_log_C(1, 1, mp.exp(2.2))), rel=1e-12)
    assert one.log_C[-1].item() > 709
    assert three.log_C[-1].item() == math.inf
    assert three.log_log_C[-1].item() == pytest.approx(
        float(mp.log(softmax_log_C(1, 1, mp.exp(6.6)))), rel=1e-13
    )
    assert "log log C = 1469.5" in repr(three)
    assert "log C = 3.65465e+07, R = 3.00417" in repr(one)


def test_ten_units_of_time_cost_no_more_than_one() -> None:
    run = a_priori(of.SoftmaxAttention(EYE, EYE, 1.1 * EYE), 1.0, t1=10.0)
    with mp.workdps(40):
        want = float(mp.log(softmax_log_C(1, 1, mp.exp(mp.mpf(2.2) * 10))))
    assert run.log_log_C[-1].item() == pytest.approx(want, rel=1e-13)


def cosines(s: float) -> Any:
    """int_0^s |cos 2r| dr."""
    n = int(mp.floor((s + mp.pi / 4) / (mp.pi / 2)))
    return n + (-1) ** n * mp.sin(2 * mp.mpf(s)) / 2


@pytest.mark.thorough
@pytest.mark.parametrize("ts", [None, [0.0, 3.0]])
def test_a_norm_with_kinks_in_time_keeps_eight_digits(ts: Any) -> None:
    Q, K, V = (0.5 * draw(2, 2, seed=i) for i in range(3))
    a, v = norm(K.mT @ Q), norm(V)
    run = a_priori(of.SoftmaxAttention(Q, K, lambda s: torch.cos(2 * s) * V), 1.0, t1=3.0, ts=ts)
    check(run, lambda s: softmax_log_C(a, 1, mp.exp(2 * v * cosines(s))), 1e-9)


@pytest.mark.thorough
def test_rotations_of_the_values_change_nothing() -> None:
    Q, K, V = (0.5 * draw(2, 2, seed=i) for i in range(3))

    def turned(s: Tensor) -> Tensor:
        c, d = torch.cos(5 * s), torch.sin(5 * s)
        return torch.stack([torch.stack([c, -d]), torch.stack([d, c])]) @ V

    runs = [a_priori(of.SoftmaxAttention(Q, K, W), 1.0, t1=2.0) for W in (turned, V)]
    torch.testing.assert_close(runs[0].log_C, runs[1].log_C, rtol=1e-10, atol=0)


def test_layers_have_the_sum_of_their_integrals() -> None:
    Q, K, V = (0.5 * draw(3, 2, 2, seed=i) for i in range(3))
    edges = [0.0, 0.35, 0.8, 1.7]
    field = of.SoftmaxAttention(*(of.Layers(m, edges) for m in (Q, K, V)))
    run = a_priori(field, 1.2, t1=1.5, ts=[0.0, 0.2, 0.35, 0.5, 0.8, 1.5])

    def want(s: float) -> Any:
        total, z = mp.mpf(0), mp.mpf(1.2) ** 2
        for i, start in enumerate(edges[:-1]):
            later = z * mp.exp(2 * norm(V[i]) * max(0.0, min(s, edges[i + 1]) - start))
            total += softmax_log_C(norm(K[i].mT @ Q[i]), z, later)
            z = later
        return total

    check(run, want, 1e-11)


@pytest.mark.slow
def test_heads_in_time_agree_with_quadrature() -> None:
    Q, K, V = (0.5 * draw(2, 2, 2, seed=i) for i in range(3))
    heads = [
        of.SoftmaxAttention(Q[0], K[0], lambda s: torch.cos(s) * V[0]),
        of.SigmoidAttention(Q[1], K[1], V[1]),
    ]
    field = of.MultiHead(heads, mix=[EYE, 2 * EYE]) + of.Perceptron(EYE, lambda s: s * EYE, activation=None)
    a, b = (float(norm(K[i].mT @ Q[i])) for i in (0, 1))
    v, w = float(norm(V[0])), 2 * float(norm(V[1]))

    def L(s: float) -> float:
        z, c = math.exp(2 * (v * math.sin(s) + w * s + s**2 / 2)), math.cos(s)
        return c * v * (a * z + (1 + 2 * a * z) * math.exp(2 * a * z)) + w * (1 + b * z / 2) + s

    run = a_priori(field, 1.0, t1=1.0, ts=[0.3, 1.0])
    want = [quad(L, 0, s, epsrel=1e-13)[0] for s in (0.3, 1.0)]
    np.testing.assert_allclose(run.log_C, want, rtol=1e-10)


def test_masked_attention_counts_the_law_more_for_small_p() -> None:
    masked, plain = (of.SoftmaxAttention(0 * EYE, EYE, 0.5 * EYE, causal=c) for c in (True, False))
    for p in (1.5, 2.0, 4.0, math.inf):
        factor = 1.0 if math.isinf(p) else p / (p - 1)
        runs = [a_priori(field, 1.0, t1=2.0, p=p).log_C[-1].item() for field in (masked, plain)]
        assert runs == pytest.approx([factor, 1.0])
    run = a_priori(masked, 1.0, t1=2.0, p=1.0)
    assert torch.isinf(run.log_C[1:]).all()
    assert run.log_C[0].item() == 0
    assert run.radius[-1].item() == pytest.approx(math.e)


# --- blow-up -------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("a", "v", "R0"), [(1.0, 1.0, 1.0), (0.5, 0.3, 1.2)])
def test_unnormalised_attention_blows_up_when_the_exponential_integral_says(
    a: float, v: float, R0: float
) -> None:
    field = of.UnnormalisedAttention(a * EYE, EYE, v * EYE)
    end = float(mp.e1(a * R0**2) / (2 * v))
    run = a_priori(field, R0, t1=2 * end, ts=np.linspace(0, 2 * end, 9))
    assert run.blow_up_time.item() == pytest.approx(end, rel=1e-11)
    assert torch.isinf(run.log_radius[4:]).all()
    assert torch.isinf(run.log_C[4:]).all()
    assert f"blow-up at t = {end:.4g}"[:-2] in repr(run)
    for k in range(1, 4):
        R = mp.findroot(lambda r, k=k: mp.e1(a * r**2) / (2 * v) + k * end / 4 - end, run.radius[k].item())
        assert run.radius[k].item() == pytest.approx(float(R), rel=1e-11)
        # L dt = (1 + 2 a R^2) dR / R
        want = mp.log(R / R0) + a * (R**2 - mp.mpf(R0) ** 2)
        assert run.log_C[k].item() == pytest.approx(float(want), rel=1e-10)


def test_a_run_that_ends_before_the_blow_up_has_none() -> None:
    field = of.UnnormalisedAttention(EYE, EYE, EYE)
    end = float(mp.e1(1) / 2)
    run = a_priori(field, 1.0, t1=0.999 * end)
    assert run.blow_up_time.isnan()
    assert run.log_C.isfinite().all()


@pytest.mark.slow
def test_members_of_a_batch_blow_up_each_in_their_time_or_not_at_all() -> None:
    v = torch.tensor([0.0, 1.0, 0.05, 0.4], dtype=torch.float64)
    run = a_priori(of.UnnormalisedAttention(EYE, EYE, v[:, None, None] * EYE), 1.0, t1=1.0)
    want = [math.nan, *(float(mp.e1(1) / (2 * c)) for c in (1.0, 0.05, 0.4))]
    want[2] = math.nan  # 2.19
    np.testing.assert_allclose(run.blow_up_time, want, rtol=1e-11)
    alone = a_priori(of.UnnormalisedAttention(EYE, EYE, 0.05 * EYE), 1.0, t1=1.0)
    torch.testing.assert_close(run.log_C[:, 2], alone.log_C, rtol=1e-10, atol=0)
    assert (run.log_C[:, 0] == 0).all()


# --- batches, large and small ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [of.SoftmaxAttention, of.L2Attention, of.SigmoidAttention, of.SinkhornAttention]
)
def test_a_batch_gives_what_its_members_give(kind: Any) -> None:
    Q, K, V = (0.7 * draw(2, 3, 2, 2, seed=i) for i in range(3))
    R0 = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    run = a_priori(kind(Q, K, V), R0, t1=1.0)
    assert run.log_log_C.shape == run.log_radius.shape == (101, 2, 3)
    assert run.blow_up_time.shape == (2, 3)
    for i in np.ndindex(2, 3):
        one = a_priori(kind(Q[i], K[i], V[i]), R0[i[1]].item(), t1=1.0)
        torch.testing.assert_close(
            run.log_log_C[(slice(1, None), *i)], one.log_log_C[1:], rtol=1e-11, atol=1e-11
        )


@pytest.mark.thorough
def test_five_hundred_configurations_ask_for_norms_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Q, K, V = (0.5 * draw(500, 3, 3, seed=i) for i in range(3))
    calls = []
    real = torch.linalg.matrix_norm
    monkeypatch.setattr(torch.linalg, "matrix_norm", lambda *z: calls.append(1) or real(*z))
    run = a_priori(of.SoftmaxAttention(Q, K, V), 1.0, t1=1.0)
    assert len(calls) == 4  # |A| and |V|: for the shape, and for the run
    assert run.log_log_C.shape == (101, 500)


def test_radii_beyond_floating_point_are_fine_where_the_estimate_is() -> None:
    run = a_priori(of.SigmoidAttention(EYE, EYE, EYE), 1.0, t1=800.0, ts=[0.0, 400.0, 800.0])
    assert run.log_radius[-1].item() == pytest.approx(800, rel=1e-13)
    assert run.radius[-1].item() == math.inf
    want = 1600 - math.log(4)  # int (1 + e^2t / 2) dt = t + (e^2t - 1) / 4
    assert run.log_log_C[-1].item() == pytest.approx(want, rel=1e-13)
    assert "log R = 800" in repr(run)


def test_a_field_that_does_nothing_has_c_equal_to_one() -> None:
    run = a_priori(0.0 * of.SoftmaxAttention(EYE, EYE, EYE), 2.0, t1=1.0)
    assert (run.log_C == 0).all()
    assert (run.radius - 2).abs().max() < 1e-14


def test_time_may_start_anywhere_and_fields_of_users_count() -> None:
    class Push(of.VelocityField):
        pass

    @constants.register(Push)
    def _(field: Push, R: Any, t: Any = 0.0) -> Constants:
        log_t = moment(t).t.log()
        return Constants(log_radius(R) + log_t, log_t, ZERO)

    run = a_priori(Push(), 1.0, t0=1.0, t1=3.0, ts=[2.0, 3.0])
    np.testing.assert_allclose(run.log_C, [1.5, 4.0], rtol=1e-12)
    np.testing.assert_allclose(run.log_radius, [1.5, 4.0], rtol=1e-12)


# --- measures and wrong input ------------------------------------------------------------------------------


def test_the_radius_is_that_of_the_support_if_a_measure_is_given() -> None:
    field = of.SigmoidAttention(EYE, EYE, EYE)
    mu = of.Particles([[3.0, 4.0], [0.0, 1.0], [50.0, 0.0]], [0.5, 0.5, 0.0])
    assert support_radius(mu).item() == 5
    both = [a_priori(field, t1=0.1, mu0=mu), a_priori(field, 5.0, t1=0.1, mu0=mu)]
    assert both[0].log_C[-1].item() == both[1].log_C[-1].item()
    clouds = of.Particles(draw(4, 6, 2))
    run = a_priori(field, t1=0.1, mu0=clouds)
    np.testing.assert_allclose(run.radius[0], clouds.x.norm(dim=-1).amax(-1))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "small": ({"R0": 4.0, "mu0": of.Particles([[3.0, 4.0]])}, r"smaller than the support.*5.*R0=5"),
    "gaussian": ({"mu0": of.Gaussian([0.0, 0.0], root=np.eye(2))}, "no compact support"),
    "sphere": ({"mu0": of.Particles([[1.0, 0.0]], space=of.Sphere())}, "Euclidean"),
    "neither": ({}, "pass its radius, or mu0"),
    "origin": ({"mu0": of.Particles([[0.0, 0.0]])}, "radius > 0"),
    "negative": ({"R0": -1.0}, "radius > 0"),
    "infinite": ({"R0": math.inf}, "finite"),
    "order": ({"R0": 1.0, "p": 0.5}, "order of a distance"),
    "backwards": ({"R0": 1.0, "t1": -1.0}, "after t0"),
    "unsorted": ({"R0": 1.0, "ts": [0.0, 0.5, 0.5]}, "increasing"),
    "outside": ({"R0": 1.0, "ts": [0.0, 2.0]}, "must lie in"),
    "field": ({"R0": 1.0, "field": EYE}, "VelocityField"),
    "kind": ({"R0": 1.0, "field": of.VelocityField()}, r"constants\.register"),
    "sinkhorn": ({"R0": 1.0, "p": 3.0, "field": of.SinkhornAttention(EYE, EYE, EYE)}, "except for p = 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_input_is_refused_by_name(name: str) -> None:
    given, message = BAD[name]
    with pytest.raises(of.InputError, match=message):
        a_priori(**{"field": of.SoftmaxAttention(EYE, EYE, EYE), "t1": 1.0, **given})


def test_growth_that_the_solver_cannot_follow_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wild(of.VelocityField):
        pass

    @constants.register(Wild)
    def _(field: Wild, R: Any, t: Any = 0.0) -> Constants:
        s = moment(t).t
        return Constants(log_radius(R) - 2 * (s - 0.5).abs().log(), ZERO, ZERO)  # u' = 1 / (t - 1/2)^2

    monkeypatch.setattr(sys.modules["otflow.stability.bounds.a_priori"], "LIMIT", 2000)
    with pytest.raises(ConvergenceError, match="could not be followed"):
        a_priori(Wild(), 1.0, t1=1.0)
