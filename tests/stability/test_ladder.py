"""The ladder: observed <= adversary <= a posteriori <= a priori."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import otflow as of
from otflow.papers.stability_estimate.random_fields import FIELDS, cloud

MILD = {"Sinkhorn": 0.6, "unnormalised": 0.75}  # a-priori constants without large exponentials
EYE = torch.eye(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("many", "name"),
    [
        *((20, name) for name in ("L2", "sigmoid", "masked softmax", "time-dependent")),
        *(pytest.param(500, name, marks=pytest.mark.slow) for name in FIELDS),
    ],
)
def test_the_ladder_holds_on_random_configurations(many: int, name: str) -> None:
    """n = 5 tokens in the plane, perturbations of size 1e-6 R0 with R0 = 1, p = 2."""
    rng = np.random.default_rng(11)
    field, mu0 = FIELDS[name]((many,), 2, rng), cloud((many,), 5, 2, rng, labelled="masked" in name)
    found = of.ladder(mu0, field, t1=1.0, steps=20, size=1e-6, rng=3)
    assert bool(found.holds(1e-9).all())
    dense = largest_singular_values(mu0, field)
    assert float((found.adversary.ratio >= 0.9 * dense).double().mean()) >= 0.95
    torch.testing.assert_close(found.adversary.linearised, dense, rtol=1e-4, atol=0)
    sharper = found.rungs["a posteriori"] / found.rungs["a priori"]
    assert float(sharper.median()) < MILD.get(name, 0.5)


def largest_singular_values(mu0: of.Particles, field: of.VelocityField) -> torch.Tensor:
    """From the whole matrix of the derivative of the flow map."""
    dense = of.stability.Propagator(mu0, field, of.RK4(), t1=1.0, dt=0.05).matrix()
    return torch.linalg.svdvals(dense)[..., 0]


@pytest.mark.thorough
@pytest.mark.slow(but_for=["softmax-1.0", "sigmoid-4.0", "masked softmax-1.5"])
@pytest.mark.parametrize("p", [1.0, 1.5, 4.0])
@pytest.mark.parametrize("name", ["softmax", "sigmoid", "multi-head", "masked softmax"])
def test_the_ladder_holds_for_other_orders(name: str, p: float) -> None:
    rng = np.random.default_rng(12)
    field, mu0 = FIELDS[name]((8,), 2, rng), cloud((8,), 6, 2, rng, labelled="masked" in name)
    found = of.ladder(mu0, field, t1=1.0, steps=20, p=p)
    assert bool(found.holds(1e-9).all())
    assert bool(found.a_priori.log_C[-1].isinf().all()) == (name == "masked softmax" and p == 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "L2", "sigmoid", "masked softmax"])
def test_the_ladder_holds_for_perturbations_that_are_not_small(name: str) -> None:
    """With a tube as wide as the cloud, the a-posteriori bound falls back on a-priori constants."""
    rng = np.random.default_rng(13)
    field, mu0 = FIELDS[name]((8,), 2, rng), cloud((8,), 5, 2, rng, labelled="masked" in name)
    for size in (1e-3, 0.05):
        found = of.ladder(mu0, field, t1=0.5, steps=20, size=size)
        assert bool(found.holds(1e-9).all())
        assert bool((found.a_posteriori.tube >= size).all())


@pytest.mark.slow
def test_more_save_times_sharpen_the_a_posteriori_bound() -> None:
    rng = np.random.default_rng(14)
    field, mu0 = FIELDS["softmax"]((), 2, rng), cloud((), 8, 2, rng, labelled=False)
    logs = []
    for steps in (10, 40, 160):
        traj = of.flow(mu0, field, of.RK4(), t1=1.0, dt=1 / steps)
        logs.append(float(of.stability.a_posteriori(traj, field, size=1e-6).log_C[-1]))
    assert logs[0] > logs[1] > logs[2]
    assert logs[1] - logs[2] < 0.5 * (logs[0] - logs[1])  # an upper sum, of first order


@pytest.mark.thorough
def test_jumps_of_weights_between_save_times_are_seen() -> None:
    V = of.Layers(torch.stack([0.1 * EYE, 3.0 * EYE, 0.1 * EYE]), edges=[0.0, 0.52, 0.58, 1.0])
    rng = np.random.default_rng(15)
    mu0, field = cloud((), 6, 2, rng, labelled=False), of.SoftmaxAttention(0.5 * EYE, EYE, V)
    traj = of.flow(mu0, field, of.RK4(), t1=1.0, dt=0.05)
    log = of.stability.a_posteriori(traj, field).log_C
    slope = torch.diff(log) / torch.diff(traj.ts)
    assert float(slope[10] / slope[0]) > 5
    assert float(slope[11] / slope[0]) > 5
    assert float(slope[15] / slope[0]) < 2
    assert bool(of.ladder(mu0, field, t1=1.0, steps=20).holds(1e-9))


@pytest.mark.slow
def test_a_perceptron_beside_attention_has_a_ladder() -> None:
    rng = np.random.default_rng(16)
    block = 0.5 * of.Perceptron(rng.normal(size=(2, 6)) / 3, rng.normal(size=(6, 2)) / 3, rng.normal(size=6))
    field = FIELDS["multi-head"]((), 2, rng) - block
    found = of.ladder(cloud((), 6, 2, rng, labelled=False), field, t1=1.0, steps=20)
    assert bool(found.holds(1e-9))


@pytest.mark.thorough
def test_a_bound_for_clouds_with_other_tokens_needs_to_know_how_far_mass_moves() -> None:
    """nu0 has an atom more: the bound with reach= is met."""
    rng = np.random.default_rng(17)
    field, mu0 = FIELDS["softmax"]((), 2, rng), cloud((), 4, 2, rng, labelled=False)
    nu0 = of.Particles(torch.cat([mu0.x, mu0.x[:1]]) + 1e-3, [0.2, 0.25, 0.25, 0.25, 0.05])
    run = of.coupled(mu0, nu0, field, of.RK4(), t1=1.0, dt=0.02)
    bound = of.stability.a_posteriori(run.mu, field, size=float(run.start), reach=2e-3)
    assert bool((run.ratios.log() <= bound.log_C + 1e-9).all())
    assert float(bound.log_C[-1]) < 0.1 * float(of.stability.a_priori(field, 1.1, t1=1.0).log_C[-1])


@pytest.mark.slow
def test_one_token_has_the_ladder_of_a_linear_flow() -> None:
    """Softmax attention of one token is x' = Vx; all rungs but the last agree for V = I."""
    found = of.ladder(of.Particles([[0.6, 0.8]]), of.SoftmaxAttention(EYE, EYE, EYE), t1=1.0, steps=100)
    rungs = {name: float(log) for name, log in found.rungs.items()}
    assert rungs["observed"] == pytest.approx(1.0, abs=1e-6)
    assert rungs["a posteriori"] == pytest.approx(1.0, abs=0.05)
    assert "a priori" in str(found)
    assert f"{math.e:.5f}"[:5] in str(found)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"p": 0.5}, "order of a distance"),
        ({"R0": 0.5}, "larger radius"),
        ({"size": -1.0}, "distance > 0"),
        ({"steps": 0}, "steps"),
        ({"t1": -1.0}, "t1|dt"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, float], words: str) -> None:
    mu0 = of.Particles([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(of.InputError, match=words):
        of.ladder(mu0, of.SoftmaxAttention(EYE, EYE, EYE), **{"t1": 1.0, **wrong})


def test_spheres_are_refused() -> None:
    mu0 = of.Particles([[1.0, 0.0], [0.0, 1.0]], space=of.Sphere())
    traj = of.flow(mu0, of.SoftmaxAttention(EYE, EYE, EYE), of.RK4(), t1=1.0, dt=0.1)
    with pytest.raises(of.InputError, match="Euclidean"):
        of.stability.a_posteriori(traj, of.SoftmaxAttention(EYE, EYE, EYE))


# --- without bounds, and what is printed ---------------------------------------------------------------


def test_fields_without_constants_get_the_rungs_from_below() -> None:
    mu0 = cloud((), 5, 2, np.random.default_rng(0), labelled=False)
    pull = of.SteepestDescent(of.QuadraticPotential(np.diag([1.0, 2.0])), of.Wasserstein())
    found = of.ladder(mu0, pull, t1=1.0, steps=10)
    assert list(found.rungs) == ["observed", "adversary"]
    assert found.a_posteriori is None
    assert found.a_priori is None
    assert float(found.rungs["adversary"]) == pytest.approx(-1.0, abs=1e-4)  # exp(-t), along the first axis
    assert "no upper bound: field = " in str(found)
    assert "no constants are known for SteepestDescent" in found.unknown
    assert found.holds(1e-9)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["4.0"])
@pytest.mark.parametrize("p", [1.0, 4.0])
def test_sinkhorn_attention_has_the_rungs_from_below_for_every_order(p: float) -> None:
    mu0 = cloud((), 4, 2, np.random.default_rng(0), labelled=False)
    found = of.ladder(mu0, of.SinkhornAttention(EYE, EYE, EYE), t1=0.5, steps=5, p=p)
    assert list(found.rungs) == ["observed", "adversary"]
    assert "except for p = 2" in found.unknown


def test_spheres_have_the_rungs_from_below() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3))
    mu0 = of.Particles(x / np.linalg.norm(x, axis=-1, keepdims=True), space=of.Sphere())
    eye = np.eye(3)
    found = of.ladder(mu0, of.SoftmaxAttention(eye, eye, eye), t1=0.5, steps=5)
    assert list(found.rungs) == ["observed", "adversary"]
    assert "R^d" in found.unknown


