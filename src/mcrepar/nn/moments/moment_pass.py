"""One pass of mean and variance through a network, by the factors that were fitted to draws, if there are any."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mcrepar.distributions.forms import EXP, LOG
from mcrepar.errors import MethodError, ParameterError
from mcrepar.nn.batches import Batches, Output, check_examples, fitting, the_tensor
from mcrepar.nn.calibration import MomentFactor
from mcrepar.nn.module import BayesianModule, random_parts
from mcrepar.nn.moments.positions import MOST
from mcrepar.nn.moments.rules import settling
from mcrepar.nn.moments.tensor import SAMPLED, Factors, Mixing, MomentTensor, check_graph, refusing
from mcrepar.nn.prediction_passes import calibration_of, evaluating, holding, stored_statistics
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.rank1 import RankOne
from mcrepar.nn.swap import frozen_weights


class Moments(NamedTuple):
    """Of a network's output."""

    mean: Tensor
    variance: Tensor
    mixing: Mixing | None = None  # of a dense layer at the end, or its log_softmax


# ---- weights


def check_moments(net: nn.Module) -> list[BayesianModule]:
    """The Bayesian parts of a network, all of which have variances and none of which is frozen."""
    parts = random_parts(net, "the moments of")
    for part in parts:
        if frozen_weights(part) is not None:
            raise MethodError(
                "draws='moments' inside of bnn.frozen(...)",
                "frozen weights are one network, without a variance",
                "draws=1 there, or draws='moments' outside of it",
            )
        if any(parameter.dtype == torch.float16 for parameter in part.parameters()):
            raise MethodError(
                "draws='moments' of a network in float16",
                "the square of an activation above 256 does not fit into it",
                f"bnn.bfloat16(), bnn.float(), or {SAMPLED}",
            )
        for tensor in (tensor for random in random_tensors(part).values() for tensor in random.tensors):
            if not _has_variance(tensor):
                raise MethodError(
                    f"draws='moments' with posterior {tensor.options.posterior.name!r} for {tensor.name}",
                    "its weights have no finite variance",
                    f"{SAMPLED}, or a posterior with a variance, such as 'normal' or 'radial'",
                )
    return parts


def _has_variance(tensor: RandomTensor) -> bool:
    """By its noise; where weights are exp(scale xi), by the scales too."""
    if tensor.options.posterior.form.outer is EXP:
        with torch.no_grad():
            return bool(tensor.posterior.variance.isfinite().all())
    return tensor.options.posterior.form.outer is LOG or tensor.options.posterior.noise.finite(2.0)


def weight_moments(bnn: BayesianModule, member: int = 0) -> dict[str, MomentTensor]:
    """The moments of all random weights by their names; of one member where factors have several."""
    found, member = dict[str, MomentTensor](), member % max(bnn.members, 1)
    for names, tensor in random_tensors(bnn).items():
        pair = _factored(tensor, member) if isinstance(tensor, RankOne) else MomentTensor(*_moments(tensor))
        found |= dict.fromkeys(names, pair)
    return found


def _moments(tensor: RandomTensor | Any) -> tuple[Tensor, Tensor]:
    q = tensor.posterior
    v = q.variance.to(q.dtype).expand(q.shape)
    if tensor.hold is not None:
        v = torch.cat([v[: tensor.hold], torch.zeros_like(v[:1]), v[tensor.hold :]])
    return tensor.mean(), v


def _factored(tensor: RankOne, member: int) -> MomentTensor:
    """Wbar with the moments of its factors; an embedding has factors of its outputs alone, and needs no more."""
    wbar, by_output, by_input = tensor.weight, tensor.by_output, tensor.by_input
    r, rv = _moments(tensor.outputs[member])
    if not len(tensor.inputs):
        return MomentTensor(wbar * r.view(by_output), wbar.square() * rv.view(by_output))
    s, sv = _moments(tensor.inputs[member])
    r2, s2 = r * r, s * s + sv
    mean, square = (
        (w.view(tensor.grouped) * a.view(by_output) * b.view(by_input)).view_as(wbar)
        for w, a, b in ((wbar, r, s), (wbar.square(), r2 + rv, s2))
    )
    least = torch.finfo(r.dtype).tiny ** 0.5  # to divide by
    factors = Factors(square, rv / r2.clamp_min(least), sv / s2.clamp_min(least))
    return MomentTensor(mean, torch.zeros_like(wbar), factors)


# ---- passes


@contextlib.contextmanager
def moment_pass(net: nn.Module, output: Output = None, member: int = 0) -> Iterator[Callable[..., Moments]]:
    """A context with a function that runs a network on the moments of its weights, by the factors that it keeps.

    Args:
        net: a network with Bayesian parts that `check_moments` has seen.
        output: what to take of a network that returns more than a tensor.
        member: of rank-1 factors with several members.
    """
    factors = calibration_of(net).moment_factors

    def call(*args: Any, **kwargs: Any) -> Moments:
        before = [(buffer, buffer.clone()) for buffer in net.buffers()] if net.training else []
        try:
            return scaled(net, factors, output, args, kwargs)
        except MethodError:  # an operation that is refused leaves norm layers as they were
            for buffer, kept in before:
                buffer.copy_(kept)
            raise

    with holding(moments_of_parts(net, member)):
        yield call


