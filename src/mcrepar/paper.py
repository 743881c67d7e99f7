"""The paper's own API, as the paper prints it: networks and layers that return (output, kl).

>>> model = AlexNet(n_classes=10, n_channels=3, approx_post="Radial", kl_method="repar", n_mc_iter=2)
>>> logits, kl = model(torch.zeros(1, 3, 32, 32))
>>> logits.shape, kl.shape
(torch.Size([1, 10]), torch.Size([]))

Everything else of mcrepar takes these models too: `predict`, `save`, `kl`. What `load` makes of a saved one is a
BayesianModule around the plain network of `models`: its forward is the output alone, and its KL is `bnn.kl()`. Two
names that users of bayesian-torch know, `dnn_to_bnn` and `get_kl_loss`, are here as well.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.priors import prior as prior_of
from mcrepar.errors import ParameterError
from mcrepar.models import MODELS, model
from mcrepar.nn.layers import bayesian_class
from mcrepar.nn.module import BayesianModule, bayesian, kl
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.validation import real_number

PRINTED = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Linear")


def bayesian_as_printed(
    net: nn.Module,
    approx_post: str | Posterior = "Radial",
    prior: object = "Gaus",
    kl_method: str = "repar",
    n_mc_iter: int | None = None,
    start_std: float = 0.05,
    pretrained: bool = False,
    forward: str = "weights",
    signs: str = "",
) -> BayesianModule:
    """`bayesian` in the paper's words: `approx_post` is its `posterior`, and the KL is estimated by `repar`.

    >>> bayesian_as_printed(nn.Linear(2, 1), approx_post="Radial", n_mc_iter=3)(torch.zeros(1, 2)).shape
    torch.Size([1, 1])
    """
    return bayesian(
        net, approx_post, prior, kl_method, n_mc_iter,
        start_std=start_std, pretrained=pretrained, forward=forward, signs=signs,
    )  # fmt: skip


def _with_kl(self: BayesianModule, *args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
    """The output for one fresh draw of the weights, and the sum of KL(q || p) over them."""
    return BayesianModule.forward(self, *args, **kwargs), self.kl()


def _layer(name: str) -> type[BayesianModule]:
    plain = partial(getattr(nn, name), bias=False)  # the paper counts two numbers per weight and no bias
    return bayesian_class(f"bayes_layers.{name}", plain, bayesian_as_printed, __name__, forward=_with_kl)


bayes_layers = SimpleNamespace(**{name: _layer(name) for name in PRINTED})


def _network(name: str, row: str) -> Any:
    """A network of `models` as a class, with the paper's words for its arguments, and without biases."""
    without = {"bias": False} if "bias" in MODELS[row].options else {}  # as for the layers

    def build(n_classes: int = 10, n_channels: int = 3, **options: Any) -> nn.Module:
        return model(row, n_classes, n_channels, **{**without, **options})

    first = list(inspect.signature(build).parameters.values())[:2]
    defaults = {**MODELS[row].options, **without}
    others = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=v) for key, v in defaults.items()]
    vars(build)["__signature__"] = inspect.Signature([*first, *others])
    return bayesian_class(name, build, bayesian_as_printed, __name__, forward=_with_kl)


AlexNet = _network("AlexNet", "alexnet")
FCNet = _network("FCNet", "fcnet")
VGG11, VGG13, VGG16, VGG19 = (_network(f"VGG{n}", f"vgg{n}") for n in (11, 13, 16, 19))
VGG11BN, VGG13BN, VGG16BN, VGG19BN = (_network(f"VGG{n}BN", f"vgg{n}_bn") for n in (11, 13, 16, 19))
PreActResNet18, PreActResNet34, PreActResNet50, PreActResNet101, PreActResNet152 = (
    _network(f"PreActResNet{n}", f"preact_resnet{n}") for n in (18, 34, 50, 101, 152)
)
DenseNet121, DenseNet161, DenseNet169, DenseNet201, DenseNet100_12 = (
    _network(f"DenseNet{n}", f"densenet{n}") for n in ("121", "161", "169", "201", "100_12")
)
UNet3DEncoder = _network("UNet3DEncoder", "unet3d_encoder")


DEFAULTS: Mapping[str, Any] = {
    "prior_mu": 0.0,
    "prior_sigma": 1.0,
    "posterior_mu_init": 0.0,
    "posterior_rho_init": -3.0,
    "type": "Reparameterization",
    "moped_enable": False,
    "moped_delta": 0.5,
}
TYPES = {"Reparameterization": "weights", "Flipout": "flipout"}


