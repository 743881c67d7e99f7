"""Many processes as torchrun starts them: who this one is, and the few things that all must agree on."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mcrepar.errors import McreparError, ParameterError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes of a run; alone, everything here is the identity.

    Args:
        rank: the number of this process.
        size: how many there are.
        device: on which this one computes.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def wrap(self, net: nn.Module) -> nn.Module:
        """The network with gradients averaged over all processes.

        Buffers are not sent at every step: norm statistics do not enter the gradient, `share` sends them when needed.
        """
        if self.size == 1:
            return net
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(net, device_ids=devices, broadcast_buffers=False)

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average the gradients of parameters outside the wrapped network."""
        for parameter in parameters if self.size > 1 else ():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.size

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the tensors of the first."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, src=0)

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every process, by rank."""
        if self.size == 1:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyone, mine)
        return [[float(number) for number in one.tolist()] for one in everyone]

    def largest(self, number: int) -> int:
        """The largest number that any process has."""
        if self.size == 1:
            return number
        total = torch.tensor(number, device=self.device)
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
        return int(total)

    def first(self, work: Callable[[], T]) -> T:
        """What the first process gets from `work`, which the others do not do; its refusal is everyone's too."""
        if self.size == 1:
            return work()
        parcel: list[object] = [None, None]
        if self.rank == 0:
            try:
                parcel[0] = work()
            except McreparError as error:
                parcel[1] = error
        dist.broadcast_object_list(parcel, src=0, device=self.device)
        if isinstance(parcel[1], McreparError):
            raise parcel[1]
        return parcel[0]  # type: ignore[return-value]


@contextlib.contextmanager
def joined(device: str) -> Iterator[World]:
    """The world of this process: alone, or one of those that torchrun started.

    Args:
        device: "auto" takes the process's own GPU where there is one.
    """
    size, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    place = _device(device, local)
    if size == 1:
        yield World(device=place)
        return
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), place)
    finally:
        gc.collect()  # a wrapped network in a cycle holds the group, whose threads abort an interpreter that ends first
        if ours:
            dist.destroy_process_group()


def _device(name: str, local: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ParameterError(f"--device {name}", "there is no such kind of device", "auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ParameterError(f"--device {name}", "it was never tried here", "auto, cpu or cuda")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ParameterError(f"--device {name}", "torch sees no GPU", "--device cpu")
        device = torch.device("cuda", local if ":" not in name else device.index)
        torch.cuda.set_device(device)
    return device
