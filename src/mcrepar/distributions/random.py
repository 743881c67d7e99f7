"""Random numbers of a given dtype, device and generator, on all cores: the only place of `distributions` that draws."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2**17  # numbers that one generator draws where there are many: torch draws on one core only
ALONE = 4 * BLOCK  # below it threads cost more than they save
BOX = 16  # normals that torch makes at once on a CPU
BITS_STD = math.sqrt((2**16 - 1) / 12)  # of `Source.bits`, whose mean is -1/2
GOLDEN = 0x9E3779B97F4A7C15  # odd, so that consecutive places get distinct seeds


_POOLS: dict[int, ThreadPoolExecutor] = {}  # by their number of threads, which stay; a forked process makes its own
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_POOLS.clear)


def on_cores(count: int, threads: int, work: Callable[[Iterable[int]], None]) -> None:
    """Call `work` with shares of the indices 0 ... count - 1, one share per thread.

    Args:
        count: of the blocks.
        threads: at most this many; 1 works in the calling thread.
        work: on blocks that do not touch one another's results.
    """
    if threads <= 1 or count <= 1:
        return work(range(count))
    grad, shared = torch.is_grad_enabled(), iter(range(count))  # whoever is free takes the next block

    def worker() -> None:
        with torch.set_grad_enabled(grad):  # grad mode belongs to a thread
            work(shared)

    for done in [_pool(threads).submit(worker) for _ in range(min(threads, count))]:
        done.result()
    return None


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that compute on one core each: blocks share the cores, so operations must not."""
    if threads not in _POOLS:
        before, started = torch.get_num_threads(), threading.Barrier(threads + 1)
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        for _ in range(threads):
            pool.submit(started.wait)
        started.wait()
        torch.set_num_threads(before)  # also the default of threads that start later
        _POOLS[threads] = pool
    return _POOLS[threads]


