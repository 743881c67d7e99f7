"""How many draws and examples fit into a memory, from the peak of real steps: both are linear, so any size follows.

`memory_budget` answers the same question for the app without running a step: it adds up what autograd keeps, by the
library's own `direct`, whose entropy is exact. Here the peak of a whole step is measured (gradients and what the
backward needs for a moment included), by the loop that the paper prints, with log q sampled too, which keeps twice as
much per draw. So PreActResNet-18 has 126 draws in 11 GiB there, and here 125 (entropy exact) or 62 (log q sampled).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from experiments.experiment import Results, Row
from experiments.training_step import TrainingStep, looped_kl
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.priors import prior
from mcrepar.inspect.graph import saved_bytes
from mcrepar.workbench.app.memory_budget import largest

LOOPS = {"exact": "entropy exact", "mc": "log q sampled too"}
GIB = 2**30
MANY = 10**6  # draws of ours
PROBE = 4  # draws with which a step is measured: at fewer, the network's own backward may be what needs most


def size_text(size: float) -> str:
    """Bytes for readers.

    >>> size_text(11 * GIB), size_text(6 * 2**20)
    ('11 GiB', '6 MiB')
    """
    return f"{size / GIB:.3g} GiB" if size >= GIB / 10 else f"{size / 2**20:.3g} MiB"


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


def one_draw(step: TrainingStep, batch: int, entropy: str) -> float:
    """The memory of a step with M = 1 by the line through M = PROBE, on which larger M are.

    Args:
        step: of a network.
        batch: its examples.
        entropy: of the printed loop.
    """
    beyond = (PROBE - 1) * bytes_per_draw(entropy) * step.weights
    return step.peak(batch, lambda: step.looped(PROBE, entropy)) - beyond


@dataclass(frozen=True)
class Line:
    """The memory of a step: linear in the batch and in the draws.

    Args:
        row: what was measured: `weights`, `per_example`, and `one_draw` of the loop with exact entropy.
        low: the batch of `one_draw`.
        kept: bytes per weight and draw of both loops, `per_draw_exact` and `per_draw_mc`.
    """

    row: Row
    low: int
    kept: Row

    def per_draw(self, entropy: str) -> float:
        """What a draw adds."""
        return float(self.kept[f"per_draw_{entropy}"] * self.row["weights"])

    def one_draw(self, batch: int, entropy: str) -> float:
        """A step with M = 1; one draw of the fuller loop keeps more than the one that was measured."""
        fuller = self.per_draw(entropy) - self.per_draw("exact")
        return float(self.row["one_draw"] + (batch - self.low) * self.row["per_example"] + fuller)

    def draws(self, memory: float, batch: int, entropy: str) -> int:
        """The largest M."""
        return largest(memory, self.one_draw(batch, entropy), self.per_draw(entropy))

    def batch(self, memory: float, at_low: float) -> int:
        """The largest batch, where a step with the batch `low` takes `at_low` bytes."""
        return max(0, self.low + math.floor((memory - at_low) / float(self.row["per_example"])))


@dataclass(frozen=True)
class Prediction:
    """What fits into the memory for one network: M by both loops at the batch, and the largest batch of ours."""

    network: str
    weights: int
    needed: float
    draws: dict[str, int]
    batch_ours: int


def network_line(results: Results, row: Row) -> Line:
    """The line of a network for images."""
    (kept,) = results.of("draw")
    return Line(row, results.settings.probes[0], kept)


def predictions(results: Results) -> list[Prediction]:
    """The largest M and the largest batch, from the measured bytes."""
    memory, batch = results.settings.memory, results.settings.batch
    found = []
    for row in results.of("network"):
        line = network_line(results, row)
        draws = {entropy: line.draws(memory, batch, entropy) for entropy in LOOPS}
        ours = line.batch(memory, row["ours_many"])
        found.append(Prediction(row["network"], row["weights"], line.one_draw(batch, "exact"), draws, ours))
    return found


def volume_table(results: Results) -> list[tuple[int, int]]:
    """The largest M, log q sampled, for batches of 1, 2, 4, ... volumes and for the largest that fits."""
    (row,), (kept,), memory = results.of("volumes"), results.of("draw"), results.settings.memory
    line = Line(row, results.settings.volume_probes[0], kept)
    most = line.batch(memory, line.one_draw(line.low, "mc"))
    doubled = [2**k for k in range(most.bit_length())]
    return [(batch, line.draws(memory, batch, "mc")) for batch in sorted({*doubled, most} - {0})]
