"""A few of the attempts of benchmarks/reliability_app.py to break a server."""

import asyncio
import random
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import reliability_app

    return reliability_app


def test_requests_that_no_browser_sends(benchmark, server):
    chance, port = random.Random(0), int(server.rstrip("/").rpartition(":")[2])
    for header in ("Origin: http://[", "Origin: http://[::1"):
        assert benchmark._status(port, f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{header}\r\n\r\n".encode()) == 403
    for _ in range(40):
        raw = benchmark._request(chance, port)
        assert benchmark._status(port, raw) < 500, raw


def test_messages_that_no_page_sends(benchmark, server):
    chance = random.Random(0)
    for _ in range(10):
        asyncio.run(benchmark._send(server, benchmark._message(chance)))
    assert benchmark.ask(server, 60)["answer"]


def test_a_damaged_run_is_named(benchmark, server):
    notice = benchmark.ask(server, 60, view="run", run_run="broken")["notice"]
    assert notice.startswith("run 'broken': predictions.npz is damaged")


@pytest.mark.parametrize("place", range(5))
def test_damages_damage(benchmark, tmp_path, place, monkeypatch):
    benchmark.write_run(tmp_path / "whole", count=50)
    benchmark._write_texts(tmp_path / "whole")
    monkeypatch.setattr(benchmark, "DAMAGES", benchmark.DAMAGES[place : place + 1])
    benchmark._damage(random.Random(place), tmp_path)
    folders = [{p.name: p.read_bytes() for p in sorted((tmp_path / name).iterdir()) if p.is_file()} for name in
               ("whole", "run") if not (tmp_path / name / "predictions.npz").is_fifo()]  # fmt: skip
    assert len(folders) < 2 or folders[0] != folders[1]
