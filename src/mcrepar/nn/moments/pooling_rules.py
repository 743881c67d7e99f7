"""Rules of pooling: means of windows, and maxima by Clark's formulas, pair by pair along every dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mcrepar.nn.moments.elementwise_rules import Pair, maximum
from mcrepar.nn.moments.row import Row
from mcrepar.nn.moments.tensor import MomentTensor, refusal

FAR = 100.0  # standard deviations by which padding lies below the smallest mean


def _each(value: Any, dims: int) -> tuple[int, ...]:
    return (int(value),) * dims if isinstance(value, int) else tuple(int(v) for v in value) * (dims // len(value))


def average_pool(dims: int) -> Any:
    """Windows whose n numbers are divided by c: n / c^2 of their mean variance."""

    def rule(
        func: Any,
        input: MomentTensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> MomentTensor:
        if ceil_mode:
            raise refusal(f"{func.__name__} with ceil_mode")
        where = kernel_size, kernel_size if stride is None or stride == [] else stride, padding, False
        rest = (count_include_pad, divisor_override) if dims > 1 else (count_include_pad,)
        mean, spread = (func(t, *where, *rest) for t in (input.expectation, input.variance))
        divisor: Any = divisor_override or math.prod(_each(kernel_size, dims))
        if not count_include_pad and divisor_override is None and any(_each(padding, dims)):
            divisor = divisor * func(torch.ones_like(input.variance[:1]), *where, True)  # the numbers of a window
        return MomentTensor(mean, spread / divisor)

    return rule


def adaptive_average_pool(func: Any, input: MomentTensor, output_size: Any) -> MomentTensor:
    """Windows that cover the input, from floor(k n / m) to ceil((k + 1) n / m)."""
    mean, variance = func(input.expectation, output_size), func(input.variance, output_size)
    for dim in range(-int(func.__name__[-2]), 0):
        n, m = input.shape[dim], mean.shape[dim]
        sizes = [-(-(k + 1) * n // m) - k * n // m for k in range(m)]
        share: Any = 1 / sizes[0]
        if len(set(sizes)) > 1:
            share = (1 / torch.tensor(sizes, dtype=mean.dtype, device=mean.device)).view(-1, *[1] * (-1 - dim))
        variance = variance * share
    return MomentTensor(mean, variance)


def max_pool(dims: int) -> Any:
    """The maximum of a box is that of its rows' maxima: one dimension after the other."""

    def rule(
        func: Any,
        input: MomentTensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> MomentTensor:
        if return_indices:
            raise refusal(f"{func.__name__} with indices")
        stride = kernel_size if stride is None or stride == [] else stride
        sizes = zip(*(_each(v, dims) for v in (kernel_size, stride, padding, dilation)), strict=True)
        pair = input.expectation, input.variance
        low = pair[0].detach().amin() - FAR * pair[1].detach().amax().sqrt() - 1
        for dim, (k, s, p, d) in zip(range(-dims, 0), sizes, strict=True):
            pair = _max_along(pair, low, dim, k, s, p, d, ceil_mode)
        return MomentTensor(*pair)

    return rule


def _max_along(pair: Pair, low: Tensor, dim: int, k: int, stride: int, padding: int, dilation: int, ceil: bool) -> Pair:
    """The maximum over windows of one dimension."""
    length, reach = pair[0].shape[dim], dilation * (k - 1) + 1
    steps = (length + 2 * padding - reach) / stride
    count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
    if ceil and (count - 1) * stride >= length + padding:
        count -= 1  # a window that would begin in the padding
    after = max((count - 1) * stride + reach - length - padding, 0)
    m, v = (_extended(t, dim, padding, after, fill) for t, fill in zip(pair, (low, low.new_zeros(())), strict=True))

    def shifted(t: Tensor, offset: int) -> Tensor:
        index = [slice(None)] * t.dim()
        index[dim] = slice(offset, offset + (count - 1) * stride + 1, stride)
        return t[tuple(index)]

    return tournament([(shifted(m, j * dilation), shifted(v, j * dilation)) for j in range(k)])


def _extended(t: Tensor, dim: int, before: int, after: int, fill: Tensor) -> Tensor:
    if not before and not after:
        return t
    shapes = [[n if j != dim % t.dim() else size for j, n in enumerate(t.shape)] for size in (before, after)]
    return torch.cat([fill.expand(shapes[0]), t, fill.expand(shapes[1])], dim)


def tournament(pairs: list[Pair]) -> Pair:
    """The maximum of several Normals: of two at a time, then of the winners."""
    while len(pairs) > 1:
        rest = pairs[len(pairs) - len(pairs) % 2 :]
        pairs = [maximum(a, b) for a, b in zip(pairs[0::2], pairs[1::2], strict=False)] + rest
    return pairs[0]


def adaptive_max_pool(func: Any, input: MomentTensor, output_size: Any, return_indices: bool = False) -> MomentTensor:
    """Max pooling whose window is the input's size over the output's."""
    dims = int(func.__name__[-2])
    before, after = input.shape[-dims:], [int(n) for n in _each(output_size, dims)]
    if return_indices or any(b % a for b, a in zip(before, after, strict=True)):
        raise refusal(f"{func.__name__} with indices or with windows of different sizes")
    window = [b // a for b, a in zip(before, after, strict=True)]
    pooled: MomentTensor = max_pool(dims)(func, input, window, window)
    return pooled


def amax(func: Any, x: MomentTensor, dim: Any = (), keepdim: bool = False) -> MomentTensor:
    """The maximum over one dimension."""
    if not isinstance(dim, int) and len(dim) != 1:
        raise refusal("amax over several dimensions")
    axis = dim if isinstance(dim, int) else dim[0]
    pairs = list(zip(x.expectation.unbind(axis), x.variance.unbind(axis), strict=True))
    m, v = tournament(pairs)
    return MomentTensor(m.unsqueeze(axis), v.unsqueeze(axis)) if keepdim else MomentTensor(m, v)


def interpolate(func: Any, input: MomentTensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                *rest: Any, **named: Any) -> MomentTensor:  # fmt: skip
    """Upsampling: copies of the nearest neighbour, else interpolated variances, as if neighbours were equal."""
    args = (size, scale_factor, mode, *rest)
    return MomentTensor(func(input.expectation, *args, **named), func(input.variance, *args, **named))


POOLING_RULES: Mapping[str, Row] = {
    **{f"avg_pool{d}d": Row(average_pool(d), fitted=1) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": Row(adaptive_average_pool, fitted=1) for d in (1, 2, 3)},
    **{f"max_pool{d}d": Row(max_pool(d), fitted=1) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": Row(adaptive_max_pool, fitted=1) for d in (1, 2, 3)},
    "amax": Row(amax, fitted=1),
    "interpolate": Row(interpolate, fitted=1),
}
