"""Run folders: found, read, and nothing outside them; what is missing or damaged is named."""

import json
import os
import zipfile

import numpy as np
import pytest

from mcrepar.errors import ParameterError
from mcrepar.workbench.app import runs as runs_module
from mcrepar.workbench.app.runs import Runs, inside
from tests.workbench.app.example_run import DATA, arrays, write_run


@pytest.fixture
def root(tmp_path):
    write_run(tmp_path / "runs" / "one")
    write_run(tmp_path / "runs" / "group" / "two")
    write_run(tmp_path / "secret")
    (tmp_path / "runs" / "empty").mkdir()
    return tmp_path / "runs"


def test_runs_are_found_newest_first(root):
    os.utime(root / "one", (1, 1))
    assert list(Runs(root).names()) == ["group/two", "one"]
    assert Runs(root / "one").names() == {".": "one"}
    assert Runs(None).names() == Runs(root / "nothing").names() == {}


def test_folders_with_a_network_are_found(root):
    (root / "group" / "two" / "checkpoints").mkdir()
    (root / "one" / "model").mkdir()
    for folder in (root / "one" / "model", root / "empty"):
        (folder / "config.json").write_text("{}")
    assert set(Runs(root).names(networks=True)) == {"group/two", "one", "empty"}  # and none inside of a run
    (root / "empty" / "config.json").unlink()
    assert set(Runs(root).names(networks=True)) == {"group/two", "one"}


def test_a_run_is_read(root):
    run = Runs(root).open("group/two")
    np.testing.assert_array_equal(run.arrays["confidence"], arrays()["confidence"])
    assert len(run.arrays["y"]) == DATA
    assert run.log["epoch"] == list(range(1, 13))
    assert run.facts["status"] == "finished"
    assert run.ood_sets == ["noise"]


@pytest.mark.parametrize("name", ["../secret", "/etc", "one/../../secret", "..", "../runs2", "\0", "a" * 5000])
def test_nothing_outside_can_be_named(root, name):
    with pytest.raises(ParameterError, match=r"outside the folder of runs|no path|no run in this folder"):
        Runs(root).open(name)
    with pytest.raises(ParameterError, match=r"outside|no path"):
        inside(root, "../secret", "run")


def test_links_do_not_lead_outside(root):
    (root / "link").symlink_to(root.parent / "secret")
    with pytest.raises(ParameterError, match="outside the folder of runs"):
        Runs(root).open("link")
    assert "link" not in Runs(root).names()
    target = root / "one" / "predictions.npz"
    target.unlink()
    target.symlink_to(root.parent / "secret" / "predictions.npz")
    with pytest.raises(ParameterError, match="outside the folder of runs"):
        Runs(root).open("one")


@pytest.mark.parametrize("name", ["empty", "nothing"])
def test_a_folder_without_a_run_is_named(root, name):
    with pytest.raises(ParameterError, match=f"run '{name}': there is no run in this folder"):
        Runs(root).open(name)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("predictions.npz", b"PK no archive"),
        ("predictions.npz", b""),
        ("run.json", b"{"),
        ("run.json", b"\xff\xfe\xfa"),
        ("log.csv", b"epoch,loss\n1,two\n"),
        ("log.csv", b"epoch,loss\n1\n"),
        ("log.csv", b"epoch,loss\n1,2,3\n"),
        ("log.csv", b"a\n" + b"1\n" * 30_000),
        ("log.csv", b"a," * 100),
        ("log.csv", b"a\n" + b"1" * 200_000),
        ("run.json", b"[" * 100_000),
        ("run.json", b"{}" + b" " * 2**23),
    ],
)
def test_a_damaged_file_is_named(root, file, content):
    (root / "one" / file).write_bytes(content)
    with pytest.raises(ParameterError, match=f"run 'one': {file} is damaged"):
        Runs(root).open("one")


