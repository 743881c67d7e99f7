"""From options to objects: data, network, Bayesian network, likelihood; and a run folder opened again."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.data import DATASETS, load
from mcrepar.data.batches import channel_statistics, hold_out, standardise
from mcrepar.data.dataset import Dataset, Split
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.priors import prior
from mcrepar.errors import McreparError, ParameterError
from mcrepar.likelihoods import Categorical, Likelihood, Normal
from mcrepar.models import model
from mcrepar.nn.description import restore_initial
from mcrepar.nn.module import BayesianModule, bayesian
from mcrepar.nn.saving import load as load_model
from mcrepar.user_files import read_json
from mcrepar.workbench.training.checkpoint import PARTS, mismatch, newest, restore
from mcrepar.workbench.training.config import TrainConfig, read_config
from mcrepar.workbench.training.seeds import generator_of
from mcrepar.workbench.training.warm_start import read_weights

LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}  # by the number of spatial dimensions


@dataclass(frozen=True)
class Facts:
    """What a network must know of its data; kept in run.json, so that it can be used without them.

    Args:
        count: the number of training data, by which the KL is divided.
        channels: of x.
        size: the spatial size of x.
        classes: their names; () for regression.
        mean: of every channel.
        std: of every channel.
        target: the mean and the deviation of y, for regression.
        source: what was read.
        simulated: whether the data were made by a program.
        digest: of x and y, to know them again.
        skipped: how many damaged files were left out.
    """

    count: int
    channels: int
    size: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    target: tuple[float, float]
    source: str
    simulated: bool
    digest: str = ""
    skipped: int = 0

    @classmethod
    def of(cls, dataset: Dataset, train: Split) -> Facts:
        """The facts of a data set of which this part is trained on."""
        mean, std = channel_statistics(train)
        y, regression = train.y, train.y.is_floating_point()
        target = (float(y.mean()), float(y.std(correction=0)) or 1.0) if regression else (0.0, 1.0)
        return cls(
            len(train), dataset.channels, dataset.size, dataset.classes, tuple(mean.tolist()), tuple(std.tolist()),
            target, dataset.source, dataset.simulated, digest(train), len(dataset.skipped),
        )  # fmt: skip

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Facts:
        """From what JSON makes of it."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Units(nn.Module):
    """A network whose output is in the units of y: mean + std * output, and log std added to a log scale beside it.

    Args:
        net: one output, or two for a mean and a log scale.
        mean: of y.
        std: of y.

    >>> Units(nn.Identity(), 10.0, 2.0)(torch.ones(1, 1))
    tensor([[12.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1), or (batch, 2) with a log scale."""
        out = self.net(x)
        return torch.cat([self.mean + self.std * out[:, :1], self.std.log() + out[:, 1:]], 1)


def read_data(config: TrainConfig) -> tuple[Dataset, Split, Split | None]:
    """The data set, the part to train on and the part to validate with, where there is one."""
    skip = {"skip_damaged": True} if config.skip_damaged else {}
    dataset = load(config.data, config.root, **config.data_options, **skip)
    train, validation = dataset.train, dataset.validation
    if train is None or not train.labelled:
        raise ParameterError(f"--data {config.data}", "it has no labelled training part", "it for evaluation only")
    if validation is not None and config.validation:
        why = f"{config.data} has a validation part of its own, of {len(validation)} data"
        raise ParameterError(f"--validation {config.validation}", why, "--validation 0")
    if validation is None and config.validation:
        try:
            train, validation = hold_out(train, config.validation, config.seed)
        except ParameterError as error:
            raise error.within(f"--validation {config.validation}") from None
    if validation is None and config.patience is not None:
        raise ParameterError(f"--patience {config.patience}", "there are no validation data", "--validation 0.1 too")
    return dataset, train, validation


