"""The data of a training: what is read, what is known of it, which examples are in a step."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mcrepar.data import DATASETS, load
from mcrepar.data.batches import AUGMENTATIONS, augment, channel_statistics, hold_out
from mcrepar.data.dataset import Dataset, Split
from mcrepar.data.scans import Scans
from mcrepar.errors import ParameterError
from mcrepar.trained_model import LAYOUTS, Preparation
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.schedules import generator_of

CALIBRATION_VOXELS = 2**20  # of patches: as many numbers for every channel are enough for a mean and a variance
MOST_VOXELS = 2**22  # that go through a network of patches at once, at most; a larger batch is cut to it


@dataclass(frozen=True)
class Facts:
    """What a network must know of its data; kept in run.json, so that it can be used without them.

    Args:
        count: the number of training examples, by which the KL is divided.
        channels: of x.
        size: the spatial size of x.
        classes: their names; () for regression.
        mean: of every channel.
        std: of every channel.
        target: the mean and the standard deviation of y, for regression.
        source: what was read.
        simulated: whether the data were made by a program.
        digest: of x and y, to know them again.
        skipped: how many damaged files were left out.
        voxels: of all training images, where y is a class for every voxel; else 0.
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
    voxels: int = 0

    @property
    def data_size(self) -> int:
        """What the KL is divided by: the number of examples, or of voxels where each has a class of its own."""
        return self.voxels or self.count

    @classmethod
    def of(cls, dataset: Dataset, train: Split) -> Facts:
        """The facts of a data set of which this part is trained on."""
        mean, std = channel_statistics(train)
        y, regression = train.y, train.y.is_floating_point()
        target = (float(y.mean()), float(y.std(correction=0)) or 1.0) if regression else (0.0, 1.0)
        return cls(
            len(train), dataset.channels, dataset.size, dataset.classes, tuple(mean.tolist()), tuple(std.tolist()),
            target, dataset.source, dataset.simulated, digest(train), len(dataset.skipped),
            train.voxels if isinstance(train, Scans) else 0,
        )  # fmt: skip

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Facts:
        """From what JSON makes of `as_dict`."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def preparation(self, config: TrainConfig) -> Preparation:
        """How these data become the network's input."""
        return Preparation(self.mean, self.std, config.channels_last)


def read_data(config: TrainConfig) -> tuple[Dataset, Split, Split | None]:
    """The data set, the part to train on and the part to validate with, where there is one."""
    skip = {"skip_damaged": True} if config.skip_damaged else {}
    dataset = load(config.data, config.root, **config.data_options, **skip)
    train, validation = dataset.train, dataset.validation
    if train is None or not train.labelled:
        why = f"it has no labelled training part{', only a test part' if dataset.test.labelled else ''}"
        instead = "Give it to mcrepar evaluate only, or choose another one."
        if config.data == "arrays":
            instead = "Name the arrays to train on x_train and y_train."
        raise ParameterError(f"--data {config.data}", why, instead)
    if validation is not None and config.validation:
        why = f"{config.data} has a validation part of its own, of {len(validation)} examples"
        raise ParameterError(f"--validation {config.validation}", why, "--validation 0")
    if validation is None and config.validation:
        try:
            train, validation = hold_out(train, config.validation, config.seed)
        except ParameterError as error:
            raise error.within(f"--validation {config.validation}") from None
    if validation is None and config.patience is not None:
        why = "there are no validation data"
        raise ParameterError(f"--patience {config.patience}", why, "Add --validation 0.1, for instance.")
    return dataset, train, validation


def digest(split: Split) -> str:
    """A checksum of all x and y."""
    value = 0
    for t in (split.y, split.x):
        value = zlib.crc32(t.contiguous().numpy().data, value)
    return f"{value:08x}"


