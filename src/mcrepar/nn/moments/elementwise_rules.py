"""Rules of activation functions: mean and variance of f(x) for a Normal x.

ReLU has a closed form, and with it whatever is made of maxima (Clark 1961); smooth functions take 16 nodes of Gauss and
Hermite. Variances are computed as v times a function of m / sqrt(v): squares of large means do not cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mcrepar.distributions.quadrature import normal_nodes
from mcrepar.nn.moments.linear_rules import square
from mcrepar.nn.moments.tensor import MomentTensor, Row, moments, precise, refusal

NODES = 16
BLOCK = 2**16  # numbers of an activation that are worked on at once: temporaries stay in the cache
BEYOND = 12.0  # standard deviations beyond which nothing is left; the exponential function is slow where it underflows
ROOT_HALF, DENSITY, LOG2_TWO_ROOT_PI = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi), 1 + 0.5 * math.log2(math.pi)
Pair = tuple[Tensor, Tensor]


def root(v: Tensor) -> Tensor:
    """A standard deviation to divide by: m / sqrt(v) and its square stay finite."""
    return v.clamp_min(math.sqrt(torch.finfo(v.dtype).tiny)).sqrt()


def blockwise(f: Callable[..., Pair], m: Tensor, v: Tensor) -> Pair:
    """f(m, v) for a function of single numbers, without a graph, in blocks where memory has no gaps.

    f(m, v, mean, variance) writes its result to the latter two, which are None where it shall make them.
    """
    if torch.compiler.is_compiling() or m.device.type != "cpu" or m.numel() <= BLOCK:
        return f(m, v)
    out, spread = torch.empty_like(m), torch.empty_like(v)
    if not m.stride() == v.stride() == out.stride():
        return f(m, v)
    flat = [torch.split(t.as_strided((t.numel(),), (1,)), BLOCK) for t in (m, v, out, spread)]
    for block in zip(*flat, strict=True):
        f(*block)
    return out, spread


# ---- maxima


class _Relu(torch.autograd.Function):
    """max(x, 0): E = (m c + sqrt(2 v) d) / 2 and Var = v (c - t (t - 2 b)) / 2.

    With b = m / sqrt(2 v), c = erfc(-b), d = exp(-b^2) / sqrt(pi) and t = b c + d. What is left of a unit that is off
    is no difference of large numbers, so that the next layer can divide by its root. Derivatives follow from
    dE f / dm = E f', dE f / dv = E f'' / 2.
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor, v: Tensor) -> Pair:
        ctx.save_for_backward(m, v)
        return blockwise(_relu_block, m, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_grad: Tensor, variance_grad: Tensor) -> Pair:
        m, v = ctx.saved_tensors
        s = root(v)
        a = (m / s).clamp_(-BEYOND, BEYOND)
        upper, phi = 0.5 * torch.erfc(-ROOT_HALF * a), torch.exp(-0.5 * a * a) * DENSITY
        mean = (m * upper + s * phi).clamp_min_(0.0)
        return (
            mean_grad * upper + variance_grad * (2 * mean * (1 - upper)),
            mean_grad * (0.5 * phi / s) + variance_grad * (upper - mean * phi / s),
        )


def _relu_block(m: Tensor, v: Tensor, mean: Tensor | None = None, variance: Tensor | None = None) -> Pair:
    s = root(v).mul_(-1 / ROOT_HALF)
    b = (m / s).clamp_(-BEYOND * ROOT_HALF, BEYOND * ROOT_HALF)  # of the other sign
    half_c = torch.erfc(b).mul_(0.5)
    half_d = (b * b).mul_(-1 / math.log(2)).sub_(LOG2_TWO_ROOT_PI).exp2_()  # exp2 is faster than exp
    mean = torch.mul(m, half_c, out=mean).addcmul_(s, half_d, value=-1).clamp_min_(0.0)
    half_t = half_d.addcmul_(b, half_c, value=-1)
    share = half_c.addcmul_(half_t, b.add_(half_t), value=-2)
    return mean, torch.mul(v, share, out=variance).clamp_min_(0.0)


