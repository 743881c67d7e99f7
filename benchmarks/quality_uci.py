"""UCI regression: one hidden layer of 50, the 20 standard splits of Gal and Ghahramani, every method on one budget.

    python benchmarks/quality_uci.py boston "normal, local" --root DATA

DATA/uci holds boston.npz, concrete.npz, energy.npz and yacht.npz (x, y, and the test indices of 20 splits). A tenth of
every training part is a validation part, on which methods are chosen; steps of 100 examples (2,000 of them unless the
method's name says more), one-cycle schedule.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mcrepar

RESULTS = Path(__file__).parent / "results" / "quality"
BATCH, DRAWS, HIDDEN, SPLITS = 100, 100, 50, 20


@dataclass(frozen=True)
class Part:
    """Inputs and targets, standardised by the training part."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Method:
    """How a network becomes Bayesian, and how it is trained.

    Args:
        options: of `bayesian`; None is the deterministic network, with a learned noise of the targets.
        lr: the peak of the one-cycle schedule for means and plain parameters.
        scale_lr: the same for scales.
        weight_decay: of parameters that are not random.
        dropout: its rate, in training and in prediction.
        validated_noise: take the standard deviation of the targets' noise from the errors on the validation part, which
            an overfitted network does not make too small as the likelihood of the training part does.
        whole: train on the validation part too, as published figures do once a method is chosen;
            without validation scores.
        heteroscedastic: the network has a second output, the log scale of the targets' noise.
        steps: of the optimizer.
    """

    options: Mapping[str, Any] | None = None
    lr: float = 1e-2
    scale_lr: float = 5e-2
    weight_decay: float = 0.0
    dropout: float = 0.0
    validated_noise: bool = False
    heteroscedastic: bool = False
    whole: bool = False
    steps: int = 2000


HIERARCHICAL = {
    "posterior": "normal",
    "prior": mcrepar.prior("hierarchical", scale=0.3, loc_scale=3.0, relative="fan_in"),
    "forward": "local",
}  # the default of `bayesian`: a network of dense layers has "local" by "auto"
RANK1 = {"structure": "rank1", "prior": mcrepar.prior("normal", loc=1.0, scale=0.3)}
METHODS: Mapping[str, Method] = {
    "deterministic": Method(weight_decay=1e-4),
    "deterministic, validated noise": Method(weight_decay=1e-4, validated_noise=True),
    "deterministic, validated noise, 6,000 steps": Method(weight_decay=1e-4, validated_noise=True, steps=6000),
    "deterministic, heteroscedastic": Method(weight_decay=1e-4, heteroscedastic=True),
    "dropout": Method(dropout=0.05, weight_decay=1e-4),
    "dropout, 6,000 steps": Method(dropout=0.05, weight_decay=1e-4, steps=6000),
    "dropout, heteroscedastic": Method(dropout=0.05, weight_decay=1e-4, heteroscedastic=True),
    "dropout, heteroscedastic, whole": Method(dropout=0.05, weight_decay=1e-4, heteroscedastic=True, whole=True),
    "normal, local": Method({"posterior": "normal", "prior": "normal", "forward": "local"}),
    "hierarchical .3": Method(HIERARCHICAL),
    "hierarchical .3, 6,000 steps": Method(HIERARCHICAL, steps=6000),
    "hierarchical .3, heteroscedastic": Method(HIERARCHICAL, heteroscedastic=True),
    "hierarchical .3, heteroscedastic, whole": Method(HIERARCHICAL, heteroscedastic=True, whole=True),
    "rank1 .3": Method(RANK1, weight_decay=1e-4),
}


class Dropout(nn.Module):
    """Dropout that predicts too."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Without a share of its numbers."""
        return F.dropout(x, self.rate)


def network(inputs: int, dropout: float, outputs: int = 1) -> nn.Module:
    """One hidden layer."""
    noise = [Dropout(dropout)] if dropout else []
    return nn.Sequential(*noise, nn.Linear(inputs, HIDDEN), nn.ReLU(), *noise, nn.Linear(HIDDEN, outputs))


def parts(path: Path, split: int) -> tuple[dict[str, Part], float]:
    """Training, validation and test part of a split, and the standard deviation of the targets."""
    data = np.load(path)
    x, y, test = data["x"], data["y"].reshape(-1, 1), data["test"][split]
    test = test[test >= 0]
    rest = np.setdiff1d(np.arange(len(x)), test)
    order = np.random.default_rng(split).permutation(rest)
    held = len(rest) // 10
    index = {"train": order[held:], "validation": order[:held], "test": test}
    mean, std = x[index["train"]].mean(0), x[index["train"]].std(0)
    centre, width = y[index["train"]].mean(), y[index["train"]].std()
    scaled = {
        name: Part(
            torch.tensor((x[i] - mean) / np.where(std > 0, std, 1), dtype=torch.float32),
            torch.tensor((y[i] - centre) / width, dtype=torch.float32),
        )
        for name, i in index.items()
    }
    return scaled, float(width)


