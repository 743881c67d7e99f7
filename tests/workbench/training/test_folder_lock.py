"""A lock keeps others out, this process included, and ends with its holder."""

import os
import subprocess
import sys

import pytest

from mcrepar.workbench.training.folder_lock import take

pytest.importorskip("fcntl")


def test_a_folder_is_had_by_one_at_a_time(tmp_path):
    lock = take(tmp_path)
    with pytest.raises(BlockingIOError):
        take(tmp_path)
    lock.close()
    take(tmp_path).close()


def test_a_killed_holder_lets_go(tmp_path):
    program = (
        "import pathlib, sys, time; from mcrepar.workbench.training.folder_lock import take; "
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
