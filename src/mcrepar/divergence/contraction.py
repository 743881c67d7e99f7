"""The contraction <n(theta), t>: one sum over weights per entry of the tuple, in a graph of a size without M.

Where t comes from is the caller's affair: moments, one draw from the distribution of means, or means over M draws. The
sums and their gradient are one autograd.Function, which saves theta and t and nothing else; its eager twin is plain
torch, for double backward and for looking at the graph. `Tuple` is the same as the paper writes it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mcrepar.distributions.forms import Entry, Form, expand
from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Term
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.chunks import DEFAULT_BYTES
from mcrepar.divergence.sums import Factor, Order, Sums, block_size, unflat, wide_sum
from mcrepar.divergence.terms import PosteriorKey

TEMPORARIES = 8  # of a block that live at once
CONTRACTED = 2**20  # weights that are contracted at once: few calls, and temporaries that never grow with the tensor


@dataclass(frozen=True, eq=False)
class Product:
    """coefficient * sum over weights of n(theta) t."""

    coefficient: Number  # a number or a tensor that broadcasts to the weights
    entry: Entry  # n(theta), as powers of u = loc - center, of scale, and of log scale - center
    center: Number  # a number or a tensor that broadcasts to the weights
    t: Number  # the mean of the noise statistic: a number, or a flat tensor with one per weight


@dataclass(frozen=True, eq=False)
class Fixed:
    """A KL as sums over weights that are the same at every step."""

    # that hold all numbers, each with the statistic whose mean over M draws it is multiplied by, if any
    factors: Sequence[tuple[Factor, Monomial | None]] = ()
    rest: float = 0.0  # what is added to their sums
    draws: int = 0  # M

    @classmethod
    def of(cls, q: Posterior, products: Sequence[Product], drawn: Sequence[Product], rest: float, draws: int) -> Fixed:
        """The sum of products whose t are numbers, of products whose t are drawn, and of a constant."""
        factors: list[tuple[Factor, Monomial | None]] = []
        for product in (*products, *drawn):
            tau = product.entry.tau if product in drawn else None
            known = replace(product, t=1.0) if tau is not None else product
            coefficient, factor, t = _flattened(q, known, q.loc)
            number = float(coefficient * factor.factor * t)
            if tau is None and not (factor.a or factor.b or factor.j):
                rest += number * q.numel
            elif number:
                factors.append((replace(factor, factor=number), tau))
        return cls(factors, rest, draws)

    @functools.cached_property
    def taus(self) -> tuple[Monomial, ...]:
        """The statistics whose means are drawn."""
        return tuple(dict.fromkeys(tau for _, tau in self.factors if tau is not None))

    def summands(self, means: Sequence[Tensor]) -> list[tuple[Factor, Number]]:
        """The factors with their t, from those that are drawn."""
        drawn = dict(zip(self.taus, means, strict=True))
        return [(f, 1.0 if tau is None else drawn[tau]) for f, tau in self.factors]


def contract(
    q: Posterior,
    products: Sequence[Product],
    order: Order = None,
    eager: bool = False,
    max_bytes: int = DEFAULT_BYTES,
) -> Tensor:
    """The sum of `products` over the weights of `q`, in float64.

    sum_j c_j sum_d n_j(theta_d) t_jd

    Args:
        q: the posterior.
        products: its entries with their coefficients and means.
        order: in which the means t go through the weights.
        eager: keep plain autograd, to be looked at.
        max_bytes: bound on the temporaries of a block of weights.
    """
    loc, live = _centred(q, [p for p in products if isinstance(p.t, Tensor) or p.t != 0])
    plain = [p for p in live if eager or _needs_graph(p)]
    rest = [p for p in live if not (eager or _needs_graph(p))]
    total = _eager(q, loc, [_in_shape(p, q, order) for p in plain])
    if rest:
        scale = q.learned[-1]
        coefficients, factors, ts = zip(*(_flattened(q, p, loc) for p in rest), strict=True)
        is_log = q.free_log_scale is not None
        start = loc if isinstance(loc, Tensor) else None
        block = block_size(max_bytes, scale.dtype, scale.device, TEMPORARIES, CONTRACTED)
        sums: Tensor = Sums.apply(  # type: ignore[no-untyped-call]
            factors, ts, start, scale, is_log, block, order
        )
        total = total + _weighted(coefficients, sums)
    return total


def _weighted(coefficients: Sequence[Number], sums: Tensor) -> Tensor:
    """sum_j coefficient_j sums_j, of numbers and tensors of one number, without a copy from the host to a device."""
    if sums.device.type == "cpu":
        return torch.stack([torch.as_tensor(c, dtype=sums.dtype) for c in coefficients]) @ sums
    return functools.reduce(operator.add, [c * part for c, part in zip(coefficients, sums.unbind(), strict=True)])


def slope_entries(q: PosteriorKey) -> tuple[Entry, ...]:
    """The entries of log f'(v), none where the outer map is the identity."""
    if q.form.outer.slope is None:
        return ()
    return expand(q.form.outer.slope[1], Form(q.form.learned_loc), q.loc, 0.0, q.noise.positive) or ()


def _in_shape(product: Product, q: Posterior, order: Order) -> Product:
    return replace(product, t=unflat(product.t, q.shape, order)) if isinstance(product.t, Tensor) else product


