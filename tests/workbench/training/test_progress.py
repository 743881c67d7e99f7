import sys

import pytest

from mcrepar.workbench.training import progress
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.progress import Bars, Lines, Quiet, display_of

ROW = {"epoch": 2, "step": 20, "loss": 0.123456, "nll": 0.1, "val_loss": None, "seconds": 1.25}


def test_lines_where_there_is_no_terminal(capsys):
    view = display_of(TrainConfig(epochs=10), 5, 0, visible=True)
    assert isinstance(view, Lines)
    view.step(1, 1, 0.5)
    view.row(ROW, 10)
    assert capsys.readouterr().out == "epoch  2/10  loss 0.1235  nll 0.1  1.2 s\n"


def test_a_long_epoch_says_something_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    display_of(TrainConfig(epochs=10), 5, 0, visible=True).step(1, 3, 0.5)
    assert capsys.readouterr().out == "epoch 1/10  step 3/5  loss 0.5\n"


def test_bars_on_a_terminal(capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    view = display_of(TrainConfig(epochs=10), 5, 0, visible=True)
    assert isinstance(view, Bars)
    view.step(1, 3, 0.5)
    view.say("a [line] that stays")
    assert view.progress.tasks[view.run].completed == 3
    view.step(2, 1, 0.5)
    assert view.progress.tasks[view.run].completed == 6
    view.close()
    assert "a [line] that stays" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "visible"), [("none", True), ("auto", False)])
def test_nothing_where_nobody_looks_but_warnings(kind, visible, capsys):
    view = display_of(TrainConfig(progress=kind), 5, 0, visible=visible)
    assert isinstance(view, Quiet)
    view.step(1, 1, 0.5)
    view.row(ROW, 10)
    view.warn("a full disk")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "warning: a full disk\n"
