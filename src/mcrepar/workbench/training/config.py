"""Every option of a training: one name is the field, the key in YAML and, with dashes, the flag. No torch here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from mcrepar.data import DATASETS
from mcrepar.errors import ParameterError
from mcrepar.models import MODELS
from mcrepar.user_files import LARGEST_YAML, read_text, read_yaml
from mcrepar.validation import check_option, fits

END = "...\n"  # what YAML writes after a value that stands alone
# between a run and its continuation
MAY_DIFFER = ("out", "root", "resume", "progress", "threads", "tensorboard", "twin", "seeds")
ACCUMULATED = "direct"  # how gradient accumulation estimates a KL: by draws of the weights
CHECKSUM = re.compile(r"# checksum of the options that may not change: ([0-9a-f]{16})")


def option(default: Any, meaning: str) -> Any:
    """A field with its default (dict for an empty one) and the meaning that --help shows."""
    how: dict[str, Any] = {"default_factory": dict} if default is dict else {"default": default}
    return field(**how, metadata={"help": meaning})


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Data: what is read, and what becomes of it."""

    data: str = option("digits", "a data set: " + ", ".join(DATASETS))
    root: str | None = option(None, "the folder of its files")
    data_options: Mapping[str, Any] = option(dict, "options of its reader, such as --data-options.file NAME")
    skip_damaged: bool = option(
        False, "leave damaged files of a folder of images or a table of volumes out, list and count them; else refuse"
    )
    augment: Literal["auto", "crop_flip", "crop", "flip", "none"] = option(
        "auto", "random crops and flips of training images; auto: what is usual for the data set"
    )
    validation: float = option(0.0, "the share of the training data held out, where the data have no validation part")
    calibration: int = option(512, "training examples on which BatchNorm finds the statistics of a draw; not stored")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Network: the plain one, before it becomes Bayesian."""

    model: str = option("small_conv", "a network: " + ", ".join(MODELS))
    model_options: Mapping[str, Any] = option(dict, "options of its builder, such as --model-options.width 2")
    warm_start: str | None = option(None, "weights to start from: a .safetensors file, or a state_dict by torch.save")
    deterministic_epochs: int = option(0, "how many of the first epochs train the plain network, without noise and KL")
    twin: bool = option(
        False, "train the deterministic network too, with the same data, seed and epochs: evaluate then shows both"
    )


@dataclass(frozen=True, kw_only=True)
class BayesOptions:
    """Posterior, prior and objective."""

    posterior: str = option("normal", "the family of the weights: a name of mcrepar.POSTERIORS")
    posterior_options: Mapping[str, Any] = option(dict, "its fixed parameters, as --posterior-options.concentration 2")
    prior: str = option("auto", "the family of the prior: a name of mcrepar.PRIORS; auto: as mcrepar.bayesian(net)")
    prior_options: Mapping[str, Any] = option(
        dict, "its parameters, numbers or the words learned, tied, optimal: --prior-options.scale learned"
    )
    pretrained: bool = option(False, "centre the prior on the weights that the network has when it becomes Bayesian")
    initial_std: float = option(0.05, "initial standard deviation of a weight, relative to the spread of its tensor")
    signs: Literal["", "keep", "positive"] = option("", "what a posterior on the half-line does with negative weights")
    forward: str = option("auto", "how a draw enters it: weights, local, flipout, antithetic, per_example, or auto")
    structure: Literal["weights", "rank1"] = option(
        "weights", "what is random: all weights, or rank1 factors of the inputs and outputs of every layer"
    )
    members: int = option(1, "rank1: how many posteriors of the factors there are, of which a draw uses one")
    kl_method: str = option("auto", "auto, exact, stats, repar, stream, regen, quad, taylor or direct")
    n_mc_iter: int | None = option(None, "M, the Monte Carlo iterations of the KL; null: the exact KL where it exists")
    draws: int = option(1, "draws of the weights in a step, over which the likelihood is averaged")
    last_layer_draws: int | Literal["exact"] | None = option(
        None, "draws of the last dense layer's output for each; the network ends with nn.Linear, of random weights"
    )
    gradient_accumulation: int | None = option(
        None, "the paper's baseline: M forwards and backwards in a step, each with one draw for likelihood and KL"
    )
    beta: float = option(1.0, "the weight of the KL at the end of its schedule; below 1 a tempered posterior")
    kl_schedule: Literal["graves", "blundell", "paper", "constant", "linear", "cyclic"] = option(
        "graves", "the weight of the KL by step: graves is 1; constant, linear and cyclic reach beta"
    )
    kl_warmup: float = option(0.3, "linear: the share of all steps over which the weight rises from 0 to beta")
    kl_cycles: int = option(4, "cyclic: how many times it rises")
    likelihood: str = option("auto", "a name of mcrepar.likelihoods.LIKELIHOODS; auto: as y is")
    noise: float | Literal["learned", "heteroscedastic"] = option(
        "learned", "normal: the standard deviation of y; heteroscedastic: one for each example"
    )


@dataclass(frozen=True, kw_only=True)
class OptimOptions:
    """Optimisation."""

    epochs: int = option(100, "passes over the training data")
    batch_size: int = option(32, "examples in a step, over all processes together")
    optimizer: Literal["adam", "sgd", "natural"] = option(
        "adam", "adam; sgd: momentum for means, Adam for log scales; natural: gradients in the posterior's geometry"
    )
    lr: float = option(0.005, "the learning rate, at its peak")
    lr_schedule: Literal["constant", "onecycle", "cosine", "step"] = option(
        "onecycle", "how it goes on; step: a tenth after half of the steps, a hundredth after three quarters"
    )
    scale_lr: float = option(2.0, "a factor of the learning rate of the posterior's log scales")
    weight_decay: float = option(0.0, "of parameters that are not random; the prior is that of all others")
    clip: float | None = option(
        None, "the largest norm of the gradient, larger ones are shortened; null: 1 for heteroscedastic noise, else any"
    )
    patience: int | None = option(None, "stop after so many epochs without a better validation score, keep the best")
    stop_on: Literal["predictive", "elbo"] = option(
        "predictive", "that score: the log density of validation data under averaged predictions, or the ELBO"
    )
    validation_draws: int = option(5, "draws of the weights for validation")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The run: where, how and how safely."""

    out: str = option("runs/train", "the folder of the run")
    resume: bool = option(False, "go on with the run in that folder; its own options need not be given again")
    seed: int = option(0, "of everything random")
    seeds: str | None = option(None, "several seeds, as 0,1,2: runs in the folders seed-0, seed-1, seed-2 of --out")
    checkpoint_minutes: float = option(5.0, "the time between checkpoints; 0: after every step")
    device: str = option("auto", "auto, cpu, cuda or cuda:K")
    precision: Literal["fp32", "bf16"] = option("fp32", "of the forward; parameters and KL stay fp32")
    channels_last: bool = option(True, "the memory layout of images and volumes that is faster on CPUs")
    threads: int | None = option(None, "threads of torch; none: as many as cores")
    progress: Literal["auto", "bar", "plain", "none"] = option("auto", "auto: bars on a terminal, otherwise lines")
    tensorboard: bool = option(False, "write the rows of log.csv for TensorBoard too")


