"""The mean log likelihood over M draws of the last dense layer's output (the paper's section 4.2, corrected by D5).

What autograd keeps are a few tensors of the output's size, whatever M:
regression   mean_i (y - u_i)^2 = (y - a)^2 - 2 (y - a) b t1 + b^2 t2, d_P = 3, t from the distribution of the means
binary       fixed nodes in zeta for the limit; or a quadratic function of u (a bound, a Taylor polynomial), d_P = 3
classes      mean_i of the gradient, accumulated draw by draw beside the value; for the limit a bound by cumulants
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from mcrepar.distributions.noise import Noise
from mcrepar.distributions.quadrature import Rule
from mcrepar.errors import MethodError, ParameterError, TaylorWarning
from mcrepar.likelihoods import Bernoulli, Categorical, Likelihood, NoisyDirichlet, Normal, OneOfMany
from mcrepar.likelihoods.likelihood import log_prob_of_square
from mcrepar.nn.preactivation import Preactivation

GAUSS_NODES = 20  # of a Gauss rule: error below 1e-4 for standard deviations of u up to 2
CHUNK = 2**18  # elements of noise that a stream holds at once
TAYLOR = (-math.log(2), 1 / 2, -1 / 8, 0.0, 1 / 192)  # of log sigmoid(u) about 0


def log_prob(
    likelihood: Likelihood,
    u: Preactivation,
    y: Tensor,
    draws: int | str,
    method: str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """mean_i log p(y | u_i) over M draws of the last layer's output: (batch,).

    Args:
        likelihood: Normal with one scale, Bernoulli, Categorical or NoisyDirichlet.
        u: the distribution of the output.
        y: as the likelihood takes it.
        draws: M, or "exact" for M -> infinity.
        method: for Bernoulli "stream" (the default for M draws), "quadrature" (the default for "exact", which is
            all that it computes), "bound" or "taylor"; for Categorical "stream" or, for "exact", "bound".
        generator: the source of the noise; None is the default RNG of the device.
    """
    m = _draws(draws)
    if isinstance(likelihood, OneOfMany) and u.loc.dim() != 2:
        why = f"the layer's output has {u.loc.dim()} dimensions, so that classes are not its outputs"
        raise MethodError(f"last_layer_draws with {likelihood}", why, "draws=M")
    methods = LAST_LAYER_METHODS.get(type(likelihood), {})
    if not methods or (isinstance(likelihood, Normal) and likelihood.kind == "heteroscedastic"):
        why = "log p is neither linear in u^2 nor that of classes"
        raise MethodError(f"last_layer_draws with {likelihood}", why, "draws=M")
    if method is not None and method not in methods:
        why = f"{type(likelihood).__name__} has no such method"
        raise MethodError(f"last_layer_method={method!r}", why, " or ".join(map(repr, methods)))
    default = "stream" if m is not None and "stream" in methods else next(iter(methods))
    return methods[method or default](Ask(likelihood, u, y, m, generator))


@dataclass(frozen=True, eq=False)
class Ask:
    """What is asked for: the mean of log p(y | u) over some draws of u, or over all."""

    likelihood: Any
    u: Preactivation
    y: Tensor
    draws: int | None
    generator: torch.Generator | None

    def central_means(self) -> tuple[Tensor, Tensor]:
        """The means of u - a and of its square."""
        return self.u.central_means(self.draws, self.generator)


def _draws(draws: object) -> int | None:
    if draws == "exact":
        return None
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ParameterError(f"last_layer_draws={draws!r}", "it is no number of draws", "1, 2, ... or 'exact'")
    return draws


def _square(ask: Ask) -> Tensor:
    """Regression: (y - a)^2 - 2 (y - a) b t1 + b^2 t2."""
    first, second = ask.central_means()
    target, log_scale = ask.likelihood.target(ask.u.loc, ask.y)
    residual = target - ask.u.loc
    return log_prob_of_square(residual.square() - 2 * residual * first + second, log_scale)


def _bound(ask: Ask) -> Tensor:
    """Jaakkola-Jordan: log sigmoid(u) >= log sigmoid(e) + (u - e) / 2 - lambda(e) (u^2 - e^2), at e^2 = E u^2.

    The best e is a stationary point, so no gradient goes through it.
    """
    u = ask.u
    with torch.no_grad():
        e2 = (u.loc.square() + u.central_means(None)[1]).clamp_min(torch.finfo(u.loc.dtype).tiny)
        e = e2.sqrt()
        curve = torch.tanh(e / 2) / (4 * e)
        constant = F.logsigmoid(e) - e / 2 + curve * e2
    return _quadratic(ask, constant, -curve)


def _cumulants(ask: Ask) -> Tensor:
    """A bound on E log softmax_y(u) by the cumulants K_c = log E exp(u_c - a_c), in the place of half variances."""
    _refuse_draws(ask, "bound", "the bound is that")
    k = sum((part.cumulant for part in ask.u.parts), torch.zeros_like(ask.u.loc))
    bound: Tensor = ask.likelihood.expected_log_prob(ask.u.loc, 2 * k, ask.y)
    return bound


def _taylor(ask: Ask) -> Tensor:
    """The polynomial log sigmoid(u) ~ -log 2 + u/2 - u^2/8 (the paper prints u^2/4)."""
    warnings.warn(
        "the Taylor polynomial of the Bernoulli likelihood has an optimum at |u| = 2 that log p has not; "
        "last_layer_method='quadrature' has no bias",
        TaylorWarning,
        stacklevel=4,
    )
    return _quadratic(ask, TAYLOR[0], TAYLOR[2])


def _quadratic(ask: Ask, constant: Tensor | float, curve: Tensor | float) -> Tensor:
    """The mean of constant + (y - 1/2) u + curve u^2."""
    (first, second), loc = ask.central_means(), ask.u.loc
    square = loc.square() + 2 * loc * first + second
    values = constant + (ask.y.to(loc.dtype) - 0.5) * (loc + first) + curve * square
    return values.reshape(len(values), -1).sum(1)


def _stream(ask: Ask) -> Tensor:
    """mean_i log p(y | u_i) with its gradient accumulated beside it (Theorem S1)."""
    u, draws = ask.u, ask.draws
    if draws is None:
        raise MethodError("last_layer_draws='exact'", "this mean has no closed form", "a number such as 1000")

    def nodes() -> Iterator[tuple[list[Tensor], Tensor]]:
        chunk = max(1, CHUNK // u.loc.numel())
        for first in range(0, draws, chunk):
            zetas = u.draw(min(chunk, draws - first), ask.generator)
            yield zetas, zetas[0].new_full((len(zetas[0]),), 1 / draws)

    return _mean(ask, nodes)


def _quadrature(ask: Ask) -> Tensor:
    """sum_n omega_n log p(y | a + b x_n), the product of two rules for two parts."""
    _refuse_draws(ask, "quadrature", "quadrature computes the limit")
    u = ask.u
    rules = [_gauss(part.noise) for part in u.parts]
    points = np.stack(np.meshgrid(*(x for x, _ in rules), indexing="ij")).reshape(len(rules), -1)
    weights = np.prod(np.meshgrid(*(w for _, w in rules), indexing="ij"), axis=0).reshape(-1)

    def nodes() -> Iterator[tuple[list[Tensor], Tensor]]:
        chunk = max(1, CHUNK // u.loc.numel())
        for first in range(0, len(weights), chunk):
            x, omega = (torch.as_tensor(v[..., first : first + chunk]).to(u.loc) for v in (points, weights))
            yield [row.view(-1, *[1] * u.loc.dim()) for row in x], omega

    return _mean(ask, nodes)


def _refuse_draws(ask: Ask, method: str, what: str) -> None:
    if ask.draws is not None:
        asked = f"last_layer_draws={ask.draws} with last_layer_method={method!r}"
        raise MethodError(asked, f"{what} of infinitely many draws and takes none", "last_layer_draws='exact'")


@lru_cache(maxsize=64)
def _gauss(noise: Noise) -> Rule:
    """The Gauss rule of one coordinate of the noise: Lanczos on its fine rule, then the eigenvalues."""
    x, weights = noise.nodes()
    basis = [np.sqrt(weights)]
    for _ in range(GAUSS_NODES - 1):
        v = x * basis[-1]
        for _ in range(2):  # orthogonal to rounding
            v = v - np.array(basis).T @ (np.array(basis) @ v)
        basis.append(v / np.linalg.norm(v))
    q = np.array(basis)
    nodes, vectors = np.linalg.eigh(q @ (x[:, None] * q.T))
    return nodes, vectors[0] ** 2


Nodes = Callable[[], Iterator[tuple[list[Tensor], Tensor]]]  # zeta of every part (nodes, ...), and their weights


def _mean(ask: Ask, nodes: Nodes) -> Tensor:
    spreads = [part.spread for part in ask.u.parts]
    mean: Tensor = _Mean.apply(ask.likelihood, ask.y, nodes, ask.u.loc, *spreads)  # type: ignore[no-untyped-call]
    return mean


class _Mean(torch.autograd.Function):
    """sum_n omega_n log p(y | a + sum_p b_p zeta_pn): A_a and A_b are accumulated, and nothing else is kept."""

    @staticmethod
    def forward(ctx: Any, likelihood: Likelihood, y: Tensor, nodes: Nodes, loc: Tensor, *spreads: Tensor) -> Tensor:
        total, slopes = loc.new_zeros(len(loc)), [torch.zeros_like(x) for x in (loc, *spreads)]
        for zetas, omega in nodes():
            u = loc + sum(b * zeta for b, zeta in zip(spreads, zetas, strict=True))  # (nodes, batch, ..., outputs)
            many = y.expand(len(u), *y.shape).flatten(0, 1)
            with torch.enable_grad():
                u.requires_grad_()
                values = likelihood.log_prob(u.flatten(0, 1), many).view(len(u), len(loc))
            (slope,) = torch.autograd.grad(values, u, omega[:, None].expand_as(values))
            total += omega @ values.detach()
            slopes[0] += slope.sum(0)
            for into, zeta in zip(slopes[1:], zetas, strict=True):
                into += (slope * zeta).sum(0)
        ctx.save_for_backward(*slopes)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, None, None, *(grad.view(-1, *[1] * (s.dim() - 1)) * s for s in ctx.saved_tensors)


# By default "stream" for M draws, else the first.
LAST_LAYER_METHODS: dict[type[Likelihood], dict[str, Callable[[Ask], Tensor]]] = {
    Normal: {"tuple": _square},
    Bernoulli: {"quadrature": _quadrature, "bound": _bound, "taylor": _taylor, "stream": _stream},
    Categorical: {"bound": _cumulants, "stream": _stream},
    NoisyDirichlet: {"tuple": _square},
}