def positive(m: Tensor, v: Tensor) -> Pair:
    """max(x, 0), in single precision at least: the least standard deviation of half precision (`root`) is 0.09."""
    mean, variance = _Relu.apply(*precise(m, v))  # type: ignore[no-untyped-call]
    return mean.to(m.dtype), variance.to(v.dtype)


def signed(m: Tensor, v: Tensor) -> Tensor:
    """P(x > 0) - P(x < 0)."""
    wide_m, wide_v = precise(m, v)
    return torch.erf(wide_m / root(wide_v) * ROOT_HALF).to(m.dtype)


def leaky_relu(func: Any, x: MomentTensor, negative_slope: Any = 0.01) -> MomentTensor:
    """c x + (1 - c) max(x, 0), with Cov(x, max(x, 0)) = v Phi; c = -1 is the absolute value."""
    m, v, c = x.expectation, x.variance, negative_slope
    mean, variance = positive(m, v)
    return MomentTensor(c * m + (1 - c) * mean, (c + c * (1 - c) * signed(m, v)) * v + (1 - c) ** 2 * variance)


def prelu(func: Any, x: Any, weight: Any) -> MomentTensor:
    """Leaky ReLU with one slope c per channel; a random slope adds Var[c] E min(x, 0)^2."""
    m, v = moments(x, zeros=True)
    c, cv = (t if t is None or t.numel() == 1 else t.view(-1, *[1] * (x.dim() - 2)) for t in moments(weight))
    out = leaky_relu(func, MomentTensor(m, v), c)
    if cv is None:
        return out
    mean, variance = positive(-m, v)
    return MomentTensor(out.expectation, out.variance + cv * (mean * mean + variance))


def maximum(a: Pair, b: Pair) -> Pair:
    """max(a, b) = b + max(a - b, 0) of independent Normals: Var = Var max(a - b, 0) - Var b (P(a > b) - P(a < b))."""
    (m, v), (n, w) = a, b
    mean, variance = positive(m - n, v + w)
    return n + mean, (variance - w * signed(m - n, v + w)).clamp_min(0.0)


def of_two(func: Any, input: Any, other: Any = None, **named: Any) -> Any:
    """torch.max and torch.min of two tensors; along a dimension they would say which number it is."""
    if not isinstance(other, Tensor) or named:
        raise refusal(f"{func.__name__} of one tensor", "torch.amax(x, dim), and -torch.amax(-x, dim) for minima")
    return torch.maximum(input, other) if func.__name__ == "max" else torch.minimum(input, other)


def clamp(func: Any, x: MomentTensor, min: Any = None, max: Any = None) -> MomentTensor:
    """low + max(x - low, 0) - max(x - high, 0), of which the latter two are dependent."""
    if any(isinstance(limit, Tensor) for limit in (min, max)):
        raise refusal("clamp by tensors")
    m, v = x.expectation, x.variance
    low, high = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    if math.isinf(low) and math.isinf(high):
        return x
    if math.isinf(high):
        mean, variance = positive(m - low, v)
        return MomentTensor(low + mean, variance)
    if math.isinf(low):
        mean, variance = positive(high - m, v)
        return MomentTensor(high - mean, variance)
    (first, variance), (second, less) = positive(m - low, v), positive(m - high, v)
    left = positive(high - m, v)[0] - positive(low - m, v)[0]  # E (high - x), which does not cancel where x > high
    return MomentTensor(low + first - second, (variance - less - 2 * second * left).clamp_min(0.0))


# ---- smooth functions


class _Smooth(torch.autograd.Function):
    """sum_n w_n f(m + s x_n), and its variance; backward evaluates f once more, so that no node is saved."""

    @staticmethod
    def forward(ctx: Any, f: Callable[[Tensor], Tensor], m: Tensor, v: Tensor) -> Pair:
        ctx.f = f
        ctx.save_for_backward(m, v)
        return blockwise(partial(_quadrature, f), m, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_grad: Tensor, variance_grad: Tensor) -> tuple[None, Tensor, Tensor]:
        m, v = ctx.saved_tensors
        s, centre, mean = root(v), ctx.f(m), torch.zeros_like(m)
        by_m, by_s = ([torch.zeros_like(m), torch.zeros_like(m)] for _ in range(2))  # of the mean, of the second moment
        for x, w in normal_nodes(NODES):
            with torch.enable_grad():
                u = (m + s * x).requires_grad_()
                value = ctx.f(u)
            (slope,) = torch.autograd.grad(value, u, torch.ones_like(u))
            d = value.detach() - centre
            mean.add_(d, alpha=w)
            for k, part in enumerate((slope, d * slope)):
                by_m[k].add_(part, alpha=w)
                by_s[k].add_(part, alpha=w * x)
        m_grad, s_grad = (
            mean_grad * first + 2 * variance_grad * (second - mean * first) for first, second in (by_m, by_s)
        )
        return None, m_grad, s_grad / (2 * s)


