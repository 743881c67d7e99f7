import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import mcrepar
from mcrepar.errors import McreparError, ParameterError
from mcrepar.likelihoods import Categorical, Normal
from mcrepar.workbench.training import checkpoint, train
from mcrepar.workbench.training.config import TrainConfig, read_config
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.setup import (
    Facts,
    Units,
    as_input,
    build_likelihood,
    build_network,
    open_run,
    read_data,
)
from mcrepar.workbench.training.task import Task
from tests.data.test_folder import picture
from tests.workbench.training.tiny import config, write_images, write_numbers


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    write_images(folder)
    return train(config(folder))


def facts_of(c: TrainConfig) -> Facts:
    dataset, training, _ = read_data(c)
    return Facts.of(dataset, training)


def test_the_held_out_part_is_the_same_every_time(tmp_path):
    write_images(tmp_path)
    (_, a, b), (_, c, d) = (read_data(config(tmp_path)) for _ in range(2))
    assert (len(a), len(b)) == (36, 12)
    assert torch.equal(a.x, c.x)
    assert torch.equal(b.x, d.x)
    assert torch.bincount(b.y).tolist() == [6, 6]


def test_data_without_training_labels_are_refused(tmp_path):
    np.savez(tmp_path / "data.npz", images=np.zeros((4, 1, 8, 8), np.uint8))
    with pytest.raises(ParameterError, match="no labelled training part"):
        read_data(config(tmp_path))


def test_two_validation_parts_are_refused(tmp_path):
    x, y = np.zeros((4, 1, 8, 8), np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_val=x, y_val=y, x_test=x, y_test=y)
    with pytest.raises(ParameterError, match="a validation part of its own"):
        read_data(config(tmp_path, validation=0.5))


def test_patience_without_validation_is_refused(tmp_path):
    write_images(tmp_path)
    with pytest.raises(ParameterError, match="no validation data"):
        read_data(config(tmp_path, validation=0.0, patience=2))


def test_facts_survive_json(tmp_path):
    write_images(tmp_path)
    facts = facts_of(config(tmp_path))
    assert Facts.read(json.loads(json.dumps(facts.as_dict()))) == facts


def test_input_is_standardised_in_the_layout_of_the_network(tmp_path):
    write_images(tmp_path)
    c = config(tmp_path)
    _, training, _ = read_data(c)
    x = as_input(training.x.expand(-1, 1, -1, -1), c, facts_of(c))
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_a_network_for_other_data_is_refused(tmp_path):
    write_images(tmp_path)
    for options in ({"model": "unet3d_encoder", "model_options": {}}, {"model": "nosuch"}, {"model_options": {"a": 1}}):
        with pytest.raises(ParameterError):
            build_network(config(tmp_path, **options), facts_of(config(tmp_path)))


def test_options_without_effect_are_refused(tmp_path):
    write_images(tmp_path)
    with pytest.raises(ParameterError, match=r"--noise 2\.0: y are classes"):
        Task.of(config(tmp_path, noise=2.0), World())
    with pytest.raises(ParameterError, match=r"--validation 0\.01: .* would be empty"):
        read_data(config(tmp_path, validation=0.01))
    write_numbers(tmp_path)
    with pytest.raises(ParameterError, match="--augment crop_flip: the data are rows of numbers"):
        Task.of(config(tmp_path, model="fcnet", model_options={"hidden": [8]}), World())


@pytest.mark.parametrize("text", ["{}", '{"log_scale": [1, 2]}', "[]", "no"])
def test_a_damaged_likelihood_is_named(text, tmp_path):
    write_numbers(tmp_path)
    folder = train(config(tmp_path, model="fcnet", model_options={"hidden": [8]}, augment="none", epochs=1))
    (folder / "model" / "likelihood.json").write_text(text)
    with pytest.raises(ParameterError, match=r"likelihood\.json: it is missing or damaged"):
        open_run(folder)


def test_regression_is_in_the_units_of_y(tmp_path):
    write_numbers(tmp_path)
    c = config(tmp_path, model="fcnet", model_options={"hidden": [8]}, noise="heteroscedastic", augment="none")
    facts = facts_of(c)
    mean, std = facts.target
    assert mean == pytest.approx(5000, abs=100)
    net = build_network(c, facts)
    assert isinstance(net, Units)
    nn.init.zeros_(net.net.layers[-1].weight)
    nn.init.zeros_(net.net.layers[-1].bias)
    out = net(torch.zeros(1, 3))
    assert out.tolist()[0] == pytest.approx([mean, np.log(std)], rel=1e-5)
    learned = build_likelihood(config(tmp_path), facts)
    assert isinstance(learned, Normal)
    assert learned.log_scale.item() == pytest.approx(np.log(std))
    assert isinstance(build_likelihood(c, facts), Normal)


