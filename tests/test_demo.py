import os
import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def run(folder, *arguments):
    command = [sys.executable, str(DEMO), "--out", str(folder), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=300).stdout


def test_demo(tmp_path):
    out = run(tmp_path / "new", "--epochs", "10")
    for method in ("direct", "repar", "stats", "exact"):
        assert re.search(rf"\b{method}\b.* ms .* MB", out)
    accuracy = float(re.search(r"majority of 50 draws: (\d\.\d+)", out)[1])
    assert 0.8 < accuracy <= 1  # a tenth of the epochs of the real demo
    assert "epoch   10 of 10" in out
    for tau in ("0.5", "0.6", "0.7", "0.8", "0.9", "1.0"):
        assert re.search(rf"^\W*{tau}\W+(\d\.\d+|nan)\W+\d\.\d+\W*$", out, re.MULTILINE)
    assert "least sure of" in out
    assert "most sure of" in out
    assert "@@" in out
    assert (tmp_path / "new" / "confidence.png").read_bytes().startswith(b"\x89PNG")


def test_demo_is_deterministic(tmp_path):
    first, second = (run(tmp_path, "--epochs", "1").partition("Training")[2] for _ in range(2))
    assert first == second
