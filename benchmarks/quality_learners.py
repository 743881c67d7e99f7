"""What learns on a task: what it makes of a network, how it takes a step, what it predicts."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from quality_tasks import Parts, Task
from torch import Tensor, nn

import mcrepar

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

    @classmethod
    def of(cls, probs: Tensor) -> Answer:
        """The answer of one network."""
        return cls(probs, torch.special.entr(probs).sum(1))


def average(answers: Sequence[Answer]) -> Answer:
    """The answer of several networks together."""
    return Answer(
        *(torch.stack(part).mean(0) for part in zip(*((a.probs, a.expected_entropy) for a in answers), strict=True))
    )


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

    def _set_rates(self, progress: float) -> None:
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * cosine(progress)

    def step(self, x: Tensor, y: Tensor, progress: float) -> float:
        """One step of training; `progress` is the share of the budget that is spent."""
        self._set_rates(progress)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.loss(x, y, progress)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        return float(loss.detach())

    def restore(self, work: Path, task: str, seed: int) -> bool:
        """Take the networks that deterministic runs left instead of training one; False where it must be trained."""
        return False

    def calibrate(self, parts: Parts) -> None:
        """What is done once, after training and before predictions; nothing by default."""
        return

    def facts(self) -> dict[str, float]:
        """Numbers of the trained model that belong into its record."""
        return {}


def sgd(
    parameters: Iterable[Any], task: Task, rate: float = 1.0, weight_decay: float | None = None
) -> torch.optim.Optimizer:
    """The deterministic network's optimizer; without a weight decay it is the task's."""
    decay = task.weight_decay if weight_decay is None else weight_decay
    return torch.optim.SGD(parameters, task.learning_rate * rate, momentum=0.9, nesterov=True, weight_decay=decay)


def probabilities(net: nn.Module, x: Tensor) -> Tensor:
    """Of the classes, in parts of bounded memory."""
    return torch.cat([net(part).softmax(1) for part in x.split(500)])


class Deterministic(Learner):
    """The plain network.

    Args:
        task: the work.
        data_size: the number of training examples.
        rate: multiplies the task's learning rate of SGD.
        weight_decay: in the place of the task's.
        adam: the learning rate of Adam, without weight decay, in the place of SGD; 0 for SGD.
    """

    def __init__(
        self, task: Task, data_size: int, rate: float = 1.0, weight_decay: float | None = None, adam: float = 0.0
    ) -> None:
        net = task.network()
        optimizer = (
            torch.optim.Adam(net.parameters(), adam) if adam else sgd(net.parameters(), task, rate, weight_decay)
        )
        super().__init__(net, optimizer)

    def loss(self, x: Tensor, y: Tensor, progress: float) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Answer:
        self.model.eval()
        return Answer.of(probabilities(self.model, x))


class Dropout(Deterministic):
    """MC dropout: the input of every layer but the first loses a share of its numbers, in prediction too."""

    def __init__(self, task: Task, data_size: int, rate: float = 0.1) -> None:
        super().__init__(task, data_size)
        layers = [m for m in self.model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        for layer in layers[1:]:
            layer.register_forward_pre_hook(lambda _, args: (F.dropout(args[0], rate), *args[1:]))

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Answer:
        return average([super(Dropout, self).predict(x, 1) for _ in range(draws)])


class Ensemble(Deterministic):
    """A deep ensemble: the deterministic networks of five seeds; three sets of five would need 15 trainings."""

    def __init__(self, task: Task, data_size: int, members: int = 5) -> None:
        Learner.__init__(self, nn.ModuleList(task.network() for _ in range(members)))

    def restore(self, work: Path, task: str, seed: int) -> bool:
        for k, net in enumerate(self.model.children()):
            net.load_state_dict(torch.load(work / f"{task}-deterministic-{k}.pt", weights_only=True)["model"])
        return True

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Answer:
        self.model.eval()
        return average([Answer.of(probabilities(net, x)) for net in self.model.children()])


class Restored(Deterministic):
    """The deterministic network of the same seed, with something done after its training."""

    def restore(self, work: Path, task: str, seed: int) -> bool:
        self.model.load_state_dict(torch.load(work / f"{task}-deterministic-{seed}.pt", weights_only=True)["model"])
        return True


class TemperatureScaling(Restored):
    """Logits divided by the temperature with the best validation likelihood: what calibration alone can gain."""

    temperature = 1.0

    @torch.no_grad()
    def calibrate(self, parts: Parts) -> None:
        logits = self.predict(parts.prepare(parts.validation.x), 1).probs.log()
        found = {t: float(F.cross_entropy(logits / t, parts.validation.y)) for t in torch.logspace(-1, 1, 401).tolist()}
        self.temperature = min(found, key=found.__getitem__)

    def predict(self, x: Tensor, draws: int) -> Answer:
        return Answer.of((super().predict(x, draws).probs.log() / self.temperature).softmax(1))

    def facts(self) -> dict[str, float]:
        return {"temperature": self.temperature}


class LastLayerLaplace(Restored):
    """The deterministic network, whose last layer has a Gaussian posterior around it: the Laplace approximation.

    The Hessian of the last layer's weights is the generalised Gauss-Newton matrix over the training part, plus the
    precision of the prior; that precision is the one with the best validation likelihood.
    """

    @torch.no_grad()
    def calibrate(self, parts: Parts) -> None:
        self.model.eval()
        matrix = torch.zeros(0, 0, dtype=torch.float64)
        for index in torch.arange(len(parts.train)).split(500):
            features, probs = self._features(parts.prepare(parts.train.x[index]))
            size = features.shape[1] * probs.shape[1]
            matrix = matrix if len(matrix) else torch.zeros(size, size, dtype=torch.float64)
            curvature = torch.diag_embed(probs) - probs.unsqueeze(2) * probs.unsqueeze(1)
            matrix += torch.einsum("ncd,ni,nj->cidj", curvature, features, features).reshape(size, size)
        self.values, self.vectors = torch.linalg.eigh(matrix)
        x, y = parts.prepare(parts.validation.x), parts.validation.y
        found = {}
        for precision in torch.logspace(-1, 4, 11).tolist():
            self.precision = precision
            found[precision] = float(F.nll_loss(self.predict(x, 20).probs.log(), y))
        self.precision = min(found, key=found.__getitem__)

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Answer:
        *_, last = (m for m in self.model.modules() if isinstance(m, nn.Linear))
        mean = torch.cat([last.weight, last.bias.unsqueeze(1)], 1).double()
        noise = torch.randn(draws, mean.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        weights = mean + ((noise / (self.values + self.precision).sqrt()) @ self.vectors.T).view(draws, *mean.shape)
        probs, entropies = [], []
        for part in x.split(500):
            p = torch.einsum("ni,kci->knc", self._features(part)[0], weights).softmax(2)
            probs.append(p.mean(0).float())
            entropies.append(torch.special.entr(p).sum(2).mean(0).float())
        return Answer(torch.cat(probs), torch.cat(entropies))

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of the last layer with a 1 for its bias, and the probabilities."""
        *_, last = (m for m in self.model.modules() if isinstance(m, nn.Linear))
        seen: list[Tensor] = []
        with last.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
            probs = self.model(x).softmax(1)
        return F.pad(seen[0], (0, 1), value=1.0).double(), probs.double()

    def facts(self) -> dict[str, float]:
        return {"prior_precision": self.precision}


