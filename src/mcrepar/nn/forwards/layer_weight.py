"""Weights that a layer meets as a tensor, and that draw or multiply the layer's output instead of being drawn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from mcrepar.errors import MethodError
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.select import Place
from mcrepar.nn.swap import run

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

FUNCTIONS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
LOOKS = {"dim", "size", "numel", "is_floating_point", "is_complex", "__repr__"}
PROPERTIES = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "is_cuda", "is_cpu"} | {
    "is_meta", "is_mkldnn", "is_nested", "is_quantized", "is_sparse", "is_mps", "is_xpu", "grad_fn"}  # fmt: skip


class Weight(Tensor):
    """A weight whose layers run by a rule of their own; looking at its shape or dtype is allowed, all else is not."""

    refusal: tuple[str, str, str]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Layers run by the rule; what else is computed of a weight would silently be deterministic."""
        kwargs = kwargs or {}
        if func in FUNCTIONS:
            return cls.layer(func, *args, **kwargs)
        if func is F.embedding:
            return cls.embedding(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in LOOKS or (name == "__get__" and getattr(func.__self__, "__name__", "") in PROPERTIES):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        raise cls._refused(func, args, kwargs)

    @classmethod
    @abstractmethod
    def layer(cls, func: Any, input: Tensor, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> Tensor:
        """The output of a dense or convolutional layer."""

    @classmethod
    def embedding(cls, *args: Any, **kwargs: Any) -> Tensor:
        """The output of an embedding, refused unless a weight says more."""
        raise cls._refused(F.embedding, args, kwargs)

    @classmethod
    def _refused(cls, func: Any, *given: Any) -> MethodError:
        where, why, instead = cls.refusal
        return MethodError(f"{getattr(func, '__name__', func)} on a weight {where}", why, instead)


class OneSample(MethodError):
    """Says which weights must have one sample for all examples, and why."""

    def __init__(self, names: set[str], why: str) -> None:
        super().__init__(f"forward='auto' with {' and '.join(sorted(names))}", why, "forward='weights'")
        self.names = names


Apply = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # the layer's own function, with its stride, padding, ...
Rule = Callable[[Apply, Tensor, Any, Any, int], Tensor]  # (layer, input, weight, bias, dimension of its outputs)


class LayerWeight(Weight):
    """A weight that a dense or convolutional layer meets as its location, and that draws the layer's output."""

    refusal = (
        "under forward='local', 'flipout' or 'antithetic'",
        "only dense and convolutional layers draw their output",
        "forward='weights', or select the other layers away",
    )
    tensor: RandomTensor
    rule: Rule
    once: Pass | None

    @classmethod
    def of(cls, tensor: RandomTensor, rule: Rule, once: Pass | None = None) -> LayerWeight:
        """The location of a random tensor, with the rule that draws a layer's output, once in a forward if asked."""
        assert tensor.centre is not None
        weight = tensor.centre.as_subclass(cls)
        weight.tensor, weight.rule, weight.once = tensor, rule, once
        return weight

    @classmethod
    def layer(cls, func: Any, input: Tensor, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> Tensor:
        """The output that the rule draws."""
        random = [w for w in (weight, bias) if isinstance(w, LayerWeight)]
        for w in random:
            if w.once is not None:
                w.once.use(w.tensor)

        def apply(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            out: Tensor = func(x, w, b, *rest, **named)
            return out

        alone = input.dim() < weight.dim()  # one example without a batch
        x = input.unsqueeze(0) if alone else input
        out = random[0].rule(apply, x, weight, bias, x.dim() - 1 if func is F.linear else 1)
        return out.squeeze(0) if alone else out

    @classmethod
    def _refused(cls, func: Any, *given: Any) -> MethodError:
        leaves = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, LayerWeight)]
        if any(leaf.once is not None and leaf.once.bnn.mode == "auto" for leaf in leaves):
            what = f"{getattr(func, '__name__', func)} uses it, which is neither a dense nor a convolutional layer"
            return OneSample({leaf.tensor.name for leaf in leaves}, what)
        return super()._refused(func)


def location(weight: Any) -> Any:
    """The location of a random weight as an ordinary tensor; others as they are."""
    return weight.tensor.centre if isinstance(weight, LayerWeight) else weight


class Pass:
    """One forward, in which every layer draws its output once.

    Args:
        bnn: the network that runs.
    """

    def __init__(self, bnn: BayesianModule) -> None:
        self.bnn = bnn
        self.used: set[str] | None = set()

    def use(self, tensor: RandomTensor) -> None:
        """Refuse a second call of a layer: its noise would be another one."""
        if self.used is None:
            return
        if tensor.name in self.used:
            why = "its layer is called twice in one forward, and would draw other noise each time"
            if self.bnn.mode == "auto":
                raise OneSample({tensor.name}, why)
            raise MethodError(f"forward={self.bnn.mode!r} with {tensor.name}", why, "forward='weights'")
        self.used.add(tensor.name)


def examples(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The number of examples of a batch: the length of the first tensor that is passed."""
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    return next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 1)


def run_layers(
    rule: Rule,
    bnn: BayesianModule,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    only: Collection[str] | None = None,
    *,
    drawn: bool = False,
) -> Any:
    """The network's output, every layer drawing its own by the rule.

    Args:
        rule: the output of a layer.
        bnn: the network.
        args: of its forward.
        kwargs: of its forward.
        only: the names of the weights with this rule, all others having one sample; None is all weights.
        drawn: whether the rule draws nothing any more.
    """
    once = None if drawn else Pass(bnn)
    random = random_tensors(bnn)
    weights = {} if only is None or len(only) == len(random) else bnn.draw()
    for names, tensor in random.items():
        assert isinstance(tensor, RandomTensor)
        if only is None or tensor.name in only:
            weights |= dict.fromkeys(names, LayerWeight.of(tensor, rule, once))
    try:
        return run(bnn, weights, *args, **kwargs)
    finally:
        if once is not None:
            once.used = None  # what runs again, in the backward, draws the same noise again


def check_layers(forward: str, place: Place) -> None:
    """Refuse layers whose output has no rule."""
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
