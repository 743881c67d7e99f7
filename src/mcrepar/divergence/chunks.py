"""How M draws of noise are taken: in blocks of weights and chunks of draws, on all cores, in bounded memory.

One seed is taken from the user's generator. Every block of weights and chunk of draws has a generator seeded by it
and by its place, so the noise does not depend on the number of threads, can be drawn again, and is the same for every
method that takes it in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mcrepar.distributions.noise import Noise
from mcrepar.distributions.random import Source, on_cores, place_seed
from mcrepar.divergence.sums import block_size

CPU_BLOCK = 2**17  # elements: few calls of Python, and still in the cache
COPIES = 16  # temporaries of a block's size that a log density and its gradient may hold at once
SPLIT = 2**20  # numbers in the table of block radii of a joint distribution
DEFAULT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Chunks:
    """M draws of noise over a flat tensor of `size` weights."""

    noise: Noise  # its distribution
    draws: int  # M
    size: int  # the number of weights
    dtype: torch.dtype  # of the noise
    device: torch.device  # of the noise
    seed: int  # from `new_seed`
    max_bytes: int  # bound on what one block and its temporaries may hold, over all threads
    whole: bool = False  # whether a block must hold all weights (a joint prior)

    @property
    def threads(self) -> int:
        """How many blocks are taken at once."""
        if self.device.type != "cpu":
            return 1
        affordable = self.max_bytes // (COPIES * self.dtype.itemsize * self.budget)
        return max(1, min(torch.get_num_threads(), len(self.blocks), affordable))

    @property
    def budget(self) -> int:
        """How many elements a block may hold."""
        return block_size(self.max_bytes, self.dtype, self.device, COPIES, CPU_BLOCK)

    @property
    def blocks(self) -> list[slice]:
        """The blocks of weights."""
        width = self.size if self.whole else min(self.size, self.budget)
        return [slice(i, min(i + width, self.size)) for i in range(0, self.size, width)]

    def each(self, visit: Callable[[slice, Tensor], None]) -> None:
        """Call `visit(block, xi)` for every block and chunk of draws, xi being (draws of the chunk, block size).

        Blocks run in parallel; the chunks of one block run in order.
        """
        blocks = self.blocks
        for first, radii in self._groups():
            count = self.draws - first if radii is None else len(radii)

            def take(
                share: Iterable[int], first: int = first, count: int = count, radii: Tensor | None = radii
            ) -> None:
                generator = torch.Generator(self.device)
                draw = partial(self.noise.draw, dtype=self.dtype, device=self.device, generator=generator)
                for index in share:
                    width = blocks[index].stop - blocks[index].start
                    rows = max(1, self.budget // width)
                    for start in range(0, count, rows):
                        draws = min(rows, count - start)
                        generator.manual_seed(self._seed(index + 1, first + start))
                        radius = None if radii is None else radii[start : start + draws, index]
                        visit(blocks[index], draw(draws, width, radius=radius))

            on_cores(len(blocks), self.threads, take)

    def all(self) -> Tensor:
        """All the noise at once: (draws, size)."""
        out = torch.empty(self.draws, self.size, dtype=self.dtype, device=self.device)
        seen = dict.fromkeys((b.start for b in self.blocks), 0)

        def fill(block: slice, xi: Tensor) -> None:
            row = seen[block.start]
            out[row : row + len(xi), block] = xi
            seen[block.start] = row + len(xi)

        with torch.no_grad():
            self.each(fill)
        return out

    def norms(self) -> Tensor:
        """The norms of the draws of a joint distribution: (draws,)."""
        parts = [self._split(first, count)[0] for first, count in self._group_sizes()]
        return torch.cat(parts)

    def _groups(self) -> Iterator[tuple[int, Tensor | None]]:
        """Runs of draws: all at once for elementwise noise, tables of block radii for a joint distribution."""
        if not self.noise.joint:
            yield 0, None
            return
        for first, count in self._group_sizes():
            yield first, self._split(first, count)[1]

    def _group_sizes(self) -> list[tuple[int, int]]:
        group = max(1, SPLIT // len(self.blocks))
        return [(first, min(group, self.draws - first)) for first in range(0, self.draws, group)]

    def _split(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(self.device)
        generator.manual_seed(self._seed(0, first))
        sizes = [b.stop - b.start for b in self.blocks]
        parts = self.noise.split(Source(self.dtype, self.device, generator), count, sizes)
        assert parts is not None, "only joint noise is drawn in blocks"
        return parts

    def _seed(self, place: int, first: int) -> int:
        return place_seed(self.seed, place * self.draws + first)
