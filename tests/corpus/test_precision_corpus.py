"""Bad input and hard input that broke other libraries, by number: 18-20 and 25-31, precision and scale.

Every distance at once, from a table. What the others did is said where it explains a test; none depends on
their staying wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.base import kernels
from otflow.transport.entropic import scaling
from otflow.transport.entropic import sinkhorn as entropic
from tests.corpus.refusals import refuses
from tests.corpus.transports import (
    CLOUDS,
    ENGINES,
    GAUSSIANS,
    WITHOUT_GRADIENT,
    Watch,
    labelled,
    normal,
)

# --- 18-20: single precision ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLOUDS)
def test_18_clouds_far_from_the_origin_keep_their_digits_in_single_precision(name: str) -> None:
    # ot.dist: a largest entry of 0.5, where the truth is 4e-5.
    x, y = (1000 + 1e-3 * normal(2, 40, 3)).astype(np.float32)
    single = CLOUDS[name].of(labelled(x), labelled(y), 1e-3)
    double = CLOUDS[name].of(*(labelled(z.astype(float) - 1000) for z in (x, y)), 1e-3)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(double.item(), rel=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e3, 1e8])
def test_19_distances_between_all_points_come_from_differences(offset: float) -> None:
    x = torch.from_numpy(offset + normal(60, 3))  # more than 25 points: cdist would take products
    truth = (x[:, None] - x[None]).square().sum(-1).sqrt()
    for got in (
        of.Euclidean().pairwise(x, x),
        -of.transport.PowerCost(1).scores(x, x, of.Euclidean(), 1.0),
        (-of.transport.PowerCost(2).scores(x, x, of.Euclidean(), 1.0)).sqrt(),
    ):
        assert float((got - truth).abs().max()) < 1e-14
        assert (got.diagonal() == 0).all()


@pytest.mark.parametrize("regime", ["differences", "scalar products"])
@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_19_entropic_transport_far_from_the_origin_keeps_its_digits(
    offset: float, regime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entropic, "DIFFERENCES", {"differences": 2**22, "scalar products": 0}[regime])
    x, y = np.round(normal(2, 30, 2) * 2**20) / 2**20  # so that shifting does not round
    near, far = (
        of.sinkhorn(of.Particles(x + s), of.Particles(y + s), of.Sinkhorn(0.2, tol=1e-11))
        for s in (0.0, offset)
    )
    assert far.regularised_cost.item() == pytest.approx(near.regularised_cost.item(), rel=1e-9)
    assert float((far.f - near.f).abs().max()) < 1e-8


@pytest.mark.parametrize("name", [name for name in CLOUDS if name not in WITHOUT_GRADIENT])
@pytest.mark.parametrize("same", [20, 40])
def test_19_gradients_are_finite_where_points_coincide(same: int, name: str) -> None:
    x = torch.from_numpy(normal(40, 2)).requires_grad_()
    y = x.detach() + (torch.arange(40)[:, None] >= same) * torch.from_numpy(normal(40, 2, seed=1))
    (grad,) = torch.autograd.grad(CLOUDS[name].of(labelled(x), labelled(y), 1.0), x)
    assert bool(grad.isfinite().all())
    if name != "regularised cost":  # which is not smallest at mu = nu
        assert bool((grad.abs().amax() > 1e-4) == (same < 40))


@pytest.fixture
def coarse_products() -> Any:
    """Everything that torch can be told about products in single precision being unimportant."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


def single_pair(kind: str) -> tuple[Any, Any, list[Tensor]]:
    """Two measures in single precision, and what to differentiate in."""
    pieces = [torch.from_numpy(normal(2, k, 3, seed=k).astype(np.float32)).requires_grad_() for k in (12, 3)]
    if kind == "clouds":
        return *(labelled(z) for z in pieces[0]), pieces[:1]
    return *(of.Gaussian(torch.zeros(3), root=z) for z in pieces[1]), pieces[1:]


EVERYTHING = [("clouds", name) for name in CLOUDS] + [("gaussians", name) for name in GAUSSIANS]


@pytest.mark.parametrize(("kind", "name"), EVERYTHING)
@pytest.mark.usefixtures("coarse_products")
def test_20_no_product_runs_in_single_precision_whatever_torch_is_told(kind: str, name: str) -> None:
    mu, nu, leaves = single_pair(kind)
    table = CLOUDS if kind == "clouds" else GAUSSIANS
    if name == "bures":  # covariances are the user's product
        mu, nu = (of.Gaussian(g.mean, root=torch.diag(g.root.diagonal())) for g in (mu, nu))
    with Watch() as watch:
        value = table[name].of(mu, nu, 1.0)
        if name not in WITHOUT_GRADIENT:
            torch.autograd.grad(value.sum(), leaves)
    assert watch.single - ({"mm.default"} if name == "bures" else set()) == set()


@pytest.mark.parametrize("name", CLOUDS)
def test_20_settings_for_products_change_no_digit(name: str) -> None:
    mu, nu, _ = single_pair("clouds")
    before = torch.get_float32_matmul_precision()
    values = []
    for precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
        values.append(CLOUDS[name].of(mu, nu, 1.0).item())
    torch.set_float32_matmul_precision(before)
    assert len(set(values)) == 1


