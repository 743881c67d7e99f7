"""A device that computes nothing and counts what it is asked to do; `from tests.device.fake_device import ...`.

Fake tensors have shapes without numbers; a dispatch mode above them sees every operation. What a real device would wait
for (a number that Python reads, a tensor that the host copies there or back) is a synchronisation, noted with its
place.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

import mcrepar

LIBRARY = mcrepar.__file__.removesuffix("__init__.py")

GPU = "gpu"
LARGE = 1024  # elements of a float64 tensor from which on it counts
FREE = {  # operations without a kernel: views, and memory that is not filled
    *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "slice", "select", "unsqueeze"),
    *("squeeze", "as_strided", "detach", "alias", "split", "unbind", "_reshape_alias", "split_with_sizes"),
    *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "is_same_size", "sym_size", "unfold"),
    *("diagonal", "set_", "device", "lift_fresh"),
}  # fmt: skip
QUESTIONS = {
    "any",
    "isnan",
    "isinf",
    "ne",
    "lt",
    "gt",
    "logical_or",
    "bitwise_or",
    "bitwise_not",
}  # mostly answered by no


class Module:
    """What torch asks of a device's module."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Nothing is random here."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    @staticmethod
    def get_rng_state(device: object = None) -> Tensor:
        return torch.zeros(8, dtype=torch.uint8)

    @staticmethod
    def set_rng_state(state: Tensor, device: object = None) -> None:
        """Nothing is random here."""


class Generator(torch.Generator):
    """A generator that says it lives on the device."""

    def __new__(cls, device: object = "cpu") -> Generator:
        return torch._C.Generator.__new__(cls, "cpu")

    def __init__(self, device: Any = "cpu") -> None:
        where = torch.device(device)
        self.place = torch.device(GPU, where.index or 0) if where.type == GPU else where

    @property
    def device(self) -> torch.device:
        return self.place


class Counted(TorchDispatchMode):
    """What was asked of the device.

    Attributes:
        kernels: operations by name.
        waits: synchronisations by name and place.
        copies: tensors that went from the host to the device, by size and place.
        wide: operations on large float64 tensors, by name and place.
        mixed: operations on tensors of both devices, by name and place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.kernels, self.places, self.waits, self.copies, self.wide, self.mixed = (Counter() for _ in range(6))

    @property
    def faults(self) -> dict[str, Counter]:
        """What a step must not do."""
        found = {"waits": self.waits, "copies": self.copies, "wide": self.wide, "mixed": self.mixed}
        return {name: counter for name, counter in found.items() if counter}

    @property
    def count(self) -> int:
        return sum(self.kernels.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.split("::")[-1]
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        here = [t for t in given if t.device.type == GPU]
        if name == "_local_scalar_dense" and isinstance(given[0], FakeTensor):
            if here:
                self.waits["item", place()] += 1
            return answer(given[0])
        self._look(name, given, here, kwargs)
        args = tuple(None if isinstance(a, torch._C.Generator) else a for a in args)
        kwargs = {k: None if isinstance(v, torch._C.Generator) else v for k, v in kwargs.items()}
        out = func(*args, **kwargs)
        made = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
        for tensor in made:
            if isinstance(tensor, FakeTensor):
                tensor.constant, tensor.made_by = None, name
        if name not in FREE and (here or any(t.device.type == GPU for t in made)):
            self.kernels[name] += 1
            self.places[place()] += 1
            if any(t.dtype == torch.float64 and t.numel() > LARGE for t in [*here, *made] if t.device.type == GPU):
                self.wide[name, place()] += 1
        return out

    def _look(self, name: str, given: list[Tensor], here: list[Tensor], kwargs: dict[str, Any]) -> None:
        if name in ("_to_copy", "copy_"):
            kinds = {t.device.type for t in given} | {torch.device(kwargs.get("device") or given[0].device).type}
            if kinds == {"cpu", GPU}:
                if given[-1].device.type == "cpu":
                    self.copies[given[-1].numel(), place()] += 1
                else:
                    self.waits["copy to the host", place()] += 1
        elif here and any(t.device.type == "cpu" and t.dim() for t in given):
            self.mixed[name, place()] += 1


def answer(tensor: FakeTensor) -> float:
    """The number that Python reads: nothing is wrong."""
    if tensor.dtype == torch.bool:
        return getattr(tensor, "made_by", "") not in QUESTIONS
    return 0.25 if tensor.dtype.is_floating_point else 3


def place() -> str:
    """The innermost line of the library, or of a test, that is being run."""
    frame, other = sys._getframe(1), "?"
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(LIBRARY):
            return f"{path.removeprefix(LIBRARY)}:{frame.f_lineno}"
        if other == "?" and path != __file__ and "/torch/" not in path:
            other = f"{path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return other


@contextlib.contextmanager
def fake_device() -> Iterator[Counted]:
    """A context in which tensors of the device are fake, and what is done with them is counted."""
    if not hasattr(torch, GPU):
        backend_registration._setup_privateuseone_for_python_backend(GPU, backend_module=Module())
    counted, tensor = Counted(), torch.tensor

    def made(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        if device is None or torch.device(device).type != GPU:
            return tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)
        counted.waits["a number from the host", place()] += 1
        found = tensor(data, dtype=dtype)
        return torch.empty(found.shape, dtype=found.dtype, device=device, requires_grad=requires_grad)

    def converted(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        if isinstance(data, Tensor):
            return data.to(dtype=dtype or data.dtype, device=device or data.device)
        return made(data, dtype=dtype, device=device)

    def listed(self: Tensor) -> Any:
        if self.device.type == GPU:
            counted.waits["tolist", place()] += 1
        numbers: Any = answer(self)
        for length in reversed(self.shape):
            numbers = [numbers] * length
        return numbers

    patches = {"tensor": made, "as_tensor": converted, "Generator": Generator}
    with contextlib.ExitStack() as stack:
        for name, function in patches.items():
            stack.enter_context(mock.patch.object(torch, name, function))
        stack.enter_context(mock.patch.object(FakeTensor, "tolist", listed))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(counted)
        yield counted


def moved(net: nn.Module) -> nn.Module:
    """The network on the device: `net.to` swaps the data of parameters, which fake tensors do not allow."""
    for module in net.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(torch.empty_like(parameter.detach(), device=GPU))
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=GPU)
    return net
