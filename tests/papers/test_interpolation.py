"""Interpolation of measures by one Transformer: closed forms against `flow`, paths against their targets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist

import otflow as of
from otflow.papers import interpolation as it
from otflow.papers.interpolation.pieces import GreatCircle, SpherePiece, as_field, shifts

Array = np.ndarray


def unit(x: Array) -> Array:
    out: Array = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return out


def on_sphere(x: Any, w: Any = None) -> of.Particles:
    return of.Particles(x, w=w, space=of.Sphere())


def cap(n: int, centre: Array, radius: float, rng: np.random.Generator) -> of.Particles:
    """Points of a ball on the sphere, uniform in its tangent space."""
    d = len(centre)
    basis = np.linalg.svd(centre[None])[2][1:]
    r = radius * rng.uniform(size=(n, 1)) ** (1 / (d - 1))
    y = unit(rng.standard_normal((n, d - 1))) @ basis
    return on_sphere(np.cos(r) * centre + np.sin(r) * y)


def problem(
    seed: int, N: int = 3, n: int = 60, d: int = 3, fresh: int | None = None
) -> tuple[list[of.Particles], Array]:
    """N clouds of diameter about 1.2 with centres 0.25 or more apart, and targets anywhere."""
    rng = np.random.default_rng(seed)
    base, centres = unit(rng.standard_normal(d)), []
    while len(centres) < N:
        c = unit(base + 0.4 * rng.standard_normal(d))
        if all(math.acos(c @ other) > 0.25 for other in centres):
            centres.append(c)
    targets = unit(rng.standard_normal((N, d)))
    points = rng if fresh is None else np.random.default_rng(fresh)
    return [cap(n, c, 0.6, points) for c in centres], targets


def away(mu: of.Particles, y: Array) -> float:
    """The largest angle to y."""
    return float(mu.space.distance(mu.x, torch.from_numpy(y)).max())


def atoms(seed: int, N: int, M: int, masses: Any = None) -> list[of.Particles]:
    rng = np.random.default_rng(seed)
    return [
        on_sphere(
            unit(rng.standard_normal((M, 3))), rng.dirichlet(5 * np.ones(M)) if masses is None else masses
        )
        for _ in range(N)
    ]


# --- closed forms ---------------------------------------------------------------------------------------


def pieces(kind: int, d: int, rng: np.random.Generator) -> SpherePiece:
    p, a = unit(rng.standard_normal((2, d)))
    return (
        SpherePiece(2.0, p, gain=1.5),
        SpherePiece(2.0, p, gain=-1.0),
        SpherePiece(3.0, p, speed=1.3, a=p, c=rng.uniform(-0.9, 0.9)),
        SpherePiece(3.0, p, speed=-0.7, a=a, c=rng.uniform(-1.3, 1.3)),
        SpherePiece(1.0, p, speed=1.0),
    )[kind]


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("d", [3, 5])
def test_the_closed_form_of_a_piece_is_its_flow(kind: int, d: int) -> None:
    rng = np.random.default_rng(10 * kind + d)
    x, w, piece = unit(rng.standard_normal((40, d))), rng.dirichlet(np.ones(40)), pieces(kind, d, rng)
    end = of.flow(
        on_sphere(x, w), as_field([piece]), of.Dopri5(1e-10, 1e-12), t1=piece.time, save_at=[piece.time]
    )
    np.testing.assert_allclose(piece.move(x, w), end.final.x.numpy(), atol=1e-9)


@pytest.mark.parametrize("kind", range(5))
def test_a_piece_turned_takes_the_same_measure_back(kind: int) -> None:
    rng = np.random.default_rng(kind)
    x, w, piece = unit(rng.standard_normal((200, 4))), np.full(200, 1 / 200), pieces(kind, 4, rng)
    np.testing.assert_allclose(piece.reverse("back").move(piece.move(x, w), w), x, atol=1e-11)


def test_a_gate_whose_edge_runs_through_its_pole_still_follows_the_flow() -> None:
    rng = np.random.default_rng(3)
    x, p = unit(rng.standard_normal((30, 3))), np.array([0.0, 0.0, 1.0])
    piece = SpherePiece(2.0, p, speed=1.0, a=np.array([0.0, 0.6, 0.8]), c=-0.8)
    end = of.flow(on_sphere(x), as_field([piece]), of.Dopri5(1e-10, 1e-12), t1=2.0, save_at=[2.0])
    np.testing.assert_allclose(piece.move(x, np.full(30, 1 / 30)), end.final.x.numpy(), atol=1e-6)


def test_mean_attention_is_softmax_attention_without_scores() -> None:
    rng = np.random.default_rng(0)
    mu, V = (
        on_sphere(unit(rng.standard_normal((9, 3))), rng.dirichlet(np.ones(9))),
        rng.standard_normal((3, 3)),
    )
    soft = of.SoftmaxAttention(np.zeros((3, 3)), np.eye(3), V)(0.0, mu)[0]
    torch.testing.assert_close(it.MeanAttention(of.Layers(V[None]))(0.0, mu)[0], soft, rtol=1e-12, atol=1e-14)


def test_a_measure_whose_mean_is_orthogonal_to_alpha_stays_and_another_moves() -> None:
    x = np.array([[0.6, 0.0, 0.8], [-0.6, 0.0, 0.8]])
    half = np.array([0.5, 0.5])
    alpha = np.array([1.0, 0.0, 0.0])
    np.testing.assert_allclose(SpherePiece(3.0, alpha, gain=1.0).move(x, half), x, atol=1e-13)
    assert SpherePiece(3.0, alpha, gain=1.0).move(x, np.array([0.9, 0.1]))[:, 0].min() > 0.5


def test_a_single_point_shifts_by_the_formula_of_the_logistic() -> None:
    # S' = tanh(s + S) is solved by sinh(s + S) = e^t sinh s.
    s, t = 0.3, np.array([0.5, 2.0])
    np.testing.assert_allclose(
        np.sinh(s + shifts(np.array([s]), np.ones(1), 1.0, t)), np.exp(t) * np.sinh(s), rtol=1e-11
    )


def test_points_at_the_pole_and_its_antipode_stay_there() -> None:
    p = np.array([0.0, 0.0, 1.0])
    for piece in (SpherePiece(5.0, p, speed=1.0), SpherePiece(5.0, p, gain=1.0)):
        x = np.stack([p, -p])
        np.testing.assert_allclose(piece.move(x, np.array([0.7, 0.3])), x, atol=1e-15)
    assert np.isfinite(GreatCircle.of(np.stack([p, -p]), p).s).all()


def test_after_a_very_long_time_all_that_a_gate_moves_is_at_rest() -> None:
    rng = np.random.default_rng(5)
    for T in (1e4, 1e6):
        for _ in range(20):
            p, a = unit(rng.standard_normal((2, 3)))
            x, c = unit(rng.standard_normal((30, 3))), float(rng.uniform(-1, 1))
            gate = SpherePiece(T, p, speed=1.0, a=a, c=c)
            if abs(abs(c) - abs(float(a @ p))) < 0.1:
                continue  # slow there
            y = gate.move(x, np.full(30, 1 / 30))
            at_rest = np.minimum(np.maximum(gate.gate(y), 0), np.linalg.norm(y - p, axis=1))
            assert at_rest.max() < 1e-7


def test_the_ball_gate_is_open_inside_and_the_printed_one_outside() -> None:
    z, R = np.array([0.0, 0.0, 1.0]), 0.5
    x = unit(np.random.default_rng(0).standard_normal((500, 3)))
    inside = np.arccos(x @ z) < R
    np.testing.assert_array_equal(it.ball(z, R).gate(x) > 0, inside)
    np.testing.assert_array_equal(-(x @ z) + math.cos(R) > 0, ~inside)


# --- points ---------------------------------------------------------------------------------------------


@pytest.mark.slow(but_for=["True-0", "False-3"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shortcuts", [True, False])
def test_three_overlapping_clouds_go_to_three_points_with_one_path(seed: int, shortcuts: bool) -> None:
    sources, targets = problem(seed)
    path = it.interpolate(sources, targets, tol=1e-3, shortcuts=shortcuts)
    assert len(path.pieces) <= 30
    assert len(path.switches) == len(path.pieces) - 1
    for mu, y, error in zip(sources, targets, path.errors, strict=True):
        assert away(path(mu), y) <= 1e-3
        assert error == pytest.approx(away(path(mu), y), abs=1e-7)
    assert path.status == "ok"
    assert path.returned.shape == (6,)
    assert path.returned.max() < 1e-6
    assert path.disjoint > 0.1


def test_clouds_five_thousandths_apart_go_to_three_points() -> None:
    sources, targets = problem(1)
    x, y = sources[0].x.numpy(), sources[1].x.numpy().copy()
    i, j = np.unravel_index(cdist(x, y).argmin(), (60, 60))
    y[j] = unit(x[i] + 0.005 * unit(np.cross(x[i], y[j])))
    sources[1] = on_sphere(y)
    assert cdist(x, y).min() <= 0.0051
    assert max(pdist(mu.x.numpy()).max() for mu in sources) < 1.25
    path = it.interpolate(sources, targets)
    assert len(path.pieces) <= 30
    assert path.errors.max() <= 1e-3


def test_a_point_that_two_clouds_share_ends_in_two_places() -> None:
    sources, targets = problem(0)
    shared = unit(sources[0].x.numpy().mean(0) + sources[1].x.numpy().mean(0))
    sources = [on_sphere(np.vstack([shared, mu.x.numpy()])) for mu in sources]
    path = it.interpolate(sources, targets)
    ends = [path(mu).x[0].numpy() for mu in sources]
    assert min(pdist(np.stack(ends))) > pdist(targets).min() - 2e-3


@pytest.mark.slow
def test_the_path_as_a_field_of_flow_ends_at_the_same_points() -> None:
    sources, targets = problem(4, n=20)
    path = it.interpolate(sources, targets)
    T = float(path.edges[-1])
    end = of.flow(sources[0], path.field, of.Dopri5(1e-9, 1e-11), t1=T, save_at=[T]).final
    assert away(end, targets[0]) < 1e-3
    assert path.field.switches == pytest.approx(path.switches)


def test_the_frames_of_a_path_end_where_the_path_ends() -> None:
    sources, targets = problem(0)
    path = it.interpolate(sources, targets)
    frames = path.trajectory(sources[0], 3)
    assert len(frames.times) == len(frames.phases) == len(frames.measures) == 1 + 3 * len(path.pieces)
    assert frames.times[-1] == pytest.approx(path.edges[-1])
    torch.testing.assert_close(frames.measures[-1].x, path(sources[0]).x, rtol=0, atol=1e-6)


@pytest.mark.slow(but_for=["0"])
@pytest.mark.parametrize("seed", range(2))
def test_five_clouds_in_four_dimensions(seed: int) -> None:
    sources, targets = problem(seed, N=5, d=4)
    path = it.interpolate(sources, targets)
    assert path.errors.max() <= 1e-3
    assert len(path.pieces) <= 1 + 3 * 5 + 6 * 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_five_clouds_in_four_dimensions_for_many_seeds(seed: int) -> None:
    sources, targets = problem(seed, N=5, d=4)
    assert it.interpolate(sources, targets).errors.max() <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 40))
def test_three_clouds_for_many_seeds(seed: int) -> None:
    sources, targets = problem(seed)
    path = it.interpolate(sources, targets)
    assert path.errors.max() <= 1e-3
    assert len(path.pieces) <= 30
    assert path.returned.max() < 1e-6


def test_sizes_may_differ_and_weights_count() -> None:
    rng = np.random.default_rng(0)
    sources, targets = problem(2)
    w = rng.dirichlet(np.ones(25))
    mixed = [on_sphere(sources[0].x[:25], w), on_sphere(sources[1].x[:7]), sources[2]]
    path = it.interpolate(mixed, targets)
    assert max(away(path(mu), y) for mu, y in zip(mixed, targets, strict=True)) <= 1e-3


def test_points_without_mass_do_not_matter() -> None:
    sources, targets = problem(0, n=20)
    w = np.full(21, 1 / 20)
    w[-1] = 0.0
    odd = on_sphere(np.vstack([sources[0].x.numpy(), -sources[0].x[:1].numpy()]), w)
    path = it.interpolate([odd, *sources[1:]], targets)
    assert path.errors.max() <= 1e-3


def test_targets_may_coincide() -> None:
    sources, targets = problem(0)
    for chosen in ([0, 0, 1], [0, 0, 0]):
        path = it.interpolate(sources, targets[chosen])
        assert max(away(path(mu), y) for mu, y in zip(sources, targets[chosen], strict=True)) <= 1e-3


@pytest.mark.slow
def test_targets_may_nearly_coincide() -> None:
    sources, targets = problem(0)
    for gap in (1e-6, 1e-4, 1e-3):
        near = np.stack([targets[0], unit(targets[0] + [gap, 0.0, 0.0]), targets[2]])
        path = it.interpolate(sources, near)
        assert max(away(path(mu), y) for mu, y in zip(sources, near, strict=True)) <= 1e-3


@pytest.mark.slow
def test_points_at_the_axes_go_to_their_antipodes() -> None:
    x = np.vstack([np.eye(3), -np.eye(3)])
    path = it.interpolate([on_sphere(p[None]) for p in x], -x)
    assert path.errors.max() <= 1e-3


@pytest.mark.slow
def test_clouds_may_change_places_and_go_to_antipodes() -> None:
    sources, _ = problem(0)
    centres = unit(np.stack([mu.x.numpy().mean(0) for mu in sources]))
    for targets in (centres[[1, 2, 0]], -centres):
        assert it.interpolate(sources, targets).errors.max() <= 1e-3


@pytest.mark.slow(but_for=["2-3-*", "3-5-True"])
@pytest.mark.parametrize("shortcuts", [True, False])
@pytest.mark.parametrize(("N", "d"), [(2, 3), (4, 3), (3, 5)])
def test_points_may_change_places(N: int, d: int, shortcuts: bool) -> None:
    x = unit(np.eye(d)[0] + 0.4 * np.random.default_rng(N).standard_normal((N, d)))
    points = [on_sphere(p[None]) for p in x]
    path = it.interpolate(points, np.roll(x, 1, 0), shortcuts=shortcuts)
    for mu, y in zip(points, np.roll(x, 1, 0), strict=True):
        assert away(path(mu), y) <= 1e-3


def test_wide_clouds_are_first_driven_away_from_a_hole() -> None:
    rng = np.random.default_rng(1)
    sources = [on_sphere(unit(rng.standard_normal((60, 3)))) for _ in range(2)]
    path = it.interpolate(sources, np.eye(3)[:2])
    assert path.pieces[0].phase == "to a cap"
    assert path.errors.max() <= 1e-3


@pytest.mark.slow
def test_barycentres_in_one_direction_are_driven_apart_by_a_gate() -> None:
    rng, e = np.random.default_rng(1), np.array([0.0, 0.0, 1.0])
    halves = [cap(60, e, r, rng).x.numpy() for r in (0.3, 0.7)]
    sources = [on_sphere(np.vstack([x, x * [-1, -1, 1]])) for x in halves]
    path = it.interpolate(sources, np.eye(3)[:2])
    assert any(piece.phase == "balls" for piece in path.pieces)
    assert path.errors.max() <= 1e-3


def test_one_measure_and_one_point_are_fine() -> None:
    sources, targets = problem(0)
    assert it.interpolate(sources[:1], targets[:1]).errors.max() <= 1e-3
    point = on_sphere([[1.0, 0.0, 0.0]])
    assert it.interpolate([point], [[0.0, 1.0, 0.0]]).errors.max() <= 1e-3
    assert it.interpolate([point], [[-1.0, 0.0, 0.0]]).errors.max() <= 1e-3
    assert it.interpolate([point], [[1.0, 0.0, 0.0]]).errors.max() <= 1e-3


def test_a_path_without_pieces_is_a_field_that_rests() -> None:
    point = on_sphere([[1.0, 0.0, 0.0]])
    path = it.interpolate([point], [[1.0, 0.0, 0.0]])
    assert path.pieces == ()
    assert path.field(0.0, point)[0].abs().max() == 0


def test_the_same_seed_gives_the_same_path() -> None:
    sources, targets = problem(3)
    one, two = (it.interpolate(sources, targets, rng=5) for _ in range(2))
    np.testing.assert_array_equal(one.edges, two.edges)


# --- atoms and fresh samples ----------------------------------------------------------------------------


@pytest.mark.slow(but_for=["0"])
@pytest.mark.parametrize("seed", range(3))
def test_targets_of_three_atoms_are_reached_with_the_masses_that_points_allow(seed: int) -> None:
    sources, _ = problem(seed)
    targets = atoms(seed, 3, 3)
    path = it.interpolate(sources, targets)
    for k, (mu, nu) in enumerate(zip(sources, targets, strict=True)):
        near = cdist(path(mu).x.numpy(), nu.x.numpy())
        assert near.min(1).max() <= 1e-3
        masses = np.bincount(near.argmin(1), minlength=3) / 60
        np.testing.assert_allclose(path.masses[k], masses, atol=1e-12)
        assert np.abs(masses - nu.w.numpy()).max() <= 2 / 60  # two cuts and the rest
    assert path.returned.max() < 1e-6


@pytest.mark.slow
def test_points_and_measures_may_be_mixed_and_atoms_shared() -> None:
    sources, y = problem(0)
    shared = on_sphere(y[:2], [0.5, 0.5])
    path = it.interpolate(sources, [shared, y[0], on_sphere(y[1:])])
    assert path.errors.max() <= 1e-3
    assert path.mass_errors.max() <= 1 / 120 + 1e-9


def test_five_atoms_take_the_masses_of_seven_points_to_within_one() -> None:
    # Cuts that each round down would leave three points for the last atom.
    mu = on_sphere(problem(0, n=7)[0][0].x)
    nu = on_sphere(unit(np.random.default_rng(0).standard_normal((5, 3))))
    path = it.interpolate([mu], [nu])
    assert path.errors.max() <= 1e-3
    assert path.mass_errors.max() < 1 / 7


def test_atoms_at_one_place_are_one_atom() -> None:
    nu = on_sphere(AIMS[[0, 1, 0]], [0.2, 0.5, 0.3])
    path = it.interpolate(GOOD[:1], [nu])
    np.testing.assert_allclose(path.masses[0], [0.5, 0.5], atol=1e-12)
    assert path.mass_errors.max() < 1e-12


def fresh_check(n: int, seed: int) -> None:
    sources, targets = problem(seed, n=n)
    path = it.interpolate(sources, targets, margin=0.1)
    gates = [piece.margin for piece in path.pieces if piece.phase.startswith("gather")][:3]
    assert min(gates) >= 0.1 - 1e-9
    samples, _ = problem(seed, n=n, fresh=1000 + seed)
    assert max(away(path(mu), y) for mu, y in zip(samples, targets, strict=True)) <= 5e-2


WEIGHTS = np.array([0.5, 0.3, 0.2])


def path_to_atoms(n: int, seed: int) -> tuple[it.Path, list[of.Particles]]:
    sources, _ = problem(seed, n=n)
    targets = atoms(seed + 7, 3, 3, WEIGHTS)
    return it.interpolate(sources, targets, margin=0.1), targets


def masses(path: it.Path, samples: list[of.Particles], targets: list[of.Particles]) -> Array:
    """Of the points nearest to each atom, (3, 3), all of them within 0.05."""
    near = [cdist(path(mu).x.numpy(), nu.x.numpy()) for mu, nu in zip(samples, targets, strict=True)]
    assert max(d.min(1).max() for d in near) <= 5e-2
    return np.stack([np.bincount(d.argmin(1), minlength=3) / len(d) for d in near])


def mass_scores(n: int, seed: int) -> Array:
    """Errors of the masses of fresh samples, in standard errors, (3, 3)."""
    path, targets = path_to_atoms(n, seed)
    found = masses(path, problem(seed, n=n, fresh=1000 + seed)[0], targets)
    # Cuts are quantiles of one sample, masses those of another: two errors of the same size.
    scores: Array = (found - WEIGHTS) / np.sqrt(2 * WEIGHTS * (1 - WEIGHTS) / n)
    return scores


@pytest.mark.slow
def test_a_path_serves_a_fresh_sample_of_the_same_laws() -> None:
    fresh_check(5000, 0)


@pytest.mark.slow
def test_the_masses_of_a_fresh_sample_agree_within_three_standard_errors() -> None:
    """The law's with those asked for, as cuts are quantiles of a sample; a sample's with the law's."""
    n, many, seed = 5000, 50_000, 0
    path, targets = path_to_atoms(n, seed)
    law = masses(path, problem(seed, n=many, fresh=77)[0], targets)
    fresh = masses(path, problem(seed, n=n, fresh=1000 + seed)[0], targets)
    spread = np.sqrt(WEIGHTS * (1 - WEIGHTS) * (1 / n + 1 / many))
    assert np.abs((law - WEIGHTS) / spread).max() <= 3
    assert np.abs((fresh - law) / spread).max() <= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_paths_serve_fresh_samples_for_many_seeds(seed: int) -> None:
    fresh_check(5000, seed)


