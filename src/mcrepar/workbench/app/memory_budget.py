"""A calculator: how many draws of the direct estimate fit into a memory, and what the other methods need.

What a method saves per weight is measured on a small tensor with autograd's own hooks; what a network saves per example
is read off a forward without values (the meta device). Both are linear, so that any size follows from them. The
experiment fig2-right measures the peak of real steps instead, by the paper's own loop (`largest_draws` says how far the
two are apart).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.posteriors import POSTERIORS, posterior
from mcrepar.distributions.priors import prior
from mcrepar.divergence.kl import kl_divergence
from mcrepar.divergence.methods import METHODS
from mcrepar.errors import ParameterError
from mcrepar.inspect.graph import saved_bytes
from mcrepar.models import MODELS, model
from mcrepar.nn.select import is_norm, selected
from mcrepar.workbench.app.taylor_warning import without_taylor_warning

SIDE = 32  # of the images and volumes, as CIFAR's
_SMALL = 1000  # weights of the tensor on which the methods are measured
_TRAINED = 4 * 4  # bytes of a learned number in training: itself, its gradient, Adam's two averages


@dataclass(frozen=True)
class Saved:
    """Bytes per weight that are saved for backward: `fixed + per_draw * M`."""

    fixed: float
    per_draw: float

    def total(self, weights: int, draws: int) -> float:
        """The bytes of so many weights and draws."""
        return weights * (self.fixed + self.per_draw * draws)


@functools.lru_cache(maxsize=1024)
def saved_by(posterior_name: str, prior_name: str, method: str) -> Saved:
    """What a method saves for backward, measured with 2 and 3 draws on a tensor of 1,000 weights.

    >>> saved_by("radial", "normal", "direct")  # the noise and the weight of every draw, and the scale once
    Saved(fixed=4.0..., per_draw=8.0)
    """
    q, p = _example(posterior_name), prior(prior_name)

    def bytes_of(draws: int) -> float:
        count = draws if METHODS[method].samples else None
        return saved_bytes(lambda: kl_divergence(q, p, method, count)) / _SMALL

    with without_taylor_warning():
        two, three = bytes_of(2), bytes_of(3)
    return Saved(two - 2 * (three - two), three - two)


def _example(name: str) -> Posterior:
    row = POSTERIORS[name]
    learned = {"loc": torch.zeros(_SMALL)} if row.form.learned_loc else {}
    learned["log_scale"] = torch.full((_SMALL,), -3.0)
    return posterior(name, **{key: tensor.requires_grad_() for key, tensor in learned.items()})


@functools.lru_cache(maxsize=64)
def step_bytes(posterior_name: str) -> float:
    """Bytes per weight of a training step without its KL: the learned numbers, and the weights that are drawn once."""
    q = _example(posterior_name)
    drawn = saved_bytes(lambda: q.draw().square().sum()) / _SMALL
    return _TRAINED * len(q.learned) + drawn


def random_weights(network: str) -> int:
    """The numbers of a network that `bayesian` makes random: all but its norm layers.

    >>> random_weights("alexnet")
    2174912
    """
    return _sizes(network)[0]


def example_bytes(network: str) -> int:
    """Bytes that the forward of a network saves for backward, per image of 32 x 32 or volume of 32 x 32 x 32."""
    return _sizes(network)[1]


@functools.lru_cache(maxsize=256)
def _sizes(network: str) -> tuple[int, int]:
    with torch.device("meta"):
        net = model(network, size=network_sides(network))
        weights = sum(place.parameter.numel() for place in selected(net, None))
        net = _scaled(net)
    return weights, _kept_by_forward(net, torch.empty(1, 3, *network_sides(network), device="meta"))


def network_sides(network: str) -> tuple[int, ...]:
    """The sides of an example that a network of the zoo is measured with."""
    return (SIDE,) * max(2, MODELS[network].dimensions)


class _Scale(nn.Module):
    """Saves what a norm layer saves, its input; on the meta device it is a hundred times faster."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def _scaled(net: nn.Module) -> nn.Module:
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if is_norm(child):
                setattr(module, name, _Scale())
    return net


def _kept_by_forward(net: nn.Module, x: Tensor) -> int:
    """As `saved_bytes`, for tensors without an address: storages are distinguished by their handles."""
    parameters = {p.untyped_storage()._cdata for p in net.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}  # holding the storages keeps their handles from being used again

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters:
            storages[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = net(x)
    del output
    return sum(storage.nbytes() for storage in storages.values())


@dataclass(frozen=True)
class Step:
    """A training step: what must fit into memory beside the KL.

    Args:
        weights: the number of random weights.
        per_example: bytes that the forward saves per example.
        batch: examples in a step.
        posterior: its name.
        prior: its name.

    >>> step = Step(11_164_362, 0, 128, "radial", "normal")
    >>> step.most_draws(11 * 2**30)
    126
    """

    weights: int
    per_example: int
    batch: int
    posterior: str
    prior: str

    def __post_init__(self) -> None:
        for name, value, least in (("weights", self.weights, 1), ("per_example", self.per_example, 0),
                                   ("batch", self.batch, 1)):  # fmt: skip
            if value < least:
                raise ParameterError(f"Step({name}={value})", "it is too small", f"{name} of at least {least}")

    @property
    def rest(self) -> float:
        """Bytes of the step without its KL."""
        return self.weights * step_bytes(self.posterior) + self.batch * self.per_example

    def needed(self, method: str, draws: int) -> float:
        """Bytes of the step with its KL by `method` from `draws` draws."""
        return self.rest + saved_by(self.posterior, self.prior, method).total(self.weights, draws)

    def most_draws(self, memory: float, method: str = "direct") -> int | None:
        """The largest M that fits into `memory` bytes, 0 where not even one does; None where any M does."""
        saved = saved_by(self.posterior, self.prior, method)
        if saved.per_draw > 0:
            return largest(memory, self.needed(method, 1), saved.per_draw * self.weights)
        return None if self.needed(method, 1) <= memory else 0


def scaled_seconds(points: Sequence[Mapping[str, float]], measured: int, weights: int, draws: int) -> float:
    """Seconds of a value and a backward, scaled from a benchmark of `measured` weights: a + b M, per weight.

    >>> scaled_seconds([{"M": 1, "seconds": 1.0}, {"M": 11, "seconds": 3.0}], measured=10, weights=20, draws=6)
    4.0
    """
    first, last = points[0], points[-1]
    slope = 0.0
    if last["M"] > first["M"]:
        slope = max(0.0, (last["seconds"] - first["seconds"]) / (last["M"] - first["M"]))
    return weights / measured * (first["seconds"] + slope * (draws - first["M"]))


def largest(memory: float, one_draw: float, per_draw: float) -> int:
    """The largest M whose step fits, from the memory of a step with M = 1.

    >>> largest(1000, one_draw=400, per_draw=100), largest(300, one_draw=400, per_draw=100)
    (7, 0)
    """
    return 0 if one_draw > memory else 1 + int((memory - one_draw) // per_draw)
