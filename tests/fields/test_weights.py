"""Weights of a Transformer as functions of depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import otflow as of
from otflow.fields.weights import Constant, Varying, apply, weight
from tests.samples import normal

VALUES = np.arange(3.0)[:, None, None] * np.ones((3, 2, 2))  # layer l is filled with l


def layer(layers: of.Layers, t: float) -> float:
    return layers(torch.tensor(t, dtype=torch.float64))[0, 0].item()


def test_a_layer_reaches_from_its_edge_to_just_before_the_next() -> None:
    layers = of.Layers(VALUES, edges=[0.0, 0.5, 2.0, 3.0])
    before = float(np.nextafter(0.5, 0.0))
    assert [layer(layers, t) for t in (0.0, before, 0.5, 1.9, 2.0, 3.0)] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_the_first_and_the_last_layer_go_on() -> None:
    layers = of.Layers(VALUES, edges=[0.0, 0.5, 2.0, 3.0])
    assert layer(layers, -5.0) == 0.0
    assert layer(layers, 50.0) == 2.0


def test_inner_edges_are_the_jumps() -> None:
    assert of.Layers(VALUES, edges=[0.0, 0.5, 2.0, 3.0]).switches == (0.5, 2.0)
    assert of.Layers(VALUES[:1]).switches == ()


def test_layers_last_one_unit_of_time_unless_told() -> None:
    assert of.Layers(VALUES).switches == (1.0, 2.0)
    assert of.Layers(VALUES, dt=0.25).switches == (0.25, 0.5)


@pytest.mark.parametrize("dt", [0.1, 1 / 3, 1e-3])
def test_edges_are_multiples_of_dt_in_double_precision(dt: float) -> None:
    assert of.Layers(VALUES, dt=dt).switches == pytest.approx((dt, 2 * dt), rel=1e-15)
    assert of.Layers(VALUES.astype(np.float32), dt=dt).switches == pytest.approx((dt, 2 * dt), rel=1e-15)


def test_a_batch_of_times_gives_a_batch_of_layers() -> None:
    out = of.Layers(VALUES)(torch.tensor([[0.5, 2.5], [1.0, 1.5]], dtype=torch.float64))
    assert out.shape == (2, 2, 2, 2)
    assert out[..., 0, 0].tolist() == [[0.0, 2.0], [1.0, 1.0]]


def test_values_keep_their_dtype_and_their_graph() -> None:
    values = torch.ones(3, 2, 2, requires_grad=True)
    out = of.Layers(values)(torch.tensor(1.5, dtype=torch.float64))
    assert out.dtype == torch.float32
    out.sum().backward()
    assert values.grad[:, 0, 0].tolist() == [0.0, 1.0, 0.0]


def test_of_a_list_of_parameters_only_the_layer_in_use_gets_a_gradient() -> None:
    values = [torch.nn.Parameter(torch.full((2, 2), float(k))) for k in range(3)]
    for layers in (of.Layers(values), of.Layers(torch.nn.ParameterList(values))):
        assert layers(torch.tensor(1.5)) is values[1]
        both = layers(torch.tensor([0.5, 2.5]))
        assert both[:, 0, 0].tolist() == [0.0, 2.0]
        assert [id(p) for p in layers.parameters()] == [id(p) for p in values]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"values": np.zeros((0, 2, 2))}, r"values\.shape"),
        ({"values": 1.0}, r"values\.shape"),
        ({"edges": [0.0, 1.0, 2.0]}, "4 increasing times are needed for 3 layers"),
        ({"edges": [0.0, 1.0, 1.0, 2.0]}, "increasing"),
        ({"edges": [0.0, 2.0, 1.0, 3.0]}, "increasing"),
        ({"edges": [0.0, np.nan, 1.0, 3.0]}, r"edges\[1\] = nan"),
        ({"values": np.full((3, 2, 2), np.inf)}, r"values\[0, 0, 0\] = inf"),
        ({"dt": 0.0}, "dt = 0.0"),
        ({"dt": -1.0}, "dt = -1.0"),
    ],
)
def test_wrong_layers_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        of.Layers(**{"values": VALUES} | options)


def test_a_matrix_becomes_a_constant() -> None:
    w = weight(np.eye(2), "Q")
    assert isinstance(w, Constant)
    assert torch.equal(w(torch.tensor(3.0)), torch.eye(2, dtype=torch.float64))
    assert w.switches == ()


def test_a_function_is_called_with_the_time() -> None:
    w = weight(lambda t: t * torch.eye(2), "Q")
    assert isinstance(w, Varying)
    assert w(torch.tensor(3.0))[0, 0].item() == 3.0


def test_a_function_may_return_numpy() -> None:
    out = weight(lambda t: np.full((2, 2), float(t)), "Q")(torch.tensor(3.0))
    assert out.dtype == torch.float64
    assert out[0, 0].item() == 3.0


def test_a_function_that_returns_nan_is_named() -> None:
    with pytest.raises(of.InputError, match=r"Q\(t\)\[0, 0\] = nan"):
        weight(lambda t: np.full((2, 2), np.nan), "Q")(torch.tensor(0.0))


def test_a_weight_is_passed_through() -> None:
    layers = of.Layers(VALUES)
    assert weight(layers, "Q") is layers


@pytest.mark.parametrize("value", [1.0, [1.0, 2.0], np.zeros((0, 2)), [["a"]]])
def test_what_is_no_matrix_is_refused(value: Any) -> None:
    with pytest.raises(of.InputError, match="Q"):
        weight(value, "Q")


def test_a_bias_is_a_vector() -> None:
    assert weight([1.0, 2.0], "b", ndim=1)(torch.tensor(0.0)).tolist() == [1.0, 2.0]
    with pytest.raises(of.InputError, match="a vector is needed"):
        weight(1.0, "b", ndim=1)


def test_apply_multiplies_every_token() -> None:
    M, x = torch.tensor(normal(3, 2)), torch.tensor(normal(4, 5, 2))
    torch.testing.assert_close(apply(M, x)[1, 2], M @ x[1, 2])


def test_jumps_of_all_weights_are_forced_ends() -> None:
    Q, K = of.Layers(VALUES[:2], [0.0, 0.3, 1.0]), of.Layers(VALUES[:2], [0.0, 0.6, 1.0])
    assert of.SoftmaxAttention(Q, K, np.eye(2)).switches == (0.3, 0.6)
    assert of.SoftmaxAttention(K, K, Q).switches == (0.3, 0.6)


def test_a_step_of_one_layer_each_is_a_residual_network() -> None:
    """Euler with the duration of a layer: x + dt V_l x for every layer in turn."""
    V, x = torch.tensor(normal(4, 2, 2)), torch.tensor(normal(1, 2))
    zero = torch.zeros(2, 2, dtype=torch.float64)
    field = of.SoftmaxAttention(zero, zero, of.Layers(V, dt=0.25))  # one token: the velocity is V x
    final = of.flow(of.Particles(x), field, of.Euler(), t1=1.0, dt=0.25).final.coords[0]
    for matrix in V:
        x = x + 0.25 * x @ matrix.mT
    torch.testing.assert_close(final, x, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dt", [0.1, 0.2])
def test_layers_of_a_tenth_switch_at_the_steps_of_a_tenth(dt: float) -> None:
    """As many steps as layers, none added by rounding."""
    V = np.stack([(k + 1) * np.eye(1) for k in range(6)])
    field = of.SoftmaxAttention(np.eye(1), np.eye(1), of.Layers(V, dt=dt))
    assert of.flow(of.Particles([[1.0]]), field, of.Euler(), t1=6 * dt, dt=dt).steps == 6