def calibration_batch(train: Split, config: TrainConfig, facts: Facts) -> Tensor:
    """Training data on which norm layers find the statistics of a draw, augmented as those were that they learned."""
    noise = generator_of(config.seed, "calibration")
    if isinstance(train, Scans):
        count = max(2, min(config.calibration, CALIBRATION_VOXELS // math.prod(train.patch)))
        index = torch.randint(len(train), (count,), generator=noise)
        return facts.preparation(config)(train.random_patches(index, len(facts.classes), noise)[0])
    order = torch.randperm(len(train), generator=noise)
    x = augment(train.x[order[: config.calibration]], _augmentation(config), generator=noise)
    return facts.preparation(config)(x)


def _augmentation(config: TrainConfig) -> str:
    """The kind that was asked for, or the usual one of the data."""
    return DATASETS[config.data].augment if config.augment == "auto" else config.augment


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned from, by one process.

    Args:
        config: the options.
        world: of processes.
        facts: of the data.
        train: the examples to learn from.
        validation: those to judge by, or None.
    """

    config: TrainConfig
    world: World
    facts: Facts
    train: Split
    validation: Split | None

    @classmethod
    def of(cls, config: TrainConfig, world: World) -> Task:
        """Read the data that the options name."""
        dataset, train, validation = read_data(config)
        if len(train) < world.size or config.batch_size % world.size:
            why = f"{world.size} processes cannot have equal shares of it"
            raise ParameterError(f"--batch-size {config.batch_size}", why, f"a multiple of {world.size}")
        if dataset.classes and config.noise != TrainConfig.noise:
            raise ParameterError(f"--noise {config.noise}", "y are classes, which have none", "Leave --noise out.")
        if not dataset.size and config.augment not in ("auto", "none"):
            why = "the data are rows of numbers, which have no sides"
            raise ParameterError(f"--augment {config.augment}", why, "--augment none")
        if isinstance(train, Scans) and AUGMENTATIONS.get(config.augment, (False,))[0]:
            why = "random patches are crops already"
            raise ParameterError(f"--augment {config.augment}", why, "--augment flip, or none")
        if isinstance(validation, Scans):
            validation = validation.tiled()
        return cls(config, world, Facts.of(dataset, train), train, validation)

    @property
    def count(self) -> int:
        """Examples of an epoch; of an image with a label map as many patches as its reader was told."""
        return len(self.train) * self.train.repeats

    @property
    def batches(self) -> int:
        """Steps of an epoch; examples that do not fill a batch come in another epoch."""
        return max(1, self.count // self.config.batch_size)

    def order(self, epoch: int) -> Tensor:
        """The examples of this process by step, (batches, share of a batch): its columns of a permutation of all."""
        count, size = self.count, self.world.size
        order = torch.randperm(count, generator=generator_of(self.config.seed, "order", epoch)) % len(self.train)
        batch = min(self.config.batch_size, count - count % size)
        return order[: self.batches * batch].view(self.batches, batch)[:, self.world.rank :: size]

    def batch(self, index: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Input and y of some training examples, augmented.

        Args:
            index: of the examples.
            step: on which, with the rank, the augmentation depends.
        """
        kind, noise = _augmentation(self.config), generator_of(self.config.seed, "augment", step, self.world.rank)
        if isinstance(self.train, Scans):
            return self._patches(*self.train.random_patches(index, len(self.facts.classes), noise), kind, noise)
        part = self.train.at(index)
        return self.plain(Split(augment(part.x, kind, generator=noise), part.y))

    def _patches(self, x: Tensor, y: Tensor, kind: str, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        """Input and weighted labels of patches, both mirrored alike: right and left are the ends of the first axis."""
        both = torch.cat([self.facts.preparation(self.config)(x), y], 1)
        turned = both.transpose(2, 3) if both.dim() == 4 else both  # of an image, the last axis is mirrored
        turned = augment(turned, kind, generator=noise)
        both = (turned.transpose(2, 3) if both.dim() == 4 else turned).to(self.world.device)
        layout = LAYOUTS[both.dim()] if self.config.channels_last else torch.contiguous_format
        return both[:, : x.shape[1]].contiguous(memory_format=layout), both[:, x.shape[1] :].contiguous()

    def plain(self, split: Split) -> tuple[Tensor, Tensor]:
        """Input and y of examples as they are; real numbers as a column, like the network's output."""
        split = split.middle() if isinstance(split, Scans) else split
        y = split.y.reshape(len(split), 1) if split.y.is_floating_point() else split.y
        return self.facts.preparation(self.config)(split.x.to(self.world.device)), y.to(self.world.device)

    def calibration(self) -> Tensor:
        """The training data on which norm layers find the statistics of a draw."""
        return calibration_batch(self.train, self.config, self.facts).to(self.world.device)
