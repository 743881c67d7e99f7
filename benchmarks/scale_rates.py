"""The learning rate of log scales over that of means, for a training loop of one's own: validation likelihoods.

    python benchmarks/scale_rates.py --root DATA

One hidden layer of 50 with the defaults of `bayesian`, on the data of benchmarks/estimators.py; Adam, 2,000 steps of at
most 100 examples, at a constant learning rate of 0.001 as in the README, and in one cycle up to 0.01, 0.005 or 0.003.
The rule for the default of `mcrepar.optim.groups`: the mean validation log predictive density over data sets at the
constant rate; for that of `mcrepar train`: the same in one cycle, with Fashion-MNIST beside it.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from estimators import RESULTS, Arrays, classifications, regressions
from torch import nn

import mcrepar

STEPS, BATCH, DRAWS = 2000, 100, 100
RATIOS = (1.0, 2.0, 5.0, 10.0, 20.0)
LOOPS = {"constant, 0.001": (1e-3, RATIOS), "one cycle, 0.01": (1e-2, RATIOS),
         "one cycle, 0.005": (5e-3, (2.0,)), "one cycle, 0.003": (3e-3, (2.0,))}  # rates of means; ratios  # fmt: skip


def density(data: Arrays, loop: str, ratio: float) -> float:
    """The mean log predictive density of the validation part after a loop on the training part."""
    (x, y), (x_val, y_val) = ((torch.tensor(a), torch.tensor(b)) for a, b in (data["train"], data["validation"]))
    mean, std = x.float().mean(0), x.float().std(0).clamp_min(1e-6)
    x, x_val = (x.float() - mean) / std, (x_val.float() - mean) / std
    numbers = y.is_floating_point()
    likelihood = mcrepar.likelihoods.Normal("learned") if numbers else mcrepar.likelihoods.Categorical()
    y, y_val = (part.float()[:, None] if numbers else part for part in (y, y_val))
    torch.manual_seed(0)
    outputs = 1 if numbers else int(y.max()) + 1
    bnn = mcrepar.bayesian(nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, outputs)))
    lr, _ = LOOPS[loop]
    optimizer = torch.optim.Adam(
        [*mcrepar.optim.groups(bnn, lr, ratio * lr), {"params": list(likelihood.parameters())}], lr
    )
    peaks = [group["lr"] for group in optimizer.param_groups]
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, STEPS) if loop.startswith("one") else None
    for _ in range(STEPS):
        index = torch.randint(len(x), (min(BATCH, len(x)),))
        optimizer.zero_grad()
        mcrepar.elbo(bnn, likelihood, x[index], y[index], data_size=len(x)).loss.backward()
        optimizer.step()
        if cycle is not None:
            cycle.step()
    return float(mcrepar.predict(bnn, x_val, likelihood=likelihood, draws=DRAWS).log_prob(y_val).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    every = {**regressions(given.root), **classifications()}
    file = RESULTS / "scale_rates.json"
    stored = json.loads(file.read_text())["validation"] if file.exists() else {}
    found = {loop: stored.get(loop, {}) for loop in LOOPS}
    for loop, ratio in ((loop, ratio) for loop, (_, ratios) in LOOPS.items() for ratio in ratios):
        if f"{ratio:g}" in found[loop]:
            continue
        scores = defaultdict(list)
        for name, data in every.items():
            scores[name.rpartition("-")[0]].append(density(data, loop, ratio))
        means = {name: float(np.mean(values)) for name, values in scores.items()}
        found[loop][f"{ratio:g}"] = {**means, "mean": float(np.mean(list(means.values())))}
        print(loop, ratio, found[loop][f"{ratio:g}"], flush=True)
        content = {"rule": __doc__.split("\n\n")[2], "steps": STEPS, "validation": found}
        file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
