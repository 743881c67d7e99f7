import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcrepar.workbench.app.views import all_views

pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "app_load.py"


def test_a_small_crowd_is_served(tmp_path):
    options = ["--users", "3", "--seconds", "2", "--pause", "0.2", "--warm", "1", "--changes", "0"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *options, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "app.json").read_text())
    assert found["crowd"]["errors"] == []
    assert found["crowd"]["changes"] >= 3
    assert found["megabytes"]["most"] > 0


def test_its_changes_are_of_controls_that_exist(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    import app_load

    views = all_views(None)
    for name, changes in app_load.CHANGES.items():
        for control, texts in changes.items():
            for text in texts:
                _, errors = views[name].read(views[name].texts({control: text}))
                assert errors == {}
