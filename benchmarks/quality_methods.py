"""The methods that are compared: what each makes of a network, how it takes a step, what it predicts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from quality_tasks import Parts, Task
from torch import Tensor, nn

WARM_UP = 0.05  # of the steps


def cosine(progress: float) -> float:
    """The factor of a learning rate: a linear warm-up, then half a cosine down to 0."""
    if progress < WARM_UP:
        return progress / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))


@dataclass(frozen=True, eq=False)
class Answer:
    """What a method says of examples.

    Args:
        probs: mean probabilities, (examples, classes).
        expected_entropy: mean entropy of the draws, (examples,).
    """

    probs: Tensor
    expected_entropy: Tensor


class Learner(ABC):
    """A method at work on one task.

    Args:
        model: what is trained and stored.
        optimizers: each with the learning rates of full size.
    """

    def __init__(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        self.model, self.optimizers = model, optimizers
        self.rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]

    @abstractmethod
    def loss(self, x: Tensor, y: Tensor, progress: float) -> Tensor:
        """The objective of a batch."""

    @abstractmethod
    def predict(self, x: Tensor, draws: int) -> Answer:
        """Probabilities of prepared inputs."""

    def step(self, x: Tensor, y: Tensor, progress: float) -> float:
        """One step of training; `progress` is the share of the budget that is spent."""
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * cosine(progress)
            optimizer.zero_grad()
        loss = self.loss(x, y, progress)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        return float(loss.detach())

    def calibrate(self, parts: Parts) -> None:
        """What is done once, after training and before predictions; nothing by default."""
        return

    def facts(self) -> dict[str, float]:
        """Numbers of the trained model that belong into its record."""
        return {}


def sgd(parameters: Iterable[Any], task: Task, rate: float = 1.0) -> torch.optim.Optimizer:
    """The deterministic network's optimizer."""
    return torch.optim.SGD(
        parameters, task.learning_rate * rate, momentum=0.9, nesterov=True, weight_decay=task.weight_decay
    )


class Deterministic(Learner):
    """The plain network."""

    def __init__(self, task: Task, data_size: int) -> None:
        net = task.network()
        super().__init__(net, sgd(net.parameters(), task))

    def loss(self, x: Tensor, y: Tensor, progress: float) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Answer:
        self.model.eval()
        probs = torch.cat([self.model(part).softmax(1) for part in x.split(500)])
        return Answer(probs, torch.special.entr(probs).sum(1))


class Dropout(Deterministic):
    """MC dropout: the input of every layer but the first loses a share of its numbers, in prediction too."""

    def __init__(self, task: Task, data_size: int, rate: float = 0.1) -> None:
        super().__init__(task, data_size)
        layers = [m for m in self.model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        for layer in layers[1:]:
            layer.register_forward_pre_hook(lambda _, args: (F.dropout(args[0], rate), *args[1:]))

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Answer:
        answers = [super(Dropout, self).predict(x, 1) for _ in range(draws)]
        return Answer(
            torch.stack([a.probs for a in answers]).mean(0), torch.stack([a.expected_entropy for a in answers]).mean(0)
        )


METHODS: Mapping[str, Callable[[Task, int], Learner]] = {
    "deterministic": Deterministic,
    "dropout": Dropout,
}
