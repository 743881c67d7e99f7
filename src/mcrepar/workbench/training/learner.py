"""What is being trained: the network, its likelihood and its optimizer."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.errors import CollapseWarning, ParameterError
from mcrepar.likelihoods import Likelihood
from mcrepar.nn.calibration import STATISTICS
from mcrepar.nn.description import describe_initial, restore_initial
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.prediction_passes import evaluating
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.nn.saving import write_model
from mcrepar.objective import Elbo, elbo
from mcrepar.workbench.training import checkpoint
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.optimizers import OPTIMIZERS, Optimizers, set_rates
from mcrepar.workbench.training.schedules import beta_schedule, rate, seed_of
from mcrepar.workbench.training.setup import (
    build_likelihood,
    build_network,
    give_batch,
    lay_out,
    make_bayesian,
    read_trained,
)
from mcrepar.workbench.training.task import Task
from mcrepar.workbench.training.twin import write_twin


class Learner:
    """A network in training: plain for the deterministic epochs, Bayesian afterwards.

    Args:
        config: the options.
        task: its data.
        world: of processes.
    """

    net: nn.Module
    model: nn.Module  # the network, or what averages its gradients over processes
    optimizers: Optimizers
    output: Tensor  # of the last forward
    statistics: list[Tensor]  # of norm layers
    before: list[Tensor]  # the same, before the last forward

    def __init__(self, config: TrainConfig, task: Task, world: World) -> None:
        self.config, self.task, self.world = config, task, world
        self.steps = config.epochs * task.batches
        self.first_random = config.deterministic_epochs * task.batches  # the step at which the weights become random
        self.schedule = beta_schedule(config, self.steps - self.first_random, task.batches)
        self.likelihood = build_likelihood(config, task.facts).to(world.device)
        torch.manual_seed(seed_of(config.seed, "start"))
        self.net = build_network(config, task.facts, warm=True).to(world.device)
        self._try()
        if config.deterministic_epochs:
            if not config.deterministic:
                make_bayesian(build_network(config, task.facts), config)  # refuses now what it would refuse later
            self._adopt(self.net)
        else:
            self.become_bayesian()
            self._try()

    def _try(self) -> None:
        """Refuse a network or an objective that the data or the likelihood do not fit, before anything is written."""
        x, y = self.task.plain(self.task.train.at(torch.arange(min(2, len(self.task.train)))))
        with evaluating(self.net), torch.no_grad():
            if self.bayesian is None:
                self.likelihood.check(self.net(x), y)
            else:
                self.objective(x, y, self.first_random)

    @property
    def bayesian(self) -> BayesianModule | None:
        """The network, once its weights are random."""
        return self.net if isinstance(self.net, BayesianModule) else None

    def become_bayesian(self) -> None:
        """Make the weights random, around what they are; the plain network's optimizer has then done its work."""
        self.net._forward_hooks.clear()
        self.__dict__.pop("model", None)
        self.__dict__.pop("optimizers", None)
        bnn = make_bayesian(self.net, self.config)
        self._adopt(bnn)
        if bnn.calibration.layers:
            give_batch(bnn, self.task.calibration())

    def _adopt(self, net: nn.Module) -> None:
        """Train this network from now on."""
        self.net = net.to(self.world.device)
        lay_out(net, self.config, self.task.facts)
        self.model = self.world.wrap(self.net)
        self.net.register_forward_hook(self._see)
        self.statistics = [t for name, t in net.named_buffers() if name.rpartition(".")[2] in STATISTICS]
        build = OPTIMIZERS[self.config.optimizer]
        self.optimizers = build(self.net, self.likelihood, self.config, self.task.facts.data_size)

    def _see(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        self.output = output.detach()  # for the score, which the objective does not need

    # ---- a step

    def beta(self, step: int) -> float:
        """The weight of the KL at a step of the run, counted from 0."""
        return self.schedule(step - self.first_random) if step >= self.first_random else 0.0

    def remember(self) -> None:
        """Keep the norm statistics, which a forward changes even if no step follows."""
        self.before = [t.clone() for t in self.statistics]

    def undo(self) -> None:
        """Bring them back."""
        for t, kept in zip(self.statistics, self.before, strict=True):
            t.copy_(kept)

    def objective(self, x: Tensor, y: Tensor, step: int) -> Elbo:
        """The loss of a batch, with fresh weights where they are random."""
        config = self.config
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            if self.bayesian is not None:
                return elbo(
                    self.model, self.likelihood, x, y, self.task.facts.data_size, beta=self.beta(step),
                    draws=config.draws, last_layer_draws=config.last_layer_draws,
                )  # fmt: skip
            output = self.model(x)
            self.likelihood.check(output, y)
            nll = -self.likelihood.log_prob(output.float(), y).mean()
        if not bool(nll.isfinite()):
            raise ParameterError("the deterministic network", f"its nll is {nll.item()}", "a smaller --lr")
        return Elbo(nll, nll, torch.zeros(()))

    @property
    def iterations(self) -> int:
        """Forwards and backwards in a step: one, or those of gradient accumulation where the weights are random."""
        return 1 if self.bayesian is None else self.config.gradient_accumulation or 1

    def backward(self, e: Elbo) -> Elbo:
        """Add the gradients of an iteration to those of the step; its numbers, without the graph."""
        (e.loss / self.iterations).backward()  # type: ignore[no-untyped-call]
        return Elbo(e.loss.detach(), e.nll.detach(), e.kl.detach())

    def descend(self, step: int) -> str | None:
        """One step of the optimizers; or nothing but the name of the parameter whose gradient is not finite."""
        self.world.average(self.likelihood.parameters())
        named = [*self.net.named_parameters(), *self.likelihood.named_parameters()]
        gradients = {name: p.grad for name, p in named if p.grad is not None}
        norm = torch.nn.utils.get_total_norm(gradients.values())
        if not bool(norm.isfinite()):
            return next((name for name, grad in gradients.items() if not bool(grad.isfinite().all())), "all parameters")
        steep = self.likelihood.options.get("scale") == "heteroscedastic"  # gradients grow with 1 / variance of y
        if most := self.config.clip or (1.0 if steep else None):
            torch.nn.utils.clip_grads_with_norm_([p for _, p in named], most, norm)
        set_rates(self.optimizers, *self.rates(step))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return None

    def rates(self, step: int) -> tuple[float, float]:
        """The learning rate of a step of the run, of which every group has its share, and the momentum of Adam."""
        start, end = (0, self.first_random) if self.bayesian is None else (self.first_random, self.steps)
        factor, beta1 = rate(self.config.lr_schedule, step - start, end - start)
        return self.config.lr * factor, beta1

    def advice(self) -> tuple[str, ...]:
        """What is to be said of the posterior when training is over: that it was not trained, or has collapsed."""
        if self.bayesian is None:
            return ()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CollapseWarning)  # it is among the sentences
            return self.bayesian.diagnose().advice

    # ---- what is kept

    def share_statistics(self) -> None:
        """Give every process the norm statistics of the first."""
        self.world.share(self.statistics)

    def state(self) -> dict[str, Any]:
        """All tensors, for a checkpoint."""
        return {
            "bayesian": self.bayesian is not None,
            "model": checkpoint.tensors_of(self.net),
            "likelihood": self.likelihood.state_dict(),
            "optimizer": [optimizer.state_dict() for optimizer in self.optimizers],
            "initial": None if self.bayesian is None else describe_initial(random_tensors(self.bayesian)),
        }

    def restore(self, state: Mapping[str, Any], path: Path) -> None:
        """Take over the tensors of a checkpoint.

        Args:
            state: what `state` returned.
            path: of the checkpoint, for messages.
        """
        if state["bayesian"] and self.bayesian is None:
            self.become_bayesian()
        checkpoint.restore(self.net, state["model"], path)
        if self.bayesian is not None and state.get("initial") is not None:  # not in older checkpoints
            restore_initial(random_tensors(self.bayesian), state["initial"])
        self.likelihood.load_state_dict(state["likelihood"])
        saved = state["optimizer"]
        for optimizer, one in zip(self.optimizers, saved if isinstance(saved, list) else [saved], strict=True):
            try:
                optimizer.load_state_dict(one)
            except ValueError as error:
                why = f"the optimizer of {path} has other parameter groups ({error}), as those of older versions have"
                raise ParameterError("--resume", why, "a new folder for a new run") from None

    def copy(self) -> dict[str, Any]:
        """The numbers of the network and its likelihood, as they are now."""
        state = {"model": checkpoint.tensors_of(self.net), "likelihood": self.likelihood.state_dict()}
        return {part: {name: t.detach().clone() for name, t in tensors.items()} for part, tensors in state.items()}

    def _load(self, numbers: Mapping[str, Any]) -> None:
        self.net.load_state_dict(numbers["model"], strict=False)
        self.likelihood.load_state_dict(numbers["likelihood"])

    def save(self, folder: Path, numbers: Mapping[str, Any] | None = None) -> None:
        """Write the model to use, as `TrainedModel.save` does, but for norm statistics.

        On every better epoch they would take as long as another epoch: `pool_statistics` measures them at the end.

        Args:
            folder: of the model; an error leaves the model that it holds.
            numbers: what `copy` returned, to write a model of the past.
        """
        if numbers is None:
            self._save(self.net, self.likelihood, folder)
            return
        present = self.copy()
        self._load(numbers)
        try:
            self._save(self.net, self.likelihood, folder)
        finally:
            self._load(present)

    def _save(self, net: nn.Module, likelihood: Likelihood, folder: Path, pool: bool = False) -> None:
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(folder))
        if not isinstance(net, BayesianModule):
            write_twin(net, likelihood, folder)
            return
        write_model(net, folder, likelihood, asdict(self.task.facts.preparation(self.config)), pool=pool)

    def pool_statistics(self, folder: Path) -> None:
        """Add the norm statistics to the model that was written."""
        if self.bayesian is not None and self.bayesian.calibration.layers:
            best = read_trained(folder, self.config, self.task.facts).to(self.world.device)
            assert best.likelihood is not None
            lay_out(best.bnn, self.config, self.task.facts)
            give_batch(best.bnn, self.task.calibration())
            self._save(best.bnn, best.likelihood, folder, pool=True)