def dnn_to_bnn(model: nn.Module, bnn_prior_parameters: Mapping[str, Any]) -> BayesianModule:
    """Make a network Bayesian in place, with bayesian-torch's words for a Normal posterior and a Normal prior.

    scale = log(1 + exp(posterior_rho_init)), or moped_delta * |weight| with moped_enable

    Unlike there, every weight is converted (embeddings and attention too), the means are initially the network's own
    weights, and layers keep all of their options.

    Args:
        model: the network; it becomes a BayesianModule itself and is returned too, its former self is `model.net`.
        bnn_prior_parameters: prior_mu, prior_sigma, posterior_rho_init, type ("Reparameterization" or "Flipout"),
            moped_enable (centre posterior and prior on the weights), moped_delta, and posterior_mu_init, which must
            be 0: the means are the network's.

    >>> model = nn.Sequential(nn.Linear(3, 2))
    >>> _ = dnn_to_bnn(model, {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_rho_init": -3.0})
    >>> model(torch.zeros(1, 3)).shape, bool(get_kl_loss(model) > 0)
    (torch.Size([1, 2]), True)
    """
    given = _given(bnn_prior_parameters)
    log_scale = math.log(math.log1p(math.exp(given["posterior_rho_init"])))
    delta, moped = given["moped_delta"], {"start_std": given["moped_delta"], "pretrained": True}
    bnn = bayesian(
        copy.copy(model),
        "normal",
        prior_of("normal", loc=float(given["prior_mu"]), scale=float(given["prior_sigma"])),
        forward=TYPES[given["type"]],
        **(moped if given["moped_enable"] else {}),
    )
    for tensor in random_tensors(bnn).values():
        assert isinstance(tensor, RandomTensor)
        assert tensor.loc is not None
        with torch.no_grad():
            if given["moped_enable"]:  # a weight of 0 keeps a standard deviation relative to its tensor
                relative = (delta * tensor.loc.abs()).log()
                tensor.log_scale.copy_(torch.where(tensor.loc == 0, tensor.log_scale, relative))
            else:
                tensor.log_scale.fill_(log_scale)
    vars(model).clear()
    vars(model).update(vars(bnn))
    object.__setattr__(model, "__class__", BayesianModule)
    assert isinstance(model, BayesianModule)
    return model


def _given(options: Any) -> dict[str, Any]:
    """All of bayesian-torch's options, or a refusal."""
    asked = "dnn_to_bnn(model, {...})"
    if not isinstance(options, Mapping):
        kind = type(options).__name__
        raise ParameterError(f"dnn_to_bnn(model, {kind})", "it is not a dict of options", "{'prior_sigma': 1.0}, or {}")
    given = {**DEFAULTS, **options}
    for key in given:
        if key not in DEFAULTS:
            raise ParameterError(f"{asked} with {key!r}", "it is not one of its keys", ", ".join(DEFAULTS))
    if given["type"] not in TYPES:
        raise ParameterError(f"{asked} with type={given['type']!r}", "there is no such type", " or ".join(TYPES))
    for key in ("prior_mu", "prior_sigma"):
        try:
            float(given[key])
        except (TypeError, ValueError):
            instead = f"a number such as {DEFAULTS[key]}"
            raise ParameterError(f"{asked} with {key}={given[key]!r}", "it is not a number", instead) from None
    rho = given["posterior_rho_init"]  # log(1 + exp(it)) is the standard deviation, a positive number
    real_number(f"{asked} with posterior_rho_init", rho, -700, 700, instead="a number such as -3.0")
    if given["posterior_mu_init"] != 0:
        raise ParameterError(
            f"{asked} with posterior_mu_init={given['posterior_mu_init']}",
            "the means are initially the network's own weights",
            "posterior_mu_init=0.0, and initialise the network's weights as you like",
        )
    return given


def get_kl_loss(model: nn.Module) -> Tensor:
    """The sum of KL(q || p) over every weight of a network that is Bayesian or contains Bayesian layers, in nats.

    bayesian-torch returns the sum of the means of its tensors, which is smaller by the number of weights of a tensor:
    divide this sum by the number of examples, and by nothing else.

    >>> get_kl_loss(nn.Sequential(bayes_layers.Linear(3, 2, n_mc_iter=5), nn.ReLU())).shape
    torch.Size([])
    """
    return kl(model)