def _centred(q: Posterior, products: list[Product]) -> tuple[Number, list[Product]]:
    """loc - center and products centred at 0, where the products on loc share a centre that is a tensor."""
    on_loc = [p.center for p in products if p.entry.loc_power]
    if not on_loc or not isinstance(on_loc[0], Tensor) or any(c is not on_loc[0] for c in on_loc):
        return q.loc, products
    free = [replace(p, center=0.0) if not p.entry.log_power else p for p in products]
    return (q.loc - on_loc[0]).to(q.dtype).expand(q.shape), free


def _needs_graph(product: Product) -> bool:
    """Whether a prior's tensor stands where only plain autograd can differentiate it."""
    coefficient, entry = product.coefficient, product.entry
    learned = isinstance(coefficient, Tensor) and coefficient.numel() > 1 and coefficient.requires_grad
    return learned or (isinstance(product.center, Tensor) and bool(entry.loc_power or entry.log_power))


def _flattened(q: Posterior, product: Product, loc: Number) -> tuple[Number, Factor, Number]:
    """A product as a scalar coefficient, a factor and t, with what has a shape folded into t."""
    coefficient, entry, t = product.coefficient, product.entry, product.t
    center = 0.0 if isinstance(product.center, Tensor) else product.center
    factor, a = entry.factor, entry.loc_power
    if not isinstance(loc, Tensor):
        factor, a = factor * (loc - center) ** a, 0
    if isinstance(coefficient, Tensor) and coefficient.numel() > 1:
        t = coefficient.detach().to(q.dtype).expand(q.shape).reshape(-1) * t
        coefficient = 1.0
    elif isinstance(coefficient, Tensor):
        coefficient = coefficient.reshape(())
    return coefficient, Factor(factor, a, entry.scale_power, entry.log_power, float(center)), t


def _eager(q: Posterior, loc: Number, products: Sequence[Product]) -> Tensor:
    """The products by plain torch operations, without a node that the formula does not have."""
    wide = wide_sum(q.device)
    if not products:
        return torch.zeros((), dtype=wide, device=q.device)
    summands = [_summand(q, loc, product) for product in products]
    total = torch.as_tensor(functools.reduce(operator.add, summands), dtype=q.dtype, device=q.device)
    repeats = q.numel // total.numel()
    return total.sum(dtype=wide) if repeats == 1 else total.sum(dtype=wide) * repeats


def _summand(q: Posterior, loc: Number, product: Product) -> Number:
    """coefficient n(theta) t, elementwise; what needs no gradient is multiplied first, and so is no node."""
    entry, coefficient, center = product.entry, product.coefficient, product.center
    known = _times(product.t, entry.factor)
    factors: list[Number] = []
    if entry.loc_power:
        factors.append(_shifted_power(loc, center, entry.loc_power))
    if entry.scale_power:
        factors.append(Monomial(entry.scale_power)(q.scale))
    if entry.log_power:
        factors.append(_shifted_power(q.log_scale, center, entry.log_power))
    if isinstance(coefficient, Tensor) and coefficient.requires_grad:
        factors.append(coefficient)
    else:
        known = _times(known, coefficient)
    return functools.reduce(_times, [*factors, known])


def _shifted_power(x: Number, center: Number, power: int) -> Number:
    """(x - center)^power."""
    u = x - center if isinstance(center, Tensor) or center != 0 else x
    return Monomial(float(power))(u) if isinstance(u, Tensor) else u**power


def _times(x: Number, y: Number) -> Number:
    """x y, without a product by the number 1."""
    if not isinstance(x, Tensor) and x == 1:
        return y
    return x if not isinstance(y, Tensor) and y == 1 else x * y


@dataclass(frozen=True, eq=False)
class Tuple:
    """The paper's parameterization tuple (G, n, t) of log p without its constant.

    G(n(theta) * t(xi)) is the mean over the draws xi of the terms of log p(W(theta, xi)), summed over the weights.

    >>> import mcrepar
    >>> parts = mcrepar.explain("normal", "normal").tuple
    >>> loc, scale, xi = torch.tensor([0.5]), torch.tensor([2.0]), torch.tensor([[1.0], [-1.0]])
    >>> parts.G(parts.n((loc, scale)) * parts.t(xi))  # the mean over both draws of -w^2 / 2
    tensor(-2.1250)
    """

    q: Posterior  # for its form
    terms: Sequence[Term]  # of the prior
    entries: Sequence[tuple[Entry, ...]]  # of each term

    def n(self, theta: Posterior | Sequence[Tensor]) -> Tensor:
        """What depends on the learned parameters, with a graph: (entries, *shape).

        Args:
            theta: a posterior of the plan's family, or its learned tensors: loc and scale, or scale alone.
        """
        if not isinstance(theta, Posterior):
            learned: dict[str, Any] = dict(zip(self.q.row.learned, theta, strict=True))
            theta = self.q.bind(validate=False, **learned)
        parts = [
            _summand(theta, theta.loc, Product(term.coefficient, entry, term.center, 1.0))
            for term, entries in zip(self.terms, self.entries, strict=True)
            for entry in entries
        ]
        like = theta.scale
        return torch.stack([torch.as_tensor(x, dtype=like.dtype, device=like.device).expand(like.shape) for x in parts])

    def t(self, xi: Tensor) -> Tensor:
        """The means over draws of the noise's statistics, without a graph: (entries, *shape) from (draws, *shape)."""
        with torch.no_grad():
            return torch.stack([entry.tau(xi).mean(0) for entries in self.entries for entry in entries])

    def G(self, products: Tensor) -> Tensor:
        """Their sum over the entries and the weights."""
        return products.sum()
