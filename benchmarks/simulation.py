"""Simulation-based calibration: where does the true parameter stand among draws of the posterior that data gave?

    python benchmarks/simulation.py [--only TEXT] [--out FOLDER]     rows that are there already stay

500 data sets are simulated: a parameter from the prior, 30 examples from the parameter. If the posterior is right, the
rank of a true coefficient among 99 draws is uniform (Talts et al. 2018): 10 % of them are outside of the central 90 %.
A mean-field posterior of correlated coefficients is too narrow: more are outside. So is every posterior under the
hierarchical prior, which adds a penalty on the variance to the distribution that the coefficients are drawn from. All
data sets of a row are fitted at once, as the rows of one tensor; Radial noise, which is one direction in a whole
tensor, has a tensor for each, and 100 data sets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from timing import machine
from torch import Tensor, nn

import mcrepar
from mcrepar.likelihoods import Bernoulli, Normal

SETS, RADIAL_SETS, EXAMPLES, COEFFICIENTS, DRAWS, BINS = 500, 100, 30, 4, 99, 10
FAMILIES = ("normal", "laplace", "logistic", "student_t", "horseshoe", "radial")
MODELS = ("linear, independent inputs", "linear, correlated inputs", "logistic, independent inputs")
CORRELATION = 0.8


class Regressions(nn.Module):
    """Linear predictors of many data sets, which share their inputs.

    Args:
        sets: how many.
        one: whether all coefficients are rows of one tensor, or each data set has its own.
    """

    def __init__(self, sets: int, one: bool) -> None:
        super().__init__()
        first = torch.zeros(sets, COEFFICIENTS, dtype=torch.float64)
        self.rows = nn.ParameterList([first] if one else list(first.split(1)))

    def forward(self, x: Tensor) -> Tensor:
        """(examples, data sets)."""
        return x @ torch.cat(list(self.rows)).T


def inputs(model: str) -> Tensor:
    """(examples, coefficients), with variance 1."""
    x = torch.randn(EXAMPLES, COEFFICIENTS, dtype=torch.float64)
    if "correlated" not in model:
        return x
    shared = torch.randn(EXAMPLES, 1, dtype=torch.float64)
    return math.sqrt(CORRELATION) * shared + math.sqrt(1 - CORRELATION) * x


SPREAD = 0.3  # of a weight around its own mean, where all weights together have variance 1
TRUTH: dict[str, Any] = {  # what the coefficients are drawn from, by the name of the prior
    "normal": torch.distributions.Normal(0.0, 1.0),
    "laplace": torch.distributions.Laplace(0.0, 1.0),
    "student_t": torch.distributions.StudentT(5.0),
    "hierarchical": torch.distributions.Normal(0.0, 1.0),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "Adam": lambda bnn: torch.optim.Adam(mcrepar.optim.groups(bnn, 3e-2, 3e-2)),
    # the loss is a mean over the examples of all data sets, and each has its own Fisher information
    "natural": lambda bnn: mcrepar.optim.NaturalGradient(bnn, 0.3, data_size=EXAMPLES, scale_lr=0.05),
}


def prior(name: str) -> Any:
    """The distribution that the coefficients are drawn from, or the hierarchical prior with this marginal."""
    if name != "hierarchical":
        return TRUTH[name]
    return mcrepar.prior("hierarchical", scale=SPREAD, loc_scale=math.sqrt(1 - SPREAD**2))


def fit(model: str, family: str, truth: str, optimizer: str, steps: int, draws: int) -> tuple[Tensor, Tensor]:
    """The true coefficients and draws of the posteriors, (data sets, coefficients) and (draws, ...)."""
    torch.manual_seed(0)
    joint = family == "radial"
    sets = RADIAL_SETS if joint else SETS
    x = inputs(model)
    true = TRUTH[truth].sample((sets, COEFFICIENTS)).double()
    u = x @ true.T
    y = u + torch.randn_like(u) if model.startswith("linear") else torch.bernoulli(u.sigmoid())
    likelihood = Normal(1.0) if model.startswith("linear") else Bernoulli()
    bnn = mcrepar.bayesian(Regressions(sets, not joint), family, prior(truth), initial_std=0.3, forward="weights")
    stepper = OPTIMIZERS[optimizer](bnn)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, steps)
    for _ in range(steps):
        stepper.zero_grad()
        mcrepar.elbo(bnn, likelihood, x, y, data_size=EXAMPLES, draws=draws).loss.backward()
        stepper.step()
        schedule.step()
    with torch.no_grad():
        samples = torch.stack([torch.cat(list(bnn.draw().values())) for _ in range(DRAWS)])
    return true, samples


def judged(true: Tensor, samples: Tensor) -> dict[str, float]:
    """The share of true coefficients outside of the central 90 % of draws, and whether ranks are uniform."""
    ranks = (samples < true).sum(0)  # 0 to DRAWS, DRAWS + 1 values
    low, high = 0.05 * (DRAWS + 1), 0.95 * (DRAWS + 1)
    outside = ((ranks < low) | (ranks >= high)).double()
    counts = torch.histc(ranks[:, 0].double(), BINS, 0, DRAWS + 1).numpy()  # one coefficient: independent data sets
    p = float(stats.chisquare(counts).pvalue)
    share = float(outside.mean())
    error = float(outside.mean(1).std() / math.sqrt(len(true)))
    return {"data sets": len(true), "outside 90 %": share, "standard error": error, "p of uniform ranks": p}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    file, where = options.out / "simulation.json", machine()
    found = json.loads(file.read_text())["rows"] if file.exists() else []
    there = {(row["model"], row["posterior"], row["prior"], row["optimizer"]) for row in found}
    for case in itertools.product(MODELS, FAMILIES, TRUTH, OPTIMIZERS):
        if case in there or options.only not in " | ".join(case):
            continue
        start = time.perf_counter()
        row = judged(*fit(*case, options.steps, options.draws))
        row["seconds"] = round(time.perf_counter() - start, 1)
        found.append(dict(zip(("model", "posterior", "prior", "optimizer"), case, strict=True)) | row)
        print(" | ".join(case), {k: round(v, 4) for k, v in row.items()}, flush=True)
        content = {"machine": where, "examples": EXAMPLES, "steps": options.steps, "rows": found}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
