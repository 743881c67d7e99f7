"""Did the posterior learn? How far scales moved, what stands out of the noise, and what is still the prior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.prior import Prior
from mcrepar.errors import CollapseWarning, ParameterError
from mcrepar.likelihoods import Bernoulli, Likelihood, OneOfMany, likelihood_of
from mcrepar.nn.batches import Batches, Output, check_examples, the_tensor
from mcrepar.nn.module import random_parts
from mcrepar.nn.prediction_passes import evaluating, one_draw
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.rank1 import RankOne
from mcrepar.validation import check_generator, whole_number

AT_PRIOR = 0.01  # nats below which a weight says what its prior says
STILL = 0.05  # of a log scale that has hardly moved
EVEN = 0.05  # the spread of moves over their mean, below which an optimizer's largest steps made them
MOST = 0.9  # of the weights
SAMPLE = 20_000  # weights of a tensor that are compared with the prior
DENSITIES = 2**16  # densities that are evaluated at once, which fit into a cache


@dataclass(frozen=True)
class TensorDiagnosis:
    """What became of one tensor of random weights (or factors).

    Args:
        name: of the tensor.
        weights: how many random numbers it has.
        moved: the mean change of log_scale since the network was made; None where a saved network does not tell.
        spread: by how much the standard deviation of log_scale over the weights has changed since then.
        signal_to_noise: the median of |mean| / standard deviation.
        noisy: the share of weights whose standard deviation is larger than their mean.
        at_prior: the share of weights whose KL is within 0.01 nats of the smallest possible; None for a prior over the
            tensor as a whole.
        kl: of the tensor, in nats, without the constant of a hierarchical prior.
        effective: the effective number of random weights, sum of std^2 / (mean^2 + std^2).
        factors: whether it multiplies weights instead of being them.
        constant: of a hierarchical prior, in nats, the least that its KL can be; `mcrepar.kl` counts it.
    """

    name: str
    weights: int
    moved: float | None
    spread: float | None
    signal_to_noise: float
    noisy: float
    at_prior: float | None
    kl: float
    effective: float
    factors: bool
    constant: float = 0.0

    @property
    def kl_per_weight(self) -> float:
        """In nats."""
        return self.kl / self.weights

    def lost(self, share: float) -> bool:
        """Whether more than this share of weights is at the prior, with means that do not stand out of the noise."""
        return not self.factors and (self.at_prior or 0.0) > share and self.signal_to_noise < 0.5

    @property
    def untrained(self) -> bool:
        """Whether all scales are where they began, or as far from there as equal steps of an optimizer go."""
        if self.moved is None or self.spread is None or self.weights == 1 or self.lost(0.5):
            return False
        still = max(abs(self.moved), abs(self.spread)) < STILL
        at_prior = (self.at_prior or 0.0) > 0.25  # where scales arrive together
        return still or (not at_prior and abs(self.spread) < min(EVEN * abs(self.moved), STILL))


@dataclass(frozen=True)
class Diagnosis:
    """What became of a posterior; made by `bnn.diagnose`. Its str is prose.

    Args:
        tensors: one by one.
        mutual_information: what knowing the weights would tell of y, in nats, the mean over a batch, if one was given.
    """

    tensors: tuple[TensorDiagnosis, ...]
    mutual_information: float | None = None

    @property
    def weights(self) -> int:
        """The number of random weights (or factors)."""
        return sum(t.weights for t in self.tensors)

    @property
    def kl(self) -> float:
        """In nats, without the constant of a hierarchical prior."""
        return sum(t.kl for t in self.tensors)

    @property
    def effective(self) -> float:
        """The effective number of random weights."""
        return sum(t.effective for t in self.tensors)

    @property
    def at_prior(self) -> float | None:
        """The share of weights at the prior, among those of which it can be told."""
        return _share([(t.at_prior, t.weights) for t in self.tensors])

    @property
    def moved(self) -> float | None:
        """The mean change of log_scale, where it is known."""
        return _share([(t.moved, t.weights) for t in self.tensors])

    @property
    def collapsed(self) -> bool:
        """Whether most weights are at the prior, with means that do not stand out of the noise."""
        told = [t for t in self.tensors if t.at_prior is not None and not t.factors]
        lost = sum(t.weights for t in told if t.lost(MOST))
        return bool(told) and lost > MOST * sum(t.weights for t in told)

    @property
    def untrained(self) -> bool:
        """Whether most scales are where they began, or as far from there as equal steps of an optimizer go."""
        told = [t for t in self.tensors if t.moved is not None]
        return bool(told) and sum(t.weights for t in told if t.untrained) > MOST * sum(t.weights for t in told)

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences on what to change; none where nothing stands out."""
        found = []
        if self.collapsed:
            found.append(
                f"The posterior has collapsed to the prior: {self.at_prior:.0%} of the weights say what it says. "
                "Use a smaller beta, a warm-up (kl_weight('linear', steps=...)), a prior of fixed scale instead of "
                "scale='optimal', prior('hierarchical') with a larger loc_scale, or structure='rank1'. If the network "
                "predicts well all the same, its other weights and its plain parameters have learned."
            )
        elif self.untrained:
            moved = self.moved or 0.0
            where = "are where they began" if abs(moved) < STILL else f"have all moved by the same {moved:+.2f}"
            found.append(
                f"The scales of the posterior {where} (log scale, mean over the weights): they have not been trained "
                "yet. Train longer, or give them a larger learning rate: mcrepar.optim.groups(bnn, lr) for Adam, "
                "scale_lr of NaturalGradient, --scale-lr of mcrepar train."
            )
        names = [t.name for t in self.tensors if t.lost(0.99)]
        if names and not self.collapsed:
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            found.append(f"All weights of {listed} are at the prior: these tensors carry noise alone.")
        return tuple(found)

    @property
    def table(self) -> str:
        """One line for every tensor."""
        rows = [("tensor", "weights", "moved", "spread", "|mean|/std", "at prior", "KL/weight", "effective")]
        for t in self.tensors:
            known = (t.moved, "+.2f"), (t.spread, "+.2f"), (t.at_prior, ".0%")
            moved, spread, at_prior = ("?" if value is None else format(value, how) for value, how in known)
            rows.append((t.name, f"{t.weights}", moved, spread, f"{t.signal_to_noise:.3g}", at_prior,
                         f"{t.kl_per_weight:.3g}", f"{t.effective:.0f}"))  # fmt: skip
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
        return "\n".join("  ".join([row[0].ljust(widths[0]), *line[1:]]) for row, line in zip(rows, lines, strict=True))

    def __str__(self) -> str:
        most = max(self.tensors, key=lambda t: t.kl)
        noisy = _share([(t.noisy, t.weights) for t in self.tensors])
        constant = sum(t.constant for t in self.tensors)
        least = f" above the least that the prior allows ({self.kl + constant:,.4g} in all)" if constant else ""
        lines = [
            f"{self.weights:,} random weights in {len(self.tensors)} tensors, effectively {self.effective:,.0f}.",
            "How far their scales moved is not known." if self.moved is None else
            f"Since their initialisation their scales changed by the factor {math.exp(self.moved):.3g} in the mean.",
            f"The noise of {noisy:.0%} is larger than their mean.",
            f"The KL is {self.kl:,.4g} nats{least}, {self.kl / self.weights:.3g} per weight, most of it in {most.name} "
            f"({most.kl_per_weight:.3g} per weight).",
        ]  # fmt: skip
        if self.at_prior is not None:
            lines.append(f"{self.at_prior:.0%} of the weights are at the prior.")
        if self.mutual_information is not None:
            lines.append(f"The weights would tell {self.mutual_information:.3g} nats of y (mutual information).")
        return "\n".join([*lines, *(self.advice or ("Nothing stands out.",))])


