import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from mcrepar.errors import ParameterError
from mcrepar.training.config import TrainConfig
from mcrepar.training.folder import OURS, RunFolder
from mcrepar.training.whole_file import write_text

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
    assert folder.facts()["status"] == "finished"
    assert folder.facts()["started"] == facts["started"]
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
    started = first.facts()["started"]
    again = begun(tmp_path, resume=True)
    again.release()
    assert again.facts()["started"] == started
    assert len(again.facts()["resumed"]) == 1


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
    assert first.facts()["data"]["count"] == 40


def test_resume_without_options_to_compare_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text("")
    with pytest.raises(ParameterError, match="but no config"):
        run_folder(tmp_path, resume=True).check()


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


def test_a_run_that_was_killed_before_run_json_begins_again(tmp_path):
    config = TrainConfig(out=str(tmp_path))
    write_text(tmp_path / "config.yaml", config.to_yaml())
    assert run_folder(tmp_path, resume=True).check() == ""
