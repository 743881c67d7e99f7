"""Where the noise of a gradient comes from: the minibatch, the draw of the weights, the estimate of the KL.

    python benchmarks/gradient_noise.py TASK METHOD SEED --root DATA --work FOLDER [--out FOLDER]

A network that quality.py has trained is given BATCHES minibatches, each with DRAWS draws of the weights, by every
forward. The variance of the gradient, summed over parameters of one kind, is split as in an analysis of variance:
within a batch (the weights' noise) and between batches, less the share of the former that is left in a mean. The
noise of the KL is that of its estimate from M draws; the exact KL has none.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from quality import checkpoint_name, trained
from quality_learners import Bayesian
from quality_methods import METHODS
from quality_tasks import TASKS
from timing import machine
from torch import Tensor, nn

from mcrepar.nn.forwards import FORWARDS

BATCHES, DRAWS, KL_DRAWS = 16, 6, (1, 100)
KINDS = {"means": ".loc", "log scales": "log_scale"}


def gradients(bnn: nn.Module) -> dict[str, Tensor]:
    """The gradient of all parameters of a kind, in one vector."""
    named = dict(bnn.named_parameters())
    return {
        kind: torch.cat([p.grad.flatten() for name, p in named.items() if name.endswith(end) and p.grad is not None])
        for kind, end in KINDS.items()
    }


def split(found: list[list[Tensor]]) -> dict[str, float]:
    """Variance within and between the rows of (batches, draws) gradients, summed over parameters."""
    draws = len(found[0])
    means = torch.stack([torch.stack(row).mean(0) for row in found])
    within = sum(float((torch.stack(row).var(0)).sum()) for row in found) / len(found)
    between = float(means.var(0).sum()) - within / draws
    return {"weights": within, "minibatch": max(between, 0.0), "squared mean": float(means.mean(0).square().sum())}


def of_forward(learner: Bayesian, batches: list[tuple[Tensor, Tensor]]) -> dict[str, dict[str, float]]:
    """The noise of one forward, for every kind of parameter."""
    bnn = learner.model
    found: dict[str, list[list[Tensor]]] = {kind: [] for kind in KINDS}
    for x, y in batches:
        for kind in KINDS:
            found[kind].append([])
        for _ in range(DRAWS):
            bnn.zero_grad()
            (-learner.likelihood.log_prob(bnn(x), y).mean()).backward()
            for kind, gradient in gradients(bnn).items():
                found[kind][-1].append(gradient)
    return {kind: split(rows) for kind, rows in found.items()}


def of_kl(learner: Bayesian, draws: int) -> dict[str, float]:
    """The variance of the KL's gradient in the loss, estimated from M draws."""
    bnn = learner.model
    rows: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    for _ in range(4 * DRAWS):
        bnn.zero_grad()
        (bnn.kl("stats" if draws > 1 else "repar", n_mc_iter=draws) / learner.data_size).backward()
        for kind, gradient in gradients(bnn).items():
            rows[kind].append(gradient)
    return {kind: float(torch.stack(found).var(0).sum()) for kind, found in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    task, parts, learner = trained(given.task, given.method, given.seed, given.root, given.work)
    assert isinstance(learner, Bayesian)
    name = checkpoint_name(given.task, given.method, given.seed)
    learner.model.train()
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(len(parts.train), generator=generator)
    batches = [parts.batch(order[k * task.batch_size : (k + 1) * task.batch_size], generator) for k in range(BATCHES)]
    forwards: dict[str, Any] = {}
    for forward in FORWARDS:
        if forward == "per_example" or (learner.model.members and forward != "weights"):
            continue  # BatchNorm does not allow the former; rank-1 factors have one forward
        learner.model.mode = forward
        forwards[forward] = of_forward(learner, batches)
        print(forward, json.dumps(forwards[forward]), flush=True)
    kl = {str(draws): of_kl(learner, draws) for draws in KL_DRAWS}
    print("kl", kl)
    target = given.out / "gradient_noise.json"
    before = json.loads(target.read_text())["runs"] if target.exists() else {}
    content = {"machine": machine(), "batches": BATCHES, "draws": DRAWS, "batch size": task.batch_size,
               "runs": {**before, name: {"forwards": forwards, "kl": kl}}}  # fmt: skip
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
