"""What depends on the step alone, so that a resumed run has nothing to restore: learning rate, KL weight, seeds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch

from mcrepar.kl_schedules import KLWeight, kl_weight
from mcrepar.workbench.training.config import TrainConfig

BETA1 = 0.9


def _between(first: float, last: float, share: float) -> float:
    """Half a cosine wave from one number to another."""
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


def _constant(step: int, steps: int) -> tuple[float, float]:
    return 1.0, BETA1


def _cosine(step: int, steps: int) -> tuple[float, float]:
    return _between(1.0, 0.0, step / steps), BETA1


def _step(step: int, steps: int) -> tuple[float, float]:
    return 0.1 ** ((step >= steps / 2) + (step >= 3 * steps / 4)), BETA1


def _onecycle(step: int, steps: int) -> tuple[float, float]:
    """Up from 1/25 in three tenths of the steps, then down to 4e-6, while the momentum goes the other way."""
    peak, end = 0.3 * steps - 1, steps - 1
    if step <= peak:
        share = step / peak
        return _between(1 / 25, 1.0, share), _between(0.95, 0.85, share)
    share = (step - peak) / (end - peak)
    return _between(1.0, 4e-6, share), _between(0.85, 0.95, share)


RATES: Mapping[str, Callable[[int, int], tuple[float, float]]] = {
    "constant": _constant,
    "onecycle": _onecycle,
    "cosine": _cosine,
    "step": _step,
}


def rate(name: str, step: int, steps: int) -> tuple[float, float]:
    """The factor of the learning rate, and Adam's first beta, at a step counted from 0.

    Args:
        name: "constant", "onecycle", "cosine" or "step".
        step: from 0.
        steps: of the whole schedule.

    >>> rate("step", 80, 100)
    (0.010000000000000002, 0.9)
    """
    return RATES[name](step, max(steps, 4))  # a cycle needs a way up and a way down


def beta_schedule(config: TrainConfig, steps: int, batches: int) -> KLWeight:
    """The weight of the KL by step.

    Args:
        config: names the schedule.
        steps: of all Bayesian epochs.
        batches: of an epoch.
    """
    options: Mapping[str, Mapping[str, float]] = {
        "graves": {},
        "blundell": {"batches": batches},
        "paper": {"batch_size": config.batch_size},
        "constant": {"beta": config.beta},
        "linear": {"steps": max(1, int(config.kl_warmup * steps)), "beta": config.beta},
        "cyclic": {"period": max(1, steps // config.kl_cycles), "beta": config.beta},
    }
    return kl_weight(config.kl_schedule, **options[config.kl_schedule])


def final_beta(config: TrainConfig) -> float:
    """The weight of the KL that a schedule comes to, by which validation ELBOs of different epochs compare."""
    return float(config.batch_size) if config.kl_schedule == "paper" else config.beta


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
