import pytest
import torch

from mcrepar.errors import ParameterError
from mcrepar.workbench.training.distributed import World
from mcrepar.workbench.training.task import Task
from tests.workbench.training.tiny import config, write_images


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


def test_calibration_takes_training_data_as_they_are(tmp_path):
    t = task(tmp_path)
    batch, known = t.calibration(), t.plain(t.train)[0]
    assert len(batch) == 8
    assert all(bool((known == one).flatten(1).all(1).any()) for one in batch)
