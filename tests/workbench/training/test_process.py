import os
import signal
import subprocess
import sys
import threading

import pytest

from mcrepar.workbench.training.process import caught, keep_freed_memory


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_acts(number):
    acted = []
    before = signal.signal(number, lambda *_: acted.append(number))
    try:
        with caught() as signals:
            assert signals.number == 0
            os.kill(os.getpid(), number)
            assert (signals.number, acted) == (number, [])
            os.kill(os.getpid(), number)
            assert acted == [number]
        os.kill(os.getpid(), number)
        assert acted == [number, number]  # as before
    finally:
        signal.signal(number, before)


def test_another_thread_hears_no_signals_but_may_train():
    heard = []

    def work():
        with caught() as signals:
            heard.append(signals.number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [0]


FAULTS = """
import resource, sys, torch
from mcrepar.workbench.training.process import keep_freed_memory
kept = keep_freed_memory() if "keep" in sys.argv else None
for turn in range(40):
    if turn == 20:  # the first ones find their places
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)  # 64 MB, 16,384 pages
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*words, **variables):
    command = [sys.executable, "-c", FAULTS, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1", **variables}
    )
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_large_tensors_reuse_freed_pages():
    _, new = faults()
    kept, few = faults("keep")
    assert kept == "True"
    assert new >= 20 * 2**14 / 512  # all pages 20 times, were they huge ones
    assert few < new / 10


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_set_stays(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    assert not keep_freed_memory()
