"""The weight of softmax attention."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import otflow as of
from otflow.base.errors import InputError, NotFiniteError
from otflow.metrics import Partition, Twisted


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def direct(A: torch.Tensor, mu: of.Particles, x: torch.Tensor) -> torch.Tensor:
    return (torch.exp((x @ A.mT) @ mu.x.mT) * mu.w[..., None, :]).sum(-1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_it_is_the_sum_of_exponentials(batch: tuple[int, ...], weighted: bool) -> None:
    A, x, y = normal(2, 2), normal(*batch, 4, 2, seed=1), normal(*batch, 6, 2, seed=2)
    w = torch.softmax(normal(*batch, 6, seed=3), -1) if weighted else None
    mu = of.Particles(y, w)
    torch.testing.assert_close(Partition(A)(mu, x), direct(A, mu, x))
    torch.testing.assert_close(Partition(A).log(mu, x), direct(A, mu, x).log())


@pytest.mark.thorough
def test_large_clouds_are_streamed() -> None:
    n = 3000
    mu, A = of.Particles(normal(n, 2), torch.softmax(normal(n, seed=5), -1)), 0.3 * normal(2, 2)
    torch.testing.assert_close(Partition(A)(mu, mu.x), direct(A, mu, mu.x), rtol=1e-12, atol=0)
    x = mu.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(Partition(A).log(mu.at([x]), x).sum(), x)
    z = mu.x.clone().requires_grad_()
    (exact,) = torch.autograd.grad(direct(A, mu.at([z]), z).log().sum(), z)
    torch.testing.assert_close(slope, exact, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_it_has_derivatives_in_the_measure_the_points_and_the_matrix(weighted: bool) -> None:
    A, y, x = (normal(*s, seed=i).requires_grad_() for i, s in enumerate(((2, 2), (3, 2), (4, 2))))
    w = torch.softmax(normal(3, seed=9), -1) if weighted else None

    def value(A: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return Partition(A)(of.Particles(y, w), x)

    assert gradcheck(value, (A, y, x))


def test_atoms_without_mass_do_not_count() -> None:
    mu = of.Particles([[1.0], [50.0]], w=[1.0, 0.0])
    assert Partition([[1.0]])(mu, mu.x[:1]).item() == pytest.approx(math.e, rel=1e-14)


def test_on_a_gaussian_it_is_the_laplace_transform() -> None:
    A, x = normal(2, 2), normal(5, 2, seed=1)
    mu = of.Gaussian(normal(2, seed=2), root=0.5 * normal(2, 2, seed=3))
    y, w = mu.nodes()
    torch.testing.assert_close(Partition(A).log(mu, x), torch.log(torch.exp(x @ A.mT @ y.mT) @ w))


def test_overflow_and_underflow_are_errors_that_say_how_far() -> None:
    for scale, size in ((1.0, "exp\\(900\\)"), (-1.0, "exp\\(-900\\)")):
        mu = of.Particles([[30.0]])
        with pytest.raises(NotFiniteError, match=f"{size}.*rescale"):
            Partition([[scale]])(mu, mu.x)
        assert Partition([[scale]]).log(mu, mu.x).item() == pytest.approx(900 * scale)


def test_softmax_attention_is_the_twisted_gradient_of_the_exponential_energy() -> None:
    A = normal(2, 2)
    A = A + A.mT
    mu = of.Particles(normal(5, 2, seed=1), torch.softmax(normal(5, seed=2), -1))
    x = mu.x.clone().requires_grad_()
    moved = mu.at([x])
    (covector,) = torch.autograd.grad((mu.w * direct(A, moved, x)).sum() / 2, x)
    descent = -Twisted(Partition(A)).gradient(mu, of.Tangent([covector]))[0]
    softmax = of.SoftmaxAttention(A, np.eye(2), -A)(0.0, mu)[0]
    torch.testing.assert_close(descent, softmax, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("A", "words"), [(np.ones((2, 3)), "A.shape"), (np.ones(3), "A.shape"), ([[np.nan]], "finite")]
)
def test_what_is_no_matrix_is_refused(A: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Partition(A)


def test_points_of_another_dimension_or_precision_are_refused() -> None:
    mu = of.Particles(np.zeros((3, 2)))
    with pytest.raises(InputError, match=r"x\.shape"):
        Partition(np.eye(3))(mu, mu.x)
    with pytest.raises(InputError, match="float32"):
        Partition(torch.eye(2))(mu, mu.x)
    assert repr(Twisted(Partition(np.eye(2)))) == "Twisted(Partition(d=2))"


@pytest.mark.thorough
def test_memory_grows_with_the_number_of_tokens_only() -> None:
    """A dense matrix of scores would take 800 MB."""
    resource = pytest.importorskip("resource")  # POSIX only
    mu = of.Particles(normal(10_000, 2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Partition(0.1 * torch.eye(2, dtype=torch.float64))(mu, mu.x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
