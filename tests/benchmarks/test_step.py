"""The benchmark of a training step runs and reports what the README needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "step.py"


def test_quick_run_reports_every_case(tmp_path):
    command = [sys.executable, str(BENCHMARK), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "step.json").read_text())
    assert set(found["added"]) == {"contiguous", "channels_last"}
    for cases in found["added"].values():
        assert set(cases) == {"exact", "stats, M = 1000", "stats, M = 10^6"}
    for cases in found["predict over forwards"].values():
        assert set(cases) == {"predict", "predict, calibrated on 32 images"}
        assert min(cases.values()) > 0
    assert min(found["small network"]["step over deterministic"].values()) > 1
    assert found["small network"]["predict over forwards"] > 0


def test_the_small_network_alone_keeps_the_other_numbers(tmp_path):
    (tmp_path / "step.json").write_text('{"added": {}, "predict over forwards": {}}')
    command = [sys.executable, str(BENCHMARK), "--quick", "--small", "--out", str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    found = json.loads((tmp_path / "step.json").read_text())
    assert found["added"] == {}
    assert set(found["small network"]["microseconds"]) >= {"deterministic", "bnn(x)", "kl(bnn)"}


def test_a_quick_run_does_not_replace_measured_numbers():
    done = subprocess.run([sys.executable, str(BENCHMARK), "--quick"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "--out" in done.stderr