def test_20_the_gradient_of_a_barycentre_exists_in_single_precision() -> None:
    roots = torch.from_numpy(normal(4, 3, 3).astype(np.float32)).requires_grad_()
    spread = (
        of.transport.bures_barycentre(of.Gaussian(torch.zeros(4, 3), root=roots)).measure.root.square().sum()
    )
    (grad,) = torch.autograd.grad(spread, roots)
    assert bool(grad.isfinite().all())


# --- 25-29: powers, barycentres, memory, scales --------------------------------------------------------


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("offset", [0.0, 0.1, 1e3])
def test_25_the_cost_of_staying_is_zero_for_every_power(offset: float, p: float) -> None:
    x = torch.from_numpy(normal(40, 3) + offset)  # elsewhere: (-1e-16)^p on the diagonal
    c = -of.transport.PowerCost(p).scores(x, x, of.Euclidean(), 1.0)
    assert (c.diagonal() == 0).all()
    assert bool((c >= 0).all())
    mu = of.Particles(x.clone().requires_grad_())
    value = of.sinkhorn_divergence(mu, of.Particles(x), 1.0, cost=of.transport.PowerCost(p))
    (grad,) = torch.autograd.grad(value, mu.x)
    assert value.item() == pytest.approx(0.0, abs=1e-12)
    assert float(grad.abs().max()) < 1e-7


MEMBERS = {
    "axes": [np.diag([1.0, 0.0, 0.0]), np.diag([0.0, 1.0, 0.0]), np.eye(3)],
    "nothing": [np.zeros((3, 3)), np.eye(3), np.diag([4.0, 0.0, 0.0])],
    "planes": [np.outer([1, 1, 0], [1, 1, 0.0]), np.diag([1.0, 2.0, 3.0]), np.outer([0, 1, 2], [0, 1.0, 2])],
    "tiny": [1e-12 * np.eye(3), np.diag([1.0, 1e-12, 0.0]), np.eye(3) + 0.5],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MEMBERS)
def test_26_a_barycentre_of_covariances_with_zeros_is_stationary(name: str, dtype: Any) -> None:
    covs = np.stack(MEMBERS[name]).astype(dtype)
    found = of.transport.bures_barycentre(of.Gaussian(np.zeros((len(covs), 3), dtype), cov=covs))
    assert found.status == "ok"
    assert found.residual.item() < 1e-9
    S = found.measure.cov.double().numpy()  # S = mean of (S^1/2 S_k S^1/2)^1/2, by numpy alone
    root = symmetric_root(S)
    mean = np.mean([symmetric_root(root @ c.astype(float) @ root) for c in covs], 0)
    assert float(np.abs(mean - S).max()) < (1e-6 if dtype == np.float32 else 1e-7) * np.abs(S).max()