def scaled(
    net: Callable[..., Any], factors: Sequence[MomentFactor], output: Output, args: Any, kwargs: Mapping[str, Any]
) -> Moments:
    """Mean and variance of the output of a network that holds moments of weights, by these factors."""
    scaling = Scaling(factors)
    wide, args, kwargs = _without_float16(args, kwargs)
    with settling(scaling) if factors else contextlib.nullcontext(), wide, refusing():
        out = the_tensor(net(*args, **kwargs), output)
    if factors:
        scaling.check()
    if not isinstance(out, MomentTensor):
        return Moments(out, torch.zeros_like(out))
    check_graph(out)
    return Moments(out.expectation, out.variance, out.mixed())


def _without_float16(
    args: Any, kwargs: Mapping[str, Any]
) -> tuple[contextlib.AbstractContextManager[Any], Any, Mapping[str, Any]]:
    """A pass leaves autocast to float16 out, for squares of activations above 256 do not fit into it."""
    where = next((t.device.type for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)), "cpu")
    if not torch.is_autocast_enabled(where) or torch.get_autocast_dtype(where) != torch.float16:
        return contextlib.nullcontext(), args, kwargs
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.float() if t.dtype == torch.float16 else t, (args, kwargs))
    return torch.autocast(where, enabled=False), args, kwargs


def moments_of_parts(net: nn.Module, member: int) -> dict[BayesianModule, dict[str, Tensor]]:
    """What every Bayesian part meets in the place of its weights and norm statistics."""
    return {part: {**weight_moments(part, member), **stored_statistics(part, member)} for part in random_parts(net)}


def members_of(net: nn.Module) -> int:
    """How many passes there are: one for every member of rank-1 factors."""
    return max(max(part.members, 1) for part in random_parts(net))


def output_moments(net: nn.Module, batches: Batches, output: Output = None) -> list[Moments]:
    """Mean and variance of the output for all examples, on the CPU, of every member; in eval mode, without a graph."""
    check_moments(net)
    members = []
    with evaluating(net), torch.no_grad():
        for k in range(members_of(net)):
            with moment_pass(net, output, k) as call:
                rows = []
                for args, kwargs in batches:
                    with fitting("predict(bnn, x)", net, args, kwargs):
                        rows.append(pytree.tree_map_only(Tensor, Tensor.cpu, call(*args, **kwargs)))
                    batches.check_rows(len(rows[-1].mean), args, kwargs)
            if not rows:
                raise ParameterError("predict(bnn, x)", "x holds no batch", "at least one example")
            members.append(_joined(rows))
            check_examples(members[-1].mean + members[-1].variance)
    return members


def _joined(rows: Sequence[Moments]) -> Moments:
    """The moments of all batches."""
    mean, variance = torch.cat([row.mean for row in rows]), torch.cat([row.variance for row in rows])
    mixings = [row.mixing for row in rows if row.mixing is not None]
    if len(mixings) < len(rows):
        return Moments(mean, variance)
    inputs, outputs = torch.cat([m.inputs for m in mixings]), torch.cat([m.outputs for m in mixings])
    around = [m.around for m in mixings if m.around is not None]
    return Moments(mean, variance, Mixing(mixings[0].weight, inputs, outputs, torch.cat(around) if around else None))


# ---- factors


class Scaling:
    """Multiplies the variances of a pass by factors that were fitted, in the order of its operations.

    Args:
        factors: one for every operation that has one.
    """

    def __init__(self, factors: Sequence[MomentFactor]) -> None:
        self.factors, self.count = factors, 0

    def __call__(self, name: str, result: MomentTensor) -> MomentTensor:
        """The result with its factor."""
        self.check(name)
        _, factor, centre = self.factors[self.count]
        self.count += 1
        variance = result.variance
        if len(centre):
            if result.shared is None:
                raise MethodError(
                    "draws='moments' with fitted factors",
                    f"when factors were fitted, {name} was a mean over all positions of an image, at most {MOST}",
                    "mcrepar.calibrate_moments(bnn, x) with inputs of this size",
                )
            variance = result.shared(torch.as_tensor(centre))
        return MomentTensor(result.expectation, variance * factor, samples=result.samples)

    def check(self, name: str = "the end") -> None:
        """Refuse factors of another pass."""
        there = self.factors[self.count].operation if self.count < len(self.factors) else "the end"
        if there != name:
            raise MethodError(
                "draws='moments' with fitted factors",
                f"operation {self.count} is {name}, and when factors were fitted it was {there}",
                "mcrepar.calibrate_moments(bnn, x) once more, with the network as it is now",
            )
