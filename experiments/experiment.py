"""What an experiment is: a claim of the paper, small parts that are measured one by one, and a verdict on the claim."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = ("tiny", "cpu", "paper")  # seconds; minutes to an hour or two on two cores; the paper's own setting
CHANCE = 5.0  # standard errors beyond which a number is called different; by chance once in two million
Row = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line.

    Args:
        name: of an experiment, or all.
        scale: tiny, cpu or paper.
        out: the folder of all results.
        root: where the user's data are.
        seed: of all noise.
    """

    name: str
    scale: str = "cpu"
    out: Path = Path("experiments/results")
    root: Path | None = None
    seed: int = 0

    def command(self, name: str) -> str:
        """The command that computes this experiment again."""
        words = ["mcrepar", "reproduce", name, "--scale", self.scale]
        words += ["--out", str(self.out)] if self.out != Path("experiments/results") else []
        words += ["--root", "DATA"] if self.root is not None else []  # where they are is not the reader's business
        words += ["--seed", str(self.seed)] if self.seed else []
        return shlex.join(words)


@dataclass(frozen=True)
class Part:
    """A piece of an experiment that is measured and stored at once.

    Args:
        key: its name, the name of a file.
        given: how it differs from the other parts: numbers, texts and lists of them.
    """

    key: str
    given: Mapping[str, Any]


@dataclass(frozen=True)
class Bench:
    """Where a part is measured.

    Args:
        settings: of the experiment at this scale.
        seed: of this part alone, so that a part measured later has the noise that it would have had.
        root: where the user's data are; None where none were named.
        runs: the folder of all trainings, which experiments share; made by whoever needs it.
    """

    settings: Any
    seed: int
    root: Path | None
    runs: Path


@dataclass(frozen=True)
class Finding:
    """One sentence of the claim beside what was measured.

    Args:
        claim: what is said.
        measured: what was found, with its numbers.
        held: whether it is so; None where that is inconclusive.
        ours: whether it is this project's statement and not the paper's: it does not count for the verdict.
    """

    claim: str
    measured: str
    held: bool | None
    ours: bool = False

    @property
    def word(self) -> str:
        """yes, no or inconclusive."""
        return "inconclusive" if self.held is None else "yes" if self.held else "no"


def all_held(each: Iterable[bool | None]) -> bool | None:
    """Whether all are so; False where one is not, None where none is wrong but some are inconclusive, or there is none.

    >>> all_held([True, True]), all_held([True, None]), all_held([None, False])
    (True, None, False)
    """
    found = list(each)
    return False if False in found else None if None in found or not found else True


def verdict(findings: Sequence[Finding]) -> str:
    """held, held in part, or not held: the paper's sentences, and how many of them were judged where not all were.

    >>> verdict([Finding("it is fast", "1 s", True), Finding("it is exact", "off by 1", False)])
    'held in part'
    >>> verdict([Finding("it is fast", "1 s", True), Finding("it is exact", "not known", None)])
    'held (1 of 2 judged)'
    """
    all_ = [finding.held for finding in findings if not finding.ours]
    judged = [held for held in all_ if held is not None]
    if not judged:
        return "inconclusive at this scale"
    word = "held" if all(judged) else "held in part" if any(judged) else "not held"
    return word if len(judged) == len(all_) else f"{word} ({len(judged)} of {len(all_)} judged)"


@dataclass(frozen=True)
class Results:
    """What all parts measured.

    Args:
        settings: of the experiment at this scale.
        rows: one for each part: its key, what it was given and what it measured.
    """

    settings: Any
    rows: Sequence[Row]

    def of(self, kind: str) -> list[Row]:
        """The rows whose `kind` is this one."""
        return [row for row in self.rows if row.get("kind") == kind]


@dataclass(frozen=True)
class Experiment:
    """A figure, a table or a statement of the paper that can be run.

    Args:
        title: a heading.
        where: its place in the paper, numbered as in the PDF.
        claim: what the paper says there, in other words.
        method: how it is measured here, and what differs from the paper.
        version: raised whenever what a part measures changes; parts of other versions are not used.
        settings: a frozen dataclass for every scale.
        parts: the pieces, from the settings.
        measure: a piece, to numbers, texts, lists and dicts of them.
        judge: all pieces, to the sentences of the claim.
        draw: all pieces, to the figure.
        tell: all pieces, to tables in Markdown for whoever wants the numbers.
        check: refuses, before any computing, where data are missing: from the settings and the data's folder.
        undecided: by scale, why nothing that is measured there can decide a sentence of the paper.
    """

    title: str
    where: str
    claim: str
    method: str
    version: int
    settings: Mapping[str, Any]
    parts: Callable[[Any], Sequence[Part]]
    measure: Callable[[Part, Bench], Row]
    judge: Callable[[Results], Sequence[Finding]]
    draw: Callable[[Results], Figure]
    tell: Callable[[Results], str]
    check: Callable[[Any, Path | None], None] = lambda settings, root: None
    undecided: Mapping[str, str] = field(default_factory=dict)

    def findings(self, results: Results, scale: str) -> list[Finding]:
        """What was judged; of the paper's sentences nothing where the scale cannot decide them."""
        found = self.judge(results)
        return [f if f.ours or scale not in self.undecided else replace(f, held=None) for f in found]


def part_seed(seed: int, key: str) -> int:
    """A seed for a part, from that of the experiment.

    >>> part_seed(0, "a") != part_seed(0, "b") != part_seed(1, "b")
    True
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:6], "big")


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown.

    >>> print(markdown(["M", "error"], [[1, "0.5"], [10, "0.2"]]))
    | M | error |
    |---|---|
    | 1 | 0.5 |
    | 10 | 0.2 |
    """
    lines = [header, *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    text = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(header), *text[1:]])
