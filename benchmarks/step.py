"""One training step of a Bayesian PreActResNet-18 against the same deterministic one.

python benchmarks/step.py [--quick] [--small] [--out FOLDER]

What being Bayesian adds is given in multiples of drawing every weight once, within one run, in both memory layouts.
Steps of one round are compared with one another, for the machine's speed drifts from round to round. A network of 50
units, on one thread, shows what is spent between operations; --small measures it alone and keeps the other numbers.
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
SMALL = {"radial, exact": ("radial", {}), "normal, exact": ("normal", {}),
         "radial, stats, M = 1000": ("radial", {"kl_method": "stats", "n_mc_iter": 1000}),
         "normal, local": ("normal", {"forward": "local"})}  # fmt: skip
TARGETS = {"exact": 3.0, "stats, M = 1000": 5.5, "stats, M = 10^6": 5.5}


def network(quick: bool) -> nn.Module:
    return model("preact_resnet18", **({"depths": (1, 1), "width": 8} if quick else {}))


def step_of(net: nn.Module, loss: Callable[[], Tensor], fused: bool = True) -> Callable[[], None]:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=fused)

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
        bnn = mcrepar.bayesian(network(quick), "radial", "normal", forward="weights", **options).to(
            memory_format=layout
        )

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


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 1))


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    def runs() -> None:
        for _ in range(times):
            run()

    return runs


def small(quick: bool) -> dict[str, Any]:
    """Steps and a prediction of an MLP of 50 units on 100 examples, on one thread, over the deterministic ones."""
    threads, rounds, times = torch.get_num_threads(), 2 if quick else 60, 2 if quick else 50
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y, plain, likelihood = torch.randn(100, 13), torch.randn(100, 1), mlp(), mcrepar.likelihoods.Normal()
    bnns = {
        name: mcrepar.bayesian(mlp(), posterior, "normal", **{"forward": "weights", **options})
        for name, (posterior, options) in SMALL.items()
    }
    runs = {"deterministic": step_of(plain, lambda: F.mse_loss(plain(x), y), fused=False)}
    for name, bnn in bnns.items():

        def loss(bnn: nn.Module = bnn) -> Tensor:
            return mcrepar.elbo(bnn, likelihood, x, y, data_size=1000).loss

        runs[name] = step_of(bnn, loss, fused=False)
    first = bnns["radial, exact"]
    runs["forward"] = torch.no_grad()(lambda: plain(x))
    runs |= {"bnn(x)": lambda: first(x), "kl(bnn)": lambda: mcrepar.kl(first)}
    cases = {name: repeated(run, times) for name, run in runs.items()}
    cases["predict, 100 draws"] = lambda: mcrepar.predict(first, x, draws=100)
    cases["100 forwards"] = repeated(runs["forward"], 100)
    found = take_turns(cases, rounds, warm_up=3)
    torch.set_num_threads(threads)

    def over(name: str, base: str) -> float:
        return statistics.median(a / b for a, b in zip(found[name]["each"], found[base]["each"], strict=True))

    return {
        "machine": {**machine(), "threads": 1},
        "step over deterministic": {name: over(name, "deterministic") for name in SMALL},
        "predict over forwards": over("predict, 100 draws", "100 forwards"),
        "microseconds": {name: 1e6 * found[name]["median"] / times for name in runs},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small network, few rounds: a smoke test")
    parser.add_argument("--small", action="store_true", help="the small network alone, among numbers that are there")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.quick and options.out == parser.get_default("out"):
        parser.error("--quick numbers must not replace measured ones: give --out")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "step.json"
    if options.small:
        found = {**(json.loads(file.read_text()) if file.exists() else {}), "small network": small(options.quick)}
    else:
        found = whole(options.quick)
    file.write_text(json.dumps(found, indent=2) + "\n")
    if options.out == parser.get_default("out"):
        readme.rewrite("step")
    for key in ("added", "predict over forwards", "small network"):
        print(json.dumps({key: found.get(key)}, indent=2))


def whole(quick: bool) -> dict[str, Any]:
    """All that is measured."""
    found_on, rounds = machine(), 1 if quick else 15
    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    times = {name: steps(quick, layout, rounds) for name, layout in layouts.items()}
    images = (64, 32) if quick else (512, 32)
    predicted = {f"{n} images": prediction(quick, n, 1 if quick else 3) for n in images}
    return {
        "quick": quick,
        "machine": found_on,
        "batch": BATCH,
        "added": {name: added(t) for name, t in times.items()},
        "predict over forwards": {name: over_forwards(t) for name, t in predicted.items()},
        "small network": small(quick),
        "seconds": {**times, "prediction": predicted},
    }


if __name__ == "__main__":
    main()
