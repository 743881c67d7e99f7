"""Figure 2, right: the largest number of Monte Carlo iterations that fits into a memory, per network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from experiments.experiment import Bench, Experiment, Finding, Part, Results, Row, markdown
from experiments.panels import panels
from experiments.training_step import GIB, LOOPS, MANY, TrainingStep, bytes_per_draw, size_text
from mcrepar.plots.style import legend, light
from mcrepar.workbench.app.memory_budget import largest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {"densenet121": 89, "preact_resnet50": 17, "vgg16": 5}  # iterations in 11 GB at batch 32
SMALLER = "densenet121"  # "smaller models like DenseNet": the one whose step is run by `repar` too
THOUSAND, HUNDRED = 1000, 100  # its draws, and those of the volumes
LARGER = 2.0  # times the batch, what we call significant


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        networks: whose largest M is predicted.
        memory: the budget of the prediction, in bytes.
        batch: of the images.
        probes: the two batches from which the memory of any batch follows.
        runs: networks that are really run at the predicted M and one above.
        small: the budget of those runs.
        volume: the network for volumes, and the sides of its data.
        volume_probes: the same as `probes`, for volumes.
        volume_width: channels of that network's first block; the paper's has 16.
    """

    networks: tuple[str, ...]
    memory: int
    batch: int
    probes: tuple[int, int]
    runs: tuple[str, ...]
    small: int
    volume: tuple[int, int, int]
    volume_probes: tuple[int, int] = (2, 3)
    volume_width: int = 16


def parts(settings: Settings) -> list[Part]:
    """What a draw saves per weight; the memory of a step of every network; real runs; volumes; the paper's estimate."""
    found = [Part("draw", {"kind": "draw"})]
    found += [Part(f"network-{name}", {"kind": "network", "network": name}) for name in settings.networks]
    found += [Part(f"run-{name}", {"kind": "run", "network": name}) for name in settings.runs]
    found.append(Part("volumes", {"kind": "volumes", "network": "unet3d_encoder"}))
    name = SMALLER if SMALLER in settings.networks else settings.networks[0]
    return [*found, Part(f"repar-{name}", {"kind": "repar", "network": name})]


def measure(part: Part, bench: Bench) -> Row:
    """Bytes."""
    torch.manual_seed(bench.seed)
    if part.given["kind"] == "draw":
        return {f"per_draw_{entropy}": bytes_per_draw(entropy) for entropy in LOOPS}
    kinds = {"network": _network, "run": _run, "volumes": _volumes, "repar": _repar}
    return kinds[part.given["kind"]](part, bench.settings)


def _network(part: Part, settings: Settings) -> Row:
    step = TrainingStep(part.given["network"], (32, 32))
    low = settings.probes[0]
    return {
        **_linear(step, settings.probes),
        "really_one": step.peak(low, lambda: step.looped(1)),
        "ours_100": step.peak(low, lambda: step.kl("stats", 100)),
        "ours_many": step.peak(low, lambda: step.kl("stats", MANY)),
    }


def _linear(step: TrainingStep, probes: tuple[int, int]) -> Row:
    """The memory of a step with one draw at the smaller batch, and what every further example adds."""
    first, second = (step.one_draw(batch, "exact") for batch in probes)
    return {"weights": step.weights, "per_example": (second - first) / (probes[1] - probes[0]), "one_draw": first}


def _run(part: Part, settings: Settings) -> Row:
    """The prediction from one draw, and the memory really needed at the predicted number and one above it."""
    step, batch = TrainingStep(part.given["network"], (32, 32)), settings.batch
    one = step.one_draw(batch, "exact")
    most = largest(settings.small, one, bytes_per_draw("exact") * step.weights)
    out: Row = {"weights": step.weights, "one_draw": one, "predicted": most}
    if most:
        out["at"] = step.peak(batch, lambda: step.looped(most))
        out["above"] = step.peak(batch, lambda: step.looped(most + 1))
        out["ours_many"] = step.peak(batch, lambda: step.kl("stats", MANY))
    return out


def _volumes(part: Part, settings: Settings) -> Row:
    step = TrainingStep(part.given["network"], settings.volume, channels=1, classes=2, width=settings.volume_width)
    low = settings.volume_probes[0]
    ours = step.peak(low, lambda: step.kl("repar", HUNDRED))
    return {**_linear(step, settings.volume_probes), "ours_100": ours}


def _repar(part: Part, settings: Settings) -> Row:
    step = TrainingStep(part.given["network"], (32, 32))
    return {"bytes": step.peak(settings.probes[0], lambda: step.kl("repar", THOUSAND))}


