"""One training step of a Bayesian PreActResNet-18 against the same deterministic one.

python benchmarks/step.py [--quick] [--out FOLDER]

What being Bayesian adds is given in multiples of drawing every weight once, within one run, in both memory layouts.
Steps of one round are compared with one another, for the machine's speed drifts from round to round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import readme
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
    return model("preact_resnet18", **({"depths": (1, 1), "width": 8} if quick else {}))


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


def prediction(quick: bool, images: int, rounds: int) -> Timings:
    """Predict with several draws, with and without norm statistics of its own for each, against as many forwards."""
    draws = 3 if quick else 5
    x = torch.randn(images, 3, 32, 32)
    plain = network(quick).eval()
    bnns = {
        "predict": mcrepar.bayesian(network(quick)).eval(),
        f"predict, calibrated on {BATCH} images": mcrepar.bayesian(network(quick)).calibrate(x[:BATCH]).eval(),
    }

    def forwards() -> None:
        with torch.no_grad():
            for _ in range(draws):
                for part in x.split(256):
                    plain(part)

    def predict(bnn: nn.Module) -> None:
        mcrepar.predict(bnn, x, draws=draws, batch_size=256, likelihood=mcrepar.likelihoods.Categorical())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that running statistics belong to no draw
        return take_turns({"forwards": forwards, **{n: partial(predict, b) for n, b in bnns.items()}}, rounds)


def added(times: Timings) -> dict[str, dict[str, float | bool]]:
    """What a case adds to the deterministic step of its round, in draws of every weight, and their ratio."""
    draw, base = times["draw every weight"]["median"], times["deterministic"]["each"]
    found: dict[str, dict[str, float | bool]] = {}
    for name, target in TARGETS.items():
        pairs = list(zip(times[name]["each"], base, strict=True))
        more = statistics.median(case - plain for case, plain in pairs) / draw
        ratio = statistics.median(case / plain for case, plain in pairs)
        found[name] = {"draws": more, "target": target, "met": more <= target, "ratio": ratio}
    return found


def over_forwards(times: Timings) -> dict[str, float]:
    """The time of predict over that of the forwards of its round."""
    base = times["forwards"]["each"]
    ratios = {name: [s / plain for s, plain in zip(t["each"], base, strict=True)] for name, t in times.items()}
    return {name: statistics.median(r) for name, r in ratios.items() if name != "forwards"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small network, few rounds: a smoke test")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.quick and options.out == parser.get_default("out"):
        parser.error("--quick numbers must not replace measured ones: give --out")
    options.out.mkdir(parents=True, exist_ok=True)
    found_on, rounds = machine(), 1 if options.quick else 15
    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    times = {name: steps(options.quick, layout, rounds) for name, layout in layouts.items()}
    images = (64, 32) if options.quick else (512, 32)
    predicted = {f"{n} images": prediction(options.quick, n, 1 if options.quick else 3) for n in images}
    found = {
        "quick": options.quick,
        "machine": found_on,
        "batch": BATCH,
        "added": {name: added(t) for name, t in times.items()},
        "predict over forwards": {name: over_forwards(t) for name, t in predicted.items()},
        "seconds": {**times, "prediction": predicted},
    }
    (options.out / "step.json").write_text(json.dumps(found, indent=2) + "\n")
    if options.out == parser.get_default("out"):
        readme.rewrite("step")
    for key in ("added", "predict over forwards"):
        print(json.dumps({key: found[key]}, indent=2))


if __name__ == "__main__":
    main()
