"""Rules of pooling: means of windows, and maxima by Clark's formulas, pair by pair along every dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mcrepar.nn.moments.elementwise_rules import Pair, maximum
from mcrepar.nn.moments.linear_rules import over_positions, view
from mcrepar.nn.moments.tensor import MomentTensor, Row, refusal

FAR = 100.0  # standard deviations by which padding lies below the smallest mean


def _each(value: Any, dims: int) -> tuple[int, ...]:
    return (int(value),) * dims if isinstance(value, int) else tuple(int(v) for v in value) * (dims // len(value))


def average_pool(
    dims: int, func: Any, input: MomentTensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> MomentTensor:  # fmt: skip
    """Windows whose n numbers are divided by c: n / c^2 of their mean variance."""
    if ceil_mode:
        raise refusal(f"{func.__name__} with ceil_mode")
    where = kernel_size, kernel_size if stride is None or stride == [] else stride, padding, False
    rest = (count_include_pad, divisor_override) if dims > 1 else (count_include_pad,)
    mean, spread = (func(t, *where, *rest) for t in (input.expectation, input.variance))
    divisor: Any = divisor_override or math.prod(_each(kernel_size, dims))
    if not count_include_pad and divisor_override is None and any(_each(padding, dims)):
        divisor = divisor * func(torch.ones_like(input.variance[:1]), *where, True)  # the numbers of a window
    result = MomentTensor(mean, spread / divisor)
    whole = _each(kernel_size, dims) == input.shape[-dims:] and not any(_each(padding, dims))
    return over_positions(input, result) if whole and divisor_override is None else result


def adaptive_average_pool(func: Any, input: MomentTensor, output_size: Any) -> MomentTensor:
    """Windows that cover the input, from floor(k n / m) to ceil((k + 1) n / m)."""
    mean, variance = func(input.expectation, output_size), func(input.variance, output_size)
    for dim in range(-int(func.__name__[-2]), 0):
        n, m = input.shape[dim], mean.shape[dim]
        sizes = [-(-(k + 1) * n // m) - k * n // m for k in range(m)]
        if len(set(sizes)) == 1:
            variance = variance / sizes[0]
        else:
            variance = variance / torch.tensor(sizes, dtype=mean.dtype, device=mean.device).view(-1, *[1] * (-1 - dim))
    return over_positions(input, MomentTensor(mean, variance))


def max_pool(
    dims: int, func: Any, input: MomentTensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> MomentTensor:  # fmt: skip
    """The maximum of a box is that of its rows' maxima: one dimension after the other."""
    if return_indices:
        raise refusal(f"{func.__name__} with indices")
    stride = kernel_size if stride is None or stride == [] else stride
    sizes = zip(*(_each(v, dims) for v in (kernel_size, stride, padding, dilation)), strict=True)
    m, v = input.expectation, input.variance
    low = m.detach().amin() - FAR * v.detach().amax().sqrt() - 1
    for dim, (k, s, p, d) in zip(range(-dims, 0), sizes, strict=True):
        first, second = (_windows(t, fill, dim, k, s, p, d, ceil_mode) for t, fill in ((m, low), (v, low * 0)))
        m, v = tournament(list(zip(first, second, strict=True)))
    return MomentTensor(m, v)


def _windows(
    t: Tensor, fill: Tensor, dim: int, k: int, stride: int, padding: int, dilation: int, ceil: bool
) -> tuple[Tensor, ...]:
    """The first, second, ... k-th number of all windows along a dimension."""
    length, reach = t.shape[dim], dilation * (k - 1) + 1
    steps = (length + 2 * padding - reach) / stride
    count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
    if ceil and (count - 1) * stride >= length + padding:
        count -= 1  # a window that would begin in the padding
    after = max((count - 1) * stride + reach - length - padding, 0)
    if padding or after:
        shapes = [[n if j != dim % t.dim() else size for j, n in enumerate(t.shape)] for size in (padding, after)]
        t = torch.cat([fill.expand(shapes[0]), t, fill.expand(shapes[1])], dim)
    return t.unfold(dim, reach, stride)[..., ::dilation].unbind(-1)


def tournament(pairs: list[Pair]) -> Pair:
    """The maximum of several Normals: of two at a time, then of the winners."""
    while len(pairs) > 1:
        rest = pairs[len(pairs) - len(pairs) % 2 :]
        pairs = [maximum(a, b) for a, b in zip(pairs[0::2], pairs[1::2], strict=False)] + rest
    return pairs[0]


def adaptive_max_pool(
    dims: int, func: Any, input: MomentTensor, output_size: Any, return_indices: bool = False
) -> MomentTensor:
    """Max pooling whose window is the input's size over the output's."""
    before = input.shape[-dims:]
    sizes = [output_size] * dims if output_size is None or isinstance(output_size, int) else output_size
    after = [b if a is None else a for a, b in zip(sizes, before, strict=True)]
    if return_indices or any(b % a for b, a in zip(before, after, strict=True)):
        raise refusal(f"{func.__name__} with indices or with windows of different sizes")
    return max_pool(dims, func, input, [b // a for b, a in zip(before, after, strict=True)])


def amax(func: Any, x: MomentTensor, dim: Any = (), keepdim: bool = False) -> MomentTensor:
    """The maximum over dimensions, one after the other, the last first."""
    m, v = x.expectation, x.variance
    dims = {dim % m.dim()} if isinstance(dim, int) else {d % m.dim() for d in dim or range(m.dim())}
    for d in sorted(dims, reverse=True):
        m, v = tournament(list(zip(m.unbind(d), v.unbind(d), strict=True)))
        m, v = (m.unsqueeze(d), v.unsqueeze(d)) if keepdim else (m, v)
    return MomentTensor(m, v)


def interpolate(func: Any, input: MomentTensor, *rest: Any, **named: Any) -> Any:
    """As if the neighbours that it mixes were equal; weights below 0 would give variances below 0."""
    if "bicubic" in (*rest, named.get("mode")):
        raise refusal("interpolate with mode='bicubic'")
    return view(func, input, *rest, **named)


POOLING_RULES: Mapping[str, Row] = {
    **{f"avg_pool{d}d": Row(partial(average_pool, d), fitted=1) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": Row(adaptive_average_pool, fitted=1) for d in (1, 2, 3)},
    **{f"max_pool{d}d": Row(partial(max_pool, d), fitted=1) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": Row(partial(adaptive_max_pool, d), fitted=1) for d in (1, 2, 3)},
    "amax": Row(amax, fitted=1),
    "interpolate": Row(interpolate, fitted=1),
}
