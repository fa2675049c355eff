"""Sinkhorn attention: the kernel is made bistochastic before it averages."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from otflow.base import kernels
from otflow.base.linalg import contraction, product, sqrtm
from otflow.base.tangent import Tangent
from otflow.fields.attention import Attention, Response, Weights, centre
from otflow.fields.base import Carry
from otflow.fields.weights import apply
from otflow.measures import Gaussian, Particles
from otflow.transport.comparable import merge
from otflow.transport.entropic.engines import scale
from otflow.transport.entropic.implicit import potential
from otflow.transport.entropic.log_kernel import Bilinear
from otflow.transport.entropic.options import Sinkhorn, as_options
from otflow.transport.entropic.scaling import AbsorbedKernel


class SinkhornAttention(Attention):
    """(1/eps) int Vy k(x, y) dmu(y), k the bistochastic scaling of exp(Ax.y / eps) (Sander et al. 2022).

    Both marginals of k dmu dmu are mu, so the mean follows dm/dt = V m / eps whatever the law. The scaling
    is computed in the log domain and in float64, starts from the one of the previous evaluation, and
    stops when the L1 marginal error is at most its tol; `Carry.residual` is the error that was reached. The
    velocity may be further off than that, by 1 / (1 - r) if r is the factor by which a sweep contracts: for
    sharp kernels (scores / eps of 30 between few tokens) float64 itself leaves only some digits of it.

    Args:
        Q, K, V: as in `SoftmaxAttention`.
        eps: entropic regularisation, > 0, or `Sinkhorn` with tolerance, budget and engine.

    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [1.0], [5.0]])
    >>> v = of.SinkhornAttention([[1.0]], [[1.0]], [[1.0]], eps=2.0)(0.0, mu)[0]
    >>> round(v.mean().item(), 9)  # mean / eps
    1.0
    """

    def __init__(
        self,
        Q: Any,
        K: Any,
        V: Any,
        eps: float | Sinkhorn = 1.0,
    ) -> None:
        super().__init__(Q, K, V)
        self.sinkhorn = as_options(eps)
        self.eps = self.sinkhorn.eps

    def attend(
        self, m: Weights, mu: Particles, points: Tensor, mask: kernels.Mask | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        # Shifts of queries or keys are absorbed by the potentials, so both are centred to save digits.
        c = centre(mu)
        q = apply(m.Q, mu.x - c).double() / self.eps
        k = apply(m.K, mu.x - c).double()
        logw = mu.w.double().log()
        g, carry = self.scaling(m, q, k, logw, carry)
        own = q if points is mu.x else apply(m.Q, points - c).double() / self.eps
        out, _ = kernels.attend(own, k, apply(m.V, mu.x).double(), g + logw)
        return out.to(mu.dtype) / self.eps, carry

    def scaling(
        self, m: Weights, q: Tensor, k: Tensor, logw: Tensor, carry: Carry | None
    ) -> tuple[Tensor, Carry]:
        """g with which k(x_i, x_j) is the softmax over j of q_i.k_j + g_j + log w_j, divided by w_j."""
        batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], logw.shape[:-1])
        flat = [merge(z, batch, keep) for z, keep in ((q, 2), (k, 2), (logw, 1))]
        o = self.sinkhorn
        with torch.no_grad():
            q_, k_, w_ = (_plain(z) for z in flat)
            kernel = AbsorbedKernel(Bilinear(q_, k_), w_, w_, symmetric=_symmetric(m))
            known = carry.state if carry else None
            start = known.reshape(w_.shape) if known is not None and known.numel() == w_.numel() else None
            s = scale(kernel, o.engine, tol=o.tol, max_iter=o.max_iter, start=start)
        worst = float(s.error.max())
        message = f"Sinkhorn scaling: marginal error {worst:.2e} after {s.sweeps} sweeps, tol = {o.tol:.2e}"
        G = s.G.reshape(*batch, -1)
        carry = Carry(state=G, residual=worst, failed=~s.converged.reshape(batch), message=message)
        return potential(flat[0], flat[1], flat[2], flat[2], s.G).reshape(G.shape), carry

    def affine(self, m: Weights, mu: Gaussian) -> Tangent:
        """x -> (V/eps)(m + S (x - m)) with S R = R M, M the `contraction` of R^T A R / eps.

        Here R is the root; no inverse of the covariance or of A appears.
        """
        VR, M = product(m.V, mu.root), contraction(self._coupling(m, mu))
        return Tangent([product(m.V, mu.mean[..., None])[..., 0], product(VR, M)]) / self.eps

    def response(self, m: Weights, mu: Gaussian) -> Response:
        """q -> (2 / eps^2) V R (I + (I + 4 N N^T)^(1/2))^-1 (KR)^T q, N = R^T A R / eps."""
        VR, KR, N = product(m.V, mu.root), product(m.K, mu.root), self._coupling(m, mu)
        eye = torch.eye(N.shape[-1], dtype=N.dtype, device=N.device)
        gram = eye + sqrtm(eye + 4 * N @ N.mT)
        return lambda q: 2 / self.eps**2 * product(VR, torch.linalg.solve_ex(gram, product(KR.mT, q)).result)

    def _coupling(self, m: Weights, mu: Gaussian) -> Tensor:
        """R^T A R / eps."""
        return product(product(m.K, mu.root).mT, product(m.Q, mu.root)) / self.eps

    def __repr__(self) -> str:
        return f"SinkhornAttention({', '.join([*self._sizes(), f'eps={self.eps:g}'])})"


def _plain(a: Tensor) -> Tensor:
    """The numbers alone: no graph, no tangent."""
    return forward_ad.unpack_dual(a.detach()).primal


def _symmetric(m: Weights) -> bool:
    A = m.K.mT @ m.Q
    return bool(((A - A.mT).abs().amax((-1, -2)) <= 1e-14 * A.abs().amax((-1, -2))).all())
