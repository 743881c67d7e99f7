"""What can be drawn of one pair: the two densities of a weight, and every estimate of the KL against M."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import POSTERIORS, posterior
from mcrepar.distributions.prior import Prior
from mcrepar.divergence.kl import kl_divergence
from mcrepar.divergence.methods import METHODS, Method
from mcrepar.divergence.plan import Plan, explain
from mcrepar.errors import McreparError
from mcrepar.workbench.app.estimate_distribution import draws_grid
from mcrepar.workbench.app.taylor_warning import without_taylor_warning

Array = NDArray[np.float64]

MOST_DRAWS = 50_000  # of a method that draws M noises per weight, per estimate
_SAMPLE = 20_000  # weights drawn to find where a density lives
_LARGEST = 1e300  # beyond it a difference of two weights overflows


@dataclass(frozen=True)
class Curve:
    """A density on a grid, or a histogram where the noise is joint over the tensor and its margin has no formula."""

    x: Array
    y: Array
    drawn: bool


def weight_densities(q: Posterior, p: Prior, seed: int = 0, points: int = 201) -> tuple[Curve, Curve]:
    """The densities of one weight under the posterior and under the prior, where the posterior lives.

    Args:
        q: a posterior whose weights are all alike.
        p: a prior with numbers as parameters.
        seed: of the draws that find the place, and make the histogram of a joint distribution.
        points: of the grid.

    >>> from mcrepar import posterior, prior
    >>> q = posterior("normal", loc=torch.zeros(1), scale=torch.ones(1))
    >>> ours, theirs = weight_densities(q, prior("normal", scale=2.0))
    >>> round(float(ours.y.max() / theirs.y.max()), 3)
    2.0
    """
    sample = _sample(q, seed)
    low, middle, high = np.quantile(sample, [0.005, 0.5, 0.995])
    lower, upper = max(middle - 2 * (middle - low), q.row.support.lower), middle + 2 * (high - middle)
    narrowest = 1e-10 * max(abs(middle), 1e-280)  # far from 0 the numbers themselves are no denser
    x = np.linspace(lower, max(upper, lower + narrowest), points)
    return _density(q, sample, x), _prior_density(p, q, x, seed)


def _sample(q: Posterior, seed: int) -> Array:
    draws = -(-_SAMPLE // q.numel)
    drawn = q.draw(draws, torch.Generator().manual_seed(seed)).detach().double().flatten().clamp(-_LARGEST, _LARGEST)
    sample: Array = drawn.numpy()
    return sample


def _density(q: Posterior, sample: Array, x: Array) -> Curve:
    if q.noise.joint:
        return _histogram(sample, x)
    first = {name: torch.as_tensor(getattr(q, name)).flatten()[:1] for name in q.row.learned}
    one = posterior(q.name, **first, **q.fixed)
    return Curve(x, _exp(one.log_prob(torch.tensor(x))), drawn=False)


def _prior_density(p: Prior, q: Posterior, x: Array, seed: int) -> Curve:
    if not p.density.joint:
        return Curve(x, _exp(p.log_prob(torch.tensor(x))), drawn=False)
    row = POSTERIORS[p.name]  # a joint prior is drawn as the posterior of its name
    same = posterior(
        row.name, **{name: torch.full((q.numel,), float(p.values[name]), dtype=q.dtype) for name in row.learned}
    )
    return _histogram(_sample(same, seed), x)


def _exp(log_density: torch.Tensor) -> Array:
    y: Array = log_density.detach().double().exp().flatten().numpy()
    return y


def _histogram(sample: Array, x: Array, bins: int = 60) -> Curve:
    counts, edges = np.histogram(sample, bins, (x[0], x[-1]))
    return Curve((edges[1:] + edges[:-1]) / 2, counts / (len(sample) * np.diff(edges)), drawn=True)


@dataclass(frozen=True)
class Estimates:
    """Estimates of a KL by one method: one per M, a single one where nothing is drawn, or why there is none."""

    draws: list[int]
    values: list[float]
    refusal: McreparError | None = None


def estimates(q: Posterior, p: Prior, up_to: int, seed: int = 0, points: int = 9) -> dict[str, Estimates]:
    """The estimate of every method against the number M of draws, and the error of those that do not apply.

    A method that draws M noises per weight ends at `MOST_DRAWS` of them; stats goes on, as it costs the same for any M.

    Args:
        q: the posterior.
        p: the prior.
        up_to: the largest M.
        seed: every method has a noise of its own, derived from it.
        points: the number of M.

    >>> from mcrepar import posterior, prior
    >>> q = posterior("normal", loc=torch.zeros(2), scale=torch.ones(2))
    >>> estimates(q, prior("laplace"), 100, points=3)["stream"].draws
    [1, 10, 100]
    """
    plan, found = explain(q, p), {}
    for place, (method, row) in enumerate(METHODS.items()):
        grid = [m for m in draws_grid(up_to, points) if row.samples and _affordable(plan, row, m, q.numel)]
        generator = torch.Generator().manual_seed(1000 * seed + place)
        try:
            if method in plan.refusals:
                raise plan.refusals[method]
            asked: list[int | None] = [*grid] if row.samples else [None]
            found[method] = Estimates(grid, [_estimate(q, p, method, draws, generator) for draws in asked])
        except McreparError as error:  # also of values that the families allow: an infinite variance, unequal scales
            found[method] = Estimates([], [], error)
    return found


def _affordable(plan: Plan, row: Method, draws: int, weights: int) -> bool:
    """Whether so many draws are few, or drawn at once from the distribution of their means."""
    means = plan.means_distribution if row.contracts else None
    return draws * weights <= MOST_DRAWS or (means is not None and means.kind != "drawn" and draws >= means.from_draws)


def _estimate(q: Posterior, p: Prior, method: str, draws: int | None, generator: torch.Generator) -> float:
    quiet = without_taylor_warning() if METHODS[method].biased else nullcontext()  # the curve shows it
    with torch.no_grad(), quiet:
        return kl_divergence(q, p, method, draws, generator=generator).item()
