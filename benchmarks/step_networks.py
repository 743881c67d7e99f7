"""A Bayesian training step over the deterministic one, on five networks, beside other libraries.

    .venv-peers/bin/python benchmarks/step_networks.py [--device cuda] [--threads T] [--only TEXT] [--out FOLDER]

python benchmarks/peers_environment.py makes that interpreter; with our own, the peers' rows are left out. Every step is
timed between two deterministic ones and divided by their mean, so that a drift of the machine's speed cancels. Rounds
are short, begin at another step each time, and go on for --seconds, at least 12 of them; a ratio is the median over
rounds. The rounds are split in halves, whose medians say how far a number can be trusted. A step is forward, KL in
closed form (or by M = 10^6 draws), backward and Adam. Its peak of memory on ResNet-18 is measured in a process of its
own, as in peers_steps.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
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
    "transformer, batch 32": (Encoder, (32, 32, 64), 10, 1),
    "MLP of 50 units, batch 100": (mlp, (100, 13), 2, 10),
}
OURS: Mapping[str, dict[str, Any]] = {
    "normal, exact": {"posterior": "normal"},
    "radial, exact": {"posterior": "radial"},
    "radial, stats, M = 10^6": {"posterior": "radial", "kl_method": "stats", "n_mc_iter": 10**6},
    "normal, antithetic": {"posterior": "normal", "forward": "antithetic"},
    "rank-1": {"structure": "rank1"},
}
PEERS = ("bayesian-torch", "torchbayesian", "torch_blue")
MEMORY = ("deterministic", "exact", "stats", "rank-1", *(f"{name}, closed form" for name in PEERS))
BASE, LEAST = "deterministic", 12  # the step that others are divided by, and the least number of rounds


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

    add(BASE, build(), lambda net: F.cross_entropy(net(x), y))
    for name, options in OURS.items():
        try:
            bnn = mcrepar.bayesian(build(), **{"prior": "normal", "forward": "weights", **options})
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


def ratios(runs: Mapping[str, Callable[[], None]], seconds: float, at_once: int, device: str) -> dict[str, Any]:
    """The time of every step over that of its deterministic neighbours, and the medians of both halves of rounds."""
    names = [name for name in runs if name != BASE]
    each: dict[str, list[float]] = {name: [] for name in names}
    took: dict[str, list[float]] = {name: [] for name in runs}

    def timed(name: str) -> float:
        start = time.perf_counter()
        for _ in range(at_once):
            runs[name]()
        if device != "cpu":
            torch.accelerator.synchronize()
        took[name].append((time.perf_counter() - start) / at_once)
        return took[name][-1]

    for name in runs:  # the first ones warm up
        timed(name)
        took[name].clear()
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < (LEAST if seconds else 2):
        before = timed(BASE)
        for k in range(len(names)):
            name = names[(k + turn) % len(names)]
            own, after = timed(name), timed(BASE)
            each[name].append(2 * own / (before + after))
            before = after
        turn += 1
    found: dict[str, Any] = {BASE: {"ratio": 1.0, "halves": [1.0, 1.0], "seconds": statistics.median(took[BASE])}}
    for name in names:
        halves = [statistics.median(each[name][k::2]) for k in (0, 1)]
        found[name] = {"ratio": statistics.median(each[name]), "halves": halves,
                       "seconds": statistics.median(took[name]), "rounds": turn}  # fmt: skip
    return found


def peaks() -> dict[str, int]:
    """Bytes at the peak of a step of ResNet-18, batch 32, by its name in peers_steps.py."""
    found = {}
    for name in MEMORY:
        case = {
            "step": name,
            "M": 1,
            "network": {},
            "batch": 32,
            "rounds": 3,
            "enough": 60.0,
            "listen": 0.1,
            "budget": 2**34,
        }
        command = [sys.executable, str(Path(__file__).parent / "peers_steps.py"), json.dumps(case)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if "peak_bytes" in (read := json.loads(out)):
            found[name] = read["peak_bytes"]
    return found


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """A panel per network with a bar per step, for light and dark pages, as step_networks.png."""
    from matplotlib.figure import Figure

    from mcrepar.plots import style

    networks = found["networks"]
    names = [n for n in dict.fromkeys(n for rows in networks.values() for n in rows) if n != BASE][::-1]
    figure = Figure(figsize=(11.0, 3.2), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, len(networks), sharey=True), networks.items(), strict=True):
        style.dressed(axes, "", "", title.partition(",")[0])
        axes.grid(visible=False)
        there = [(k, name) for k, name in enumerate(names) if name in rows]
        for k, name in there:
            ratio, colour = rows[name]["ratio"], style.light("blue" if name in OURS else "muted")
            axes.barh(k, ratio, 0.7, color=colour)
            axes.annotate(f" {ratio:.2f}", (ratio, k), va="center", fontsize=8, color=style.light("ink"))
        axes.axvline(1, color=style.light("ink"), linewidth=1)
        axes.set_xlim(0, 1.25 * max(rows[name]["ratio"] for _, name in there))
        axes.set_yticks(range(len(names)), names)
    figure.supxlabel("a training step over the deterministic one", fontsize=9, color=style.light("ink"))
    for suffix, dark in (("", False), ("-dark", True)):
        (folder / f"step_networks{suffix}.png").write_bytes(style.png(figure, 160, dark))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the rounds of one network")
    parser.add_argument("--quick", action="store_true", help="the small networks, few rounds: a smoke test")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.quick and options.out == parser.get_default("out"):
        parser.error("--quick numbers must not replace measured ones: give --out")
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    file = options.out / ("step_networks.json" if options.device == "cpu" else f"step_networks_{options.device}.json")
    before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    found, memory = before.get("networks", {}), before.get("peak bytes", {})
    where: dict[str, Any] = {**machine(), "device": options.device}
    if options.device != "cpu":
        where["device name"] = torch.cuda.get_device_name() if torch.cuda.is_available() else options.device
    loads: list[float] = []
    for name, case in NETWORKS.items():
        if options.only in name and not (options.quick and "ResNet" in name):
            runs = steps(case, options.device)
            loads.append(0.0 if options.quick else round(quiet(1.0), 2))  # what others do when the clock starts
            where["load at start"] = max(loads)
            found[name] = ratios(runs, 0.0 if options.quick else options.seconds, case[3], options.device)
            if "ResNet-18" in name and options.device == "cpu":
                memory = peaks()
            print(name, {k: round(v["ratio"], 3) for k, v in found[name].items()}, flush=True)
            file.write_text(json.dumps({"machine": where, "networks": found, "peak bytes": memory}, indent=1) + "\n")
    if file == parser.get_default("out") / "step_networks.json":
        readme.rewrite("networks")
        readme.rewrite("choice")
        draw(json.loads(file.read_text()), Path(__file__).parents[1] / "docs" / "figures")


if __name__ == "__main__":
    main()
