"""How many draws and examples fit into a memory, from measured bytes: both are linear, so any size follows from two."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mcrepar.experiments.experiment import Results
from mcrepar.experiments.training_step import looped_kl
from mcrepar.families.posteriors import posterior
from mcrepar.families.priors import prior
from mcrepar.kl.graph import saved_bytes

LOOPS = {"exact": "entropy exact", "mc": "log q sampled too"}
GIB = 2**30
MANY = 10**6  # draws of ours
PROBE = 4  # draws with which a step is measured: at fewer, the network's own backward may be what needs most


def bytes_per_draw(entropy: str) -> float:
    """What a draw of the printed loop keeps for the backward per weight, from autograd's hooks.

    >>> bytes_per_draw("exact")  # the noise and the weight, 4 bytes each
    8.0
    """
    size = 1000
    loc, log_scale = torch.zeros(size, requires_grad=True), torch.full((size,), -3.0, requires_grad=True)
    q, p = posterior("radial", loc=loc, log_scale=log_scale), prior("normal")

    def kept(draws: int) -> int:
        return saved_bytes(lambda: looped_kl(q, p, draws, entropy))

    return round((kept(4) - kept(2)) / (2 * size), 2)


def largest(memory: float, one_draw: float, per_draw: float) -> int:
    """The largest M whose step fits, from the memory of a step with M = 1.

    >>> largest(1000, one_draw=400, per_draw=100), largest(300, one_draw=400, per_draw=100)
    (7, 0)
    """
    return 0 if one_draw > memory else 1 + int((memory - one_draw) // per_draw)


@dataclass(frozen=True)
class Prediction:
    """What fits into the memory for one network: M by both loops at the batch, and the largest batches."""

    network: str
    weights: int
    needed: float
    draws: dict[str, int]
    batch_direct: int
    batch_ours: int


def predictions(results: Results) -> list[Prediction]:
    """The largest M and the largest batches, from the measured bytes."""
    settings, (draw,) = results.settings, results.of("draw")
    found = []
    for row in results.of("network"):
        low, per_example, weights = settings.probes[0], row["per_example"], row["weights"]
        needed = row["one_draw"] + (settings.batch - low) * per_example
        slopes = {entropy: draw[f"per_draw_{entropy}"] * weights for entropy in LOOPS}
        # one draw of the fuller loop keeps more than the one that was measured
        most = {e: largest(settings.memory, needed + s - slopes["exact"], s) for e, s in slopes.items()}
        room = {"direct": settings.memory - row["one_draw"], "ours": settings.memory - row["ours_many"]}
        batches = {name: max(0, low + math.floor(free / per_example)) for name, free in room.items()}
        found.append(Prediction(row["network"], weights, needed, most, batches["direct"], batches["ours"]))
    return found


def volume_table(results: Results) -> list[tuple[int, int]]:
    """The largest M for every batch of volumes that fits."""
    (row,), (draw,), settings = results.of("volumes"), results.of("draw"), results.settings
    low, slope = settings.volume_probes[0], draw["per_draw_mc"] * row["weights"]
    most = low + max(0, math.floor((settings.memory - row["one_draw"]) / row["per_example"]))
    batches = sorted({1, *range(max(1, most - 2), most + 1)})
    return [(b, largest(settings.memory, row["one_draw"] + (b - low) * row["per_example"], slope)) for b in batches]
