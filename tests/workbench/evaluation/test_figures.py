"""Which data are shown, and how images and volumes of any kind become small pictures."""

import numpy as np
import pytest
import torch

from mcrepar.workbench.evaluation.figures import LARGEST, chosen, thumbnails


def test_groups_by_doubt():
    doubt, wrong = np.array([0.4, 0.1, 0.3, 0.2]), np.array([True, False, True, False])
    places, groups = chosen(doubt, wrong, 3)
    assert {name: places[groups == name].tolist() for name in np.unique(groups)} == {
        "certain": [1, 3, 2], "uncertain": [0, 2, 3], "mistakes": [2, 0],
    }  # fmt: skip
    assert len(chosen(doubt, wrong, 0)[0]) == 0
    assert "mistakes" not in chosen(doubt, None, 3)[1]


def test_bytes_stay_bytes_and_numbers_fill_the_range():
    x = torch.randint(0, 256, (3, 3, 5, 4)).to(torch.uint8)
    np.testing.assert_array_equal(thumbnails(x, np.array([2, 0])), x[[2, 0]].permute(0, 2, 3, 1))
    numbers = thumbnails(torch.linspace(-3, 5, 20).view(1, 1, 5, 4), np.array([0]))
    assert (numbers.min(), numbers.max(), numbers.dtype) == (0, 255, np.uint8)
    assert not thumbnails(torch.full((1, 1, 4, 4), 7.0), np.array([0])).any()  # a constant has no range


@pytest.mark.parametrize(("channels", "shown"), [(1, 1), (2, 1), (3, 3), (5, 1)])
def test_other_numbers_of_channels_show_the_first(channels, shown):
    x = torch.randint(0, 256, (2, channels, 6, 6)).to(torch.uint8)
    pictures = thumbnails(x, np.array([0, 1]))
    assert pictures.shape == (2, 6, 6, shown)
    np.testing.assert_array_equal(pictures[..., 0], x[:, 0])


def test_large_images_are_made_small_by_averaging():
    pictures = thumbnails(torch.full((1, 1, 2 * LARGEST, LARGEST), 100, dtype=torch.uint8), np.array([0]))
    assert pictures.shape == (1, LARGEST, LARGEST // 2, 1)
    assert (pictures == 100).all()


def test_data_without_a_place_have_none():
    assert len(thumbnails(torch.zeros(3, 5), np.array([0, 1]))) == 0
    assert len(thumbnails(torch.zeros(3, 1, 5, 5), np.zeros(0, np.int64))) == 0
