"""Look into a network: what its posterior learned, tensor by tensor, and one pass of moments beside draws."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcrepar.errors import CollapseWarning, McreparError
from mcrepar.metrics import THRESHOLDS
from mcrepar.nn.diagnose import Diagnosis, TensorDiagnosis
from mcrepar.nn.moments.moment_calibration import calibrate_moments
from mcrepar.prediction import Prediction, predict
from mcrepar.workbench.app.answer import Answer, Figure, Table, line
from mcrepar.workbench.app.controls import Choice, Number, Switch
from mcrepar.workbench.app.networks import ZOO, Network, network_files, stored_network, zoo_network
from mcrepar.workbench.app.runs import Runs
from mcrepar.workbench.app.taylor_warning import without_warning
from mcrepar.workbench.app.view import View
from mcrepar.workbench.app.views.distributions import pair_controls

_DRAWS = 30
_POINTS = 2000  # of a scatter plot
_AXIS = "tensor, from input to output"
_STYLES = (("@series1", "circle"), ("@series2", "square"), ("@series3", "diamond"), ("@series4", "triangle-up"))
_NUMBERS = (  # what is compared of a regression: name, title, unit, and what of a prediction
    ("means", "Means", "mean of y", {"mean": "mean"}),
    ("spreads", "Standard deviations", "standard deviation", {"of y": "std", "epistemic": "epistemic"}),
)
_CLASSES = (
    ("probabilities", "Probabilities", "probability", {"probability of a class": "probs"}),
    ("entropy", "Entropy", "nats", {"entropy of a prediction": "entropy"}),
    ("mutual-information", "Mutual information", "nats", {"of weights and answer": "mutual_information"}),
)

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Pair:
    """The same inputs predicted twice."""

    drawn: Prediction
    moments: Prediction


def _compute(runs: Runs, values: Mapping[str, Any]) -> Answer:
    name, zoo = values["network"], values["network"] in ZOO
    families = (values["posterior"], values["prior"]) if zoo else ("", "")
    changed = None if zoo else _written(runs, name)
    return _answer(runs, name, *families, values["draws"], values["fit"], changed)


def _written(runs: Runs, name: str) -> tuple[tuple[str, int, int], ...]:
    """When the files of a network were written: what was computed of them holds until then."""
    stats = [(str(path), path.lstat()) for path in network_files(runs.folder(name))]
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


@functools.lru_cache(maxsize=32)
def _answer(runs: Runs, name: str, posterior: str, prior: str, draws: int, fit: bool, changed: object) -> Answer:
    """The answer while nothing has `changed`."""
    network = zoo_network(name.partition(":")[2], posterior, prior) if name in ZOO else stored_network(runs, name)
    with without_warning(CollapseWarning):  # it is among the advice
        found = network.bnn.diagnose()
    pair, note = _predicted(network, draws, fit)
    first, *lines = str(found).splitlines()
    told = lines[: len(lines) - max(1, len(found.advice))]
    return Answer(
        " ".join([first, *(found.advice or ("Nothing stands out in its posterior.",))]),
        notes=[" ".join(told), *network.notes, *([note] if note else [])],
        figures=[*_tensor_figures(found), *(_pair_figures(pair) if pair else [])],
        tables=[_tensor_table(found), *(_pair_tables(pair) if pair else [])],
        code=_code(network, draws, fit),
    )


def _predicted(network: Network, draws: int, fit: bool) -> tuple[_Pair | None, str]:
    """Both predictions, or none where the network cannot be called so, and a sentence about them."""
    if network.x is None:
        return None, ""
    ways: tuple[int | str, ...] = "moments", draws
    fitting, *noises = (torch.Generator().manual_seed(seed) for seed in range(3))  # draws are the same with each `fit`
    try:
        if fit:
            calibrate_moments(network.bnn, network.x[::2], generator=fitting, likelihood=network.likelihood)
        moments, drawn = (
            predict(network.bnn, network.x, k, 64, network.likelihood, noise)
            for k, noise in zip(ways, noises, strict=True)
        )
    except McreparError as error:
        return None, f"Moments and draws are not compared: {error}"
    stored = "fitted to draws" if network.bnn.calibration.moment_factors else "not fitted to draws"
    fitted = "fitted to draws on every other input" if fit else stored
    return _Pair(drawn, moments), (
        f"Moments and {draws} draws predict {len(network.x)} inputs: {network.inputs}. The variances of moments are "
        f"{fitted}."
    )


# ---- tensors


def _tensor_figures(found: Diagnosis) -> list[Figure]:
    rows, axis = found.tensors, {"dtick": 1} if len(found.tensors) <= 12 else {}
    largest, loudest = max(rows, key=lambda t: t.kl_per_weight), min(rows, key=lambda t: t.signal_to_noise)
    zero: dict[str, Any] = {"xaxis": axis, "yaxis": {"rangemode": "tozero"}}
    even = [_level(rows)] if loudest.signal_to_noise < 3 else []
    shares: dict[str, list[float | None]] = {
        "effectively random": [t.effective / t.weights for t in rows],
        "at the prior": [t.at_prior for t in rows],
    }
    count = f"{found.effective:,.0f} of {found.weights:,} in all"
    figures = [
        Figure("kl", "KL per weight", f"The KL of a weight, tensor by tensor; most in {largest.name}.",
               _kinds(rows, lambda t: t.kl_per_weight), _AXIS, "nats per weight", layout=zero),
        Figure("moved", "How far the scales moved", "The mean change of log scale since the initialisation, by tensor.",
               _kinds(rows, lambda t: t.moved), _AXIS, "change of log scale", layout=zero),
        Figure("signal", "Signal to noise", f"The median of |mean| / std, by tensor; the least in {loudest.name}.",
               [*_kinds(rows, lambda t: t.signal_to_noise), *even], _AXIS, "median of |mean| / std", False,
               loudest.signal_to_noise > 0, {"xaxis": axis}),
        Figure("shares", "How many weights are random",
               f"The shares of a tensor's weights that are effectively random ({count}) and that are at the prior.",
               [_curve(name, rows, y, place) for place, (name, y) in enumerate(shares.items()) if set(y) != {None}],
               _AXIS, "share of its weights", layout=zero),
    ]  # fmt: skip
    return [figure for figure in figures if figure.traces]


def _kinds(rows: Sequence[TensorDiagnosis], value: Any) -> list[dict[str, Any]]:
    """A line for weights, one for biases and so on: they are not alike."""
    kinds = list(dict.fromkeys(t.name.rpartition(".")[2] for t in rows))
    chosen = {kind: [t if t.name.rpartition(".")[2] == kind else None for t in rows] for kind in kinds[:4]}
    known = {k: [None if t is None else value(t) for t in ts] for k, ts in chosen.items()}
    traces = [_curve(kind, rows, known[kind], place) for place, kind in enumerate(chosen)]
    return [trace for trace in traces if any(trace["y"])]  # where nothing moved there is nothing to see


def _curve(name: str, rows: Sequence[TensorDiagnosis], y: Sequence[float | None], place: int) -> dict[str, Any]:
    colour, symbol = _STYLES[place]
    numbers = [k for k, value in enumerate(y, start=1) if value is not None]
    return line(name, numbers, [value for value in y if value is not None], colour, symbol=symbol,
                text=[rows[k - 1].name for k in numbers], hovertemplate="%{text}: %{y:.3g}")  # fmt: skip


def _level(rows: Sequence[TensorDiagnosis]) -> dict[str, Any]:
    return line("noise = mean", [1, len(rows)], [1, 1], "@edge", mode="lines", dash="dot")


def _tensor_table(found: Diagnosis) -> Table:
    header = ("tensor", "place", "weights", "KL per weight", "scales moved", "their spread", "|mean| / std",
              "noisy", "at prior", "effective")  # fmt: skip
    rows = [
        (t.name, number, t.weights, t.kl_per_weight, t.moved, t.spread, t.signal_to_noise, t.noisy, t.at_prior,
         t.effective)
        for number, t in enumerate(found.tensors, start=1)
    ]  # fmt: skip
    return Table("tensors", "What the posterior learned, tensor by tensor", header, rows)


# ---- moments and draws


def _pair_figures(pair: _Pair) -> list[Figure]:
    if pair.drawn.classes is None:
        return [_scatter(pair, *row) for row in _NUMBERS]
    first, *others = (_scatter(pair, *row) for row in _CLASSES)
    return [first, _sets_figure(pair), *others]


def _sets_figure(pair: _Pair) -> Figure:
    """Confidence sets by both."""
    taus = [k / 50 for k in range(51)]
    shares = [[float(p.confident(tau).double().mean()) for tau in taus] for p in (pair.drawn, pair.moments)]
    traces = [
        line(name, taus, y, colour, mode="lines", dash=dash, shape="hv")
        for name, y, colour, dash in (
            (f"{pair.drawn.draws} draws", shares[0], "@series1", "solid"),
            ("moments", shares[1], "@series2", "dash"),
        )
    ]
    alt = f"The share of answers in the confidence set falls with the threshold; at 0.9 it is {shares[0][45]:.0%} by "
    alt += f"draws and {shares[1][45]:.0%} by moments."
    return Figure("confidence-sets", "Confidence sets, both ways", alt, traces, "threshold",
                  "share of the answers", layout={"xaxis": {"range": [0, 1]}})  # fmt: skip


def _scatter(pair: _Pair, name: str, title: str, unit: str, parts: Mapping[str, str]) -> Figure:
    pairs = {part: [_numbers(p, attribute) for p in (pair.drawn, pair.moments)] for part, attribute in parts.items()}
    every = np.concatenate([values for both in pairs.values() for values in both])
    ends = [float(every.min()), float(every.max())]
    traces = [line("equal", ends, ends, "@edge", mode="lines", dash="dash")]
    for (part, (x, y)), (colour, symbol) in zip(pairs.items(), _STYLES, strict=False):
        step = -(-len(x) // _POINTS)
        traces.append(line(part, x[::step], y[::step], colour, symbol=symbol, mode="markers"))
    apart = ", ".join(f"{part} by {np.abs(x - y).mean():.3g} in the mean" for part, (x, y) in pairs.items())
    alt = f"{title} by moments against those by {pair.drawn.draws} draws; they differ: {apart}."
    return Figure(name, f"{title}, both ways", alt, traces, f"{unit}, {pair.drawn.draws} draws",
                  f"{unit}, moments")  # fmt: skip


def _numbers(prediction: Prediction, attribute: str) -> Array:
    values = getattr(prediction, attribute).detach().double().flatten().numpy()
    found: Array = np.sqrt(values) if attribute == "epistemic" else values
    return found


def _pair_tables(pair: _Pair) -> list[Table]:
    if pair.drawn.classes is None:
        return []
    same = pair.drawn.label == pair.moments.label
    rows = []
    for tau in THRESHOLDS:
        sets = [p.confident(tau) for p in (pair.drawn, pair.moments)]
        rows.append((tau, *(float(s.double().mean()) for s in sets), float((sets[0] == sets[1]).double().mean())))
    caption = f"Confidence sets of both; {100 * float(same.double().mean()):.0f} % of their answers are the same"
    return [Table("confidence-sets", caption, ("threshold", "share by draws", "by moments", "in both or none"), rows)]


def _code(network: Network, draws: int, fit: bool) -> str:
    imports = "import mcrepar\n" if "torch." not in network.code else "import torch\n\nimport mcrepar\n"
    blank = "" if network.code.startswith("from") else "\n"
    lines = [f"{imports}{blank}{network.code}", "print(bnn.diagnose())"]
    if network.x is not None:
        if fit:
            lines.append("mcrepar.calibrate_moments(bnn, x[::2], likelihood=likelihood)")
        lines.append(f"drawn = mcrepar.predict(bnn, x, draws={draws}, likelihood=likelihood)")
        lines.append('moments = mcrepar.predict(bnn, x, draws="moments", likelihood=likelihood)  # in one pass')
    return "\n".join(lines)


def network_view(root: Path | None) -> View:
    """The view of the networks below `root` and of the zoo."""
    runs = Runs(root)

    def names() -> dict[str, str]:
        return runs.names(networks=True) | ZOO

    posterior, prior = pair_controls(needs={"network": tuple(ZOO)})
    return View(
        "network",
        "Your network",
        "What did the posterior learn?",
        (
            "A posterior that has learned has moved away from where it began and from its prior: scales grow where the "
            "data do not care for a weight, and shrink where they do. A tensor at its prior carries noise alone.",
            "One pass of means and variances (moments) can stand in for many draws; here both predict the same inputs.",
        ),
        (
            Choice("network", "Network", next(iter(names())), choices=names),
            posterior,
            prior,
            Number("draws", "Draws to compare moments with", str(_DRAWS), least=2, most=200, whole=True),
            Switch("fit", "Fit moments to draws first", "false", "As calibrate_moments does, on half of the inputs."),
        ),
        lambda values: _compute(runs, values),
        lasting=False,
        stored=lambda: {"network": [*list(runs.names(networks=True))[:3], *list(ZOO)[:4]], "fit": ("false", "true")},
    )
