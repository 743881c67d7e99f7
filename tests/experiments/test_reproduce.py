"""The framework, on an experiment of numbers that are squared."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from mcrepar.cli import main
from mcrepar.errors import ParameterError
from mcrepar.experiments import catalogue, reproduce, store
from mcrepar.experiments.experiment import Bench, Experiment, Finding, Part, Request


@dataclass(frozen=True)
class Settings:
    numbers: tuple[int, ...] = (1, 2, 3)


class Squares:
    """Counts what it measures, and can be told to stop in the middle."""

    def __init__(self):
        self.measured, self.stop_at, self.needs = [], None, None

    def measure(self, part: Part, bench: Bench) -> dict:
        if part.key == self.stop_at:
            raise KeyboardInterrupt
        self.measured.append(part.key)
        return {"square": part.given["number"] ** 2, "seed": bench.seed}

    def check(self, settings, root: Path | None) -> None:
        if self.needs and (root is None or not (root / self.needs).exists()):
            raise ParameterError("squares", f"there is no {self.needs}", f"--root with {self.needs}, from its makers")

    def experiment(self, version: int = 1, numbers: tuple[int, ...] = (1, 2, 3)) -> Experiment:
        settings = Settings(numbers)
        return Experiment(
            title="Squares",
            where="Figure 99",
            claim="Squares grow.",
            method="By multiplication.",
            version=version,
            settings=dict.fromkeys(("tiny", "cpu", "paper"), settings),
            parts=lambda settings: [Part(f"n{n}", {"number": n}) for n in settings.numbers],
            measure=self.measure,
            judge=lambda results: [Finding("Squares grow.", "they | do", results.rows[0]["square"] < 9)],
            draw=lambda results: Figure(),
            tell=lambda results: "",
            check=self.check,
        )


class Row:
    summary = "squares of numbers"

    def __init__(self, experiment):
        self.experiment = experiment


@pytest.fixture
def squares(monkeypatch):
    made = Squares()

    def use(**options):
        rows = {"squares": Row(made.experiment(**options))}
        for module in (catalogue, reproduce):
            monkeypatch.setattr(module, "EXPERIMENTS", rows)

    made.use = use
    use()
    return made


def run(folder, **options) -> list[str]:
    said: list[str] = []
    reproduce.reproduce(Request("squares", **{"scale": "tiny", "out": folder, **options}), said.append)
    return said


def test_the_three_files(squares, tmp_path):
    assert run(tmp_path) == [f"squares: held ({tmp_path / 'squares' / 'README.md'})"]
    result = json.loads((tmp_path / "squares" / "result.json").read_text())
    assert [row["square"] for row in result["measured"]] == [1, 4, 9]
    assert result["settings"] == {"numbers": [1, 2, 3]}
    assert result["machine"]["cores"] == os.cpu_count()
    assert set(result["versions"]) == {"mcrepar", "experiment", "python", "torch", "numpy"}
    page = (tmp_path / "squares" / "README.md").read_text()
    for text in ("Squares grow.", "Figure 99", r"they \| do", "figure.png", "--scale tiny", "seed 0", "held"):
        assert text in page


def test_an_interrupted_run_goes_on(squares, tmp_path):
    squares.stop_at = "n3"
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce(Request("squares", "tiny", tmp_path), said.append)
    assert said == ["squares was interrupted; what was measured is kept, and the same command goes on from there"]
    assert squares.measured == ["n1", "n2"]
    assert not (tmp_path / "squares" / "result.json").exists()
    squares.stop_at = None
    run(tmp_path)
    assert squares.measured == ["n1", "n2", "n3"]
    run(tmp_path)
    assert squares.measured == ["n1", "n2", "n3"], "a finished experiment is only written again"


@pytest.mark.parametrize("change", ["version", "numbers", "seed", "package"])
def test_parts_of_other_circumstances_are_measured_anew(squares, tmp_path, monkeypatch, change):
    run(tmp_path)
    options = {}
    if change == "version":
        squares.use(version=2)
    elif change == "numbers":
        squares.use(numbers=(1, 2))
    elif change == "package":
        monkeypatch.setattr(store, "__version__", "99.0")
    else:
        options["seed"] = 1
    said = run(tmp_path, **options)
    assert "of another version, seed or setting, and are measured anew: n1, n2" in said[0]
    assert squares.measured[:3] == ["n1", "n2", "n3"]
    assert squares.measured[3:5] == ["n1", "n2"]


def test_a_broken_part_is_measured_anew(squares, tmp_path):
    run(tmp_path)
    (tmp_path / "squares" / "parts-tiny" / "n2.json").write_text('{"finger')
    assert run(tmp_path)[0].endswith("measured anew: n2")
    assert squares.measured == ["n1", "n2", "n3", "n2"]


def test_parts_have_noise_of_their_own_that_does_not_depend_on_the_order(squares, tmp_path):
    run(tmp_path / "a")
    squares.stop_at = "n2"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b")
    squares.stop_at = None
    run(tmp_path / "b")
    seeds = [
        [row["seed"] for row in json.loads((tmp_path / x / "squares" / "result.json").read_text())["measured"]]
        for x in "ab"
    ]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


def test_a_smaller_scale_does_not_replace_a_larger_one(squares, tmp_path):
    run(tmp_path, scale="cpu")
    with pytest.raises(ParameterError, match=r"holds a result of the scale cpu.*another --out"):
        run(tmp_path)
    run(tmp_path, scale="paper")
    assert json.loads((tmp_path / "squares" / "result.json").read_text())["scale"] == "paper"


def test_nothing_is_left_beside_the_files(squares, tmp_path):
    run(tmp_path)
    found = sorted(str(path.relative_to(tmp_path / "squares")) for path in (tmp_path / "squares").rglob("*"))
    parts = ["parts-tiny", "parts-tiny/n1.json", "parts-tiny/n2.json", "parts-tiny/n3.json"]
    assert found == sorted(["README.md", "figure.png", "result.json", *parts])


def test_missing_data_are_named_before_any_computing(squares, tmp_path, capsys):
    squares.needs = "cifar-10.tar.gz"
    assert main(["reproduce", "squares", "--scale", "tiny", "--out", str(tmp_path)]) == 2
    assert "there is no cifar-10.tar.gz; use --root with cifar-10.tar.gz" in capsys.readouterr().err
    assert squares.measured == []
    assert not (tmp_path / "squares").exists()
    said: list[str] = []
    assert reproduce.reproduce(Request("all", "tiny", tmp_path), said.append) == []
    assert said[0].startswith("squares is left out. squares: there is no cifar-10.tar.gz")
    (tmp_path / "cifar-10.tar.gz").touch()
    run(tmp_path, root=tmp_path)
    assert squares.measured == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"scale": "huge"}, "no such scale; use tiny, cpu, paper"),
        ({"seed": -1}, "--seed -1"),
    ],
    ids=["scale", "seed"],
)
def test_bad_requests(squares, tmp_path, options, why):
    with pytest.raises(ParameterError, match=why):
        run(tmp_path, **options)
    assert squares.measured == []


def test_an_out_that_is_a_file(squares, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ParameterError, match="is a file; use a folder"):
        run(tmp_path / "file")
    assert squares.measured == []


def test_an_out_that_cannot_be_written(squares, tmp_path, monkeypatch):
    monkeypatch.setattr(store.os, "access", lambda path, mode: False)  # the superuser may write anywhere
    with pytest.raises(ParameterError, match="cannot be written; use a place where you may write"):
        run(tmp_path / "locked")
    assert squares.measured == []


def test_a_disk_that_fails_is_an_error_in_words(squares, tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_bytes", full)
    with pytest.raises(ParameterError, match=r"n1.json cannot be written .No space left on device."):
        run(tmp_path)


def test_numbers_that_are_no_numbers_are_not_stored(squares, tmp_path):
    broken = replace(squares.experiment(), measure=lambda part, bench: {"square": float("nan")})
    made = store.Store(tmp_path, "tiny", "x")
    with pytest.raises(ValueError, match="Out of range float"):
        made.save(Part("n1", {}), broken.measure(Part("n1", {}), None), 0.0)
    assert not list(tmp_path.rglob("*.json"))
