import csv
import math
import sys
from types import ModuleType

import pytest

from mcrepar.errors import ParameterError
from mcrepar.workbench.training import log as module
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.log import check_tensorboard, columns, read_log, tensorboard, write_log


def test_rows_come_back_with_empty_cells(tmp_path):
    rows = [{"epoch": 1, "step": 10, "loss": 1 / 3, "val_loss": None}, {"epoch": 2, "step": 20, "loss": 1e-9}]
    write_log(tmp_path / "log.csv", rows, "accuracy")
    with (tmp_path / "log.csv").open() as file:
        read = list(csv.DictReader(file))
    assert tuple(read[0]) == columns("accuracy")
    assert read[0] | {"epoch": "1", "step": "10", "loss": "0.33333333", "val_loss": "", "seconds": ""} == read[0]
    assert float(read[1]["loss"]) == 1e-9


def test_regression_has_an_error_in_place_of_the_accuracy():
    assert {"rmse", "val_rmse"} <= set(columns("rmse"))
    assert not {"accuracy", "val_accuracy"} & set(columns("rmse"))
    assert len(columns("rmse")) == len(columns("accuracy"))


ROW = {"epoch": 2, "step": 20, "loss": 0.5, "val_loss": 0.25, "val_nll": None}


def test_rows_become_scalars(tmp_path, monkeypatch):
    said = []

    class Writer:
        def __init__(self, folder, purge_step):
            said.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            said.append((name, value, step))

        def close(self):
            said.append("closed")

    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    board = tensorboard(TrainConfig(tensorboard=True), tmp_path, 19, visible=True)
    board.row(ROW)
    board.close()
    assert said == [
        (str(tmp_path / "tensorboard"), 20), ("training/loss", 0.5, 20), ("validation/loss", 0.25, 20), "closed",
    ]  # fmt: skip


def test_nothing_is_written_unasked(tmp_path):
    board = tensorboard(TrainConfig(), tmp_path, 0, visible=True)
    board.row(ROW)
    board.close()
    assert list(tmp_path.iterdir()) == []


def test_it_is_refused_at_the_start_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    check_tensorboard(TrainConfig())
    with pytest.raises(ParameterError, match="pip install tensorboard"):
        check_tensorboard(TrainConfig(tensorboard=True))


def test_the_real_one(tmp_path):
    pytest.importorskip("tensorboard")
    board = tensorboard(TrainConfig(tensorboard=True), tmp_path, 0, visible=True)
    board.row(ROW)
    board.close()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_what_is_written_is_read_again(tmp_path):
    rows = [{"epoch": 1, "step": 3, "loss": 0.5, "accuracy": None}, {"epoch": 2, "step": 6, "loss": 0.25}]
    write_log(tmp_path / "log.csv", rows, "accuracy")
    found = read_log(tmp_path / "log.csv")
    assert list(found) == list(columns("accuracy"))
    assert (found["step"], found["loss"]) == ([3.0, 6.0], [0.5, 0.25])
    assert all(math.isnan(value) for value in found["accuracy"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("epoch,loss\n1,abc\n", "no numbers of 2 columns"),
        ("epoch,loss\n1,2,3\n", "no numbers of 2 columns"),
        ("a," * 64 + "b\n", "more than 20,000 rows or 64 columns"),
        ("epoch\n" + "1\n" * 20_001, "more than 20,000 rows or 64 columns"),
    ],
)
def test_a_damaged_log_is_refused(text, why, tmp_path):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(ParameterError, match=why):
        read_log(tmp_path / "log.csv")


def test_a_missing_log_is_the_callers_business(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / "log.csv")
