"""Damaged files that a reader leaves out where that was asked for: named, counted, and noted in the data set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from mcrepar.data.dataset import Dataset
from mcrepar.data.files import some
from mcrepar.errors import ParameterError

T = TypeVar("T")
_LISTED = 100  # of the files, in the warning


@dataclass(frozen=True)
class Skips:
    """What a reader left out.

    Args:
        root: below which the files are named.
        allowed: whether damaged files may be left out; else the first is an error.
        files: those that were, and why.
    """

    root: Path
    allowed: bool
    files: dict[str, str] = field(default_factory=dict)

    def whole(self, files: Iterable[Path], reader: Callable[[Path], T]) -> Iterator[tuple[int, T]]:
        """The places of the files that are whole, and what the reader makes of them; one at least must be.

        Args:
            files: to read.
            reader: refuses what it cannot use.
        """
        none = True
        for place, path in enumerate(files):
            try:
                found = reader(path)
            except ParameterError as error:
                if not self.allowed:
                    instead = f"{error.instead}, or skip_damaged=True (--skip-damaged) to leave damaged files out"
                    raise ParameterError(error.asked, error.why, instead) from None
                self.files[str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)] = error.why
            else:
                none = False
                yield place, found
        if none:
            name, why = next(iter(self.files.items()))
            raise ParameterError(f"root={str(self.root)!r}", f"all files are damaged; {name}: {why}", "whole files")

    def noted(self, dataset: Dataset, total: int) -> Dataset:
        """The data set with the names of what was left out, after a warning that lists them.

        Args:
            dataset: of the files that are whole.
            total: how many files there were.
        """
        if not self.files:
            return dataset
        listed = some([f"{name} ({why})" for name, why in self.files.items()], _LISTED)
        warnings.warn(
            f"{len(self.files):,} of {total:,} files are damaged and were left out: {listed}",
            stacklevel=4,  # where load was called
        )
        return replace(dataset, skipped=tuple(self.files))
