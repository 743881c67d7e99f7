"""The hierarchical horseshoe: w = raw * local * shared, whose scales are random variables with posteriors of their own.

    raw ~ N(0, 1), local ~ C+(0, 1) for every weight or every unit, shared ~ C+(0, scale) for the tensor.

A row of the table of priors is a log density of one weight; here a weight is a product of three random variables, so
the scales are parameters of the network, by torch's parametrizations, and the KL is the sum of three ordinary ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.priors import prior
from mcrepar.errors import McreparError, ParameterError
from mcrepar.nn.module import BayesianModule, bayesian
from mcrepar.nn.select import Place, Select, selected

SCALED_LAYERS = (nn.Linear, nn.Bilinear, nn.Embedding, _ConvNd)
SHARES = ("weight", "unit")
OPTIONS = ("prior", "kl_method", "n_mc_iter", "initial_std")  # of bayesian; the others do not suit a product


class HorseshoeScales(nn.Module):
    """The scales of one tensor of weights: raw * local * shared.

    Args:
        weight: the tensor; the scales begin where raw has a standard deviation of about 1.
        shape: of the local scales.

    >>> scales = HorseshoeScales(torch.tensor([[0.1, -0.1]]), (1, 2))
    >>> scales(scales.right_inverse(torch.tensor([[0.1, -0.1]])))
    tensor([[ 0.1000, -0.1000]], grad_fn=<MulBackward0>)
    """

    def __init__(self, weight: Tensor, shape: tuple[int, ...]) -> None:
        super().__init__()
        size = weight.detach().square().mean().sqrt().reshape(1)
        self.local = nn.Parameter(weight.new_ones(shape))
        self.shared = nn.Parameter(torch.where(size > 0, size, torch.ones_like(size)))

    def forward(self, raw: Tensor) -> Tensor:
        """The weights."""
        return raw * self._each(raw) * self.shared

    def right_inverse(self, weight: Tensor) -> Tensor:
        """raw from the weights, for torch's parametrizations."""
        return weight / (self._each(weight) * self.shared)

    def _each(self, weight: Tensor) -> Tensor:
        """The local scales as they multiply the weights: those of a group serve all of its inputs."""
        grouped = 1 < len(self.local) < len(weight)
        return self.local.repeat_interleave(len(weight) // len(self.local), 0) if grouped else self.local


def horseshoe_scales(net: nn.Module, per: str = "weight", select: Select = None) -> nn.Module:
    """Give the weights of a network horseshoe scales, as parameters; what the network computes stays the same.

    `mcrepar.load(folder, horseshoe_scales(net))` reads a network that `horseshoe` made.

    Args:
        net: it is changed.
        per: what has a local scale of its own: every "weight", or every "unit", an output of a layer.
        select: which parameters, as in `bayesian`; scales get those that are weights of dense, convolutional and
            embedding layers.

    >>> net = horseshoe_scales(nn.Linear(3, 2, bias=False), per="unit")
    >>> [(name.rpartition(".")[2], tuple(p.shape)) for name, p in net.named_parameters()]
    [('original', (2, 3)), ('local', (2, 1)), ('shared', (1,))]
    """
    _add(net, per, select)
    return net


def _add(net: nn.Module, per: str, select: Select) -> tuple[dict[str, nn.Module], list[str]]:
    """Add scales; the layers that got them by the name of their weight, and the names of what else was selected."""
    if not isinstance(net, nn.Module):
        raise ParameterError(f"horseshoe({type(net).__name__})", "it is not an nn.Module", "a network")
    if per not in SHARES:
        raise ParameterError(f"per={per!r}", "there is no such choice", " or ".join(map(repr, SHARES)))
    places = selected(net, select)
    scaled = [place for place in places if _has_scales(place)]
    if not scaled:
        why = "it selects no weight of a dense, convolutional or embedding layer"
        raise ParameterError("horseshoe(net)", why, "a network that has one, or bayesian(net, prior='horseshoe')")
    for place in scaled:
        layer = place.owners[0]
        scales = HorseshoeScales(place.parameter, _local_shape(layer, place.parameter, per))
        parametrize.register_parametrization(layer, "weight", scales)
    others = [place.name for place in places if place not in scaled]
    return {place.name: place.owners[0] for place in scaled}, others


def _has_scales(place: Place) -> bool:
    """Whether a parameter is a weight that gets scales; refuses one that cannot have them."""
    if place.name.rpartition(".")[2] == "original" and isinstance(place.owners[0], parametrize.ParametrizationList):
        raise ParameterError(f"horseshoe with {place.name}", "this layer is parametrized already", "a plain network")
    if place.name.rpartition(".")[2] != "weight" or not isinstance(place.owners[0], SCALED_LAYERS):
        return False
    if len(place.names) > 1:
        why = f"it is used as {' and as '.join(place.names)}, and scales belong to one layer"
        raise ParameterError(f"horseshoe with {place.name}", why, "select=... without it")
    if place.held is not None:
        why = "its padding row is held at 0, and a product of random scales would not keep it"
        raise ParameterError(f"horseshoe with {place.name}", why, "select=... without it")
    return True


def _local_shape(layer: nn.Module, weight: Tensor, per: str) -> tuple[int, ...]:
    """One scale per weight, or one per output of the layer: a feature of an embedding is one."""
    if per == "weight":
        return tuple(weight.shape)
    if isinstance(layer, _ConvTransposeNd):  # (inputs, outputs of a group, ...), and inputs lie group by group
        return (layer.groups, weight.shape[1], *(1 for _ in weight.shape[2:]))
    outputs = 1 if isinstance(layer, nn.Embedding) else 0
    return tuple(n if k == outputs else 1 for k, n in enumerate(weight.shape))


def horseshoe(
    net: nn.Module,
    posterior: str | Posterior = "normal",
    *,
    scale: float = 1.0,
    per: str = "weight",
    select: Select = None,
    **options: Any,
) -> BayesianModule:
    """A Bayesian neural network with the hierarchical horseshoe prior, w = raw * local * shared.

    raw ~ N(0, 1) has this posterior; the scales have log-normal ones, and their KL to half-Cauchy priors is a
    quadrature. Biases and other parameters have the prior that is given, N(0, 1) unless another is.

    Args:
        net: any nn.Module with dense, convolutional or embedding layers; it is taken over.
        posterior: of raw weights and of all that have no scales.
        scale: of the half-Cauchy prior of the shared scale of a tensor: the smaller, the fewer weights stay.
        per: what has a local scale of its own: every "weight", or every "unit", an output of a layer.
        select: which parameters become random, as in `bayesian`.
        **options: of `bayesian`: prior (of parameters without scales), kl_method, n_mc_iter, initial_std.

    >>> bnn = horseshoe(nn.Linear(3, 2), scale=0.1)
    >>> [str(t.options.prior) for t in bnn.latents.values()]
    ["prior('normal', loc=0.0, scale=1.0)", "prior('normal', loc=0.0, scale=1.0)",
     "prior('half_cauchy', scale=1.0)", "prior('half_cauchy', scale=0.1)"]
    """
    wrong = next((name for name in options if name not in OPTIONS), None)
    if wrong is not None:
        why = f"beside its own arguments it has the options {', '.join(OPTIONS)}"
        raise ParameterError(
            f"horseshoe(net, {wrong}=...)", why, "bayesian(horseshoe_scales(net), ...) for another one"
        )
    scales = {"posterior": "lognormal", "signs": "positive"}
    parts: dict[str, dict[str, Any]] = {
        "original": {"prior": prior("normal")},
        "0.local": {**scales, "prior": prior("half_cauchy", scale=1.0)},
        "0.shared": {**scales, "prior": prior("half_cauchy", scale=scale)},
    }
    layers, others = _add(net, per, select)
    places = {name: f"{name.removesuffix('weight')}parametrizations.weight" for name in layers}
    overrides = {f"{place}.{part}": own for place in places.values() for part, own in parts.items()}
    options.setdefault("prior", "normal")
    try:
        return bayesian(
            net, posterior, select=lambda name, _: name in overrides or name in others, overrides=overrides,
            forward="weights", **options,
        )  # fmt: skip
    except McreparError:
        for layer in layers.values():  # the network as it was
            parametrize.remove_parametrizations(layer, "weight")
        raise
