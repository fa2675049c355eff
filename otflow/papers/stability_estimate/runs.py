"""The runs: ladders of random fields, convex flows that contract, and Gaussians that attention parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.papers.stability_estimate.random_fields import FIELDS, cloud
from otflow.stability.coupled import coupled

T = 1.0  # the end of all ladders
LAM, END, TAUS = 0.5, 3.0, (1.0, 0.5, 0.25)  # of the contraction of Gaussians: convexity, time and steps
TURN = np.array([[0.8, -0.6], [0.6, 0.8]])
# In the plane: far from round, and scores without symmetry, so that the factor before the power is not one.
S0, A = np.array([[2.0, 0.1], [0.1, 0.1]]), np.array([[0.1, 0.9], [0.2, 2.5]])
ON_LINE = {  # softmax attention blows up at t* = 1 from the variance one
    "softmax": of.SoftmaxAttention([[0.5]], [[1.0]], [[1.0]]),
    "L2": of.L2Attention([[0.5]], [[0.5]], [[1.0]]),
    "Sinkhorn": of.SinkhornAttention([[0.5]], [[1.0]], [[1.0]]),
}
FINE = of.Dopri5(1e-10, 1e-12)
Array = np.ndarray[Any, Any]


def ladder(name: str, batch: tuple[int, ...], *, n: int, seed: int, steps: int) -> of.stability.Ladder:
    """Of random fields and clouds of n tokens in the plane, one for each member of the batch."""
    rng = np.random.default_rng(seed)
    field, mu0 = FIELDS[name](batch, 2, rng), cloud(batch, n, 2, rng, labelled="masked" in name)
    return of.ladder(mu0, field, t1=T, steps=steps, rng=seed)


# --- contraction ---------------------------------------------------------------------------------------


class Contraction(NamedTuple):
    """Ratios W2(mu_t, nu_t) / W2(mu_0, nu_0) of the Fokker-Planck equation on Gaussians of the plane.

    Times, the largest ratio of random pairs, and the ratio of two laws that differ by a shift along the
    weakest direction.
    """

    t: Array
    random: Array
    shift: Array


def descent(energy: of.Energy) -> of.SteepestDescent:
    """In W2."""
    return of.SteepestDescent(energy, of.Wasserstein())


def turned(*values: float) -> Array:
    """The symmetric matrix with these eigenvalues; the first eigenvector is (0.8, 0.6).

    >>> from otflow.papers.stability_estimate.runs import turned
    >>> turned(1.0, 1.0).round(9).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return np.asarray(TURN @ np.diag(values) @ TURN.T)


def _random_gaussians(n: int, rng: np.random.Generator) -> of.Gaussian:
    """With deviations from 1/2 to 2: short ones make explicit steps stiff."""
    Q = np.linalg.qr(rng.normal(size=(n, 2, 2)))[0]
    return of.Gaussian(0.3 * rng.normal(size=(n, 2)), root=Q * 2 ** rng.uniform(-1, 1, (n, 1, 2)))


def contraction(n: int) -> dict[float, Contraction]:
    """Of the JKO scheme for each tau and, under 0, of the flow, for n random pairs and a shift.

    >>> from otflow.papers.stability_estimate.runs import contraction
    >>> list(contraction(1))
    [1.0, 0.5, 0.25, 0.0]
    """
    rng = np.random.default_rng(1)
    mu, nu = _random_gaussians(n + 1, rng), _random_gaussians(n + 1, rng)
    # The last pair of the batch differs by a shift, the others are random.
    mean, root = nu.mean.clone(), nu.root.clone()
    mean[-1], root[-1] = mu.mean[-1] + torch.from_numpy(TURN[:, 0]), mu.root[-1]
    field, pair = descent(of.QuadraticPotential(turned(LAM, 3.0)) + of.Entropy()), (mu, nu.at([mean, root]))
    runs = {tau: coupled(*pair, field, of.JKO(), t1=END, dt=tau) for tau in TAUS}
    runs[0.0] = coupled(*pair, field, of.RK4(), t1=END, dt=0.05, save_at=np.linspace(0, END, 7))
    return {
        tau: Contraction(r.ts.numpy(), r.ratios[:, :-1].amax(-1).numpy(), r.ratios[:, -1].numpy())
        for tau, r in runs.items()
    }


def bound(tau: float, t: Array, lam: float = LAM) -> Array:
    """(1 + lambda tau)^(-t/tau), and exp(-lambda t) for tau = 0.

    >>> import numpy as np
    >>> from otflow.papers.stability_estimate.runs import bound
    >>> bound(1.0, np.array([2.0]), 1.0).item()
    0.25
    """
    return np.asarray(np.exp(-lam * t) if tau == 0 else (1 + lam * tau) ** (-t / tau))


