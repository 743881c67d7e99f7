"""A tensor that carries the mean and the variance of every number; torch's function dispatch finds the rules for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mcrepar.errors import MethodError
from mcrepar.nn.forwards.layer_weight import LOOKS, PROPERTIES
from mcrepar.nn.moments.positions import Patches, SharedVariance, version

DECISIONS = {
    "__bool__", "__int__", "__float__", "__index__", "__contains__", "__array__", "item", "tolist", "numpy",
    "is_nonzero", "equal", "allclose", "isclose", "gt", "ge", "lt", "le", "eq", "ne", "isnan", "isinf", "isfinite",
    "any", "all", "argmax", "argmin", "topk", "sort", "argsort", "nonzero", "unique", "count_nonzero", "bucketize",
    "searchsorted", "multinomial", "sign", "kthvalue", "median",
}  # fmt: skip
SEEN = {*LOOKS, *PROPERTIES, "__len__", "is_contiguous", "stride", "element_size", "nelement", "get_device",
        "is_same_size"}  # fmt: skip
SHAPED = {
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_full", "new_empty", "new_tensor",
}  # fmt: skip
LARGEST_RATIO = 1e30  # of variances, whose squares are finite
TIES = 1e-3  # added to variances of 1: outputs whose noise is the same number have no Cholesky factor
SAMPLED = "draws=100 (draws=1 in elbo)"  # what to do where mean and variance are not to be had
Rule = Callable[..., Any]  # rule(func, *args, **kwargs): the result of func(*args, **kwargs), with mean and variance


_REFUSED: ContextVar[MethodError | None] = ContextVar("what went past the rules", default=None)


class Row(NamedTuple):
    """One operation in the table of rules.

    A factor of the variance, fitted to draws, stands for dependence between the numbers that the operation adds up.
    """

    rule: Rule
    fitted: int = 0  # from how many random arguments on the variance has a factor; 0 is never
    composite: bool = False  # whether the rule runs other operations with rules of their own


class Factors(NamedTuple):
    """What a layer needs of rank-1 factors, W = Wbar o (r s^T)."""

    square: Tensor  # E W^2 = Wbar^2 o (E r^2 E s^2^T)
    outputs: Tensor  # Var r / (E r)^2, (outputs,)
    inputs: Tensor  # Var s / E s^2, (inputs,)


class Mixing(NamedTuple):
    """What the outputs of a dense layer share: Cov(y_c, y_d) = sum_i w_ci w_di Var x_i for c != d."""

    weight: Tensor  # E W, (outputs, inputs)
    inputs: Tensor  # Var x, (examples, inputs)
    outputs: Tensor  # Var y, (examples, outputs)
    around: Tensor | None = None  # p, (examples, outputs), where it is y - sum_d p_d y_d instead of y

    def of_rows(self, rows: slice) -> Mixing:
        """The same for some of the examples."""
        around = None if self.around is None else self.around[rows]
        return Mixing(self.weight, self.inputs[rows], self.outputs[rows], around)

    def variance_around(self, p: Tensor) -> Tensor:
        """Var (y - sum_d p_d y_d) = C_cc - 2 (C p)_c + p^T C p, C the covariance of the outputs."""
        weight, x, y, p = precise(*self[:3], p)
        with _without_autocast(p):
            own = (y - x @ weight.square().mT).clamp_min(0.0)  # noise that is not shared
            product = (x * (p @ weight)) @ weight.mT + own * p  # C p
            return (y - 2 * product + (p * product).sum(1, keepdim=True)).clamp_min(0.0)

    def root(self) -> Tensor:
        """A root of the correlation matrix of every example's outputs, (examples, outputs, outputs)."""
        weight, x, y = precise(*self[:3])
        tiny = torch.finfo(y.dtype).tiny
        ratio = x.unsqueeze(1) / y.clamp_min(tiny).unsqueeze(2)
        rows = weight * ratio.clamp_max(LARGEST_RATIO).sqrt()
        rows = rows / rows.square().sum(2, keepdim=True).clamp_min(1.0).sqrt()  # Var y may be rounded to fewer digits
        with _without_autocast(y):
            shared = rows @ rows.mT
            if self.around is not None:
                shared.diagonal(dim1=1, dim2=2).fill_(1.0)
                shared = _around(shared * y.sqrt().unsqueeze(1) * y.sqrt().unsqueeze(2), self.around.to(y.dtype))
                length = shared.diagonal(dim1=1, dim2=2).clamp_min(tiny).sqrt()
                shared = (shared / length.unsqueeze(1) / length.unsqueeze(2)).clamp(-1.0, 1.0)
            shared.diagonal(dim1=1, dim2=2).fill_(1 + TIES)
            root: Tensor = torch.linalg.cholesky(shared)
        return root


def precise(*tensors: Tensor) -> list[Tensor]:
    """In one dtype, of single precision at least: halves have too few digits for differences of variances."""
    dtype = torch.float32
    for t in tensors:
        dtype = torch.promote_types(dtype, t.dtype)
    return [t.to(dtype) for t in tensors]


def _without_autocast(t: Tensor) -> AbstractContextManager[Any]:
    """A context in which products keep their dtype."""
    on = torch.is_autocast_enabled(t.device.type)
    return torch.autocast(t.device.type, enabled=False) if on else nullcontext()


def _around(covariance: Tensor, p: Tensor) -> Tensor:
    """A C A^T with A = 1 - 1 p^T, of every example."""
    rows = covariance - p.unsqueeze(1) @ covariance
    return rows - rows @ p.unsqueeze(2)


