"""Stacks of images of different sizes: nothing that fills them up is ever seen, and a subject is never divided."""

import numpy as np
import pytest
import torch

from mcrepar.data.batches import channel_statistics, hold_out
from mcrepar.data.dataset import OUTSIDE
from mcrepar.data.scans import Scan, Scans, stacked
from mcrepar.errors import ParameterError
from tests.conftest import seeded


def scans(extents=((6, 5, 4), (4, 7, 4)), patch=(3, 4, 2), subjects=None, patches=2):
    rng, images, labels, about = seeded(0), [], [], []
    for k, extent in enumerate(extents):
        images.append(torch.randint(1, 256, (2, *extent), generator=rng).to(torch.uint8))
        labels.append(torch.randint(3, extent, generator=rng).to(torch.uint8))
        subject = f"s{k}" if subjects is None else subjects[k]
        about.append(Scan(f"scan{k}", subject, extent, np.eye(4), extent))
    return stacked(images, labels, about, patch, patches), images, labels


def test_images_come_back_as_they_were():
    whole, images, labels = scans()
    assert whole.x.shape == (2, 2, 6, 7, 4)
    for k, (image, label) in enumerate(zip(images, labels, strict=True)):
        found, y = whole.image(k)
        assert torch.equal(found, image)
        assert torch.equal(y, label)
    assert whole.voxels == sum(label.numel() for label in labels) == len(whole.labels)
    assert int(whole.labels.max()) < 3


def test_the_size_is_that_of_a_patch_and_an_epoch_has_several():
    whole, _, _ = scans()
    assert (whole.size, whole.window, whole.repeats, len(whole)) == ((3, 4, 2), (3, 4, 2), 2, 2)


def test_patches_are_never_of_what_fills_up():
    whole, _, _ = scans()
    assert int(whole.middle().y.max()) < 3
    for part in (whole.middle(), whole.tiled()):
        assert int(part.x.min()) > 0
    x, y = whole.random_patches(torch.tensor([0, 1] * 20), 3, seeded(1))
    assert (x.shape, y.shape) == ((40, 2, 3, 4, 2), (40, 3, 3, 4, 2))
    assert int(x.min()) > 0
    assert bool(((y > 0).sum(1) == 1).all())  # one class for every voxel


def test_random_labels_are_those_of_their_voxels():
    whole, _, labels = scans()
    coded = Scans(labels[0][None, None], labels[0][None], whole.about[:1], (3, 4, 2))  # intensity is the label
    x, y = coded.random_patches(torch.zeros(10, dtype=torch.int64), 3, seeded(2))
    assert torch.equal(y.argmax(1), x[:, 0].long())


def test_a_patch_of_two_lengths_is_a_slice():
    whole, images, labels = scans(patch=(3, 4))
    assert whole.window == (3, 4, 1)
    middle = whole.middle()
    assert (middle.x.shape, middle.y.shape) == ((2, 2, 3, 4), (2, 3, 4))
    assert torch.equal(middle.x[0], images[0][:, 1:4, 0:4, 1])
    assert torch.equal(middle.y[0], labels[0][1:4, 0:4, 1])
    x, y = whole.random_patches(torch.tensor([1]), 3, seeded(3))
    assert (x.shape, y.shape) == ((1, 2, 3, 4), (1, 3, 3, 4))


@pytest.mark.parametrize("patch", [(3, 4, 2), (4, 3, 3), (4, 3)])
def test_tiles_count_every_voxel_once(patch):
    whole, _, labels = scans(extents=((6, 4, 4), (5, 7, 3)), patch=patch)
    tiled = whole.tiled()
    every = torch.cat([label.flatten() for label in labels])
    assert sorted(tiled.labels.tolist()) == sorted(every.tolist())
    assert int(tiled.y[tiled.y != OUTSIDE].max()) < 3


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_subject_is_in_one_part(share):
    subjects = ["a", "a", "b", "b", "c", "d"]
    whole, _, _ = scans(extents=((4, 4, 4),) * 6, subjects=subjects)
    rest, held = hold_out(whole, share, seed=0)
    parts = [{scan.subject for scan in part.about} for part in (rest, held)]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == set(subjects)
    assert len(parts[1]) == round(4 * share)
    assert isinstance(held, Scans)
    assert len(rest) + len(held) == 6


def test_one_subject_cannot_be_divided():
    whole, _, _ = scans(subjects=["a", "a"])
    with pytest.raises(ParameterError, match=r"1 subjects, held out: one of the two parts would be empty"):
        hold_out(whole, 0.5, seed=0)


@pytest.mark.parametrize("extents", [((4, 4, 4),) * 2, ((6, 5, 4), (4, 7, 4), (3, 4, 2))])
def test_statistics_are_those_of_all_voxels_and_of_nothing_else(extents):
    whole, images, _ = scans(extents=extents)
    mean, std = channel_statistics(whole)
    every = torch.cat([image.flatten(1) for image in images], 1).double() / 255
    assert mean.tolist() == pytest.approx(every.mean(1).tolist())
    assert std.tolist() == pytest.approx(every.std(1, correction=0).tolist())
