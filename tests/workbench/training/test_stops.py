import os
import signal
import threading

import pytest

from mcrepar.workbench.training.stops import caught


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
