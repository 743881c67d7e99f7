"""Threads that share a network, and processes that train copies of it."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mcrepar
import mcrepar.nn.locks
from mcrepar import MethodError, bayesian, predict
from tests.conftest import seeded


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.norm, self.head = nn.GRU(4, 6, batch_first=True), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.rnn(x)[0][:, -1]))


X = torch.randn(8, 5, 4, generator=seeded(1))


def network(forward: str = "weights") -> mcrepar.BayesianModule:
    torch.manual_seed(0)
    if forward == "weights":
        return bayesian(Net(), start_std=0.5, forward=forward).calibrate(X).eval()
    net = nn.Sequential(nn.Flatten(), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2))
    return bayesian(net, "normal", start_std=0.5, forward=forward).eval()


def threads(jobs, count: int = 3) -> list:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a forward
    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda job: job(), jobs))
    finally:
        sys.setswitchinterval(interval)


def test_predictions_of_three_threads_are_those_of_one():
    bnn = network()

    def job(seed: int):
        return lambda: predict(bnn, X, draws=2, generator=seeded(seed)).samples

    jobs = [job(seed) for seed in range(150)]
    wanted = [run() for run in jobs]
    before = {n: t.clone() for n, t in bnn.state_dict().items()}
    assert all(torch.equal(a, b) for a, b in zip(threads(jobs), wanted, strict=True))
    assert all(torch.equal(t, before[n]) for n, t in bnn.state_dict().items())
    assert all(p is None for p in (bnn.net.head.weight, bnn.net.rnn.weight_ih_l0))  # nothing is left behind


def test_a_frozen_context_belongs_to_its_thread():
    """One thread stays at the mean, one at a draw, the third predicts: none sees the others."""
    bnn = network()
    draw = bnn.draw(seeded(1))
    with torch.no_grad():
        with bnn.frozen("mean"):
            mean = bnn(X)
        with bnn.frozen(draw):
            drawn = bnn(X)
    sample = predict(bnn, X, draws=2, generator=seeded(2)).samples

    def frozen(what, wanted: Tensor) -> bool:
        with torch.no_grad(), bnn.frozen(what):
            return all(torch.equal(bnn(X), wanted) for _ in range(40))

    def predicting() -> bool:
        return all(torch.equal(predict(bnn, X, draws=2, generator=seeded(2)).samples, sample) for _ in range(20))

    assert threads([lambda: frozen("mean", mean), lambda: frozen(draw, drawn), predicting]) == [True] * 3


@pytest.mark.parametrize("forward", ["local", "flipout", "per_example"])
def test_other_forwards_in_threads(forward):
    """Without noise every output is the network's, whichever thread asks."""
    bnn = network(forward)
    with torch.no_grad():
        for _, latent in bnn.latents.items():
            latent.log_scale.fill_(-40.0)
        with bnn.frozen("mean"):
            wanted = bnn(X)
        outputs = threads([lambda: bnn(X) for _ in range(30)])
    for out in outputs:
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)


def test_an_error_in_one_thread_releases_the_others():
    bnn = network()

    def wrong() -> bool:
        with contextlib.suppress(RuntimeError):
            bnn(torch.ones(2, 5, 3))
        return True

    def right() -> bool:
        return bool(bnn(X).isfinite().all())

    assert all(threads([wrong, right] * 15))


# ---- training and predicting at once


