"""One KL for random tensors that are one row of weights: from the posterior of the row to the sum of their KLs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import mul
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from mcrepar.distributions.noise import Noise
from mcrepar.distributions.parameters import Number
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.random import Source
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.kl import apply_plan
from mcrepar.divergence.methods import wide_dtype
from mcrepar.divergence.sums import summed
from mcrepar.errors import MethodError
from mcrepar.nn.random_tensor import RandomTensor, random_tensors

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

Divergence = Callable[[Posterior, torch.Generator | None], Tensor]
Powers = tuple[int, float, int, float]  # a, b, j and c of (loc - c)^a scale^b (log scale - c)^j
Key = tuple[Monomial | None, Powers]  # and the statistic whose mean is drawn


def row_posterior(template: Posterior, noise: Noise, loc: Tensor | None, log_scale: Tensor) -> Posterior:
    """The posterior of a row of weights, in at least single precision, unchecked."""
    wide, learned = wide_dtype(log_scale.dtype), template.form.learned_loc
    loc = None if loc is None else loc.to(wide)
    fixed = template.fixed if learned or loc is None else {**template.fixed, "loc": loc}
    return Posterior(template.row, fixed, noise, loc if learned else None, None, log_scale.to(wide))


def fixed_kl(tensors: Sequence[RandomTensor], places: Tensor) -> Divergence | None:
    """The KL by products that are the same at every step, and means that are drawn at once; None by other methods.

    Args:
        tensors: of the row, with one family of posteriors and one of priors.
        places: the number of the tensor that a weight of the row belongs to.
    """
    factors: dict[Key, list[float]] = defaultdict(lambda: [0.0] * len(tensors))
    total, draws = 0.0, 0
    for k, tensor in enumerate(tensors):
        found = tensor.fixed_products()
        if found is None:
            return None
        total, draws = total + found.rest, found.draws
        for f, tau in found.factors:
            factors[tau, (f.a, f.b, f.j, f.center if f.a or f.j else 0.0)][k] += f.factor
    like, sizes = tensors[0].log_scale, [tensor.log_scale.numel() for tensor in tensors]

    def each(numbers: list[float]) -> Number:
        """One number where all tensors have the same, else one for every weight, made where they are."""
        if len(set(numbers)) == 1:
            return numbers[0]
        pairs = zip(sizes, numbers, strict=True)
        return torch.cat([torch.full((n,), x, dtype=wide_dtype(like.dtype), device=like.device) for n, x in pairs])

    live = {key: each(numbers) for key, numbers in factors.items() if any(numbers)}
    taus = tuple(dict.fromkeys(tau for tau, _ in live if tau is not None))
    return partial(_contracted, live, total, partial(_means, taus, draws, sizes, places)) if live else None


def _means(
    taus: tuple[Monomial, ...],
    draws: int,
    sizes: list[int],
    places: Tensor,
    q: Posterior,
    generator: torch.Generator | None,
) -> dict[Monomial | None, Tensor]:
    """One draw of the means over M draws, for all tensors of a row."""
    if not taus:
        return {}
    with torch.no_grad():
        source = Source(q.dtype, q.device, generator)
        return dict(zip(taus, q.noise.draw_means_rows(taus, source, draws, sizes, places), strict=True))


def elementwise_kl(first: RandomTensor) -> Divergence | None:
    """The KL of a row whose tensors have the prior of the first, by any method; None where weights are not independent.

    Over independent weights every method is a sum, so that a row is one tensor.
    """
    q, p, estimator = first.posterior, first.options.prior, first.options.estimator
    if q.noise.joint or p.density.joint:
        return None
    plan = first.planned(q, first.prior(q))
    return lambda row, generator: apply_plan(plan, row, p, estimator, generator)


# ---- compiled, or transformed by torch.func


def settle(bnn: BayesianModule) -> None:
    """Decide how every tensor's KL is computed by plain operations, in a compiled graph for instance."""
    for tensor in random_tensors(bnn).values():
        for part in tensor.tensors:
            fixed = part.fixed_products()
            part.settled = None if fixed is None or fixed.taus else fixed_kl([part], torch.empty(0))


def plain_kl(bnn: BayesianModule, generator: torch.Generator | None) -> Tensor:
    """The KL of a network by plain operations, unchecked: tensor by tensor, by fixed products where that can be."""
    tensors = [part for tensor in random_tensors(bnn).values() for part in tensor.tensors]
    parts = [_own_kl(tensor, generator) for tensor in tensors]
    return (sum(parts[1:], parts[0]) / max(bnn.members, 1)).to(wide_dtype(tensors[0].log_scale.dtype))


def _own_kl(tensor: RandomTensor, generator: torch.Generator | None) -> Tensor:
    if tensor.settled is None and not torch.compiler.is_compiling():
        try:
            return tensor.divergence(generator=generator)
        except RuntimeError as error:
            raise MethodError(
                f"the KL of {tensor.name} in a transform of torch.func",
                f"its estimator has a backward of its own, or looks at values ({error})",
                "kl_method='direct', or a prior with a tuple, such as 'normal'",
            ) from error
    if tensor.settled is None:
        torch._dynamo.graph_break(
            msg=f"the KL of {tensor.name} looks at values or draws noise in Python, outside of a graph: leave out "
            "fullgraph=True, or use kl_method='exact' with a prior whose parameters are numbers"
        )
        return _outside_of_a_graph(tensor, generator)
    template = tensor.options.posterior
    return tensor.settled(row_posterior(template, template.noise, tensor.centre, tensor.log_scale), generator)


@_disable_dynamo
def _outside_of_a_graph(tensor: RandomTensor, generator: torch.Generator | None) -> Tensor:
    return tensor.divergence(generator=generator)


def _contracted(
    factors: dict[Key, Number],
    constant: float,
    means: Callable[[Posterior, torch.Generator | None], Mapping[Monomial | None, Tensor]],
    q: Posterior,
    generator: torch.Generator | None,
) -> Tensor:
    """The sum over weights of factor (loc - c)^a scale^b (log scale - c)^j t, and a constant."""
    log_scale, t = q.log_scale, means(q, generator)
    total: Tensor | None = None
    for (tau, (a, b, j, center)), factor in factors.items():
        parts = [_less(q.loc, center)] * a if a else []
        parts += [(log_scale * b).exp()] if b else []
        parts += [_less(log_scale, center)] * j if j else []
        parts += [t[tau]] if tau is not None else []
        n = reduce(mul, parts)
        if total is None:
            total = n * factor
        elif isinstance(factor, Tensor):
            total = torch.addcmul(total, n, factor)
        else:
            total = torch.add(total, n, alpha=factor)
    assert total is not None
    return summed(total) + constant


def _less(x: Number, center: float) -> Tensor:
    assert isinstance(x, Tensor)
    return x - center if center else x