def build_network(config: TrainConfig, facts: Facts) -> nn.Module:
    """The plain network, with its start values."""
    outputs = len(facts.classes) or (2 if config.noise == "heteroscedastic" else 1)
    net = model(config.model, classes=outputs, channels=facts.channels, size=facts.size, **config.model_options)
    return net if facts.classes else Units(net, *facts.target)


def warm_started(net: nn.Module, config: TrainConfig) -> nn.Module:
    """The same network with the weights of the file that the options name."""
    if config.warm_start is not None:
        net.load_state_dict(read_weights(Path(config.warm_start), net))
    return net


def make_bayesian(net: nn.Module, config: TrainConfig) -> BayesianModule:
    """The network with random weights, centred where its weights are."""
    return bayesian(
        net,
        posterior(config.posterior, **config.posterior_options),
        prior(config.prior, **config.prior_options),
        config.kl_method,
        config.n_mc_iter,
        start_std=config.start_std,
        pretrained=config.pretrained,
        forward=config.forward,
        signs=config.signs,
    )


def build_likelihood(config: TrainConfig, facts: Facts) -> Likelihood:
    """Of classes, or of real numbers with noise whose first guess is their whole deviation."""
    if facts.classes:
        return Categorical()
    likelihood = Normal(config.noise)
    if likelihood.log_scale is not None:
        nn.init.constant_(likelihood.log_scale, math.log(facts.target[1]))
    return likelihood


def as_input(x: Tensor, config: TrainConfig, facts: Facts, device: torch.device | str = "cpu") -> Tensor:
    """Standardised, in the memory layout of the network, on its device."""
    x = standardise(x.to(device), torch.tensor(facts.mean), torch.tensor(facts.std))
    layout = LAYOUTS.get(len(facts.size)) if config.channels_last else None
    return x if layout is None else x.contiguous(memory_format=layout)


def lay_out(net: nn.Module, config: TrainConfig, facts: Facts) -> None:
    """Bring a network into the memory layout of its input."""
    layout = LAYOUTS.get(len(facts.size)) if config.channels_last else None
    if layout is not None:
        net.to(memory_format=layout)  # type: ignore[call-overload]  # torch's own stub does not know it


def as_target(y: Tensor) -> Tensor:
    """Classes as they are; real numbers as a column, like the network's output."""
    return y.reshape(len(y), 1) if y.is_floating_point() else y


def augmentation(config: TrainConfig) -> str:
    """What becomes of a training batch at random."""
    return DATASETS[config.data].augment if config.augment == "auto" else config.augment


def calibration_batch(train: Split, config: TrainConfig, facts: Facts) -> Tensor:
    """Training data on which norm layers find the statistics of a draw."""
    order = torch.randperm(len(train), generator=generator_of(config.seed, "calibration"))
    return as_input(train.x[order[: config.calibration]], config, facts)