@pytest.mark.slow
def test_masses_of_fresh_samples_scatter_like_two_samples_and_no_more() -> None:
    scores = np.concatenate([mass_scores(5000, seed) for seed in range(8)])
    assert 0.7 <= math.sqrt(np.mean(scores**2)) <= 1.35  # 24 measures of two free masses each
    assert np.mean(np.abs(scores) > 3) <= 0.03  # one of these 72 is: seed 0, 3.6


@pytest.mark.slow
def test_a_path_serves_another_number_of_points() -> None:
    sources, targets = problem(0, n=2000)
    samples, _ = problem(0, n=500, fresh=7)
    path = it.interpolate(sources, targets)
    assert max(away(path(mu), y) for mu, y in zip(samples, targets, strict=True)) <= 5e-2


# --- what is refused ------------------------------------------------------------------------------------


GOOD, AIMS = problem(0, n=20)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"targets": 1.01 * AIMS}, r"\|targets\[0\]\| = 1.01"),
        ({"targets": AIMS[:2]}, r"len\(targets\) = 2: there are 3 sources"),
        ({"targets": [AIMS[0], AIMS[1], [1.0, math.nan, 0.0]]}, r"targets\[2\]\[1\] = nan"),
        ({"targets": [AIMS[0], AIMS[1], [1.0, 0.0, 0.0, 0.0]]}, r"targets\[2\]\.d = 4"),
        ({"targets": "north"}, "targets = 'north'"),
        ({"targets": None}, "targets = None"),
        ({"targets": np.array(1.0)}, r"targets = array\(1\.\)"),
        ({"targets": [[AIMS[0]], AIMS[1], AIMS[2]]}, r"targets\[0\]\.shape = \(1, 3\)"),
        ({"targets": [of.Particles(AIMS), AIMS[1], AIMS[2]]}, r"targets\[0\]\.space"),
        (
            {"targets": [on_sphere(unit(np.c_[np.arange(10), np.ones((10, 2))])), AIMS[1], AIMS[2]]},
            r"targets\[0\]\.n = 10",
        ),
        ({"sources": []}, "sources = "),
        ({"sources": GOOD[0]}, "sources = "),
        ({"sources": 3}, "sources = 3"),
        ({"sources": [mu.x for mu in GOOD]}, r"sources\[0\] = "),
        ({"sources": [of.Particles(mu.x) for mu in GOOD]}, r"sources\[0\]\.space = Euclidean"),
        ({"sources": [on_sphere(mu.x[None]) for mu in GOOD]}, r"sources\[0\]\.x\.shape"),
        ({"sources": [on_sphere([[1.0, 0.0]])] * 3}, r"sources\[0\]\.d = 2: on a circle"),
        ({"sources": [*GOOD[:2], on_sphere(np.eye(4))]}, r"dimensions of sources = \[3, 3, 4\]"),
        ({"sources": [GOOD[0], GOOD[0], GOOD[1]]}, r"sources\[0\], sources\[1\] = the same measure"),
        ({"tol": 0.0}, "tol = 0.0"),
        ({"tol": math.nan}, "tol = nan"),
        ({"tol": 1.0}, "tol = 1.0: at most 0.1"),
        ({"margin": -1.0}, "margin = -1.0"),
        ({"least_hole": 0.0}, "least_hole = 0.0"),
        ({"shortcuts": 1}, "shortcuts = 1"),
        ({"rng": None}, "rng = None"),
    ],
)
def test_wrong_input_is_named(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"sources": GOOD, "targets": AIMS, "tol": 1e-3} | change
    with pytest.raises(of.InputError, match=words):
        it.interpolate(given.pop("sources"), given.pop("targets"), **given)


