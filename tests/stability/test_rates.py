"""Local growth rates against the Jacobian itself, everywhere in the tube."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.papers.stability_estimate.random_fields import FIELDS, cloud
from otflow.stability.bounds.rates import rates

T = torch.tensor(0.3, dtype=torch.float64)


def jacobian(field: of.VelocityField, mu: of.Particles) -> Tensor:
    """d Gamma_i / d x_j, (n, d, n, d)."""
    J: Tensor = torch.autograd.functional.jacobian(lambda x: field(T, mu.at([x]))[0], mu.x)
    return J


def growth(J: Tensor, w: Tensor, p: float) -> float:
    """The largest rate of (sum_i w_i |e_i|^p)^(1/p) that is found: exact for p = 2, by ascent else."""
    n, d = w.shape[-1], J.shape[1]
    root = w.sqrt()[:, None].expand(n, d).flatten()
    B = root[:, None] * J.reshape(n * d, n * d) / root[None, :]
    top, vectors = torch.linalg.eigh((B + B.T) / 2)
    if p == 2:
        return float(top[-1])
    e = (vectors[:, -8:] / root[:, None]).T.reshape(-1, n, d).clone().requires_grad_()
    ascent = torch.optim.Adam([e], lr=0.05)
    for _ in range(60):
        value = _rate(e, J, w, p)
        ascent.zero_grad()
        (-value.sum()).backward()
        ascent.step()
    return float(_rate(e.detach(), J, w, p).max())


def _rate(e: Tensor, J: Tensor, w: Tensor, p: float) -> Tensor:
    """d/dt log ||e||_p along de/dt = Je."""
    Je = torch.einsum("iajb,kjb->kia", J, e)
    size = e.norm(dim=-1)
    if math.isinf(p):
        i = size.argmax(-1)[:, None, None].expand(-1, 1, e.shape[-1])
        a, b = e.gather(1, i)[:, 0], Je.gather(1, i)[:, 0]
        return (a * b).sum(-1) / a.square().sum(-1)
    share = w * size**p
    return (share * ((e * Je).sum(-1) / size**2)).sum(-1) / share.sum(-1)


def moved(mu: of.Particles, rho: float, rng: np.random.Generator) -> of.Particles:
    """Every token displaced by rho."""
    u = torch.from_numpy(rng.standard_normal(mu.x.shape))
    return mu.at([mu.x + rho * u / u.norm(dim=-1, keepdim=True)])


ORDERS = [
    (name, p) for name in FIELDS for p in (1.0, 1.5, 2.0, 4.0, math.inf) if name != "Sinkhorn" or p == 2
]


@pytest.mark.thorough
@pytest.mark.slow(but_for=["softmax-*", "*-2.0"])
@pytest.mark.parametrize(("name", "p"), ORDERS)
def test_no_displacement_grows_faster_than_the_rate(name: str, p: float) -> None:
    rng = np.random.default_rng(5)
    shares = []
    for trial in range(12 if p == 2 else 3):
        d, n = 1 + trial % 3, 3 + trial % 4
        field = FIELDS[name]((), d, rng)
        mu = cloud((), n, d, rng, labelled="masked" in name, weighted=trial % 2 == 1)
        for rho in (0.0, 0.05):
            bound = rates(field, mu, T, torch.tensor(rho).double(), p).p
            found = max(growth(jacobian(field, moved(mu, rho, rng)), mu.w, p) for _ in range(2))
            assert found <= float(bound) * (1 + 1e-9)
            shares.append(found / float(bound))
    assert max(shares) > 0.2  # the bound is not idle


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "Sinkhorn"])
def test_the_rate_of_the_largest_displacement_is_that_of_p_infinity(name: str) -> None:
    rng = np.random.default_rng(6)
    field, mu = FIELDS[name]((), 2, rng), cloud((), 5, 2, rng, labelled="masked" in name)
    rho = torch.tensor(0.01).double()
    two, most = rates(field, mu, T, rho, 2.0), rates(field, mu, T, rho, math.inf)
    torch.testing.assert_close(two.sup, most.sup)
    torch.testing.assert_close(most.p, most.sup)


@pytest.mark.parametrize("name", FIELDS)
def test_a_batch_has_the_rates_of_its_members(name: str) -> None:
    rng = np.random.default_rng(7)
    field, mu = FIELDS[name]((4,), 2, rng), cloud((4,), 5, 2, rng, labelled="masked" in name, weighted=True)
    rho = torch.tensor([0.0, 1e-6, 0.01, 0.1]).double()
    together = rates(field, mu, T, rho, 2.0)
    for k in range(4):
        which = torch.arange(4) == k
        own = field.pick(which)
        if own is None:
            return  # a field that varies with time cannot be taken apart
        alone = rates(own, mu[which], T, rho[which], 2.0)
        torch.testing.assert_close(alone.p[0], together.p[k], rtol=1e-10, atol=0)


def test_tiles_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    field, mu = FIELDS["masked L2"]((), 3, rng), cloud((), 40, 3, rng, labelled=True, weighted=True)
    rho = torch.tensor(0.02).double()
    whole = rates(field, mu, T, rho, 3.0)
    monkeypatch.setattr("otflow.base.kernels.TILE", 200)
    torch.testing.assert_close(rates(field, mu, T, rho, 3.0), whole, rtol=1e-12, atol=0)


def test_tokens_without_mass_do_not_count() -> None:
    rng = np.random.default_rng(9)
    field, mu = FIELDS["softmax"]((), 2, rng), cloud((), 5, 2, rng, labelled=False)
    ghost = of.Particles(torch.cat([mu.x, 0.5 * mu.x[:1]]), [0.2] * 5 + [0.0])
    rho = torch.tensor(0.0).double()
    torch.testing.assert_close(rates(field, ghost, T, rho, 2.0), rates(field, mu, T, rho, 2.0))
