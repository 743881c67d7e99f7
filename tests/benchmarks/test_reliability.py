"""The benchmark of reliability tries what it says, and a promise that is broken is counted."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "reliability.py"


def test_a_few_tries_hold_and_other_parts_keep_their_numbers(tmp_path):
    before = {"promise": "A.", "how": "b", "tries": 7, "failures": [], "seconds": 1.0}
    (tmp_path / "reliability.json").write_text(json.dumps({"parts": {"kills": before}}))
    options = ["--quick", "--only", "damaged config.yaml", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "reliability.json").read_text())
    assert found["quick"]
    assert found["parts"]["damaged config.yaml"]["tries"] == 2
    assert found["parts"]["damaged config.yaml"]["failures"] == []
    assert found["parts"]["kills"] == before


def test_a_broken_promise_is_counted(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    import readme
    import reliability
    import reliability_trial

    def part(chance, tries):
        return reliability_trial.Trial("Never.", "often", tries, [f"{chance.random()}"])

    found = reliability.run("part", part, 3, quick=False)
    assert found["failures"] == [str(random.Random("3/part").random())]
    row = readme.reliability_block({"parts": {"part": found}})[-1]
    assert row == f"| Never. | often | {reliability.USUAL} | 1 |"


@pytest.mark.parametrize("how", ["flipped", "zeroed"])
def test_damage_is_damage(how, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    import reliability_runs

    raw = bytes(range(1, 256))
    changed = getattr(reliability_runs, how)(random.Random(0), raw)
    assert len(changed) == len(raw)
    assert changed != raw
