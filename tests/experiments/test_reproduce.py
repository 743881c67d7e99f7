"""The framework, on an experiment of numbers that are squared."""

import io
import json
import os

import pytest

from experiments import reproduce, store
from experiments.experiment import Finding, Request
from mcrepar.errors import ParameterError
from mcrepar.workbench.cli import main
from tests.experiments.squares import run


def test_the_three_files(squares, tmp_path):
    assert run(tmp_path)[-1] == f"squares: held ({tmp_path / 'squares' / 'README.md'})"
    result = json.loads((tmp_path / "squares" / "result.json").read_text())
    assert [row["square"] for row in result["measured"]] == [1, 4, 9]
    assert result["settings"] == {"numbers": [1, 2, 3]}
    (on,) = result["machines"]
    assert on["cores"] == os.cpu_count()
    assert set(result["versions"]) == {"mcrepar", "experiment"}
    page = (tmp_path / "squares" / "README.md").read_text()
    for text in ("Squares grow.", "Figure 99", r"they \| do", "figure.png", "--scale tiny", "seed 0", "held"):
        assert text in page
    assert "smoke test: no verdict on the paper" in page
    run(tmp_path, scale="cpu")
    assert "smoke test" not in (tmp_path / "squares" / "README.md").read_text()


def test_the_page_says_on_what_the_parts_were_measured_and_when(squares, tmp_path):
    run(tmp_path)
    part = tmp_path / "squares" / "parts-tiny" / "n1.json"
    record = json.loads(part.read_text())
    record |= {"machine": {**record["machine"], "threads": 77}, "finished": "2001-02-03T04:05:06+00:00"}
    part.write_text(json.dumps(record))
    last = max(json.loads(file.read_text())["finished"] for file in part.parent.glob("*.json"))
    run(tmp_path)
    page = (tmp_path / "squares" / "README.md").read_text()
    assert "(77 used)" in page
    assert page.count("cores (") == 2
    assert f"the last part ended {last}" in page


def test_the_verdict_says_what_was_judged(squares, tmp_path):
    squares.findings = [Finding("Squares grow.", "they do", True), Finding("They end.", "not known", None)]
    assert "squares: held (1 of 2 judged)" in run(tmp_path)[-1]
    assert json.loads((tmp_path / "squares" / "result.json").read_text())["verdict"] == "held (1 of 2 judged)"
    assert "**Measured here: held (1 of 2 judged).**" in (tmp_path / "squares" / "README.md").read_text()


def test_a_line_for_every_part_where_there_is_no_terminal(squares, tmp_path):
    squares.stop_at = "n2"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    squares.stop_at = None
    assert run(tmp_path)[:-1] == ["squares: n2, 0.0 s, 2 of 3", "squares: n3, 0.0 s, 3 of 3"]


def test_lines_are_written_out_at_once(squares, tmp_path, monkeypatch):
    class Log(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed += 1

    log = Log()
    monkeypatch.setattr("sys.stdout", log)
    reproduce.reproduce(Request("squares", "tiny", tmp_path))
    assert log.flushed == len(log.getvalue().splitlines()) == 4


def test_an_interrupted_run_goes_on(squares, tmp_path):
    squares.stop_at = "n3"
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce(Request("squares", "tiny", tmp_path), said.append)
    assert said[-1] == "squares was interrupted; what was measured is stored, and the same command goes on from there"
    assert squares.measured == ["n1", "n2"]
    assert not (tmp_path / "squares" / "result.json").exists()
    squares.stop_at = None
    run(tmp_path)
    assert squares.measured == ["n1", "n2", "n3"]
    run(tmp_path)
    assert squares.measured == ["n1", "n2", "n3"], "a finished experiment is only written again"


@pytest.mark.parametrize("change", ["version", "numbers", "package"])
def test_parts_of_other_circumstances_are_measured_anew(squares, tmp_path, monkeypatch, change):
    run(tmp_path)
    if change == "version":
        squares.use(version=2)
    elif change == "numbers":
        squares.use(numbers=(1, 2))
    else:
        monkeypatch.setattr(store, "__version__", "99.0")
    said = run(tmp_path)
    assert "of another version or setting, and are measured anew: n1, n2" in said[0]
    assert squares.measured[:3] == ["n1", "n2", "n3"]
    assert squares.measured[3:5] == ["n1", "n2"]


def test_parts_of_another_seed_are_kept_apart(squares, tmp_path):
    squares.stop_at = "n3"
    for seed in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, seed=seed)
    assert squares.measured == ["n1", "n2"] * 2
    assert len(list((tmp_path / "squares" / "parts-tiny-seed1").glob("*.json"))) == 2
    squares.stop_at = None
    run(tmp_path)
    assert squares.measured[4:] == ["n3"], "those of the first seed are still there"
    with pytest.raises(ParameterError, match=r"--seed 1: .*result of the seed 0.*Use --seed 0, or another --out"):
        run(tmp_path, seed=1)
    with pytest.raises(ParameterError, match="seed"):
        run(tmp_path, scale="cpu", seed=1)
    assert squares.measured[4:] == ["n3"]


