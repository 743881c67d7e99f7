"""Blocks of a tensor on all cores: one thread per core, each with operations of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def on_cores(count: int, threads: int, work: Callable[[list[int]], None]) -> None:
    """Call `work` with shares of the indices 0 ... count - 1, one share per thread.

    Args:
        count: of the blocks.
        threads: at most this many; 1 works in the calling thread.
        work: on blocks that do not touch one another's results.
    """
    indices = list(range(count))
    if threads <= 1:
        return work(indices)
    grad, before = torch.is_grad_enabled(), torch.get_num_threads()

    def worker(share: list[int]) -> None:
        torch.set_num_threads(1)  # of this worker; blocks share the cores, so operations must not
        with torch.set_grad_enabled(grad):  # grad mode belongs to a thread too
            work(share)

    try:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(worker, indices[k::threads]) for k in range(threads)]:
                done.result()
    finally:
        torch.set_num_threads(before)  # the default of threads that start later
    return None
