"""The demo is the main job of the project: it must reach what the README promises."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


def run(folder, *arguments, **options):
    command = [sys.executable, str(DEMO), "--out", str(folder), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, **options)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "run"
    return folder, run(folder, check=True).stdout


def test_figures(demo):
    folder, _ = demo
    results = json.loads((folder / "metrics.json").read_text())
    assert results["in"]["accuracy"] >= 0.98
    assert results["in"]["ece"] <= 0.03
    with np.load(folder / "predictions.npz") as found:
        confident = np.argsort(-found["confidence"], kind="stable")[: len(found["y"]) // 2]
        assert (found["label"] == found["y"])[confident].mean() >= 0.995
    assert results["ood"]["photographs"]["auroc"] > 0.9


def test_output(demo):
    folder, out = demo
    for method in ("direct", "repar", "stats", "exact"):
        assert re.search(rf"\b{method}\b.* ms .* MB", out)
    assert "epoch 40/40" in out
    assert "confidence sets" in out
    assert "least certain:" in out
    assert "@@" in out.partition("least certain:")[2].partition("most certain:")[2]  # digits, in characters
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_a_second_demo_replaces_the_first_and_nothing_else(demo, tmp_path):
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for words, stays in (("data: digits\nmodel: small_conv\n", False), ("data: cifar10\nmodel: resnet20\n", True)):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").write_text(words)
        module.remove_earlier(tmp_path / "run")
        assert (tmp_path / "run").exists() == stays
    assert {"data: digits", "model: small_conv"} <= set((demo[0] / "config.yaml").read_text().splitlines())
