"""One pass of mean and variance through a network, and the factors by which its variances are fitted to draws.

A pass adds up variances as if numbers were independent; weights that positions share and residual sums make them
dependent. One factor per layer, pooling included, repairs most of it. Factors are numbers, kept with the network.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mcrepar.distributions.forms import EXP, LOG
from mcrepar.errors import MethodError, ParameterError
from mcrepar.likelihoods import Likelihood, OneOfMany, likelihood_of
from mcrepar.nn.batches import Batches, Output, check_examples, fitting, real_tensors, the_tensor
from mcrepar.nn.calibration import MomentFactor, complete
from mcrepar.nn.module import BayesianModule, random_parts
from mcrepar.nn.moments.positions import MOST
from mcrepar.nn.moments.rules import settling
from mcrepar.nn.moments.tensor import Factors, Mixing, MomentTensor
from mcrepar.nn.passes import calibration_of, evaluating, holding, stored_statistics
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.rank1 import RankOne
from mcrepar.nn.swap import frozen_weights
from mcrepar.validation import check_generator, whole_number

CHUNK = 8  # draws that are in memory at once while factors are fitted


class Moments(NamedTuple):
    """Of a network's output."""

    mean: Tensor
    variance: Tensor
    mixing: Mixing | None = None  # of a dense layer at the end


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
        for tensor in (tensor for random in random_tensors(part).values() for tensor in random.tensors):
            if not _has_variance(tensor):
                raise MethodError(
                    f"draws='moments' with posterior {tensor.options.posterior.name!r} for {tensor.name}",
                    "its weights have no finite variance",
                    "draws=100, or a posterior with a variance, such as 'normal' or 'radial'",
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

    with holding(_moments_of_parts(net, member)):
        yield call


def scaled(
    net: Callable[..., Any], factors: Sequence[MomentFactor], output: Output, args: Any, kwargs: Mapping[str, Any]
) -> Moments:
    """Mean and variance of the output of a network that holds moments of weights, by these factors."""
    scaling = Scaling(factors)
    with settling(scaling) if factors else contextlib.nullcontext():
        out = the_tensor(net(*args, **kwargs), output)
    if factors:
        scaling.check()
    if not isinstance(out, MomentTensor):
        return Moments(out, torch.zeros_like(out))
    return Moments(out.expectation, out.variance, out.mixing)


def _moments_of_parts(net: nn.Module, member: int) -> dict[BayesianModule, dict[str, Tensor]]:
    """What every Bayesian part meets in the place of its weights and norm statistics."""
    return {part: {**weight_moments(part, member), **stored_statistics(part)} for part in random_parts(net)}


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
    return Moments(mean, variance, Mixing(mixings[0].weight, inputs, outputs))


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
        if centre:
            if result.shared is None:
                raise MethodError(
                    "draws='moments' with fitted factors",
                    f"when factors were fitted, {name} was a mean over all positions of an image, at most {MOST}",
                    "mcrepar.calibrate_moments(bnn, x) with inputs of this size",
                )
            variance = result.shared(torch.tensor(centre))
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


def calibrate_moments(
    bnn: nn.Module, x: Any, draws: int = 128, generator: torch.Generator | None = None, *,
    likelihood: Likelihood | str | None = None, output: Output = None,
) -> nn.Module:  # fmt: skip
    """Fit the variances of draws="moments" to draws of the weights, one factor per layer; kept with the network.

    factor = sum Var_k a_k / sum Var a over the activations a that a layer gives for x, layer after layer. A mean over
    all positions of an image takes into account how alike they are (`positions`), where that is nearer to the draws.
    Factors are numbers in the state_dict and in saved folders; they hold for the weights as they are, so fit them after
    training.

    Args:
        bnn: a Bayesian neural network, or an ordinary one that contains Bayesian layers; it is returned.
        x: a batch of inputs as `predict` takes them, without targets; it is not kept.
        draws: how many draws they are fitted to; the relative error of a factor is up to sqrt(2 / draws), for the
            activations of a layer share the noise of its weights.
        generator: the source of the draws; None is the default RNG.
        likelihood: weighs the outputs for the last factor by Var[y | output]: for classes only differences of logits
            matter, and those where the class is in doubt. None weighs all outputs alike.
        output: what to take of a network that returns more than a tensor: an index, a key or a function.

    >>> from mcrepar import bayesian
    >>> bnn = bayesian(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)))
    >>> bnn = calibrate_moments(bnn, torch.randn(16, 1, 8, 8))
    >>> [fitted.operation for fitted in bnn.calibration.moment_factors]
    ['conv2d', 'max_pool2d', 'linear']
    """
    draws = whole_number("draws", draws, least=2)
    check_generator(generator)
    check_moments(bnn)
    batches, chosen = Batches(x, 2**62, bnn), likelihood_of(likelihood)
    with evaluating(bnn), torch.no_grad():
        call = next(iter(batches), None)
        if call is None:
            raise ParameterError("calibrate_moments(bnn, x)", "x holds no batch", "at least one example")
        for name, tensor in real_tensors(call):
            if not bool(tensor.isfinite().all()):
                raise ParameterError("calibrate_moments(bnn, x)", f"{name} has numbers that are not finite", "finite x")
        with holding(_moments_of_parts(bnn, 0)), fitting("calibrate_moments(bnn, x)", bnn, *call):
            scaled(bnn, (), output, *call)  # what has no rule is refused before anything is drawn
        found: list[list[MomentFactor]] = []
        for member in range(members_of(bnn)):
            found.append(_fit(bnn, call, draws, generator, chosen, output, member, found[0] if found else None))
    calibration_of(bnn).moment_factors = tuple(
        rows[0]._replace(factor=sum(row.factor for row in rows) / len(rows)) for rows in zip(*found, strict=True)
    )
    return bnn


def _fit(
    net: nn.Module, call: Any, draws: int, generator: torch.Generator | None, likelihood: Likelihood | None,
    output: Output, member: int, first_member: Sequence[MomentFactor] | None,
) -> list[MomentFactor]:  # fmt: skip
    """Of one member's pass: of every operation in turn, with the factors of those before it; centres of the first."""
    args, kwargs = call
    sums: list[Tensor] = []  # of every operation, over draws: what is beside the pass's mean, and its square
    found: list[MomentFactor] = []
    logits: list[Tensor] = []  # of every draw, where the pass knows how those of the classes depend on each other
    for first in range(0, draws, CHUNK):
        place = itertools.count()

        def note(name: str, result: MomentTensor, first: int = first, place: Iterator[int] = place) -> MomentTensor:
            away, k = torch.stack(result.samples).double() - result.expectation, next(place)
            if first == 0:
                sums.append(away.new_zeros(2, *result.shape))
            sums[k] += torch.stack([away.sum(0), away.square().sum(0)])
            return result

        count = min(CHUNK, draws - first)
        sampled = {part: sampled_moments(part, count, generator, member) for part in random_parts(net)}
        with holding(sampled), settling(note), fitting("calibrate_moments(bnn, x)", net, args, kwargs):
            out = the_tensor(net(*args, **kwargs), output)
        if isinstance(out, MomentTensor):
            note("output", out)
            logits += out.samples if out.mixing is not None and isinstance(likelihood, OneOfMany) else ()
    variances = [(second - first.square() / draws) / (draws - 1) for first, second in sums]

    def fit(name: str, result: MomentTensor) -> MomentTensor:
        k, variance, centre = len(found), result.variance, tuple[float, ...]()
        if result.shared is not None:  # whichever is nearest to a multiple of the draws', example by example
            shared = result.shared
            centres = [(), (0.0,), tuple(shared.patches.centre().tolist())]
            centres = centres if first_member is None else [first_member[k].centre]
            ways = [(shared(torch.tensor(c)) if c else variance, c) for c in centres]
            variance, centre = min(ways, key=lambda way: _scatter(variances[k], way[0]))
        here = float(variance.double().sum())
        factor = float(variances[k].sum()) / here if here > 0 else 1.0
        found.append(MomentFactor(name, factor, centre))
        return MomentTensor(result.expectation, variance * factor)

    with holding(_moments_of_parts(net, member)), settling(fit):
        out = the_tensor(net(*args, **kwargs), output)
    if found and isinstance(out, MomentTensor) and likelihood is not None:
        drawn, here = _decisive(likelihood, out, variances[-1], logits)
        if drawn > 0 and here > 0:  # not where all classes are certain
            found[-1] = found[-1]._replace(factor=found[-1].factor * drawn / here)
    return found


def _decisive(
    likelihood: Likelihood, out: MomentTensor, variance: Tensor, logits: Sequence[Tensor]
) -> tuple[float, float]:
    """How much the output's noise matters to y, by draws and by the pass: sum Var[y | output] Var output.

    For classes with a known correlation it is sum_c p_c Var(u_c - sum_d p_d u_d), to first order twice the mutual
    information: logits that rise and fall together decide nothing.
    """
    if not logits or out.mixing is None:
        weight = likelihood.aleatoric(out.expectation).double()
        if weight.shape != out.shape:  # outputs of several kinds
            return 0.0, 0.0
        return float((weight * variance).sum()), float((weight * out.variance).sum())
    p, u = likelihood.mean(out.expectation).double(), torch.stack([*logits]).double()
    root = out.mixing.root().double() * out.variance.sqrt().unsqueeze(2)  # of the covariance, (examples, C, C)
    found = []
    for away in ((u - u.mean(0)) / math.sqrt(len(u) - 1), root.movedim(2, 0)):  # (draws or C, examples, C)
        found.append(float(((p * away.square()).sum(2) - (p * away).sum(2).square()).sum()))
    return found[0], found[1]


def _scatter(drawn: Tensor, variance: Tensor) -> float:
    """How much the ratio of two variances differs between examples."""
    a, b = (t.double().flatten(1).sum(1) for t in (drawn, variance))
    used = (a > 0) & (b > 0)
    return float((a[used] / b[used]).log().var(correction=0)) if bool(used.any()) else math.inf


def sampled_moments(
    part: BayesianModule, draws: int, generator: torch.Generator | None, member: int = 0
) -> dict[str, Tensor]:
    """The moments of all weights together with draws of them, which have norm statistics of their own."""
    sampled = [complete(part, part.draw(generator, member % max(part.members, 1))) for _ in range(draws)]
    found: dict[str, Any] = {**weight_moments(part, member), **stored_statistics(part)}
    for name, t in found.items():
        samples = tuple(draw[name] for draw in sampled)
        if isinstance(t, MomentTensor):
            found[name] = MomentTensor(t.expectation, t.variance, t.factors, samples)
        elif t.is_floating_point():
            found[name] = MomentTensor(t, torch.zeros_like(t), None, samples)
    return found
