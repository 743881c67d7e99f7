"""Networks trained for an experiment: each a run folder, found again by its options, and resumable."""

from __future__ import annotations

import hashlib
import json
import math
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from experiments.experiment import Bench, Row
from experiments.published_noise import NAME as PUBLISHED
from experiments.published_noise import PublishedNetwork, published_noise
from mcrepar import __version__, metrics
from mcrepar.data import DATASETS, load
from mcrepar.errors import McreparError, ParameterError
from mcrepar.prediction import predict
from mcrepar.user_files import write_file
from mcrepar.workbench.evaluation.data_sets import own_part
from mcrepar.workbench.evaluation.kinds import CLASSES
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import MAY_DIFFER, TrainConfig, names
from mcrepar.workbench.training.log import read_log
from mcrepar.workbench.training.process import Diverged, Stopped
from mcrepar.workbench.training.run_folder import FolderTaken
from mcrepar.workbench.training.setup import Run, open_run

TAUS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0)  # the thresholds of confidence
CURVES = ("epoch", "loss", "nll", "kl", "accuracy")  # columns of log.csv that are stored
WHERE = {
    "cifar10": "cifar-10-binary.tar.gz, unpacked, from https://www.cs.toronto.edu/~kriz/cifar.html",
    "medmnist": "adrenalmnist3d.npz from https://medmnist.com",
}
_BATCH = 256

# The paper's setting where it states one, whatever the defaults of a training are.
PAPER: Mapping[str, Any] = {
    "posterior": "radial", "prior": "normal", "forward": "weights", "lr": 1e-3, "lr_schedule": "constant",
    "scale_lr": 1.0,
}  # fmt: skip
# Annealed and tempered, with a prior scale learned for each tensor: what lets small networks train.
TEMPERED: Mapping[str, Any] = {
    "prior_options": {"scale": "learned"}, "kl_schedule": "linear", "kl_warmup": 0.3, "beta": 0.01,
}  # fmt: skip
# Neither noise nor KL: standard deviations of a millionth, which do not learn.
DETERMINISTIC: Mapping[str, Any] = {"kl_schedule": "constant", "beta": 0.0, "initial_std": 1e-6, "scale_lr": 1e-9}


@dataclass(frozen=True)
class Training:
    """A way to train and to ask a network.

    Args:
        data: a name of DATASETS.
        model: a name of MODELS.
        asked: draws of the weights that vote on the test data.
        options: all others of `mcrepar train`.
    """

    data: str
    model: str
    asked: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, bench: Bench, **changed: Any) -> TrainConfig:
        """The options of a run, its folder among them; `changed` are those that differ."""
        root = str(bench.root) if DATASETS[self.data].files else None
        given: dict[str, Any] = {"data": self.data, "model": self.model, "root": root, "seed": bench.seed}
        given |= {**PAPER, **self.options, **changed}
        config = TrainConfig(**given, resume=True, progress="none")
        return replace(config, out=str(bench.runs / f"{self.model}-{_digest(config)}"))


def untempered(training: Training) -> Training:
    """The same with the paper's objective: the whole KL from the first step, prior N(0, 1).

    >>> untempered(Training("digits", "fcnet", 5, {**TEMPERED, "epochs": 2})).options
    {'epochs': 2}
    """
    return replace(training, options={name: v for name, v in training.options.items() if name not in TEMPERED})


def _digest(config: TrainConfig) -> str:
    """Names everything that a run depends on, but not where its data are."""
    facts = {name: getattr(config, name) for name in names() if name not in MAY_DIFFER}
    return hashlib.sha256(json.dumps([__version__, facts], sort_keys=True).encode()).hexdigest()[:16]


