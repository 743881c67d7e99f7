import json

import numpy as np
import pytest
import torch

from mcrepar.errors import ParameterError
from mcrepar.workbench.training import train
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.setup import open_run
from mcrepar.workbench.training.task import Facts, Task, read_data
from tests.data.test_folder import picture
from tests.workbench.training.tiny import config, facts_of, write_images, write_numbers


def task(folder, rank=0, size=1, **options) -> Task:
    if not (folder / "data.npz").exists():
        write_images(folder)
    return Task.of(config(folder, **options), World(rank, size))


def test_an_epoch_is_a_permutation_cut_into_batches(tmp_path):
    t = task(tmp_path, validation=0.0, batch_size=10)
    order = t.order(0)
    assert (t.batches, tuple(order.shape)) == (4, (4, 10))  # 48 data: 8 wait for another epoch
    assert len(order.unique()) == 40
    assert torch.equal(order, t.order(0))
    assert not torch.equal(order, t.order(1))


@pytest.mark.parametrize("size", [2, 4])
def test_processes_share_the_batches_of_one(size, tmp_path):
    whole = task(tmp_path).order(2)
    shares = [task(tmp_path, rank, size).order(2) for rank in range(size)]
    assert torch.equal(torch.cat(shares, 1).sort(1).values, whole.sort(1).values)
    assert torch.equal(torch.stack(shares, 2).flatten(1), whole)


def test_fewer_data_than_a_batch_are_one_batch(tmp_path):
    t = task(tmp_path, batch_size=1000)
    assert tuple(t.order(0).shape) == (1, 36)
    assert tuple(task(tmp_path, 1, 5, batch_size=1000).order(0).shape) == (1, 7)


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="a multiple of 5"):
        task(tmp_path, 0, 5, batch_size=12)


def test_augmentation_depends_on_step_and_rank(tmp_path):
    index = torch.arange(12)
    first, same = (task(tmp_path).batch(index, 3)[0] for _ in range(2))
    assert torch.equal(first, same)
    assert not torch.equal(first, task(tmp_path).batch(index, 4)[0])
    assert not torch.equal(first, task(tmp_path, 1, 2).batch(index, 3)[0])
    plain = task(tmp_path, augment="none")
    assert torch.equal(plain.batch(index, 3)[0], plain.plain(plain.train.at(index))[0])


def test_calibration_takes_training_data_augmented_as_in_training(tmp_path):
    def among(t: Task, batch: torch.Tensor) -> list[bool]:
        known = t.plain(t.train)[0]
        assert len(batch) == 8
        return [bool((known == one).flatten(1).all(1).any()) for one in batch]

    plain, moved = task(tmp_path, augment="none"), task(tmp_path)
    assert all(among(plain, plain.calibration()))
    assert not all(among(moved, moved.calibration()))
    assert torch.equal(moved.calibration(), moved.calibration())


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
    x = facts_of(c).preparation(c)(training.x)
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_options_without_effect_are_refused(tmp_path):
    write_images(tmp_path)
    with pytest.raises(ParameterError, match=r"--noise 2\.0: y are classes"):
        Task.of(config(tmp_path, noise=2.0), World())
    with pytest.raises(ParameterError, match=r"--validation 0\.01: .* would be empty"):
        read_data(config(tmp_path, validation=0.01))
    write_numbers(tmp_path)
    with pytest.raises(ParameterError, match="--augment crop_flip: the data are rows of numbers"):
        Task.of(config(tmp_path, model="fcnet", model_options={"hidden": [8]}), World())


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
