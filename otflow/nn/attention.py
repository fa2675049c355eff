"""Attention of torch as a field with the same parameters, and back."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from otflow.base import checks
from otflow.fields import MultiHead, SoftmaxAttention
from otflow.fields.weights import Slice

EVERY = slice(None)


def from_torch(module: nn.MultiheadAttention) -> MultiHead:
    """sum_h W_h int V_h y exp(Q_h x.K_h y / sqrt(k)) dmu(y) / int exp(...) dmu(y): the module as a field.

    The field holds the parameters of the module themselves, so that training the one trains the other. On
    tokens of equal weight ``field(t, mu)`` is ``module(x, x, x)[0]``; Q of a head is
    ``in_proj_weight[h k : (h + 1) k] / sqrt(k)``, k = d / heads.

    Args:
        module: without biases, dropout, and dimensions of its own for keys and values. What a field does not
            have is refused.

    >>> import torch
    >>> import otflow as of
    >>> module = torch.nn.MultiheadAttention(4, 2, bias=False, batch_first=True, dtype=torch.float64)
    >>> x = torch.eye(4, dtype=torch.float64)
    >>> v = of.nn.from_torch(module)(0.0, of.Particles(x))[0]
    >>> bool((v - module(x, x, x)[0]).abs().max() < 1e-12)
    True
    """
    _admit(checks.instance(module, nn.MultiheadAttention, "module"))
    W, out, d, k = module.in_proj_weight, module.out_proj.weight, module.embed_dim, module.head_dim
    blocks = [slice(h * k, (h + 1) * k) for h in range(module.num_heads)]
    heads = [
        SoftmaxAttention(
            Slice(W, rows, EVERY, 1 / math.sqrt(k)),
            Slice(W, slice(d + rows.start, d + rows.stop), EVERY),
            Slice(W, slice(2 * d + rows.start, 2 * d + rows.stop), EVERY),
        )
        for rows in blocks
    ]
    return MultiHead(heads, mix=[Slice(out, EVERY, columns) for columns in blocks])


def _admit(module: nn.MultiheadAttention) -> None:
    """Refuse what a field does not have."""
    biases = (module.in_proj_bias, module.out_proj.bias)
    for name, there, remedy in (
        ("kdim, vdim", not module._qkv_same_embed_dim, "give keys and values the dimension of the tokens"),
        ("add_bias_kv", module.bias_k is not None, "build the module without it"),
        ("bias", any(b is not None for b in biases), "build the module with bias=False"),
        ("add_zero_attn", module.add_zero_attn, "build the module without it"),
        ("dropout", module.dropout != 0, "set module.dropout = 0.0"),
    ):
        rule = "an attention field has no such thing"
        checks.require(not there, f"module.{name}", "set", rule, f"{remedy}, or use ModuleField(...)")


def to_torch(field: MultiHead) -> nn.MultiheadAttention:
    """The module of torch that computes a field of softmax heads, with ``batch_first=True``; a copy.

    Args:
        field: heads `SoftmaxAttention` with constant Q, K, V of shape (k, d) and mixing matrices (d, k),
            k = d / heads, not causal. One head may do without a mixing matrix.

    >>> import torch
    >>> import otflow as of
    >>> I = torch.eye(2, dtype=torch.float64)
    >>> module = of.nn.to_torch(of.MultiHead([of.SoftmaxAttention(I, I, -I)]))
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    >>> v = of.SoftmaxAttention(I, I, -I)(0.0, of.Particles(x))[0]
    >>> bool((module(x, x, x)[0] - v).abs().max() < 1e-12)
    True
    """
    heads = checks.instance(field, MultiHead, "field").heads
    parts = [_weights(field, h) for h in range(len(heads))]
    Q, K, V, W = (list(each) for each in zip(*parts, strict=True))
    (k, d), like = Q[0].shape, Q[0]
    shapes = {tuple(a.shape) for a in (*Q, *K, *V, *(w.mT for w in W))}
    rule = f"Q, K, V are (k, d), mix is (d, k), and k is d / {len(heads)} for torch"
    checks.require(shapes == {(k, d)} and k * len(heads) == d, "shapes", shapes, rule, "pad or split heads")
    module = nn.MultiheadAttention(
        d, len(heads), bias=False, batch_first=True, dtype=like.dtype, device=like.device
    )
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([*(math.sqrt(k) * q for q in Q), *K, *V]))
        module.out_proj.weight.copy_(torch.cat(W, -1))
    return module


def _weights(field: MultiHead, h: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, K, V and the mixing matrix of a head, if they are what torch has."""
    head, mix = field.heads[h], None if field.mix is None else field.mix[h]
    rule = "torch has softmax attention with one mask for all"
    good = type(head) is SoftmaxAttention and not head.causal
    checks.require(good, f"heads[{h}]", head, rule, "use SoftmaxAttention, and pass attn_mask to the module")
    own = [head.Q, head.K, head.V, *([] if mix is None else [mix])]
    rule = "a module has one set of weights"
    checks.require(not any(w.varies for w in own), f"heads[{h}]", head, rule, "pick the weights of one layer")
    Q, K, V, *W = (w(torch.zeros((), dtype=torch.float64)).detach() for w in own)
    rule = "a module has one set of weights"
    checks.require(Q.ndim == K.ndim == V.ndim == 2, "Q.ndim", Q.ndim, rule, "pick a member of the batch")
    return Q, K, V, W[0] if W else torch.eye(len(V), dtype=V.dtype, device=V.device)