def symmetric_root(S: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T


COSTS: dict[str, Any] = {
    "squared distance": of.transport.PowerCost(2),
    "distance": of.transport.PowerCost(1),
    "cube": of.transport.PowerCost(3),
    "bilinear": of.transport.BilinearCost(-np.eye(8)),
    "function": lambda x, y: (x - y).abs().sum(-1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", COSTS)
def test_27_every_cost_is_streamed_also_for_its_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Elsewhere: costs other than the squared distance ignored the size of a batch.
    n, tile = 600, 2**15
    for module, limit, value in (
        (scaling, "ABSORB", 0),
        (entropic, "DIFFERENCES", 0),
        (kernels, "DENSE", 0),
        (kernels, "TILE", tile),
    ):
        monkeypatch.setattr(module, limit, value)
    x, y = (torch.from_numpy(z) for z in normal(2, n, 8))
    with Watch() as watch:
        leaf = x.clone().requires_grad_()
        plan = of.sinkhorn(
            of.Particles(leaf),
            of.Particles(y),
            of.Sinkhorn(20.0, max_iter=1),
            cost=COSTS[name],
            on_failure="return",
        )
        torch.autograd.grad(plan.regularised_cost, leaf)
        _ = plan.cost, plan.barycentric()
    assert watch.total > n * n  # it has looked
    assert watch.largest <= max(4 * tile, 256 * n) < n * n / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COSTS if name != "cube"])
def test_27_memory_stays_below_a_matrix_for_every_cost(name: str, without_assertions: dict[str, Any]) -> None:
    n, d, peak = (without_assertions[name][key] for key in ("n", "d", "peak"))
    assert peak < 1.5 * 8 * n**2 < 8 * n**2 * d / 10


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("name", [name for name in CLOUDS if name != "regularised cost"])
def test_28_clouds_whose_points_all_coincide_are_at_distance_zero(name: str, offset: float) -> None:
    # GeomLoss, legacy: "Maximum allowed size exceeded".
    x = torch.full((9, 2), offset, dtype=torch.float64, requires_grad=True)
    value = CLOUDS[name].of(labelled(x), labelled(x.detach().clone()), 1.0)
    assert value.item() == pytest.approx(0.0, abs=1e-15)
    if name not in WITHOUT_GRADIENT:
        (grad,) = torch.autograd.grad(value, x)
        assert float(grad.abs().max()) < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
def test_28_all_engines_know_what_to_do_with_a_cloud_that_is_a_point(engine: str) -> None:
    mu, nu = of.Particles(np.ones((5, 2))), of.Particles(np.ones((3, 2)))
    plan = of.sinkhorn(mu, nu, of.Sinkhorn(0.1, engine=ENGINES[engine]))
    assert plan.cost.item() == 0.0
    assert float((plan.plan - 1 / 15).abs().max()) < 1e-15


def scales() -> list[Any]:
    cases = [(np.float64, s) for s in (1e-150, 1e-100, 1e-25, 1e20, 1e100, 1e150)]
    cases += [(np.float32, s) for s in (1e-25, 1e-15, 1e15, 1e20)]
    return [
        pytest.param(*one, dtype, s)
        for one in EVERYTHING
        for dtype, s in cases
        if one[1] != "bures" or dtype == np.float64 or 1e-20 < s < 1e19  # else there are no covariances
    ]


@pytest.mark.parametrize(("kind", "name", "dtype", "s"), scales())
def test_29_scaling_everything_scales_the_answer(kind: str, name: str, dtype: Any, s: float) -> None:
    # GeomLoss: crashes at 1e-25 and 1e20 in single precision.
    f, degree = (CLOUDS if kind == "clouds" else GAUSSIANS)[name]
    x, y = normal(2, 12, 2).astype(dtype) if kind == "clouds" else normal(2, 3, 3).astype(dtype)
    if kind == "clouds":
        pairs = [[labelled(k * z) for z in (x, y)] for k in (dtype(1), dtype(s))]
    else:
        pairs = [[of.Gaussian(np.zeros(3, dtype), root=k * z) for z in (x, y)] for k in (dtype(1), dtype(s))]
    one = f(*pairs[0], 1.0).double()
    with np.errstate(over="ignore", under="ignore"):
        fits = np.finfo(dtype).tiny < one.abs().max().item() * s**degree < np.finfo(dtype).max
    try:
        many = f(*pairs[1], s).double()
    except of.OtflowError:
        assert not fits
    else:
        tol = 1e-9 if dtype == np.float64 else 1e-5
        assert float((many / float(dtype(s)) ** degree - one).abs().max()) < tol * float(one.abs().max())


# --- 30-32: input, and a flow --------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_30_the_entry_that_is_not_finite_is_named(value: str) -> None:
    x, w = normal(2, 5, 3), np.full((2, 5), 0.2)
    for wrong in (x.copy(), torch.from_numpy(x.copy()), x.astype(np.float32)):
        wrong[1, 3, 2] = float(value)
        refuses(lambda wrong=wrong: of.Particles(wrong), f"x[1, 3, 2] = {value}", "finite")
    w[1, 4] = float(value)
    refuses(lambda: of.Particles(x, w), f"w[1, 4] = {value}", "finite")
    refuses(lambda: of.Particles(x, label=w), f"label[1, 4] = {value}", "finite")
    refuses(
        lambda: of.Gaussian(np.zeros(2), root=[[1.0, 0.0], [0.0, float(value)]]),
        f"root[1, 1] = {value}",
        "finite",
    )
    refuses(lambda: of.transport.BilinearCost([[float(value)]]), f"A[0, 0] = {value}", "finite")


def test_31_masses_other_than_one_are_refused_so_that_no_two_measures_differ_in_mass() -> None:
    x = normal(5, 2)  # GeomLoss, legacy: 7.38 for masses 5 and 1
    refuses(lambda: of.Particles(x, np.ones(5)), "sum(w) = 5.0", "w / w.sum()")
    refuses(lambda: of.Particles(x, np.full(5, 0.2002)), "sum(w) = 1.001", "w / w.sum()")
    refuses(lambda: of.Particles(x[None], np.full((1, 5), 0.1)), "sum(w) = 0.5", "w / w.sum()")
    refuses(
        lambda: of.Grid(np.full(4, 5.0), [[0.125, 0.375, 0.625, 0.875]]),
        "sum(density * cell) = 5.0",
        "density.sum()",
    )
    mus = of.Gaussian(np.zeros((2, 1)), root=np.ones((2, 1, 1)))
    refuses(
        lambda: of.transport.bures_barycentre(mus, [1.0, 1.0]),
        "sum(weights) = 2.0",
        "weights / weights.sum()",
    )


def test_31_a_mass_of_one_up_to_a_millionth_is_one() -> None:
    x, y = normal(2, 5, 2)
    near = of.Particles(x, np.full(5, 0.2) * (1 + 9e-7))
    for f, _ in CLOUDS.values():
        assert f(labelled(x, near.w), labelled(y), 1.0).item() == pytest.approx(
            f(labelled(x), labelled(y), 1.0).item(), rel=1e-12
        )
