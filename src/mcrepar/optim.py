"""Optimizers for posteriors: natural gradients of location-scale families, and parameter groups for Adam.

For W = loc + scale * xi the Fisher information is proportional to 1 / scale^2 in loc and constant in log scale, and
diagonal for symmetric noise. A natural step divides the gradient by it:

    log scale <- log scale - scale_lr / c * data_size * dloss/dlog scale
    loc       <- loc - lr * (scale / initial scale)^2 * average of dloss/dloc

For the Normal family this is IVON's update up to second order in the step of the scale; other families have their c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.errors import MethodError, ParameterError
from mcrepar.nn.module import random_parts
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.validation import real_number, whole_number

SCALE_RATE = 10.0  # the learning rate of a log scale over that of a mean, for Adam


def _posteriors(net: nn.Module) -> list[RandomTensor]:
    """Every tensor of random numbers in a network, weights or factors."""
    parts = random_parts(net, "an optimizer of")
    return [tensor for part in parts for random in random_tensors(part).values() for tensor in random.tensors]


def roles(net: nn.Module) -> dict[nn.Parameter, str]:
    """What every parameter of a network is: "scale" or "mean" of a posterior, "prior" where a prior learns, or "plain".

    >>> from mcrepar import bayesian
    >>> list(roles(bayesian(nn.Linear(2, 1, bias=False))).values())
    ['mean', 'scale']
    """
    found = dict.fromkeys(net.parameters(), "plain")
    for tensor in _posteriors(net):
        found |= dict.fromkeys(tensor.learned.parameters(), "prior")
        found[tensor.log_scale] = "scale"
        if tensor.loc is not None:
            found[tensor.loc] = "mean"
    return found


def groups(net: nn.Module, lr: float, scale_lr: float | None = None) -> list[dict[str, Any]]:
    """Parameter groups for any torch optimizer, with a learning rate of their own for the scales of posteriors.

    Adam moves a parameter by at most its learning rate in a step. A log scale has a long way to go, and would hardly
    leave its initial value within the steps that suffice for the means. The optimizer's `weight_decay` applies to
    parameters that are not random only: the others have their prior.

    Args:
        net: a Bayesian neural network, or a network with Bayesian parts.
        lr: of means and of parameters that are not random.
        scale_lr: of log scales; None is 10 times `lr`.

    >>> from mcrepar import bayesian
    >>> bnn = bayesian(nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 1)))
    >>> [(len(group["params"]), group["lr"], group.get("weight_decay")) for group in groups(bnn, 1e-3)]
    [(2, 0.001, None), (4, 0.001, 0.0), (4, 0.01, 0.0)]
    """
    role = roles(net)
    given: dict[str, Any] = {"lr": lr, "scale_lr": lr if scale_lr is None else scale_lr}
    for name, value in given.items():
        if not (isinstance(value, Real | Tensor) and 0 <= float(value) < math.inf):
            raise ParameterError(f"groups(net, {name}={value!r})", "it is no learning rate", "a number from 0 on")
    rate = SCALE_RATE * lr if scale_lr is None else scale_lr
    found: list[dict[str, Any]] = [
        {"params": [p for p in role if role[p] == "plain"], "lr": lr},
        {"params": [p for p in role if role[p] in ("mean", "prior")], "lr": lr, "weight_decay": 0.0},
        {"params": [p for p in role if role[p] == "scale"], "lr": rate, "weight_decay": 0.0},
    ]
    return [group for group in found if group["params"]]


class NaturalGradient(torch.optim.Optimizer):
    """Natural-gradient descent on the posteriors of a network, and gradient descent on all its other parameters.

    Means and other parameters move along a debiased running average of their gradients; torch's SGD adds gradients up
    instead, and moves 1 / (1 - momentum) times as far for the same learning rate.

    Used after `elbo(...).loss.backward()` as any torch optimizer, with every forward. It keeps one buffer per mean and
    per other parameter, and none per scale.

    Args:
        net: a Bayesian neural network whose posteriors have a location; other families are refused by name.
        lr: of means and of other parameters; the step of a mean is lr times the average while its scale is what it was.
        data_size: the number of training examples, as in `elbo`.
        momentum: the share of the average that stays in a step.
        scale_lr: the natural learning rate of log scales, from 1e-5 to 1e-3.
        weight_decay: of parameters that are not random, whose prior it is.
        max_scale_step: the largest change of a log scale in one step.

    >>> from mcrepar import bayesian, elbo
    >>> from mcrepar.likelihoods import Normal
    >>> bnn = bayesian(nn.Linear(3, 1), "normal")
    >>> optimizer = NaturalGradient(bnn, lr=0.1, data_size=100)
    >>> elbo(bnn, Normal(), torch.zeros(8, 3), torch.zeros(8, 1), data_size=100).loss.backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        net: nn.Module,
        lr: float = 0.1,
        *,
        data_size: int,
        momentum: float = 0.9,
        scale_lr: float = 1e-4,
        weight_decay: float = 0.0,
        max_scale_step: float = 0.1,
    ) -> None:
        size = whole_number("data_size", data_size)
        given = {"lr": lr, "scale_lr": scale_lr, "weight_decay": weight_decay, "max_scale_step": max_scale_step}
        for name, value in given.items():
            real_number(f"NaturalGradient with {name}", value, 0, closed=True)
        real_number("NaturalGradient with momentum", momentum, 0, 1, closed=True, instead="a share such as 0.9")
        found = _posteriors(net)
        for tensor in found:
            _check(tensor)
        role = roles(net)
        kinds: dict[str, dict[str, Any]] = {
            "scale": {"kind": "scale", "lr": scale_lr, "data_size": size, "largest": max_scale_step},
            "mean": {"kind": "mean", "lr": lr, "momentum": momentum},
            "plain": {"kind": "plain", "lr": lr, "momentum": momentum, "weight_decay": weight_decay},
            "prior": {"kind": "plain", "lr": lr, "momentum": momentum, "weight_decay": 0.0},  # no decay of a prior
        }
        sets = [{"params": [p for p in role if role[p] == name], **kind} for name, kind in kinds.items()]
        defaults = {"kind": "plain", "lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([group for group in sets if group["params"]], defaults)
        self.curvatures: dict[Tensor, float] = {
            tensor.log_scale: tensor.posterior.noise.scale_information() for tensor in found
        }
        for tensor in found:
            if tensor.loc is not None:  # as a number, which a state_dict carries
                self.state[tensor.loc]["initial_log_scale"] = float(tensor.log_scale.detach().mean())
        self.scales: dict[Tensor, Tensor] = {t.loc: t.log_scale for t in found if t.loc is not None}

    def __getstate__(self) -> dict[str, Any]:
        """What a copy and a pickled optimizer keep: all, and not what a state_dict holds alone."""
        return {**super().__getstate__(), "curvatures": self.curvatures, "scales": self.scales}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another optimizer of the same network, built alike, was saved.

        Args:
            state_dict: of a NaturalGradient; that of another optimizer is refused.
        """
        kinds = [[group.get("kind") for group in groups] for groups in (self.param_groups, state_dict["param_groups"])]
        if kinds[0] != kinds[1]:
            why = "it was saved by another optimizer, or for a network whose parameters have other roles"
            instead = "the state_dict of a NaturalGradient of the same network"
            raise ParameterError("NaturalGradient.load_state_dict(state_dict)", why, instead)
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step, scales before means; parameters without a gradient stay as they are.

        Args:
            closure: computes the loss anew, as in every torch optimizer.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if moved:
                {"scale": self._move_scales, "mean": self._move_means, "plain": self._move_plain}[group["kind"]](
                    group, moved
                )
        return loss

    def _check_gradients(self) -> None:
        """Refuse sparse gradients before anything has moved."""
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.grad is not None and p.grad.layout is not torch.strided:
                asked = f"NaturalGradient.step with the sparse gradient of a parameter of shape {tuple(p.shape)}"
                why = "its running average of gradients is dense"
                raise MethodError(asked, why, "dense gradients, as of nn.Embedding(..., sparse=False)")

    def _move_scales(self, group: dict[str, Any], scales: list[Tensor]) -> None:
        steps = torch._foreach_mul(_gradients(scales), group["lr"] * group["data_size"])
        torch._foreach_div_(steps, [self.curvatures[p] for p in scales])
        torch._foreach_clamp_min_(steps, -group["largest"])
        torch._foreach_clamp_max_(steps, group["largest"])
        torch._foreach_sub_(scales, steps)

    def _move_means(self, group: dict[str, Any], means: list[Tensor]) -> None:
        average, debias = self._averaged(means, _gradients(means), group["momentum"])
        # (scale / initial scale)^2 is the inverse Fisher information, relative to where training began
        ways = torch._foreach_sub([self.scales[p] for p in means], [self.state[p]["initial_log_scale"] for p in means])
        torch._foreach_mul_(ways, 2.0)
        torch._foreach_exp_(ways)
        torch._foreach_mul_(ways, average)
        torch._foreach_mul_(ways, [group["lr"] / d for d in debias])
        torch._foreach_sub_(means, ways)

    def _move_plain(self, group: dict[str, Any], plain: list[Tensor]) -> None:
        gradients = _gradients(plain)
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, plain, alpha=group["weight_decay"]))
        average, debias = self._averaged(plain, gradients, group["momentum"])
        torch._foreach_sub_(plain, torch._foreach_mul(average, [group["lr"] / d for d in debias]))

    def _averaged(
        self, parameters: list[Tensor], gradients: list[Tensor], momentum: float
    ) -> tuple[list[Tensor], list[float]]:
        """The running average of gradients, and what to divide it by for its first steps."""
        for p in parameters:
            state = self.state[p]
            if "average" not in state:
                state["average"], state["steps"] = torch.zeros_like(p), 0
            state["steps"] += 1
        average = [self.state[p]["average"] for p in parameters]
        torch._foreach_lerp_(average, gradients, 1 - momentum)
        return average, [1 - momentum ** self.state[p]["steps"] for p in parameters]


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _check(tensor: RandomTensor) -> None:
    q = tensor.options.posterior
    if tensor.loc is None:
        why = "it learns no location, so its scale moves the mean as well as the noise"
    elif not q.noise.finite(2.0):
        why = "its Fisher information is infinite"
    else:
        return
    raise MethodError(f"NaturalGradient with posterior {q.name!r} of {tensor.name}", why, "torch.optim.Adam")
