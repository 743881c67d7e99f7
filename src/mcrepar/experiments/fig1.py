"""Figure 1: the time of a batch with gradient accumulation, and with an estimate whose graph does not grow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from mcrepar.experiments.experiment import Bench, Experiment, Finding, Part, Results, Row, markdown
from mcrepar.experiments.panels import panels
from mcrepar.experiments.timed_steps import accumulate, median_seconds
from mcrepar.experiments.training_step import TrainingStep
from mcrepar.models import MODELS
from mcrepar.plots.style import legend, light

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = 14.0  # times faster, "for some networks"; the paper does not say at which M
DRAWS = (17, 100, 1000)  # at which both are compared
MANY = 10**6
GOAL = "preact_resnet18"  # on which our own goal is judged
SEGMENTS = ("unet3d",)  # gives a class to every voxel: a likelihood of another kind


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        networks: names of MODELS.
        batch: data in a step.
        image: the side of images.
        volume: the side of volumes.
        rounds: over which the median is taken.
        repar: the two numbers M at which `repar` really runs; its time is linear in M.
        accumulated: the two numbers M at which gradient accumulation really runs; its time is linear in M.
        verified: a network and an M at which gradient accumulation runs too, to test that.
    """

    networks: tuple[str, ...]
    batch: int
    image: int
    volume: int
    rounds: int
    repar: tuple[int, int] = (1, 20)
    accumulated: tuple[int, int] = (1, 3)
    verified: tuple[str, int] = ("resnet20", 100)


def parts(settings: Settings) -> list[Part]:
    """One for each network, and one long accumulation."""
    found = [Part(name, {"kind": "network", "network": name}) for name in settings.networks]
    name, draws = settings.verified
    return [*found, Part(f"verify-{name}-{draws}", {"kind": "verify", "network": name, "draws": draws})]


def measure(part: Part, bench: Bench) -> Row:
    """Seconds of a step by every method, in turns."""
    torch.manual_seed(bench.seed)
    settings: Settings = bench.settings
    name, batch = part.given["network"], settings.batch
    volume = MODELS[name].dimensions == 3
    size = (settings.volume,) * 3 if volume else (settings.image,) * 2
    step = TrainingStep(name, size, channels=1 if volume else 3)
    counts = (*settings.accumulated, part.given["draws"]) if part.given["kind"] == "verify" else settings.accumulated
    cases = {f"accumulate {m}": partial(accumulate, step, batch, m) for m in counts}
    if part.given["kind"] == "network":
        kls = {f"repar {m}": partial(step.kl, "repar", m) for m in settings.repar}
        kls |= {"stats 1000": partial(step.kl, "stats", 1000), f"stats {MANY}": partial(step.kl, "stats", MANY)}
        kls["exact"] = partial(step.kl, "exact")
        cases |= {label: partial(step.run, batch, kl) for label, kl in kls.items()}
    return {"weights": step.weights, "seconds": median_seconds(cases, settings.rounds)}


def line(row: Row, method: str, counts: tuple[int, int], draws: int) -> float:
    """Seconds at `draws`, by the line through two measured numbers of iterations; never below the first of them.

    >>> line({"seconds": {"repar 1": 1.0, "repar 11": 2.0}}, "repar", (1, 11), 101)
    11.0
    """
    first, last = (row["seconds"][f"{method} {m}"] for m in counts)
    return float(max(first, first + (last - first) / (counts[1] - counts[0]) * (draws - counts[0])))


def accumulation(results: Results, row: Row, draws: int) -> float:
    """Seconds of a step by gradient accumulation."""
    return line(row, "accumulate", results.settings.accumulated, draws)


def ratios(results: Results, row: Row) -> dict[str, float]:
    """How many times faster a step is than by gradient accumulation of the same M."""
    found = {}
    for m in DRAWS:
        found[f"repar {m}"] = accumulation(results, row, m) / line(row, "repar", results.settings.repar, m)
    found["stats 1000"] = accumulation(results, row, 1000) / row["seconds"]["stats 1000"]
    found[f"stats {MANY}"] = accumulation(results, row, MANY) / row["seconds"][f"stats {MANY}"]
    found["exact 1000"] = accumulation(results, row, 1000) / row["seconds"]["exact"]
    return found


