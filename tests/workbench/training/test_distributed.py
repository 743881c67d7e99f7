"""Two processes that torchrun started: one network, shares of the data, noise of their own, one log."""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mcrepar.errors import ParameterError
from mcrepar.workbench.training import train
from mcrepar.workbench.training.checkpoint import newest
from mcrepar.workbench.training.distributed import World, joined
from tests.workbench.training.tiny import config, log_of, model_of, words, write_images, write_numbers

pytestmark = pytest.mark.distributed

WORKER = """
import os, signal, sys
import torch
import torch.distributed as dist
from mcrepar.workbench.cli import main
from mcrepar.workbench.training import loop

dist.init_process_group("gloo")  # one group for all of the runs
rank = dist.get_rank()
stop_at = None

class Watched(loop.Trainer):
    def _step(self, index, signals):
        if self.step == stop_at and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)  # one process hears it, all stop
        word = super()._step(index, signals)
        seeds = [torch.zeros((), dtype=torch.int64) for _ in range(2)]
        dist.all_gather(seeds, torch.tensor(torch.initial_seed()))
        assert seeds[0] != seeds[1], "the same noise"
        return word

    def _finish(self):
        for what, tensors in (("parameter", dict(self.learner.net.named_parameters())),
                              ("likelihood", dict(self.learner.likelihood.named_parameters()))):
            for name, t in tensors.items():
                both = [torch.empty_like(t) for _ in range(2)]
                dist.all_gather(both, t.detach().contiguous())
                assert torch.equal(*both), (what, name)
        print(f"equal on {rank}\\n", end="")
        super()._finish()

loop.Trainer = Watched
for words in sys.argv[1:]:
    stop_at = 4 if "--stop" in words else None
    code = main([word for word in words.split() if word != "--stop"])
    print(f"code {code}\\n", end="")  # one write: torchrun buffers nothing, and the processes share a pipe
dist.destroy_process_group()
"""


def torchrun(script: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), *arguments], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def test_two_processes_train_one_network_and_resume_it(tmp_path):
    write_images(tmp_path)
    write_numbers(tmp_path / "numbers")
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    options = {"threads": 1, "draws": 2}
    whole, stopped, fewer = (words(tmp_path, name, **options) for name in ("whole", "stopped", "fewer"))
    small = {"model": "fcnet", "model_options": {"hidden": [4]}, "augment": "none", "epochs": 2, "threads": 1}
    numbers = words(tmp_path / "numbers", "numbers", **small, gradient_accumulation=2)
    factors = words(
        tmp_path / "numbers", "factors", **small, structure="rank1", members=2, optimizer="natural", scale_lr=0.01,
        prior_options={},
    )  # fmt: skip
    runs = (whole, [*stopped, "--stop"], [*stopped, "--resume"], [*fewer, "--stop"], numbers, factors)
    out = torchrun(script, *(" ".join(run) for run in runs))
    assert out.count("equal on 0") == out.count("equal on 1") == 4, out
    assert out.count("code 0") == 8, out
    assert out.count("code 143") == 4, out
    assert model_of(tmp_path / "stopped") == model_of(tmp_path / "whole")
    assert log_of(tmp_path / "stopped") == log_of(tmp_path / "whole")
    rows = log_of(tmp_path / "whole")
    assert [row["step"] for row in rows] == ["3", "6", "9"]
    assert all(0 <= float(row["val_accuracy"]) <= 1 for row in rows)
    kept = newest(tmp_path / "whole" / "checkpoints").state
    assert len(kept["sums"]) == 2
    train(config(tmp_path, "fewer", resume=True, **options))  # by one process; the first epoch is that of two
    assert log_of(tmp_path / "fewer")[0] == rows[0]
    assert len(log_of(tmp_path / "fewer")) == 3
    # one process sees the same data in the same steps, with other noise: the KL is the full one, not a share of it
    alone = log_of(train(config(tmp_path, "alone", **options)))
    for mine, theirs in zip(rows, alone, strict=True):
        assert float(mine["kl"]) == pytest.approx(float(theirs["kl"]), rel=0.02)
        assert float(mine["nll"]) == pytest.approx(float(theirs["nll"]), abs=0.5)


def test_alone_everything_is_the_identity():
    world = World()
    net = torch.nn.Linear(1, 1)
    assert world.wrap(net) is net
    assert world.gather([1.0, 2.0]) == [[1.0, 2.0]]
    assert world.largest(3) == 3
    assert world.first(lambda: "mine") == "mine"
    world.average(net.parameters())
    world.share(net.parameters())


def test_what_garbage_holds_is_gone_before_the_group_is_destroyed(monkeypatch):
    """Else the group lives on until the interpreter ends, which its threads abort now and then."""
    held, alive = [], []

    class Wrapped:
        def __init__(self):
            self.itself = self  # a cycle, as DistributedDataParallel has them

    monkeypatch.setenv("WORLD_SIZE", "2")
    for name, found in {"init_process_group": None, "get_rank": 0, "get_world_size": 2}.items():
        monkeypatch.setattr(dist, name, lambda *args, found=found: found)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: alive.append(held[0]() is not None))
    gc.disable()  # it must not be collected by chance
    try:
        with joined("cpu"):
            held.append(weakref.ref(Wrapped()))
            assert held[0]() is not None
    finally:
        gc.enable()
    assert alive == [False]


@pytest.mark.parametrize("name", ["nosuch", "meta"])
def test_other_devices_are_refused(name):
    with pytest.raises(ParameterError, match=f"--device {name}"), joined(name):
        pass


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParameterError, match="torch sees no GPU"), joined("cuda:3"):
        pass
    with joined("auto") as world:
        assert world == World(0, 1, torch.device("cpu"))
