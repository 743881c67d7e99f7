"""The parts of an experiment that are done, each a file that is whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcrepar import __version__
from mcrepar.errors import ParameterError
from mcrepar.experiments.experiment import SCALES, Experiment, Part, Row
from mcrepar.training.whole_file import write_bytes


@dataclass(frozen=True)
class Store:
    """The folder of one experiment.

    Args:
        folder: results/NAME.
        scale: of the parts.
        fingerprint: of everything that a part's numbers depend on.
    """

    folder: Path
    scale: str
    fingerprint: str

    @property
    def parts(self) -> Path:
        """Where the parts of this scale are."""
        return self.folder / f"parts-{self.scale}"

    def check(self) -> None:
        """Refuse a folder that cannot be written, or that holds the result of a larger scale."""
        asked = f"--out {self.folder.parent}"
        above = next(place for place in (self.folder, *self.folder.absolute().parents) if place.exists())
        if not above.is_dir():
            raise ParameterError(asked, f"{above} is a file", "a folder")
        if not os.access(above, os.W_OK | os.X_OK):
            raise ParameterError(asked, f"{above} cannot be written", "a place where you may write")
        there = _read(self.folder / "result.json").get("scale")
        if there in SCALES and SCALES.index(there) > SCALES.index(self.scale):
            why = f"{self.folder} holds a result of the scale {there}, which a {self.scale} one would replace"
            raise ParameterError(f"--scale {self.scale}", why, f"--scale {there}, or another --out")

    def load(self, parts: Sequence[Part], say: Callable[[str], None]) -> list[Row | None]:
        """What was measured before; None for a part that is not there, cannot be read, or is another version's."""
        found, others = [], []
        for part in parts:
            path = self.parts / f"{part.key}.json"
            record = _read(path)
            right = record.get("fingerprint") == self.fingerprint and isinstance(record.get("measured"), dict)
            if path.exists() and not right:
                others.append(part.key)
            found.append(record if right else None)
        if others:
            why = "cannot be read or are of another version, seed or setting, and are measured anew"
            say(f"{len(others)} parts in {self.parts} {why}: {', '.join(others)}")
        return found

    def save(self, part: Part, measured: Row, seconds: float) -> Row:
        """Store a part at once."""
        record = {"key": part.key, "fingerprint": self.fingerprint, "seconds": seconds, "measured": measured}
        self.write(self.parts / f"{part.key}.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
        return record

    def write(self, path: Path, content: str | bytes) -> None:
        """A file, whole or not at all."""
        try:
            write_bytes(path, content.encode("utf-8") if isinstance(content, str) else content)
        except OSError as error:
            why = f"{path} cannot be written ({error.strerror or error})"
            raise ParameterError(f"--out {self.folder.parent}", why, "a place where you may write") from None


def fingerprint(experiment: Experiment, scale: str, seed: int) -> str:
    """Names everything that a part's numbers depend on: the version, the settings and the seed.

    Args:
        experiment: whose.
        scale: of its settings.
        seed: of its noise.
    """
    facts = [__version__, experiment.version, asdict(experiment.settings[scale]), seed]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
