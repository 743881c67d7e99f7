"""Rules of operations that are linear in each argument: layers, products, sums, views.

Var (W x) = Var[W] (Var x + (E x)^2) + (E W)^2 Var x, as if terms were independent; views keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mcrepar.nn.moments.positions import MOST, SharedVariance, patches_of
from mcrepar.nn.moments.tensor import Mixing, MomentTensor, Row, moments, refusal, unwritable

FACTORED = {
    "linear",
    *(f"conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3)),
}  # these know rank-1 factors
MIXED = 256  # outputs of a dense layer up to which their correlation is known


# ---- layers and products


def layer(func: Any, input: Any, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> MomentTensor:
    """A dense or convolutional layer: one call for the mean, one for every random argument for the variance."""
    (x, xv), (w, wv), (b, bv) = moments(input), moments(weight), moments(bias)
    channel = -1 if func.__name__ == "linear" else x.dim() - w.dim() + 1
    factors = weight.factors if isinstance(weight, MomentTensor) else None

    def call(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        out: Tensor = func(x, w, b, *rest, **named)
        return out

    if factors is not None:  # Var r o (Wbar (s o x)) = r_v / r^2 y^2 + (Wbar^2 E r^2 E s^2) (x_v + s_v / E s^2 x^2)
        share = _along(factors.inputs, x, channel)
        mean, noise = call(x, w), x * x * share if xv is None else torch.addcmul(xv, x, x * share)
        variance = _plus(call(noise, factors.square), mean, mean * _along(factors.outputs, mean, channel))
        if channel == -1:  # of s o x / E s, which all outputs of a dense layer share
            xv = noise / (1 - share).clamp_min(torch.finfo(noise.dtype).eps)
        mean = mean if b is None else mean + _along(b, mean, channel)
    else:
        mean = call(x, w, b)
        variance = torch.zeros_like(mean) if xv is None and wv is None else spread(call, x, xv, w, wv)
    result = MomentTensor(mean, variance if bv is None else variance + _along(bv, mean, channel))
    if (wv is not None or factors is not None) and mean.shape[2:].numel() <= MOST:
        constant = bv.mean() / wv.mean() if bv is not None and wv is not None else None
        result.patches = patches_of(func, x, w, *rest, constant=constant, **named)
    if channel == -1 and mean.dim() == 2 and xv is not None and mean.shape[1] <= MIXED:
        result.mix(Mixing(w, xv, result.variance))
    return result


def _plus(t: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """t + a b, in the memory of t where no graph needs it."""
    return torch.addcmul(t, a, b) if torch.is_grad_enabled() else t.addcmul_(a, b)


def _along(values: Tensor, like: Tensor, channel: int) -> Tensor:
    """One number per channel, in a shape that multiplies activations."""
    return values.to(like.dtype).view([-1 if k == channel % like.dim() else 1 for k in range(like.dim())])


def spread(call: Callable[[Any, Any], Tensor], x: Any, xv: Tensor | None, y: Any, yv: Tensor | None) -> Tensor:
    """Var f(x, y) of an operation that is linear in both: f(x^2 + x_v, y_v) + f(x_v, y^2)."""
    if yv is None:
        return call(xv, y * y)
    first = call(x * x if xv is None else torch.addcmul(xv, x, x), yv)
    if xv is None:
        return first
    return first + call(xv, y * y) if torch.is_grad_enabled() else first.add_(call(xv, y * y))


def product(func: Any, input: Any, other: Any, *rest: Any, **named: Any) -> MomentTensor:
    """Any operation that is linear in both arguments; a number times itself is a square."""
    if input is other and func.__name__.strip("_") in ("mul", "multiply"):
        return square(func, input)
    (x, xv), (y, yv) = moments(input), moments(other)
    variance = spread(lambda p, q: func(p, q, *rest, **named), x, xv, y, yv)
    return MomentTensor(func(x, y, *rest, **named), variance)


def square(func: Any, x: MomentTensor) -> MomentTensor:
    """E x^2 = m^2 + v, Var x^2 = 2 v^2 + 4 m^2 v, of a Normal x."""
    m2, v = x.expectation.square(), x.variance
    return MomentTensor(m2 + v, 2 * v * (v + 2 * m2))


def einsum(func: Any, equation: str, *operands: Any) -> MomentTensor:
    """A product of two tensors by their indices."""
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    if len(tensors) != 2 or tensors[0] is tensors[1]:
        raise refusal(f"einsum of {'a tensor with itself' if len(tensors) == 2 else f'{len(tensors)} tensors'}")
    return product(lambda a, b: func(equation, a, b), *tensors)


def division(func: Any, input: Any, other: Any, **named: Any) -> MomentTensor:
    """By a number or a tensor that is not random."""
    random = isinstance(other, MomentTensor)
    if random or named.get("rounding_mode") is not None:
        raise refusal("div by random numbers" if random else "div with a rounding mode")
    mean = func(input.expectation, other)
    return MomentTensor(mean, (input.variance / (other * other)).expand_as(mean))


# ---- sums, views, and what puts numbers together


def sum_of_two(func: Any, input: Any, other: Any, *, alpha: Any = 1) -> MomentTensor:
    """a + alpha b, a - alpha b or b - alpha a; of a tensor with itself the sum is a multiple."""
    (x, xv), (y, yv), name = moments(input), moments(other), func.__name__
    mean: Tensor = func(x, y, alpha=alpha) if alpha != 1 else func(x, y)
    if input is other:
        return MomentTensor(mean, xv * (1 + (-alpha if "sub" in name else alpha)) ** 2)
    scales = (alpha * alpha, 1) if "rsub" in name else (1, alpha * alpha)
    parts = [v * scale if scale != 1 else v for v, scale in zip((xv, yv), scales, strict=True) if v is not None]
    if len(parts) == 2:
        return MomentTensor(mean, parts[0] + parts[1])
    return MomentTensor(mean, parts[0].expand_as(mean).clone())  # the sum and what was added may be written to


def mean(func: Any, x: MomentTensor, *rest: Any, **named: Any) -> MomentTensor:
    """The mean of n numbers: 1/n of the mean variance."""
    m = func(x.expectation, *rest, **named)
    variance = func(x.variance, *rest, **named) * (m.numel() / max(x.expectation.numel(), 1))
    result, dims = MomentTensor(m, variance), rest[0] if rest else named.get("dim", ())
    over = {d % x.dim() for d in ([dims] if isinstance(dims, int) else dims or ())}
    return over_positions(x, result) if over == set(range(2, x.dim())) else result


def over_positions(x: MomentTensor, result: MomentTensor) -> MomentTensor:
    """A mean over all positions, with the variance that they share."""
    if x.patches is not None and x.patches.unchanged() and result.shape[2:].numel() == 1:
        result.shared = SharedVariance(x.variance, x.patches, result.shape)
    return result


def view(func: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """The same function of mean and variance: sums, shapes, indices, copies, dtypes."""
    if func.__name__ in LIKE:
        rest, named = pytree.tree_map_only(MomentTensor, lambda t: t.expectation, (rest, named))
        if not isinstance(x, MomentTensor):
            return func(x, *rest, **named)
    if not isinstance(x, MomentTensor):
        raise refusal(f"{func.__name__} by random numbers")
    pair = func(x.expectation, *rest, **named), func(x.variance, *rest, **named)
    if isinstance(pair[0], Tensor):
        return MomentTensor(*pair)
    return type(pair[0])(MomentTensor(m, v) for m, v in zip(*pair, strict=True))


def embedding(func: Any, input: Any, weight: Any, *rest: Any, **named: Any) -> MomentTensor:
    """The rows of the words."""
    if isinstance(input, MomentTensor):
        raise refusal("embedding of random numbers")
    if named.get("max_norm", rest[1] if len(rest) > 1 else None) is not None:
        raise refusal("embedding with max_norm")
    return MomentTensor(*(func(input, w, *rest, **named) for w in (weight.expectation, weight.variance)))


def joined(func: Any, tensors: Any, *rest: Any, **named: Any) -> MomentTensor:
    """Concatenation and stacking."""
    means, variances = zip(*(moments(x, zeros=True) for x in tensors), strict=True)
    return MomentTensor(func(means, *rest, **named), func(variances, *rest, **named))


def chosen(func: Any, condition: Any, input: Any, other: Any) -> MomentTensor:
    """torch.where by a condition that is not random."""
    if isinstance(condition, MomentTensor):
        raise refusal("nonzero")
    (x, xv), (y, yv) = moments(input), moments(other)
    mean = func(condition, x, y)
    zero = mean.new_zeros(())
    variance = func(condition, zero if xv is None else xv, zero if yv is None else yv)
    return MomentTensor(mean, variance.expand_as(mean))


def set_item(func: Any, x: Any, index: Any, value: Any) -> None:
    """x[index] = value, in place."""
    if not isinstance(x, MomentTensor):
        raise unwritable("torch.cat and torch.stack in the network")
    mean, variance = moments(value)
    x.mix(None)
    x.expectation[index] = mean
    x.variance[index] = 0.0 if variance is None else variance
    for k, sample in enumerate(x.samples):
        sample[index] = value.samples[k] if isinstance(value, MomentTensor) else value


LIKE = {"view_as", "reshape_as", "expand_as", "type_as", "to"}  # of another tensor they take the shape or the dtype
VIEWS = (
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "swapaxes",
    "swapdims", "movedim", "t", "expand", "expand_as", "repeat", "repeat_interleave", "narrow", "select",
    "index_select", "gather", "chunk", "split", "tensor_split", "unbind", "__getitem__", "contiguous", "clone",
    "detach", "to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda", "flip", "roll", "tile",
    "take_along_dim", "diagonal", "unfold", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "view_as",
    "reshape_as", "requires_grad_", "broadcast_to", "tril", "triu", "ravel", "__iter__", "atleast_1d", "rot90",
    "adjoint", "T", "mT", "H", "mH", "data",
)  # fmt: skip
LINEAR_RULES: Mapping[str, Row] = {
    **{name: Row(layer, fitted=1) for name in sorted(FACTORED)},
    "embedding": Row(embedding),
    **{name: Row(product, fitted=2) for name in ("mul", "multiply", "matmul", "__rmatmul__", "bmm", "mm", "mv", "dot")},
    "einsum": Row(einsum, fitted=2),
    "addmm": Row(lambda func, x, a, b, *, beta=1, alpha=1: torch.add(beta * x, a @ b, alpha=alpha), composite=True),
    "square": Row(square),
    **{name: Row(division) for name in ("div", "divide", "true_divide")},
    **{name: Row(sum_of_two, fitted=2) for name in ("add", "sub", "subtract", "__rsub__", "rsub")},
    "neg": Row(lambda func, x: MomentTensor(-x.expectation, x.variance.clone())),
    "sum": Row(view, fitted=1),
    "mean": Row(mean, fitted=1),
    **{name: Row(view) for name in VIEWS},
    **{name: Row(joined) for name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")},
    "pad": Row(
        lambda func, x, pad, mode="constant", value=None: MomentTensor(
            func(x.expectation, pad, mode, value), func(x.variance, pad, mode)
        )
    ),  # a constant is not random
    "where": Row(chosen),
    "masked_fill": Row(lambda func, x, mask, value: torch.where(mask, value, x), composite=True),
    "__setitem__": Row(set_item, composite=True),
}
