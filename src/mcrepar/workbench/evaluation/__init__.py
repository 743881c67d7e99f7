"""From a run folder to its report: `evaluate` and its options; importing it imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_type_hints

from mcrepar.errors import ParameterError
from mcrepar.validation import check_option
from mcrepar.workbench.training.config import flag, option


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Evaluation: what a trained network predicts.

    >>> EvaluateOptions(folder="runs/a").draws
    100
    """

    folder: str = option("runs/train", "the folder of the run")
    draws: int | Literal["moments"] = option(
        100, "draws of the weights, which vote on every prediction; moments: their mean and variance in one pass"
    )
    split: Literal["test", "validation", "train"] = option("test", "the part of the data that is predicted")
    ood: tuple[str, ...] = option(
        (),
        "out-of-distribution data: NAME or NAME,key=value,...; keys are root=PATH, as=TITLE and the reader's own",
    )
    root: str | None = option(None, "the folder of those out-of-distribution data that name no root of their own")
    resize: bool = option(False, "bring images of --ood to the size of the training images instead of refusing them")
    batch_size: int = option(256, "examples that go through the network at once")
    images: int = option(12, "how many of the most and of the least certain images are shown")
    seed: int = option(0, "of the draws")
    device: str = option("auto", "auto, cpu, cuda or cuda:K")
    progress: bool = option(True, "bars on a terminal, and the tables of results")

    def command(self) -> list[str]:
        """What to type to ask the same again.

        >>> EvaluateOptions(folder="runs/a", draws=20, ood=("digits", "brain"), resize=True).command()
        ['mcrepar', 'evaluate', 'runs/a', '--draws', '20', '--ood', 'digits', 'brain', '--resize']
        """
        words = ["mcrepar", "evaluate", self.folder]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("folder", "progress") and value != field.default:
                values = value if isinstance(value, tuple) else () if value is True else (value,)
                words += [flag(field.name), *map(str, values)]
        return words

    def check(self) -> None:
        """Refuse other types and numbers out of range before any work."""
        for name, kind in get_type_hints(EvaluateOptions).items():
            check_option(flag(name), getattr(self, name), kind)
        for name, least in (("draws", 1), ("batch_size", 1), ("images", 0), ("seed", 0)):
            value = getattr(self, name)
            if value != "moments" and value < least:
                raise ParameterError(f"{flag(name)} {value}", f"it is less than {least}", f"{least} or more")
        if self.seed >= 2**63:
            raise ParameterError(f"--seed {self.seed}", "it has more than 63 bits", "a smaller number")


def evaluate(options: EvaluateOptions) -> Path:
    """Evaluate the network of a run folder, write predictions, metrics and a report, and return metrics.json's path.

    Args:
        options: the folder and what to predict; every one has a default.
    """
    from mcrepar.workbench.evaluation.results import run

    return run(options)