class MomentTensor(Tensor):
    """A random tensor of which mean and variance are known, number by number, as if its numbers were independent.

    Networks meet it as a tensor; every operation on it is done by its rule in `MOMENT_RULES`.

    Args:
        expectation: E x.
        variance: Var x, in the same shape.
        factors: of a weight with rank-1 noise.
        samples: what draws have in its place, while factors of the variance are fitted.

    >>> x = MomentTensor(torch.zeros(2, 3), torch.ones(2, 3))
    >>> y = torch.relu(x).sum(1)
    >>> y.expectation, y.variance
    (tensor([1.1968, 1.1968]), tensor([1.0225, 1.0225]))
    """

    expectation: Tensor
    variance: Tensor
    factors: Factors | None
    samples: tuple[Tensor, ...]
    patches: Patches | None = None  # of the convolution that it comes from, without a change of positions since
    mixing: Mixing | None = None  # of the dense layer that it is the output of, or its log_softmax
    written: int = 0  # the version of the variance for which that holds
    place: int = -1  # among the operations with factors, while these are fitted
    shared: SharedVariance | None = None  # of a mean over all positions, its variance where they depend on each other

    @staticmethod
    def __new__(cls, expectation: Tensor, variance: Tensor, *args: Any, **kwargs: Any) -> MomentTensor:
        """A tensor without numbers of its own."""
        x, graph = expectation, expectation.requires_grad or variance.requires_grad
        return Tensor._make_wrapper_subclass(
            cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device, requires_grad=graph
        )

    def __init__(
        self, expectation: Tensor, variance: Tensor, factors: Factors | None = None, samples: tuple[Tensor, ...] = ()
    ) -> None:
        self.expectation, self.variance, self.factors, self.samples = expectation, variance, factors, samples

    def mix(self, mixing: Mixing | None) -> None:
        """Say what outputs share, for as long as nothing is written to them."""
        self.mixing, self.written = mixing, version(self.variance)

    def mixed(self) -> Mixing | None:
        """What outputs share; None where they have been written to."""
        return self.mixing if version(self.variance) == self.written else None

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"MomentTensor(expectation={self.expectation}, variance={self.variance})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation's rule; shapes and dtypes are looked at as of any tensor."""
        name = operation(func)
        if name in SEEN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name in SHAPED:
            return func(*pytree.tree_map_only(MomentTensor, lambda x: x.expectation, args), **(kwargs or {}))
        from mcrepar.nn.moments.rules import apply_rule  # the rules need this class

        return apply_rule(func, name, args, dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Whatever comes here went past the rules."""
        refused = MethodError(
            f"draws='moments' with {operation(func)}, an operation below torch's functions",
            "no rule can be found for it: torch.tensor(x), torch.func.vmap and scripted functions go there directly",
            f"{SAMPLED}, or torch's functions, which have rules",
        )
        _REFUSED.set(refused)
        raise refused


@lru_cache(maxsize=1024)
def operation(func: Callable[..., Any]) -> str:
    """The name by which an operation is found: of torch.relu, Tensor.relu and F.relu it is one.

    >>> operation(torch.relu), operation(torch.Tensor.T.__get__)
    ('relu', 'T')
    """
    name = str(getattr(func, "__name__", func))
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name  # type: ignore[attr-defined]


def refusal(name: str, instead: str | None = None) -> MethodError:
    """What to say of an operation without a rule."""
    asked = f"draws='moments' with the operation {name}"
    if name in DECISIONS:
        why = "it would decide on values of activations, which have a distribution here and no single value"
        return MethodError(asked, why, SAMPLED)
    rule = instead or f"mcrepar.nn.moments.rules.MOMENT_RULES[{name.split()[0]!r}] = a rule of your own"
    return MethodError(asked, "there is no rule for mean and variance of its result", f"{SAMPLED}, or {rule}")


@contextmanager
def refusing() -> Iterator[None]:
    """A context whose refusals come out of scripted functions too: TorchScript makes errors of its own of them."""
    token = _REFUSED.set(None)
    try:
        yield
    except RuntimeError:
        refused = _REFUSED.get()
        if refused is None:
            raise
        raise refused from None
    finally:
        _REFUSED.reset(token)


def check_graph(x: MomentTensor) -> None:
    """Refuse the result of an autograd.Function, whose gradient would go nowhere: mean and variance have the graph."""
    with torch._C.DisableTorchFunctionSubclass():
        node = x.grad_fn
    if node is not None and "BackwardHook" in node.name():
        raise MethodError(
            "draws='moments' with a full backward hook on a module",
            "it would be called with the gradient of a value, and mean and variance have the graph",
            "draws=1, or remove the hook",
        )
    if node is not None:
        raise MethodError(
            f"draws='moments' with the gradient of {node.name().removesuffix('Backward')}, an autograd.Function",
            "its backward is one of values, and mean and variance would have no gradient",
            "draws=1, the same function of torch's own operations, or checkpoints with use_reentrant=False",
        )


def unwritable(instead: str) -> MethodError:
    """What to say where random numbers would go into a tensor that holds one value for each."""
    asked = "draws='moments' with an operation that writes random numbers into an ordinary tensor"
    return MethodError(asked, "it has no place for their variance", f"{SAMPLED}, or {instead}")


def moments(x: Any, zeros: bool = False) -> tuple[Any, Any]:
    """Mean and variance; the variance of what is not random is None, or zeros.

    >>> moments(2.0)
    (2.0, None)
    """
    if isinstance(x, MomentTensor):
        return x.expectation, x.variance
    return x, torch.zeros_like(x) if zeros else None
