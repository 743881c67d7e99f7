"""A user's file: regular and bounded, or an error that names it; nothing waits for another process."""

import io
import os
import socket

import pytest

from mcrepar.errors import ParameterError
from mcrepar.user_files import TooLarge, open_file, read_all, read_file, read_json, read_text, read_yaml

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
