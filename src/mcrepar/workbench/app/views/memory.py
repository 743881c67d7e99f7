"""Memory and time against M: what was measured, and a calculator for any network, batch and memory."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from mcrepar.divergence.plan import explain
from mcrepar.models import MODELS
from mcrepar.workbench.app.answer import Answer, Cell, Figure, Table, line
from mcrepar.workbench.app.controls import Number
from mcrepar.workbench.app.estimate_distribution import draws_grid
from mcrepar.workbench.app.memory_budget import Step, example_bytes, random_weights, scaled_seconds
from mcrepar.workbench.app.view import View
from mcrepar.workbench.app.views.distributions import METHOD_SYMBOLS, pair_controls
from mcrepar.workbench.app.views.quality import NETWORK_PRESETS

_GB = 1e9
_TALL = 640  # pixels of the figures of the calculator: a line per network


@functools.cache
def benchmark() -> Mapping[str, Any]:
    """The results of benchmarks/kl.py, a copy of which is shipped with the app."""
    found: Mapping[str, Any] = json.loads(
        (files("mcrepar.workbench.app") / "data" / "kl.json").read_text(encoding="utf-8")
    )
    return found


def _compute(values: Mapping[str, Any]) -> Answer:
    plan = explain(values["posterior"], values["prior"])
    if not plan.finite:
        raise plan.refusals["exact"]
    step = _step(values["network"], values)
    measured = benchmark()["curves"]["points"]
    methods = sorted(plan.methods, key=[*measured, *plan.methods].index)  # those that were measured first
    zoo = {name: _step(name, values) for name in MODELS}
    return Answer(
        _headline(step, methods, values),
        notes=_notes(step),
        figures=[
            _needs_figure(step, methods, values),
            _zoo_figure(zoo, values),
            *(_benchmark_figure(*row) for row in _MEASURED),
        ],
        tables=[_needs_table(step, methods, values), _zoo_table(zoo, values), _benchmark_table()],
        code=_code(values),
    )


def _step(network: int | str, values: Mapping[str, Any]) -> Step:
    sizes = (random_weights(network), example_bytes(network)) if isinstance(network, str) else (network, 0)
    return Step(*sizes, values["batch"], values["posterior"], values["prior"])


def _headline(step: Step, methods: Sequence[str], values: Mapping[str, Any]) -> str:
    fits, memory = step.most_draws(values["memory"] * _GB), values["memory"]
    draws = values["iterations"]
    wanted = [m for m in methods if m in benchmark()["curves"]["points"]]
    others = f" M = {draws:,} takes " + ", ".join(f"{_gb(step.needed(m, draws))} by {m}" for m in wanted) + "."
    if fits:
        return f"{fits:,} direct iterations fit into {memory:g} GB beside the rest of a training step.{others}"
    return f"Not one direct iteration fits into {memory:g} GB beside the rest of a training step.{others}"


def _gb(size: float) -> str:
    return f"{size / _GB:,.0f} GB" if size >= 100 * _GB else f"{size / _GB:.3g} GB"


def _notes(step: Step) -> list[str]:
    forward = f" and {step.batch:,} examples of {step.per_example / 1e6:.3g} MB" if step.per_example else ""
    note = (
        f"A step without its KL takes {step.rest / _GB:.3g} GB: {step.weights:,} weights with their gradients, Adam's "
        f"averages and one draw{forward}. All numbers are float32; what the methods keep per weight was measured from "
        f"their autograd graphs."
    )
    images = "Networks are counted with 10 classes and images of 32 x 32 (volumes of 32 x 32 x 32) in 3 channels."
    typed = "For a typed number of weights the examples of the batch are not counted: their network is not known."
    return [note, images if step.per_example else typed]


def _needs_figure(step: Step, methods: Sequence[str], values: Mapping[str, Any]) -> Figure:
    draws = draws_grid(max(1000, values["iterations"]), 13)
    limit = values["memory"]
    traces = [
        line(m, draws, [step.needed(m, d) / _GB for d in draws], f"@{m}", symbol=METHOD_SYMBOLS[m]) for m in methods
    ]
    ends = [draws[0], draws[-1]]
    traces.append(line(f"{limit:g} GB", ends, [limit, limit], "@edge", mode="lines", dash="dash"))
    alt = f"Memory of a step against M. Direct grows with M and leaves {limit:g} GB; the others do not grow."
    return Figure("memory", "Memory of a training step", alt, traces, "number M of draws", "GB", True, True,
                  {"height": _TALL})  # fmt: skip


def _zoo_figure(zoo: Mapping[str, Step], values: Mapping[str, Any]) -> Figure:
    fits = {name: step.most_draws(values["memory"] * _GB) or 0 for name, step in zoo.items()}
    names = sorted(fits, key=lambda name: fits[name])
    colours = ["@series2" if name == values["network"] else "@series1" for name in names]
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [max(fits[name], 0.5) for name in names],  # so that none at all has a place on a logarithmic axis
        "y": names,
        "text": [f"{fits[name]:,}" for name in names],
        "textposition": "outside",
        "textfont": {"size": 11},
        "cliponaxis": False,
        "hoverinfo": "y+text",
        "marker": {"color": colours},
        "showlegend": False,
    }
    title = f"Direct iterations that fit into {values['memory']:g} GB, batch {values['batch']:,}"
    alt = f"{title}: " + ", ".join(f"{name} {fits[name]:,}" for name in reversed(names)) + "."
    room = {"range": [-0.5, math.log10(max(*fits.values(), 1)) + 0.8]}  # for the number at the end of the longest bar
    layout = {"xaxis": room, "yaxis": {"type": "category", "dtick": 1}, "height": _TALL}
    return Figure("zoo", title, alt, [bar], "direct iterations", "", True, layout=layout)


_MEASURED = (
    ("seconds", "Measured time", "seconds, value and backward", 1.0),
    ("bytes", "Measured memory", "MB saved for backward", 1e-6),
)


def _benchmark_figure(key: str, title: str, unit: str, factor: float) -> Figure:
    curves = benchmark()["curves"]
    traces = [
        line(m, [p["M"] for p in points], [p[key] * factor for p in points], f"@{m}", symbol=METHOD_SYMBOLS[m])
        for m, points in curves["points"].items()
    ]
    of = f"{title} of KL(radial ‖ normal), {curves['weights']:,} weights"
    alt = f"{of}: direct grows with M, repar and stream only in time, stats and exact not at all."
    return Figure(f"measured-{key}", of, alt, traces, "number M of draws", unit, True, True)


def _needs_table(step: Step, methods: Sequence[str], values: Mapping[str, Any]) -> Table:
    draws, limit, curves = values["iterations"], values["memory"] * _GB, benchmark()["curves"]
    rows: list[tuple[Cell, ...]] = []
    for method in methods:
        needed, most = step.needed(method, draws), step.most_draws(limit, method)
        points = curves["points"].get(method)
        seconds = scaled_seconds(points, curves["weights"], step.weights, draws) if points else None
        rows.append(
            (method, needed / _GB, "yes" if needed <= limit else "no", "any" if most is None else most, seconds)
        )
    header = ("method", "GB of a step", "fits", "largest M that fits", "seconds of the KL, scaled")
    machine = benchmark()["machine"]
    caption = (
        f"What M = {draws:,} needs. Seconds are those measured on {curves['weights']:,} weights (radial and normal, "
        f"{machine['cpu']}, {machine['threads']} threads), scaled to {step.weights:,}"
    )
    return Table("needs", caption, header, rows)


def _zoo_table(zoo: Mapping[str, Step], values: Mapping[str, Any]) -> Table:
    rows = [
        (name, step.weights, step.per_example / 1e6, step.rest / _GB, step.most_draws(values["memory"] * _GB))
        for name, step in zoo.items()
    ]
    header = ("network", "random weights", "MB per example", "GB without the KL", "direct iterations that fit")
    return Table("networks", f"The networks with a batch of {values['batch']:,}", header, rows)


def _benchmark_table() -> Table:
    curves = benchmark()["curves"]
    rows = [(m, p["M"], p["seconds"], p["bytes"]) for m, points in curves["points"].items() for p in points]
    return Table("measured", "The measurements", ("method", "M", "seconds", "bytes saved"), rows)


def _code(values: Mapping[str, Any]) -> str:
    network = values["network"] if isinstance(values["network"], str) else "preact_resnet18"
    return (
        "import mcrepar\n\n"
        f'net = mcrepar.models.model("{network}")\n'
        f'bnn = mcrepar.bayesian(net, posterior="{values["posterior"]}", prior="{values["prior"]}", '
        f"n_mc_iter={values['iterations']})"
    )


MEMORY = View(
    "memory",
    "Memory and time",
    "Memory and time against M",
    (
        "The direct estimate saves its M draws of every weight for backward. This is what fills a GPU, and what "
        "limits M. The other methods keep the same for any M; stats and exact also take the same time.",
        "Choose a network, a batch and a memory, and see how many direct iterations fit, and what the others need.",
    ),
    (
        Number("network", "Network", "preact_resnet50", "A name, or a number of weights up to 10^9.",
               least=1, most=1e9, whole=True, words=tuple(MODELS),
               presets={"Networks": NETWORK_PRESETS}),
        Number("batch", "Examples in a batch", "128", least=1, most=1e5, whole=True),
        Number("memory", "Memory, GB", "11", "11 GB is the GPU of the paper.", least=0.1, most=1e4),
        Number("iterations", "Monte Carlo iterations M", "1000", least=1, most=1e6, whole=True),
        *pair_controls(),
    ),
    _compute,
    group="The paper",
    stored=lambda: {
        "network": ["preact_resnet50", *(name for name in MODELS if name != "preact_resnet50")],
        "batch": ("128", "32"),
        "memory": ("11", "8", "24", "80"),
    },
)  # fmt: skip