@dataclass(frozen=True)
class Line:
    """The memory of a step: linear in the batch and in the draws.

    Args:
        row: what was measured: `weights`, `per_example`, and `one_draw` (entropy exact) at the batch `low`.
        saved: bytes per weight and draw of both loops, `per_draw_exact` and `per_draw_mc`.
    """

    row: Row
    low: int
    saved: Row

    def per_draw(self, entropy: str) -> float:
        """What a draw adds."""
        return float(self.saved[f"per_draw_{entropy}"] * self.row["weights"])

    def one_draw(self, batch: int, entropy: str) -> float:
        """A step with M = 1; one draw of the fuller loop saves more than the one that was measured."""
        fuller = self.per_draw(entropy) - self.per_draw("exact")
        return float(self.row["one_draw"] + (batch - self.low) * self.row["per_example"] + fuller)

    def draws(self, memory: float, batch: int, entropy: str) -> int:
        """The largest M."""
        return largest(memory, self.one_draw(batch, entropy), self.per_draw(entropy))

    def batch(self, memory: float, at_low: float) -> int:
        """The largest batch, where a step with the batch `low` takes `at_low` bytes."""
        return max(0, self.low + math.floor((memory - at_low) / float(self.row["per_example"])))


def network_line(results: Results, row: Row) -> Line:
    """The line of a network for images."""
    (saved,) = results.of("draw")
    return Line(row, results.settings.probes[0], saved)


def predictions(results: Results) -> dict[str, Row]:
    """By network, the largest M of both loops at the batch (`exact`, `mc`), and the largest batch of ours."""
    memory, batch = results.settings.memory, results.settings.batch
    found = {}
    for row in results.of("network"):
        line = network_line(results, row)
        draws = {entropy: line.draws(memory, batch, entropy) for entropy in LOOPS}
        found[row["network"]] = {"weights": row["weights"], "needed": line.one_draw(batch, "exact"), **draws,
                                 "batch": line.batch(memory, row["ours_many"])}  # fmt: skip
    return found


def volume_table(results: Results) -> list[tuple[int, int]]:
    """The largest M, log q sampled, for batches of 1, 2, 4, ... volumes and for the largest that fits."""
    (row,), (saved,), memory = results.of("volumes"), results.of("draw"), results.settings.memory
    line = Line(row, results.settings.volume_probes[0], saved)
    most = line.batch(memory, line.one_draw(line.low, "mc"))
    doubled = [2**k for k in range(most.bit_length())]
    return [(batch, line.draws(memory, batch, "mc")) for batch in sorted({*doubled, most} - {0})]


def judge(results: Results) -> list[Finding]:
    """The paper's three numbers, its factor 1000, its batch, its volumes; whether our prediction is what happens."""
    found = predictions(results)
    findings = []
    known = [name for name in PAPER if name in found]
    if known and results.settings.memory == 11 * GIB:
        ratios = [found[name]["mc"] / PAPER[name] for name in known]
        listed = ", ".join(f"{n} {found[n]['mc']} ({found[n]['exact']} with exact entropy)" for n in known)
        near = all(0.5 <= ratio <= 2 for ratio in ratios)
        sentence = "In 11 GB and at batch 32 the direct estimate takes 89 iterations of DenseNet-121, 17 of ResNet-50 "
        sentence += "and 5 of VGG-16 (held: within a factor of 2)."
        findings.append(Finding(sentence, f"predicted from measured bytes: {listed}", near))
    (ours,) = results.of("repar")
    (same,) = (row for row in results.of("network") if row["network"] == ours["network"])
    share = ours["bytes"] / same["really_one"]
    findings.append(
        Finding(
            "The saved memory allows up to 1000 times more iterations.",
            f"{ours['network']}: a step with M = {THOUSAND} by `repar` takes {share:.3f} times the memory of the "
            "direct one with M = 1",
            share < 1.01 if ours["network"] == SMALLER else None,  # beside few weights, a block of noise is not little
        )
    )
    return [*findings, _batch_finding(results, ours, same), *_volume_findings(results), _stats_finding(results),
            _run_finding(results)]  # fmt: skip


def _batch_finding(results: Results, ours: Row, same: Row) -> Finding:
    """How much larger is the batch of the paper's estimate where the direct one spends the memory on draws?"""
    memory, batch, name = results.settings.memory, results.settings.batch, ours["network"]
    line = network_line(results, same)
    draws, larger = line.draws(memory, batch, "mc"), line.batch(memory, ours["bytes"])
    claim = "For smaller models like DenseNet the saved memory allows a significant increase in batch size (held: at "
    claim += f"least {LARGER:g} times)."
    text = f"{name} in {size_text(memory)}: direct takes batch {batch} with M = {draws}, its largest; `repar` with M = "
    text += f"{THOUSAND} takes batch {larger:,}, {larger / batch:.3g} times"
    return Finding(claim, text, larger >= LARGER * batch if name == SMALLER and draws else None)