@pytest.mark.parametrize(
    "structures", [None, {}, [1], [{}], [{"name": "bone"}], {"dice": 10**400}, {"dice": "a"}, {"name": "\ud800"}]
)
def test_structures_of_another_form_are_named(root, structures):
    (root / "one" / "predictions.npz").unlink()
    whole = {"name": "bone", "images": 2, "voxels": 7, "dice": 0.5, "dice_at_95_coverage": None, "ece": 0.1}
    path = root / "one" / "metrics.json"
    path.write_text(json.dumps({"task": "segmentation", "structures": [whole]}))
    assert Runs(root).open("one").structures == [whole]
    rows = [whole | structures] if isinstance(structures, dict) and structures else structures
    path.write_text(json.dumps({"task": "segmentation", "structures": rows}))
    with pytest.raises(ParameterError, match=r"metrics\.json is damaged: its structures.*mcrepar evaluate"):
        Runs(root).open("one")


@pytest.mark.parametrize("file", ["predictions.npz", "run.json", "log.csv"])
def test_what_is_no_file_is_named(root, file):
    path = root / "one" / file
    path.unlink()
    path.symlink_to(file)
    with pytest.raises(ParameterError, match=rf"run 'one': {file}: it is no path"):
        Runs(root).open("one")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ParameterError, match=rf"run 'one': {file} is damaged: it is no regular file"):
        Runs(root).open("one")
    path.unlink()
    path.mkdir()
    with pytest.raises(ParameterError, match=rf"run 'one': {file} is damaged: it cannot be read"):
        Runs(root).open("one")


def test_a_folder_that_cannot_be_listed_or_spelled_is_left_out(root):
    write_run(root / os.fsdecode(b"bad \xff name"))
    (root / "loop").symlink_to("loop")
    assert sorted(Runs(root).names()) == ["group/two", "one"]


def test_a_flipped_bit_is_found(root):
    path = root / "one" / "predictions.npz"
    whole = bytearray(path.read_bytes())
    for place in range(40, len(whole), len(whole) // 20):
        damaged = bytearray(whole)
        damaged[place] ^= 16
        path.write_bytes(damaged)
        os.utime(path, (place, place))
        try:
            found = Runs(root).open("one").arrays
        except ParameterError as error:
            assert str(error).startswith("run 'one': predictions.npz is damaged")  # noqa: PT017
        else:
            assert all(np.array_equal(array, arrays()[name]) for name, array in found.items())


def test_a_half_written_archive_is_named(root):
    path = root / "one" / "predictions.npz"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ParameterError, match=r"predictions\.npz is damaged"):
        Runs(root).open("one")


def test_objects_are_not_unpickled(root):
    np.savez(root / "one" / "predictions.npz", allow_pickle=True, y=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ParameterError, match=r"predictions\.npz is damaged"):
        Runs(root).open("one")


def test_what_would_fill_the_memory_is_refused(root, monkeypatch):
    monkeypatch.setattr(runs_module, "MOST_BYTES", 10_000)
    with zipfile.ZipFile(root / "one" / "predictions.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", b"\0" * 100_000)
    with pytest.raises(ParameterError, match="when unpacked"):
        Runs(root).open("one")
    monkeypatch.setattr(runs_module, "_MOST_TEXT", 10)
    with pytest.raises(ParameterError, match="more than 10"):
        Runs(root).open("group/two")


def test_a_file_that_was_written_again_is_read_again(root):
    first = Runs(root).open("one").arrays["confidence"]
    path = root / "one" / "predictions.npz"
    np.savez(path, **arrays(seed=5))
    os.utime(path, (2e9, 2e9))
    assert (Runs(root).open("one").arrays["confidence"] != first).any()


def test_a_run_that_was_not_evaluated(root):
    (root / "one" / "predictions.npz").unlink()
    (root / "one" / "run.json").write_text(json.dumps([1]))
    run = Runs(root).open("one")
    assert run.arrays == {}
    assert run.facts == {}
