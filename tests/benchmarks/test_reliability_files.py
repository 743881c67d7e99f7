"""The attempts to break the readers: a few pass, and what they are to find is found."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mcrepar.errors import ParameterError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it forks, from Python 3.12 on


@pytest.fixture
def benchmark(monkeypatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import reliability_files

    threads = torch.get_num_threads()
    yield reliability_files
    torch.set_num_threads(threads)  # it works with one


def test_a_few_tries_of_every_format(benchmark):
    for name, part in benchmark.PARTS.items():
        trial = part(random.Random(name), 3)
        assert (trial.tries, trial.failures) == (3, [])


def other_data(load):
    def read(name, root, **options):
        data = load(name, root, **options)
        data.test.x[0] += 1
        return data

    return read


def raises(error):
    def read(*_, **__):
        raise error

    return read


@pytest.mark.parametrize(
    ("reader", "says"),
    [
        (other_data, "read "),
        (lambda _: raises(KeyError("x")), "KeyError"),
        (lambda _: raises(MemoryError()), "MemoryError"),
        (lambda _: lambda *_, **__: time.sleep(60), "hangs"),
        (lambda _: lambda *_, **__: os._exit(3), "the process ended with 3"),
    ],
)
def test_a_broken_promise_is_found(benchmark, monkeypatch, reader, says):
    honest, calls = benchmark.load, []

    def load(*words, **options):  # the first reads what is whole, in this process
        calls.append(words)
        return (honest if len(calls) == 1 else reader(honest))(*words, **options)

    monkeypatch.setattr(benchmark, "load", load)
    monkeypatch.setattr(benchmark, "SECONDS", 1.0)
    monkeypatch.setattr(benchmark, "DAMAGES", (lambda *_: "nothing done",))
    assert says in benchmark.attempt(benchmark.FORMATS["npz"], random.Random(0), 0)


def test_a_refusal_is_no_failure(benchmark, monkeypatch):
    trial = benchmark.PARTS["damaged npz"](random.Random(1), 4)
    assert trial.failures == []
    assert "checksum" not in trial.promise
    monkeypatch.setattr(benchmark, "_digest", lambda *_: (_ for _ in ()).throw(ParameterError("a", "b", "c")))
    assert benchmark._judged(benchmark.FORMATS["npz"], Path()) == "refused"
