"""The comparison with other libraries runs without them, says that they are missing, and judges points as it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FLAT = {"stats", "repar", "taylor", "stream", "regen"}
WITHOUT_M = {"exact", "quad"}
OURS = {*WITHOUT_M, *FLAT, "direct", "per-draw loop", "gradient accumulation"}
POINTS = 14
PEERS = {"bayesian-torch", "blitz", "torchbayesian", "torch_blue"}


def run(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARKS / "peers.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    done = run("--quick", "--out", folder, "--environment", folder / "none")
    assert done.returncode == 0, done.stderr
    assert (folder / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "none").exists()
    return json.loads((folder / "peers.json").read_text())


def test_our_steps_are_measured_and_peers_skipped(found):
    assert set(found["steps"]) == OURS
    assert set(found["skipped"]) == PEERS
    for name, step in found["steps"].items():
        assert [p["M"] for p in step["points"]] == ([1] if name in WITHOUT_M else [1, 3])
        assert all(p["seconds"] > 0 and p["saved_bytes"] > 0 and not p["extrapolated"] for p in step["points"])
        assert step["end"] is None


def test_saved_bytes_grow_for_the_loops_that_keep_their_graph_only(found):
    kept = {name: [p["saved_bytes"] for p in step["points"]] for name, step in found["steps"].items()}
    growing = {name for name, values in kept.items() if values[-1] > values[0]}
    assert growing == {"direct", "per-draw loop"}


def test_targets_state_both_ends(found):
    assert len(found["targets"]) == 5 + len(FLAT)
    for row in found["targets"]:
        met = row["ratio"] >= row["at least"] if "at least" in row else row["ratio"] <= row["at most"]
        assert row["met"] == met
    assert all(row["met"] for row in found["targets"] if "at most" in row)


def test_we_pass_every_point(found):
    points = found["checks"]["mcrepar"]["points"]
    assert len(points) == POINTS
    assert {name: point for name, point in points.items() if point["passed"] is not True} == {}


def test_the_readme_tells_measured_from_extrapolated(found, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import readme

    steps = {name: {**step, "points": list(step["points"])} for name, step in found["steps"].items()}
    point = {"M": 1000, "seconds": 2.0, "peak_bytes": 3e9}
    steps["stats"]["points"].append({**point, "extrapolated": False})
    steps["direct"]["points"].append({**point, "seconds": 1234.0, "extrapolated": True})
    text = readme.block("peers", {**found, "steps": steps})
    assert all(f"| {name} |" in text for name in OURS)
    assert "| 2 | 3 |" in text
    assert "| ~1,234 | ~3 |" in text
    assert "| repar | the KL | - | - |" in text.replace(steps["repar"]["M is spent on"], "the KL")
    assert f"{POINTS} of {POINTS}" in text


def test_the_table_of_points_has_a_column_for_every_library(found, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import readme

    head, _, *rows = readme.checks_block(found)
    assert head.startswith("| point | mcrepar ")
    assert len(rows) == POINTS
    assert all(row.count(" | yes: ") == 1 for row in rows)


def test_a_quick_run_does_not_replace_measured_numbers():
    done = run("--quick")
    assert done.returncode == 2
    assert "--quick needs --out" in done.stderr


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers
    import peers_checks
    import peers_libraries

    return peers, peers_checks, peers_libraries


def test_wrong_libraries_fail_the_points(modules):
    """A KL that is a mean, and one noise for all forwards: each fails its own points and passes the other's."""
    _, checks, libraries = modules

    class Mean(libraries.Mcrepar):
        def kl(self, bnn, x):
            return super().kl(bnn, x) / sum(loc.numel() for loc, _ in self.learned(bnn))

    class Shrunk(libraries.Mcrepar):
        def forward(self, bnn, x):
            with bnn.frozen("mean"):
                centre = bnn(x)
            return centre + (bnn(x) - centre) / len(x) ** 0.5

    torch.manual_seed(0)
    assert checks.kl_is_a_sum(Mean())[0] is False
    assert checks.spread_whatever_the_batch(Mean())[0] is True
    assert checks.kl_is_a_sum(libraries.Mcrepar())[0] is True
    assert checks.spread_whatever_the_batch(Shrunk())[0] is False
    assert checks.kl_of_what_is_drawn(Shrunk())[0] is False


