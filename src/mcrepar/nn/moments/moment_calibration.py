"""Factors by which the variances of a pass are fitted to draws of the weights.

A pass adds up variances as if numbers were independent; weights that positions share and residual sums make them
dependent. One factor per layer, pooling included, repairs most of it. Factors are numbers, kept with the network.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.errors import ParameterError
from mcrepar.likelihoods import Likelihood, OneOfMany, likelihood_of
from mcrepar.nn.batches import Batches, Output, examples, fitting, real_tensors, the_tensor
from mcrepar.nn.calibration import MomentFactor, fresh_draw
from mcrepar.nn.module import BayesianModule, random_parts
from mcrepar.nn.moments.moment_pass import check_moments, members_of, moments_of_parts, scaled, weight_moments
from mcrepar.nn.moments.rules import settling
from mcrepar.nn.moments.tensor import MomentTensor
from mcrepar.nn.prediction_passes import calibration_of, evaluating, holding, stored_statistics
from mcrepar.validation import check_generator, whole_number

CHUNK = 8  # draws that are in memory at once


def calibrate_moments(
    bnn: nn.Module, x: Any, draws: int = 128, generator: torch.Generator | None = None, *,
    likelihood: Likelihood | str | None = None, output: Output = None,
) -> nn.Module:  # fmt: skip
    """Fit the variances of draws="moments" to draws of the weights, one factor per layer; kept with the network.

    factor = sum Var_k a_k / sum Var a over the activations a that a layer gives for x, layer after layer. A mean over
    all positions of an image takes into account how alike they are (`positions`), where that is nearer to the draws.
    Factors are numbers in the state_dict and in saved folders (an ordinary network with Bayesian layers has them in
    deep copies and pickles only); they hold for the weights as they are, so fit them after training.

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
        if call is None or not examples(*call):
            raise ParameterError("calibrate_moments(bnn, x)", "x holds no example", "at least one")
        for name, tensor in real_tensors(call):
            if not bool(tensor.isfinite().all()):
                raise ParameterError("calibrate_moments(bnn, x)", f"{name} has numbers that are not finite", "finite x")
        with holding(moments_of_parts(bnn, 0)), fitting("calibrate_moments(bnn, x)", bnn, *call):
            mean = scaled(bnn, (), output, *call).mean  # what has no rule is refused before anything is drawn
        if chosen is not None:
            chosen.check_output(mean)
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
            logits += out.samples if out.mixed() is not None and isinstance(likelihood, OneOfMany) else ()
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
        made = MomentTensor(result.expectation, variance * factor)
        made.place = k
        return made

    with holding(moments_of_parts(net, member)), settling(fit):
        out = the_tensor(net(*args, **kwargs), output)
    if found and isinstance(out, MomentTensor) and likelihood is not None:
        drawn, here = _decisive(likelihood, out, variances[-1], logits)
        if drawn > 0 and here > 0:  # not where all classes are certain
            last = found[out.place]  # of the operation that gave the output, else the last one
            found[out.place] = last._replace(factor=last.factor * drawn / here)
    return found


def _decisive(
    likelihood: Likelihood, out: MomentTensor, variance: Tensor, logits: Sequence[Tensor]
) -> tuple[float, float]:
    """How much the output's noise matters to y, by draws and by the pass: sum Var[y | output] Var output.

    For classes with a known correlation it is sum_c p_c Var(u_c - sum_d p_d u_d), to first order twice the mutual
    information: logits that rise and fall together decide nothing.
    """
    mixing = out.mixed()
    if not logits or mixing is None:
        weight = likelihood.aleatoric(out.expectation).double()
        if weight.shape != out.shape:  # outputs of several kinds
            return 0.0, 0.0
        return float((weight * variance).sum()), float((weight * out.variance).sum())
    p, u = likelihood.mean(out.expectation).double(), torch.stack([*logits]).double()
    root = mixing.root().double() * out.variance.sqrt().unsqueeze(2)  # of the covariance, (examples, C, C)
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
    sampled = [fresh_draw(part, generator, member % max(part.members, 1)) for _ in range(draws)]
    found: dict[str, Any] = {**weight_moments(part, member), **stored_statistics(part, member)}
    for name, t in found.items():
        samples = tuple(draw[name] for draw in sampled)
        if isinstance(t, MomentTensor):
            found[name] = MomentTensor(t.expectation, t.variance, t.factors, samples)
        elif t.is_floating_point():
            found[name] = MomentTensor(t, torch.zeros_like(t), None, samples)
    return found
