import sys
from types import ModuleType

import pytest

from mcrepar.errors import ParameterError
from mcrepar.workbench.training import tensorboard as module
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.tensorboard import check_tensorboard, tensorboard

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
