"""Time and memory of the KL estimators: python benchmarks/kl.py [--quick] [--out FOLDER] [--figures FOLDER].

Every number that is compared is a ratio within one run. The cases of a group take turns, so that a busy moment of the
machine hits all alike; what counts is the median of the rounds after a warm-up. A case is value and backward.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import kl_figure
import readme
import torch
from timing import Timings, machine, take_turns
from torch import Tensor

import mcrepar
from mcrepar.inspect.graph import saved_bytes

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "results", HERE.parent / "docs" / "figures"
SHIPPED = HERE.parent / "src" / "mcrepar" / "workbench" / "app" / "data"  # the app shows what was measured
PRIOR_SCALE = 0.5
DRAWS = 20  # M of the comparison with torch.randn
FEW, MANY = 10, 10**6  # the two M between which saved bytes must not change
SMALL = 1000  # weights, where a method's time is O(M) and M = 10^6
GRID = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 10**6)
CURVES = ("direct", "repar", "stream", "stats", "exact")
MOST_SECONDS, MOST_BYTES = 4.0, 6 * 2**30  # where a curve ends: seconds of a call, bytes that it keeps for the backward

Case = Callable[[], Tensor]  # builds the value; the gradient is taken of it


def resnet18(classes: int = 10) -> list[tuple[int, ...]]:
    """The shapes of the weights and biases of ResNet-18 for 32 x 32 images, without its norm layers."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3)]
    width = 64
    for stage in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(stage, width, 3, 3), (stage, stage, 3, 3)]
            if block == 0 and stage != width:
                shapes.append((stage, width, 1, 1))
            width = stage
    return [*shapes, (classes, 512), (classes,)]


class Network:
    """The learned tensors of a network, with a radial posterior for each."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.locs = [(0.05 * torch.randn(s, generator=generator)).requires_grad_() for s in shapes]
        self.log_scales = [torch.full(s, -3.0).requires_grad_() for s in shapes]
        pairs = list(zip(self.locs, self.log_scales, strict=True))
        self.posteriors = [mcrepar.posterior("radial", loc=loc, log_scale=log_scale) for loc, log_scale in pairs]
        self.parameters = [*self.locs, *self.log_scales]
        self.size = sum(loc.numel() for loc in self.locs)

    def kl(self, method: str, draws: int | None = None, prior: str = "normal") -> Case:
        """The KL of all tensors by one of our methods."""
        p = mcrepar.prior(prior, scale=PRIOR_SCALE)
        return lambda: sum_of(mcrepar.kl_divergence(q, p, method, draws) for q in self.posteriors)

    def plain_direct(self) -> Tensor:
        """The KL of all tensors from one draw, as one writes it by hand: eager torch, exact entropy."""
        return sum_of(self._plain(loc, log_scale) for loc, log_scale in zip(self.locs, self.log_scales, strict=True))

    def _plain(self, loc: Tensor, log_scale: Tensor) -> Tensor:
        d, z = loc.numel(), torch.randn(loc.shape)
        w = loc + log_scale.exp() * (z / z.norm() * torch.randn(()).abs())
        cross = (w**2).sum() / (2 * PRIOR_SCALE**2) + d * math.log(PRIOR_SCALE * math.sqrt(2 * math.pi))
        sphere = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        entropy = 0.5 + 0.5 * math.log(math.pi / 2) - (d - 1) * (0.5772156649 + math.log(2)) / 2 + sphere
        return cross - log_scale.sum() - entropy

    def randn(self, draws: int) -> Callable[[], None]:
        """As many normals as `draws` draws of all tensors need, from torch's one stream."""

        def fill() -> None:
            for loc in self.locs:
                for _ in range(draws):
                    torch.randn(loc.shape)

        return fill

    def step(self, case: Case) -> Callable[[], None]:
        """Value and backward."""

        def run() -> None:
            torch.autograd.grad(case(), self.parameters)

        return run


def sum_of(values: Iterator[Tensor]) -> Tensor:
    return torch.stack(list(values)).sum()


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_draw(net: Network, rounds: int) -> Timings:
    """Against one draw: what does not grow with M."""
    cases = {
        "plain direct, M = 1": net.plain_direct,
        "direct, M = 1": net.kl("direct", 1),
        "exact": net.kl("exact"),
        "stats, M = 100": net.kl("stats", 100),
        "stats, M = 1000000": net.kl("stats", MANY),
    }
    return take_turns({name: net.step(case) for name, case in cases.items()}, rounds, warm_up=2)


def many_draws(net: Network, rounds: int) -> Timings:
    """Against drawing the same number of normals: what grows with M."""
    return take_turns(
        {
            "randn": net.randn(DRAWS),
            "repar": net.step(net.kl("repar", DRAWS)),
            "stream, laplace prior": net.step(net.kl("stream", DRAWS, "laplace")),
            "regen, laplace prior": net.step(net.kl("regen", DRAWS, "laplace")),
        },
        rounds,
    )


def bytes_kept(net: Network, many: int) -> dict[str, dict[str, int | None]]:
    """Bytes kept for the backward, parameters not counted, at a small and a large M."""
    small = Network([(SMALL,)])
    found: dict[str, dict[str, int | None]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mcrepar.TaylorWarning)
        for method in ("exact", "stats", "repar", "stream", "regen", "quad", "taylor"):
            over = net if method in ("exact", "stats") else small
            if method in ("exact", "quad"):  # they have no M
                kept = saved_bytes(over.kl(method))
                found[method] = {"weights": over.size, "few": kept, "many": kept}
            else:
                few, lots = (saved_bytes(over.kl(method, m)) for m in (FEW, many))
                found[method] = {"weights": over.size, "few": few, "many": lots}
    return found


