"""From options to objects: network, Bayesian neural network, likelihood; and a run folder opened again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.data.dataset import Dataset
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.prior import Prior
from mcrepar.distributions.priors import PRIORS, prior
from mcrepar.errors import McreparError, MethodError, ParameterError
from mcrepar.likelihoods import LIKELIHOODS, Likelihood, Normal, PerVoxel, likelihood_of
from mcrepar.models import model
from mcrepar.nn.calibration import complete
from mcrepar.nn.description import restore_initial
from mcrepar.nn.module import BayesianModule, bayesian
from mcrepar.nn.preactivation import AffineOutput, Preactivation
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.nn.rank1 import factor_prior
from mcrepar.trained_model import LAYOUTS, Preparation, TrainedModel
from mcrepar.user_files import read_json
from mcrepar.workbench.training.checkpoint import PARTS, mismatch, newest, read_weights, restore
from mcrepar.workbench.training.config import ACCUMULATED, TrainConfig, read_config
from mcrepar.workbench.training.task import Facts, calibration_batch, digest, read_data


class Units(AffineOutput):
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
        return self._in_units(self.net(x))

    def _in_units(self, out: Tensor) -> Tensor:
        return torch.cat([self.mean + self.std * out[:, :1], self.std.log() + out[:, 1:]], 1)

    def of_last_layer(self, u: Preactivation) -> Preactivation:
        """The same of a distribution: std * u has the variance std^2 Var u."""
        squares = (torch.cat([self.std**2 * p.square[:, :1], p.square[:, 1:]], 1) for p in u.parts)
        parts = (replace(p, square=s, tensor=None) for p, s in zip(u.parts, squares, strict=True))
        return Preactivation(self._in_units(u.loc), tuple(parts))


def build_likelihood(config: TrainConfig, facts: Facts) -> Likelihood:
    """The one that was asked for, the scale of a Normal beginning with the standard deviation of y."""
    usual = "per_voxel" if facts.voxels else "categorical" if facts.classes else "normal"
    asked = config.likelihood if config.likelihood != "auto" else usual
    try:
        likelihood = likelihood_of(asked)
    except ParameterError as error:
        raise ParameterError(f"--likelihood {asked}", error.why, f"auto, {', '.join(LIKELIHOODS)}") from None
    assert likelihood is not None
    if bool(facts.voxels) != isinstance(likelihood, PerVoxel):
        what = "y is a class for every voxel" if facts.voxels else "y is no class for every voxel"
        raise ParameterError(f"--likelihood {asked}", what, "--likelihood auto")
    if isinstance(likelihood, Normal):
        likelihood = Normal(config.noise)
        if likelihood.log_scale is not None:
            nn.init.constant_(likelihood.log_scale, math.log(facts.target[1]))
    return likelihood


def build_network(config: TrainConfig, facts: Facts, warm: bool = False) -> nn.Module:
    """The plain network with its initial weights, or with those of the file that the options name."""
    likelihood = build_likelihood(config, facts)
    outputs = len(facts.classes) or (2 if likelihood.options.get("scale") == "heteroscedastic" else 1)
    net = model(config.model, classes=outputs, channels=facts.channels, size=facts.size, **config.model_options)
    if isinstance(likelihood, Normal):
        net = Units(net, *facts.target)
    if warm and config.warm_start is not None:
        net.load_state_dict(read_weights(Path(config.warm_start), net))
    return net


def kl_request(config: TrainConfig) -> tuple[str, int | None]:
    """The method of the KL and its number of draws; an iteration of gradient accumulation takes one.

    >>> kl_request(TrainConfig(n_mc_iter=1000)), kl_request(TrainConfig(gradient_accumulation=1000))
    (('auto', 1000), ('direct', 1))
    """
    return (config.kl_method, config.n_mc_iter) if config.gradient_accumulation is None else (ACCUMULATED, 1)


def make_bayesian(net: nn.Module, config: TrainConfig) -> BayesianModule:
    """The network with random weights, centred where its weights are."""
    q = config.posterior  # a name may mean a family of weights or of factors near 1
    return bayesian(
        net,
        posterior(q, **config.posterior_options) if config.posterior_options else q,
        _prior(config),
        *kl_request(config),
        initial_std=config.initial_std,
        pretrained=config.pretrained,
        forward=config.forward,
        signs=config.signs,
        structure=config.structure,
        members=config.members,
    )


def _prior(config: TrainConfig) -> str | Prior | None:
    """The prior over weights, or over factors near 1; None for the network's own."""
    p, given = config.prior, config.prior_options
    if p == "auto":
        return None
    if config.structure != "rank1":
        return prior(p, **given) if given else p
    row = prior(p).row
    if row is not None and row.around_one is None:
        known = ", ".join(name for name, row in PRIORS.items() if row.around_one is not None)
        why = f"the factors of rank1 are near 1, where a {row.name} prior cannot be put"
        raise MethodError(f"--prior {p} with --structure rank1", why, f"--prior auto, or a family of these: {known}")
    return factor_prior(p, **given)