def test_a_curve_ends_by_time_or_failure_and_is_extrapolated_linearly(modules):
    peers, _, _ = modules

    def point(draws):
        return {"seconds": 1.0 + 2.0 * draws, "peak_bytes": 100 + 10 * draws, "saved_bytes": 10 * draws}

    slow = peers.Curve(peers.STEPS["direct"])
    for draws in (1, 3, 10):
        assert slow.goes_on(draws)
        slow.add(draws, point(draws))
    assert not slow.goes_on(30)  # 61 s
    assert slow.end == {"M": 30, "reason": "time", "seconds": pytest.approx(61.0)}
    slow.extrapolate(peers.GRID)
    hollow = [p for p in slow.points if p["extrapolated"]]
    assert [p["M"] for p in hollow] == [30, 100, 300, 1000]
    assert hollow[-1]["seconds"] == pytest.approx(2001.0)
    assert slow.at(1000)["saved_bytes"] == pytest.approx(10_000)

    level = peers.Curve(peers.STEPS["gradient accumulation"])  # its memory is that of one draw
    for draws in (3, 10):
        level.add(draws, point(draws))
    level.end = {"M": 30, "reason": "time", "seconds": 61.0}
    level.extrapolate(peers.GRID)
    assert level.at(1000)["peak_bytes"] == level.points[1]["peak_bytes"]
    assert level.at(1000)["seconds"] == pytest.approx(2001.0)

    flat = peers.Curve(peers.STEPS["exact"])  # it has no M: one point, and no end
    flat.add(1, point(1))
    assert not flat.goes_on(10**6)
    flat.extrapolate(peers.GRID)
    assert flat.end is None
    assert flat.at(1000) == flat.points[0]
    assert len(flat.points) == 1

    broken = peers.Curve(peers.STEPS["direct"])
    broken.add(1, {"failed": "error", "error": "RuntimeError: no"})
    broken.extrapolate(peers.GRID)
    assert broken.points == []
    assert not broken.goes_on(3)
    assert broken.at(1000) is None


def test_a_target_whose_step_failed_is_missed(modules):
    peers, _, _ = modules
    found = {name: peers.Curve(step) for name, step in peers.STEPS.items()}
    for curve in found.values():
        curve.add(1, {"failed": "error", "error": "RuntimeError: no"})
    rows = peers.targets(found, 1000)
    assert len(rows) == 5 + len(FLAT)
    assert not any(row["met"] for row in rows)


def test_the_page_says_how_far_a_step_went(found, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import readme

    ends = {
        "direct": {"M": 100, "reason": "memory", "error": "no"},
        "repar": {"M": 9, "reason": "time", "seconds": 70.0},
    }
    steps = {name: {**step, "end": ends.get(name)} for name, step in found["steps"].items()}
    text = "\n".join(readme.steps_block({**found, "steps": steps}))
    assert text.count(" | it did not |") == len(OURS) - 2
    assert "| M = 100 does not fit |" in text
    assert "| M = 9 would take 70 s |" in text


def test_load_before_any_point_makes_the_numbers_provisional(found, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import readme

    quiet = {name: {**s, "points": [{**p, "load": 0.0} for p in s["points"]]} for name, s in found["steps"].items()}
    calm = {**found, "machine": {**found["machine"], "load at start": 0.0}, "steps": quiet}
    assert "Provisional" not in readme.block("peers", calm)
    quiet["direct"]["points"][-1]["load"] = 0.9
    assert "**Provisional: other work kept 0.9 cores busy.**" in readme.block("peers", calm)


def test_a_run_without_the_others_does_not_replace_measured_numbers(modules, monkeypatch):
    peers, _, _ = modules
    before = (peers.RESULTS / "peers.json").read_bytes()
    monkeypatch.setattr(peers, "measure", lambda *_: {"skipped": {"blitz": "no network"}})
    monkeypatch.setattr(sys, "argv", ["peers.py"])
    with pytest.raises(SystemExit, match="blitz: no network"):
        peers.main()
    assert (peers.RESULTS / "peers.json").read_bytes() == before


def test_a_child_that_leaves_no_line_is_a_recorded_fact(modules):
    peers, _, _ = modules
    found = peers.child(Path(sys.executable), "no_such_script.py", "")
    assert found["failed"] == "error"
    assert found["error"].startswith("exit code 2")


def test_a_step_that_does_not_fit_says_so(modules):
    peers, _, _ = modules
    case = {**peers.QUICK, "step": "direct", "M": 10_000, "budget": 300 * 2**20}
    found = peers.child(Path(sys.executable), "peers_steps.py", json.dumps(case))
    assert found["failed"] == "memory", found
