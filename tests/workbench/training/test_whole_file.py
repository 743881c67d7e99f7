"""Files are replaced in one step, or not at all."""

import os
import time

import pytest

from mcrepar.workbench.training import whole_file
from mcrepar.workbench.training.whole_file import remove_stale, staged, write_bytes, write_text


def test_a_reader_of_the_old_file_keeps_it(tmp_path):
    path = tmp_path / "new folder" / "a.txt"
    write_bytes(path, b"old")
    with path.open("rb") as reader:
        write_bytes(path, b"new and longer")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new and longer"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_bytes(path, b"old")

    def full(_):
        raise OSError("full")

    monkeypatch.setattr(whole_file.os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_text_is_utf8_with_its_line_ends_as_they_are(tmp_path):
    write_text(tmp_path / "a.csv", "\u00b5,1\r\n")
    assert (tmp_path / "a.csv").read_bytes() == b"\xc2\xb5,1\r\n"


def test_what_is_staged_waits_for_the_work_in_between(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with staged(path, b"new"):
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(OSError, match="full"), staged(path, b"newer"):
        raise OSError("full")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_stale_temporary_files_go_and_others_stay(tmp_path):
    ours = [".log.csv.123.tmp", ".step-00000001.7.tmp", ".0123456789abcdef.tmp"]
    others = ["log.csv", ".mine.tmp", "notes.tmp", ".hidden"]
    for name in (*ours, *others):
        (tmp_path / name).write_text("x")
    (tmp_path / ".folder.1.tmp").mkdir()
    remove_stale(tmp_path, r"log\.csv", older=60.0)
    assert (tmp_path / ".log.csv.123.tmp").exists()
    os.utime(tmp_path / ".log.csv.123.tmp", (time.time() - 100,) * 2)
    remove_stale(tmp_path, r"log\.csv", older=60.0)
    assert {p.name for p in tmp_path.iterdir()} == {*ours[1:], *others, ".folder.1.tmp"}
    remove_stale(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {*others, ".folder.1.tmp"}
    remove_stale(tmp_path / "nosuch")