def test_single_precision_has_a_size_of_its_own() -> None:
    x = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    eye = np.eye(2, dtype=np.float32)
    found = of.ladder(of.Particles(x), of.SoftmaxAttention(eye, eye, eye), t1=0.5, steps=5)
    assert float(found.size) == pytest.approx(256 * 2**-23 * np.linalg.norm(x, axis=-1).max(), rel=1e-6)
    assert found.worst.isfinite().all()


def test_a_linear_perceptron_grows_at_its_logarithmic_norm() -> None:
    B = np.array([[-1.0, 3.0], [0.0, -2.0]])
    mu0 = cloud((), 4, 2, np.random.default_rng(0), labelled=False)
    linear = of.Perceptron(B, np.eye(2), activation=None)
    found = of.ladder(mu0, linear, t1=0.01, steps=2)
    top = np.linalg.eigvalsh((B + B.T) / 2)[-1]
    assert float(found.rungs["a posteriori"]) == pytest.approx(0.01 * top, rel=1e-9)
    assert float(found.rungs["adversary"]) == pytest.approx(0.01 * top, rel=0.1)
    assert found.holds(1e-9)


@pytest.mark.slow
def test_huge_constants_are_printed_as_exponentials() -> None:
    mu0 = of.Particles([[1.0, 0.0], [0.0, 1.0]])
    field = of.SoftmaxAttention(EYE, EYE, 1.1 * EYE)
    table = str(of.ladder(mu0, field, t1=1.0, steps=5)).splitlines()
    assert len({len(line) for line in table[1:6]}) == 1  # columns do not collide
    assert table[5].split()[:2] == ["a", "priori"]
    assert table[5].split()[3].startswith("e^3.65")
    late = str(of.ladder(mu0, field, t1=3.0, steps=5))
    assert "e^e^14" in late
    masked = of.ladder(
        of.Particles(mu0.x, label=[0, 1]), of.SoftmaxAttention(EYE, EYE, EYE, causal=True), t1=0.5, p=1.0
    )
    assert "no constant exists for this p" in str(masked)
    assert repr(masked).startswith("Ladder(p=1, log C(0.5): observed ")


