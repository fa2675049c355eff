"""Vectors in pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otflow as of
from otflow.base.tangent import align
from tests.samples import normal


def pair(seed: int = 0, *batch: int) -> of.Tangent:
    return of.Tangent(
        [torch.tensor(normal(*batch, 3, seed=seed)), torch.tensor(normal(*batch, 3, 2, seed=seed + 1))]
    )


def close(u: of.Tangent, v: of.Tangent) -> None:
    assert isinstance(u, of.Tangent)
    assert len(u) == len(v)
    for a, b in zip(u, v, strict=True):
        torch.testing.assert_close(a, b)


def test_tangents_form_a_vector_space() -> None:
    u, v, w = pair(0), pair(2), pair(4)
    close(u + v, v + u)
    close((u + v) + w, u + (v + w))
    close(u - v, u + (-v))
    close(2 * (u + v), 2 * u + 2 * v)
    close(u * 3, 3 * u)
    close(u / 4, 0.25 * u)
    close(u + (-1) * u, 0 * u)


def test_addition_works_piece_by_piece_and_does_not_concatenate() -> None:
    u = pair()
    assert len(u + u) == 2
    torch.testing.assert_close((u + u)[1], 2 * u[1])


def test_a_factor_per_member_scales_each_piece_of_that_member() -> None:
    u, c = pair(0, 2), torch.tensor([2.0, -1.0])
    for i in range(2):
        close(of.Tangent(p[i] for p in c * u), c[i].item() * of.Tangent(p[i] for p in u))
        close(of.Tangent(p[i] for p in u / c), of.Tangent(p[i] for p in u) / c[i].item())


def test_a_factor_in_float64_does_not_change_the_dtype() -> None:
    u = of.Tangent([torch.ones(2, 3)])
    assert (torch.ones(2, dtype=torch.float64) * u)[0].dtype == torch.float32
    assert (torch.tensor(2.0, dtype=torch.float64) * u)[0].dtype == torch.float32


@pytest.mark.parametrize("factor", [2, 2.0, np.float64(2.0), np.float32(2.0), np.int64(2), torch.tensor(2.0)])
def test_a_factor_may_be_any_number_on_either_side(factor: object) -> None:
    u = pair()
    close(u * factor, u + u)
    close(factor * u, u + u)


def test_tangents_of_different_shape_do_not_add() -> None:
    with pytest.raises(ValueError, match="shorter"):
        pair() + of.Tangent([torch.zeros(3)])


def test_map_and_zip_act_on_the_pieces() -> None:
    u, v = pair(0), pair(2)
    close(u.map(torch.sin), of.Tangent([torch.sin(u[0]), torch.sin(u[1])]))
    close(u.zip(v, torch.maximum), of.Tangent([torch.maximum(u[0], v[0]), torch.maximum(u[1], v[1])]))


def test_align_appends_axes() -> None:
    assert align(torch.ones(2), torch.ones(2, 3, 4)).shape == (2, 1, 1)
    assert align(torch.ones(()), torch.ones(2, 3)).shape == (1, 1)
