"""BatchNorm statistics of every draw, pooled over draws, or running: accuracy and calibration of the same networks.

    python benchmarks/calibration.py

ResNet-8 on the digits of scikit-learn, trained for a few seconds; about three minutes in all on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

import mcrepar
from mcrepar import metrics
from mcrepar.data.digits import read_digits
from mcrepar.models.resnet_cifar import ResNetCifar

RESULTS = Path(__file__).parent / "results" / "calibration.json"
NOISES = (0.05, 0.2, 0.5)  # initial standard deviations of a weight, relative to the spread of its tensor
DRAWS, SEEDS, EPOCHS, BATCH, BETA = 50, 5, 15, 64, 0.01
WAYS = {"every draw its own": "batch", "pooled over 32 draws": "pooled", "running": "running"}


def main() -> None:
    """Train, predict in three ways, print a table and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one network, one epoch, nothing written")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    parts = _data()
    rows: list[dict[str, Any]] = []
    for noise in NOISES[:1] if quick else NOISES:
        for seed in range(1 if quick else SEEDS):
            bnn = trained(parts, noise, seed, 1 if quick else EPOCHS)
            found = {way: scores(net, parts, seed) for way, net in networks(bnn, parts).items()}
            rows += [{"noise": noise, "seed": seed, "statistics": way, **row} for way, row in found.items()]
    print(table(rows))
    if not quick:
        RESULTS.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


def _data() -> dict[str, Tensor]:
    digits = read_digits()
    assert digits.test is not None
    return {
        "x": digits.train.x / 255, "y": digits.train.y, "test x": digits.test.x / 255, "test y": digits.test.y
    }  # fmt: skip


def trained(parts: dict[str, Tensor], noise: float, seed: int, epochs: int) -> mcrepar.BayesianModule:
    """A Bayesian ResNet-8 after some epochs of Adam."""
    torch.manual_seed(seed)
    bnn = mcrepar.bayesian(ResNetCifar(1, channels=1), "normal", "normal", initial_std=noise, forward="weights")
    optimizer = torch.optim.Adam(bnn.parameters(), lr=3e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(parts["x"])).split(BATCH):
            optimizer.zero_grad()
            x, y = parts["x"][index], parts["y"][index]
            mcrepar.elbo(bnn, "categorical", x, y, data_size=len(parts["x"]), beta=BETA).loss.backward()
            optimizer.step()
    return bnn.eval()


def networks(bnn: mcrepar.BayesianModule, parts: dict[str, Tensor]) -> dict[str, mcrepar.BayesianModule]:
    """The network as it was trained, saved and loaded again, and with a batch of training data in memory."""
    with tempfile.TemporaryDirectory() as folder:
        mcrepar.save(bnn, folder)
        running = mcrepar.load(folder, ResNetCifar(1, channels=1)).eval()
    bnn.calibrate(parts["x"][:512])
    with tempfile.TemporaryDirectory() as folder:
        mcrepar.save(bnn, folder)
        pooled = mcrepar.load(folder, ResNetCifar(1, channels=1)).eval()
    return {"batch": bnn, "pooled": pooled, "running": running}


def scores(bnn: mcrepar.BayesianModule, parts: dict[str, Tensor], seed: int) -> dict[str, float]:
    """Accuracy, calibration error and negative log likelihood of the test set."""
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which statistics are used is the question
        p = mcrepar.predict(bnn, parts["test x"], DRAWS, likelihood="categorical", generator=generator)
    probs, y = p.probs.numpy(), parts["test y"].numpy()
    return {
        "accuracy": float((probs.argmax(1) == y).mean()),
        "ece": float(metrics.ece(probs, y)),
        "nll": -float(p.log_prob(y).clamp_min(-50).mean()),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds, with their standard deviations."""
    lines = ["| initial std | statistics | accuracy | ECE | NLL |", "|---|---|---|---|---|"]
    for noise in dict.fromkeys(row["noise"] for row in rows):
        for words, way in WAYS.items():
            same = [row for row in rows if (row["noise"], row["statistics"]) == (noise, way)]
            cells = [_cell([row[name] for row in same]) for name in ("accuracy", "ece", "nll")]
            lines.append(f"| {noise:g} | {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    return f"{mean(values):.3f} ± {stdev(values) if len(values) > 1 else 0.0:.3f}"


if __name__ == "__main__":
    main()
