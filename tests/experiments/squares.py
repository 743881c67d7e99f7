"""An experiment of numbers that are squared, for the tests of the framework."""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from experiments import reproduce
from experiments.experiment import Bench, Experiment, Finding, Part, Request
from mcrepar.errors import ParameterError


@dataclass(frozen=True)
class Settings:
    numbers: tuple[int, ...] = (1, 2, 3)


class Squares:
    """Counts what it measures, and can be told to stop in the middle."""

    def __init__(self):
        self.measured, self.stop_at, self.needs = [], None, None
        self.findings = [Finding("Squares grow.", "they | do", True)]

    def measure(self, part: Part, bench: Bench) -> dict:
        if part.key == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(part.key)
        return {"square": part.given["number"] ** 2, "seed": bench.seed}

    def check(self, settings, root: Path | None) -> None:
        if self.needs and (root is None or not (root / self.needs).exists()):
            raise ParameterError("squares", f"there is no {self.needs}", f"--root with {self.needs}, from its makers")

    def experiment(self, version: int = 1, numbers: tuple[int, ...] = (1, 2, 3), measure=None) -> Experiment:
        settings = Settings(numbers)
        return Experiment(
            title="Squares",
            where="Figure 99",
            claim="Squares grow.",
            method="By multiplication.",
            version=version,
            settings=dict.fromkeys(("tiny", "cpu", "paper"), settings),
            parts=lambda settings: [Part(f"n{n}", {"number": n}) for n in settings.numbers],
            measure=measure or self.measure,
            judge=lambda results: self.findings if results.rows[0]["square"] < 9 else [],
            draw=lambda results: Figure(),
            tell=lambda results: "",
            check=self.check,
        )


def run(folder, **options) -> list[str]:
    said: list[str] = []
    reproduce.reproduce(Request("squares", **{"scale": "tiny", "out": folder, **options}), said.append)
    return said