def judge(results: Results) -> list[Finding]:
    """The factor 14, its growth with M, the flat time of ours, and the line of gradient accumulation."""
    rows = {row["network"]: ratios(results, row) for row in results.of("network")}
    best = {m: max(rows, key=lambda name: rows[name][f"repar {m}"]) for m in DRAWS}
    listed = ", ".join(f"M = {m}: {rows[name][f'repar {m}']:.3g} ({name})" for m, name in best.items())
    slower = [name for name, found in rows.items() if found["repar 100"] <= 1]
    aimed = rows if GOAL not in rows else {GOAL: rows[GOAL]}
    times = {name: [found[f"{name} 1000"] for found in aimed.values()] for name in ("stats", "exact")}
    growth = max(row["seconds"][f"stats {MANY}"] / row["seconds"]["stats 1000"] for row in results.of("network"))
    return [
        Finding(
            "Reparameterization reduces the time of a batch up to 14 times for some networks.",
            f"the paper does not say at which M; the largest factors of `repar`, {listed}",
            max(found["repar 100"] for found in rows.values()) >= PAPER,
        ),
        Finding(
            "Gradient accumulation is significantly slower.",
            f"slower than `repar` at M = 100 in {len(rows) - len(slower)} of {len(rows)} networks",
            not slower,
        ),
        Finding(
            "At M = 1000 `stats` and `exact` are at least 500 times faster than gradient accumulation.",
            f"on {', '.join(aimed)}: at least {min(times['stats']):.3g} and {min(times['exact']):.3g} times",
            min(*times["stats"], *times["exact"]) >= 500,
            ours=True,
        ),
        Finding(
            f"A step by `stats` takes as long with M = {MANY:,} as with M = 1000 (within a quarter).",
            f"at most {growth:.2f} times as long",
            growth < 1.25,
            ours=True,
        ),
        _verified(results),
    ]


def _verified(results: Results) -> Finding:
    (row,) = results.of("verify")
    predicted, real = accumulation(results, row, row["draws"]), row["seconds"][f"accumulate {row['draws']}"]
    return Finding(
        "The time of gradient accumulation is linear in M, as the larger M are extrapolated here (within a quarter).",
        f"{row['network']} with M = {row['draws']}: {real:.3g} s, predicted {predicted:.3g} s",
        abs(math.log(real / predicted)) < math.log(1.25),
        ours=True,
    )


def draw(results: Results) -> Figure:
    """Seconds of a step of every network, by method."""
    rows = sorted(results.of("network"), key=lambda row: float(row["seconds"]["exact"]))
    heads = [("Seconds of a step", "seconds", ""), ("Times faster than gradient accumulation", "factor", "")]
    height = max(4.2, 0.28 * len(rows) + 2)  # inches
    figure, (left, right) = panels(heads, (11.5, height), sharey=True)
    places = range(len(rows))
    low, high = results.settings.repar
    measured = (("accumulate", "red", results.settings.accumulated[1], "s"), ("repar", "orange", high, "o"))
    for method, colour, m, marker in measured:
        label = f"{'gradient accumulation' if method == 'accumulate' else method}, M = {m}"
        left.plot([row["seconds"][f"{method} {m}"] for row in rows], places, marker, color=light(colour), markersize=5,
                  label=label)  # fmt: skip
    for m in (100, 1000):
        values = [accumulation(results, row, m) for row in rows]
        left.plot(values, places, "s", color=light("red"), markerfacecolor="none", markersize=4 + m / 400,
                  label=f"gradient accumulation, M = {m} (extrapolated)")  # fmt: skip
    left.plot([row["seconds"][f"stats {MANY}"] for row in rows], places, ">", color=light("violet"), markersize=5,
              label="stats, M = 10^6")  # fmt: skip
    left.plot([row["seconds"]["exact"] for row in rows], places, "|", color=light("blue"), markersize=9, label="exact")
    factors = [ratios(results, row) for row in rows]
    for name, colour, marker in (("repar 100", "orange", "o"), ("repar 1000", "orange", "s"),
                                 ("stats 1000", "violet", ">"), ("exact 1000", "blue", "|")):  # fmt: skip
        method, m = name.split()
        hollow = "none" if int(m) not in (low, high) and method == "repar" else None
        right.plot([f[name] for f in factors], places, marker, color=light(colour), markerfacecolor=hollow,
                   label=f"{method}, M = {m}")  # fmt: skip
    right.axvline(PAPER, color=light("muted"), linestyle="--", linewidth=1.1, label="paper, up to")
    left.set_yticks(places, [row["network"] for row in rows])
    for axes in (left, right):
        axes.set_xscale("log")
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.65 / height), ncols=2)
    return figure


