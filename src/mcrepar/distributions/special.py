"""Special functions that torch lacks: log(e^y E1(y)), and moments that are ratios of gamma functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_EULER = 0.5772156649015329

# E1(y) + log y + gamma = y - y^2/(2 2!) + y^3/(3 3!) - ..., highest power first; 1e-16 on [0, 1].
_SERIES = [-((-1.0) ** k) / (k * math.factorial(k)) for k in range(17, 0, -1)]

# y e^y E1(y) = P(1/y) / Q(1/y) on [1, inf), fitted in 40 digits; 2e-14 relative. Highest power first.
_P = [
    1.1754381791632975, 141.3358921437878, 1183.3282709658474, 2897.9199251423793, 2857.1364747014723,
    1293.7085585277314, 280.503394346735, 27.83978902047146, 1.0,
]  # fmt: skip
_Q = [
    44.88583818002958, 703.1394598859217, 2974.5186125847454, 5011.93494404452, 3940.8611269303933,
    1549.372162267551, 307.34318337803705, 28.839789020445497, 1.0,
]  # fmt: skip


def _horner(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    out = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        out.mul_(x).add_(c)
    return out


class _LogScaledE1(torch.autograd.Function):
    """d/dy log(e^y E1(y)) = 1 - 1/(y e^y E1(y)); where that cancels, its series -1/y + 1/y^2 - 3/y^3."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor) -> Tensor:
        low = y.clamp(max=1.0)
        small = _horner(low, _SERIES).mul_(low).sub_(low.log()).sub_(_EULER).log_().add_(low)
        inverse = y.clamp(min=1.0).reciprocal_()
        large = _horner(inverse, _P).div_(_horner(inverse, _Q)).mul_(inverse).log_()
        return torch.where(y < 1.0, small, large)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        y, out = ctx.saved_tensors
        inverse = y.reciprocal()
        series = -inverse * (1 - inverse * (1 - inverse * (3 - inverse * 13)))
        return grad * torch.where(y < 1e3, 1 - inverse * torch.exp(-out), series)


def log_scaled_e1(y: Tensor) -> Tensor:
    """The logarithm of e^y E1(y) for y >= 0, elementwise, to 1e-13 in float64; twice differentiable.

    It grows as log(log 1/y) at 0, where y is held at the smallest normal number (and the gradient is 0).

    >>> round(log_scaled_e1(torch.tensor(1.0, dtype=torch.float64)).item(), 12)
    -0.516931959002
    """
    result: Tensor = _LogScaledE1.apply(y.clamp(min=torch.finfo(y.dtype).tiny))  # type: ignore[no-untyped-call]
    return result


def polygamma(n: int, x: float) -> float:
    """The n-th derivative of digamma at x > 0, as a Python float."""
    at = torch.tensor(x, dtype=torch.float64)
    return float(torch.special.polygamma(n, at)) if n else float(torch.special.digamma(at))


def gamma_ratio(a: float, s: float) -> float:
    """Gamma(a + s) / Gamma(a) for positive a and a + s, without the cancellation of two large logarithms."""
    if s < 0:
        return 1 / gamma_ratio(a + s, -s)
    if s <= 64 and s == int(s):
        return math.prod(a + i for i in range(int(s)))
    if a < 50:
        log = math.lgamma(a + s) - math.lgamma(a)
    else:  # Stirling's series
        tail = [(1 / 12 - (1 / 360 - 1 / (1260 * x * x)) / (x * x)) / x for x in (a, a + s)]
        log = (a + s - 0.5) * math.log1p(s / a) + s * math.log(a) - s + tail[1] - tail[0]
    return math.exp(log) if log < 709 else math.inf


# x^p has the expectation e^{p log_factor} prod_i [Gamma(a_i + r_i p) / Gamma(a_i)]^{n_i}: triples (n, a, r).
GammaProduct = tuple[tuple[int, float, float], ...]

HALF_NORMAL = (1, 0.5, 0.5)  # |N(0, 1)| = sqrt(2) G^(1/2), G ~ Gamma(1/2)


def gamma_product_moment(product: GammaProduct, log_factor: float, power: float, log: int) -> float:
    """E x^p (log x)^j = m_p B_j(kappa_1, kappa_2, ...) for x > 0 whose moments m_p are a `GammaProduct`.

    kappa_i are the derivatives of log m_p in p (the cumulants of log x under the weight x^p), B_j the
    complete Bell polynomial.

    >>> gamma_product_moment(((1, 2.5, 1.0),), 0.0, 1.0, 0)  # the mean of Gamma(2.5)
    2.5
    """
    moment = math.exp(power * log_factor) * math.prod(gamma_ratio(a, r * power) ** n for n, a, r in product)
    cumulants = [log_factor, *[0.0] * log]
    for n, a, r in product:
        for i in range(log):
            cumulants[i] += n * r ** (i + 1) * polygamma(i, a + r * power)
    bell = [1.0]
    for j in range(log):
        bell.append(sum(math.comb(j, i) * bell[j - i] * cumulants[i] for i in range(j + 1)))
    return bell[log] * moment
