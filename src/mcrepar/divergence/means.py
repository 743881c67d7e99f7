"""Where t comes from: the moments of the noise, one draw of the law of its means, or averages over M draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.draws import Walk

Means = Mapping[Monomial, Number]


def moments(q: Posterior, taus: Iterable[Monomial]) -> dict[Monomial, Number]:
    """E tau(xi): the limit of M -> infinity, without variance (`exact`)."""
    return {tau: 1.0 if tau.constant else q.noise.moment(tau) for tau in taus}


def lawful(
    q: Posterior, taus: Iterable[Monomial], walk: Walk, generator: torch.Generator | None
) -> dict[Monomial, Number]:
    """One draw of the means of M statistics from their own law, in time without M (`stats`)."""
    taus = list(taus)
    wanted = tuple(tau for tau in taus if not tau.constant)
    drawn = q.noise.draw_means(wanted, walk.draws, q.numel, dtype=q.dtype, device=q.device, generator=generator)
    return {**moments(q, (tau for tau in taus if tau.constant)), **dict(zip(wanted, drawn, strict=True))}


def averages(taus: Iterable[Monomial], walk: Walk) -> dict[Monomial, Number]:
    """mean_i tau(xi_i) over M draws, without a graph and in bounded memory: the paper's t(xi) (`repar`)."""
    out: dict[Monomial, Number] = {}
    sums: dict[Monomial, Tensor] = {}
    for tau in taus:
        if tau.constant:
            out[tau] = 1.0
        else:
            sums[tau] = torch.zeros(walk.size, dtype=walk.dtype, device=walk.device)

    def visit(block: slice, xi: Tensor) -> None:
        for tau, total in sums.items():
            _add(total[block], tau, xi)

    with torch.no_grad():
        walk.each(visit)
        out.update({tau: total.div_(walk.draws) for tau, total in sums.items()})
    return out


def _add(total: Tensor, tau: Monomial, xi: Tensor) -> None:
    """total += sum over draws of tau(xi), in one pass where there is one draw."""
    if len(xi) > 1:
        total.add_(tau(xi).sum(0))
    elif tau == Monomial(2.0):
        total.addcmul_(xi[0], xi[0])
    else:
        total.add_(tau(xi[0]))


def mean_log_density(q: Posterior, walk: Walk) -> Tensor:
    """mean_i log q0(xi_i), summed over the weights, of the very draws of `walk`."""
    with torch.no_grad():
        if q.noise.joint:
            return q.noise.log_density(walk.norms()[:, None]).mean()
        totals: list[Tensor] = []
        walk.each(lambda block, xi: totals.append(q.noise.log_density(xi).sum(dtype=torch.float64)))
        return torch.stack(totals).sum() / walk.draws


def combined_log_density(q: Posterior, means: Means, terms: Sequence[tuple[float, Monomial]]) -> Tensor:
    """The same from statistics that are drawn already: constant + sum of coefficient * t."""
    constant = -sum(c * q.noise.moment(tau) for c, tau in terms) - q.noise.entropy()
    total = torch.tensor(constant * q.numel, dtype=torch.float64, device=q.device)
    for coefficient, tau in terms:
        t = means[tau]
        total += coefficient * (t.sum(dtype=torch.float64) if isinstance(t, Tensor) else t * q.numel)
    return total