def tell(results: Results) -> str:
    """The numbers of every network, and what the time of gradient accumulation buys."""
    (_, m), (_, high) = results.settings.accumulated, results.settings.repar
    rows = []
    for row in results.of("network"):
        s, found = row["seconds"], ratios(results, row)
        times = (s[f"accumulate {m}"], s[f"repar {high}"], s["stats 1000"], s[f"stats {MANY}"], s["exact"])
        factors = (found["repar 17"], found["repar 100"], found["repar 1000"], found["stats 1000"], found["exact 1000"])
        rows.append(
            [row["network"], f"{row['weights']:,}", *(f"{x:.3f}" for x in times), *(f"{x:.3g}" for x in factors)]
        )
    header = ["network", "random weights", f"accumulation, M = {m}, s", f"repar, M = {high}, s", "stats, M = 1000, s",
              "stats, M = 10^6, s", "exact, s", "repar, M = 17", "repar, M = 100", "repar, M = 1000",
              "stats, M = 1000", "exact against M = 1000"]  # fmt: skip
    return (
        f"Seconds of a step at batch {results.settings.batch}, then times faster than gradient accumulation of the "
        f"same M (accumulation above M = {m} and `repar` at other M than {high} lie on measured lines):\n\n"
        f"{markdown(header, rows)}\n\n"
        "What gradient accumulation buys for its time, and the others do not: it averages the likelihood over M draws "
        "of the weights too, which makes the whole gradient less noisy, not only that of the KL. With `elbo(..., "
        "draws=M)` that can be had here as well, at the same price. The experiment `variance` says how little of a "
        "weight's gradient noise is the KL's."
    )


EXPERIMENT = Experiment(
    title="The time of a batch: gradient accumulation and ours",
    where="Figure 1 and section 2",
    claim="Monte Carlo sampling by gradient accumulation is much slower than the reparameterized estimate, which "
    "reduces the time of a batch up to 14 times for some networks.",
    method="A step is forward, KL, backward and Adam on made-up images (or volumes), Radial weights, Normal prior, "
    "float32, on a CPU. Gradient accumulation runs a forward, a KL of one draw and a backward for each of M "
    "iterations, averaged. Medians over rounds in which all methods take their turn. Gradient accumulation and `repar` "
    "are timed at two M each; other M are on the line through them, which one long run tests. The paper gives neither "
    "M nor the batch of this figure: the batch here is that of its section 5.1. The network "
    "that segments volumes is left out.",
    version=1,
    settings={
        "tiny": Settings(("small_conv", "fcnet"), 4, 8, 14, 1, (1, 10), (1, 3), ("small_conv", 10)),
        "cpu": Settings(tuple(name for name in MODELS if name not in SEGMENTS), 32, 32, 28, 2),
        "paper": Settings(tuple(name for name in MODELS if name not in SEGMENTS), 32, 32, 64, 10, (1, 1000), (1, 100)),
    },
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
)
