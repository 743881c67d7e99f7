"""Files are replaced in one step, or not at all."""

import pytest

from mcrepar.training import report_files
from mcrepar.training.report_files import read_run, read_text, write_bytes


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

    monkeypatch.setattr(report_files.os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("content", [None, "", "[1]", "{", "\x00"])
def test_a_run_that_says_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert read_run(tmp_path) == {}


def test_text_that_is_not_there(tmp_path):
    assert read_text(tmp_path / "config.yaml") == ""
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\xff")
    assert read_text(tmp_path / "config.yaml") == ""