# --- wrong input ---------------------------------------------------------------------------------------


def test_mistakes_are_told_before_anything_is_run() -> None:
    mu0, field = of.Particles([[1.0, 0.0], [0.0, 1.0]]), of.SoftmaxAttention(EYE, EYE, EYE)
    for message, mu, options in [
        ("a ladder is about clouds", of.Gaussian([0.0, 0.0], root=np.eye(2)), {}),
        ("says nothing of a scale", of.Particles([[0.0, 0.0]]), {}),
        ("tokens and their perturbations reach to", mu0, {"R0": 0.5}),
        ("one per member is needed", mu0, {"size": [1e-3, 1e-4]}),
        ("the order of a distance", mu0, {"p": 0.5}),
        ("R0", mu0, {"R0": math.nan}),
    ]:
        with pytest.raises(of.InputError, match=message):
            of.ladder(mu, field, t1=1.0, **options)
    with pytest.raises(of.InputError, match="t1"):
        of.ladder(mu0, field, t1="1")  # type: ignore[arg-type]
    with pytest.raises(of.InputError, match="VelocityField"):
        of.ladder(mu0, "softmax", t1=1.0)  # type: ignore[arg-type]
    with pytest.raises(of.InputError, match="tries"):
        of.adversary(mu0, field, of.RK4(), t1=1.0, dt=0.1, size=1e-3, tries=[mu0])  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_run_that_the_field_did_not_make_has_no_bound() -> None:
    mu0, field = of.Particles([[1.0, 0.0], [0.0, 1.0]]), of.SoftmaxAttention(EYE, EYE, EYE)
    noisy = of.flow(mu0, field, of.Euler(), t1=1.0, dt=0.02, noise=of.CommonNoise(1.0, rng=0))
    other = of.flow(mu0, of.SoftmaxAttention(EYE, EYE, 3 * EYE), of.RK4(), t1=1.0, dt=0.02)
    for run in (noisy, other):
        with pytest.raises(of.InputError, match="the field cannot move it by more than"):
            of.stability.a_posteriori(run, field, size=1e-3)
    with pytest.raises(of.InputError, match="one per member is needed"):
        of.stability.a_posteriori(of.flow(mu0, field, of.RK4(), t1=1.0, dt=0.02), field, size=[1.0, 2.0])
