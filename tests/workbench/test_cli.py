import json
import re
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import mcrepar
from mcrepar import workbench
from mcrepar.errors import ParameterError
from mcrepar.inspect.table1 import render_table, score, score_line
from mcrepar.workbench import cli
from mcrepar.workbench.cli import main

THREE_PARTS = re.compile(r"^error: .+: .+\. [A-Z].+\.\n$")


@dataclass(frozen=True)
class Cell:
    posterior: str
    prior: str
    group: str = "scaling"
    claimed: bool = True
    verdict: str = "T1"
    methods: tuple[str, ...] = ("exact", "repar")
    default: str = "exact"
    reason: str = ""
    note: str = ""
    otherwise: str = ""

    @property
    def has_tuple(self) -> bool:
        return self.verdict != "N"

    @property
    def finite(self) -> bool:
        return not self.verdict.startswith("INF")


CELLS = [
    Cell("gamma", "normal"),
    Cell("gamma", "pareto", verdict="INF-S"),
    Cell("expgamma", "normal", claimed=False, verdict="N"),
    Cell("normal", "normal", "location-scale", verdict="T2"),
    Cell("normal", "laplace", "location-scale", verdict="N"),
]


def refuse(capsys, *argv):
    """The message of a command that must be refused: exit code 2, three parts, no traceback."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert THREE_PARTS.match(captured.err), captured.err
    return captured.err


def test_help_and_version_do_not_import_torch():
    code = (
        "import sys\n"
        "from mcrepar.workbench.cli import COMMANDS, main\n"
        "for words in ('--help', *(f'{name} --help' for name in COMMANDS), '--version'):\n"
        "    try: main(words.split())\n"
        "    except SystemExit as stop: assert not stop.code\n"
        "print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n")
    assert f"mcrepar {mcrepar.__version__}" in result.stdout


def test_module_is_the_command():
    result = subprocess.run([sys.executable, "-m", "mcrepar", "--version"], capture_output=True, text=True)
    assert result.returncode == 0
    assert result.stdout == f"mcrepar {mcrepar.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["nosuch"], ["explain", "gamma"], ["table", "--format", "xml"]])
def test_usage_errors_exit_with_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_explain_prints_the_plan(capsys):
    assert main(["explain", "gamma", "inverse_gaussian"]) == 0
    assert capsys.readouterr().out == f"{mcrepar.explain('gamma', 'inverse_gaussian')}\n"


def test_names_are_read_in_any_case_and_in_the_papers_spelling(capsys):
    main(["explain", "gamma", "inverse_gaussian"])
    expected = capsys.readouterr().out
    assert main(["explain", "Gamma", "Inverse-Gaussian"]) == 0
    assert capsys.readouterr().out == expected


def test_explain_takes_parameters(capsys):
    argv = [
        "explain",
        "gamma",
        "pareto",
        "--posterior-param",
        "concentration=0.8",
        "--prior-param",
        "improper=true",
    ]
    assert main(argv) == 0
    q, p = mcrepar.posterior("gamma", concentration=0.8), mcrepar.prior("pareto", improper=True)
    assert capsys.readouterr().out == f"{mcrepar.explain(q, p)}\n"


def test_unknown_family_names_the_nearest(capsys):
    assert "'gamma'" in refuse(capsys, "explain", "gama", "normal")
    assert "'normal'" in refuse(capsys, "explain", "gamma", "norml")


@pytest.mark.parametrize(
    "text", ["concentration", "concentration=", "concentration=two", "nosuch=1", "concentration=-1"]
)
def test_bad_parameters_are_refused(text, capsys):
    refuse(capsys, "explain", "gamma", "normal", "--posterior-param", text)


def test_debug_shows_the_traceback_before_or_after_the_command(capsys):
    for argv in (["--debug", "explain", "gama", "normal"], ["explain", "gama", "normal", "--debug"]):
        assert main(argv) == 2
        assert "Traceback" in capsys.readouterr().err


def test_unexpected_errors_exit_with_1(capsys, monkeypatch):
    def fail(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(mcrepar, "explain", fail, raising=False)
    assert main(["explain", "gamma", "normal"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "error: unexpected RuntimeError: boom (--debug shows where)\n"


def test_a_missing_extra_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "mcrepar[plot]" in refuse(capsys, "graph", "normal", "normal", "--out", str(tmp_path / "a.svg"))


def test_graph_writes_the_file_and_prints_its_path(tmp_path, capsys):
    out = tmp_path / "graph.svg"
    assert main(["graph", "radial", "normal", "--n-mc-iter", "1,3", "--out", str(out)]) == 0
    assert out.read_text().startswith("<?xml")
    assert capsys.readouterr().out == f"{out}\n"


@pytest.mark.parametrize("draws", ["0", "1,-3", "1.5", "x", "", "1001"])
def test_graph_refuses_bad_draws(draws, tmp_path, capsys):
    refuse(capsys, "graph", "radial", "normal", "--n-mc-iter", draws, "--out", str(tmp_path / "g.svg"))


@pytest.mark.parametrize("name", ["graph.bmp", "graph", "nosuch/graph.svg", "folder.svg"])
def test_graph_refuses_a_place_it_cannot_write_before_any_work(name, tmp_path, capsys, monkeypatch):
    (tmp_path / "folder.svg").mkdir()
    monkeypatch.setattr(mcrepar, "prior", None, raising=False)  # any work would fail differently
    refuse(capsys, "graph", "radial", "normal", "--out", str(tmp_path / name))


def test_graph_refuses_a_pair_without_tuple_and_leaves_no_file(tmp_path, capsys):
    out = tmp_path / "graph.svg"
    refuse(capsys, "graph", "normal", "logistic", "--out", str(out))
    assert not out.exists()


@pytest.mark.parametrize("fmt", ["text", "md", "json"])
def test_table_covers_all_cells(fmt, capsys):
    from mcrepar.inspect.table1 import table1

    assert main(["table", "--format", fmt]) == 0
    out = capsys.readouterr().out
    assert all(cell.posterior in out and cell.prior in out for cell in table1())
    if fmt == "json":
        assert len(json.loads(out)["cells"]) == len(table1())
    else:
        assert score_line(table1()) in out


def test_table_has_the_score_of_the_paper():
    from mcrepar.inspect.table1 import table1

    assert score(table1()) == {
        "claimed": 158, "tuple": 114, "finite": 106, "both": 87,
        "T1": 74, "T2": 5, "X": 8, "N": 19, "INF-S": 45, "INF-M": 7,
    }  # fmt: skip


def test_score_counts_what_the_paper_claims():
    assert score(CELLS) == {
        "claimed": 4, "tuple": 3, "finite": 3, "both": 2, "T1": 1, "T2": 1, "N": 1, "INF-S": 1
    }  # fmt: skip
    assert score_line(CELLS) == (
        "paper: 4 pairs claimed; 3 have a tuple of fixed size, 3 a finite KL, 2 both (T1 1, T2 1); no finite tuple 1, "
        "infinite KL by its supports 1"
    )


def test_text_is_one_matrix_per_group():
    lines = render_table(CELLS).splitlines()
    assert lines[:5] == [
        "scaling",
        "posterior \\ prior  normal  pareto",
        "-----------------  ------  ------",
        "gamma              T1      INF-S+",
        "expgamma           (N)",
    ]
    assert lines[6] == "location-scale"
    assert lines[-1] == score_line(CELLS) + "."


def test_text_wider_than_the_terminal_is_continued_below():
    text = render_table(CELLS, width=30)
    assert "scaling (continued)" in text
    matrix = text.split("\n\nT1: ")[0]
    assert max(map(len, matrix.splitlines())) <= 30
    for cell in CELLS:
        assert cell.prior in matrix


def test_colour_changes_no_word():
    pytest.importorskip("rich")
    coloured = render_table(CELLS, colour=True)
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert bare.split() == [w for w in render_table(CELLS).split() if set(w) != {"-"}]


def test_markdown_is_a_table():
    text = render_table(CELLS, "md")
    assert "| posterior \\ prior | normal | pareto |\n| --- | --- | --- |\n| gamma | T1 | INF-S+ |" in text


def test_json_keeps_every_field():
    data = json.loads(render_table(CELLS, "json"))
    assert data["score"] == score(CELLS)
    assert data["cells"][0]["methods"] == ["exact", "repar"]
    assert set(data["cells"][0]) == set(Cell.__dataclass_fields__)


# ---- train and evaluate


def tiny(tmp_path, *words):
    """One epoch of a small dense network on the digits."""
    options = {"model": "fcnet", "model-options.hidden": "[8]", "epochs": 1, "batch-size": 256, "threads": 1}
    return ["train", *(f"--{name}={value}" for name, value in options.items()), f"--out={tmp_path / 'run'}", *words]


def test_train_and_evaluate(tmp_path, capsys):
    assert main(tiny(tmp_path)) == 0
    out = capsys.readouterr().out
    assert out.startswith("epoch 1/1  loss ")
    assert out.endswith(f"{tmp_path / 'run'}\n")
    assert main(["evaluate", str(tmp_path / "run"), "--draws", "3", "--ood", "digits,seed=1"]) == 0
    for name in ("metrics.json", "predictions.npz", "report.html"):
        assert (tmp_path / "run" / name).exists()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["draws"] == 3


def test_a_finished_run_is_refused_resumed_and_compared(tmp_path, capsys):
    assert main(tiny(tmp_path)) == 0
    capsys.readouterr()
    assert "another run" in refuse(capsys, *tiny(tmp_path))
    assert "seed: 0 there, 3 now" in refuse(capsys, "train", "--resume", "--out", str(tmp_path / "run"), "--seed", "3")
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_train_refuses_before_any_work(tmp_path, capsys):
    for word in (
        "--model=resnet21", "--data=digit", "--posterior=radia", "--forward=locl", "--lr=-1", "--root=x",
        "--recipe=digit", "--warm-start=nosuch.pt", "--device=nosuch",
    ):  # fmt: skip
        refuse(capsys, *tiny(tmp_path, word))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "why"), [("nosuch: 1", "no option 'nosuch'"), ("", "no options"), ("[", "cannot be read")]
)
def test_a_config_that_holds_no_options_is_refused(text, why, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(text)
    assert why in refuse(capsys, *tiny(tmp_path, "--config", str(tmp_path / "a.yaml")))
    assert why in refuse(capsys, *tiny(tmp_path, f"--config={tmp_path / 'a.yaml'}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("text", "why"), [("epochs: many", "epochs"), ("augment: twice", "augment")])
def test_a_config_with_a_wrong_value_exits_with_2(text, why, tmp_path, capsys):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(tiny(tmp_path, "--config", str(tmp_path / "a.yaml")))
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert why in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_warning_names_no_place_in_our_code(tmp_path):
    whole = np.arange(8.0)
    np.savez(tmp_path / "data.npz", x_train=whole[:, None], y_train=whole, x_test=whole[:, None], y_test=whole)
    words = ["--data", "arrays", "--root", str(tmp_path / "data.npz"), "--model", "fcnet", "--epochs", "1"]
    command = [sys.executable, "-m", "mcrepar", "train", *words, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "warning: file " in done.stderr
    assert ".py" not in done.stderr


def test_print_config_is_a_config(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--recipe", "digits", "--epochs", "7", "--print_config"])
    assert not stop.value.code
    text = capsys.readouterr().out
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "a.yaml"), "--print_config"])
    assert capsys.readouterr().out == text
    assert "epochs: 7" in text


def test_a_training_that_diverges_exits_with_1(tmp_path, capsys):
    assert main(tiny(tmp_path, "--lr", "1e30", "--epochs", "3")) == 1
    err = capsys.readouterr().err
    assert re.match(r"^error: epoch \d, step \d+: .+\. Use a smaller --lr.+\n$", err), err


def test_unknown_format_is_refused():
    with pytest.raises(ParameterError, match="text, md or json"):
        render_table(CELLS, "xml")


def test_experiments_that_are_not_installed_are_said_to_be_in_the_repository(tmp_path, monkeypatch, capsys):
    """As in a wheel: the module is somewhere below site-packages, and no checkout is around it."""
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "site-packages" / "mcrepar" / "workbench" / "cli.py"))
    assert main(["reproduce", "list"]) == 2
    err = capsys.readouterr().err
    assert THREE_PARTS.match(err), err
    assert "not part of the installed package. Clone the repository" in err


@pytest.mark.parametrize("name", workbench.__all__)
def test_the_names_of_the_workbench_are_found(name):
    assert getattr(workbench, name) is getattr(workbench, name)


def test_the_workbench_imports_no_torch_before_it_is_used():
    code = "import sys; from mcrepar.workbench import TrainConfig, evaluate, train; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_another_name_of_the_workbench_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = workbench.trian


def test_a_new_command_is_one_row(monkeypatch, capsys):
    row = cli._Command(lambda parser: None, lambda arguments: print("hello"), "say hello")
    monkeypatch.setitem(cli.COMMANDS, "greet", row)
    assert main(["greet"]) == 0
    assert capsys.readouterr().out == "hello\n"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "say hello" in capsys.readouterr().out
