"""Numbers that can contradict a verdict on a pair: tuples, quadratures, ranks of kernels, supports, divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import POSTERIORS, posterior
from mcrepar.distributions.prior import Prior
from mcrepar.divergence.kl import kl_divergence
from mcrepar.inspect.graph import saved_bytes

FEW, MANY = 10, 1000  # draws whose graphs are compared
CUTS = (15.0, 30.0, 45.0)  # of log |w|, at which an integral is cut
NEGLIGIBLE = 1e-9  # a singular value, relative to the largest


def example(name: str, size: int, **fixed: Any) -> Posterior:
    """A posterior in float64 with learned parameters that require grad, all different."""
    steps = torch.linspace(0.0, 0.3, size, dtype=torch.float64)
    learned = {"scale": (0.6 + steps).requires_grad_()}
    if "loc" in POSTERIORS[name].learned:
        learned = {"loc": (0.4 - steps).requires_grad_(), **learned}
    return posterior(name, **learned, **fixed)


@dataclass(frozen=True)
class TupleCheck:
    """repar beside direct on the same noise.

    Args:
        value: relative difference of the values.
        gradient: largest relative difference of the gradients.
        bytes_few: saved for backward by repar for few draws.
        bytes_many: for many.
    """

    value: float
    gradient: float
    bytes_few: int
    bytes_many: int


def tuples(q: Posterior, p: Prior, seed: int) -> TupleCheck:
    """Whether the tuple of a pair gives the direct estimate."""
    found = []
    for method in ("repar", "direct"):
        generator = torch.Generator().manual_seed(seed)
        value = kl_divergence(q, p, method, FEW, force=True, generator=generator)
        found.append((value.detach(), torch.autograd.grad(value, q.learned)))
    (ours, ours_gradient), (theirs, their_gradient) = found
    gradient = max(_relative(a, b) for a, b in zip(ours_gradient, their_gradient, strict=True))
    saved = [saved_bytes(lambda m=m: kl_divergence(q, p, "repar", m, force=True)) for m in (FEW, MANY)]  # type: ignore[misc]
    return TupleCheck(_relative(ours, theirs), gradient, *saved)


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp_min(1.0))


def nodes(q: Posterior, cut: float, count: int = 20_001) -> tuple[Tensor, Tensor]:
    """Points w around the posterior's location (above it for a half-line), even in log |w|, and their weights."""
    u = torch.linspace(-cut, cut, count, dtype=torch.float64)
    step = u.exp() * (u[1] - u[0])
    if q.row.support.lower >= 0:
        return q.row.support.lower + u.exp(), step
    centre = float(torch.as_tensor(q.loc).detach())
    return torch.cat([centre - u.exp(), centre + u.exp()]), torch.cat([step, step])


def integral(q: Posterior, p: Prior, cut: float) -> float:
    """The integral of q (log q - log p) for one weight, |log |w|| up to the cut: a trapezoid rule."""
    with torch.no_grad():
        w, step = nodes(q, cut)
        log_q = q.log_prob(w.unsqueeze(1)).reshape(len(w))
        log_p = p.log_prob(w.unsqueeze(1)).reshape(len(w))
        inside = log_q > -700.0  # below, the density is 0 in float64
        mass = log_q[inside].exp() * step[inside]
        return float((mass * (log_q - log_p)[inside]).sum())


def quadrature_error(q: Posterior, p: Prior) -> float:
    """The relative difference of the exact KL of one weight from a quadrature of the two log densities."""
    exact = kl_divergence(q, p, "exact").item()
    return abs(integral(q, p, 40.0) - exact) / max(1.0, abs(exact))


def divergence_ratio(q: Posterior, p: Prior) -> float:
    """What the second widening of the KL's integral adds, relative to the first: near 0 where it converges."""
    first, second, third = (integral(q, p, cut) for cut in CUTS)
    return min(1e6, abs(third - second) / max(abs(second - first), 1e-300))


def sampled_z(q: Posterior, p: Prior, draws: int, seed: int) -> float:
    """How many standard errors the mean of log q - log p over draws is from the exact KL."""
    with torch.no_grad():
        w = q.draw(draws, torch.Generator().manual_seed(seed))
        log_q, log_p = (d.reshape(draws, -1).sum(1) for d in (q.log_prob(w), p.log_prob(w)))
        sample = log_q - log_p
        error = sample.std() / math.sqrt(draws)
        return float((sample.mean() - kl_divergence(q, p, "exact")) / error)


def outside(q: Posterior, p: Prior, seed: int, draws: int = 10_000) -> float:
    """The share of the posterior's draws to which the prior gives no density."""
    with torch.no_grad():
        w = q.draw(draws, torch.Generator().manual_seed(seed))  # (draws, weights)
        inside = (w.sum(1) - 1).abs() < 1e-9 if p.simplex else p.support.holds(w).all(1)
        return 1 - float(inside.double().mean())


def rank(q: Posterior, p: Prior, size: int, seed: int) -> int:
    """The numerical rank of the kernel log p(W(theta, xi)) on random parameters and noises.

    sum_i g(W(theta, xi_i)) = <n(theta), t> with d products exactly where this rank is at most d, for any size. Where
    the prior is joint, the kernel is that of a tensor of two weights: of one it would not show what joins them. It is 0
    where log p is not defined for the posterior's weights, such as log w for w < 0.

    Args:
        q: the family; its own parameters are not used.
        p: the prior.
        size: of the square matrix.
        seed: of its parameters and noises.
    """
    generator, weights = torch.Generator().manual_seed(seed), 2 if p.density.joint else 1
    with torch.no_grad():
        locs, scales = torch.rand(2, size, 1, weights, generator=generator, dtype=torch.float64)
        noise = q.noise.draw(size, weights, dtype=torch.float64, device="cpu", generator=generator)
        noise = noise.reshape(1, size, weights).clamp(-5.0, 5.0)  # heavy tails would hide all but a few directions
        loc = 4 * locs - 2 if q.form.learned_loc else q.loc
        w = q.form.weights(loc, 0.3 + scales, noise)  # (parameters, noises, weights)
        kernel = torch.zeros(size, size, dtype=torch.float64)
        for term in p.density.terms:
            kernel = kernel + term(w).reshape(size, size)
        if not bool(kernel.isfinite().all()):
            return 0
        values = torch.linalg.svdvals(kernel)
    return int((values > NEGLIGIBLE * values[0]).sum())
