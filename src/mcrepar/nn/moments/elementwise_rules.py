"""Rules of activation functions: mean and variance of f(x) for a Normal x.

Maxima of Normals have closed forms (Clark 1961), and with them ReLU and its relatives; smooth functions take 16 nodes
of Gauss and Hermite. Variances are computed as v times a function of m / sqrt(v): m^2 does not cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mcrepar.distributions.quadrature import normal_nodes
from mcrepar.nn.moments.linear_rules import square
from mcrepar.nn.moments.row import Row
from mcrepar.nn.moments.tensor import MomentTensor, moments, refusal

NODES = 16
BLOCK = 2**15  # numbers of an activation that are worked on at once: temporaries stay in the cache
BEYOND = 12.0  # standard deviations beyond which nothing is left; the exponential function is slow where it underflows
ROOT_HALF, DENSITY = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
Pair = tuple[Tensor, Tensor]


def least(v: Tensor) -> float:
    """The smallest variance to divide by: m / sqrt(v) and its square stay finite."""
    return math.sqrt(torch.finfo(v.dtype).tiny)


def blockwise(f: Callable[[Tensor, Tensor], Pair], m: Tensor, v: Tensor) -> Pair:
    """f(m, v) for a function of single numbers, in blocks where no graph is kept."""
    dense = m.device.type == "cpu" and m.stride() == v.stride() and _dense(m)
    if torch.is_grad_enabled() or not dense or m.numel() <= BLOCK or torch.compiler.is_compiling():
        return f(m, v)
    out, spread = torch.empty_like(m), torch.empty_like(v)
    flat = [t.as_strided((t.numel(),), (1,)) for t in (m, v, out, spread)]
    for k in range(0, m.numel(), BLOCK):
        mk, vk, ok, sk = (t[k : k + BLOCK] for t in flat)
        first, second = f(mk, vk)
        ok.copy_(first)
        sk.copy_(second)
    return out, spread


def _dense(t: Tensor) -> bool:
    """Whether the numbers fill a piece of memory without gaps, in whatever order of dimensions."""
    return t.is_contiguous() or (t.dim() in (4, 5) and t.is_contiguous(memory_format=FORMATS[t.dim()]))


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


# ---- maxima


class _Relu(torch.autograd.Function):
    """max(x, 0): E = m Phi + s phi, Var = v (Phi - phi (a e + phi) + a^2 (1 - e^2) / 4), a = m / s, e = 2 Phi - 1.

    Derivatives follow from dE f / dm = E f', dE f / dv = E f'' / 2; only m and v are saved for backward.
    """

    @staticmethod
    def forward(ctx: Any, m: Tensor, v: Tensor) -> Pair:
        ctx.save_for_backward(m, v)
        with torch.no_grad():
            return blockwise(_relu_block, m, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_grad: Tensor, variance_grad: Tensor) -> Pair:
        m, v = ctx.saved_tensors
        s = v.clamp_min(least(v)).sqrt()
        a = (m / s).clamp_(-BEYOND, BEYOND)
        upper, phi = 0.5 + 0.5 * torch.erf(a * ROOT_HALF), torch.exp(-0.5 * a * a) * DENSITY
        mean = m * upper + s * phi
        return (
            mean_grad * upper + variance_grad * (2 * mean * (1 - upper)),
            mean_grad * (0.5 * phi / s) + variance_grad * (upper - mean * phi / s),
        )


def _relu_block(m: Tensor, v: Tensor) -> Pair:
    s = v.clamp_min(least(v)).sqrt_()
    a = (m / s).clamp_(-BEYOND, BEYOND)
    e, q = torch.erf(a * ROOT_HALF), a * a
    phi = torch.exp(q * -0.5).mul_(DENSITY)
    upper = e.mul(0.5).add_(0.5)
    mean = torch.addcmul(s.mul_(phi), m, upper)
    q.addcmul_(q, e.square(), value=-1)  # a^2 (1 - e^2)
    upper.add_(q, alpha=0.25).addcmul_(a.mul_(e).add_(phi), phi, value=-1)
    return mean, upper.mul_(v).clamp_min_(0.0)


def relu(func: Any, x: MomentTensor) -> MomentTensor:
    """max(x, 0)."""
    if torch.is_grad_enabled():
        return MomentTensor(*_Relu.apply(x.expectation, x.variance))  # type: ignore[no-untyped-call]
    return MomentTensor(*blockwise(_relu_block, x.expectation, x.variance))


def leaky_relu(func: Any, x: MomentTensor, negative_slope: Any = 0.01) -> MomentTensor:
    """c x + (1 - c) max(x, 0), with Cov(x, max(x, 0)) = v Phi; c = -1 is the absolute value."""
    m, v, c = x.expectation, x.variance, negative_slope
    positive = relu(func, x)
    upper = 0.5 + 0.5 * torch.erf(m / v.clamp_min(least(v)).sqrt() * ROOT_HALF)
    mean = c * m + (1 - c) * positive.expectation
    variance = (c * c + 2 * c * (1 - c) * upper) * v + (1 - c) ** 2 * positive.variance
    return MomentTensor(mean, variance)


def prelu(func: Any, x: Any, weight: Any) -> MomentTensor:
    """Leaky ReLU with one slope per channel."""
    if isinstance(weight, MomentTensor) or not isinstance(x, MomentTensor):
        raise refusal("prelu with a random slope")
    ones = [1] * (x.dim() - 2)
    return leaky_relu(func, x, weight if weight.numel() == 1 else weight.view(-1, *ones))


def maximum(a: Pair, b: Pair) -> Pair:
    """max(a, b) of independent Normals: b + max(a - b, 0), t^2 = Var a + Var b (Clark)."""
    (m, v), (n, w) = a, b
    whole = v + w
    t = whole.clamp_min(least(whole)).sqrt()
    c = ((m - n) / t).clamp(-BEYOND, BEYOND)
    e, phi = torch.erf(c * ROOT_HALF), torch.exp(-0.5 * c * c) * DENSITY
    upper = 0.5 + 0.5 * e
    shape = 0.25 * c * c * (1 - e * e) - phi * (c * e + phi)
    return n + (m - n) * upper + t * phi, (w + (v - w) * upper + whole * shape).clamp_min(0.0)


def larger(func: Any, a: Any, b: Any) -> MomentTensor:
    """torch.maximum."""
    pairs = [(m, torch.zeros_like(m) if v is None else v) for m, v in (moments(a), moments(b))]
    return MomentTensor(*maximum(*pairs))


def smaller(func: Any, a: Any, b: Any) -> MomentTensor:
    """torch.minimum, -max(-a, -b)."""
    pairs = [(-m, torch.zeros_like(m) if v is None else v) for m, v in (moments(a), moments(b))]
    mean, variance = maximum(*pairs)
    return MomentTensor(-mean, variance)


def clipped(m: Tensor, v: Tensor, low: float, high: float) -> Pair:
    """min(max(x, low), high): the integrals of x and x^2 between the two, and what lies beyond."""
    s = v.clamp_min(least(v)).sqrt()
    shift = m.clamp(low, high)  # moments about a point near them, so that squares do not cancel
    d, parts = m - shift, []
    for edge in (low, high):
        z = ((edge - m) / s).clamp(-BEYOND, BEYOND)
        parts.append((0.5 + 0.5 * torch.erf(z * ROOT_HALF), torch.exp(-0.5 * z * z) * DENSITY))
    (below, phi_low), (under, phi_high) = parts
    lo, hi, inside = low - shift, high - shift, under - below
    if math.isinf(low):
        lo = torch.zeros_like(shift)
    if math.isinf(high):
        hi = torch.zeros_like(shift)
    mean = lo * below + hi * (1 - under) + d * inside + s * (phi_low - phi_high)
    second = lo * lo * below + hi * hi * (1 - under) + (d * d + v) * inside
    second = second + s * ((d + lo) * phi_low - (d + hi) * phi_high)
    return shift + mean, (second - mean * mean).clamp_min(0.0)


def clamp(func: Any, x: MomentTensor, min: Any = None, max: Any = None) -> MomentTensor:
    """torch.clamp with numbers."""
    if any(isinstance(limit, Tensor) for limit in (min, max)):
        raise refusal("clamp by tensors")
    low, high = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    return MomentTensor(*clipped(x.expectation, x.variance, low, high))


def hardtanh(func: Any, x: MomentTensor, min_val: float = -1.0, max_val: float = 1.0) -> MomentTensor:
    """A clamp."""
    return clamp(func, x, min_val, max_val)


def hardsigmoid(func: Any, x: MomentTensor) -> MomentTensor:
    """clamp(x + 3, 0, 6) / 6."""
    mean, variance = clipped(x.expectation + 3, x.variance, 0.0, 6.0)
    return MomentTensor(mean / 6, variance / 36)


# ---- smooth functions


class _Smooth(torch.autograd.Function):
    """sum_n w_n f(m + s x_n), and its variance; the four slopes are accumulated beside them, and nothing else kept."""

    @staticmethod
    def forward(ctx: Any, f: Callable[[Tensor], Tensor], m: Tensor, v: Tensor) -> Pair:
        s = v.clamp_min(least(v)).sqrt()
        centre = f(m)
        sums = [torch.zeros_like(m) for _ in range(6)]  # d, d^2, and their slopes in m and s; d = f(m + s x) - f(m)
        for x, w in normal_nodes(NODES):
            with torch.enable_grad():
                u = (m + s * x).requires_grad_()
                value = f(u)
            (slope,) = torch.autograd.grad(value, u, torch.ones_like(u))
            d = value.detach() - centre
            for into, term in zip(sums, (d, d * d, slope, x * slope, d * slope, x * d * slope), strict=True):
                into.add_(term, alpha=w)
        mean, second, mean_m, mean_s, half_m, half_s = sums
        ctx.save_for_backward(s, mean_m, mean_s, 2 * (half_m - mean * mean_m), 2 * (half_s - mean * mean_s))
        return centre + mean, (second - mean * mean).clamp_min_(0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_grad: Tensor, variance_grad: Tensor) -> tuple[None, Tensor, Tensor]:
        s, mean_m, mean_s, variance_m, variance_s = ctx.saved_tensors
        by_s = mean_grad * mean_s + variance_grad * variance_s
        return None, mean_grad * mean_m + variance_grad * variance_m, by_s / (2 * s)


def smooth(func: Any, x: MomentTensor, *rest: Any, **named: Any) -> MomentTensor:
    """Any smooth function of single numbers, by quadrature."""

    def f(u: Tensor) -> Tensor:
        value: Tensor = func(u, *rest, **named)
        return value

    if torch.is_grad_enabled():
        return MomentTensor(*_Smooth.apply(f, x.expectation, x.variance))  # type: ignore[no-untyped-call]
    return MomentTensor(*blockwise(lambda m, v: _quadrature(f, m, v), x.expectation, x.variance))


def _quadrature(f: Callable[[Tensor], Tensor], m: Tensor, v: Tensor) -> Pair:
    s, centre = v.sqrt(), f(m)
    mean, second = torch.zeros_like(m), torch.zeros_like(m)
    for x, w in normal_nodes(NODES):
        d = f(torch.add(m, s, alpha=x)).sub_(centre)
        mean.add_(d, alpha=w)
        second.addcmul_(d, d, value=w)
    second.addcmul_(mean, mean, value=-1).clamp_min_(0.0)
    return mean.add_(centre), second


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
    "tanhshrink", "sin", "cos", "erf", "expm1",
)  # fmt: skip
ELEMENTWISE_RULES: Mapping[str, Row] = {
    "relu": Row(relu),
    "leaky_relu": Row(leaky_relu),
    "prelu": Row(prelu),
    **{name: Row(lambda func, x: leaky_relu(func, x, -1.0)) for name in ("abs", "__abs__", "absolute")},
    "maximum": Row(larger, fitted=2),
    "minimum": Row(smaller, fitted=2),
    "clamp": Row(clamp),
    "clip": Row(clamp),
    "hardtanh": Row(hardtanh),
    "relu6": Row(lambda func, x: clamp(func, x, 0.0, 6.0)),
    "hardsigmoid": Row(hardsigmoid),
    **{name: Row(smooth) for name in SMOOTH},
    "pow": Row(power),
    "exp": Row(exponential),
}