def curves(net: Network, grid: Sequence[int], rounds: int, most_seconds: float, most_bytes: int) -> dict[str, list]:
    """Seconds and saved bytes against M, each method as far as it goes."""
    found: dict[str, list] = {method: [] for method in CURVES}
    for before, draws in zip((None, *grid), grid, strict=False):
        growth = draws / before if before else 1
        live = {}
        for method in CURVES:
            case = net.kl(method, None if method == "exact" else draws)
            last = found[method][-1] if found[method] else None
            grows = method not in ("stats", "exact")
            if last and (last["M"] != before or (grows and last["seconds"] * growth > most_seconds)):
                continue
            if last and method == "direct" and last["bytes"] * growth > most_bytes:
                continue
            live[method] = case
        timings = take_turns({method: net.step(case) for method, case in live.items()}, rounds)
        for method, case in live.items():
            point = {"M": draws, "seconds": timings[method]["median"], "bytes": saved_bytes(case)}
            found[method].append(point)
    return found


def targets(one: Timings, many: Timings, kept: dict[str, dict[str, int | None]]) -> list[dict[str, object]]:
    """What the project set itself, beside what was reached."""

    def ratio(timings: Timings, name: str, base: str) -> float:
        return round(timings[name]["median"] / timings[base]["median"], 3)

    plain, lots = "plain direct, M = 1", "stats, M = 1000000"
    rows = [
        ("exact", "one draw by hand, value and backward", ratio(one, "exact", plain), 0.4, 0.25),
        ("stats, M = 10^6", "one draw by hand, value and backward", ratio(one, lots, plain), 1.5, None),
        ("stats, M = 10^6", "stats, M = 100", ratio(one, lots, "stats, M = 100"), 1.1, None),
        (f"repar, M = {DRAWS}", "torch.randn of as many normals", ratio(many, "repar", "randn"), 1.5, 1.2),
        (
            f"stream, M = {DRAWS}, Laplace prior",
            "torch.randn of as many normals",
            ratio(many, "stream, laplace prior", "randn"),
            2.2,
            None,
        ),
    ]
    out: list[dict[str, object]] = [
        {"what": w, "against": a, "ratio": r, "target": t, "stretch": s, "met": r <= t} for w, a, r, t, s in rows
    ]
    worst = max(k["many"] / k["few"] if k["few"] else float(k["many"] == 0) or math.inf for k in kept.values())
    out.append(
        {
            "what": "saved bytes at M = 10^6, every method but direct",
            "against": f"the same at M = {FEW}",
            "ratio": worst,
            "target": 1.0,
            "stretch": None,
            "met": worst == 1.0,
        }
    )
    return out


def say(what: str) -> None:
    print(f"measuring {what}, load average {os.getloadavg()[0]:.2f}", file=sys.stderr, flush=True)


def measure(quick: bool) -> dict[str, object]:
    torch.manual_seed(0)
    net = Network([(64, 3, 3, 3), (64, 64, 3, 3)] if quick else resnet18())
    middle = Network([(64, 64)] if quick else [(1024, 1024)])
    found_on = machine()
    say("one draw")
    one = one_draw(net, 2 if quick else 21)
    say(f"{DRAWS} draws")
    many = many_draws(net, 1 if quick else 5)
    with threads(1):
        single = many_draws(net, 1 if quick else 3)
    say("saved bytes")
    kept = bytes_kept(net, 1000 if quick else MANY)
    say("curves")
    grid = GRID[:5] if quick else GRID
    points = curves(middle, grid, 1 if quick else 3, MOST_SECONDS, MOST_BYTES)
    return {
        "quick": quick,
        "machine": found_on,
        "weights": net.size,
        "tensors": len(net.locs),
        "pair": "radial posterior (loc, log_scale), normal prior, float32, posterior made once",
        "targets": targets(one, many, kept),
        "seconds": {"one draw": one, f"{DRAWS} draws": many, f"{DRAWS} draws, one thread": single},
        "saved_bytes": kept,
        "curves": {"weights": middle.size, "points": points, "most bytes": MOST_BYTES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test of seconds, on small tensors")
    parser.add_argument("--out", type=Path, help="folder of kl.json (default: benchmarks/results)")
    parser.add_argument("--figures", type=Path, help="folder of the figures (default: that of --out, or docs/figures)")
    arguments = parser.parse_args()
    if arguments.quick and not arguments.out:
        parser.error("--quick needs --out: its numbers must not replace the measured ones")
    out, figures = arguments.out or RESULTS, arguments.figures or arguments.out or FIGURES
    out.mkdir(parents=True, exist_ok=True)
    figures.mkdir(parents=True, exist_ok=True)
    found = measure(arguments.quick)
    (out / "kl.json").write_text(json.dumps(found, indent=1) + "\n")
    kl_figure.draw(found["curves"], figures)
    if not arguments.out:
        shutil.copy(out / "kl.json", SHIPPED)
        readme.rewrite("kl")
    for row in found["targets"]:
        print(f"{row['what']}: {row['ratio']:.2f}x of {row['against']} (target {row['target']}x)")


if __name__ == "__main__":
    main()
