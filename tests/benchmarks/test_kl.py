import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kl.py"
METHODS = {"direct", "repar", "stream", "stats", "exact"}


def run(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARK), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kl")
    done = run("--quick", "--out", str(folder), "--figures", str(folder))
    assert done.returncode == 0, done.stderr
    assert (folder / "kl.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "kl.svg").read_text().startswith("<?xml")
    return json.loads((folder / "kl.json").read_text())


def test_keys(found):
    assert set(found) == {
        "quick", "machine", "weights", "tensors", "pair", "targets", "seconds", "saved_bytes", "curves",
    }  # fmt: skip
    assert found["quick"]
    assert set(found["machine"]) == {"cpu", "threads", "torch", "python", "load at start"}
    assert len(found["targets"]) == 6
    for row in found["targets"]:
        assert set(row) == {"what", "against", "ratio", "target", "stretch", "met"}
        assert row["met"] == (row["ratio"] <= row["target"])
    for group in found["seconds"].values():
        for timing in group.values():
            assert 0 < timing["fastest"] <= timing["median"] <= timing["slowest"]


def test_saved_bytes_do_not_grow(found):
    assert set(found["saved_bytes"]) == {"exact", "stats", "repar", "stream", "regen", "quad", "taylor"}
    assert all(kept["few"] == kept["many"] for kept in found["saved_bytes"].values())


def test_curves(found):
    points = found["curves"]["points"]
    assert set(points) == METHODS
    for method in METHODS:
        assert [p["M"] for p in points[method]] == [1, 3, 10, 30, 100][: len(points[method])]
    kept = {method: [p["bytes"] for p in points[method]] for method in METHODS}
    first, second, *_, last = kept["direct"]  # linear in M
    assert 0 < (second - first) / 2 == (last - first) / (points["direct"][-1]["M"] - 1)
    assert all(len(set(kept[method])) == 1 for method in METHODS - {"direct"})


def test_quick_numbers_do_not_replace_measured_ones():
    done = run("--quick")
    assert done.returncode == 2
    assert "--quick needs --out" in done.stderr
