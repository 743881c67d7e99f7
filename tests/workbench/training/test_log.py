import csv

from mcrepar.workbench.training.log import columns, write_log


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