def test_sources_all_over_the_sphere_have_no_hole() -> None:
    rng = np.random.default_rng(0)
    sources = [on_sphere(unit(rng.standard_normal((4000, 3)))) for _ in range(2)]
    with pytest.raises(of.InputError, match="hole"):
        it.interpolate(sources, np.eye(3)[:2])


def test_more_atoms_than_points_are_refused_and_a_double_point_cannot_be_cut() -> None:
    two = on_sphere([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    nu = on_sphere(np.eye(3))
    with pytest.raises(of.InputError, match="its source has 2 points"):
        it.interpolate([two], [nu])
    with pytest.raises(of.errors.ConvergenceError, match="too few distinct points") as caught:
        it.interpolate([two], [on_sphere(np.eye(3)[:2])])
    assert isinstance(caught.value.result, it.Path)
    assert caught.value.result.status == "uncertified"  # a part of a path, on which nothing was measured


def test_the_same_measure_twice_may_have_one_target() -> None:
    path = it.interpolate([GOOD[0], GOOD[0]], [AIMS[0], AIMS[0]])
    assert path.errors.shape == (2,)
    assert path.errors.max() <= 1e-3


def test_a_measure_is_the_same_with_double_points_or_points_without_mass() -> None:
    x = GOOD[0].x.numpy()
    double = on_sphere(np.vstack([x, x]))
    more = on_sphere(np.vstack([x, -x[:1]]), np.append(np.full(20, 1 / 20), 0.0))
    assert it.interpolate([GOOD[0], double, more], AIMS[[0, 0, 0]]).errors.max() <= 1e-3
    with pytest.raises(of.InputError, match="the same measure"):
        it.interpolate([GOOD[0], double], AIMS[:2])


@pytest.mark.parametrize(
    ("z", "R", "rest"),
    [
        ([0.0, 0.0, 2.0], 0.5, {}),
        ([[0.0, 0.0, 1.0]], 0.5, {}),
        ("z", 0.5, {}),
        ([0.0, 0.0, 1.0], 4.0, {}),
        ([0.0, 0.0, 1.0], 0.0, {}),
        ([0.0, 0.0, 1.0], 0.5, {"towards": [1.0, 0.0]}),
        ([0.0, 0.0, 1.0], 0.5, {"time": -1.0}),
    ],
)
def test_a_ball_that_is_none_is_refused(z: Any, R: float, rest: dict[str, Any]) -> None:
    with pytest.raises(of.InputError):
        it.ball(z, R, **rest)


def test_a_path_refuses_what_it_was_not_built_for() -> None:
    path = it.interpolate(GOOD[:1], AIMS[:1])
    for bad in (on_sphere(np.eye(4)), of.Particles(np.eye(3)), np.eye(3)):
        with pytest.raises(of.InputError):
            path(bad)  # type: ignore[arg-type]
    with pytest.raises(of.InputError, match="frames"):
        path.trajectory(GOOD[0], 0)


def test_single_precision_and_graphs_are_taken_as_plain_numbers() -> None:
    x = GOOD[0].x.float().requires_grad_()
    path = it.interpolate([on_sphere(x), *GOOD[1:]], torch.from_numpy(AIMS).requires_grad_())
    assert path.errors.max() <= 1e-3
    assert not path(on_sphere(x)).x.requires_grad