def diagnosis(
    net: nn.Module,
    x: Any = None,
    *,
    likelihood: Likelihood | str | None = None,
    draws: int = 32,
    generator: torch.Generator | None = None,
    output: Output = None,
) -> Diagnosis:
    """What became of the posterior of a Bayesian neural network, or of one with Bayesian parts; see `bnn.diagnose`.

    Args:
        net: the network.
        x: a batch on which the mutual information is estimated, as `predict` takes it; it needs the likelihood.
        likelihood: of y.
        draws: of the weights, for the mutual information.
        generator: the source of these draws; None is the default RNG.
        output: what to take of a network that returns more than a tensor.
    """
    parts = random_parts(net, "a diagnosis of")
    check_generator(generator)
    draws, likelihood = whole_number("draws", draws), likelihood_of(likelihood)
    if x is not None and likelihood is None:
        why = "the mutual information is one of the weights and of y, which the network's output alone does not tell"
        raise ParameterError("diagnose(x) without a likelihood", why, "diagnose(x, likelihood='categorical')")
    with torch.no_grad():
        every = [random for part in parts for random in random_tensors(part).values()]
        tensors = tuple(_row(t, random) for random in every for t in random.tensors)
        told = None
        if x is not None and likelihood is not None:
            told = _mutual_information(net, x, likelihood, draws, generator, output)
    found = Diagnosis(tensors, told)
    if found.collapsed:
        warnings.warn(found.advice[0], CollapseWarning, stacklevel=3)
    return found


def _row(tensor: RandomTensor, random: RandomTensor | RankOne) -> TensorDiagnosis:
    factors = isinstance(random, RankOne)
    members = random.members if isinstance(random, RankOne) else 1
    q, log_scale = tensor.posterior, tensor.log_scale.double()
    p, size = tensor.prior(q), log_scale.numel()
    first = tensor.initial
    signal = (tensor.mean_of_random().double().abs() / q.stddev.double()).expand(log_scale.shape)
    distance, least = excess(q, p), p.least_kl()
    return TensorDiagnosis(
        tensor.name,
        size,
        None if first is None else float(log_scale.mean()) - first[0],
        None if first is None else float(log_scale.std(correction=0)) - first[1],
        float(signal.median()),
        float((signal < 1).double().mean()),
        None if distance is None else float((distance < AT_PRIOR).double().mean()),
        float(tensor.divergence(None, torch.Generator().manual_seed(0))) / members - least * size,
        float((1 / (1 + signal.square())).sum()),
        factors,
        least * size,
    )


