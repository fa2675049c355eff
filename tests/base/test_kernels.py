"""The sums over pairs: streamed and dense agree in value, gradient and forward mode, and stay small."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from otflow.base import kernels
from tests.regimes import REGIMES, regime

Inputs = dict[str, Any]


def inputs(
    seed: int = 0,
    n: int = 11,
    m: int = 9,
    c: int = 3,
    e: int = 2,
    *,
    bias: bool = True,
    mask: bool = False,
    batch: tuple[int, ...] = (),
) -> Inputs:
    """Random arguments of `attend`; a bias has a -infinity, a mask has ties and a query that sees nothing."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((*batch, *shape)))

    out: Inputs = {"q": normal(n, c), "k": normal(m, c), "v": normal(m, e), "b": None, "mask": None}
    if bias:
        out["b"] = normal(m)
        out["b"][..., m // 2] = -math.inf
    if mask:
        labels = [torch.from_numpy(rng.integers(0, 5, (*batch, size)).astype(float)) for size in (n, m)]
        labels[0][..., n // 2] = -1.0
        out["mask"] = tuple(labels)
    return out


CASES: dict[str, Callable[[], Inputs]] = {
    "plain": lambda: inputs(1, bias=False),
    "bias": lambda: inputs(2),
    "mask": lambda: inputs(3, bias=False, mask=True),
    "bias_and_mask": lambda: inputs(4, mask=True),
    "one_query": lambda: inputs(5, n=1),
    "one_key": lambda: inputs(6, m=1, bias=False),
    "one_column": lambda: inputs(7, c=1, e=1),
    "wide_values": lambda: inputs(8, c=2, e=9),
    "wide_keys": lambda: inputs(9, c=9, e=1),
    "batch": lambda: inputs(10, batch=(2, 3)),
    "batch_and_mask": lambda: inputs(11, batch=(2,), mask=True),
    "large_scores": lambda: {**inputs(12), "q": 300 * inputs(12)["q"]},
}


def definition(q: Tensor, k: Tensor, v: Tensor, b: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """out and lse for one problem, row by row over the keys that are seen."""
    outs, lses = [], []
    for i in range(len(q)):
        s = (k @ q[i]).numpy() + (0 if b is None else b.numpy())
        keep = np.isfinite(s) if mask is None else np.isfinite(s) & (mask[1] <= mask[0][i]).numpy()
        top = s[keep].max(initial=-np.inf)
        p = np.exp(s[keep] - top)
        lses.append(np.log(p.sum()) + top if keep.any() else -np.inf)
        outs.append(p @ v.numpy()[keep] / p.sum() if keep.any() else np.zeros(v.shape[-1]))
    return np.stack(outs), np.array(lses)


def close(a: Tensor, b: Tensor | np.ndarray, tol: float = 1e-12) -> None:
    """Equal to tol relative to the largest finite entry, infinities in the same places, no NaN."""
    b = torch.as_tensor(b)
    assert a.shape == b.shape
    assert not a.isnan().any()
    assert torch.equal(a.isinf(), b.isinf())
    finite = b.isfinite()
    scale = max(1.0, float(b[finite].abs().max())) if finite.any() else 1.0
    assert float((a - b)[finite].abs().max() if finite.any() else 0.0) <= tol * scale


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("case", [c for c in CASES if "batch" not in c])
def test_attend_is_its_definition(case: str, how: str) -> None:
    args = CASES[case]()
    with regime(how):
        out, lse = kernels.attend(**args)
    expected = definition(**args)
    close(out, expected[0], 1e-12)
    close(lse, expected[1], 1e-12)


def values(f: Callable[..., Any], args: Inputs, how: str) -> tuple[Tensor, ...]:
    with regime(how):
        out = f(**args)
    return out if isinstance(out, tuple) else (out,)


def summed(**args: Any) -> Tensor:
    """`sigmoid_sum` with the arguments of `attend`, which has a bias in addition."""
    return kernels.sigmoid_sum(args["q"], args["k"], args["v"], args["mask"])


PRIMITIVES: dict[str, Callable[..., Any]] = {"attend": kernels.attend, "sigmoid_sum": summed}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_streamed_and_dense_values_agree(primitive: str, case: str) -> None:
    f, args = PRIMITIVES[primitive], CASES[case]()
    for a, b in zip(values(f, args, "streaming"), values(f, args, "dense"), strict=True):
        close(a, b)


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("case", ["plain", "mask"])
def test_sigmoid_sum_is_its_definition(case: str, how: str) -> None:
    args = CASES[case]()
    s = (args["q"] @ args["k"].mT).numpy()
    seen = 1.0 if args["mask"] is None else (args["mask"][1] <= args["mask"][0][:, None]).numpy()
    (out,) = values(summed, args, how)
    close(out, (seen / (1 + np.exp(-s))) @ args["v"].numpy())


def tensors(args: Inputs) -> list[str]:
    return [name for name in ("q", "k", "v", "b") if args[name] is not None]


def functional(parts: tuple[Tensor, ...]) -> Tensor:
    """A number made of everything finite, with different weights."""
    total = torch.zeros((), dtype=parts[0].dtype)
    for part in parts:
        c = torch.cos(torch.arange(part.numel(), dtype=part.dtype)).reshape(part.shape)
        total = total + (c * torch.where(part.isfinite(), part, 0.0)).sum()
    return total


def gradients(f: Callable[..., Any], args: Inputs, how: str) -> list[Tensor]:
    names = tensors(args)
    leaves = {name: args[name].clone().requires_grad_() for name in names}
    with regime(how):
        out = f(**{**args, **leaves})
        out = out if isinstance(out, tuple) else (out,)
        grads = torch.autograd.grad(functional(out), list(leaves.values()), allow_unused=True)
    return [
        torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves.values(), strict=True)
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_streamed_and_dense_gradients_agree_and_are_finite(primitive: str, case: str) -> None:
    f, args = PRIMITIVES[primitive], CASES[case]()
    for a, b in zip(gradients(f, args, "streaming"), gradients(f, args, "dense"), strict=True):
        close(a, b)
        assert a.isfinite().all()


def directions(args: Inputs) -> dict[str, Tensor]:
    rng = np.random.default_rng(99)
    return {name: torch.from_numpy(rng.standard_normal(args[name].shape)) for name in tensors(args)}


def forward_mode(f: Callable[..., Any], args: Inputs, how: str, along: dict[str, Tensor]) -> list[Tensor]:
    with regime(how), forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(args[name], u) for name, u in along.items()}
        out = f(**{**args, **duals})
        parts = out if isinstance(out, tuple) else (out,)
        pairs = [forward_ad.unpack_dual(part) for part in parts]
        return [torch.zeros_like(p.primal) if p.tangent is None else p.tangent.clone() for p in pairs]


@pytest.mark.parametrize("moving", ["q", "k", "v", "b", "all"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_streamed_and_dense_forward_derivatives_agree_and_are_finite(
    primitive: str, case: str, moving: str
) -> None:
    f, args = PRIMITIVES[primitive], CASES[case]()
    along = {name: u for name, u in directions(args).items() if moving in (name, "all")}
    streamed, dense = (forward_mode(f, args, how, along) for how in REGIMES)
    for a, b in zip(streamed, dense, strict=True):
        close(a, b)
        assert a.isfinite().all()


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_forward_mode_is_the_slope_of_a_difference_quotient(primitive: str, how: str) -> None:
    f, args, h = PRIMITIVES[primitive], CASES["bias_and_mask"](), 1e-5
    along = directions(args)

    def moved(h: float) -> tuple[Tensor, ...]:
        return values(f, {**args, **{name: args[name] + h * u for name, u in along.items()}}, how)

    for slope, ahead, behind in zip(forward_mode(f, args, how, along), moved(h), moved(-h), strict=True):
        quotient = (ahead - behind) / (2 * h)
        quotient = torch.where(ahead.isfinite(), quotient, 0.0)  # rows that see nothing do not move
        close(slope, quotient, 1e-8)


@pytest.mark.parametrize("how", REGIMES)
def test_a_query_that_sees_nothing_gets_zero_and_contributes_no_gradient(how: str) -> None:
    args = CASES["bias_and_mask"]()
    lonely = args["mask"][0].argmin()
    out, lse = values(kernels.attend, args, how)
    assert (out[lonely] == 0).all()
    assert lse[lonely] == -math.inf
    assert (gradients(kernels.attend, args, how)[0][lonely] == 0).all()


@pytest.mark.parametrize("how", REGIMES)
def test_when_no_key_has_mass_everything_is_zero(how: str) -> None:
    args = {**inputs(13), "b": torch.full((9,), -math.inf, dtype=torch.float64)}
    out, lse = values(kernels.attend, args, how)
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    assert all((g == 0).all() for g in gradients(kernels.attend, args, how))


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e150])
@pytest.mark.parametrize("how", REGIMES)
def test_lse_does_not_overflow(how: str, size: float) -> None:
    q, k = (torch.tensor(a, dtype=torch.float64) for a in ([[size], [-size]], [[1.0], [2.0]]))
    out, lse = values(kernels.attend, {"q": q, "k": k, "v": k}, how)
    assert lse.tolist() == pytest.approx([2 * size, -size], rel=1e-15)
    assert out.flatten().tolist() == pytest.approx([2.0, 1.0], rel=1e-15)


@pytest.mark.parametrize("shapes", [((4,), ()), ((), (4,)), ((2, 1), (3,)), ((1, 3), (2, 1))])
def test_batch_axes_broadcast_like_any_other(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = inputs(14, batch=shapes[0], mask=True), inputs(15, batch=shapes[1])
    args = {"q": a["q"], "k": b["k"], "v": b["v"], "b": b["b"], "mask": a["mask"]}
    batch = torch.broadcast_shapes(*shapes)
    streamed, dense = (values(kernels.attend, args, how) for how in REGIMES)
    for x, y in zip(streamed, dense, strict=True):
        assert x.shape[: len(batch)] == batch
        close(x, y)
    for x, y in zip(*(gradients(kernels.attend, args, how) for how in REGIMES), strict=True):
        close(x, y)
    index = tuple(0 for _ in batch)
    own = {
        name: None if args[name] is None else args[name][(0,) * len(shapes[i])]
        for i, name in ((0, "q"), (1, "k"), (1, "v"), (1, "b"))
    }
    mask = tuple(label[(0,) * len(shapes[0])] for label in args["mask"])
    close(dense[0][index], definition(**own, mask=mask)[0])


@pytest.mark.parametrize("case", ["bias", "bias_and_mask", "wide_values", "batch_and_mask"])
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_single_precision_is_as_good_as_single_precision_can_be(primitive: str, case: str) -> None:
    args = CASES[case]()
    single = {
        name: tuple(p.float() for p in a) if name == "mask" and a else None if a is None else a.float()
        for name, a in args.items()
    }
    double = {
        name: tuple(p.double() for p in a) if name == "mask" and a else None if a is None else a.double()
        for name, a in single.items()
    }
    f = PRIMITIVES[primitive]
    for how in REGIMES:
        for a, b in zip(values(f, single, how), values(f, double, "dense"), strict=True):
            assert a.dtype == torch.float32
            close(a.double(), b, 2e-6)
        for a, b in zip(gradients(f, single, how), gradients(f, double, "dense"), strict=True):
            close(a.double(), b, 1e-5)


LABELS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "in_order": lambda rng, n: np.arange(n) / n,
    "shuffled": lambda rng, n: rng.permutation(n) / n,
    "nearly_all_equal": lambda rng, n: np.where(rng.random(n) < 0.97, 0.5, rng.random(n)),
    "two_values": lambda rng, n: (rng.random(n) < 0.9).astype(float),
    "all_equal": lambda rng, n: np.zeros(n),
    "backwards": lambda rng, n: -np.arange(n) / 3,
}


@pytest.mark.parametrize("weights", ["uniform", "with_zeros"])
@pytest.mark.parametrize("labels", LABELS)
def test_blocks_of_causal_attention_do_not_depend_on_how_labels_are_spread(labels: str, weights: str) -> None:
    rng, n = np.random.default_rng(16), 1100  # three blocks of queries
    q, k, v = (torch.from_numpy(rng.standard_normal((n, s))) for s in (3, 3, 2))
    b = None
    if weights == "with_zeros":
        b = torch.zeros(n, dtype=torch.float64).masked_fill(torch.from_numpy(rng.random(n) < 0.5), -math.inf)
    label = torch.from_numpy(LABELS[labels](rng, n))
    out, lse = kernels.attend(q, k, v, b, (label, label))
    with regime("dense"):
        expected = kernels.attend(q, k, v, b, (label, label))
    close(out, expected[0])
    close(lse, expected[1])


@pytest.mark.thorough
def test_members_of_a_batch_may_have_labels_of_very_different_spread() -> None:
    rng, n = np.random.default_rng(17), 700
    q, k, v = (torch.from_numpy(rng.standard_normal((len(LABELS), n, s))) for s in (2, 2, 3))
    label = torch.from_numpy(np.stack([make(rng, n) for make in LABELS.values()]))
    args = {"q": q, "k": k, "v": v, "mask": (label, label - 0.1)}
    out, lse = kernels.attend(**args)
    expected = values(kernels.attend, args, "dense")
    close(out, expected[0])
    close(lse, expected[1])
    for a, b in zip(
        *(gradients(kernels.attend, {"b": None, **args}, how) for how in ("dense", "streaming")), strict=True
    ):
        close(a, b)


def test_the_path_for_other_devices_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_stream", kernels._tiled)  # what runs where there is no fused attention
    for case in CASES.values():
        args = case()
        for a, b in zip(*(values(kernels.attend, args, how) for how in REGIMES), strict=True):
            close(a, b)
        for a, b in zip(*(gradients(kernels.attend, args, how) for how in REGIMES), strict=True):
            close(a, b)


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_lse_tangent_is_the_forward_derivative_of_lse(batch: tuple[int, ...], how: str) -> None:
    args = inputs(18, batch=batch)
    along = directions(args)
    with regime(how):
        slope = kernels.lse_tangent(args["q"], args["k"], args["b"], along["q"], along["k"], along["b"])
    moving = {name: u for name, u in along.items() if name != "v"}
    close(slope, forward_mode(kernels.attend, args, "dense", moving)[1])


def test_lse_tangent_broadcasts_directions_over_the_batch() -> None:
    args, one = inputs(19, batch=(2,)), inputs(20)
    slope = kernels.lse_tangent(args["q"], one["k"], one["b"], one["q"], one["k"], one["v"][:, 0])
    for i in range(2):
        close(
            slope[i],
            kernels.lse_tangent(args["q"][i], one["k"], one["b"], one["q"], one["k"], one["v"][:, 0]),
        )


def test_dense_attention_has_second_derivatives() -> None:
    args = inputs(21, n=3, m=4, bias=False)
    leaves = [args[name].requires_grad_() for name in ("q", "k", "v")]
    assert torch.autograd.gradgradcheck(lambda *a: kernels.attend(*a), leaves)


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_second_derivatives_of_streamed_sums_are_right_or_refused(primitive: str, linear: bool) -> None:
    """An energy whose flow is differentiated asks for them: silence would be a wrong gradient."""
    f = PRIMITIVES[primitive]

    def second(how: str) -> Tensor:
        args = inputs(22, bias=False)
        q = args["q"].requires_grad_()
        with regime(how):
            out = f(**args)
            out = out[0] if isinstance(out, tuple) else out
            (slope,) = torch.autograd.grad(out.sum() if linear else out.square().sum(), q, create_graph=True)
            (grad,) = torch.autograd.grad((slope + q).square().sum(), q)
        return grad

    try:
        streamed = second("streaming")
    except (RuntimeError, NotImplementedError):
        return
    close(streamed, second("dense"))


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 200), width=st.integers(1, 500), tile=st.integers(1, 2000))
def test_tiles_cover_every_row_once_and_keep_to_their_size(n: int, width: int, tile: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "TILE", tile)
        tiles = list(kernels.row_tiles(n, width))
    assert [i for rows in tiles for i in range(rows.start, rows.stop)] == list(range(n))
    assert max(rows.stop - rows.start for rows in tiles) <= max(1, tile // width)


# --- memory -------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
LARGE = """
import resource, torch, otflow as of
torch.set_num_threads(2)
make = torch.Generator().manual_seed(0)
normal = lambda *shape: torch.randn(*shape, generator=make, dtype=torch.float64)
n, d = 50_000, 16
mu, (Q, K, V) = of.Particles(normal(n, d)), normal(3, d, d) / d
{body}
assert v.shape == (n, d) and bool(v.isfinite().all())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
SOFTMAX = "v = of.SoftmaxAttention(Q, K, V)(0.0, mu)[0]"
SINKHORN = """
v, carry = of.SinkhornAttention(Q, K, V, of.Sinkhorn(1.0, max_iter={sweeps})).evaluate(torch.tensor(0.0), mu)
v = v[0]
assert 0 < carry.residual < 2
"""


def peak_gigabytes(body: str) -> float:
    """Peak resident memory of a fresh process that runs ``body`` on 50,000 tokens."""
    code = LARGE.format(body=textwrap.dedent(body))
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return int(run.stdout.split()[-1]) * unit / 1e9


@pytest.mark.slow
def test_softmax_of_50000_tokens_never_holds_the_matrix_of_scores() -> None:
    assert peak_gigabytes(SOFTMAX) < 1.5  # that matrix alone takes 20 GB


@pytest.mark.slow
@pytest.mark.parametrize("sweeps", [1, 10])
def test_sinkhorn_of_50000_tokens_never_holds_the_matrix_of_scores(sweeps: int) -> None:
    assert peak_gigabytes(SINKHORN.format(sweeps=sweeps)) < 1.5
