"""Clouds of tokens: what goes in, what comes out, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import otflow as of
from tests.samples import normal, unit


def test_a_cloud_knows_its_sizes() -> None:
    mu = of.Particles(normal(2, 3, 5, 4))
    assert (mu.n, mu.d, tuple(mu.batch)) == (5, 4, (2, 3))
    assert repr(of.Particles(normal(2, 5, 4), label=np.arange(5.0))) == (
        "Particles(n=5, d=4, batch=(2,), labelled, space=Euclidean())"
    )


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([[1, 2], [3, 4]], torch.float64),
        (np.ones((2, 2), dtype=np.float32), torch.float32),
        (np.ones((2, 2), dtype=">f8"), torch.float64),
        (np.asfortranarray(np.ones((2, 3))), torch.float64),
        (torch.ones(2, 2), torch.float32),
        (torch.ones(2, 2, dtype=torch.int64), torch.float64),
        (np.ones((2, 2), dtype=bool), torch.float64),
    ],
)
def test_positions_come_in_many_kinds(value: Any, dtype: torch.dtype) -> None:
    mu = of.Particles(value)
    assert mu.x.dtype == mu.dtype == dtype
    np.testing.assert_array_equal(mu.x, np.asarray(value, dtype=float))


def test_a_later_change_of_the_array_does_not_reach_the_cloud() -> None:
    x = np.zeros((2, 2))
    mu = of.Particles(x)
    x[:] = 7
    assert float(mu.x.abs().max()) == 0.0


def test_a_tensor_keeps_its_graph() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    of.Particles(x, space=of.Euclidean()).x.sum().backward()
    assert x.grad is not None


def test_weights_are_uniform_if_left_out() -> None:
    mu = of.Particles(normal(2, 4, 3))
    assert torch.equal(mu.w, torch.full((2, 4), 0.25, dtype=torch.float64))
    assert mu.uniform


def test_weights_are_shared_by_the_members_of_a_batch_and_renormalised() -> None:
    mu = of.Particles(normal(2, 2, 3), w=[0.25, 0.7500001])
    assert mu.w.shape == (2, 2)
    torch.testing.assert_close(mu.w.sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-16)


def test_labels_are_shared_by_the_members_of_a_batch() -> None:
    mu = of.Particles(normal(2, 3, 1), label=[2, 0, 1])
    assert mu.label.tolist() == [[2.0, 0.0, 1.0]] * 2


def test_other_coordinates_keep_weights_label_and_space() -> None:
    mu = of.Particles(unit(3, 2), w=[0.2, 0.3, 0.5], label=[0, 1, 2], space=of.Sphere())
    nu = mu.at([torch.tensor(unit(4, 3, 2))])
    assert nu.batch == (4,)
    assert torch.equal(nu.w, mu.w.expand(4, 3))
    assert torch.equal(nu.label, mu.label.expand(4, 3))
    assert nu.space == mu.space
    assert torch.equal(nu.coords[0], nu.x)


def test_nodes_are_tokens_and_weights() -> None:
    mu = of.Particles(normal(3, 2), w=[0.2, 0.3, 0.5])
    x, w = mu.nodes()
    assert x is mu.x
    assert w.tolist() == [0.2, 0.3, 0.5]


def test_the_inner_product_is_weighted() -> None:
    mu = of.Particles([[0.0], [0.0]], w=[0.25, 0.75])
    u = of.Tangent([torch.tensor([[2.0], [4.0]], dtype=torch.float64)])
    assert mu.inner(u, u).item() == 0.25 * 4 + 0.75 * 16


def test_a_move_pushes_tokens_and_stays_on_the_space() -> None:
    x, u = torch.tensor(unit(3, 2)), of.Tangent([torch.tensor(normal(3, 2))])
    torch.testing.assert_close(of.Particles(x).move(u).x, x + u[0])
    on_sphere = of.Particles(x, space=of.Sphere()).move(u).x
    torch.testing.assert_close(on_sphere, torch.nn.functional.normalize(x + u[0], dim=-1))


def test_a_move_does_not_project_its_velocity_again() -> None:
    """Projecting would drop Runge-Kutta methods to order two on the sphere."""
    mu = of.Particles([[1.0, 0.0]], space=of.Sphere())
    along = of.Tangent([torch.tensor([[1.0, 1.0]], dtype=torch.float64)])
    torch.testing.assert_close(mu.move(along).x, torch.tensor([[2.0, 1.0]]).double() / 5**0.5)


def test_a_measure_cannot_be_changed() -> None:
    mu = of.Particles(normal(2, 2))
    with pytest.raises(AttributeError):
        mu.x = torch.zeros(2, 2)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a vector": ({"x": [1.0, 2.0]}, r"x\.shape = \(2,\).*x\[:, None\]"),
    "a number": ({"x": 1.0}, r"x\.shape = \(\)"),
    "no tokens": ({"x": np.zeros((0, 2))}, "at least one token"),
    "no dimensions": ({"x": np.zeros((2, 0))}, "at least one token"),
    "ragged": ({"x": [[1.0], [1.0, 2.0]]}, "rectangular|dtype object"),
    "nan": ({"x": [[0.0], [np.nan]]}, r"x\[1, 0\] = nan"),
    "infinity": ({"x": [[np.inf]]}, r"x\[0, 0\] = inf"),
    "complex": ({"x": np.ones((2, 2)) * 1j}, "x = .*complex"),
    "complex tensor": ({"x": torch.ones(2, 2, dtype=torch.complex64)}, "complex"),
    "half": ({"x": torch.ones(2, 2, dtype=torch.float16)}, "half precision"),
    "half array": ({"x": np.ones((2, 2), dtype=np.float16)}, "half precision"),
    "words": ({"x": [["a", "b"]]}, "real numbers"),
    "sparse": ({"x": torch.eye(2).to_sparse()}, "dense"),
    "meta": ({"x": torch.ones(2, 2, device="meta")}, "meta device"),
    "negative weight": ({"w": [1.5, -0.5]}, r"min\(w\) = -0.5"),
    "weights of another sum": ({"w": [0.5, 0.4]}, r"sum\(w\) = 0.9"),
    "too many weights": ({"w": [0.2, 0.3, 0.5]}, r"w\.shape = \(3,\)"),
    "weights of another dtype": ({"w": torch.tensor([0.5, 0.5])}, "float32.*float64"),
    "too many labels": ({"label": [1, 2, 3]}, r"label\.shape = \(3,\)"),
    "label nan": ({"label": [0.0, np.nan]}, r"label\[1\] = nan"),
    "off the sphere": ({"space": of.Sphere()}, "norm 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_with_its_name_and_value(name: str) -> None:
    changes, words = WRONG[name]
    options: dict[str, Any] = {"x": np.array([[1.0, 2.0], [3.0, 4.0]])} | changes
    with pytest.raises(of.InputError, match=words):
        of.Particles(**options)


@pytest.mark.parametrize("space", [of.Sphere, "sphere"])
def test_a_space_is_an_instance(space: Any) -> None:
    with pytest.raises((of.InputError, TypeError), match="space"):
        of.Particles([[1.0, 0.0]], space=space)