def _quadrature(
    f: Callable[[Tensor], Tensor], m: Tensor, v: Tensor, mean: Tensor | None = None, variance: Tensor | None = None
) -> Pair:
    s, centre = v.sqrt(), f(m)
    mean, second = (torch.zeros_like(m) if t is None else t.zero_() for t in (mean, variance))
    for x, w in normal_nodes(NODES):
        d = f(torch.add(m, s, alpha=x)).sub_(centre)
        mean.add_(d, alpha=w)
        second.addcmul_(d, d, value=w)
    second.addcmul_(mean, mean, value=-1).clamp_min_(0.0)
    return mean.add_(centre), second


def smooth(func: Any, x: MomentTensor, *rest: Any, **named: Any) -> MomentTensor:
    """Any smooth function of single numbers, by quadrature, in single precision at least."""

    def f(u: Tensor) -> Tensor:
        value: Tensor = func(u, *rest, **named)
        return value

    mean, variance = _Smooth.apply(f, *precise(x.expectation, x.variance))  # type: ignore[no-untyped-call]
    return MomentTensor(mean.to(x.dtype), variance.to(x.dtype))


def glu(func: Any, x: Any, dim: int = -1) -> Any:
    """a sigmoid(b), by the rules of both."""
    a, b = x.chunk(2, dim)
    return a * b.sigmoid()


def power(func: Any, x: Any, exponent: Any) -> MomentTensor:
    """x^k for whole k up to 7, of which 16 nodes integrate even the square exactly."""
    if not isinstance(x, MomentTensor) or isinstance(exponent, Tensor) or exponent not in range(1, 8):
        raise refusal("pow with an exponent that is not 1 to 7")
    return square(func, x) if exponent == 2 else smooth(func, x, exponent)


def exponential(func: Any, x: MomentTensor) -> MomentTensor:
    """exp(x) is log-normal."""
    mean = torch.exp(x.expectation + 0.5 * x.variance)
    return MomentTensor(mean, mean * mean * torch.expm1(x.variance))


SMOOTH = (
    "gelu", "silu", "tanh", "sigmoid", "softplus", "elu", "celu", "selu", "mish", "log_sigmoid", "softsign",
    "tanhshrink", "hardswish", "sin", "cos", "erf", "expm1",
)  # fmt: skip
ELEMENTWISE_RULES: Mapping[str, Row] = {
    "relu": Row(lambda func, x: MomentTensor(*positive(x.expectation, x.variance))),
    "leaky_relu": Row(leaky_relu),
    "prelu": Row(prelu),
    **{name: Row(lambda func, x: leaky_relu(func, x, -1.0)) for name in ("abs", "__abs__", "absolute")},
    "maximum": Row(
        lambda func, input, other: MomentTensor(*maximum(moments(input, zeros=True), moments(other, zeros=True))),
        fitted=2,
    ),
    "minimum": Row(lambda func, input, other: -torch.maximum(-input, -other), composite=True),
    **{name: Row(of_two, composite=True) for name in ("max", "min")},
    **{name: Row(clamp) for name in ("clamp", "clip")},
    "hardtanh": Row(lambda func, x, min_val=-1.0, max_val=1.0: x.clamp(min_val, max_val), composite=True),
    "relu6": Row(lambda func, x: x.clamp(0.0, 6.0), composite=True),
    "hardsigmoid": Row(lambda func, x: (x + 3).clamp(0.0, 6.0) / 6, composite=True),
    **{name: Row(smooth) for name in SMOOTH},
    "glu": Row(glu, composite=True),
    "pow": Row(power),
    "exp": Row(exponential),
}
