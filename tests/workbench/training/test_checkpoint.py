import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mcrepar.errors import ParameterError
from mcrepar.user_files import digest_of
from mcrepar.workbench.training.checkpoint import NAME, newest, read_weights, restore, write


def state(step):
    return {
        "step": step,
        "tensor": torch.full((1000,), float(step)),
        "rows": [{"a": 1.0, "b": None}],
        "best": float("inf"),
    }


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read(tmp_path):
    path = write(tmp_path / "c", 7, state(7))
    assert NAME.fullmatch(path.name)[1] == "00000007"
    found = newest(tmp_path / "c")
    assert found.path == path
    assert torch.equal(found.state["tensor"], state(7)["tensor"])
    assert {k: v for k, v in found.state.items() if k != "tensor"} == {
        k: v for k, v in state(7).items() if k != "tensor"
    }


def test_there_is_none_at_first(tmp_path):
    assert newest(tmp_path / "nosuch") is None


def test_the_two_newest_are_kept(tmp_path):
    for step in (3, 9, 12, 110):
        write(tmp_path, step, state(step))
    assert [name[:13] for name in files(tmp_path)] == ["step-00000012", "step-00000110"]
    assert newest(tmp_path).state["step"] == 110


def test_what_a_run_left_behind_when_it_went_back_is_dropped(tmp_path):
    for step in (12, 110, 20):
        write(tmp_path, step, state(step))
    assert [name[:13] for name in files(tmp_path)] == ["step-00000012", "step-00000020"]


def test_a_step_is_kept_once(tmp_path):
    for best in (1.0, 2.0):
        write(tmp_path, 3, {**state(3), "best": best})
    assert len(files(tmp_path)) == 1
    assert newest(tmp_path).state["best"] == 2.0


def damage(path: Path, how: str) -> None:
    raw = path.read_bytes()
    changed = {"cut": raw[: len(raw) // 2], "empty": b"", "bit": raw[:500] + bytes([raw[500] ^ 1]) + raw[501:]}
    path.write_bytes(changed[how])


@pytest.mark.parametrize("how", ["cut", "empty", "bit"])
def test_a_damaged_one_falls_back_to_the_one_before(how, tmp_path):
    write(tmp_path, 1, state(1))
    last = write(tmp_path, 2, state(2))
    damage(last, how)
    with pytest.warns(UserWarning, match=f"{last.name} is damaged"):
        assert newest(tmp_path).state["step"] == 1


def break_by_kind(path: Path, how: str) -> Path:
    """Put something else in the place of a checkpoint, under a name that may hold its checksum."""
    path.unlink()
    if how == "dangling link":
        path.symlink_to("nosuch")
    elif how == "link to itself":
        path.symlink_to(path.name)
    elif how == "directory":
        path.mkdir()
    elif how == "fifo":
        os.mkfifo(path)
    else:
        raw = {"no checkpoint": b"not of torch", "pickle": b"\x80\x04K\x01.", "other parts": b""}[how]
        path.write_bytes(raw)
        if how == "other parts":
            torch.save({"tensor": torch.zeros(2)}, path)
        path = path.rename(path.with_name(f"{path.name[:13]}.{digest_of(path)[:16]}.pt"))
    return path


KINDS = ["dangling link", "link to itself", "directory", "fifo", "no checkpoint", "pickle", "other parts"]


@pytest.mark.parametrize("how", KINDS)
def test_whatever_is_no_checkpoint_falls_back_to_the_one_before(how, tmp_path):
    first = write(tmp_path, 1, state(1))
    last = break_by_kind(write(tmp_path, 2, state(2)), how)
    with pytest.warns(UserWarning, match=f"{last.name} is damaged"):
        found = newest(tmp_path)
    assert found.state["step"] == 1
    write(tmp_path, 3, state(3), good=found.path)
    assert first.exists(), "the one that is good is kept, not the damaged one"
    assert newest(tmp_path).state["step"] == 3


def test_checkpoints_that_lead_nowhere_are_no_new_start(tmp_path):
    (tmp_path / "c").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ParameterError, match="leads nowhere"):
        newest(tmp_path / "c")


def test_damage_to_all_is_an_error_and_not_a_new_start(tmp_path):
    for step in (1, 2):
        damage(write(tmp_path, step, state(step)), "cut")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ParameterError, match="all of its 2"):
        newest(tmp_path)


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_last_good_one(where, tmp_path, monkeypatch):
    write(tmp_path, 1, state(1))
    before = files(tmp_path)
    if where == "write":
        monkeypatch.setattr(torch, "save", no_space)
    elif where == "fsync":
        monkeypatch.setattr(os, "fsync", no_space)
    else:
        monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, 2, state(2))
    assert files(tmp_path) == before
    assert newest(tmp_path).state["step"] == 1