class Probe(nn.Module):
    """Writes down in which mode a thread runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((threading.get_ident(), self.training))
        return x


def test_predicting_leaves_the_mode_of_a_thread_that_trains():
    probe = Probe()
    bnn, x = bayesian(nn.Sequential(nn.Linear(4, 4), probe, nn.Linear(4, 2))).train(), torch.ones(3, 4)

    def predicts() -> int:
        for _ in range(40):
            predict(bnn, x, draws=2)
        return threading.get_ident()

    def trains() -> int:
        for _ in range(120):
            bnn.train()
            bnn(x)
        return threading.get_ident()

    predictor, trainer = threads([predicts, trains], 2)
    modes = {who: {mode for thread, mode in probe.seen if thread == who} for who in (predictor, trainer)}
    assert modes == {predictor: {False}, trainer: {True}}
    assert all(m.training for m in bnn.modules())


def test_layers_around_bayesian_ones_cannot_be_in_two_modes():
    """They have no lock: while another thread trains them, predict refuses; in eval mode there is nothing to switch."""
    net, x = nn.Sequential(mcrepar.nn.Linear(4, 4), nn.Dropout(0.5), mcrepar.nn.Linear(4, 2)), torch.ones(3, 4)
    step, done = threading.Event(), threading.Event()

    def trains() -> None:
        net(x)
        step.set()
        done.wait(60)

    thread = threading.Thread(target=trains)
    thread.start()
    try:
        assert step.wait(60)
        with pytest.raises(MethodError, match=r"another thread trained it last.*Use net\.eval\(\)"):
            predict(net, x, draws=2)
        assert all(m.training for m in net.modules())
        assert predict(net.eval(), x, draws=2).mean.shape == (3, 2)
        net.train()
        net(x)  # from here on this thread trains
        assert predict(net, x, draws=2).mean.shape == (3, 2)
    finally:
        done.set()
        thread.join()
    assert all(m.training for m in net.modules())


def test_training_that_starts_during_a_prediction_is_refused():
    """Layers around Bayesian ones are in eval mode until the prediction ends; training with them would be wrong."""
    gate = Gate(0.0)
    net, x = nn.Sequential(mcrepar.nn.Linear(4, 4), nn.Dropout(0.5), gate, mcrepar.nn.Linear(4, 2)), torch.ones(3, 4)
    gate.seconds = 0.3
    thread = ThreadPoolExecutor(1)
    predicted = thread.submit(lambda: predict(net, x, draws=2).mean)
    try:
        assert gate.entered.wait(60)
        gate.seconds = 0.0
        with pytest.raises(MethodError, match="training a network while another thread predicts with it"):
            net(x)
        assert predicted.result(60).shape == (3, 2)
        assert net(x).shape == (3, 2)  # afterwards it trains
    finally:
        thread.shutdown()
    assert all(m.training for m in net.modules())


def test_a_prediction_whose_layers_were_put_into_training_mode_is_refused():
    gate = Gate(0.3)
    net, x = nn.Sequential(mcrepar.nn.Linear(4, 4), nn.Dropout(0.5), gate, mcrepar.nn.Linear(4, 2)), torch.ones(3, 4)
    with ThreadPoolExecutor(1) as thread:
        predicted = thread.submit(lambda: predict(net, x, draws=2))
        assert gate.entered.wait(60)
        net.train()
        with pytest.raises(MethodError, match=r"another thread called net\.train\(\) before it was done"):
            predicted.result(60)


# ---- forks


class Gate(nn.Module):
    """Waits in the middle of a forward."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.entered = seconds, threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.entered.set()
        time.sleep(self.seconds)
        return x

    def __deepcopy__(self, memo: object) -> Gate:
        return Gate(self.seconds)