def test_classes_have_a_categorical_likelihood(tmp_path):
    write_images(tmp_path)
    assert isinstance(build_likelihood(config(tmp_path), facts_of(config(tmp_path))), Categorical)


def test_open_run_gives_the_model_that_was_saved(finished):
    run = open_run(finished)
    assert run.note == ""
    assert not run.bnn.training
    assert run.facts.classes == ("0", "1")
    assert run.bnn.calibration.kept is None  # no data are stored, but statistics
    assert run.bnn.calibration.pooled is not None
    again = mcrepar.load(finished / "model", build_network(run.config, run.facts))
    assert all(torch.equal(t, run.bnn.state_dict()[name]) for name, t in again.state_dict().items())
    assert len(run.dataset.train) == 36
    assert len(run.dataset.validation) == 12
    x = run.prepare(run.dataset.test.x)
    assert run.calibrate() == ""
    p = mcrepar.predict(run.bnn, x, draws=3, likelihood=run.likelihood)
    assert p.probs.shape == (12, 2)
    assert torch.equal(run.mean, torch.tensor(run.facts.mean))
    assert torch.equal(run.std, torch.tensor(run.facts.std))


def test_open_run_needs_no_data_for_the_model(finished, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("config.yaml", "run.json"):
        (moved / name).write_text((finished / name).read_text().replace("data.npz", "gone.npz"))
    (moved / "model").symlink_to(finished / "model")
    run = open_run(moved)
    assert run.bnn.kl() > 0
    with pytest.raises(ParameterError, match="gone"):
        _ = run.dataset


@pytest.mark.parametrize("kept", [False, True])
def test_an_unfinished_run_opens_with_a_note(kept, finished, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "config.yaml").write_text((finished / "config.yaml").read_text())
    (moved / "run.json").write_text((finished / "run.json").read_text().replace('"finished"', '"stopped"'))
    if kept:
        (moved / "checkpoints").symlink_to(finished / "checkpoints")
        run = open_run(moved)
        assert "stopped" in run.note
        assert "step 9" in run.note
        done = open_run(finished).bnn.state_dict()
        tensors = checkpoint.tensors_of(run.bnn)  # pooled norm statistics are of the saved model only
        assert all(torch.equal(t, done[name]) for name, t in tensors.items())
    else:
        with pytest.raises(ParameterError, match="no model yet"):
            open_run(moved)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="holds no run"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ParameterError, match="holds no run"):
        open_run(tmp_path)


def test_a_model_of_another_network_is_refused(finished, tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    other = replace(read_config(finished / "config.yaml"), model_options={"blocks": 2})
    (moved / "config.yaml").write_text(other.to_yaml())
    (moved / "run.json").write_text((finished / "run.json").read_text())
    (moved / "model").symlink_to(finished / "model")
    with pytest.raises(McreparError, match="what was saved has no"):
        open_run(moved)


def test_damaged_images_are_left_out_and_counted_in_the_record(tmp_path):
    for part in ("train", "test"):
        for kind in ("a", "b"):
            for i in range(4):
                picture(tmp_path / "images" / part / kind / f"{i}.png", (8, 8), "L")
    (tmp_path / "images" / "train" / "a" / "2.png").write_bytes(b"no image")
    given = {"data": "folder", "root": str(tmp_path / "images"), "model": "small_conv", "model_options": {}}
    given |= {"validation": 0.0, "augment": "none", "epochs": 1}
    with pytest.raises(ParameterError, match="--skip-damaged"):
        read_data(config(tmp_path, **given))
    with pytest.warns(UserWarning, match=r"1 of 16 files are damaged and were left out: train/a/2\.png"):
        folder = train(config(tmp_path, **given, skip_damaged=True))
    record = json.loads((folder / "run.json").read_text())
    assert (record["data"]["skipped"], record["data"]["count"]) == (1, 7)
    with pytest.warns(UserWarning, match="1 of 16"):
        assert open_run(folder).dataset.skipped == ("train/a/2.png",)


def test_skipping_needs_data_of_single_files(tmp_path):
    write_images(tmp_path)
    with pytest.raises(ParameterError, match="no option 'skip_damaged'"):
        read_data(config(tmp_path, skip_damaged=True))