GROUPS = (DataOptions, ModelOptions, BayesOptions, OptimOptions, RunOptions)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(DataOptions, ModelOptions, BayesOptions, OptimOptions, RunOptions):
    """All options of a training.

    >>> TrainConfig(epochs=3).epochs, TrainConfig().kl_schedule
    (3, 'graves')
    """

    def check(self) -> None:
        """Refuse other types, numbers out of range and options that would have no effect, before any work."""
        for name, kind in get_type_hints(TrainConfig).items():
            check_option(flag(name), getattr(self, name), kind)
            if getattr(self, name) == "" and name in ("out", "root"):
                raise ParameterError(f"{flag(name)} ''", "it is empty", "the name of a folder")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ParameterError(f"{flag(name)} {value}", f"it is less than {least}", f"{least} or more")
        for name in ("lr", "scale_lr", "initial_std", "kl_warmup", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ParameterError(f"{flag(name)} {value}", "it is not positive", "a positive number")
        for name, most in (("kl_warmup", 1.0), ("validation", 0.9)):
            value = getattr(self, name)
            if value > most:
                raise ParameterError(f"{flag(name)} {value}", f"it is a share above {most:g}", "a smaller one")
        if self.deterministic_epochs > self.epochs or (self.deterministic and self.twin):
            why = f"all {self.epochs} epochs would be deterministic"
            raise ParameterError(f"{flag('deterministic_epochs')} {self.deterministic_epochs}", why, "more --epochs")
        if self.beta != 1 and self.kl_schedule in ("graves", "blundell", "paper"):
            why = f"--kl-schedule {self.kl_schedule} has no beta"
            raise ParameterError(f"--beta {self.beta:g}", why, "--kl-schedule constant, linear or cyclic")
        if self.prior == "auto" and self.prior_options:
            instead = "Name the family too: --prior hierarchical or --prior normal."
            raise ParameterError("--prior-options", "they belong to a family, and --prior names none", instead)
        if self.members > 1 and self.structure != "rank1":
            why = "only rank-1 factors have members"
            raise ParameterError(f"--members {self.members}", why, "--structure rank1")
        if self.optimizer == "natural" and self.lr * self.scale_lr > LARGEST:
            rate = self.lr * self.scale_lr
            why = f"the natural learning rate of log scales would be {rate:g}, larger than {LARGEST:g}"
            asked = f"--optimizer natural with --lr {self.lr:g} --scale-lr {self.scale_lr:g}"
            raise ParameterError(asked, why, "--lr 0.2 --scale-lr 0.005")
        if self.gradient_accumulation is not None:
            self._check_accumulation(self.gradient_accumulation)
        if self.stop_on != TrainConfig.stop_on and self.patience is None:
            raise ParameterError(f"--stop-on {self.stop_on}", "nothing stops without --patience", "--patience 10 too")

    def _check_accumulation(self, iterations: int) -> None:
        """Refuse what would give an iteration another number of draws than one, or its KL another estimator."""
        asked = f"{flag('gradient_accumulation')} {iterations}"
        for name in ("draws", "last_layer_draws", "n_mc_iter"):
            if (value := getattr(self, name)) != getattr(TrainConfig, name):
                why = f"each of its iterations has one draw, and {flag(name)} {value} asks for others"
                raise ParameterError(asked, why, f"one of the two: {asked} averages over {iterations} draws by itself")
        if self.kl_method not in ("auto", ACCUMULATED):
            why = f"it samples the KL by {ACCUMULATED}, and --kl-method {self.kl_method} is another estimator"
            raise ParameterError(asked, why, f"--kl-method {self.kl_method} without it, or --kl-method {ACCUMULATED}")

    def runs(self) -> list[TrainConfig]:
        """The runs to train: this one, or one for every seed in a folder of its own.

        >>> [run.out for run in TrainConfig(out="runs/a", seeds="0,1").runs()]
        ['runs/a/seed-0', 'runs/a/seed-1']
        """
        if self.seeds is None:
            return [self]
        found = [int(word) for word in self.seeds.split(",") if word.strip().isdecimal()]
        if len(set(found)) != 1 + self.seeds.count(","):
            why = "the seeds are different whole numbers with commas between them"
            raise ParameterError(f"--seeds {self.seeds}", why, "--seeds 0,1,2")
        return [replace(self, seed=seed, seeds=None, out=str(Path(self.out) / f"seed-{seed}")) for seed in found]

    @property
    def deterministic(self) -> bool:
        """Whether the weights never become random."""
        return self.deterministic_epochs == self.epochs

    def differences(self, other: TrainConfig) -> list[str]:
        """The options in which two runs differ, of those that must not."""
        here, there = self.plain(), other.plain()
        return [name for name in names() if name not in MAY_DIFFER and here[name] != there[name]]

    def plain(self) -> dict[str, Any]:
        """The options as JSON has them, for a checkpoint; `TrainConfig(**plain)` are the same again."""
        values = {name: getattr(self, name) for name in names()}
        return dict(json.loads(json.dumps(values, default=str)))

    def to_yaml(self) -> str:
        """The options, by group, as --config reads them."""
        import yaml  # type: ignore[import-untyped]

        lines = []
        for group in GROUPS:
            lines.append(f"# {group.__doc__}")
            for name in (f.name for f in fields(group) if f.name != "resume"):
                value = yaml.safe_dump(getattr(self, name), default_flow_style=True, width=1000)
                lines.append(f"{name}: {value.removesuffix(END).strip()}")
            lines.append("")
        text = "\n".join(lines)
        return f"# checksum of the options that may not change: {checksum(text)}\n{text}"


LEAST: Mapping[str, float] = {
    "validation": 0, "calibration": 2, "deterministic_epochs": 0, "n_mc_iter": 1, "draws": 1, "beta": 0,
    "gradient_accumulation": 1, "members": 1,
    "kl_cycles": 1, "epochs": 1, "batch_size": 1, "weight_decay": 0, "patience": 1, "validation_draws": 1, "seed": 0,
    "checkpoint_minutes": 0, "threads": 1,
}  # fmt: skip


def names() -> list[str]:
    """Of all options."""
    return [f.name for group in GROUPS for f in fields(group)]


LARGEST = 0.005  # natural learning rate of log scales
SPELLINGS = {"start_std": "initial_std"}  # of options that have another name now, and are read by both


def spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their present names."""
    return {SPELLINGS.get(name, name): value for name, value in values.items()}


def flag(name: str) -> str:
    """kl_method -> --kl-method."""
    return "--" + name.replace("_", "-")


def checksum(text: str) -> str:
    r"""Of the lines of config.yaml that a resumed run must have unchanged.

    >>> checksum("# a comment\nlr: 0.1\nout: runs/a") == checksum("lr: 0.1\nout: runs/b") != checksum("lr: 0.2")
    True
    """
    lines = [line.strip() for line in text.splitlines()]
    fixed = [line for line in lines if line and line[0] != "#" and line.partition(":")[0] not in MAY_DIFFER]
    return hashlib.sha256("\n".join(fixed).encode()).hexdigest()[:16]


def read_config(path: Path) -> TrainConfig:
    """The options that a run folder keeps, or a refusal: also of those that were changed after they were written."""
    kinds = get_type_hints(TrainConfig)
    try:
        values, written = read_options(path), CHECKSUM.search(text := read_text(path, LARGEST_YAML))
        if written is not None and written[1] != checksum(text):
            raise ParameterError(f"{path}", "it was cut short or changed after it was written", "")
    except ParameterError as error:
        restored = "if it is removed, mcrepar train --resume restores it from a checkpoint"
        raise ParameterError(error.asked, error.why, f"the file as it was written: {restored}") from None
    config = TrainConfig(**{name: _number(value, kinds[name]) for name, value in values.items()})
    try:
        config.check()
    except ParameterError as error:
        raise error.within(str(path)) from None
    return config


def _number(value: Any, kind: Any) -> Any:
    """What YAML takes for a text, 1e-3 for one, is a number where a number is wanted."""
    if not isinstance(value, str) or fits(value, kind) or not fits(0.0, kind):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def read_options(path: Path) -> dict[str, Any]:
    """What a YAML file holds, or a refusal where that is not options by name."""
    instead = "options in YAML, such as the config.yaml that mcrepar train writes"
    try:
        values = read_yaml(path)
    except (OSError, ParameterError) as error:
        why = error.why if isinstance(error, ParameterError) else error.strerror
        raise ParameterError(f"{path}", f"it cannot be read ({why})", instead) from None
    if not isinstance(values, dict):
        raise ParameterError(f"{path}", "it holds no options", instead)
    values = spelled(values)
    unknown = [key for key in values if key not in names()]
    if unknown:
        raise ParameterError(f"{path}", f"there is no option {unknown[0]!r}", instead)
    return values
