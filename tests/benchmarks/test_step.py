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
    steps = found["small network"]["step over deterministic"]
    assert set(steps) == {"radial, exact", "normal, exact", "radial, stats, M = 1000", "normal, local"}
    assert min(steps.values()) > 0
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


def test_a_ratio_is_that_to_the_deterministic_neighbours(monkeypatch):
    """A clock on which every second step takes three times as long, and a machine that slows down by half meanwhile."""
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    import step_networks

    now, speed = [0.0], [1.0]

    def step(seconds):
        now[0], speed[0] = now[0] + seconds * speed[0], speed[0] * 1.002

    monkeypatch.setattr(step_networks.time, "perf_counter", lambda: now[0])
    runs = {"deterministic": lambda: step(1.0), "a": lambda: step(3.0), "b": lambda: step(0.5)}
    found = step_networks.ratios(runs, 500.0, 1, "cpu")
    assert found["a"]["rounds"] > 50
    assert [round(found[name]["ratio"], 3) for name in runs] == [1.0, 3.0, 0.5]
    assert found["a"]["seconds"] > 3.1
