"""A user's file: regular and bounded, or an error that names it; and files that are replaced whole or not at all."""

import hashlib
import io
import os
import socket
import time

import pytest

from mcrepar import user_files
from mcrepar.errors import ParameterError
from mcrepar.user_files import (
    TooLarge,
    open_file,
    read_all,
    read_file,
    read_json,
    read_text,
    read_yaml,
    remove_stale,
    write_file,
)

READERS = (open_file, read_file, read_text, read_json, read_yaml)


@pytest.mark.parametrize("read", READERS)
def test_pipes_devices_folders_and_sockets_are_refused_at_once(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    (tmp_path / "link").symlink_to("link")
    for name in ("pipe", "socket", "link", ".", "/dev/zero", "/dev/null", "a\0b", "x" * 5000):
        with pytest.raises(ParameterError, match=r"^file "):
            read(tmp_path / name)
    listener.close()


@pytest.mark.parametrize("read", READERS)
def test_a_missing_file_is_the_callers_business(tmp_path, read):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, read):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ParameterError, match=r"it has 1,099,511,627,776 bytes, more than"):
        read(tmp_path / "sparse")
    (tmp_path / "small").write_text("[1, 2]")
    with pytest.raises(ParameterError, match=r"it has 6 bytes, more than 5\. Use a smaller file"):
        read(tmp_path / "small", most=5)


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "mine").write_text("x")
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ParameterError, match=r"mine': it cannot be read \(Permission denied\)"):
        read_file(tmp_path / "mine")


def test_a_stream_ends_or_is_too_large():
    assert read_all(io.BytesIO(b"x" * 10), 10) == b"x" * 10
    with pytest.raises(TooLarge):
        read_all(io.BytesIO(b"x" * 11), 10)


def test_what_a_file_holds(tmp_path):
    (tmp_path / "a").write_text('{"a": [1, "\u00e4"]}', encoding="utf-8")
    assert read_file(tmp_path / "a") == b'{"a": [1, "\xc3\xa4"]}'
    assert read_text(tmp_path / "a", encoding="latin-1").endswith('\u00c3\u00a4"]}')
    assert read_json(tmp_path / "a") == read_yaml(tmp_path / "a") == {"a": [1, "\u00e4"]}
    (tmp_path / "empty").write_bytes(b"")
    assert read_yaml(tmp_path / "empty") is None


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nul", '{"a": ' * 100_000, "1" * 5000])
def test_what_is_no_json_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ParameterError, match=r"run\.json': its [\d,]+ characters are no JSON"):
        read_json(tmp_path / "run.json")


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 10)}]}}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", [LAUGHS, MERGED, "&a [*a]"], ids=["lists", "merged", "itself"])
def test_aliases_do_not_multiply(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ParameterError, match=r"config\.yaml': its aliases stand for more than 100,000 values"):
        read_yaml(tmp_path / "config.yaml")


@pytest.mark.parametrize("text", ["[" * 1000, "{a: 1", "a: *b", "!!python/object:os.system {}", "? [a]: b", "\x01"])
def test_what_is_no_yaml_is_named(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ParameterError, match=r"config\.yaml': it is no YAML"):
        read_yaml(tmp_path / "config.yaml")


def test_aliases_of_a_few_values_are_read(tmp_path):
    (tmp_path / "config.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}")
    assert read_yaml(tmp_path / "config.yaml") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def test_text_of_another_encoding_is_named(tmp_path):
    (tmp_path / "run.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ParameterError, match=r"run\.json': it is no text in utf-8"):
        read_json(tmp_path / "run.json")


def test_a_reader_of_the_old_file_keeps_it(tmp_path):
    path = tmp_path / "new folder" / "a.txt"
    write_file(path, b"old")
    with path.open("rb") as reader:
        write_file(path, b"new and longer")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new and longer"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_file(path, b"old")

    def full(_):
        raise OSError("full")

    monkeypatch.setattr(user_files.os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_text_is_utf8_with_its_line_ends_as_they_are(tmp_path):
    write_file(tmp_path / "a.csv", "\u00b5,1\r\n")
    assert (tmp_path / "a.csv").read_bytes() == b"\xc2\xb5,1\r\n"


def test_a_function_writes_and_the_name_holds_the_digest(tmp_path):
    path = write_file(tmp_path / "a.{digest}.bin", lambda file: file.write(b"content"))
    assert path.name == f"a.{hashlib.sha256(b'content').hexdigest()[:16]}.bin"
    assert path.read_bytes() == b"content"

    def fails(file):
        file.write(b"half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_file(tmp_path / "b.{digest}.bin", fails)
    assert list(tmp_path.iterdir()) == [path]


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
