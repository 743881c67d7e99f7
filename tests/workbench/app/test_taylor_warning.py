import threading
import warnings

import pytest
import torch

import mcrepar
from mcrepar.errors import CollapseWarning, TaylorWarning
from mcrepar.workbench.app.taylor_warning import without_taylor_warning, without_warning


def taylor() -> None:
    q = mcrepar.posterior("normal", loc=torch.zeros(3), scale=torch.ones(3))
    mcrepar.kl_divergence(q, mcrepar.prior("cauchy"), "taylor", 2)


def test_the_warning_comes_back():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with without_taylor_warning():
            taylor()
    with pytest.warns(TaylorWarning):
        taylor()


def test_other_kinds_can_be_silenced():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with without_warning(CollapseWarning):
            warnings.warn("it has collapsed", CollapseWarning, stacklevel=1)
            with pytest.raises(TaylorWarning):
                taylor()


def test_threads_wait_for_one_another():
    """Two threads that both change the filters would leave those of the other behind."""
    inside, done = threading.Event(), []

    def other() -> None:
        inside.wait()
        with without_taylor_warning():
            done.append(True)

    before, thread = list(warnings.filters), threading.Thread(target=other)
    thread.start()
    with without_taylor_warning():
        inside.set()
        thread.join(0.2)
        assert not done
    thread.join()
    assert done
    assert warnings.filters == before
