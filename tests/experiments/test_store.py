"""Folders and disks that do not do what is asked of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import store
from experiments.experiment import Part
from mcrepar.errors import ParameterError
from tests.experiments.squares import run


def test_an_out_that_is_a_file(squares, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ParameterError, match=r"is a file\. Use a folder"):
        run(tmp_path / "file")
    assert squares.measured == []


def test_an_out_that_cannot_be_written(squares, tmp_path, monkeypatch):
    monkeypatch.setattr(store.os, "access", lambda path, mode: False)  # the superuser may write anywhere
    with pytest.raises(ParameterError, match=r"cannot be written\. Use a place where you may write"):
        run(tmp_path / "locked")
    assert squares.measured == []


def test_an_out_with_too_long_a_name(squares, tmp_path):
    with pytest.raises(ParameterError, match=r"--out .*File name too long.*Use a place where you may write"):
        run(tmp_path / ("x" * 300))
    assert squares.measured == []


def test_an_out_that_may_not_be_looked_into(squares, tmp_path, monkeypatch):
    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)  # the superuser may look anywhere
    with pytest.raises(ParameterError, match=r"secret/squares cannot be written .Permission denied."):
        run(tmp_path / "secret")
    assert squares.measured == []


def test_a_disk_that_fails_is_an_error_in_words(squares, tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_file", full)
    with pytest.raises(ParameterError, match=r"n1.json cannot be written .No space left on device."):
        run(tmp_path)


def test_numbers_that_are_no_numbers_are_not_stored(squares, tmp_path):
    broken = replace(squares.experiment(), measure=lambda part, bench: {"square": float("nan")})
    made = store.Store(tmp_path, "tiny", 0, "x")
    with pytest.raises(ValueError, match="Out of range float"):
        made.save(Part("n1", {}), broken.measure(Part("n1", {}), None), 0.0)
    assert not list(tmp_path.rglob("*.json"))
