"""The verdicts on a pair, as math.md C names them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What a code means, whether a claim of a finite tuple is right there, and its colour on a terminal."""

    meaning: str
    right: bool
    colour: str


VERDICTS = {
    "T1": Verdict("right by Theorem 1", True, "green"),
    "T2": Verdict("right by Theorem 2", True, "green"),
    "C1": Verdict("right by Corollary 1", True, "green"),
    "C2": Verdict("right by Corollary 2", True, "green"),
    "X": Verdict("right, by a closed form that the paper lacks", True, "cyan"),
    "N": Verdict("no finite tuple", False, "yellow"),
    "INF-S": Verdict("infinite KL by its supports", False, "red"),
    "INF-M": Verdict("infinite KL by a divergent moment", False, "red"),
}