# ---- a weight and its prior


def excess(q: Posterior, p: Prior) -> Tensor | None:
    """How far every weight is from the best it could be for the KL, in nats; None where the prior joins the weights.

    The KL of a Normal with the weight's mean and standard deviation, minus its smallest value; on the half-line the KL
    of the posterior itself, from 64 draws. Of a large tensor it takes 20,000 weights.
    """
    if p.density.joint or p.shape or p.improper:
        return None
    chosen = torch.randperm(q.numel, generator=torch.Generator().manual_seed(0))[:SAMPLE].to(q.device)

    def flat(t: Tensor) -> Tensor:
        return t.detach().double().expand(q.shape).reshape(-1)[chosen]

    own = p.filled(**{n: flat(t) for n, t in p.tensors.items() if t.numel() > 1})
    if q.row.support.lower >= 0:
        learned: dict[str, Any] = {
            name: flat(getattr(q, "log_scale" if name == "scale" else name)) for name in q.row.learned
        }
        learned["log_scale"] = learned.pop("scale")
        return None if q.noise.joint else _sampled(q.bind(validate=False, **learned), own)
    mean, std = flat(q.mean), flat(q.stddev)
    if not bool((mean.isfinite() & std.isfinite()).all()):
        return None
    return _normal_kl(mean, std, own) - _least(p)


def _normal_kl(mean: Tensor, std: Tensor, p: Prior) -> Tensor:
    """KL(N(mean, std^2) || p), elementwise, by the trapezoid rule."""
    nodes = torch.linspace(-6, 6, 201, dtype=torch.float64)
    weights = torch.softmax(-0.5 * nodes.square(), 0)
    cross = torch.zeros_like(mean)
    block = max(1, DENSITIES // max(1, mean.numel()))
    for k in range(0, len(nodes), block):
        some, share = nodes[k : k + block].to(mean), weights[k : k + block].to(mean)
        cross += share @ p.log_prob(mean + some[:, None] * std)
    return p.density.penalty * std.square() - cross - std.log() - 0.5 * math.log(2 * math.pi * math.e)


def _least(p: Prior) -> float:
    """The smallest KL of a Normal to this prior, over a fine grid of standard deviations around its location."""
    centred = p.filled(loc=0.0) if p.row is not None and "loc" in p.values else p
    if any(t.numel() > 1 for t in centred.tensors.values()):
        return 0.0  # weights of different priors
    centred = centred.filled(**{name: t.detach().double().cpu().reshape(()) for name, t in centred.tensors.items()})
    stds = torch.logspace(-8, 8, 3000, dtype=torch.float64)
    return float(_normal_kl(torch.zeros_like(stds), stds, centred).nan_to_num(math.inf).min())


def _sampled(q: Posterior, p: Prior) -> Tensor:
    """KL(q || p), elementwise, as the mean of r - 1 - log r, r = p / q, which has little noise near 0."""
    w = q.draw(64, torch.Generator().manual_seed(0)).double()
    log_ratio = p.log_prob(w) - q.log_prob(w)
    return (log_ratio.exp() - 1 - log_ratio).mean(0)


# ---- a batch


def _mutual_information(
    net: nn.Module, x: Any, likelihood: Likelihood, draws: int, generator: torch.Generator | None, output: Output
) -> float:
    """The mean over the examples; where y is no class, as if its mean had a Normal distribution over the draws."""
    batches, rows = Batches(x, 256, net), []
    with evaluating(net):
        for k in range(draws):
            with one_draw(net, generator, k) as call:
                outs = torch.cat([the_tensor(call(*args, **kwargs), output) for args, kwargs in batches])
            check_examples(outs, "diagnose(x)")
            likelihood.check_output(outs)
            rows.append((likelihood.mean(outs).double(), likelihood.aleatoric(outs).double()))
    means, noise = (torch.stack(column) for column in zip(*rows, strict=True))
    if isinstance(likelihood, OneOfMany | Bernoulli):
        probs = means.unsqueeze(1) if isinstance(likelihood, OneOfMany) else torch.stack([1 - means, means], 1)
        told = torch.special.entr(probs.mean(0)) - torch.special.entr(probs).mean(0)
    else:
        told = 0.5 * torch.log1p(means.var(0, correction=0) / noise.mean(0))
    return float(told.sum()) / means.shape[1]


def _share(pairs: Sequence[tuple[float | None, int]]) -> float | None:
    """The mean of numbers, by weights, of those that are known."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    return sum(v * w for v, w in known) / sum(w for _, w in known) if known else None
