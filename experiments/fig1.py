"""Figure 1: the time of a batch with gradient accumulation, and with an estimate whose graph does not grow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from experiments.experiment import Bench, Experiment, Finding, Part, Results, Row, markdown
from experiments.machine import busy_parts, busy_text, timed
from experiments.panels import panels
from experiments.training_step import MANY, TrainingStep
from mcrepar.models import MODELS
from mcrepar.plots.style import legend, light

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = 14.0  # times faster, "for some networks"; the paper does not say at which M
DRAWS = (17, 100, 1000)  # at which both are compared
REPAR = (20, 1000)  # the least and the largest second M at which `repar` runs
GOAL = "preact_resnet18"  # on which our own goal is judged
NETWORKS = tuple(name for name in MODELS if name not in ("unet2d", "unet3d"))  # which classify voxels, not examples


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        networks: names of MODELS.
        batch: examples in a step.
        image: the side of images.
        volume: the side of volumes.
        rounds: over which the median is taken.
        numbers: random numbers that `repar` may draw in a step, which decides the second M at which it runs.
        accumulated: the two numbers M at which gradient accumulation runs.
        verified: methods, networks and a third M at which they run, to test that the time is linear in M.
    """

    networks: tuple[str, ...]
    batch: int
    image: int
    volume: int
    rounds: int
    numbers: int
    accumulated: tuple[int, int]
    verified: tuple[tuple[str, str, int], ...]


def parts(settings: Settings) -> list[Part]:
    """One for each network, and a longer run of each method whose line is used."""
    found = [Part(name, {"kind": "network", "network": name}) for name in settings.networks]
    for method, name, draws in settings.verified:
        given = {"kind": "verify", "method": method, "network": name, "draws": draws}
        found.append(Part(f"verify-{method}-{name}-{draws}", given))
    return found