def give_batch(bnn: BayesianModule, batch: Tensor) -> None:
    """Let norm layers find the statistics of every draw on these data, which are not stored.

    As `bnn.calibrate`, but without the pooled statistics, which `save` measures when they are needed.
    """
    bnn.calibration.take((batch.to(next(bnn.parameters()).device),), {}, bnn.complete)


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder, opened: what evaluation, the app and experiments work with.

    Args:
        folder: of the run.
        config: its options.
        facts: of its data.
        bnn: the trained network, in eval mode.
        likelihood: of y given its output.
        note: where the model is not that of a finished run, a sentence that says so; else "".
    """

    folder: Path
    config: TrainConfig
    facts: Facts
    bnn: BayesianModule
    likelihood: Likelihood
    note: str = ""

    @property
    def mean(self) -> Tensor:
        """Of every channel of the training data."""
        return torch.tensor(self.facts.mean)

    @property
    def std(self) -> Tensor:
        """Of every channel of the training data."""
        return torch.tensor(self.facts.std)

    @cached_property
    def dataset(self) -> Dataset:
        """The data, read again; the training part without what was held out, which is the validation part."""
        try:
            dataset, train, validation = read_data(self.config)
        except McreparError as error:
            raise error.within(str(self.folder / "config.yaml")) from None
        if len(train) != self.facts.count:
            why = f"it was trained on {self.facts.count} data, and there are {len(train)} now"
            raise ParameterError(f"run {str(self.folder)!r}", why, "the same data; new ones as --ood arrays,root=PATH")
        return replace(dataset, train=train, validation=validation)

    @cached_property
    def changed(self) -> str:
        """Where the training data are not those of the training, bit by bit, a sentence that says so; else ""."""
        train = self.dataset.train
        if train is None or self.facts.digest in ("", digest(train)):
            return ""
        return (
            "the data are not those of the training, bit by bit (another version of a library or another processor "
            "is enough); where files were changed, what is test data now may have been trained on"
        )

    def prepare(self, x: Tensor) -> Tensor:
        """Raw x as the network's input."""
        return as_input(x, self.config, self.facts)

    def calibrate(self) -> str:
        """Let BatchNorm find statistics of every draw on training data, which a model does not hold; a note or ""."""
        calibration = self.bnn.calibration
        if not calibration.layers:
            return ""
        if calibration.kept is not None:
            size = next((len(t) for t in calibration.buffers() if t.dim()), 0)
            return f"the folder of the model holds {size} training examples, on which BatchNorm finds its statistics"
        if self.dataset.train is None:
            calibration.warned = True  # the note says it
            which = "its running statistics" if calibration.pooled is None else "statistics pooled over draws"
            return f"BatchNorm used {which}, which belong to no single draw: there are no training data"
        give_batch(self.bnn, calibration_batch(self.dataset.train, self.config, self.facts))
        return ""


def open_run(folder: str | Path) -> Run:
    """A run folder with its trained network; the data are read only when they are asked for.

    Args:
        folder: written by `train`; of a run that has not finished the newest checkpoint is taken.
    """
    folder = Path(folder)
    try:
        kept = read_json(folder / "run.json")
        facts, status = Facts.read(kept["data"]), str(kept["status"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"it holds no run ({type(error).__name__}: {error})"
        raise ParameterError(f"run {str(folder)!r}", why, "a folder that mcrepar train wrote") from None
    config = read_config(folder / "config.yaml")
    net, likelihood = build_network(config, facts), build_likelihood(config, facts)
    if (folder / "model" / "config.json").exists():
        bnn = load_model(folder / "model", net)
        _restore_likelihood(likelihood, folder / "model" / "likelihood.json")
        note = "" if status == "finished" else f"the run is {status}, this is its best model so far"
    else:
        found = newest(folder / "checkpoints", PARTS)
        if found is None or not found.state["bayesian"]:
            raise ParameterError(f"run {str(folder)!r}", "it has no model yet", "it when training has gone on")
        bnn = make_bayesian(net, config)
        restore(bnn, found.state["model"], found.path)
        restore_initial(bnn.random, found.state.get("initial") or {"random": []})  # unknown in older checkpoints
        likelihood.load_state_dict(found.state["likelihood"])
        note = f"the run is {status}, this is its checkpoint of step {found.state['step']}"
    lay_out(bnn, config, facts)
    return Run(folder, config, facts, bnn.eval(), likelihood.eval(), note)


def digest(split: Split) -> str:
    """A checksum of all x and y."""
    value = 0
    for t in (split.y, split.x):
        value = zlib.crc32(t.contiguous().numpy().data, value)
    return f"{value:08x}"


def _restore_likelihood(likelihood: Likelihood, path: Path) -> None:
    try:
        state = {name: torch.tensor(value) for name, value in read_json(path).items()}
        why = mismatch(state, likelihood.state_dict())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        wanted = "the folder as mcrepar train wrote it"
        raise ParameterError(f"{path}", f"it is missing or damaged ({why})", wanted)
    likelihood.load_state_dict(state)
