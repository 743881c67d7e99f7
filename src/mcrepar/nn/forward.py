"""How a draw enters the forward: one for the batch, one per datum, or as noise on a layer's output.

weights      one draw of all weights, shared by the batch
local        the output of a dense or convolutional layer is drawn instead of its weights (local reparameterization):
             the law of each output, but positions of one datum (pixels, tokens) have independent noise of the weight
flipout      one draw, its deviation multiplied by random signs of every datum
per_example  an own draw of all weights for every datum
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from mcrepar.distributions.posterior import Posterior
from mcrepar.distributions.random import Source
from mcrepar.errors import MethodError
from mcrepar.nn.latent import Latent
from mcrepar.nn.per_example import per_example
from mcrepar.nn.selection import Place

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

Forward = Callable[["BayesianModule", tuple[Any, ...], Mapping[str, Any]], Any]
FUNCTIONS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def check_forward(forward: str, q: Posterior, place: Place) -> None:
    """Refuse a forward that a posterior or a layer does not allow."""
    if forward == "per_example" and any(_batch_second(owner) for owner in place.owners):
        raise MethodError(
            "forward='per_example'",
            f"the {type(place.owners[0]).__name__} has its data in dimension 1",
            "batch_first=True",
        )
    if forward not in ("local", "flipout"):
        return
    if not all(isinstance(owner, nn.Linear | _ConvNd) for owner in place.owners):
        raise MethodError(
            f"forward={forward!r}",
            f"{type(place.owners[0]).__name__} is neither dense nor convolutional",
            "forward='weights', or select the dense and convolutional layers only",
        )
    if len(place.names) > 1:
        raise MethodError(
            f"forward={forward!r}",
            f"it is used as {' and as '.join(place.names)}, and each layer would draw noise of its own",
            "forward='weights'",
        )
    if forward == "flipout" and not (q.noise.symmetric and q.form.outer.name == "identity"):
        raise MethodError(
            f"forward='flipout' with posterior {q.name!r}", "its noise is not symmetric", "forward='weights'"
        )
    if forward == "local" and not _has_local(q, place):
        raise MethodError(
            f"forward='local' with posterior {q.name!r}",
            "the output of this layer has no law that can be drawn at once (Normal has, and Radial in dense layers)",
            "forward='weights' or 'flipout'",
        )


def _batch_second(owner: nn.Module) -> bool:
    return isinstance(owner, nn.RNNBase | nn.MultiheadAttention) and not owner.batch_first


def _has_local(q: Posterior, place: Place) -> bool:
    if q.form.outer.name != "identity":
        return False
    dense = all(isinstance(owner, nn.Linear) for owner in place.owners)
    return q.noise.projects and (dense or not q.noise.joint)


def _shared(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return bnn.run(bnn.draw(), *args, **kwargs)


def _layerwise(rule: Rule) -> Forward:
    def run(bnn: BayesianModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        once = Pass(bnn)
        weights = {key: LayerWeight.of(t, rule, once) for key, t in bnn._latents() if isinstance(t, Latent)}
        try:
            return bnn.run(bnn._named(weights), *args, **kwargs)
        finally:
            once.used = None  # what runs again, in the backward, draws the same noise again

    return run


class Pass:
    """One forward, in which every layer draws its output once.

    Args:
        bnn: the network that runs.
    """

    def __init__(self, bnn: BayesianModule) -> None:
        self.bnn = bnn
        self.used: set[str] | None = set()

    def use(self, latent: Latent) -> None:
        """Refuse a second call of a layer: its noise would be another one."""
        if self.used is None:
            return
        if latent.name in self.used:
            raise MethodError(
                f"forward={self.bnn.mode!r} with {latent.name}",
                "its layer is called twice in one forward, and would draw other noise each time",
                "forward='weights'",
            )
        self.used.add(latent.name)


LOOKS = {"dim", "size", "numel", "is_floating_point", "is_complex", "__repr__"}
PROPERTIES = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "is_cuda", "is_cpu"} | {
    "is_meta", "is_mkldnn", "is_nested", "is_quantized", "is_sparse", "is_mps", "is_xpu", "grad_fn"}  # fmt: skip


def only_looks(func: Any) -> bool:
    """Whether a call on a weight that is drawn by its layer asks for its kind, and not for its numbers."""
    name = getattr(func, "__name__", "")
    return name in LOOKS or (name == "__get__" and getattr(func.__self__, "__name__", "") in PROPERTIES)


class LayerWeight(Tensor):
    """A weight that a dense or convolutional layer meets as its location, and that draws the layer's output."""

    latent: Latent
    rule: Rule
    once: Pass | None

    @classmethod
    def of(cls, latent: Latent, rule: Rule, once: Pass | None = None) -> LayerWeight:
        """The location of a latent tensor, with the rule that draws a layer's output, once in a forward if asked."""
        assert latent.centre is not None
        weight = latent.centre.as_subclass(cls)
        weight.latent, weight.rule, weight.once = latent, rule, once
        return weight

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Layers are drawn; looking at shape or dtype is allowed; all else would silently be deterministic."""
        kwargs = kwargs or {}
        if func in FUNCTIONS:
            x, weight, bias, rest = _arguments(args, kwargs)
            random = [w for w in (weight, bias) if isinstance(w, LayerWeight)]
            for tensor in random:
                if tensor.once is not None:
                    tensor.once.use(tensor.latent)
            rule = random[0].rule
            if x.dim() < weight.dim():  # one datum without a batch
                return rule(func, x.unsqueeze(0), weight, bias, rest).squeeze(0)
            return rule(func, x, weight, bias, rest)
        if only_looks(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        raise MethodError(
            f"{getattr(func, '__name__', func)} on a weight under forward='local' or 'flipout'",
            "only dense and convolutional layers draw their output",
            "forward='weights', or select the other layers away",
        )


Rule = Callable[[Any, Tensor, Any, Any, dict[str, Any]], Tensor]
NAMES = ("input", "weight", "bias")


def _arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, Any, Any, dict[str, Any]]:
    named = dict(zip(NAMES, args[:3], strict=False)) | dict(kwargs)
    rest = {k: v for k, v in named.items() if k not in NAMES}
    return named["input"], named["weight"], named.get("bias"), {"": args[3:], **rest}


def _apply(func: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rest: Mapping[str, Any]) -> Tensor:
    named = {k: v for k, v in rest.items() if k}
    out: Tensor = func(x, weight, bias, *rest[""], **named)
    return out


def _plain(weight: Any) -> Any:
    """The location as an ordinary tensor."""
    return weight.latent.centre if isinstance(weight, LayerWeight) else weight


def _local(func: Any, x: Tensor, weight: Any, bias: Any, rest: dict[str, Any]) -> Tensor:
    """mean + deviation * noise, the noise of every datum its own."""
    out = _apply(func, x, _plain(weight), _plain(bias), rest)
    for tensor, is_bias in ((weight, False), (bias, True)):
        if isinstance(tensor, LayerWeight):
            out = out + _deviation(func, x, tensor.latent, out, rest, is_bias).to(out.dtype)  # autocast
    if isinstance(weight, LayerWeight) and weight.once and (func is not F.linear or x.dim() > 2):
        _warn(weight.once.bnn)
    return out


_WARNED: WeakSet[nn.Module] = WeakSet()


def _warn(bnn: BayesianModule) -> None:
    """Say once for a network what noise of their own does to the positions of a datum."""
    if torch.compiler.is_compiling() or bnn in _WARNED:
        return
    _WARNED.add(bnn)
    warnings.warn(
        "forward='local' gives the positions of one datum (pixels, tokens) independent noise: every output has its "
        "law, but what is averaged over positions has too little noise in training; forward='flipout' or 'weights' "
        "draws one weight for all positions",
        stacklevel=2,
    )


def _deviation(func: Any, x: Tensor, latent: Latent, out: Tensor, rest: dict[str, Any], is_bias: bool) -> Tensor:
    scale = latent.log_scale.exp()
    noise = latent.posterior.noise
    options: dict[str, Any] = {"dtype": scale.dtype, "device": out.device}
    if is_bias:
        channel = 1 if func is not F.linear else out.dim() - 1
        xi = noise.draw(len(out), scale.numel(), **options)
        shape = [1] * out.dim()
        shape[0], shape[channel] = len(out), scale.numel()
        return (scale * xi).reshape(shape)
    spread = _apply(func, x * x, scale * scale, None, rest).clamp_min(torch.finfo(out.dtype).tiny).sqrt()
    if noise.joint and x.dim() != 2:
        raise MethodError(
            f"forward='local' with posterior {latent.posterior.name!r}",
            f"the input has {x.dim()} dimensions, and rows of one datum share their draw",
            "forward='weights' or 'flipout'",
        )
    return spread * noise.project(Source(**options), *spread.shape)


def _flipout(func: Any, x: Tensor, weight: Any, bias: Any, rest: dict[str, Any]) -> Tensor:
    """F(x, loc) + F(x s, delta) s': one draw, decorrelated over the batch by random signs."""
    out = _apply(func, x, _plain(weight), _plain(bias), rest)
    channel = 1 if func is not F.linear else -1
    if isinstance(weight, LayerWeight):
        moved = _apply(func, x * _signs(x, channel), _delta(weight.latent), None, rest)
        out = out + moved * _signs(out, channel)
    if isinstance(bias, LayerWeight):
        shape = [1] * out.dim()
        shape[channel] = bias.latent.log_scale.numel()
        out = out + _delta(bias.latent).reshape(shape).to(out.dtype) * _signs(out, channel)
    return out


def _delta(latent: Latent) -> Tensor:
    with torch.no_grad():
        xi = latent.noise()
    return latent.log_scale.exp() * xi


def _signs(like: Tensor, channel: int) -> Tensor:
    """A random sign per datum and channel."""
    shape = [1] * like.dim()
    shape[0], shape[channel] = like.shape[0], like.shape[channel]
    return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_().mul_(2).sub_(1)


FORWARDS: dict[str, Forward] = {
    "weights": _shared,
    "local": _layerwise(_local),
    "flipout": _layerwise(_flipout),
    "per_example": per_example,
}
