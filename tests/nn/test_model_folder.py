"""The folder of a saved network: replaced in one step, and refused when it is damaged, foreign or tampered with."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import mcrepar
from mcrepar import McreparError, user_files
from mcrepar.nn import model_folder as folders
from mcrepar.nn.saving import load, save
from tests.conftest import seeded
from tests.nn.saved_networks import assert_same, shaken, small


def test_a_second_save_replaces_the_first_and_nothing_else(tmp_path):
    first, second = mcrepar.bayesian(small(0)), shaken(mcrepar.bayesian(small(1)))
    save(first, tmp_path / "model")
    (tmp_path / "model" / "log.csv").write_text("mine")
    save(second, tmp_path / "model")
    assert_same(load(tmp_path / "model", small()), second)
    assert len(list((tmp_path / "model").iterdir())) == 3
    save(second, tmp_path / "model")
    assert_same(load(tmp_path / "model", small()), second)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("step", range(6))
def test_a_save_that_is_interrupted_leaves_the_network_of_before(step, tmp_path, monkeypatch):
    first, second = mcrepar.bayesian(small(0)), shaken(mcrepar.bayesian(small(1)))
    save(first, tmp_path / "old")
    left = step

    def interrupted(original):
        def call(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            return original(*args, **kwargs)

        return call

    for where, name in ((user_files, "digest_of"), (os, "fsync"), (Path, "replace"), (Path, "rename")):
        monkeypatch.setattr(where, name, interrupted(getattr(where, name)))
    with pytest.raises(Crash):
        save(second, tmp_path / "old")
    left = step
    with pytest.raises(Crash):
        save(second, tmp_path / "new")
    monkeypatch.undo()
    assert_same(load(tmp_path / "old", small()), first)
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert not [p for p in (tmp_path / "old").iterdir() if p.suffix == ".tmp"]
    save(second, tmp_path / "old")
    assert len(list((tmp_path / "old").iterdir())) == 2


@pytest.mark.parametrize("below", ["b", "b/c"])
def test_a_place_below_a_file_is_refused(below, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(
        McreparError, match=r"save\(bnn, '.*file.*'\): it cannot be written \(.*\). Use a folder"
    ) as error:
        save(mcrepar.bayesian(small()), tmp_path / "file" / below)
    assert isinstance(error.value.__cause__, OSError)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("exists", [True, False])
def test_a_disk_that_fails_is_a_refusal(exists, tmp_path, monkeypatch):
    first = mcrepar.bayesian(small(0))
    if exists:
        save(first, tmp_path / "model")

    def fails(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(McreparError, match=r"it cannot be written \(No space left on device\)"):
        save(mcrepar.bayesian(small(1)), tmp_path / "model")
    monkeypatch.undo()
    if exists:
        assert_same(load(tmp_path / "model", small()), first)
    else:
        assert not list(tmp_path.iterdir())


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "model"
    bnn = mcrepar.bayesian(small(), "normal", mcrepar.prior("normal", scale=torch.tensor(0.3)))
    save(bnn.calibrate(torch.ones(2, 4)), path)
    return path


def refused(path, words="Use "):
    net = small()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with pytest.raises(McreparError, match=words) as error:
        load(path, net)
    assert str(path) in error.value.asked
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())
    assert net(torch.zeros(2, 4)).shape == (2, 2)


def tensors_of(path):
    return next(p for p in path.iterdir() if p.name.startswith("tensors-"))


@pytest.mark.parametrize("name", ["config.json", "tensors"])
def test_flipped_bytes_are_noticed(name, broken):
    file = broken / name if name == "config.json" else tensors_of(broken)
    content = file.read_bytes()
    places = torch.randint(len(content), (25,), generator=seeded(0)).tolist()
    for place in [0, len(content) - 1, *places]:
        for bit in (0, 6):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            if chr(content[place]).isspace() and name == "config.json":
                continue
            file.write_bytes(changed)
            refused(broken)
    file.write_bytes(content)
    load(broken, small())


@pytest.mark.parametrize("name", ["config.json", "tensors"])
@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.999])
def test_truncated_files_are_noticed(name, keep, broken):
    file = broken / name if name == "config.json" else tensors_of(broken)
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])
    refused(broken)


def test_missing_and_foreign_files(broken, tmp_path):
    refused(tmp_path / "nowhere", r"no config.json")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", r"no config.json")
    tensors_of(broken).unlink()
    refused(broken, "missing")
    for text in ("[]", "3", "null", '{"model_type": "bert"}', "{" * 10_000, '{"a":' * 100_000, "\x80", "NaN"):
        (broken / "config.json").write_bytes(text.encode("latin1"))
        refused(broken, r"config.json")


def resealed(path, change, tensors=None):
    """A config that somebody changed with care: its seals are right again."""
    config = json.loads((path / "config.json").read_text())
    if tensors is not None:
        tensors_of(path).unlink()
        save_file(tensors, path / "tensors-0123456789abcdef.safetensors")
        config["file"] = "tensors-0123456789abcdef.safetensors"
        config["sha256"] = user_files.digest_of(path / config["file"])
    change(config)
    config.pop("seal", None)
    (path / "config.json").write_text(json.dumps({**config, "seal": folders._seal(config)}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(version=2), "version 2"),
        (lambda c: c.update(version=None), "version None"),
        (lambda c: c.update(extra=1), "extra"),
        (lambda c: c.pop("random"), "random"),
        (lambda c: c.update(file="../secret.safetensors"), "secret"),
        (lambda c: c.update(file=3), "names 3"),
        (lambda c: c.update(forward="sideways"), "sideways"),
        (lambda c: c.update(random=5), "TypeError"),
        (lambda c: c.update(random=[]), "what was saved has no"),
        (lambda c: c["random"][0].update(names=["nothing"]), "nothing"),
        (lambda c: c["random"][0].update(shape=[1]), "saved as"),
        (lambda c: c["random"][0].update(posterior=9), "IndexError"),
        (lambda c: c["random"][0]["estimator"].update(method="pickle"), "pickle"),
        (lambda c: c["random"][0]["estimator"].update(code="import os"), "code"),
        (lambda c: c["posteriors"][0].update(family="os.system"), "os.system"),
        (lambda c: c.update(priors=[{"values": {}, "distribution": {"class": "os", "arguments": {}}}]), "os"),
        (lambda c: c.update(priors=[{"values": {}, "distribution": {"class": "Gumbel", "arguments": {"x": 1}}}]), "x"),
        (lambda c: c["priors"][0]["values"].update(scale={"tensor": "7", "learned": False}), "7"),
        (lambda c: c["priors"][0]["values"].update(scale=-1.0), "positive"),
        (lambda c: c.update(calibration={"tuple": [1, 2, 3]}), "Error"),
        (lambda c: c.update(tied={"0.weight": "nothing"}), "nothing"),
    ],
)  # fmt: skip
def test_changed_configs_are_refused(change, words, broken):
    resealed(broken, change)
    refused(broken, words)


def test_changed_tensors_are_refused(broken):
    tensors = load_file(tensors_of(broken))
    name = "latents.0/weight.loc"
    for changed in (
        {key: t for key, t in tensors.items() if key != name},
        {**tensors, "latents.extra": torch.zeros(1)},
        {**tensors, name: tensors[name][:2].clone()},
        {**tensors, name: tensors[name].double()},
    ):
        resealed(broken, lambda config: None, changed)
        refused(broken, "loc|extra")


def test_no_pickle_is_read(broken):
    torch.save({"net": torch.zeros(1)}, tensors_of(broken))
    refused(broken, "damaged")
    resealed(broken, lambda c: c.update(sha256=user_files.digest_of(tensors_of(broken))))
    refused(broken)
