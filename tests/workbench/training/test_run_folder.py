"""A lock keeps others out, this process included, and ends with its holder."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from torch import nn

from mcrepar import bayesian, save
from mcrepar.errors import ParameterError
from mcrepar.user_files import write_file
from mcrepar.workbench.training.checkpoint import PARTS, write
from mcrepar.workbench.training.config import TrainConfig
from mcrepar.workbench.training.run_folder import OURS, RunFolder, read_run, take

FACTS = {"world_size": 1, "parameters": 3}


def run_folder(path, **options) -> RunFolder:
    return RunFolder(TrainConfig(out=str(path), **options))


def begun(path, **options) -> RunFolder:
    folder = run_folder(path, **options)
    folder.begin(FACTS, 1000)
    return folder


def test_a_run_that_another_process_began_since_is_left_alone(tmp_path):
    late = run_folder(tmp_path / "a")
    late.check()
    begun(tmp_path / "a", lr=0.5).release()
    with pytest.raises(ParameterError, match="another run"):
        late.begin(FACTS, 1000)
    assert "lr: 0.5" in (tmp_path / "a" / "config.yaml").read_text()


def test_a_new_folder_says_what_it_is(tmp_path):
    folder = begun(tmp_path / "a" / "b", lr=0.5)
    facts = json.loads((folder.path / "run.json").read_text())
    assert facts["status"] == "running"
    assert facts["parameters"] == 3
    assert facts["seed"] == 0
    assert {"torch", "mcrepar", "python", "numpy"} <= set(facts["versions"])
    assert facts["command"][0] == "mcrepar"
    folder.note(status="finished")
    assert read_run(folder.path)["status"] == "finished"
    assert read_run(folder.path)["started"] == facts["started"]
    folder.release()


def test_checking_writes_nothing(tmp_path):
    assert run_folder(tmp_path / "a").check() == ""
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", OURS)
def test_a_folder_with_another_run_is_refused(name, tmp_path):
    (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("{}")
    with pytest.raises(ParameterError, match=f"holds another run .*{name}.*--resume"):
        run_folder(tmp_path).check()


def test_other_files_are_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert run_folder(tmp_path).check() == ""


def test_resume_wants_the_same_options(tmp_path):
    begun(tmp_path, lr=0.5).release()
    assert run_folder(tmp_path, lr=0.5, resume=True, threads=1).check() == "running"
    with pytest.raises(ParameterError, match=r"lr: 0.5 there, 0.1 now; seed: 0 there, 3 now"):
        run_folder(tmp_path, lr=0.1, seed=3, resume=True).check()


def test_resume_keeps_the_first_start(tmp_path):
    first = begun(tmp_path)
    first.release()
    started = read_run(first.path)["started"]
    again = begun(tmp_path, resume=True)
    again.release()
    assert read_run(again.path)["started"] == started
    assert len(read_run(again.path)["resumed"]) == 1


def test_resume_wants_the_same_data(tmp_path):
    data = {"count": 40, "channels": 1, "size": (8, 8), "classes": ("a", "b"), "digest": "0a"}
    first = run_folder(tmp_path)
    first.begin({**FACTS, "data": data}, 1000)
    first.release()
    again = run_folder(tmp_path, resume=True)
    again.begin({**FACTS, "data": data}, 1000)
    again.release()
    with pytest.raises(ParameterError, match=r"not those of that run \(count: 40 there, 120 now; digest: 0a there, 0b"):
        run_folder(tmp_path, resume=True).begin({**FACTS, "data": {**data, "count": 120, "digest": "0b"}}, 1000)
    assert read_run(first.path)["data"]["count"] == 40


def test_resume_without_options_to_compare_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text("")
    with pytest.raises(ParameterError, match="but no config"):
        run_folder(tmp_path, resume=True).check()
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ParameterError, match=r"no config\.yaml and no checkpoint with its options"):
        begun(tmp_path, resume=True)


def with_checkpoint(path, **options) -> Path:
    """A run folder with a checkpoint of the run with these options."""
    folder = begun(path, **options)
    parts = dict.fromkeys(PARTS, 0)
    written = write(path / "checkpoints", 3, {**parts, "options": folder.config.plain(), "run": folder.known})
    folder.release()
    return written


def test_a_checkpoint_of_a_run_with_other_options_is_not_gone_on_from(tmp_path):
    """A config.yaml that was replaced, checksum and all, does not rotate the checkpoints away."""
    with_checkpoint(tmp_path, epochs=3, batch_size=128)
    (tmp_path / "config.yaml").write_text(TrainConfig(out=str(tmp_path)).to_yaml())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ParameterError, match=r"epochs: 3 there, 100 now; batch_size: 128 there, 32 now"):
        begun(tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_config_yaml_is_restored_where_the_options_are_those_of_the_checkpoint(tmp_path):
    with_checkpoint(tmp_path, epochs=3)
    before = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ParameterError, match="epochs: 3 there, 4 now"):
        begun(tmp_path, epochs=4, resume=True)
    assert not (tmp_path / "config.yaml").exists()
    begun(tmp_path, epochs=3, resume=True).release()
    assert (tmp_path / "config.yaml").read_text() == before


@pytest.mark.parametrize("how", ["cut", "gone", "fifo", "list"])
def test_a_damaged_run_json_is_restored_and_nothing_is_lost(how, tmp_path):
    with_checkpoint(tmp_path)
    path = tmp_path / "run.json"
    wanted, text = read_run(tmp_path), path.read_text()
    path.unlink()
    if how == "fifo":
        os.mkfifo(path)
    elif how != "gone":
        path.write_text("[1]" if how == "list" else text[:200])
    with pytest.warns(UserWarning, match=r"run\.json is (damaged|missing).*restored from the checkpoint"):
        begun(tmp_path, resume=True).release()
    got = read_run(tmp_path)
    assert len(got.pop("resumed")) == 1
    assert got == {name: value for name, value in wanted.items() if name != "resumed"}
    if how == "cut":
        assert (tmp_path / "run.json.damaged").read_text() == text[:200]


def test_data_are_compared_where_run_json_is_damaged(tmp_path):
    with_checkpoint(tmp_path)
    data = {"count": 40, "channels": 1, "size": (8, 8), "classes": ("a", "b"), "digest": "0a"}
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        checkpoint.unlink()
    parts = {**dict.fromkeys(PARTS, 0), "run": {"data": data}}
    write(tmp_path / "checkpoints", 3, parts)
    (tmp_path / "run.json").write_text("{")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ParameterError, match="count: 40 there, 41 now"):
        run_folder(tmp_path, resume=True).begin({**FACTS, "data": {**data, "count": 41}}, 1000)


@pytest.mark.parametrize("name", [".lock", "model", "checkpoints"])
@pytest.mark.parametrize("resume", [False, True])
def test_links_out_of_the_folder_are_refused(name, resume, tmp_path):
    outside = tmp_path / "precious"
    (outside / "tensors-0123456789abcdef.safetensors").mkdir(parents=True)
    run = tmp_path / "run"
    if resume:
        begun(run).release()
        (run / name).unlink(missing_ok=True)
    else:
        run.mkdir()
    (run / name).symlink_to(outside)
    with pytest.raises(ParameterError, match=f"{name} is a symbolic link"):
        begun(run, resume=resume)
    assert len(list(outside.iterdir())) == 1


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    begun(tmp_path / "run").release()
    assert (tmp_path / "disk" / "config.yaml").exists()


def test_what_killed_writes_left_is_removed_at_the_start(tmp_path):
    written = with_checkpoint(tmp_path)
    (tmp_path / "model").mkdir()
    stale = [".run.json.12.tmp", "checkpoints/.step-00000009.12.tmp", "model/.0123456789abcdef.tmp"]
    theirs = [".predictions.npz.12.tmp", ".notes.tmp"]  # an evaluation may be writing at this moment
    for name in (*stale, *theirs):
        (tmp_path / name).write_text("x")
    first = begun(tmp_path, resume=True)
    assert not any((tmp_path / name).exists() for name in stale)
    assert all((tmp_path / name).exists() for name in theirs)
    assert written.exists()
    (tmp_path / stale[1]).write_text("of the run that has the lock")
    with pytest.raises(ParameterError, match="another process"):
        begun(tmp_path, resume=True)
    assert (tmp_path / stale[1]).exists()
    first.release()


def test_all_files_have_the_same_mode(tmp_path):
    with_checkpoint(tmp_path)
    save(bayesian(nn.Linear(2, 1)), tmp_path / "model")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    assert len(modes) == 6
    assert len(set(modes.values())) == 1, modes


def test_two_processes_do_not_share_a_folder(tmp_path):
    first = begun(tmp_path)
    with pytest.raises(ParameterError, match="another process is training there"):
        begun(tmp_path, resume=True)
    first.release()
    begun(tmp_path, resume=True).release()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(ParameterError, match="it is a file"):
        run_folder(tmp_path / "a").check()


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write everywhere
    with pytest.raises(ParameterError, match="cannot be written"):
        run_folder(tmp_path / "a" / "b").check()


def test_what_only_writing_shows_is_refused_too(tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(ParameterError, match="Permission denied"):
        begun(tmp_path / "a")


def test_a_disk_without_space_for_checkpoints_is_refused_at_the_start(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40 - 2**21, 2**21))
    with pytest.raises(ParameterError, match="2,097,152 bytes left, and the checkpoints need 5,048,576"):
        run_folder(tmp_path).begin(FACTS, 1_000_000)
    assert not (tmp_path / "config.yaml").exists()


def test_resume_needs_no_more_space_than_the_start(tmp_path, monkeypatch):
    """What earlier checkpoints occupy is free for later ones."""
    need, size = 4 * 1_000_000 + 2**20, 2_000_000
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40 - free, free))
    free = need
    first = run_folder(tmp_path)
    first.begin(FACTS, 1_000_000)
    first.release()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "old").write_bytes(bytes(size))
    free = need - size
    again = run_folder(tmp_path, resume=True)
    again.begin(FACTS, 1_000_000)
    again.release()
    free -= 1
    with pytest.raises(ParameterError, match="bytes left"):
        run_folder(tmp_path, resume=True).begin(FACTS, 1_000_000)


def test_a_run_that_was_killed_before_run_json_begins_again(tmp_path):
    config = TrainConfig(out=str(tmp_path))
    write_file(tmp_path / "config.yaml", config.to_yaml())
    assert run_folder(tmp_path, resume=True).check() == ""


pytest.importorskip("fcntl")


def test_a_folder_is_had_by_one_at_a_time(tmp_path):
    lock = take(tmp_path)
    with pytest.raises(BlockingIOError):
        take(tmp_path)
    lock.close()
    take(tmp_path).close()


def test_a_killed_holder_lets_go(tmp_path):
    program = (
        "import pathlib, sys, time; from mcrepar.workbench.training.run_folder import take; "
        "lock = take(pathlib.Path(sys.argv[1])); print('taken', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "taken\n"
        with pytest.raises(BlockingIOError):
            take(tmp_path)
        holder.kill()
    take(tmp_path).close()


def test_a_link_is_not_followed_and_what_it_leads_to_is_not_emptied(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        take(tmp_path)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_file_called_lock_is_not_emptied(tmp_path):
    (tmp_path / ".lock").write_text("mine")
    take(tmp_path).close()
    assert (tmp_path / ".lock").read_text() == "mine"


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OSError, match="not a plain file"):
        take(tmp_path)