def forked(work) -> bool:
    """Whether a forked process did the work within a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads at a fork
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("patience", [30.0, 0.0], ids=["the fork waits", "the fork does not wait"])
def test_a_fork_while_another_thread_is_in_a_forward(patience, monkeypatch):
    """The child neither hangs on a lock of a thread that it does not have, nor keeps the draw of that thread."""
    monkeypatch.setattr(mcrepar.nn.locks, "PATIENCE", patience)
    gate = Gate(0.5)
    bnn, x = bayesian(nn.Sequential(nn.Linear(4, 4), gate, nn.Linear(4, 2))).eval(), torch.ones(3, 4)
    likelihood = mcrepar.likelihoods.Normal()

    def steps() -> None:
        mcrepar.elbo(bnn, likelihood, x, torch.ones(3, 2), data_size=3, generator=seeded(1))

    def in_the_child() -> None:
        if patience:
            assert bnn.net[0].weight is None
        gate.seconds = 0.0
        steps()
        predict(bnn, x, draws=2)
        bnn.train()

    thread = threading.Thread(target=steps)
    thread.start()
    assert gate.entered.wait(60)
    assert forked(in_the_child)
    thread.join()
    assert bnn(x).shape == (3, 2)  # the parent's locks are free again


# ---- two processes

WORKER = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import mcrepar

def network(structure):
    torch.manual_seed(0)  # one start for all
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    prior = mcrepar.prior("normal", loc=float(structure == "rank1"), scale="learned")
    return mcrepar.bayesian(net, "radial", prior, structure=structure)

def everyone(tensor):
    both = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(both, tensor.contiguous())
    return both

dist.init_process_group("gloo")
rank = dist.get_rank()
x, y = torch.randn(16, 4, generator=torch.Generator().manual_seed(1)).double(), torch.arange(16) % 2
half, likelihood = slice(8 * rank, 8 * rank + 8), mcrepar.likelihoods.Categorical()
for structure, natural in (("weights", False), ("weights", True), ("rank1", False), ("rank1", True)):
    bnn = network(structure)
    model = DistributedDataParallel(bnn)
    torch.manual_seed(10 + rank)  # noise of its own for each
    mcrepar.elbo(model, likelihood, x[half], y[half], data_size=16).loss.backward()
    got = [p.grad.clone() for p in bnn.parameters()]

    wanted = [torch.zeros_like(g) for g in got]  # the mean of both halves, each with its rank's draw
    for other in range(2):
        twin, part = network(structure), slice(8 * other, 8 * other + 8)
        torch.manual_seed(10 + other)
        mcrepar.elbo(twin, likelihood, x[part], y[part], data_size=16).loss.backward()
        for w, p in zip(wanted, twin.parameters(), strict=True):
            w += p.grad / 2
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, atol=1e-12, rtol=1e-12)

    torch.manual_seed(20 + rank)
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-2)
    if natural:
        optimizer = mcrepar.optim.NaturalGradient(bnn, data_size=16)
    start = [p.detach().clone() for p in bnn.parameters()]
    for _ in range(50):
        optimizer.zero_grad()
        mcrepar.elbo(model, likelihood, x[half], y[half], data_size=16).loss.backward()
        optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(start, bnn.parameters(), strict=True))
    for p in bnn.parameters():
        assert torch.equal(*everyone(p.detach())), "parameters differ"
    assert not torch.equal(*everyone(bnn.draw()["0.weight"].detach())), "draws are the same"
    rows = bnn(x[:1].expand(8, -1)).detach()
    assert not torch.equal(*everyone(rows)), "noise is the same"
    assert structure == "weights" or len(rows.unique(dim=0)) == 8, "examples share their factors"
dist.barrier()
print("right", flush=True)
os._exit(0)  # gloo's threads may abort in their teardown on a busy machine, when all is done
"""


@pytest.mark.distributed
def test_two_processes_train_one_network(tmp_path: Path):
    """torchrun, two gloo processes: gradients are the mean of the halves, parameters stay bit-equal, draws do not.

    Weights or factors are random, and the optimizer is Adam or natural.
    """
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("right") == 2


def test_a_copy_is_whole_while_another_thread_runs_the_network():
    """Inside a forward the network holds a draw, which no copy may keep."""
    bnn, stop = network(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            bnn(X)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(30):
            twin = copy.deepcopy(bnn)
            assert twin(X).shape == (8, 2)
    finally:
        stop.set()
        thread.join()


def test_a_thread_that_has_ended_trains_no_more():
    """Its number may be given to another thread, which has nothing to do with the network."""
    lock = mcrepar.nn.locks.Lock()
    ended = threading.Thread(target=lambda: mcrepar.nn.locks.note_training(nn.Linear(1, 1), lock))
    ended.start()
    ended.join()
    wait = threading.Event()
    others = [threading.Thread(target=wait.wait) for _ in range(20)]
    for thread in others:
        thread.start()
    try:
        assert not lock.trained_elsewhere
    finally:
        wait.set()
        for thread in others:
            thread.join()


def test_a_fork_that_does_not_wait_any_longer_leaves_the_locks_of_another_fork_alone(monkeypatch):
    lock, taken, done = network().slots.lock, threading.Event(), threading.Event()

    def fork() -> bool:
        mcrepar.nn.locks._before_fork()
        taken.set()
        done.wait(60)
        mcrepar.nn.locks._after_fork()  # raises where somebody else has released them
        return True

    def free() -> bool:
        found = lock.lock.acquire(blocking=False)
        if found:
            lock.lock.release()
        return found

    with ThreadPoolExecutor(1) as pool:
        forking = pool.submit(fork)
        try:
            assert taken.wait(60)
            monkeypatch.setattr(mcrepar.nn.locks, "PATIENCE", 0.0)
            mcrepar.nn.locks._before_fork()
            mcrepar.nn.locks._after_fork()
            assert not free()
        finally:
            done.set()
        assert forking.result(60)
    assert free()
