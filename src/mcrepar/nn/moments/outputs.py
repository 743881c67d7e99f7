"""From mean and variance of a network's output to what a prediction says: in closed form, or by samples of the output.

A thousand samples of the *output* cost next to nothing beside a pass through the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mcrepar.likelihoods import Likelihood, Normal
from mcrepar.nn.moments.moment_pass import Moments

SAMPLES = (100, 1000)  # of an output, at least and at most
NUMBERS = 2**24  # that the samples of all outputs may have before there are fewer than the most
CHUNK = 2**20  # numbers that are sampled at once


class Statistics(NamedTuple):
    """What a prediction is made of, in the words of `Prediction` and `Classes`."""

    draws: int  # the number of samples
    mean: Tensor  # E y
    aleatoric: Tensor  # E Var[y | output]
    epistemic: Tensor  # Var E[y | output]
    kept: Tensor | None  # samples of E[y | output], or None where they would be too many
    noise: Tensor | None  # Var[y | output] of every sample, likewise
    classes: tuple[Tensor, Tensor, Tensor] | None = None  # mean probabilities, votes and the expected entropy


Read = Callable[[Tensor], tuple[Tensor, ...]]  # mean and variance of y given an output, and probabilities of classes


@torch.no_grad()
def statistics(
    likelihood: Likelihood | None, members: Sequence[Moments], read: Read, max_bytes: int,
    generator: torch.Generator | None = None,
) -> Statistics:  # fmt: skip
    """The mixture of Normal outputs, one for every member.

    Args:
        likelihood: of y given the output.
        members: mean and variance of the output, (examples, ...), on the CPU.
        read: what an output says of y.
        max_bytes: up to which samples are kept.
        generator: the source of the samples; None is the default RNG.
    """
    low, high = SAMPLES
    draws = max(low, min(high, NUMBERS // max(members[0][0].numel(), 1)))
    draws = -(-draws // (2 * len(members))) * 2 * len(members)  # pairs for every member
    if likelihood is None or isinstance(likelihood, Normal):
        return _regression(likelihood, members, draws, max_bytes)
    return _sampled(members, read, draws, max_bytes, generator)


def _regression(likelihood: Normal | None, members: Sequence[Moments], draws: int, max_bytes: int) -> Statistics:
    """Closed form; the samples are quantiles of every output by itself, (k - 1/2) / draws, with variance 1."""
    m, v, noise = (torch.stack(t) for t in zip(*(_of_mean(likelihood, *pair[:2]) for pair in members), strict=True))
    mean = m.mean(0)  # of (members, examples, ...)
    parts, each = (mean, noise.mean(0), v.mean(0) + (m - mean).square().mean(0)), draws // len(members)
    if draws * mean.nbytes * (1 if likelihood is None else 2) > max_bytes:
        return Statistics(draws, *parts, None, None)
    z = torch.special.ndtri((torch.arange(each, dtype=torch.float64) + 0.5) / each)
    z = (z / z.square().mean().sqrt()).to(mean).view(-1, *[1] * m.dim())
    kept, spread = (t.transpose(0, 1).flatten(0, 1) for t in (m + v.sqrt() * z, noise.expand(each, *noise.shape)))
    return Statistics(draws, *parts, kept, None if likelihood is None else spread)


def _of_mean(likelihood: Normal | None, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of E[y | output], and E Var[y | output]: E exp(2 l) = exp(2 E l + 2 Var l)."""
    if likelihood is None:
        return m, v, torch.zeros_like(m)
    likelihood.check_output(m)
    mean, log_scale = likelihood.split(m)
    if likelihood.kind != "heteroscedastic":
        return mean, v, likelihood.aleatoric(m)
    half = mean.shape[-1]
    return mean, v[..., :half], torch.exp(2 * (log_scale + v[..., half:]))


def _sampled(
    members: Sequence[Moments], read: Read, draws: int, max_bytes: int, generator: torch.Generator | None
) -> Statistics:
    """Antithetic samples of the output, examples in chunks."""
    m, v = (torch.stack(t) for t in zip(*((one.mean, one.variance) for one in members), strict=True))  # of all members
    size, keep = max(1, CHUNK // (draws * max(m[0, 0].numel(), 1))), draws * m[0].nbytes <= max_bytes
    where, rows, kept = "cpu" if generator is None else generator.device, [], []
    for k in range(0, m.shape[1], size):
        mk, vk = m[:, k : k + size], v[:, k : k + size]
        half = torch.randn(draws // 2 // len(members), *mk.shape, generator=generator, device=where, dtype=m.dtype)
        half = _correlated(half, members, slice(k, k + size))
        u = (mk + vk.sqrt() * torch.cat([half, -half]).to(m.device)).flatten(0, 1)  # (draws, examples, ...)
        mean, noise, *probs = (t.view(*u.shape[:2], *t.shape[1:]) for t in read(u.flatten(0, 1)))
        kept += [mean] if keep else []
        centre = mean.mean(0)
        row = [centre, noise.mean(0), (mean - centre).square_().mean(0)]
        for p in probs:  # (draws, examples, classes, ...)
            best = p.max(2).indices  # faster than argmax where classes are not neighbours in memory
            votes = torch.stack([(best == c).sum(0) for c in range(p.shape[2])], 1)
            row += [p.mean(0), votes, torch.special.entr(p).sum(2).mean(0)]
        rows.append(row)
    mean, aleatoric, epistemic, *classes = (torch.cat(column) for column in zip(*rows, strict=True))
    three = (classes[0], classes[1], classes[2]) if classes else None
    return Statistics(draws, mean, aleatoric, epistemic, torch.cat(kept, 1) if keep else None, None, three)


def _correlated(z: Tensor, members: Sequence[Moments], rows: slice) -> Tensor:
    """Standard Normal numbers, (samples, members, examples, outputs), with the correlation of outputs where known."""
    roots = [mix.of_rows(rows).root() for *_, mix in members if mix is not None]
    if len(roots) < len(members):
        return z
    return torch.einsum("knab,dknb->dkna", torch.stack(roots).to(z), z)