@pytest.mark.parametrize(
    "damage", [lambda text: "{'", lambda text: "[]", lambda text: text.replace('"seconds"', '"s"')]
)
def test_a_broken_part_is_measured_anew(squares, tmp_path, damage):
    run(tmp_path)
    part = tmp_path / "squares" / "parts-tiny" / "n2.json"
    part.write_text(damage(part.read_text()))
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


def test_a_result_is_written_anew_without_measuring(squares, tmp_path):
    run(tmp_path, scale="cpu")
    folder = tmp_path / "squares"
    before = {file: (folder / file).read_bytes() for file in ("README.md", "result.json", "figure.png")}
    (folder / "README.md").unlink()
    reproduce.rewrite(folder)
    assert {file: (folder / file).read_bytes() for file in before} == before
    squares.findings = [Finding("Squares grow.", "they do not", False)]
    reproduce.rewrite(folder)
    assert json.loads((folder / "result.json").read_text())["verdict"] == "not held"
    assert squares.measured == ["n1", "n2", "n3"]
    squares.use(numbers=(1, 2))
    with pytest.raises(ParameterError, match="settings are not those of the code"):
        reproduce.rewrite(folder)


def test_a_smaller_scale_does_not_replace_a_larger_one(squares, tmp_path):
    run(tmp_path, scale="cpu")
    with pytest.raises(ParameterError, match=r"holds a result of the scale cpu.*another --out"):
        run(tmp_path)
    run(tmp_path, scale="paper")
    assert json.loads((tmp_path / "squares" / "result.json").read_text())["scale"] == "paper"


def test_a_part_that_lacks_what_is_judged_is_an_error_in_words(squares, tmp_path):
    run(tmp_path)
    before = (tmp_path / "squares" / "result.json").read_bytes()
    part = tmp_path / "squares" / "parts-tiny" / "n1.json"
    part.write_text(part.read_text().replace('"square"', '"cube"'))
    with pytest.raises(ParameterError, match=r"parts-tiny do not have what is judged .*'square'.*another --out"):
        run(tmp_path)
    assert (tmp_path / "squares" / "result.json").read_bytes() == before


@pytest.mark.parametrize(
    "text", ["", '{"scale": "paper", "see', "[]", '{"scale": "huge", "seed": 0}', '{"scale": "cpu"}']
)
def test_a_damaged_result_is_not_replaced(squares, tmp_path, text):
    (tmp_path / "squares").mkdir()
    (tmp_path / "squares" / "result.json").write_text(text)
    with pytest.raises(ParameterError, match=r"result\.json is there, but does not say.*moved away"):
        run(tmp_path, scale="paper")
    assert (tmp_path / "squares" / "result.json").read_text() == text
    assert squares.measured == []


def test_a_larger_scale_that_ends_meanwhile_is_not_replaced(squares, tmp_path):
    def measure(part, bench):
        (tmp_path / "squares" / "result.json").write_text('{"scale": "cpu", "seed": 0}')
        return squares.measure(part, bench)

    squares.use(measure=measure)
    with pytest.raises(ParameterError, match="holds a result of the scale cpu"):
        run(tmp_path)
    assert not (tmp_path / "squares" / "README.md").exists()


def test_two_processes_do_not_compute_the_same(squares, tmp_path):
    held = store.Store(tmp_path / "squares", "tiny", 0, "x")
    with held.taken():
        with pytest.raises(ParameterError, match=r"another process is computing .*parts-tiny.*when that one has ended"):
            run(tmp_path)
        assert squares.measured == []
        run(tmp_path, scale="cpu")
    assert squares.measured == ["n1", "n2", "n3"]


def test_nothing_is_left_beside_the_files(squares, tmp_path):
    run(tmp_path)
    found = sorted(str(path.relative_to(tmp_path / "squares")) for path in (tmp_path / "squares").rglob("*"))
    parts = ["parts-tiny", "parts-tiny/.lock", "parts-tiny/n1.json", "parts-tiny/n2.json", "parts-tiny/n3.json"]
    assert found == sorted(["README.md", "figure.png", "result.json", *parts])


def test_missing_data_are_named_before_any_computing(squares, tmp_path, capsys):
    squares.needs = "cifar-10.tar.gz"
    assert main(["reproduce", "squares", "--scale", "tiny", "--out", str(tmp_path)]) == 2
    assert "there is no cifar-10.tar.gz. Use --root with cifar-10.tar.gz" in capsys.readouterr().err
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
        ({"scale": "huge"}, "no such scale. Use tiny, cpu, paper"),
        ({"seed": -1}, "--seed -1"),
    ],
    ids=["scale", "seed"],
)
def test_bad_requests(squares, tmp_path, options, why):
    with pytest.raises(ParameterError, match=why):
        run(tmp_path, **options)
    assert squares.measured == []
