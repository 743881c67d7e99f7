"""Whether the accuracy of confidence sets rises with the threshold, or falls by more than the test images' chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from experiments.experiment import Row

SURELY = 3.0  # standard errors of the test images: a step is wrongly called a fall once in 700 times
HOW_RISING = (
    f"The accuracy rises where no step to the next set that is not empty falls by more than {SURELY:g} standard errors "
    "and all steps together gain more than that, means over replications; the errors are those of the sampling of the "
    "test images, which replications share. It is inconclusive where neither a fall nor the gain is as large."
)


def step_error(outer: Row, inner: Row) -> float:
    """The standard error of accuracy(inner) - accuracy(outer), of a set and the larger one in which it is.

    That difference is (n_shell / n_outer) (a_inner - a_shell), and the images of both parts are independent. A part
    that is all right or all wrong has an error too: a hit and a miss are added.

    Args:
        outer: the `count` and `accuracy` of a set.
        inner: those of a set in it.

    >>> round(step_error({"count": 200, "accuracy": 0.5}, {"count": 100, "accuracy": 0.5}), 3)
    0.035
    """
    whole, kept = int(outer["count"]), int(inner["count"])
    hits = inner["accuracy"] * kept
    parts = (kept, hits), (whole - kept, outer["accuracy"] * whole - hits)
    rates = [(n, (right + 1) / (n + 2)) for n, right in parts if n]
    return (whole - kept) / whole * math.sqrt(sum(p * (1 - p) / n for n, p in rates))


def rises(rows: Sequence[Row]) -> bool | None:
    """Whether the accuracy rises with the threshold; None where chance may have made it, or sets are empty.

    Args:
        rows: replications, each with its confidence `sets` by threshold.
    """
    if not rows:
        return None
    lines = [[s for s in row["sets"] if s["accuracy"] is not None] for row in rows]
    known = [line[: min(map(len, lines))] for line in lines]  # sets are nested: the last ones are those that are empty
    if len(known[0]) < 2:
        return None
    steps = [_step([line[k : k + 2] for line in known]) for k in range(len(known[0]) - 1)]
    gain, error = _step([[line[0], line[-1]] for line in known])
    if gain < -SURELY * error or any(step < -SURELY * e for step, e in steps):
        return False
    return True if gain > SURELY * error else None


def _step(pairs: Sequence[Sequence[Row]]) -> tuple[float, float]:
    """The mean over replications of a step, and its error: that of one of them, for they have the same images."""
    steps = [inner["accuracy"] - outer["accuracy"] for outer, inner in pairs]
    return statistics.fmean(steps), statistics.fmean(step_error(outer, inner) for outer, inner in pairs)
