"""Weights that a layer meets as a tensor, and that draw or multiply the layer's output instead of being drawn."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from mcrepar.distributions.random import transformed
from mcrepar.errors import MethodError
from mcrepar.nn.batches import examples
from mcrepar.nn.random_tensor import RandomTensor, random_tensors
from mcrepar.nn.select import Place
from mcrepar.nn.swap import run

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule

_WARNED: WeakSet[nn.Module] = WeakSet()
FUNCTIONS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
LOOKS = {"dim", "size", "numel", "is_floating_point", "is_complex", "__repr__"}
PROPERTIES = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "is_cuda", "is_cpu"} | {
    "is_meta", "is_mkldnn", "is_nested", "is_quantized", "is_sparse", "is_mps", "is_xpu", "grad_fn"}  # fmt: skip


def looks(func: Any) -> bool:
    """Whether a function only looks at a tensor's shape, dtype or device."""
    name = getattr(func, "__name__", "")
    return name in LOOKS or (name == "__get__" and getattr(func.__self__, "__name__", "") in PROPERTIES)


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
        if func is F.multi_head_attention_forward:
            return cls.attention(*args, **kwargs)
        if looks(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return cls.elsewhere(func, args, kwargs)

    def watched(self, name: str) -> Self:
        """The weight, whose gradient is refused: rules use the tensor behind it, and what goes past them has no noise.

        Functions of torch.jit ask no rule.
        """

        def refuse(gradient: Tensor) -> None:
            where, _, instead = self.refusal
            why = "it went into a function that asks no rule, as those of torch.jit, and had no noise there"
            raise MethodError(f"{name} {where}", why, instead)

        with torch._C.DisableTorchFunctionSubclass():
            if self.requires_grad and not transformed():
                self.register_hook(refuse)  # type: ignore[no-untyped-call]
        return self

    @classmethod
    @abstractmethod
    def layer(cls, func: Any, input: Tensor, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> Tensor:
        """The output of a dense or convolutional layer."""

    @classmethod
    def embedding(cls, *args: Any, **kwargs: Any) -> Tensor:
        """The output of an embedding, refused unless a weight says more."""
        out: Tensor = cls.elsewhere(F.embedding, args, kwargs)
        return out

    @classmethod
    def attention(cls, *args: Any, **kwargs: Any) -> Any:
        """The outputs of multi-head attention, refused unless a weight says more."""
        return cls.elsewhere(F.multi_head_attention_forward, args, kwargs)

    @classmethod
    def elsewhere(cls, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What else is computed of a weight, refused unless a weight says more."""
        where, why, instead = cls.refusal
        raise MethodError(f"{getattr(func, '__name__', func)} on a weight {where}", why, instead)


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
    def elsewhere(cls, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The function of one sample of the weight, where the forward allows it."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, LayerWeight)]
        if not all(leaf.once is not None and leaf.once.samples is not None for leaf in leaves):
            return super().elsewhere(func, args, kwargs)
        args, kwargs = pytree.tree_map_only(LayerWeight, lambda leaf: leaf.once.sample(leaf.tensor), (args, kwargs))
        return func(*args, **kwargs)


def location(weight: Any) -> Any:
    """The location of a random weight as an ordinary tensor; others as they are."""
    return weight.tensor.centre if isinstance(weight, LayerWeight) else weight


class Pass:
    """One forward, in which every layer draws its output once.

    Args:
        bnn: the network that runs.
        batch: the number of examples.
        samples: of weights whose layers cannot draw their output; None refuses these.
    """

    def __init__(self, bnn: BayesianModule, batch: int, samples: dict[str, Tensor] | None) -> None:
        self.bnn, self.batch, self.samples = bnn, batch, samples
        self.used: set[str] | None = set()

    def sample(self, tensor: RandomTensor) -> Tensor:
        """The one sample of a weight whose layer has not drawn an output."""
        if self.used is None:
            return tensor.draw()  # once more, from the same random numbers
        assert self.samples is not None
        if tensor.name not in self.samples:
            if tensor.name in self.used:
                raise OneSample({tensor.name}, "it is used outside of its layer too, which has drawn its output")
            self.samples[tensor.name] = tensor.draw()
        return self.samples[tensor.name]

    def take_back(self, tensor: RandomTensor) -> None:
        """Forget that a layer was used, which draws no output after all."""
        if self.used is not None:
            self.used.discard(tensor.name)

    def use(self, tensor: RandomTensor) -> None:
        """Refuse a second call of a layer: its noise would be another one."""
        if self.used is None or tensor.name in (self.samples or ()):
            return
        if tensor.name in self.used:
            why = "its layer is called twice in one forward, and would draw other noise each time"
            if self.samples is not None:
                raise OneSample({tensor.name}, why)
            raise MethodError(f"forward={self.bnn.mode!r} with {tensor.name}", why, "forward='weights'")
        self.used.add(tensor.name)

    def warn_of_positions(self) -> None:
        """Say once for a network what noise of their own does to the positions of an example."""
        if torch.compiler.is_compiling() or self.bnn in _WARNED:
            return
        _WARNED.add(self.bnn)
        right = "'flipout' or 'weights' draws" if self.bnn.mode == "local" else "'auto' or 'weights' draws"
        warnings.warn(
            f"forward={self.bnn.mode!r} gives the positions of one example (pixels, tokens, rows that are made of "
            "it) independent noise: every output has its distribution, but what is averaged over positions has too "
            f"little noise in training; forward={right} one weight for all positions",
            stacklevel=2,
        )


def run_layers(
    rule: Rule,
    bnn: BayesianModule,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    only: Collection[str] | None = None,
    *,
    drawn: bool = False,
    samples: dict[str, Tensor] | None = None,
) -> Any:
    """The network's output, every layer drawing its own by the rule.

    Args:
        rule: the output of a layer.
        bnn: the network.
        args: of its forward.
        kwargs: of its forward.
        only: the names of the weights with this rule, all others having one sample; None is all weights.
        drawn: whether the rule draws nothing any more.
        samples: is filled with one sample of every weight that no rule can draw; None refuses these.
    """
    once = None if drawn else Pass(bnn, examples(args, kwargs), samples)
    random = random_tensors(bnn)
    rest = {} if only is None else {names: t for names, t in random.items() if t.name not in only}
    weights = _one_sample(bnn, rest)
    for names, tensor in random.items():
        assert isinstance(tensor, RandomTensor)
        if only is None or tensor.name in only:
            weight = LayerWeight.of(tensor, rule, once)
            weights |= dict.fromkeys(names, weight.watched(tensor.name) if tensor.name in bnn.unmet else weight)
    try:
        return run(bnn, weights, *args, **kwargs)
    finally:
        if once is not None:
            once.used = None  # what runs again, in the backward, draws the same noise again


def _one_sample(bnn: BayesianModule, some: Mapping[tuple[str, ...], Any]) -> dict[str, Tensor]:
    """A sample of some weights: of all of them at once, which is fast, unless most would not be used."""
    needed = sum(tensor.log_scale.numel() for tensor in some.values())
    if 2 * needed > sum(tensor.log_scale.numel() for tensor in random_tensors(bnn).values()):
        return bnn.draw()
    return {name: w for names, tensor in some.items() for name, w in dict.fromkeys(names, tensor.draw()).items()}


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