def training_run(training: Training, bench: Bench, **changed: Any) -> Row:
    """Train, or go on with, or find a run, and ask it about the test data; `changed` are options that differ."""
    config = training.config(bench, **changed)
    with published_noise() if config.forward == PUBLISHED else nullcontext():
        try:
            run = open_run(train(config))
        except Diverged as error:
            return {"failed": f"{error.asked}: {error.why}"}
        except FolderTaken:
            why = "another experiment is computing this run, which both need, at this moment"
            instead = "the same command when that one has ended: it goes on from here"
            raise FolderTaken(f"the run {config.out}", why, instead) from None
        except Stopped as stop:
            if stop.number == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise
        return {"failed": None, **_stored_answers(run, training.asked, bench.seed), **_curves(run.folder)}


def _stored_answers(run: Run, draws: int, seed: int) -> Row:
    """`answers`, stored beside the run: experiments share runs, and to ask one takes as long as some of its epochs."""
    path = run.folder / f"answers-{draws}-{seed}.json"
    with suppress(OSError, ValueError):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(stored, dict):
            return stored
    found = answers(run, draws, seed)
    write_file(path, json.dumps(found, indent=1, allow_nan=False).encode("utf-8"))
    return found


def answers(run: Run, draws: int, seed: int) -> Row:
    """Scores and confidence sets of the test data, on which `draws` of the weights vote."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run.bnn.to(device)
    run.likelihood.to(device)
    run.calibrate()
    torch.manual_seed(seed)
    generator = torch.Generator(device).manual_seed(seed)
    net = PublishedNetwork(run.bnn) if run.config.forward == PUBLISHED else run.bnn
    part = own_part(run, "test")
    batches = run.model.batches(part.x, _BATCH)
    found = predict(net, batches, draws, _BATCH, run.likelihood, generator, max_bytes=0)
    arrays, y = CLASSES.answers(found), part.y.numpy()
    right = arrays["label"] == y
    scores = CLASSES.scores(found, arrays, y) | {"mutual_information": float(arrays["mutual_information"].mean())}
    return {
        "scores": {name: value if math.isfinite(value) else None for name, value in scores.items()},
        "sets": [asdict(s) for s in metrics.confidence_sets(arrays["confidence"], right, TAUS)],
        "asked": draws,
        "count": len(y),
        "right": int(right.sum()),
        "source": run.facts.source,
        "simulated": run.facts.simulated,
    }


def _curves(folder: Path) -> Row:
    log = read_log(folder / "log.csv")
    return {"curves": {name: log[name] for name in CURVES}}


def confidence_set(row: Row, tau: float) -> Row:
    """The confidence set of one threshold.

    >>> confidence_set({"sets": [{"tau": 0.5, "share": 1.0}, {"tau": 0.9, "share": 0.4}]}, 0.9)["share"]
    0.4
    """
    by_threshold: dict[float, Row] = {s["tau"]: s for s in row["sets"]}
    return by_threshold[tau]


def accuracy(row: Row) -> float:
    """The accuracy on all test data."""
    return float(row["scores"]["accuracy"])


def in_set(tau: float, field: str) -> Callable[[Row], float | None]:
    """The quantity `accuracy` or `share` of the confidence set of a threshold."""
    return lambda row: confidence_set(row, tau)[field]


def outside(row: Row, tau: float) -> float | None:
    """The accuracy on the data below a threshold; None where there are none."""
    inside = confidence_set(row, tau)
    count = row["count"] - inside["count"]
    hits = round((inside["accuracy"] or 0.0) * inside["count"])
    return (row["right"] - hits) / count if count else None


def need_data(trainings: Iterable[Training], root: Path | None) -> None:
    """Refuse, before any computing, where the data of a training are missing or damaged."""
    for data, options in {
        t.data: t.options.get("data_options", {}) for t in trainings if DATASETS[t.data].files
    }.items():
        instead = f"--root FOLDER that holds {DATASETS[data].files}: {WHERE[data]}"
        if root is None:
            raise ParameterError("reproduce without --root", f"it needs the data set {data}", instead)
        try:
            load(data, root, **options)
        except McreparError as error:
            raise ParameterError(f"--root {root}", f"{error.asked}: {error.why}", instead) from None
