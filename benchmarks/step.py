"""One training step of a Bayesian PreActResNet-18 against the same deterministic one.

python benchmarks/step.py [--quick] [--out FOLDER]

What being Bayesian adds is given in multiples of drawing every weight once, within one run, in both memory layouts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import Timings, machine, take_turns
from torch import Tensor, nn

import mcrepar
from mcrepar.models import model

BATCH, DATA = 32, 50_000
CASES: dict[str, dict[str, Any]] = {
    "exact": {"kl_method": "exact"},
    "stats, M = 1000": {"kl_method": "stats", "n_mc_iter": 1000},
    "stats, M = 10^6": {"kl_method": "stats", "n_mc_iter": 10**6},
}
TARGETS = {"exact": 3.0, "stats, M = 1000": 5.5, "stats, M = 10^6": 5.5}


def network(quick: bool) -> nn.Module:
    return model("preact_resnet18", **({"depths": (1, 1)} if quick else {}))


def step_of(net: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def steps(quick: bool, layout: torch.memory_format, rounds: int) -> Timings:
    """Seconds of a step of every case, and of drawing every weight once."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, 3, 32, 32).to(memory_format=layout)
    y = torch.randint(10, (BATCH,))
    plain = network(quick).to(memory_format=layout)
    sizes = [p.numel() for name, p in plain.named_parameters() if "norm" not in name]
    cases: dict[str, Callable[[], None]] = {
        "draw every weight": lambda: [torch.randn(size) for size in sizes] and None,
        "deterministic": step_of(plain, lambda: F.cross_entropy(plain(x), y)),
    }
    for name, options in CASES.items():
        bnn = mcrepar.bayesian(network(quick), "radial", "normal", **options).to(memory_format=layout)

        def loss(bnn: nn.Module = bnn) -> Tensor:
            return mcrepar.elbo(bnn, mcrepar.likelihoods.Categorical(), x, y, data_size=DATA).loss

        cases[name] = step_of(bnn, loss)
    return take_turns(cases, rounds)


def prediction(quick: bool, rounds: int) -> Timings:
    """Predict with several draws against as many deterministic forwards."""
    images, draws = (64, 3) if quick else (512, 5)
    x = torch.randn(images, 3, 32, 32)
    plain = network(quick).eval()
    bnn = mcrepar.bayesian(network(quick)).calibrate(x[:BATCH]).eval()

    def forwards() -> None:
        with torch.no_grad():
            for _ in range(draws):
                for part in x.split(256):
                    plain(part)

    def predict() -> None:
        mcrepar.predict(bnn, x, draws=draws, batch_size=256, likelihood=mcrepar.likelihoods.Categorical())

    return take_turns({"forwards": forwards, "predict": predict}, rounds)


def added(times: Timings) -> dict[str, dict[str, float | bool]]:
    """What a case adds to the deterministic step, in multiples of drawing every weight, and its ratio to that step."""
    draw, base = times["draw every weight"]["median"], times["deterministic"]["median"]
    return {
        name: {
            "added, in draws of every weight": (times[name]["median"] - base) / draw,
            "target": TARGETS[name],
            "met": (times[name]["median"] - base) / draw <= TARGETS[name],
            "ratio to the deterministic step": times[name]["median"] / base,
        }
        for name in CASES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small network, few rounds: a smoke test")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.quick and options.out == parser.get_default("out"):
        parser.error("--quick numbers must not replace measured ones: give --out")
    found_on, rounds = machine(), 1 if options.quick else 7
    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    times = {name: steps(options.quick, layout, rounds) for name, layout in layouts.items()}
    predicted = prediction(options.quick, 1 if options.quick else 3)
    found = {
        "quick": options.quick,
        "machine": found_on,
        "batch": BATCH,
        "added": {name: added(t) for name, t in times.items()},
        "predict over forwards": predicted["predict"]["median"] / predicted["forwards"]["median"],
        "seconds": {**times, "prediction": predicted},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "step.json").write_text(json.dumps(found, indent=2) + "\n")
    for layout, cases in found["added"].items():  # type: ignore[attr-defined]
        for name, row in cases.items():
            print(f"{layout:>13}  {name:<16}  {row}")
    print("predict over forwards:", round(found["predict over forwards"], 3))  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