def _stats_finding(results: Results) -> Finding:
    found = predictions(results)
    ends = (pick(found, key=lambda name: int(found[name]["mc"])) for pick in (min, max))
    factors = {name: MANY // max(1, found[name]["mc"]) for name in ends}  # one entry where both are one network
    growth = max(row["ours_many"] / row["ours_100"] for row in results.of("network"))
    fits = all(row["ours_many"] <= row["really_one"] for row in results.of("network"))
    listed = " and ".join(f"{factor:,} times that of {name}" for name, factor in factors.items())
    return Finding(
        f"By `stats`, M = {MANY:,} fits where one direct draw does: more than 1000 times the direct M of some network.",
        f"a step with M = {MANY:,} needs {growth:.4f} times the memory of one with M = 100, and "
        f"{'no more' if fits else 'more'} than the direct one with M = 1; of the largest direct M it is {listed}",
        growth < 1.01 and fits and max(factors.values()) >= 1000,
        ours=True,
    )


def _volume_findings(results: Results) -> list[Finding]:
    """Direct: it holds where it holds for a single volume, else it depends on the batch; ours: at the largest batch."""
    table, settings = volume_table(results), results.settings
    size = " x ".join(map(str, settings.volume))
    listed = ", ".join(f"batch {batch}: M = {draws}" for batch, draws in table) or "not one fits"
    always = bool(table) and table[0][1] <= 1
    why = "" if always or not table else " (inconclusive: it depends on the batch, which the paper does not give)"
    most = table[-1][0] if table else 0
    (row,) = results.of("volumes")
    needed = row["ours_100"] + (most - settings.volume_probes[0]) * row["per_example"]
    ours = f"`repar` takes {size_text(needed)} of {size_text(settings.memory)} at batch {most}, the largest of direct"
    return [
        Finding(
            "With volumes, no more than one iteration fits.",
            f"largest direct M with volumes of {size}, {listed}{why}",
            True if always else None,
        ),
        Finding(
            f"With ours, M = {HUNDRED} does.",
            ours if table else "not one volume fits",
            needed <= settings.memory if table else None,
        ),
    ]


def _run_finding(results: Results) -> Finding:
    runs, small = [row for row in results.of("run") if row["predicted"]], results.settings.small
    right = [row for row in runs if row["at"] <= small < row["above"]]
    listed = "; ".join(
        f"{row['network']} M = {row['predicted']}: {row['at'] / small:.1%}, M = {row['predicted'] + 1}: "
        f"{row['above'] / small:.1%}"
        for row in runs
    )
    return Finding(
        "The predicted M is the largest that really fits.",
        f"in {len(right)} of {len(runs)} networks the predicted M stayed within {size_text(small)} and one more did "
        f"not ({listed})",
        len(right) == len(runs) and bool(runs),
        ours=True,
    )


def draw(results: Results) -> Figure:
    """Bars of the largest M, ours beside them; the real runs below and above their budget."""
    found = dict(sorted(predictions(results).items(), key=lambda item: int(item[1]["mc"])))
    heads = [
        (f"Largest M in {size_text(results.settings.memory)}", "number M of iterations", ""),
        ("Real runs beside the budget", "peak memory / budget", ""),
    ]
    figure, (left, right) = panels(heads, (10.5, max(4.4, 0.42 * len(found) + 1.9)), width_ratios=(3, 2))
    for shift, (entropy, label), colour in zip((-0.2, 0.2), LOOPS.items(), ("blue", "green"), strict=True):
        places = [k + shift for k in range(len(found))]
        values = [p[entropy] for p in found.values()]
        left.barh(places, values, 0.38, color=light(colour), label=f"direct, {label}")
        for place, value in zip(places, values, strict=True):
            left.text(max(value, 0.8) * 1.1, place, f"{value}", va="center", fontsize=8, color=light("ink"))
    paper = [(PAPER[name], k) for k, name in enumerate(found) if name in PAPER]
    left.plot([x for x, _ in paper], [y for _, y in paper], "D", color=light("orange"), markersize=6, label="paper")
    left.plot([MANY] * len(found), range(len(found)), ">", color=light("violet"), label="stats, measured (no limit)")
    left.set_xscale("log")
    left.set_xlim(0.7, 3 * MANY)
    left.set_yticks(range(len(found)), list(found))
    legend(left, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    runs = [row for row in results.of("run") if row["predicted"]]
    for k, row in enumerate(runs):
        small = results.settings.small
        right.plot(row["at"] / small, k, "o", color=light("green"), label="predicted M" if k == 0 else None)
        right.plot(row["above"] / small, k, "x", color=light("red"), label="one more" if k == 0 else None)
        right.plot(row["ours_many"] / small, k, ">", color=light("violet"), label="stats, 10^6" if k == 0 else None)
    right.axvline(1.0, color=light("muted"), linestyle="--", linewidth=1.1)
    right.set_yticks(range(len(runs)), [f"{row['network']}, M = {row['predicted']}" for row in runs])
    right.set_ylim(-0.6, len(runs) - 0.4)
    legend(right, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    return figure


def tell(results: Results) -> str:
    """The numbers of every network, and of volumes."""
    settings, (draw_,) = results.settings, results.of("draw")
    rows = [
        [name, f"{p['weights']:,}", size_text(p["needed"]), p["mc"], p["exact"], PAPER.get(name, ""), f"{MANY:,}",
         settings.batch if p["mc"] else "none", f"{p['batch']:,}"]
        for name, p in predictions(results).items()
    ]  # fmt: skip
    header = ["network", "random weights", f"memory of a step, M = 1, batch {settings.batch}", "M, log q sampled",
              "M, entropy exact", "paper", "ours ran", "batch, direct at its M (log q sampled)",
              "batch, stats, any M"]  # fmt: skip
    saved = ", ".join(f"{draw_[f'per_draw_{entropy}']:g} ({label})" for entropy, label in LOOPS.items())
    volumes = markdown(["batch of volumes", "largest M, direct"], volume_table(results))
    return (
        f"A draw saves {saved} bytes per weight. Largest M at batch {settings.batch}, and largest batch, in "
        f"{size_text(settings.memory)}:\n\n"
        f"{markdown(header, rows)}\n\n"
        f"unet3d_encoder, volumes of {' x '.join(map(str, settings.volume))}, log q sampled:\n\n{volumes}"
    )


CPU_NETWORKS = ("alexnet", "resnet20", "densenet_bc100_12", "densenet121", "densenet169", "preact_resnet18",
                "preact_resnet34", "preact_resnet50", "preact_resnet101", "vgg11", "vgg16")  # fmt: skip
EXPERIMENT = Experiment(
    title="The largest number of draws that fits into a memory",
    where="Figure 2, right, and sections 1 and 5.1",
    claim="On a GPU of 11 GB and with batches of 32 images, a direct Monte Carlo estimate of the KL allows 89 "
    "iterations for a Bayesian DenseNet-121, 17 for ResNet-50 and 5 for VGG-16; for a 3D network, whose volumes fill "
    "the memory, no more than one. The proposed estimate needs the same memory for any number of iterations: up to "
    "1000 times more, or a significant increase in batch size.",
    method="A step is forward, direct KL in the loop that the paper prints, backward and Adam; its peak is the sum of "
    "all tensors alive at once, parameters, gradients and Adam's averages included, in float32, on a GPU if the "
    "machine has one. Measured are the step with few draws at two batches, from which one with M = 1 and any batch "
    "follows, and the bytes that autograd saves per draw; the largest M follows from both. The prediction is then "
    "tested by real steps at the predicted M and one above it in a smaller budget. The paper's estimate, `repar`, is "
    "run with M = 1000 on DenseNet-121. Networks take images of 32 x 32 (VGG with dense layers of 2048, as in the "
    "paper). A GPU needs more than its tensors (workspaces, context, fragments), so that its own numbers are lower.",
    version=1,
    settings={
        "tiny": Settings(("small_conv",), 32 * 2**20, 4, (2, 4), ("small_conv",), 6 * 2**20, (16, 16, 16),
                         volume_width=4),
        "cpu": Settings(CPU_NETWORKS, 11 * GIB, 32, (2, 4), ("densenet121", "preact_resnet18",
                        "preact_resnet50", "vgg16"), 4 * GIB, (105, 127, 105)),
        "paper": Settings((*CPU_NETWORKS, "densenet161", "densenet201", "preact_resnet152", "vgg13", "vgg19"), 11 * GIB,
                          32, (16, 32), ("densenet121", "preact_resnet50", "vgg16"), 11 * GIB, (105, 127, 105)),
    },
    parts=parts, measure=measure, judge=judge, draw=draw, tell=tell,
)  # fmt: skip
