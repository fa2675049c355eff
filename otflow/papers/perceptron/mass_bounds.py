"""Mass bounds of atoms, and the energy that attention and a perceptron ascend or descend."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, numbers
from otflow.energies import Energy, ExponentialInteraction, Potential
from otflow.fields import Perceptron, UnnormalisedAttention, VelocityField
from otflow.papers.perceptron.landscape import RELU, Activation, Landscape, curvature_bound, neurons
from otflow.papers.tokens import circle

LARGEST = 1e300  # a C of which the bounds are numbers
STEEPEST = 700.0  # exp(beta) and exp(-beta) are numbers up to here
PEAK = 2 * math.exp(-1.5)  # max (t - 1) exp(-t/2): the largest slope between tokens that repel, large beta
DIP = 3 / 8 * math.exp(-1 / 8)  # half of (1 - t) exp(-t/2) at t = 1/4


# --- energy and fields ---------------------------------------------------------------------------------


def energy(beta: float, a: Any, omega: Any, activation: Activation = RELU) -> Energy:
    """E[mu] = 1/(2 beta) int int exp(beta (x.y - 1)) dmu dmu + 1/2 int v dmu, v = sum_j omega_j phi(a_j.x).

    Args:
        beta: inverse temperature, in (0, 700].
        a: (m, d), a direction for each neuron.
        omega: (m,), their weights.
        activation: `ReLU()`, `GELU()`, `Tanh()`, or an `Activation` of your own.

    >>> from otflow.papers.perceptron import energy
    >>> import otflow as of
    >>> mu = of.Particles([[1.0, 0.0]], space=of.Sphere())
    >>> energy(2.0, [[1.0, 0.0]], [3.0])(mu).item()  # 1/4 + 3/2
    1.75

    Reference: Alvarez-Lopez, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366, there without the shift.
    """
    L = _moderate(beta, a, omega, activation)
    attention = ExponentialInteraction(L.beta * _eye(L)) * (math.exp(-L.beta) / L.beta)
    return attention + Potential(L.potential) / 2


def ascent(beta: float, a: Any, omega: Any, activation: Activation = RELU) -> VelocityField:
    """x -> int exp(beta (x.y - 1)) y dmu(y) + sum_j omega_j sigma(a_j.x) a_j, projected to the sphere.

    The gradient of E in W2: unnormalised attention and a perceptron with W = a^T diag(omega), U = a.

    Args:
        beta, a, omega, activation: as in `energy`.

    >>> from otflow.papers.perceptron import ascent
    >>> import otflow as of
    >>> mu = of.Particles([[1.0, 0.0], [0.0, 1.0]], space=of.Sphere())
    >>> ascent(1.0, [[1.0, 0.0]], [0.0])(0.0, mu)[0]  # exp(-1) / 2 towards each other
    tensor([[0.0000, 0.1839],
            [0.1839, 0.0000]], dtype=torch.float64)
    """
    L = _moderate(beta, a, omega, activation)
    eye = _eye(L)
    attention = UnnormalisedAttention(L.beta * eye, eye, eye) * math.exp(-L.beta)
    return attention + Perceptron(W=L.a.mT * L.omega, U=L.a, activation=L.activation)


def descent(beta: float, a: Any, omega: Any, activation: Activation = RELU) -> VelocityField:
    """The ascent with its sign turned: tokens repel, and go down v.

    Args:
        beta, a, omega, activation: as in `energy`.

    >>> from otflow.papers.perceptron import descent
    >>> import otflow as of
    >>> mu = of.Particles([[1.0, 0.0], [0.0, 1.0]], space=of.Sphere())
    >>> descent(1.0, [[1.0, 0.0]], [0.0])(0.0, mu)[0][0, 1].item() < 0
    True
    """
    return -ascent(beta, a, omega, activation)


def printed_weights(beta: float, omega: Any) -> Tensor:
    """e^beta omega: weights that with the printed kernel exp(beta x.y) make the same landscape.

    Args:
        beta: in (0, 700].
        omega: weights (m,) as they are used here.

    >>> from otflow.papers.perceptron import printed_weights
    >>> printed_weights(1.0, [2.0])
    tensor([5.4366], dtype=torch.float64)
    """
    return checks.finite(math.exp(_limited(beta)) * checks.tensor(omega, "omega").double(), "e^beta omega")


def _moderate(beta: float, a: Any, omega: Any, activation: Activation) -> Landscape:
    L = Landscape.of(_limited(beta), a, omega, activation)
    L.fits(L.a.shape[-1])
    return L


def _limited(beta: float) -> float:
    if checks.positive(beta, "beta") > STEEPEST:
        rule = f"exp(beta) leaves floating point beyond the limit {STEEPEST:g}"
        remedy = "use find_atoms, residual and second_variation, which need no such number"
        checks.fail("beta", beta, rule, remedy)
    return beta


def _eye(L: Landscape) -> Tensor:
    return torch.eye(L.a.shape[-1], dtype=torch.float64)


# --- bounds --------------------------------------------------------------------------------------------


def perceptron_constant(a: Any, omega: Any) -> Tensor:
    """C = 2 sum_j |omega_j| |a_j|^2, which bounds |v''| along great circles if sigma(0) = 0, |sigma'| <= 1.

    Args:
        a: (m, d); omega: (m,).

    >>> from otflow.papers.perceptron import perceptron_constant
    >>> perceptron_constant([[3.0, 4.0]], [-0.1]).item()
    5.0
    """
    return curvature_bound(*neurons(a, omega))


def mass_bound(beta: Any, C: Any = 0.0) -> Tensor:
    """(2 e^(beta - 3/2) + C) / (2 e^(beta - 3/2) + 3/8 e^(beta - 1/8)), in the printed normalisation.

    At a second-order stationary measure on the circle, two atoms or more within a distance 1 / (2 sqrt(beta))
    have at most this mass together, if beta is not small (`kernel_mass_bound` says when, and why). It tends
    to 0.574192 as beta grows; above 1 it says nothing.

    Args:
        beta: > 0, number or array.
        C: `perceptron_constant` of the *printed* weights.

    >>> from otflow.papers.perceptron import mass_bound
    >>> round(mass_bound(1e6, 3.0).item(), 6)
    0.574192

    Reference: Alvarez-Lopez, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366, on the masses of clusters.
    """
    b, c = _bound_arguments(beta, C)
    return (PEAK + c * torch.exp(-b)) / (PEAK + DIP)


def kernel_mass_bound(beta: Any, C: Any = 0.0) -> Tensor:
    """(P + C e^-beta / 2) / (P + N / 2), P = max W'', N = -max W'' within 1 / (2 sqrt(beta)); at most 1.

    Here W''(t) = (beta sin^2 t - cos t) exp(beta (cos t - 1)) is the second derivative of the kernel on the
    circle. Move the lightest atom i of a cluster S alone. Second order means sum_{j != i} m_j W''(t_i - t_j)
    + v''(t_i) / 2 >= 0, and at least half of m(S) sits at other places of S, so N m(S) / 2 <= P (1 - m(S)) +
    C / 2. This holds for every beta. From beta = 0.7978 on it is at most `mass_bound`, which proves that one
    there; it is 1, and says nothing, where W'' >= 0 somewhere within the distance.

    Args:
        beta: > 0, number or array.
        C: `perceptron_constant` of the printed weights, times the Lipschitz constant of sigma if that is > 1.

    >>> from otflow.papers.perceptron import kernel_mass_bound
    >>> kernel_mass_bound([1e-2, 1.0, 1e6])
    tensor([1.0000, 0.5621, 0.5742], dtype=torch.float64)
    """
    beta, C = _bound_arguments(beta, C)
    # In e = 1 - cos t, W'' grows up to the root of its derivative and falls beyond; nothing cancels.
    under = 2 * beta + 3 + torch.hypot(2 * beta, beta.new_tensor(math.sqrt(5)))
    root = ((6 + 2 / beta) / under).clamp(max=2)
    edge = 2 * torch.sin((0.25 / beta.sqrt()).clamp(max=math.pi / 2)).square()
    P, N = _curvature(root, beta), -_curvature(torch.minimum(root, edge), beta)
    bound = (P + C * torch.exp(-beta) / 2) / (P + N.clamp(min=0) / 2)
    return torch.where(N > 0, bound.clamp(max=1), torch.ones_like(bound))


def _curvature(e: Tensor, beta: Tensor) -> Tensor:
    """W'' where 1 - cos t = e."""
    return (beta * e * (2 - e) - 1 + e) * torch.exp(-beta * e)


def _bound_arguments(beta: Any, C: Any) -> tuple[Tensor, Tensor]:
    b, c = numbers.tensors(beta=beta, C=C)
    if not bool((b > 0).all()):
        checks.fail("min(beta)", b.min().item(), "beta > 0 is needed", "pass beta=1.0, say")
    for bad in c[(c < 0) | (c > LARGEST)].tolist():
        name, rule = "min(C)" if bad < 0 else "max(C)", f"C in [0, {LARGEST:g}] is needed"
        checks.fail(name, bad, rule, "use perceptron_constant(a, omega)")
    return b, c


def atom_bound(M: int, L: float, beta: float, eps: float, *, C: float = 0.0) -> Tensor:
    """#{i: m_i >= eps} <= M / eps (1 + 2 L sqrt(beta)) mass_bound(beta, C), for eps up to that bound.

    At a second-order stationary measure on the circle with support in M arcs of length at most L. Each arc is
    cut into at most 1 + 2 L sqrt(beta) pieces of length 1 / (2 sqrt(beta)), which weigh no more than that
    unless they have one atom alone. The bound is far from sharp: where every piece obeys it, all of them
    weigh 1 together, so that it is 1 / eps or more, and no more atoms than 1 / eps have mass eps anyhow. For
    eps beyond `mass_bound` the formula is evaluated all the same, but an atom may be that heavy.

    Args:
        M: number of arcs; L: their length, >= 0; beta: > 0; eps: the least mass that counts, in (0, 1].
        C: `perceptron_constant` of the printed weights.

    >>> from otflow.papers.perceptron import atom_bound
    >>> round(atom_bound(2, 0.5, 9.0, 0.1).item(), 3)
    45.935

    Reference: Alvarez-Lopez, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366, on the number of heavy atoms.
    """
    M, eps = checks.count(M, "M"), checks.positive(eps, "eps")
    if not checks.number(L, "L") >= 0:
        checks.fail("L", L, "a length >= 0 is needed", f"pass L={abs(L):g}")
    if eps > 1:
        checks.fail("eps", eps, "no atom of a probability measure has more mass than 1", "choose eps <= 1")
    number = M / eps * (1 + 2 * L * math.sqrt(checks.positive(beta, "beta"))) * mass_bound(beta, C)
    return checks.finite(number, "atom_bound")


# --- on the circle -------------------------------------------------------------------------------------


def empty_arcs(theta: Any) -> Tensor:
    """Lengths of the arcs between neighbours on the circle, longest first, (*batch, n); their sum is 2 pi.

    Args:
        theta: angles (*batch, n), in any order and any turn.

    >>> import torch
    >>> from otflow.papers.perceptron import empty_arcs
    >>> (empty_arcs([0.0, torch.pi, torch.pi / 2]) / torch.pi).tolist()
    [1.0, 0.5, 0.5]
    """
    return circle.gaps(circle.angles(theta))[1].sort(-1, descending=True).values


class MassClusters(NamedTuple):
    """For every atom, the mass and the number of the atoms in the arc of given length that starts there."""

    mass: Tensor
    size: Tensor


def cluster_masses(theta: Any, masses: Any, width: float) -> MassClusters:
    """m([theta_i, theta_i + width]) for every i: each set of diameter <= width lies in one of these arcs.

    The bound of `mass_bound` is for those of two atoms or more, with ``width = 1 / (2 sqrt(beta))``. From
    width = pi on, no two points of the circle are farther apart, and all atoms are one cluster.

    Args:
        theta: angles (*batch, n); masses: (*batch, n) or (n,), >= 0; width: > 0.

    >>> from otflow.papers.perceptron import cluster_masses
    >>> cluster_masses([0.0, 0.1, 3.0], [0.2, 0.3, 0.5], 0.2)
    MassClusters(mass=tensor([0.5000, 0.3000, 0.5000], dtype=torch.float64), size=tensor([2, 1, 1]))
    """
    t, m = circle.angles(theta), checks.tensor(masses, "masses").detach().double()
    if m.shape[-1:] != t.shape[-1:] or bool((m < 0).any()):
        rule = f"{t.shape[-1]} numbers >= 0 are needed"
        checks.fail("masses", f"{m.tolist()!s:.60}", rule, "pass one per angle")
    t, m = numbers.tensors(theta=t, masses=m)
    width = checks.positive(width, "width")
    ahead = torch.remainder(t[..., None, :] - t[..., :, None], circle.TURN)
    # An atom that differs by rounding only may seem to be a whole turn ahead.
    ahead = torch.where(ahead > circle.TURN - 1e-12, 0.0, ahead)
    inside = (ahead <= width * (1 + 1e-12)) | (width >= math.pi)
    inside = inside & (m[..., None, :] > 0)
    return MassClusters((inside * m[..., None, :]).sum(-1), inside.sum(-1))
