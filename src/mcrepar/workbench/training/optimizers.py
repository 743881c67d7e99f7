"""The optimizers of a training, by name; a group's learning rate is the training's times the factor of the group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from mcrepar.likelihoods import Likelihood
from mcrepar.nn.module import BayesianModule
from mcrepar.optim import NaturalGradient, roles
from mcrepar.workbench.training.config import TrainConfig

Groups = list[dict[str, Any]]
Optimizers = Sequence[torch.optim.Optimizer]
MOMENTUM = 0.9


def _some(*groups: dict[str, Any]) -> Groups:
    return [group for group in groups if group["params"]]


def _groups(net: nn.Module, likelihood: Likelihood, config: TrainConfig) -> tuple[Groups, Groups]:
    """Parameter groups of means and plain parameters, and of log scales; the prior is the weight decay of means."""
    random = any(isinstance(module, BayesianModule) for module in net.modules())
    role = roles(net) if random else dict.fromkeys(net.parameters(), "plain")
    scales = [p for p in role if role[p] == "scale"]
    undecayed = ("mean", "prior") if config.weight_decay else ("mean", "prior", "plain")
    decayed = [p for p in role if role[p] not in (*undecayed, "scale")]
    means = [
        {"params": [*(p for p in role if role[p] in undecayed), *likelihood.parameters()], "factor": 1.0},
        {"params": decayed, "factor": 1.0, "weight_decay": config.weight_decay},
    ]
    return _some(*means), _some({"params": scales, "factor": config.scale_lr})


def _adam(net: nn.Module, likelihood: Likelihood, config: TrainConfig, data_size: int) -> Optimizers:
    means, scales = _groups(net, likelihood, config)
    return [torch.optim.Adam([*means, *scales], lr=config.lr, fused=True)]


def _sgd(net: nn.Module, likelihood: Likelihood, config: TrainConfig, data_size: int) -> Optimizers:
    """SGD for means, and Adam for log scales, whose gradients are too small for SGD."""
    means, scales = _groups(net, likelihood, config)
    first = torch.optim.SGD(means, lr=config.lr, momentum=MOMENTUM, nesterov=True)
    return [first, torch.optim.Adam(scales, lr=config.lr, fused=True)] if scales else [first]


def _natural(net: nn.Module, likelihood: Likelihood, config: TrainConfig, data_size: int) -> Optimizers:
    """Natural gradients; for a network without noise SGD with the same step, lr times the average of gradients."""
    if not isinstance(net, BayesianModule):
        means, _ = _groups(net, likelihood, config)
        for group in means:
            group["factor"] = 1 - MOMENTUM  # SGD adds gradients up where NaturalGradient averages them
        return [torch.optim.SGD(means, lr=config.lr, momentum=MOMENTUM, nesterov=True)]
    rate = config.scale_lr * config.lr
    first = NaturalGradient(net, config.lr, data_size=data_size, scale_lr=rate, weight_decay=config.weight_decay)
    for group in first.param_groups:
        group["factor"] = config.scale_lr if group["kind"] == "scale" else 1.0
    own = _some({"params": list(likelihood.parameters()), "factor": config.scale_lr})
    return [first, torch.optim.Adam(own, lr=config.lr)] if own else [first]


OPTIMIZERS: Mapping[str, Callable[[nn.Module, Likelihood, TrainConfig, int], Optimizers]] = {
    "adam": _adam,
    "sgd": _sgd,
    "natural": _natural,
}


def set_rates(optimizers: Iterable[torch.optim.Optimizer], lr: float, momentum: float) -> None:
    """Give every group its share of a learning rate, and Adam and SGD this momentum."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"]
            if "betas" in group:
                group["betas"] = (momentum, group["betas"][1])
            elif isinstance(optimizer, torch.optim.SGD):
                group["momentum"] = momentum
