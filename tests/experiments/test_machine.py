import pytest
import torch

from experiments import machine
from experiments.machine import busy_parts, busy_text, timed


def test_cases_take_turns():
    order = []
    seconds = timed({name: lambda name=name: order.append(name) for name in "ab"}, rounds=2)["seconds"]
    assert order == list("ababab")
    assert set(seconds) == {"a", "b"}
    assert min(seconds.values()) >= 0


def stat(path, busy: float, idle: float, stolen: float) -> None:
    ticks = [round(100 * x) for x in (busy, 0, 0, idle, 0, 0, 0, stolen, 0, 0)]
    path.write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\n")


def test_other_work_is_all_but_our_own(tmp_path, monkeypatch):
    """In 10 seconds of two cores: 12 s busy, of which 9 are ours, and 1 s stolen by other machines."""
    path, clock, own = tmp_path / "stat", [0.0], [3.0]
    monkeypatch.setattr(machine, "_STAT", path)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(machine.time, "process_time", lambda: own[0])
    stat(path, 50, 50, 0)

    def work():
        stat(path, 50 + 12, 50 + 7, 1)
        clock[0], own[0] = 10.0, 12.0

    assert timed({"a": work}, rounds=1)["busy"] == pytest.approx(0.4)


def test_unknown_where_the_system_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_STAT", tmp_path / "none")
    row = {"key": "a", **timed({"a": list}, rounds=1)}
    assert row["busy"] is None
    assert busy_parts([row]) == []
    assert "not known" in busy_text([row])


def test_parts_are_busy_above_a_quarter_of_a_core():
    rows = [{"key": "a", "busy": 0.25}, {"key": "b", "busy": 0.26}]
    assert busy_parts(rows) == ["b"]
    assert "0.26 cores busy: more than 0.25 during b." in busy_text(rows)
    assert "0.25 cores busy (mean" in busy_text(rows[:1])


def test_a_gpu_is_waited_for(monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))
    timed({"a": lambda: order.append("run")}, rounds=1)
    assert order == ["wait", "run", "wait"] * 2