def test_what_torch_makes_of_a_failed_write_is_an_os_error(tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError("unexpected pos 704 vs 598")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="unexpected pos"):
        write(tmp_path, 2, state(2))
    assert files(tmp_path) == []


def test_reading_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "done"),))

    fresh = tmp_path / "x.pt"
    torch.save({"step": Evil()}, fresh)
    fresh.rename(tmp_path / f"step-00000001.{digest_of(fresh)[:16]}.pt")
    with pytest.warns(UserWarning, match=r"[Ww]eights.only"), pytest.raises(ParameterError, match="all of its 1"):
        newest(tmp_path)
    assert not (tmp_path / "done").exists()


def test_a_checkpoint_of_another_network_is_refused_and_changes_nothing(tmp_path):
    net = nn.Linear(3, 2)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    for other, why in (
        (nn.Linear(4, 2), r"'weight' is \(2, 4\) there and \(2, 3\) here"),
        (nn.Linear(3, 2, bias=False), "the file has no 'bias'"),
        (nn.Sequential(nn.Linear(3, 2)), "the file has no 'weight'"),
    ):
        with pytest.raises(ParameterError, match=why):
            restore(net, other.state_dict(), tmp_path / "step.pt")
    more = {**net.state_dict(), "extra": torch.zeros(1)}
    with pytest.raises(ParameterError, match="the network has no 'extra'"):
        restore(net, more, tmp_path / "step.pt")
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())


# --- weights to start from


def network(width=3):
    return nn.Sequential(nn.Linear(width, 2), nn.BatchNorm1d(2))


@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
def test_weights_of_torch_save(wrap, tmp_path):
    net, path = network(), tmp_path / "w.pt"
    state = net.state_dict()
    torch.save({wrap: state, "epoch": 3} if wrap else state, path)
    found = read_weights(path, network())
    assert all(torch.equal(found[name], t) for name, t in state.items())


def test_weights_of_safetensors_and_of_a_wrapped_network(tmp_path):
    net, path = network(), tmp_path / "w.safetensors"
    save_file({f"module.{name}": t for name, t in net.state_dict().items()}, path)
    assert torch.equal(read_weights(path, network())["0.weight"], net[0].weight)


def test_other_weights_are_refused(tmp_path):
    path = tmp_path / "w.pt"
    for state, why in (
        (network(4).state_dict(), r"'0.weight' is \(2, 4\) there and \(2, 3\) here"),
        (nn.Linear(3, 2).state_dict(), "the file has no '0.weight'"),
        ({**network().state_dict(), "more": torch.zeros(1)}, "the network has no 'more'"),
        ({**network().state_dict(), "0.bias": torch.tensor([1.0, float("nan")])}, "'0.bias' is not finite"),
        ({"epoch": 3}, "holds no state_dict"),
        ([1, 2], "holds no state_dict"),
    ):
        torch.save(state, path)
        with pytest.raises(ParameterError, match=why):
            read_weights(path, network())


def test_files_that_hold_no_weights_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="no such file"):
        read_weights(tmp_path / "nosuch.pt", network())
    for name in ("a.pt", "a.safetensors"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(ParameterError, match="without running code"):
            read_weights(tmp_path / name, network())
