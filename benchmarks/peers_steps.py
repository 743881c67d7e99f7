"""The training steps that are compared: python benchmarks/peers_steps.py JSON measures one, and prints one JSON line.

A step is forward, KL with M draws, backward, Adam. Each runs in a process of its own, whose memory is limited, so that
what does not fit, or a library that breaks, is a fact about that case alone.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peers_checks import named
from peers_libraries import DATA, LIBRARIES
from timing import quiet
from torch import Tensor, nn

import mcrepar
from mcrepar.inspect.graph import saved_bytes
from mcrepar.models import model

PRIOR = 0.5
Losses = Callable[[nn.Module, Tensor, Tensor, int], Iterator[Tensor]]  # each is backpropagated as it comes


@dataclass(frozen=True)
class Step:
    """A way to take a training step.

    Args:
        library: that makes the network Bayesian.
        losses: of the network, images, labels and M.
        spends: what M draws are spent on.
        has_draws: whether there is an M.
        grows: whether its memory grows with M, by its construction.
        convert: makes the network Bayesian; None is the library's own way.
    """

    library: str
    losses: Losses
    spends: str
    has_draws: bool = True
    grows: bool = True
    convert: Callable[[nn.Module], nn.Module] | None = None


def ours(method: str, has_draws: bool = True) -> Losses:
    def losses(bnn: nn.Module, x: Tensor, y: Tensor, draws: int) -> Iterator[Tensor]:
        yield F.cross_entropy(bnn(x), y) + mcrepar.kl(bnn, method, draws if has_draws else None) / DATA

    return losses


def accumulated(bnn: nn.Module, x: Tensor, y: Tensor, draws: int) -> Iterator[Tensor]:
    """M forwards and backwards of a loss with one draw."""
    for _ in range(draws):
        yield (F.cross_entropy(bnn(x), y) + mcrepar.kl(bnn, "direct", 1) / DATA) / draws


def looped(bnn: nn.Module, x: Tensor, y: Tensor, draws: int) -> Iterator[Tensor]:
    """One forward; the KL as one writes it by hand, draw after draw, all of them in the graph."""
    total: Tensor | float = 0.0
    for loc, log_scale in LIBRARIES["mcrepar"].learned(bnn):
        scale = log_scale.exp()
        for _ in range(draws):
            w = loc + scale * torch.randn(loc.shape)
            total = total + (w**2).sum() / (2 * PRIOR**2) / draws
        constant = math.log(PRIOR) - 0.5  # that of the prior less that of the entropy
        total = total - log_scale.sum() + loc.numel() * constant
    yield F.cross_entropy(bnn(x), y) + total / DATA


def documented(library: str, closed: bool = False) -> Losses:
    def losses(bnn: nn.Module, x: Tensor, y: Tensor, draws: int) -> Iterator[Tensor]:
        loss = LIBRARIES[library].closed if closed else LIBRARIES[library].loss
        yield loss(bnn, x, y, draws)

    return losses


KL, LOOP = "the KL", "forwards, one after the other, and the KL"
CLOSED = "nothing: the KL in closed form"
FLAT = ("stats", "repar", "taylor", "stream", "regen")  # what should keep no more than at M = 1
STEPS: dict[str, Step] = {
    "exact": Step("mcrepar", ours("exact", False), CLOSED, has_draws=False),
    "quad": Step("mcrepar", ours("quad", False), "nothing: the KL by quadrature", has_draws=False),
    **{method: Step("mcrepar", ours(method), KL, grows=False) for method in FLAT},
    "direct": Step("mcrepar", ours("direct"), KL),
    "per-draw loop": Step("mcrepar", looped, KL),
    "gradient accumulation": Step("mcrepar", accumulated, "forwards and backwards, and the KL", grows=False),
    "bayesian-torch": Step("bayesian-torch", documented("bayesian-torch"), "forwards, one after the other"),
    "blitz": Step("blitz", documented("blitz"), LOOP),
    "torchbayesian": Step("torchbayesian", documented("torchbayesian"), KL),
    "torch_blue": Step("torch_blue", documented("torch_blue"), "forwards, at once, and the KL; norm layers in eval"),
    **{
        f"{name}, closed form": Step(name, documented(name, closed=True), CLOSED, has_draws=False)
        for name in ("bayesian-torch", "torchbayesian", "torch_blue")
    },
}

OTHER_NETWORKS: dict[str, Step] = {  # whose memory is measured beside that of the steps
    "deterministic": Step("torch", lambda net, x, y, draws: iter([F.cross_entropy(net(x), y)]), "nothing", False,
                          convert=lambda net: net),
    "rank-1": Step("mcrepar", ours("exact", False), CLOSED, False,
                   convert=lambda net: mcrepar.bayesian(net, structure="rank1")),
}  # fmt: skip


def memory(key: str) -> int:
    """VmRSS, VmHWM or VmSize of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def settle() -> None:
    """A convolution and its backward, so that the code that torch loads for them is not counted with a step."""
    weight = torch.randn(8, 3, 3, 3, requires_grad=True)
    F.conv2d(torch.randn(8, 3, 32, 32), weight).square().sum().backward()


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds, peak and saved bytes of a step.

    The peak is that of the process's resident memory less what it was before the network was built: parameters,
    gradients, Adam's averages and all that the step needs.
    """
    step, draws = {**STEPS, **OTHER_NETWORKS}[case["step"]], case["M"]
    settle()
    before = memory("VmRSS")
    torch.manual_seed(0)
    net = model("preact_resnet18", **case["network"])
    x, y = torch.randn(case["batch"], 3, 32, 32), torch.randint(10, (case["batch"],))
    bnn = step.convert(net) if step.convert else LIBRARIES[step.library].convert(net, PRIOR)
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-4, fused=True)

    def take(count: int) -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        for loss in step.losses(bnn, x, y, count):
            loss.backward()
        optimizer.step()
        return time.perf_counter() - start

    take(1)  # warm-up: Adam's averages, threads
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    seconds: list[float] = []
    while len(seconds) < case["rounds"] and sum(seconds) < case["enough"]:
        seconds.append(take(draws))
    peak = memory("VmHWM") - before
    kept = saved_bytes(lambda: next(step.losses(bnn, x, y, draws)))
    spread = {"fastest": min(seconds), "slowest": max(seconds), "rounds": len(seconds)}
    return {"seconds": statistics.median(seconds), **spread, "peak_bytes": peak, "saved_bytes": kept}


def attempt(case: dict[str, Any]) -> dict[str, Any]:
    """What was measured, or how it failed; beside it how many cores other work kept busy."""
    load = round(quiet(case["listen"]), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = measure(case)
        except Exception as error:
            short = isinstance(error, MemoryError) or "memory" in str(error)
            found = {"failed": "memory" if short else "error", "error": named(error)}
    return {**found, "load": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", type=json.loads, help="step, M and settings, as peers.py gives them")
    case = parser.parse_args().case
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + case["budget"],) * 2)
    print(json.dumps(attempt(case)))


if __name__ == "__main__":
    main()
