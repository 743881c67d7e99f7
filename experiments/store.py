"""The parts of an experiment that are done, each a file that is whole or not there."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.experiment import SCALES, Experiment, Part, Row
from experiments.machine import machine
from mcrepar import __version__
from mcrepar.errors import ParameterError
from mcrepar.user_files import write_file
from mcrepar.workbench.training.run_folder import FolderTaken, take

# What a stored part must have.
_RECORD: dict[str, type | tuple[type, ...]] = {
    "measured": dict,
    "seconds": (int, float),
    "finished": str,
    "machine": dict,
}


@dataclass(frozen=True)
class Store:
    """The folder of one experiment.

    Args:
        folder: results/NAME.
        scale: of the parts.
        seed: of their noise.
        fingerprint: of everything that a part's numbers depend on.
    """

    folder: Path
    scale: str
    seed: int
    fingerprint: str

    @property
    def parts(self) -> Path:
        """Where the parts of this scale and seed are."""
        return self.folder / (f"parts-{self.scale}" + (f"-seed{self.seed}" if self.seed else ""))

    def check(self) -> None:
        """Refuse a folder that cannot be written, or whose result is of a larger scale or of another seed."""
        try:
            above = next(place for place in (self.folder, *self.folder.absolute().parents) if place.exists())
        except OSError as error:  # a name that is too long, or a folder that may not be looked into
            raise self._refused(error.filename or self.folder, error) from None
        if not above.is_dir():
            raise ParameterError(self._asked, f"{above} is a file", "a folder")
        if not os.access(above, os.W_OK | os.X_OK):
            raise ParameterError(self._asked, f"{above} cannot be written", "a place where you may write")
        if (self.folder / "result.json").exists():
            self._check_result(self.folder / "result.json")

    def _check_result(self, path: Path) -> None:
        found = _read(path)
        scale, seed = found.get("scale"), found.get("seed")
        if scale not in SCALES or not isinstance(seed, int):
            why = f"{path} is there, but does not say of which scale and seed it is"
            raise ParameterError(self._asked, why, "another --out, or the same after that file is moved away")
        if SCALES.index(scale) > SCALES.index(self.scale):
            why = f"{self.folder} holds a result of the scale {scale}, which a {self.scale} one would replace"
            raise ParameterError(f"--scale {self.scale}", why, f"--scale {scale}, or another --out")
        if seed != self.seed:
            why = f"{self.folder} holds a result of the seed {seed}, which one of the seed {self.seed} would replace"
            raise ParameterError(f"--seed {self.seed}", why, f"--seed {seed}, or another --out")

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the parts of this scale and seed alone; the kernel lets go of them when a process is killed."""
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            lock = take(self.parts)
        except BlockingIOError:
            why = f"another process is computing {self.parts} at this moment"
            raise FolderTaken(self._asked, why, "the same command when that one has ended") from None
        except OSError as error:
            raise self._refused(self.parts, error) from None
        with lock or nullcontext():
            yield

    @property
    def _asked(self) -> str:
        return f"--out {self.folder.parent}"

    def _refused(self, path: Path | str, error: OSError) -> ParameterError:
        why = f"{path} cannot be written ({error.strerror or error})"
        return ParameterError(self._asked, why, "a place where you may write")

    def load(self, parts: Sequence[Part], say: Callable[[str], None]) -> list[Row | None]:
        """What was measured before; None for a part that is not there, cannot be read, or is another version's."""
        found, others = [], []
        for part in parts:
            path = self.parts / f"{part.key}.json"
            record = _read(path)
            whole = all(isinstance(record.get(name), kind) for name, kind in _RECORD.items())
            right = whole and record.get("fingerprint") == self.fingerprint
            if path.exists() and not right:
                others.append(part.key)
            found.append(record if right else None)
        if others:
            why = "cannot be read or are of another version or setting, and are measured anew"
            say(f"{len(others)} parts in {self.parts} {why}: {', '.join(others)}")
        return found

    def save(self, part: Part, measured: Row, seconds: float) -> Row:
        """Store a part at once, with when and on what it was measured: others may be measured elsewhere."""
        record = {
            "key": part.key,
            "fingerprint": self.fingerprint,
            "seconds": seconds,
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "measured": measured,
        }
        self.write(self.parts / f"{part.key}.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
        return record

    def write(self, path: Path, content: str | bytes) -> None:
        """A file, whole or not at all."""
        try:
            write_file(path, content.encode("utf-8") if isinstance(content, str) else content)
        except OSError as error:
            raise self._refused(path, error) from None


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
