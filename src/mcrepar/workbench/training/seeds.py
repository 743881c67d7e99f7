"""Seeds as a function of what they are for: nothing random has a state, so nothing has to be replayed."""

from __future__ import annotations

import hashlib

import torch


def seed_of(seed: int, purpose: str, *where: int) -> int:
    """A seed of 63 bits for one purpose at one place (epoch, step, rank), unrelated to all others.

    >>> seed_of(0, "noise", 1, 0) == seed_of(0, "noise", 1, 0) != seed_of(0, "noise", 1, 1)
    True
    """
    text = "/".join([str(seed), purpose, *map(str, where)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator_of(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A generator on the CPU with that seed."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, *where))