def lay_out(net: nn.Module, config: TrainConfig, facts: Facts) -> None:
    """Bring a network into the memory layout of its input."""
    layout = LAYOUTS.get(2 + len(facts.size)) if config.channels_last else None
    if layout is not None:
        net.to(memory_format=layout)  # type: ignore[call-overload]  # torch's own stub does not know it


def give_batch(bnn: BayesianModule, batch: Tensor) -> None:
    """Let norm layers find the statistics of every draw on these data, which are not stored.

    As `bnn.calibrate`, but without the pooled statistics, which `save` measures when they are needed.
    """
    bnn.calibration.take((batch.to(next(bnn.parameters()).device),), {}, lambda: complete(bnn))


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder, opened: what evaluation, the app and experiments work with.

    Args:
        folder: of the run.
        config: its options.
        facts: of its data.
        model: the trained network in eval mode, its likelihood and the preparation of its data.
        note: where the model is not that of a finished run, a sentence that says so; else "".
    """

    folder: Path
    config: TrainConfig
    facts: Facts
    model: TrainedModel
    note: str = ""

    @property
    def bnn(self) -> BayesianModule:
        """The network."""
        return self.model.bnn

    @property
    def likelihood(self) -> Likelihood:
        """Of y given the network's output."""
        assert self.model.likelihood is not None, "open_run builds one"
        return self.model.likelihood

    @property
    def prepare(self) -> Preparation:
        """From raw x to the network's input."""
        return self.model.prepare

    @cached_property
    def dataset(self) -> Dataset:
        """The data, read again; the training part without what was held out, which is the validation part."""
        try:
            dataset, train, validation = read_data(self.config)
        except McreparError as error:
            raise error.within(str(self.folder / "config.yaml")) from None
        if len(train) != self.facts.count:
            why = f"it was trained on {self.facts.count} examples, and there are {len(train)} now"
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
    if config.deterministic:
        why = "its network is deterministic: there is no posterior"
        raise ParameterError(f"run {str(folder)!r}", why, "the run with a posterior, beside which --twin shows it")
    if (folder / "model" / "config.json").exists():
        trained = read_trained(folder / "model", config, facts)
        note = "" if status == "finished" else f"the run is {status}, this is its best model so far"
    else:
        found = newest(folder / "checkpoints", PARTS)
        if found is None or not found.state["bayesian"]:
            why = "it has no model yet"
            raise ParameterError(f"run {str(folder)!r}", why, "Open it when the training has gone on.")
        bnn = make_bayesian(build_network(config, facts), config)
        restore(bnn, found.state["model"], found.path)
        restore_initial(
            random_tensors(bnn), found.state.get("initial") or {"random": []}
        )  # unknown in older checkpoints
        likelihood = build_likelihood(config, facts)
        likelihood.load_state_dict(found.state["likelihood"])
        trained = TrainedModel(bnn, likelihood, facts.preparation(config))
        note = f"the run is {status}, this is its checkpoint of step {found.state['step']}"
    lay_out(trained.bnn, config, facts)
    trained.bnn.eval()
    return Run(folder, config, facts, trained, note)


def read_trained(folder: Path, config: TrainConfig, facts: Facts) -> TrainedModel:
    """The model that a training wrote; one of before models held their likelihood has it in likelihood.json."""
    trained = TrainedModel.load(folder, build_network(config, facts))
    if trained.likelihood is not None:
        return trained
    likelihood, path = build_likelihood(config, facts), folder / "likelihood.json"
    try:
        state: dict[str, Any] = {name: torch.tensor(value) for name, value in read_json(path).items()}
        why = mismatch(state, likelihood.state_dict())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        wanted = "the folder as mcrepar train wrote it"
        raise ParameterError(f"{path}", f"it is missing or damaged ({why})", wanted)
    likelihood.load_state_dict(state)
    return TrainedModel(trained.bnn, likelihood, facts.preparation(config))