def lines(settings: Settings, weights: int) -> dict[str, tuple[int, int]]:
    """The two numbers M at which each method runs whose time is on a line: the second of `repar` is as large as cheap.

    >>> lines(EXPERIMENT.settings["cpu"], weights=1_000_000)
    {'accumulate': (1, 3), 'repar': (1, 200)}
    """
    least, most = REPAR
    return {"accumulate": settings.accumulated, "repar": (1, max(least, min(most, settings.numbers // weights)))}


def measure(part: Part, bench: Bench) -> Row:
    """Seconds of a step by every method, in turns."""
    torch.manual_seed(bench.seed)
    settings: Settings = bench.settings
    name, batch = part.given["network"], settings.batch
    volume = MODELS[name].dimensions == 3
    size = (settings.volume,) * 3 if volume else (settings.image,) * 2
    step = TrainingStep(name, size, channels=1 if volume else 3)
    counts = lines(settings, step.weights)

    def case(method: str, draws: int | None) -> Callable[[], None]:
        if method == "accumulate":
            return partial(step.accumulate, batch, draws or 1)
        return partial(step.run, batch, partial(step.kl, method, draws))

    if part.given["kind"] == "verify":
        method, draws = part.given["method"], part.given["draws"]
        cases = {f"{method} {m}": case(method, m) for m in (*counts[method], draws)}
    else:
        cases = {f"{method} {m}": case(method, m) for method, both in counts.items() for m in both}
        cases |= {f"stats {m}": case("stats", m) for m in (1000, MANY)}
        cases["exact"] = case("exact", None)
    return {"weights": step.weights, "lines": counts, **timed(cases, settings.rounds)}


def line(row: Row, method: str, draws: int) -> float:
    """Seconds at `draws`, by the line through two measured numbers of iterations; never below the first of them.

    >>> line({"lines": {"repar": (1, 11)}, "seconds": {"repar 1": 1.0, "repar 11": 2.0}}, "repar", 101)
    11.0
    """
    low, high = row["lines"][method]
    first, last = (row["seconds"][f"{method} {m}"] for m in (low, high))
    return float(max(first, first + (last - first) / (high - low) * (draws - low)))


def ratios(row: Row) -> dict[str, float]:
    """How many times faster a step is than by gradient accumulation of the same M."""
    found = {f"repar {m}": line(row, "accumulate", m) / line(row, "repar", m) for m in DRAWS}
    found["stats 1000"] = line(row, "accumulate", 1000) / row["seconds"]["stats 1000"]
    found["exact 1000"] = line(row, "accumulate", 1000) / row["seconds"]["exact"]
    return found


def judge(results: Results) -> list[Finding]:
    """The factor 14, its growth with M, the flat time of ours, and the lines; what rests on a line falls with it."""
    busy = busy_parts(results.rows)
    checks = {row["method"]: _verified(row, busy) for row in results.of("verify")}

    def finding(claim: str, measured: str, held: bool, rests_on: tuple[str, ...], ours: bool = False) -> Finding:
        if busy:
            return Finding(claim, f"{measured} (inconclusive: other work kept the machine busy)", None, ours)
        if bent := [method for method in rests_on if not checks[method].held]:
            return Finding(claim, f"{measured} (inconclusive: the line of {' and of '.join(bent)} failed)", None, ours)
        return Finding(claim, measured, held, ours)

    rows = {row["network"]: ratios(row) for row in results.of("network")}
    best = {m: max(rows, key=lambda name: rows[name][f"repar {m}"]) for m in DRAWS}
    listed = ", ".join(f"M = {m}: {two_digits(rows[name][f'repar {m}'])} ({name})" for m, name in best.items())
    slower = [name for name, found in rows.items() if found["repar 100"] <= 1]
    aimed = rows if GOAL not in rows else {GOAL: rows[GOAL]}
    times = {name: [found[f"{name} 1000"] for found in aimed.values()] for name in ("stats", "exact")}
    growth = max(row["seconds"][f"stats {MANY}"] / row["seconds"]["stats 1000"] for row in results.of("network"))
    return [
        finding(
            "Reparameterization reduces the time of a batch up to 14 times for some networks.",
            f"the paper does not say at which M; the largest factors of `repar`, {listed}",
            max(found["repar 100"] for found in rows.values()) >= PAPER,
            ("accumulate", "repar"),
        ),
        finding(
            "Gradient accumulation is significantly slower.",
            f"slower than `repar` at M = 100 in {len(rows) - len(slower)} of {len(rows)} networks",
            not slower,
            ("accumulate", "repar"),
        ),
        finding(
            "At M = 1000 `stats` and `exact` are at least 500 times faster than gradient accumulation.",
            f"on {', '.join(aimed)}: at least {two_digits(min(times['stats']))} and "
            f"{two_digits(min(times['exact']))} times",
            min(*times["stats"], *times["exact"]) >= 500,
            ("accumulate",),
            ours=True,
        ),
        finding(
            f"A step by `stats` takes as long with M = {MANY:,} as with M = 1000 (within a quarter).",
            f"at most {growth:.2f} times as long",
            growth < 1.25,
            (),
            ours=True,
        ),
        *checks.values(),
    ]


def two_digits(factor: float) -> str:
    """As much of a factor as two medians and a line through them determine.

    >>> two_digits(1483.2), two_digits(14.6), two_digits(0.912)
    ('1,500', '15', '0.91')
    """
    return f"{float(f'{factor:.2g}'):,g}"


def _verified(row: Row, busy: list[str]) -> Finding:
    method, draws = row["method"], row["draws"]
    predicted, real = line(row, method, draws), row["seconds"][f"{method} {draws}"]
    name = "gradient accumulation" if method == "accumulate" else f"`{method}`"
    return Finding(
        f"The time of {name} is linear in M, on which the numbers at other M rest (within a quarter).",
        f"{row['network']} with M = {draws}: {real:.3g} s, by the line {predicted:.3g} s",
        None if busy else abs(math.log(real / predicted)) < math.log(1.25),
        ours=True,
    )


def draw(results: Results) -> Figure:
    """Seconds of a step of every network, by method, and factors; hollow marks are taken from a line."""
    rows = sorted(results.of("network"), key=lambda row: float(row["seconds"]["exact"]))
    heads = [("Seconds of a step", "seconds", ""), ("Times faster than gradient accumulation", "factor", "")]
    height = max(4.2, 0.28 * len(rows) + 2)  # inches
    figure, (left, right) = panels(heads, (11.5, height), sharey=True)
    places = range(len(rows))
    most = results.settings.accumulated[1]
    for m in sorted({most, 100, 1000}):
        values = [line(row, "accumulate", m) for row in rows]
        left.plot(values, places, "s", color=light("red"), markerfacecolor=None if m == most else "none",
                  markersize=4 + m / 400, label=f"gradient accumulation, M = {m}")  # fmt: skip
    left.plot([line(row, "repar", 100) for row in rows], places, "o", color=light("orange"), markerfacecolor="none",
              markersize=5, label="repar, M = 100")  # fmt: skip
    left.plot([row["seconds"][f"stats {MANY}"] for row in rows], places, ">", color=light("violet"), markersize=5,
              label="stats, M = 10^6")  # fmt: skip
    left.plot([row["seconds"]["exact"] for row in rows], places, "|", color=light("blue"), markersize=9, label="exact")
    factors = [ratios(row) for row in rows]
    for name, label, colour, marker in (
        ("repar 100", "repar, M = 100", "orange", "o"),
        ("repar 1000", "repar, M = 1000", "orange", "s"),
        ("stats 1000", "stats, M = 1000", "violet", ">"),
        ("exact 1000", "exact against M = 1000", "blue", "D"),
    ):
        values = [found[name] for found in factors]
        right.plot(values, places, marker, color=light(colour), markerfacecolor="none", label=label)
    right.axvline(PAPER, color=light("muted"), linestyle="--", linewidth=1.1, label="paper, up to")
    left.set_yticks(places, [row["network"] for row in rows])
    for axes in (left, right):
        axes.set_xscale("log")
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.65 / height), ncols=2, title_fontsize=8.5,
               title="hollow: by the line through two M that were timed")  # fmt: skip
    return figure


def tell(results: Results) -> str:
    """The numbers of every network, what the time of gradient accumulation buys, and how busy the machine was."""
    m = results.settings.accumulated[1]
    rows = []
    for row in results.of("network"):
        s, found, high = row["seconds"], ratios(row), row["lines"]["repar"][1]
        factors = (found["repar 17"], found["repar 100"], found["repar 1000"], found["stats 1000"], found["exact 1000"])
        cells = [f"{s[f'accumulate {m}']:.3f}", f"{s[f'repar {high}']:.3f} (M = {high})"]
        cells += [f"{s[name]:.3f}" for name in ("stats 1000", f"stats {MANY}", "exact")]
        rows.append([row["network"], f"{row['weights']:,}", *cells, *map(two_digits, factors)])
    header = ["network", "random weights", f"accumulation, M = {m}, s", "repar, s", "stats, M = 1000, s",
              "stats, M = 10^6, s", "exact, s", "repar, M = 17", "repar, M = 100", "repar, M = 1000",
              "stats, M = 1000", "exact against M = 1000"]  # fmt: skip
    return (
        f"Seconds of a step at batch {results.settings.batch}, then times faster than gradient accumulation of the "
        "same M (at M that were not timed, gradient accumulation and `repar` are taken from their lines):\n\n"
        f"{markdown(header, rows)}\n\n{busy_text(results.rows)}\n\n"
        "What gradient accumulation buys for its time, and the others do not: it averages the likelihood over M draws "
        "of the weights too, which makes the whole gradient less noisy, not only that of the KL. With `elbo(..., "
        "draws=M)` that can be had here as well, at the same price."
    )


EXPERIMENT = Experiment(
    title="The time of a batch: gradient accumulation and ours",
    where="Figure 1 and section 2",
    claim="Monte Carlo sampling by gradient accumulation is much slower than the reparameterized estimate, which "
    "reduces the time of a batch up to 14 times for some networks.",
    method="A step is forward, KL, backward and Adam on made-up images (or volumes), Radial weights, Normal prior, "
    "float32, on a GPU if the machine has one. Gradient accumulation runs a forward, a KL of one draw and a backward "
    "for each of M iterations, averaged. Medians over rounds in which all methods take their turn. Gradient "
    "accumulation and `repar` are timed at two M each; other M are taken from the line through them, which a run at a "
    "third M tests for each (on one network); their ratios have two digits. The paper's sentences are judged at M = "
    "100. Where a line fails, or other work kept more than a quarter of a core busy, what rests on it is inconclusive. "
    "The paper gives neither M nor the batch of this figure: the batch here is that of its section 5.1. The network "
    "that segments volumes is left out.",
    version=2,
    settings={
        "tiny": Settings(("small_conv", "fcnet"), 4, 8, 14, 1, 10**5, (1, 3),
                         (("accumulate", "small_conv", 10), ("repar", "small_conv", 60))),
        "cpu": Settings(NETWORKS, 32, 32, 28, 2, 2 * 10**8, (1, 3),
                        (("accumulate", "resnet20", 100), ("repar", "preact_resnet18", 200))),
        "paper": Settings(NETWORKS, 32, 32, 64, 10, 10**12, (1, 100),
                          (("accumulate", "resnet20", 300), ("repar", "preact_resnet18", 200))),
    },
    parts=parts, measure=measure, judge=judge, draw=draw, tell=tell,
)  # fmt: skip
