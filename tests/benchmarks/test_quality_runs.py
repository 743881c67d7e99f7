"""Every run has a row in the table of runs: from its file, or written by hand with its source and a reason."""

import csv
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import quality_runs

ROOT = Path(__file__).parents[2]
with quality_runs.TABLE.open(newline="") as text:
    ROWS = list(csv.DictReader(text))


def test_the_table_is_that_of_the_files():
    assert quality_runs.TABLE.read_text() == quality_runs.table(), "python benchmarks/readme.py brings it up to date"


def test_every_row_has_a_status_a_source_and_where_it_has_no_file_a_reason():
    for row in ROWS:
        assert row["status"] in quality_runs.STATUSES
        assert row["task"]
        assert row["method"]
        if row["source"].startswith("quality/"):
            assert (quality_runs.RESULTS / row["source"]).is_file()
            assert row["budget"]
        else:
            assert (ROOT / row["source"]).is_file()
        assert row["reason"] or (row["status"] == "finished" and row["source"].startswith("quality/"))


@pytest.mark.parametrize("file", sorted((quality_runs.RESULTS / "quality" / "withdrawn").glob("*.json")), ids=str)
def test_a_withdrawn_run_says_why(file):
    run = json.loads(file.read_text())
    assert run["status"] in ("replaced", "withdrawn", "diverged")
    if run["status"] != "diverged":  # which may have been run again with other settings
        assert (file.parents[1] / file.name).exists() == (run["status"] == "replaced")


def test_rows_without_a_file_are_kept(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(
        ",".join(quality_runs.COLUMNS)
        + "\na,b,0,stopped,,,out of time,docs/x.md\nc,d,0,finished,,,,quality/gone.json\n"
    )
    quality_runs.write(path)
    lines = path.read_text().splitlines()
    assert lines[-1] == "a,b,0,stopped,,,out of time,docs/x.md"
    assert not any("gone" in line for line in lines)


def test_a_row_has_what_is_known():
    known = {"task": "t", "method": "m", "seed": 1}
    row = quality_runs.row({**known, "epochs": 3, "validation": {"nll": 0.25}}, "quality/x.json")
    assert (row["status"], row["budget"], row["validation_nll"], row["reason"]) == (
        "finished",
        "3 epochs",
        "0.2500",
        "",
    )
    assert quality_runs.row({**known, "options": {"epochs": 2}}, "x")["validation_nll"] == ""
    splits = {"splits": {"test": [{}] * 20}, "steps": 2000, "mean": {"validation": {"log_likelihood": -2.5}}}
    row = quality_runs.row({**known, **splits}, "x")
    assert (row["seed"], row["budget"], row["validation_nll"]) == ("splits 0 to 19", "2000 steps", "2.5000")
