"""Multiplicative noise: W = Wbar o (r s^T), with one random factor r per output and s per input unit of a layer.

Wbar and biases are ordinary parameters, point estimates with the weight decay of an ordinary network. In training every
example has factors of its own, y = r o (Wbar (s o x)) + b; a sample of the weights is one network for all examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils import _pytree as pytree

from mcrepar.distributions.forms import EXP, IDENTITY
from mcrepar.distributions.noise import Noise
from mcrepar.distributions.parameters import WHOLE
from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import prior
from mcrepar.distributions.random import transformed
from mcrepar.distributions.statistics import Monomial
from mcrepar.errors import MethodError, ParameterError
from mcrepar.nn.batches import examples
from mcrepar.nn.forwards.factored_weight import FactoredWeight
from mcrepar.nn.forwards.layer_rows import dimensions, look, plain
from mcrepar.nn.random_tensor import Options, RandomTensor, each_named, random_tensors
from mcrepar.nn.select import Place
from mcrepar.nn.swap import run

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

FACTOR_STD = 0.1  # of a prior over factors that was asked for by name
MEMBER_STD = 0.3  # of the first means of several members, which must differ
FACTORED_LAYERS = (nn.Linear, _ConvNd, nn.Embedding, nn.MultiheadAttention)
PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")  # beside the layer out_proj
BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
TRANSFORMERS = (nn.MultiheadAttention, *BLOCKS, nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer)


class RankOne(nn.Module):
    """A weight whose outputs and inputs are multiplied by random factors, W = Wbar o (r s^T).

    Args:
        place: the weight in its network.
        options: families, prior and estimator of the factors.
        members: the number of posteriors, of which an example or a sample uses one.
        axis: the dimension of its layer's inputs and outputs that has the examples.
    """

    def __init__(self, place: Place, options: Options, members: int = 1, axis: int = 0) -> None:
        super().__init__()
        layer, self.name, self.options = place.owners[0], place.name, options
        self.weight = nn.Parameter(place.parameter.detach().clone())
        self.grouped, self.by_output, self.by_input = _shapes(layer, self.weight)
        self.members, self.axis = members, axis
        self.outputs, self.inputs = (
            nn.ModuleList(self._factor(f"{self.name}, {side}", math.prod(shape)) for _ in range(members))
            if shape
            else nn.ModuleList()
            for side, shape in (("outputs", self.by_output), ("inputs", self.by_input))
        )

    def _factor(self, name: str, size: int) -> RandomTensor:
        first = torch.ones(size, dtype=self.weight.dtype, device=self.weight.device)
        if self.members > 1:
            first = first.add(torch.randn_like(first), alpha=MEMBER_STD)
            first = first.abs() if self.options.posterior.row.support.lower >= 0 else first
        return RandomTensor(name, first, 1.0, self.options)

    @property
    def log_scale(self) -> Tensor:
        """A free parameter, for dtype and device."""
        return self.sides[0][0].log_scale

    @property
    def shape(self) -> torch.Size:
        """Of the network's tensor."""
        return self.weight.shape

    @property
    def sides(self) -> tuple[list[RandomTensor], list[RandomTensor]]:
        """The factors of the outputs and of the inputs, one tensor per member; an embedding has none of inputs."""
        outputs, inputs = cast(Any, self.outputs), cast(Any, self.inputs)
        return list(outputs), list(inputs)

    @property
    def tensors(self) -> list[RandomTensor]:
        """The tensors of random numbers: every tensor of factors."""
        outputs, inputs = self.sides
        return outputs + inputs

    def draw(self, generator: torch.Generator | None = None, member: int = 0) -> Tensor:
        """Fresh weights of one network, differentiable in Wbar and in the learned parameters of the factors."""
        outputs, inputs = self.sides
        r = outputs[member].draw(generator)
        return self._times(r, inputs[member].draw(generator) if inputs else None)

    def mean(self) -> Tensor:
        """E W, the mean over members; the median of a factor stands for a mean that does not exist."""
        means = [self._times(r.mean(), s.mean() if s else None) for r, s in zip_longest(*self.sides)]
        return sum(means[1:], means[0]) / len(means)

    def rows(self, batch: int, first: int | Tensor = 0) -> tuple[Tensor, Tensor | None]:
        """Factors r and s for every example of a batch, (batch, units) each; example b uses member first + b."""
        outputs, inputs = self.sides
        return self._rows(outputs, batch, first), self._rows(inputs, batch, first) if inputs else None

    def _rows(self, side: list[RandomTensor], batch: int, first: int | Tensor) -> Tensor:
        latest = len(side) - 1 if isinstance(first, Tensor) else first
        each = -(-(batch + latest) // len(side))
        drawn = [factor.posterior.draw(each) for factor in side]
        if len(drawn) == 1:
            return drawn[0]
        rows = torch.stack(drawn, 1).flatten(0, 1)
        if isinstance(first, Tensor):
            return rows[torch.arange(batch, device=rows.device) + first.to(rows.device)]
        return rows[first : first + batch]

    def _times(self, r: Tensor, s: Tensor | None) -> Tensor:
        """Wbar o (r s^T), per group of a convolution."""
        whole = self.weight.view(self.grouped) * r.view(self.by_output)
        return (whole if s is None else whole * s.view(self.by_input)).view(self.weight.shape)

    def adopt(self, prior: Prior, pretrained: bool, signs: str) -> None:
        """Take a prior that comes with a state."""
        for factor in self.tensors:
            factor.adopt(prior, pretrained, signs)
        self.options = replace(self.options, prior=self.tensors[0].options.prior)

    def extra_repr(self) -> str:
        """The shape of the weight, and the number of members."""
        return f"{tuple(self.weight.shape)}, members={self.members}"


def _shapes(layer: nn.Module, weight: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The shapes in which a weight, the factors of its outputs and those of its inputs multiply; () for none."""
    if isinstance(layer, nn.Embedding):
        return tuple(weight.shape), (1, weight.shape[1]), ()  # a row is an output, and has no input
    groups = layer.groups if isinstance(layer, _ConvNd) else 1
    rows, columns, ones = weight.shape[0] // groups, weight.shape[1], [1] * (weight.dim() - 2)
    by_row, by_column = (groups, rows, 1, *ones), (groups, 1, columns, *ones)
    grouped = (groups, rows, *weight.shape[1:])
    if isinstance(layer, _ConvTransposeNd):  # (inputs, outputs of a group, ...)
        return grouped, by_column, by_row
    return grouped, by_row, by_column


# ---- where the examples are


def axis_of(net: nn.Module, place: Place) -> int:
    """The dimension that has the examples: 1 inside of torch's attention, and around it unless batch_first."""
    layer = place.owners[0]
    blocks = [m for m in net.modules() if isinstance(m, BLOCKS) and layer in m.children()]
    return int(isinstance(layer, nn.MultiheadAttention) or not all(map(_batch_first, blocks)))


def _batch_first(net: nn.Module) -> bool:
    """Whether the attention in a network has the examples in dimension 0 of its inputs."""
    return all(m.batch_first for m in net.modules() if isinstance(m, nn.MultiheadAttention))


def _count(net: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The number of examples of a batch, which torch's attention and transformers may have in dimension 1, or not."""
    begins = _transformer(net)
    x = next((x for x in pytree.tree_leaves((args, dict(kwargs))) if isinstance(x, Tensor) and x.dim()), None)
    if x is None or begins is None:
        return examples(args, kwargs)
    return x.shape[0 if _batch_first(begins) else 1] if x.dim() == 3 else 1


def _transformer(net: nn.Module) -> nn.Module | None:
    """Torch's attention or transformer that a network is or begins with: it says where the examples are."""
    begins = next(m for m in net.modules() if not isinstance(m, nn.Sequential))
    return begins if any(type(begins).forward is kind.forward for kind in TRANSFORMERS) else None


def _find_rows(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Find once which layers see examples, and in which dimension; others have one pair of factors for the batch."""
    seen = look(bnn, args, kwargs)
    found, bnn.tried, bnn.unmet = dimensions(seen), bool(seen), seen[0].unmet if seen else set()
    for tensor in random_tensors(bnn).values():
        assert isinstance(tensor, RankOne)
        tensor.axis = max(tensor.axis, found.get(tensor.name, 0) or 0)
    bnn.examplewise = {t.name for t in random_tensors(bnn).values()} - {n for n, k in found.items() if k is None}


# ---- what can be chosen


def factor_posterior(name: str, std: float) -> Posterior:
    """A template for factors near 1; where noise has no scale of its own, its concentration gives the wanted std."""
    q = posterior(name)
    row, noise = q.row, q.noise
    if row.form.learned_loc or not noise.positive:
        return q
    if "concentration" not in q.fixed or row.form.outer is not IDENTITY:
        raise MethodError(
            f"structure='rank1' with posterior {row.name!r}",
            "the noise of a factor could not be made smaller than the factor itself",
            "'normal', 'lognormal' or 'gamma'",
        )
    low, high = 1e-3, 1e9  # the relative noise falls as the concentration grows
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if _relative_std(row.noise({**q.fixed, "concentration": middle}, 1)) > std else (low, middle)
        )
    whole = any(p.name == "concentration" and p.constraint is WHOLE for p in row.fixed)
    return posterior(name, concentration=max(1.0, round(high)) if whole else high)


def _relative_std(noise: Noise) -> float:
    first, second = noise.moment(Monomial(1.0)), noise.moment(Monomial(2.0))
    return math.sqrt(max(second / first**2 - 1, 0.0)) if math.isfinite(second) else math.inf


def factor_prior(name: str, **given: Any) -> Prior:
    """A prior over factors by its name: around 1, with a standard deviation of FACTOR_STD, but for what is given."""
    p = prior(name)
    assert p.row is not None
    if p.row.around_one is None:
        raise MethodError(
            f"structure='rank1' with prior {p.name!r} by its name",
            "a factor is near 1, and this family has no location to put there",
            f"mcrepar.prior({p.name!r}, ...) with its parameters, or 'normal'",
        )
    return prior(name, **{**p.row.around_one(FACTOR_STD), **given})


def check_factors(place: Place, options: Options) -> None:
    """Refuse a layer or a family that cannot have factors."""
    layer = place.owners[0]
    weights = PROJECTIONS if isinstance(layer, nn.MultiheadAttention) else ("weight",)
    if not isinstance(layer, FACTORED_LAYERS) or place.name.rpartition(".")[2] not in weights:
        raise MethodError(
            "structure='rank1'",
            f"it is a parameter of {type(layer).__name__}, which has no factors of inputs and outputs here",
            "select=... with the weights of dense, convolutional, embedding and attention layers, or "
            "structure='weights'",
        )
    if len(place.names) > 1:
        raise MethodError(
            "structure='rank1'",
            f"it is used as {' and as '.join(place.names)}, and every use would need factors of its own",
            "select=... without it, or structure='weights'",
        )
    form, noise = options.posterior.form, options.posterior.noise
    if form.outer is not IDENTITY and not (form.outer is EXP and form.learned_loc):
        why = "its mean cannot be put at 1 with a small noise"
        raise MethodError(
            f"structure='rank1' with posterior {options.posterior.name!r}", why, "'normal' or 'lognormal'"
        )
    if not noise.finite(1):
        raise MethodError(f"structure='rank1' with posterior {options.posterior.name!r}", "it has no mean", "'normal'")
    if options.pretrained or options.prior.relative:
        what = "pretrained=True" if options.pretrained else f"relative={options.prior.relative!r}"
        why = "factors are relative to the network's own weights already"
        raise MethodError(f"structure='rank1' with {what}", why, "a prior around 1, without it")


def _is_bias(place: Place) -> bool:
    """Whether it is the bias of a layer with factors; attention has in_proj_bias, bias_k and bias_v."""
    return isinstance(place.owners[0], FACTORED_LAYERS) and "bias" in place.name.rpartition(".")[2]


def with_factors(places: Iterable[Place], all_asked: bool) -> list[Place]:
    """The weights that get factors: without biases, which stay as they are."""
    chosen = [p for p in places if not _is_bias(p)]
    if not chosen:
        raise ParameterError(
            "bayesian(net, structure='rank1')",
            "it selects no weight of a layer with factors" if all_asked else "the network has no layer with factors",
            "structure='weights'",
        )
    return chosen


# ---- the forward


def factors(bnn: BayesianModule, batch: int, first: int | Tensor = 0) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Factors r and s of every weight, (batch, units) each; those of a small network are drawn together."""
    groups = () if transformed() else bnn.groups.of(bnn).factors
    drawn = {name: rows for group in groups for name, rows in group.draw(None, batch).items()}
    found = {}
    for (name, *_), tensor in random_tensors(bnn).items():
        assert isinstance(tensor, RankOne)
        known = [drawn[part.name] for part in tensor.tensors] if drawn else []
        found[name] = (known[0], known[1] if tensor.inputs else None) if known else tensor.rows(batch, first)
    return found


def rank_one(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The network's output, every example with factors of its own; what is exported predicts, by one network a call."""
    if torch.compiler.is_exporting():
        if bnn.members > 1:
            why, instead = "a graph cannot choose one of them", "bnn.to_module(bnn.draw(member=0)), or any other member"
            raise MethodError(f"torch.export of a network with members={bnn.members}", why, instead)
        return run(bnn, bnn.draw(), *args, **kwargs)
    if not (bnn.tried or transformed() or _transformer(bnn.net)) and plain(bnn):
        _find_rows(bnn, args, kwargs)
    start = torch.randint(bnn.members, ()) if bnn.members > 1 else 0
    first = start if transformed() else int(start)  # neither a graph nor vmap reads a number
    found = factors(bnn, max(_count(bnn.net, args, kwargs), 1), first)  # an empty batch has an empty output

    def factored(tensor: RandomTensor | RankOne) -> Tensor:
        assert isinstance(tensor, RankOne)
        r, s = found[tensor.name]
        if bnn.tried and tensor.name not in bnn.examplewise:
            r, s = r[:1], None if s is None else s[:1]
        weight = FactoredWeight.of(tensor.name, tensor.weight, tensor.axis, r, s)
        return weight.watched(tensor.name) if tensor.name in bnn.unmet else weight

    return run(bnn, each_named(bnn, factored), *args, **kwargs)
