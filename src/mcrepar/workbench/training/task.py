"""The data of a training: which of them are in a step, and what the network sees of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mcrepar.data.batches import augment
from mcrepar.data.dataset import Split
from mcrepar.errors import ParameterError
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.seeds import generator_of
from mcrepar.workbench.training.setup import Facts, as_input, as_target, augmentation, calibration_batch, read_data


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned from, by one process.

    Args:
        config: the options.
        world: of processes.
        facts: of the data.
        train: the data to learn from.
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
            raise ParameterError(f"--noise {config.noise}", "y are classes, which have none", "it for a regression")
        if not dataset.size and config.augment not in ("auto", "none"):
            why = "the data are rows of numbers, which have no sides"
            raise ParameterError(f"--augment {config.augment}", why, "--augment none")
        return cls(config, world, Facts.of(dataset, train), train, validation)

    @property
    def batches(self) -> int:
        """Steps of an epoch; what does not fill a batch waits for another epoch's order."""
        return max(1, len(self.train) // self.config.batch_size)

    def order(self, epoch: int) -> Tensor:
        """The data of this process by step, (batches, share of a batch): its columns of a permutation of all."""
        count, size = len(self.train), self.world.size
        order = torch.randperm(count, generator=generator_of(self.config.seed, "order", epoch))
        batch = min(self.config.batch_size, count - count % size)
        return order[: self.batches * batch].view(self.batches, batch)[:, self.world.rank :: size]

    def batch(self, index: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Input and y of some training data, augmented.

        Args:
            index: of the data.
            step: on which, with the rank, the augmentation depends.
        """
        noise = generator_of(self.config.seed, "augment", step, self.world.rank)
        part = self.train.at(index)
        return self.plain(Split(augment(part.x, augmentation(self.config), generator=noise), part.y))

    def plain(self, split: Split) -> tuple[Tensor, Tensor]:
        """Input and y of data as they are."""
        device = self.world.device
        return as_input(split.x, self.config, self.facts, device), as_target(split.y).to(device)

    def calibration(self) -> Tensor:
        """The training data on which norm layers find the statistics of a draw."""
        return calibration_batch(self.train, self.config, self.facts).to(self.world.device)
