"""Attention of torch as a field with the same parameters, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import otflow as of
from tests.samples import normal

D, HEADS = 6, 3


def attention(*, batch_first: bool = True, **options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    options = {"bias": False, "dtype": torch.float64} | options
    return nn.MultiheadAttention(D, HEADS, batch_first=batch_first, **options)


def through(module: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """module(x, x, x) for x of shape (B, n, d)."""
    x = x if module.batch_first else x.transpose(0, 1)
    out = module(x, x, x, need_weights=False)[0]
    return out if module.batch_first else out.transpose(0, 1)


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_field_is_the_module(batch_first: bool) -> None:
    module, x = attention(batch_first=batch_first), torch.from_numpy(3 * normal(4, 7, D))
    v = of.nn.from_torch(module)(0.0, of.Particles(x))[0]
    torch.testing.assert_close(v, through(module, x), rtol=0, atol=1e-12)


def test_gradients_in_tokens_and_parameters_are_those_of_the_module() -> None:
    module, c = attention(), torch.from_numpy(normal(2, 7, D, seed=1))
    grads = []
    for f in (lambda x: of.nn.from_torch(module)(0.0, of.Particles(x))[0], lambda x: through(module, x)):
        x = torch.from_numpy(normal(2, 7, D)).requires_grad_()
        inputs = [x, module.in_proj_weight, module.out_proj.weight]
        grads.append(torch.autograd.grad((c * f(x)).sum(), inputs))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_training_the_field_trains_the_module() -> None:
    module, x = attention(), torch.from_numpy(normal(2, 7, D))
    field = of.nn.from_torch(module)
    assert {id(p) for p in field.parameters()} == {id(p) for p in module.parameters()}
    optimiser = torch.optim.Adam(field.parameters(), lr=0.1)
    before = through(module, x).detach()
    field(0.0, of.Particles(x))[0].square().sum().backward()
    optimiser.step()
    assert not torch.allclose(through(module, x), before)
    torch.testing.assert_close(field(0.0, of.Particles(x))[0], through(module, x), rtol=0, atol=1e-12)


def test_there_and_back() -> None:
    module, x = attention(), torch.from_numpy(normal(2, 7, D))
    back = of.nn.to_torch(of.nn.from_torch(module))
    torch.testing.assert_close(through(back, x), through(module, x), rtol=0, atol=1e-12)
    assert back.in_proj_weight is not module.in_proj_weight
    torch.testing.assert_close(back.in_proj_weight, module.in_proj_weight, rtol=1e-15, atol=0)


def test_a_field_becomes_a_module() -> None:
    k, x = D // HEADS, torch.from_numpy(normal(2, 7, D))
    heads = [of.SoftmaxAttention(*normal(3, k, D, seed=h)) for h in range(HEADS)]
    field = of.MultiHead(heads, mix=list(normal(HEADS, D, k)))
    torch.testing.assert_close(
        through(of.nn.to_torch(field), x), field(0.0, of.Particles(x))[0], rtol=0, atol=1e-12
    )


def test_one_head_on_two_tokens_by_hand() -> None:
    """softmax of (q.k) / sqrt(k), written out."""
    module = nn.MultiheadAttention(2, 1, bias=False, batch_first=True, dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([eye, eye, eye]))
        module.out_proj.weight.copy_(2 * eye)
    v = of.nn.from_torch(module)(0.0, of.Particles(eye))[0]
    p = 1 / (1 + math.exp(-1 / math.sqrt(2)))
    np.testing.assert_allclose(v.detach(), [[2 * p, 2 * (1 - p)], [2 * (1 - p), 2 * p]], rtol=1e-14)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bias": True}, r"module\.bias.*bias=False"),
        ({"dropout": 0.1}, r"module\.dropout"),
        ({"kdim": 3}, r"module\.kdim, vdim"),
        ({"vdim": 3}, r"module\.kdim, vdim"),
        ({"add_bias_kv": True}, r"module\.add_bias_kv"),
        ({"add_zero_attn": True}, r"module\.add_zero_attn"),
    ],
)
def test_what_a_field_does_not_have_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        of.nn.from_torch(attention(**options))


def test_what_is_no_attention_is_refused() -> None:
    with pytest.raises(of.InputError, match="MultiheadAttention"):
        of.nn.from_torch(nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (of.MultiHead([of.SigmoidAttention(np.eye(2), np.eye(2), np.eye(2))]), r"heads\[0\]"),
        (of.MultiHead([of.SoftmaxAttention(np.eye(2), np.eye(2), np.eye(2), causal=True)]), "attn_mask"),
        (of.MultiHead([of.SoftmaxAttention(np.eye(2), np.eye(2), np.eye(2))] * 2), "pad or split"),
        (of.MultiHead([of.SoftmaxAttention(lambda t: t, np.eye(2), np.eye(2))]), "one layer"),
        (of.MultiHead([of.SoftmaxAttention(np.ones((3, 2, 2)), np.eye(2), np.eye(2))]), "batch"),
    ],
    ids=["sigmoid", "causal", "shapes", "varying", "batch"],
)
def test_what_torch_does_not_have_is_refused(field: of.MultiHead, words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        of.nn.to_torch(field)
