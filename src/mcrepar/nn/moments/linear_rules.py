"""Rules of operations that are linear in each argument: layers, products, sums, views.

Var (W x) = Var[W] (Var x + (E x)^2) + (E W)^2 Var x, as if terms were independent; views keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mcrepar.errors import MethodError
from mcrepar.nn.moments.row import Row
from mcrepar.nn.moments.tensor import MomentTensor, moments, refusal

DENSE = ("linear",)
CONVOLUTIONS = tuple(f"conv{kind}{d}d" for kind in ("", "_transpose") for d in (1, 2, 3))
LAYERS = {*DENSE, *CONVOLUTIONS}  # operations that know what to do with rank-1 factors


# ---- layers


def layer(func: Any, input: Any, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> MomentTensor:
    """A dense or convolutional layer: one call for the mean, one for every random argument for the variance."""
    (x, xv), (w, wv), (b, bv) = moments(input), moments(weight), moments(bias)
    channel = -1 if func.__name__ in DENSE else x.dim() - w.dim() + 1
    if isinstance(weight, MomentTensor) and weight.factors is not None:
        mean, variance = _factored(func, x, xv, weight, channel, rest, named)
        mean = mean if b is None else mean + _along(b, mean, channel)
    else:
        mean = func(x, w, b, *rest, **named)
        parts = []
        if wv is not None:
            parts.append(func(x * x if xv is None else torch.addcmul(xv, x, x), wv, None, *rest, **named))
        if xv is not None:
            parts.append(func(xv, w * w, None, *rest, **named))
        variance = _sum(parts) if parts else torch.zeros_like(mean)
    return MomentTensor(mean, variance if bv is None else variance + _along(bv, mean, channel))


def _factored(
    func: Any, x: Tensor, xv: Tensor | None, weight: MomentTensor, channel: int, rest: Any, named: Any
) -> tuple[Tensor, Tensor]:
    """r o (Wbar (s o x)): Var u = s_v (x^2 + x_v) + s^2 x_v, and of r o z likewise.

    E r and E s are inside the weights of both calls: with p = r_v / r^2 it is Var y = p y^2 + (1 + p) r^2 z_v.
    """
    assert weight.factors is not None
    (r, rv), (s, sv) = weight.factors.outputs, weight.factors.inputs
    s, sv = (_along(t, x, channel) for t in (s, sv))
    uv = _sum([x * x * sv] if xv is None else [x * x * sv, xv * (sv + s * s)])
    y = func(x, weight.expectation, None, *rest, **named)
    yv = func(uv, weight.factors.weight.square(), None, *rest, **named)
    r, rv = (_along(t, y, channel) for t in (r, rv))
    share = rv / (r * r).clamp_min(torch.finfo(r.dtype).tiny ** 0.5)
    return y, torch.addcmul(yv * (rv + r * r), y * y, share)


def _along(values: Tensor, like: Tensor, channel: int) -> Tensor:
    """One number per channel, in a shape that multiplies activations."""
    channel %= like.dim()
    return values.to(like.dtype).view([-1 if k == channel else 1 for k in range(like.dim())])


def _sum(parts: list[Tensor]) -> Tensor:
    """The sum of fresh tensors; the first is written to where no graph needs it."""
    if torch.is_grad_enabled():
        return sum(parts[1:], parts[0])
    for part in parts[1:]:
        parts[0].add_(part)
    return parts[0]


def embedding(func: Any, input: Tensor, weight: MomentTensor, *rest: Any, **named: Any) -> MomentTensor:
    """The rows of the words."""
    if isinstance(input, MomentTensor):
        raise refusal("embedding of random numbers")
    return MomentTensor(*(func(input, w, *rest, **named) for w in (weight.expectation, weight.variance)))


# ---- products and sums


def product(func: Any, a: Any, b: Any, *rest: Any, **named: Any) -> MomentTensor:
    """Any operation that is linear in both: Var = f(a_v, b^2 + b_v) + f(a^2, b_v)."""
    if a is b and func.__name__.strip("_") in ("mul", "multiply"):
        return square(func, a)
    (x, xv), (y, yv) = moments(a), moments(b)
    parts = []
    if xv is not None:
        parts.append(func(xv, y * y if yv is None else torch.addcmul(yv, y, y), *rest, **named))
    if yv is not None:
        parts.append(func(x * x, yv, *rest, **named))
    return MomentTensor(func(x, y, *rest, **named), sum(parts[1:], parts[0]))


def square(func: Any, x: MomentTensor) -> MomentTensor:
    """E x^2 = m^2 + v, Var x^2 = 2 v^2 + 4 m^2 v, of a Normal x."""
    m2, v = x.expectation.square(), x.variance
    return MomentTensor(m2 + v, 2 * v * (v + 2 * m2))


def einsum(func: Any, equation: str, *operands: Any) -> MomentTensor:
    """A product of two tensors by their indices."""
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    if len(tensors) != 2:
        raise refusal(f"einsum of {len(tensors)} tensors")
    return product(lambda a, b: func(equation, a, b), *tensors) if tensors[0] is not tensors[1] else _unlike(func)


def _unlike(func: Any) -> MomentTensor:
    raise refusal(f"{func.__name__} of a tensor with itself")


def addmm(func: Any, input: Any, mat1: Any, mat2: Any, **named: Any) -> MomentTensor:
    """input + mat1 @ mat2."""
    return _sum_of_two(torch.add, input, product(torch.matmul, mat1, mat2)) if not named else _unlike(func)


def division(func: Any, a: Any, b: Any, **named: Any) -> MomentTensor:
    """By a number or a tensor that is not random."""
    if isinstance(b, MomentTensor) or named.get("rounding_mode") is not None:
        raise refusal("div by random numbers" if isinstance(b, MomentTensor) else "div with a rounding mode")
    mean = func(a.expectation, b)
    return MomentTensor(mean, (a.variance / (b * b)).expand_as(mean))


def _sum_of_two(func: Any, a: Any, b: Any, **named: Any) -> MomentTensor:
    """a + alpha b or a - alpha b; of a tensor with itself the sum is a multiple."""
    (x, xv), (y, yv), alpha = moments(a), moments(b), named.get("alpha", 1)
    mean: Tensor = func(x, y, **named)
    if a is b:
        sign = -1 if "sub" in func.__name__ else 1
        return MomentTensor(mean, xv * (1 + sign * alpha) ** 2)
    parts = [v * factor if factor != 1 else v for v, factor in ((xv, 1), (yv, alpha * alpha)) if v is not None]
    if len(parts) == 2:
        return MomentTensor(mean, parts[0] + parts[1])
    return MomentTensor(mean, parts[0].expand_as(mean).clone())  # the sum and what was added may be written to


def reduced_sum(func: Any, x: MomentTensor, *rest: Any, **named: Any) -> MomentTensor:
    """A sum over dimensions."""
    return MomentTensor(func(x.expectation, *rest, **named), func(x.variance, *rest, **named))


def reduced_mean(func: Any, x: MomentTensor, *rest: Any, **named: Any) -> MomentTensor:
    """The mean of n numbers: 1/n of the mean variance."""
    mean = func(x.expectation, *rest, **named)
    return MomentTensor(mean, func(x.variance, *rest, **named) * (mean.numel() / max(x.expectation.numel(), 1)))


# ---- views, and what puts numbers together


def view(func: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """The same function of mean and variance: shapes, indices, copies, dtypes."""
    if not isinstance(x, MomentTensor):
        raise refusal(f"{func.__name__} by random numbers")
    pair = func(x.expectation, *rest, **named), func(x.variance, *rest, **named)
    if isinstance(pair[0], Tensor):
        return MomentTensor(*pair)
    return type(pair[0])(MomentTensor(m, v) for m, v in zip(*pair, strict=True))


def transposed(kind: str) -> Callable[..., MomentTensor]:
    """x.T and its like, which torch dispatches as the getter of a property."""
    return lambda func, x: MomentTensor(getattr(x.expectation, kind), getattr(x.variance, kind))


def joined(func: Any, tensors: Any, *rest: Any, **named: Any) -> MomentTensor:
    """Concatenation and stacking."""
    pairs = [moments(x) for x in tensors]
    variances = [torch.zeros_like(m) if v is None else v for m, v in pairs]
    return MomentTensor(func([m for m, _ in pairs], *rest, **named), func(variances, *rest, **named))


def padded(func: Any, x: MomentTensor, pad: Any, mode: str = "constant", value: float | None = None) -> MomentTensor:
    """A constant is not random; reflections and the like are."""
    return MomentTensor(func(x.expectation, pad, mode, value), func(x.variance, pad, mode))


def chosen(func: Any, condition: Any, a: Any, b: Any) -> MomentTensor:
    """torch.where by a condition that is not random."""
    if isinstance(condition, MomentTensor):
        raise refusal("nonzero")
    (x, xv), (y, yv) = moments(a), moments(b)
    mean = func(condition, x, y)
    variance = func(
        condition, *(torch.zeros((), dtype=mean.dtype, device=mean.device) if v is None else v for v in (xv, yv))
    )
    return MomentTensor(mean, variance.expand_as(mean))


def masked_fill(func: Any, x: Any, mask: Any, value: Any) -> MomentTensor:
    """What is filled in is not random."""
    if isinstance(mask, MomentTensor) or isinstance(value, MomentTensor):
        raise refusal("masked_fill by random numbers")
    return MomentTensor(func(x.expectation, mask, value), func(x.variance, mask, 0.0))


def set_item(func: Any, x: Any, index: Any, value: Any) -> None:
    """x[index] = value, in place."""
    if not isinstance(x, MomentTensor):
        raise MethodError(
            "draws='moments' with random numbers that are written into an ordinary tensor",
            "it has no place for their variance",
            "draws=100, or torch.cat and torch.stack in the network",
        )
    mean, variance = moments(value)
    x.expectation[index] = mean
    x.variance[index] = 0.0 if variance is None else variance
    for k, sample in enumerate(x.samples):
        sample[index] = value.samples[k] if isinstance(value, MomentTensor) else value


VIEWS = (
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "swapaxes",
    "swapdims", "movedim", "t", "expand", "expand_as", "repeat", "repeat_interleave", "narrow", "select",
    "index_select", "gather", "chunk", "split", "tensor_split", "unbind", "__getitem__", "contiguous", "clone",
    "detach", "to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda", "flip", "roll", "tile",
    "take_along_dim", "diagonal", "unfold", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "view_as",
    "reshape_as", "requires_grad_", "broadcast_to", "tril", "triu", "ravel", "__iter__", "atleast_1d", "rot90",
    "adjoint",
)  # fmt: skip
LINEAR_RULES: Mapping[str, Row] = {
    **{name: Row(layer, fitted=1) for name in sorted(LAYERS)},
    "embedding": Row(embedding),
    **{name: Row(product, fitted=2) for name in ("mul", "multiply", "matmul", "__rmatmul__", "bmm", "mm", "mv", "dot")},
    "einsum": Row(einsum, fitted=2),
    "addmm": Row(addmm, fitted=1),
    "square": Row(square),
    **{name: Row(division) for name in ("div", "divide", "true_divide")},
    **{name: Row(_sum_of_two, fitted=2) for name in ("add", "sub", "subtract", "__rsub__", "rsub")},
    "neg": Row(lambda func, x: MomentTensor(-x.expectation, x.variance.clone())),
    "sum": Row(reduced_sum, fitted=1),
    "mean": Row(reduced_mean, fitted=1),
    **{name: Row(view) for name in VIEWS},
    **{kind: Row(transposed(kind)) for kind in ("T", "mT", "H", "mH", "data")},
    **{name: Row(joined) for name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")},
    "pad": Row(padded),
    "where": Row(chosen),
    "masked_fill": Row(masked_fill),
    "__setitem__": Row(set_item, composite=True),
}
