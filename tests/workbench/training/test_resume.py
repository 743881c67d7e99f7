"""Runs that are really killed, at any moment, and end as if they had not been."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcrepar.workbench.training import train
from mcrepar.workbench.training.checkpoint import newest
from tests.workbench.training.tiny import config, log_of, model_of, words, write_images

pytestmark = pytest.mark.slow

KILLER = """
import os, random, signal, sys, time
import torch
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import TrainConfig, read_config
from mcrepar.workbench.training.loop import run  # imported once: a fork starts at once
from dataclasses import replace
from pathlib import Path

torch.set_num_threads(1)
config = replace(read_config(Path(sys.argv[1])), resume=True)
chance = random.Random(int(sys.argv[2]))
kills = 0
while True:
    child = os.fork()
    if child == 0:
        try:
            train(config)
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    end = time.monotonic() + chance.uniform(0.02, float(sys.argv[3])) if kills < int(sys.argv[4]) else float("inf")
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            print("kills", kills, "status", status, flush=True)
            sys.exit(status != 0)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kills += 1
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


@pytest.mark.parametrize(
    ("options", "kills"),
    [({"checkpoint_minutes": 0.0}, 8), ({"checkpoint_minutes": 0.004, "deterministic_epochs": 1, "patience": 3}, 5)],
    ids=["every-step", "now-and-then"],
)
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(options, kills, tmp_path):
    """Parameters bit by bit, and the log; the second run stops being deterministic and keeps the best model."""
    write_images(tmp_path)
    options = {**options, "epochs": 5, "threads": 1}
    start = time.monotonic()
    wanted = train(config(tmp_path, "wanted", **options))
    longest = 0.7 * (time.monotonic() - start)  # so that kills come at the start, in the middle and near the end
    path = Path(words(tmp_path, "killed", **options)[-1])
    command = [sys.executable, "-c", KILLER, str(path), "7", str(longest), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-3]) >= 2, f"hardly killed: {done.stdout}"
    killed = tmp_path / "killed"
    assert model_of(killed) == model_of(wanted)
    assert log_of(killed) == log_of(wanted)
    a, b = (newest(folder / "checkpoints").state for folder in (killed, wanted))
    assert all(t.equal(b["model"][name]) for name, t in a["model"].items())
    states = [state["optimizer"][0]["state"] for state in (a, b)]
    assert all(t.equal(states[1][k][name]) for k, s in states[0].items() for name, t in s.items())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_writes_a_checkpoint_and_says_how_to_go_on(number, code, tmp_path):
    write_images(tmp_path)
    options = {"epochs": 4000, "threads": 1, "progress": "plain"}
    command = [sys.executable, "-m", "mcrepar", *words(tmp_path, **options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline().startswith("epoch ")
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert err.count("\n") == 1
    assert f"mcrepar train --resume --out {tmp_path / 'run'} goes on from there" in err
    state = newest(tmp_path / "run" / "checkpoints").state
    assert f"after step {state['step']};" in err
    assert '"stopped"' in (tmp_path / "run" / "run.json").read_text()


def test_a_damaged_last_checkpoint_costs_nothing_but_time(tmp_path):
    write_images(tmp_path)
    wanted = train(config(tmp_path, "wanted", checkpoint_minutes=0.0))
    hurt = tmp_path / "hurt"
    train(config(tmp_path, "hurt", checkpoint_minutes=0.0))
    last = sorted((hurt / "checkpoints").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-1000])
    (hurt / "run.json").write_text((hurt / "run.json").read_text().replace('"finished"', '"running"'))
    for path in (hurt / "model").iterdir():
        path.unlink()
    with pytest.warns(UserWarning, match=f"{last.name} is damaged"):
        train(config(tmp_path, "hurt", checkpoint_minutes=0.0, resume=True))
    assert model_of(hurt) == model_of(wanted)
    assert log_of(hurt) == log_of(wanted)