def worst_ratio(mu: of.Measure, nu: of.Measure, energy: of.Energy, lam: float, *taus: float) -> float:
    """The largest (1 + lambda tau)^k times the ratio after k steps, k = 1, ..., 4."""
    ratios = {tau: coupled(mu, nu, descent(energy), of.JKO(), t1=4 * tau, dt=tau).ratios for tau in taus}
    return max(
        float((r.numpy() / bound(tau, tau * np.arange(len(r)), lam))[1:].max()) for tau, r in ratios.items()
    )


# --- sensitivity ---------------------------------------------------------------------------------------


class Parting(NamedTuple):
    """Ratios under attention, of two runs side by side and as derivatives, against 1 - t/t*.

    Of deviations on the line for each kind of attention, of covariances of the plane and of means under
    softmax, whose blow-up t* is.
    """

    left: Array
    observed: dict[str, Array]
    exact: dict[str, Array]


def around(sigma: float, size: float) -> tuple[of.Gaussian, of.Gaussian]:
    """Two centred Gaussians of the line with deviations on both sides of sigma."""
    return of.Gaussian([0.0], root=[[sigma - size]]), of.Gaussian([0.0], root=[[sigma + size]])


def worst_perturbation(S: Any, A: Any) -> Tensor:
    """u e^T + e u^T, u = S^(1/2) w, e = S^(-1/2) w: what softmax with V = I amplifies most at its blow-up.

    >>> from otflow.papers.stability_estimate.runs import worst_perturbation
    >>> worst_perturbation([[4.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]])
    tensor([[2., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    u = closed_forms.softmax_blow_up_direction(S, A)[:, None]
    half: Tensor = u @ torch.linalg.solve(torch.as_tensor(S, dtype=torch.float64), u).mT
    return half + half.mT


def parting(n: int) -> Parting:
    """From t*/2 to (1 - 2^-n) t*; t* = 1 on the line.

    >>> from otflow.papers.stability_estimate.runs import parting
    >>> parting(2).left.tolist()
    [0.5, 0.25]
    """
    left = 2.0 ** -np.arange(1, n + 1)
    t, size = 1 - left, 5e-4 * left[-1]  # perturbations small against what is left of time
    # Two pairs at once: deviations that differ, and means that differ.
    mu = of.Gaussian([[0.0], [0.0]], root=[[[1.0 - size]], [[1.0]]])
    nu = of.Gaussian([[0.0], [1e-3]], root=[[[1.0 + size]], [[1.0]]])
    end = closed_forms.softmax_blow_up_time(S0, A).item()
    D, S = size * worst_perturbation(S0, A), torch.from_numpy(S0)
    low, high = (of.Gaussian(torch.zeros(2).double(), cov=S + sign * D) for sign in (-1, 1))
    field = of.SoftmaxAttention(A, np.eye(2), np.eye(2))
    observed = {
        "softmax": coupled(mu, nu, ON_LINE["softmax"], FINE, t1=t[-1], save_at=t).ratios,
        "plane": coupled(low, high, field, FINE, t1=end * t[-1], save_at=end * t).ratios,
    }
    for name in ("L2", "Sinkhorn"):
        pair = around(1.0, 1e-4)
        observed[name] = coupled(*pair, ON_LINE[name], of.RK4(), t1=t[-1], dt=0.02, save_at=t).ratios
    observed["softmax"], observed["mean"] = observed["softmax"].mT
    exact = exact_on_line(left) | {"plane": closed_forms.softmax_path_sensitivity(S0, A, end * t).numpy()}
    return Parting(left, {name: ratios.numpy() for name, ratios in observed.items()}, exact)


def exact_on_line(left: Array) -> dict[str, Array]:
    """The derivatives of the same flows in closed form.

    >>> import numpy as np
    >>> from otflow.papers.stability_estimate.runs import exact_on_line
    >>> exact_on_line(np.array([0.25]))["softmax"].item()
    8.0
    """
    t = 1 - left
    return {
        "softmax": closed_forms.softmax_sensitivity(1.0, 0.5, 1.0, t).numpy(),
        "L2": closed_forms.l2_sensitivity(1.0, 0.5, 0.5, 1.0, t).numpy(),
        "Sinkhorn": closed_forms.sinkhorn_sensitivity(1.0, 0.5, 1.0, t).numpy(),
        "mean": np.exp(t) * left**-0.5,
    }