def transformed() -> bool:
    """Whether a graph is compiled or torch.func transforms a function: operations are plain torch then, one by one."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _mapped() -> bool:
    """Whether it is vmap."""
    if not torch._C._are_functorch_transforms_active():
        return False
    kinds = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    return torch._C._functorch.TransformType.Vmap in kinds


def new_seed(generator: torch.Generator | None) -> int:
    """One number of `generator` (or of the CPU's default RNG, not to wait for a device) that seeds others."""
    where = generator.device if generator is not None else "cpu"
    return int(torch.randint(2**62, (), generator=generator, device=where).item())


def place_seed(seed: int, place: int) -> int:
    """The seed of one of many places, such as blocks of weights, that draw apart from one another."""
    return (seed + GOLDEN * place) % 2**63


def device_generator(generator: torch.Generator | None, device: torch.device | str) -> torch.Generator | None:
    """The generator for random numbers on a device: itself there, elsewhere one of that device which it seeds.

    So that one CPU generator decides everything, wherever the weights are.
    """
    wanted = torch.device(device)
    if generator is None or (generator.device.type, generator.device.index or 0) == (wanted.type, wanted.index or 0):
        return generator
    return torch.Generator(wanted).manual_seed(new_seed(generator))


@dataclass(frozen=True)
class Source:
    """Where random numbers come from; nothing global is touched when a generator is given.

    A generator of another device seeds one of this device.

    >>> Source(torch.float32, "cpu", torch.Generator().manual_seed(0)).normal(2, 3).shape
    torch.Size([2, 3])
    """

    dtype: torch.dtype
    device: torch.device | str
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "generator", device_generator(self.generator, self.device))

    def normal(self, *size: int, mean: float = 0.0, std: float = 1.0) -> Tensor:
        """N(mean, std^2)."""
        return self._filled(size, lambda part, generator: part.normal_(mean, std, generator=generator))

    def normal_rows(self, rows: int, size: int) -> Tensor:
        """N(0, 1) in rows, which are the same numbers whether they are drawn together or one after the other.

        On a CPU torch makes normals 16 at a time: a row of whole such blocks leaves nothing over for the next one.
        """
        length = -(-size // BOX) * BOX
        out = torch.empty(rows, length, dtype=self.dtype, device=self.device)
        for part in [out] if out.device.type == "cpu" else out:
            part.normal_(generator=self.generator)
        return out[:, :size]

    def uniform(self, *size: int, low: float = 0.0) -> Tensor:
        """Uniform on [low, 1)."""
        return self._filled(size, lambda part, generator: part.uniform_(low, 1.0, generator=generator))

    def bits(self, size: int) -> Tensor:
        """Whole numbers from -128 to 127, all with one probability: eight of a random word."""
        words = torch.empty(-(-size // 8), dtype=torch.int64, device=self.device)
        bits = words.random_(-(2**63), None, generator=self.generator).view(torch.int8)[:size]
        return bits.to(self.dtype)

    def exponential(self, *size: int) -> Tensor:
        """Exponential of mean 1."""
        return self._filled(size, lambda part, generator: part.exponential_(generator=generator))

    def _filled(self, size: tuple[int, ...], fill: Callable[[Tensor, torch.Generator | None], Tensor]) -> Tensor:
        """A tensor of draws: many of them on all cores, the same numbers whatever the number of cores."""
        new = torch.rand if _mapped() else torch.empty  # vmap gives rows numbers of their own in a tensor of rows only
        out = new(size, dtype=self.dtype, device=self.device)
        if out.numel() <= ALONE or out.device.type != "cpu" or transformed():
            return fill(out, self.generator)
        blocks = torch.split(out.view(-1), BLOCK)
        seed = new_seed(self.generator)

        def work(share: Iterable[int]) -> None:
            generator = torch.Generator()
            for k in share:
                fill(blocks[k], generator.manual_seed(place_seed(seed, k + 1)))

        on_cores(len(blocks), torch.get_num_threads(), work)
        return out

    def gamma(self, shape: float, *size: int, scale: float = 1.0, normal_from: float = math.inf) -> Tensor:
        """Variates of scale * Gamma(shape), by the cube of a normal from shape `normal_from` on.

        Wilson-Hilferty: Gamma(a) = a (1 - h + sqrt(h) Z)^3, h = 1/(9a), mean exact to h^3, variance to h^2/3.
        """
        assert shape > 0, shape  # torch._standard_gamma returns 2e-308 for a negative shape, without an error
        if shape >= normal_from:
            h, root = 1 / (9 * shape), (scale * shape) ** (1 / 3)
            return self.normal(*size, mean=root * (1 - h), std=root * math.sqrt(h)).pow_(3)
        if shape == 1:
            out = self.exponential(*size)
        else:
            alpha = torch.full((1,), shape, dtype=self.dtype, device=self.device)
            out = self._filled(
                size, lambda part, generator: part.copy_(torch._standard_gamma(alpha.expand_as(part), generator))
            )
        return out if scale == 1 else out.mul_(scale)

    def inverse_gaussian(self, concentration: float, *size: int) -> Tensor:
        """IG(1, concentration), by Michael, Schucany and Haas with a root free of cancellation."""
        r = self.normal(*size).square_().div_(2 * concentration)
        x = r.add(2).mul_(r).sqrt_().add_(r).add_(1).reciprocal_()
        first = self.uniform(*size).mul_(x + 1) <= 1
        return torch.where(first, x, x.reciprocal())


def vector_norm(z: Tensor) -> Tensor:
    """|z| over the last dimension; long ones by blocks in float64: a float32 sum over 1e7 squares loses 3 digits."""
    if z.shape[-1] <= 2**17:
        short: Tensor = torch.linalg.vector_norm(z, dim=-1)
        return short
    whole = z.shape[-1] // 1024 * 1024
    blocks = z[..., :whole].reshape(*z.shape[:-1], whole // 1024, 1024)
    parts = torch.cat([torch.linalg.vector_norm(blocks, dim=-1), z[..., whole:]], dim=-1)
    norm: Tensor = torch.linalg.vector_norm(parts, dim=-1, dtype=torch.float64)
    return norm


def total(x: Tensor) -> Tensor:
    """The sum of a vector in float64, by blocks, as `vector_norm`."""
    whole = x.numel() // 1024 * 1024
    return x[:whole].view(-1, 1024).sum(1).sum(dtype=torch.float64) + x[whole:].sum(dtype=torch.float64)
