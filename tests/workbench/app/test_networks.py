"""Networks to look into: opened without a byte from outside the folder; what is damaged or too large is named."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import mcrepar
from mcrepar.errors import McreparError, ParameterError
from mcrepar.models import model
from mcrepar.workbench.app import networks as networks_module
from mcrepar.workbench.app.memory_budget import network_sides
from mcrepar.workbench.app.networks import NOISE, ZOO, stored_network, zoo_network
from mcrepar.workbench.app.runs import Runs
from mcrepar.workbench.training import train
from mcrepar.workbench.training.config import TrainConfig
from tests.workbench.app.example_run import write_run
from tests.workbench.training.tiny import config, write_images


class Tied(nn.Module):
    """Two names of one weight, a norm layer, a whole number among the buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    write_images(folder)
    train(config(folder, "runs/mine", epochs=1))
    return folder / "runs"


@pytest.fixture
def root(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "runs")


def whole_images(count: int = 5) -> dict[str, np.ndarray]:
    """What an evaluation stores of 8 x 8 images."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)
    probs = np.full((12, 2), 0.5, np.float32)
    zeros = np.zeros(12, int)
    return {"y": zeros, "label": zeros, "confidence": probs[:, 0], "probs": probs, "draws": np.array(10),
            "thumbnails": images, "thumbnail_indices": np.arange(count)}  # fmt: skip


def test_the_network_of_a_run_is_the_trained_one(root):
    network = stored_network(Runs(root), "mine")
    from mcrepar.workbench.training.setup import open_run

    assert str(network.bnn.diagnose()) == str(open_run(root / "mine").bnn.diagnose())
    assert network.inputs == NOISE
    assert network.x.shape == (32, 1, 8, 8)
    assert any("BatchNorm" in note for note in network.notes)


def test_stored_images_are_prepared_as_the_data_were(root):
    arrays = whole_images()
    twice = {name: np.concatenate([arrays[name]] * 2) for name in ("thumbnails", "thumbnail_indices")}
    np.savez(root / "mine" / "predictions.npz", **arrays | twice)  # an image may be stored as doubtful and as a mistake
    network = stored_network(Runs(root), "mine")
    data = json.loads((root / "mine" / "run.json").read_text())["data"]
    expected = (arrays["thumbnails"][..., 0] / 255 - data["mean"][0]) / data["std"][0]
    torch.testing.assert_close(network.x[:, 0], torch.tensor(expected, dtype=torch.float32))
    assert "5 images" in network.inputs


def test_images_of_another_size_and_damaged_ones_are_not_used(root):
    small = whole_images() | {"thumbnails": np.zeros((5, 4, 4, 1), np.uint8)}
    np.savez(root / "mine" / "predictions.npz", **small)
    assert stored_network(Runs(root), "mine").inputs == NOISE
    (root / "mine" / "predictions.npz").write_bytes(b"no archive")
    assert stored_network(Runs(root), "mine").inputs == NOISE


def test_data_outside_the_folder_are_not_read(root, trained):
    data = trained.parent / "data.npz"
    hidden = data.rename(data.with_suffix(".hidden"))
    try:
        assert stored_network(Runs(root), "mine").x is not None
    finally:
        hidden.rename(data)


def test_a_saved_network_needs_no_code(tmp_path):
    bnn = mcrepar.bayesian(Tied(), "normal", "laplace")
    mcrepar.save(bnn, tmp_path / "tied")
    network = stored_network(Runs(tmp_path), "tied")
    assert network.x is None
    assert str(network.bnn.diagnose()) == str(bnn.diagnose())
    assert [t.name for t in network.bnn.diagnose().tensors] == [t.name for t in bnn.diagnose().tensors]


@pytest.mark.parametrize("name", ["model", "checkpoints", "model/config.json"])
def test_links_do_not_lead_outside(root, tmp_path, name):
    path = root / "mine" / name
    outside = tmp_path / "outside"
    if path.exists():
        shutil.move(path, outside)
    else:
        outside.mkdir()
    path.symlink_to(outside)
    with pytest.raises(ParameterError, match="outside the folder of runs"):
        stored_network(Runs(root), "mine")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.json", "{}"),
        ("run.json", '{"status": "finished", "data": {"count": 1}}'),
        ("run.json", "nothing"),
        ("config.yaml", "model: nothing"),
        ("config.yaml", "[]"),
        ("model/config.json", "{}"),
    ],
)
def test_what_is_damaged_is_named(root, file, text):
    (root / "mine" / file).write_text(text)
    with pytest.raises(McreparError):
        stored_network(Runs(root), "mine")


def test_sizes_of_hostile_data_are_refused_before_they_are_allocated(root):
    path = root / "mine" / "run.json"
    kept = json.loads(path.read_text())
    kept["data"]["channels"] = 10**12
    path.write_text(json.dumps(kept))
    with pytest.raises(McreparError, match="weights"):
        stored_network(Runs(root), "mine")


def test_hostile_shapes_of_a_saved_network_are_refused(tmp_path):
    mcrepar.save(mcrepar.bayesian(nn.Linear(2, 1)), tmp_path / "one")
    path = tmp_path / "one" / "config.json"
    saved = json.loads(path.read_text())
    saved["random"][0]["shape"] = [10**9, 10**9]
    path.write_text(json.dumps(saved))
    with pytest.raises(ParameterError, match="too many weights"):
        stored_network(Runs(tmp_path), "one")
    path.write_text(json.dumps({"random": 5}))
    with pytest.raises(ParameterError, match="damaged"):
        stored_network(Runs(tmp_path), "one")


def test_more_bytes_than_a_page_is_made_of_are_refused(root, monkeypatch):
    monkeypatch.setattr(networks_module, "MOST_BYTES", 1000)
    with pytest.raises(ParameterError, match="more than 0 MB"):
        stored_network(Runs(root), "mine")


def test_a_folder_without_a_network_says_so(tmp_path):
    write_run(tmp_path / "one")
    with pytest.raises(ParameterError, match=r"config\.yaml"):
        stored_network(Runs(tmp_path), "one")


@pytest.mark.parametrize("posterior", ["radial", "gamma"])
def test_the_zoo_is_as_it_was_initialised(posterior):
    network = zoo_network("small_conv", posterior, "gamma" if posterior == "gamma" else "normal")
    assert network.bnn.diagnose().weights == sum(p.numel() for p in model("small_conv", size=(32, 32)).parameters())
    assert network.bnn.diagnose().moved == 0
    assert network.x.shape == (32, 3, 32, 32)
    scope = {}
    exec(compile(f"import torch, mcrepar\n{network.code}", "code", "exec"), scope)
    assert scope["x"].shape == network.x.shape
    assert scope["bnn"].diagnose().weights == network.bnn.diagnose().weights


@pytest.mark.parametrize("name", [name.removeprefix("zoo:") for name in ZOO])
def test_initial_weights_do_not_depend_on_what_other_threads_draw(name):
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        with networks_module._Seeded():
            found.append(torch.cat([p.detach().flatten() for p in model(name, size=network_sides(name)).parameters()]))
    assert found[0].std() > 0
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_the_zoo_has_every_network_of_a_class_or_none():
    names, rows = {name.removeprefix("zoo:") for name in ZOO}, mcrepar.models.MODELS
    assert names <= set(rows)
    assert not {rows[name].home for name in names} & {rows[name].home for name in set(rows) - names}
    assert set(networks_module._LEFT_OUT) <= {row.home for row in rows.values()}


@pytest.mark.parametrize(("name", "patch"), [("unet2d", (9, 9)), ("unet3d", (8, 8, 8))])
def test_the_code_of_a_segmentation_takes_the_patches_that_its_network_sees(tmp_path, name, patch):
    pytest.importorskip("nibabel")
    from tests.data.test_segmentation import study

    study(tmp_path, size=(12, 13, 14))
    options = {"width": 2, "halvings": 1, "norm": "group"}
    train(TrainConfig(data="segmentation", root=str(tmp_path), data_options={"patch": patch}, model=name,
                      model_options=options, epochs=1, out=str(tmp_path / "runs/one"), progress="none"))  # fmt: skip
    network, scope = stored_network(Runs(tmp_path / "runs"), "one"), {}
    exec(compile(network.code, "code", "exec"), scope)
    assert scope["x"].shape == (1, 1, *patch)
    assert scope["bnn"](scope["x"]).shape == (1, 3, *patch)
