"""The table MOMENT_RULES: one row per operation, with its rule for mean and variance, and how a rule is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from mcrepar.errors import MethodError
from mcrepar.nn.moments.elementwise_rules import ELEMENTWISE_RULES
from mcrepar.nn.moments.linear_rules import FACTORED, LIKE, LINEAR_RULES
from mcrepar.nn.moments.normalisation_rules import NORMALISATION_RULES
from mcrepar.nn.moments.pooling_rules import POOLING_RULES
from mcrepar.nn.moments.tensor import SAMPLED, MomentTensor, Row, Rule, check_graph, refusal, unwritable

MOMENT_RULES: dict[str, Row | Rule] = {
    **LINEAR_RULES,
    **ELEMENTWISE_RULES,
    **POOLING_RULES,
    **NORMALISATION_RULES,
}
"""rule(func, *args, **kwargs) is the result of func with its mean and variance, a MomentTensor (or several)."""

FIRST = ("condition", "input", "tensors")  # what torch's functions call their first argument
SPELLINGS = {"axis": "dim", "keepdims": "keepdim"}  # which torch takes from NumPy
POINTWISE = {*ELEMENTWISE_RULES, "batch_norm", "add", "sub", "mul", "div", "neg", "clone", "contiguous"}  # by position
Settle = Callable[[str, MomentTensor], MomentTensor]  # what becomes of a result whose variance has a factor
_SETTLE: ContextVar[Settle | None] = ContextVar("factors of variances", default=None)


@contextmanager
def settling(settle: Settle) -> Iterator[None]:
    """A context in which the results of operations that have a factor go through `settle`."""
    token = _SETTLE.set(settle)
    try:
        yield
    finally:
        _SETTLE.reset(token)


def apply_rule(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operation by its rule, written into the first argument where the operation is in place."""
    for other, usual in SPELLINGS.items():
        if other in kwargs:
            kwargs[usual] = kwargs.pop(other)
    first = next((word for word in FIRST if not args and word in kwargs), None)
    args = args if first is None else (kwargs.pop(first),)
    inside = bool(kwargs.pop("inplace", False)) or (name.endswith("_") and not name.endswith("__"))
    key = name[:-1] if inside and name.endswith("_") else name
    found = MOMENT_RULES.get(key)
    if found is None:
        raise refusal(name)
    if kwargs.get("out") is not None:
        raise refusal(f"{name} with out=", "the operation without out=, or in place")
    row = found if isinstance(found, Row) else Row(found)
    target = args[0]
    if inside:
        func, args, kwargs = _out_of_place(func, name, target, args, kwargs)
    random = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, MomentTensor)]
    for x in random:
        check_graph(x)
    if key not in FACTORED and not row.composite and any(x.factors is not None for x in random):
        raise MethodError(
            f"draws='moments' with the operation {name} on a weight with random factors",
            "only dense, convolutional, embedding and attention layers multiply by them",
            f"{SAMPLED}, or structure='weights'",
        )
    result = row.rule(func, *args, **kwargs)
    if row is not found and not any(isinstance(leaf, MomentTensor) for leaf in pytree.tree_leaves(result)):
        raise MethodError(
            f"MOMENT_RULES[{key!r}]",
            f"the rule returned a {type(result).__name__}, which has no variance",
            "return MomentTensor(mean, variance)",
        )
    if key in LIKE and not isinstance(result, MomentTensor):  # of its random argument it has the shape or the dtype
        return result
    if random[0].samples and not row.composite:
        _sample(func, args, kwargs, random, result)
    settle, patches, mixing = _SETTLE.get(), getattr(result, "patches", None), getattr(result, "mixing", None)
    if settle is not None and 0 < row.fitted <= len(random):
        result = settle(key, result)
    if isinstance(result, MomentTensor):
        before = (x.patches for x in random if x.patches is not None and x.shape == result.shape)
        result.patches = patches or (next(before, None) if key in POINTWISE else None)
        result.mix(mixing)
    return _written(target, result) if inside else result


def _out_of_place(
    func: Callable[..., Any], name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The same operation with a result of its own, on a copy of what it would write to: backward needs its input."""
    if name.endswith("_"):
        found = (getattr(place, name[:-1], None) for place in (Tensor, torch, F))
        func = next((f for f in found if f is not None), func)  # a rule of one's own may have no other spelling
    if not isinstance(target, MomentTensor) or not torch.is_grad_enabled():
        return func, args, kwargs
    copy = MomentTensor(target.expectation.clone(), target.variance.clone(), target.factors, target.samples)
    copy.patches = target.patches
    args, kwargs = pytree.tree_map_only(MomentTensor, lambda x: copy if x is target else x, (args, kwargs))
    return func, args, kwargs


def _sample(func: Any, args: Any, kwargs: Any, random: list[MomentTensor], result: Any) -> None:
    """Let the operation run on what every draw has in the place of its arguments."""
    found = []
    for k in range(len(random[0].samples)):
        values, named = pytree.tree_map_only(MomentTensor, lambda x: x.samples[k], (args, kwargs))  # noqa: B023
        found.append(func(*values, **named))
    if isinstance(result, MomentTensor):
        result.samples = tuple(found)
    else:
        for part, samples in zip(result, zip(*found, strict=True), strict=True):
            part.samples = samples


def _written(target: MomentTensor, result: MomentTensor) -> MomentTensor:
    """The result of an operation in place: views of the target change too."""
    if not isinstance(target, MomentTensor):
        raise unwritable("the same operation out of place")
    pairs = [(target.expectation, result.expectation), (target.variance, result.variance)]
    for old, new in [*pairs, *zip(target.samples, result.samples, strict=True)]:
        if new is not old:
            old.copy_(new)
    target.patches = result.patches
    target.mix(result.mixing)
    return target
