"""Training with moments against training with draws, and predictions by moments against 100 draws of the same networks.

python benchmarks/moments_training.py --root DATA [--only TASK ...] [--out FOLDER]

UCI data (DATA/uci, as in quality_uci.py): three splits, one hidden layer of 50, 600 steps of 100 examples.
LeNet on scikit-learn's digits (1,000 images, 300 for the test, 28 x 28): three seeds, 320 steps of 64 images.
All at beta = 1 with a hierarchical prior; Adam, one-cycle schedule. Seconds are CPU time of one thread, per step.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from moments import digits, lenet
from quality_uci import Part, network, parts
from scipy.stats import spearmanr
from timing import machine
from torch import nn

import mcrepar
from mcrepar.likelihoods import Categorical, Likelihood, Normal
from mcrepar.metrics import ece

WAYS: dict[str, tuple[str, dict[str, Any]]] = {  # forward, and options of elbo
    "1 draw, shared": ("weights", {"draws": 1}),
    "1 draw, local": ("local", {"draws": 1}),
    "10 draws, shared": ("weights", {"draws": 10}),
    "10 draws, local": ("local", {"draws": 10}),
    "moments": ("weights", {"draws": "moments"}),
}
UCI = ("yacht", "energy", "boston", "concrete")
UCI_STEPS, LENET_STEPS, SEEDS = 600, 320, 3


def prior() -> mcrepar.Prior:
    return mcrepar.prior("hierarchical", scale=0.3, loc_scale=3.0, relative="fan_in")


def train(net: nn.Module, likelihood: Likelihood, data: Part, way: str, steps: int, batch: int) -> tuple[Any, float]:
    """A Bayesian neural network, and the seconds of a step."""
    forward, options = WAYS[way]
    bnn = mcrepar.bayesian(net, posterior="normal", prior=prior(), forward=forward)
    groups = [*mcrepar.optim.groups(bnn, 1e-2 if batch == 100 else 3e-3, 5e-2)]
    if list(likelihood.parameters()):
        groups.append({"params": list(likelihood.parameters()), "lr": 1e-2})
    optimizer = torch.optim.Adam(groups)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=0.2, cycle_momentum=False)
    start = time.process_time()
    for _ in range(steps):
        index = torch.randperm(len(data.x))[:batch]
        optimizer.zero_grad()
        mcrepar.elbo(bnn, likelihood, data.x[index], data.y[index], len(data.x), **options).loss.backward()
        optimizer.step()
        schedule.step()
    return bnn.eval(), (time.process_time() - start) / steps


def uci(name: str, root: Path) -> list[dict[str, Any]]:
    """Log-likelihoods on test parts, by 100 draws and by moments."""
    found = []
    for way in WAYS:
        rows = []
        for split in range(SEEDS):
            data, width = parts(root / "uci" / f"{name}.npz", split)
            torch.manual_seed(split)
            likelihood = Normal("learned")
            net = network(data["train"].x.shape[1], 0.0)
            bnn, seconds = train(net, likelihood, data["train"], way, UCI_STEPS, 100)
            mcrepar.calibrate_moments(bnn, data["train"].x[:200])
            row = {"seconds": seconds}
            for draws in (100, "moments"):
                p = mcrepar.predict(bnn, data["test"].x, draws=draws, likelihood=likelihood)
                log_prob = float(p.log_prob(data["test"].y).mean().detach()) - math.log(width)
                error = float((p.mean - data["test"].y).square().mean().sqrt().detach()) * width
                row |= {f"log_likelihood, {draws}": log_prob, f"rmse, {draws}": error}
            rows.append(row)
        found.append({"task": f"uci-{name}", "way": way, "mean": _means(rows)})
        print(name, way, found[-1]["mean"], flush=True)
    return found


def lenets() -> list[dict[str, Any]]:
    """Scores on test images, by 100 draws and by moments."""
    x, y = digits(28, 1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    data, test = Part(x[order[:1000]], y[order[:1000]]), Part(x[order[1000:1300]], y[order[1000:1300]])
    found = []
    for way in WAYS:
        rows = []
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            bnn, seconds = train(lenet(), Categorical(), data, way, LENET_STEPS, 64)
            mcrepar.calibrate_moments(bnn, data.x[:64], likelihood="categorical")
            rows.append({"seconds": seconds, **_compare(bnn, test)})
        found.append({"task": "lenet", "way": way, "mean": _means(rows)})
        print("lenet", way, found[-1]["mean"], flush=True)
    return found


def _compare(bnn: nn.Module, test: Part) -> dict[str, float]:
    row, uncertain = {}, []
    for draws in (100, "moments"):
        p = mcrepar.predict(bnn, test.x, draws=draws, likelihood="categorical")
        row |= {
            f"nll, {draws}": -float(p.log_prob(test.y).mean()),
            f"accuracy, {draws}": float((p.label == test.y).float().mean()),
            f"ece, {draws}": float(ece(p.probs.numpy(), test.y.numpy())),
        }
        uncertain.append(p)
    for score in ("entropy", "mutual_information"):
        row[f"rank correlation, {score}"] = float(spearmanr(*(getattr(p, score) for p in uncertain)).statistic)
    return row


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[*UCI, "lenet"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    target = options.out / "moments_training.json"
    known = json.loads(target.read_text(encoding="utf-8"))["runs"] if target.exists() else []
    for task in options.only:
        found = lenets() if task == "lenet" else uci(task, options.root)
        known = [run for run in known if run["task"] != found[0]["task"]] + found
        content = {"machine": machine(), "uci steps": UCI_STEPS, "lenet steps": LENET_STEPS, "runs": known}
        target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