class Ivon(Deterministic):
    """The deterministic network under the optimizer IVON (package ivon-opt), with settings that were not tuned.

    They are twice the task's learning rate, the task's weight decay and hess_init 0.1. The package's README has a
    learning rate of 0.1; the package's defaults are a weight decay of 1e-4 and hess_init 1.0.
    """

    def __init__(self, task: Task, data_size: int) -> None:
        ivon = importlib.import_module("ivon")  # of the peers' environment
        net = task.network()
        rate, decay = 2 * task.learning_rate, task.weight_decay
        Learner.__init__(self, net, ivon.IVON(net.parameters(), rate, ess=data_size, weight_decay=decay, hess_init=0.1))

    def step(self, x: Tensor, y: Tensor, progress: float) -> float:
        (optimizer,) = self.optimizers
        self._set_rates(progress)
        with optimizer.sampled_params(train=True):  # type: ignore[attr-defined]
            optimizer.zero_grad()
            loss = self.loss(x, y, progress)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Answer:
        answers = []
        for _ in range(draws):
            with self.optimizers[0].sampled_params():  # type: ignore[attr-defined]
                answers.append(super().predict(x, 1))
        return average(answers)


class BayesianTorch(Dropout):
    """The package bayesian-torch as its README uses it: Adam, a Normal(0, 1) prior, KL / batch size."""

    def __init__(self, task: Task, data_size: int) -> None:
        self.peer = importlib.import_module("bayesian_torch.models.dnn_to_bnn")  # of the peers' environment
        net, start = task.network(), {"posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
        options = {"prior_mu": 0.0, "prior_sigma": 1.0, "type": "Reparameterization", "moped_enable": False}
        self.peer.dnn_to_bnn(net, {**options, **start, "moped_delta": 0.5})
        Learner.__init__(self, net, torch.optim.Adam(net.parameters(), 1e-3))

    def loss(self, x: Tensor, y: Tensor, progress: float) -> Tensor:
        return super().loss(x, y, progress) + self.peer.get_kl_loss(self.model) / len(x)


class Bayesian(Learner):
    """A network made by `mcrepar.bayesian`, trained with the whole KL (beta = 1).

    Args:
        task: the work.
        data_size: the number of training examples.
        scale_rate: the learning rate for the scales: Adam's, or the natural one.
        adam: Adam's learning rate for all other parameters; 0 for the deterministic network's SGD.
        sgd_rate: the learning rate of that SGD, relative to the deterministic network's.
        natural: the learning rate of `NaturalGradient` for means and other parameters, in the place of both.
        options: of `bayesian`.
    """

    def __init__(
        self,
        task: Task,
        data_size: int,
        scale_rate: float = 5e-3,
        adam: float = 0.0,
        natural: float = 0.0,
        sgd_rate: float = 1.0,
        **options: Any,
    ) -> None:
        bnn = mcrepar.bayesian(task.network(), **options)
        self.data_size, self.likelihood = data_size, mcrepar.likelihoods.Categorical()
        if natural:
            decay = task.weight_decay
            optimizer = mcrepar.optim.NaturalGradient(
                bnn, natural, data_size=data_size, scale_lr=scale_rate, weight_decay=decay
            )
            super().__init__(bnn, optimizer)
            return
        role = mcrepar.optim.roles(bnn)
        scales = [p for p in role if role[p] == "scale"]
        plain = {"params": [p for p in role if role[p] == "plain"]}
        random = {"params": [p for p in role if role[p] in ("mean", "prior")], "weight_decay": 0.0}  # by their prior
        groups = [group for group in (plain, random) if group["params"]]
        means = torch.optim.Adam(groups, adam) if adam else sgd(groups, task, sgd_rate)
        super().__init__(bnn, means, torch.optim.Adam(scales, scale_rate))

    def loss(self, x: Tensor, y: Tensor, progress: float) -> Tensor:
        return mcrepar.elbo(self.model, self.likelihood, x, y, data_size=self.data_size).loss

    def calibrate(self, parts: Parts, examples: int = 1000) -> None:
        generator = torch.Generator().manual_seed(0)
        x, _ = parts.batch(torch.arange(examples), generator)  # augmented, as norm layers were trained
        self.model.calibrate(x)  # type: ignore[operator]

    def predict(self, x: Tensor, draws: int) -> Answer:
        self.model.eval()
        found = mcrepar.predict(self.model, x, draws=draws, batch_size=500, likelihood=self.likelihood)
        return Answer(found.probs, found.expected_entropy)

    def facts(self) -> dict[str, float]:
        return {"kl_per_example": float(self.model.kl().detach()) / self.data_size}  # type: ignore[operator]
