"""A Bayesian training step over the deterministic one, on five networks, beside other libraries.

    .venv-peers/bin/python benchmarks/step_networks.py [--device cuda] [--threads T] [--only TEXT] [--out FOLDER]

python benchmarks/peers_environment.py makes that interpreter; with our own, the peers' rows are left out. All steps of
a round take turns, in an order that moves on by one from round to round, and a ratio is the median over rounds of
ratios within a round, so that a drift of the machine's speed cancels. The rounds are split in halves, whose ratios say
how far a number can be trusted. A step is forward, KL in closed form (or by M = 10^6 draws), backward and Adam.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import readme
import torch
import torch.nn.functional as F
from peers_libraries import DATA, LIBRARIES
from timing import machine, quiet
from torch import Tensor, nn

import mcrepar
from mcrepar.models import model

PRIOR = 0.5
Case = tuple[Callable[[], nn.Module], tuple[int, ...], int, int]  # network, shape of x, classes, steps timed at once


class Encoder(nn.Module):
    """Two layers of torch's transformer over 32 tokens of 64 numbers, a class from their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, 10)."""
        out: Tensor = self.head(self.layers(x).mean(1))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 2))


NETWORKS: Mapping[str, Case] = {
    "ResNet-18, batch 32": (lambda: model("preact_resnet18"), (32, 3, 32, 32), 10, 1),
    "ResNet-20, batch 128": (lambda: model("resnet20"), (128, 3, 32, 32), 10, 1),
    "3D encoder, batch 4": (lambda: model("unet3d_encoder", classes=2, channels=1, width=8), (4, 1, 32, 32, 32), 2, 1),
    "transformer, batch 32": (Encoder, (32, 32, 64), 10, 2),
    "MLP of 50 units, batch 100": (mlp, (100, 13), 2, 40),
}
OURS: Mapping[str, dict[str, Any]] = {
    "normal, exact": {"posterior": "normal"},
    "radial, exact": {"posterior": "radial"},
    "radial, stats, M = 10^6": {"posterior": "radial", "kl_method": "stats", "n_mc_iter": 10**6},
    "normal, antithetic": {"posterior": "normal", "forward": "antithetic"},
    "rank-1": {"structure": "rank1"},
}
PEERS = ("bayesian-torch", "torchbayesian", "torch_blue")


def steps(case: Case, device: str) -> dict[str, Callable[[], None]]:
    """One step of every way to train a network."""
    build, shape, classes, _ = case
    torch.manual_seed(0)
    x, y = torch.randn(shape, device=device), torch.randint(classes, shape[:1], device=device)
    found: dict[str, Callable[[], None]] = {}

    def add(name: str, net: nn.Module, loss: Callable[[nn.Module], Tensor], optimizer: Any = None) -> None:
        net = net.to(device).train()
        chosen = optimizer or torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            chosen.zero_grad()
            loss(net).backward()
            chosen.step()

        step()  # what cannot run is not timed
        found[name] = step

    add("deterministic", build(), lambda net: F.cross_entropy(net(x), y))
    for name, options in OURS.items():
        try:
            bnn = mcrepar.bayesian(build(), **options)
        except mcrepar.MethodError as error:
            print(f"  without {name}: {error}")
            continue
        add(name, bnn, lambda bnn: mcrepar.elbo(bnn, "categorical", x, y, data_size=DATA).loss)
    for name in PEERS:
        try:
            library = LIBRARIES[name]
            add(name, library.convert(build(), PRIOR), lambda bnn, library=library: library.closed(bnn, x, y, 1))
        except Exception as error:
            print(f"  without {name}: {type(error).__name__}: {str(error)[:80]}")
    try:
        import ivon
    except ImportError:
        return found
    net = build().to(device).train()
    optimizer = ivon.IVON(net.parameters(), lr=1e-3, ess=DATA)

    def by_ivon() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
        optimizer.step()

    found["IVON"] = by_ivon
    return found


def ratios(runs: Mapping[str, Callable[[], None]], rounds: int, at_once: int, device: str) -> dict[str, Any]:
    """The time of every step over the deterministic one of its round, with those of the two halves of the rounds."""
    names, seconds = list(runs), {name: [] for name in runs}
    for turn in range(rounds + 1):
        for k in range(len(names)):
            name = names[(k + turn) % len(names)]
            start = time.perf_counter()
            for _ in range(at_once):
                runs[name]()
            if device != "cpu":
                torch.accelerator.synchronize()
            if turn:  # the first round warms up
                seconds[name].append((time.perf_counter() - start) / at_once)
    base = seconds["deterministic"]
    found = {}
    for name, own in seconds.items():
        each = [a / b for a, b in zip(own, base, strict=True)]
        halves = [statistics.median(each[k::2]) for k in (0, 1)]
        found[name] = {"ratio": statistics.median(each), "halves": halves, "seconds": statistics.median(own)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="the small networks, few rounds: a smoke test")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.quick and options.out == parser.get_default("out"):
        parser.error("--quick numbers must not replace measured ones: give --out")
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    file = options.out / ("step_networks.json" if options.device == "cpu" else f"step_networks_{options.device}.json")
    found: dict[str, Any] = json.loads(file.read_text())["networks"] if file.exists() else {}
    where: dict[str, Any] = {**machine(), "device": options.device}
    if options.device != "cpu":
        where["device name"] = torch.cuda.get_device_name() if torch.cuda.is_available() else options.device
    loads: list[float] = []
    for name, case in NETWORKS.items():
        if options.only in name and not (options.quick and "ResNet" in name):
            rounds, runs = 2 if options.quick else options.rounds, steps(case, options.device)
            loads.append(0.0 if options.quick else round(quiet(1.0), 2))  # what others do when the clock starts
            where["load at start"] = max(loads)
            found[name] = ratios(runs, rounds, case[3], options.device)
            print(name, {k: round(v["ratio"], 3) for k, v in found[name].items()}, flush=True)
            file.write_text(json.dumps({"machine": where, "networks": found}, indent=1) + "\n", encoding="utf-8")
    if file == parser.get_default("out") / "step_networks.json":
        readme.rewrite("networks")


if __name__ == "__main__":
    main()
