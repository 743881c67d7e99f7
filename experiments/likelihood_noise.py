"""What is measured of the likelihood term: its noise, that of its gradient, and the formulas that the paper prints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.experiment import Bench, Part, Row
from mcrepar.likelihoods import Bernoulli, Categorical, Likelihood, Normal
from mcrepar.nn.module import BayesianModule, bayesian
from mcrepar.objective import elbo

FORWARDS = {
    "per_example": "a draw for every datum",
    "local": "local reparameterization",
    "flipout": "flipout",
    "weights": "one draw for the batch",
}
FEATURES = 8
DATA = 1000  # data in all, of which a batch is seen

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        batches: sizes B, each a divisor of the largest.
        draws: numbers M of last-layer draws, the first being 1.
        estimates: of every one.
        width: of the network's two hidden layers.
        last_batch: B of the last-layer draws.
        endless: last-layer draws that stand for M -> infinity where that has no closed form.
    """

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    draws: tuple[int, ...] = (1, 3, 10, 30, 100)
    estimates: int = 1000
    width: int = 32
    last_batch: int = 16
    endless: int = 10_000


def parts(settings: Settings) -> list[Part]:
    """Batches for every forward; last-layer draws for both tasks; the printed formulas; the gradients' noise."""
    found = [Part(f"batch-{forward}", {"kind": "batch", "forward": forward}) for forward in FORWARDS]
    found += [Part(f"last-{task}", {"kind": "last", "task": task}) for task in ("regression", "classification")]
    return [*found, *(Part(kind, {"kind": kind}) for kind in ("product", "printed", "gradient"))]


def measure(part: Part, bench: Bench) -> Row:
    """Variances over draws of the weights, the data being fixed."""
    torch.manual_seed(bench.seed)
    kinds: dict[str, Callable[[Part, Bench], Row]] = {
        "batch": _batches, "last": _last_layer, "product": _product, "printed": _printed,
        "gradient": _gradients,
    }  # fmt: skip
    return kinds[part.given["kind"]](part, bench)


def _data(count: int) -> tuple[Tensor, Tensor]:
    """Made-up regression data."""
    x = torch.randn(count, FEATURES)
    return x, (x[:, :1] * x[:, 1:2]).tanh() + 0.1 * torch.randn(count, 1)


def _network(width: int, outputs: int, forward: str, **options: Any) -> BayesianModule:
    net = nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
    )
    return bayesian(net, posterior="normal", prior="normal", start_std=0.5, forward=forward, **options)


def _batches(part: Part, bench: Bench) -> Row:
    """The variance of the mean log likelihood over disjoint batches of every size."""
    settings: Settings = bench.settings
    torch.manual_seed(settings.width)  # the same data and network for every forward
    x, y = _data(max(settings.batches))
    bnn, likelihood = _network(settings.width, 1, part.given["forward"]), Normal(scale=1.0)
    torch.manual_seed(bench.seed)
    with torch.no_grad():
        rows = [likelihood.log_prob(bnn(x), y).double().numpy() for _ in range(settings.estimates)]
    terms = np.stack(rows)  # (estimates, data)
    variances = []
    for batch in settings.batches:
        means = terms.reshape(len(terms), -1, batch).mean(2)  # (estimates, batches)
        variances.append(float(means.var(0, ddof=1).mean()))
    own = float(terms.var(0, ddof=1).mean())
    return {"variance": variances, "own": own, "shared": float(terms.mean(1).var(ddof=1)) / own}


def _last_layer(part: Part, bench: Bench) -> Row:
    """The variance of the nll for every number of last-layer draws, and of its limit."""
    settings: Settings = bench.settings
    regression = part.given["task"] == "regression"
    x, y = _data(settings.last_batch)
    likelihood: Likelihood = Normal(scale=1.0) if regression else Categorical()
    target = y if regression else (y[:, 0] > 0).long() + (y[:, 0] > 0.5).long()
    bnn = _network(settings.width, 1 if regression else 3, "weights")

    def sample(draws: int | str) -> Array:
        with torch.no_grad():
            found = [elbo(bnn, likelihood, x, target, data_size=DATA, last_layer_draws=draws).nll.item()
                     for _ in range(settings.estimates)]  # fmt: skip
        return np.asarray(found)

    limit = sample("exact" if regression else settings.endless)
    samples = [sample(draws) for draws in settings.draws]
    return {
        "variance": [float(s.var(ddof=1)) for s in samples],
        "error": [_variance_error(s) for s in samples],
        "limit": float(limit.var(ddof=1)),
        "limit_error": _variance_error(limit),
    }


