"""Every option of an evaluation; no torch here, so that --help answers at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_type_hints

from mcrepar.errors import ParameterError
from mcrepar.validation import check_value
from mcrepar.workbench.training.config import flag, option


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Evaluation: what is asked of a trained network.

    >>> EvaluateOptions(folder="runs/a").draws
    100
    """

    folder: str = option("runs/train", "the folder of the run")
    draws: int = option(100, "draws of the weights, which vote on every answer")
    split: Literal["test", "validation", "train"] = option("test", "the part of the data that is asked about")
    ood: tuple[str, ...] = option(
        (), "foreign data: NAME or NAME,key=value,...; root=PATH and as=TITLE are keys beside the reader's own"
    )
    root: str | None = option(None, "the folder of those foreign data that name no root of their own")
    resize: bool = option(False, "bring foreign images to the size of the known ones instead of refusing them")
    batch_size: int = option(256, "data that go through the network at once")
    images: int = option(12, "how many of the surest and of the least sure images are shown")
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
            check_value(flag(name), getattr(self, name), kind)
        for name, least in (("draws", 1), ("batch_size", 1), ("images", 0), ("seed", 0)):
            value = getattr(self, name)
            if value < least:
                raise ParameterError(f"{flag(name)} {value}", f"it is less than {least}", f"{least} or more")
        if self.seed >= 2**63:
            raise ParameterError(f"--seed {self.seed}", "it has more than 63 bits", "a smaller number")
