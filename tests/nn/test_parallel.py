"""Threads that share a network, and processes that train copies of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.conftest import seeded
from torch import Tensor, nn

import mcrepar
from mcrepar import bayesian, predict


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
        for _, latent in bnn._latents():
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


# ---- two processes

WORKER = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import mcrepar

def network():
    torch.manual_seed(0)  # one start for all
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return mcrepar.bayesian(net, "radial", mcrepar.prior("normal", scale="learned"))

dist.init_process_group("gloo")
rank = dist.get_rank()
x, y = torch.randn(16, 4, generator=torch.Generator().manual_seed(1)).double(), torch.arange(16) % 2
half = slice(8 * rank, 8 * rank + 8)
bnn = network()
model, likelihood = DistributedDataParallel(bnn), mcrepar.likelihoods.Categorical()
torch.manual_seed(10 + rank)  # noise of its own for each
mcrepar.elbo(model, likelihood, x[half], y[half], data_size=16).loss.backward()
got = [p.grad.clone() for p in bnn.parameters()]

wanted = [torch.zeros_like(g) for g in got]  # the mean of both halves, each with its rank's draw
for other in range(2):
    twin, part = network(), slice(8 * other, 8 * other + 8)
    torch.manual_seed(10 + other)
    mcrepar.elbo(twin, likelihood, x[part], y[part], data_size=16).loss.backward()
    for w, p in zip(wanted, twin.parameters(), strict=True):
        w += p.grad / 2
for g, w in zip(got, wanted, strict=True):
    torch.testing.assert_close(g, w, atol=1e-12, rtol=1e-12)

torch.manual_seed(20 + rank)
optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-2)
start = [p.detach().clone() for p in bnn.parameters()]
for _ in range(50):
    optimizer.zero_grad()
    mcrepar.elbo(model, likelihood, x[half], y[half], data_size=16).loss.backward()
    optimizer.step()
assert all(not torch.equal(a, b) for a, b in zip(start, bnn.parameters(), strict=True))

def everyone(tensor):
    both = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(both, tensor.contiguous())
    return both

for p in bnn.parameters():
    assert torch.equal(*everyone(p.detach())), "parameters differ"
assert not torch.equal(*everyone(bnn.draw()["0.weight"].detach())), "draws are the same"
dist.barrier()
print("right", flush=True)
os._exit(0)  # gloo's threads may abort in their teardown on a busy machine, when all is done
"""


def test_two_processes_train_one_network(tmp_path: Path):
    """torchrun, two gloo processes: gradients are the mean of the halves, parameters stay bit-equal, draws do not."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("right") == 2