def _variance_error(sample: Array) -> float:
    """The standard error of a sample's variance."""
    squares = (sample - sample.mean()) ** 2
    return float(squares.std(ddof=1) / math.sqrt(len(sample)))


def _product(part: Part, bench: Bench) -> Row:
    """The printed variance of a mean of products u w, with M draws of w for every u, beside the measured one."""
    rng, cases = np.random.default_rng(bench.seed), []
    mean_u, std_u, mean_w, std_w = 0.7, 0.5, 0.4, 0.8
    for batch, draws in ((1, 1), (8, 1), (8, 10), (64, 10)):
        u = rng.normal(mean_u, std_u, (bench.settings.estimates, batch))
        w = rng.normal(mean_w, std_w, (bench.settings.estimates, batch, draws)).mean(2)
        sample = (u * w).mean(1)
        formula = (std_w**2 * (mean_u**2 + std_u**2) / draws + std_u**2 * mean_w**2) / batch
        error = _variance_error(sample)
        cases.append({"batch": batch, "draws": draws, "measured": float(sample.var(ddof=1)), "formula": formula,
                      "z": (float(sample.var(ddof=1)) - formula) / error})  # fmt: skip
    return {"cases": cases}


def _printed(part: Part, bench: Bench) -> Row:
    """The formulas of Observation 1, as printed and corrected, against the likelihoods."""
    u = torch.linspace(-0.5, 0.5, 11, dtype=torch.float64).unsqueeze(1)
    y = torch.full_like(u, 0.8)
    gauss, constant = Normal(scale=1.0).log_prob(u, y), -0.5 * math.log(2 * math.pi)
    ones = torch.ones_like(u)
    bernoulli = Bernoulli().log_prob(u, ones)

    def largest(printed: Tensor, true: Tensor) -> float:
        return float((printed.squeeze(1) - true).abs().max())

    return {
        "gauss_printed": largest(constant - y**2 / 2 - y * u + u**2 / 2, gauss),
        "gauss_right": largest(constant - y**2 / 2 + y * u - u**2 / 2, gauss),
        "bernoulli_printed": largest(-math.log(2) + u / 2 - u**2 / 4, bernoulli),
        "bernoulli_right": largest(-math.log(2) + u / 2 - u**2 / 8, bernoulli),
    }


def _gradients(part: Part, bench: Bench) -> Row:
    """The variance of the gradients of the nll and of the KL estimated with M = 1, unscaled: means over the weights."""
    settings: Settings = bench.settings
    torch.manual_seed(settings.width)
    x, y = _data(settings.last_batch)
    bnn = _network(settings.width, 1, "weights", kl_method="repar", n_mc_iter=1)
    likelihood, names = Normal(scale=1.0), [name.rpartition(".")[2] for name, _ in bnn.named_parameters()]
    torch.manual_seed(bench.seed)
    drawn: dict[str, list[list[Tensor]]] = {"nll": [], "kl": []}
    for _ in range(settings.estimates):
        one = elbo(bnn, likelihood, x, y, data_size=DATA)
        drawn["nll"].append(list(torch.autograd.grad(one.nll, list(bnn.parameters()))))
        drawn["kl"].append(list(torch.autograd.grad(one.kl, list(bnn.parameters()))))
    out: Row = {}
    for term, gradients in drawn.items():
        each = [torch.stack(same).double().var(0).flatten() for same in zip(*gradients, strict=True)]
        for level in dict.fromkeys(names):
            whole = torch.cat([v for name, v in zip(names, each, strict=True) if name == level])
            out[f"{term}_{level}"] = float(whole.mean())
    return out