def joined(first: Part, second: Part) -> Part:
    """Both parts together."""
    return Part(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


def train(method: Method, data: Part, seed: int) -> tuple[nn.Module, mcrepar.likelihoods.Normal]:
    """One network on one training part."""
    torch.manual_seed(seed)
    net = network(data.x.shape[1], method.dropout, 2 if method.heteroscedastic else 1)
    likelihood = mcrepar.likelihoods.Normal("heteroscedastic" if method.heteroscedastic else "learned")
    if method.options is not None:
        net = mcrepar.bayesian(net, **method.options)
    optimizer = _optimizer(method, net, likelihood)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, method.steps, pct_start=0.2, cycle_momentum=False)
    batch = min(BATCH, len(data.x))
    order = torch.randperm(len(data.x))
    for step in range(method.steps):
        first = step * batch % len(order)
        if first + batch > len(order):
            order, first = torch.randperm(len(order)), 0
        index = order[first : first + batch]
        x, y = data.x[index], data.y[index]
        optimizer.zero_grad()
        if method.options is None:
            loss = -likelihood.log_prob(net(x), y).mean()
        else:
            loss = mcrepar.elbo(net, likelihood, x, y, data_size=len(data.x)).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return net, likelihood


@torch.no_grad()
def set_noise(net: nn.Module, likelihood: mcrepar.likelihoods.Normal, part: Part) -> None:
    """The noise that makes the errors on a part most likely."""
    assert likelihood.log_scale is not None
    likelihood.log_scale.fill_((net.eval()(part.x) - part.y).square().mean().sqrt().log())


def _optimizer(method: Method, net: nn.Module, likelihood: nn.Module) -> torch.optim.Optimizer:
    if method.options is None:
        groups = [{"params": list(net.parameters()), "lr": method.lr, "weight_decay": method.weight_decay}]
    else:
        plain, scales = mcrepar.optim.groups(net, method.lr, method.scale_lr)
        weights = [p for name, p in net.named_parameters() if name.endswith(".weight")]  # of rank-1
        ours = {id(p) for p in weights}
        groups = [{**plain, "params": [p for p in plain["params"] if id(p) not in ours]}, scales]
        groups += [{"params": weights, "lr": method.lr, "weight_decay": method.weight_decay}] if weights else []
    learned = list(likelihood.parameters())
    return torch.optim.Adam([*groups, *([{"params": learned, "lr": method.lr}] if learned else [])])


@torch.no_grad()
def scores(
    method: Method, net: nn.Module, likelihood: mcrepar.likelihoods.Normal, part: Part, width: float
) -> dict[str, float]:
    """RMSE and log-likelihood in the targets' own units, and the coverage of 90 % intervals."""
    net.eval()
    if method.options is None:
        outputs = torch.stack([net(part.x) for _ in range(DRAWS if method.dropout else 1)])
    else:
        outputs = mcrepar.predict(net, part.x, draws=DRAWS).samples
    log_probs = torch.stack([likelihood.log_prob(output, part.y) for output in outputs])
    log_likelihood = (log_probs.logsumexp(0) - math.log(len(outputs))).mean() - math.log(width)
    means, noise = likelihood.mean(outputs), likelihood.aleatoric(outputs).sqrt()
    samples = means + noise * torch.randn(max(1000 // len(outputs), 1), *means.shape)
    low, high = samples.flatten(0, 1).quantile(torch.tensor([0.05, 0.95]), 0)
    inside = ((part.y >= low) & (part.y <= high)).float().mean()
    rmse = (means.mean(0) - part.y).square().mean().sqrt() * width
    return {"log_likelihood": float(log_likelihood), "rmse": float(rmse), "coverage_90": float(inside)}


def main() -> None:
    """All splits of one data set by one method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["boston", "concrete", "energy", "yacht"])
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args()
    target = given.results / f"uci-{given.data}-{given.method.replace(' ', '_')}.json"
    if target.exists():
        return
    method, start = METHODS[given.method], time.perf_counter()
    found: dict[str, list[dict[str, float]]] = {"validation": [], "test": []}
    for split in range(given.splits):
        data, width = parts(given.root / "uci" / f"{given.data}.npz", split)
        if method.whole:
            data["train"] = joined(data["train"], data.pop("validation"))
        net, likelihood = train(method, data["train"], split)
        if method.validated_noise:
            set_noise(net, likelihood, data["validation"])
        for name in [part for part in found if part in data]:
            found[name].append(scores(method, net, likelihood, data[name], width))
    found = {name: rows for name, rows in found.items() if rows}
    means = {name: {k: float(np.mean([r[k] for r in rows])) for k in rows[0]} for name, rows in found.items()}
    errors = {name: {k: float(np.std([r[k] for r in rows], ddof=1) / math.sqrt(len(rows))) for k in rows[0]}
              for name, rows in found.items()} if given.splits > 1 else {}  # fmt: skip
    content = {"task": f"uci-{given.data}", "method": given.method, "steps": method.steps, "mean": means,
               "standard_error": errors, "splits": found, "seconds": time.perf_counter() - start}  # fmt: skip
    given.results.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, indent=1) + "\n")
    print(given.data, given.method, means)


if __name__ == "__main__":
    main()
