"""Foreign data: how they are named, what is done to bring them to shape, and what is refused."""

import numpy as np
import pytest
import torch

from mcrepar import ParameterError
from mcrepar.data.dataset import Split
from mcrepar.workbench.evaluation.data_sets import read_ood
from tests.workbench.training.example_runs import CLASSES, npz, split


def images(n=6, size=(6, 6), channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *size, channels)).astype(np.uint8)


def test_names_and_options_of_a_reader(tmp_path):
    x = images()
    words = npz(tmp_path, x=x)
    foreign = read_ood(f"{words},as= my/set! ,layout=last", None, split(4), resize=False)
    assert foreign.name == "my_set"
    np.testing.assert_array_equal(foreign.split.x.numpy(), x.transpose(0, 3, 1, 2))
    assert foreign.notes == ()
    assert not foreign.split.labelled
    assert read_ood("arrays", str(tmp_path / "other.npz"), split(4), False).name == "arrays"


@pytest.mark.parametrize("words", ["arrays,", "arrays,root", "arrays,=3", "arrays,classes=[a,b", "arrays,classes={"])
def test_words_that_are_no_options(words):
    with pytest.raises(ParameterError, match="is no key=value"):
        read_ood(words, None, split(4), False)


def test_the_name_of_a_file_is_a_text(tmp_path, monkeypatch):
    npz(tmp_path, x=images())
    (tmp_path / "other.npz").rename(tmp_path / "2024")
    monkeypatch.chdir(tmp_path)
    assert len(read_ood("arrays,root=2024", None, split(4), False).split) == 6


def test_unknown_sets_and_options_are_refused_by_the_reader(tmp_path):
    with pytest.raises(ParameterError, match="no such data set"):
        read_ood("svhm", None, split(4), False)
    with pytest.raises(ParameterError, match="no option 'color'"):
        read_ood(npz(tmp_path, x=images()) + ",color=blue", None, split(4), False)


def test_one_channel_is_repeated(tmp_path):
    grey = images(channels=1)
    foreign = read_ood(npz(tmp_path, x=grey), None, split(4), False)
    for channel in range(3):
        np.testing.assert_array_equal(foreign.split.x[:, channel].numpy(), grey[..., 0])
    assert foreign.notes == ("its one channel was repeated 3 times",)


def test_three_channels_do_not_become_one(tmp_path):
    with pytest.raises(ParameterError, match="it has 3 channels, and the network takes 1"):
        read_ood(npz(tmp_path, x=images()), None, split(4, (1, 6, 6)), True)


def test_two_channels_do_not_become_three(tmp_path):
    with pytest.raises(ParameterError, match="it has 2 channels, and the network takes 3"):
        read_ood(npz(tmp_path, x=images(channels=2)) + ",layout=last", None, split(4), True)


def test_another_size_is_refused_or_resized(tmp_path):
    words = npz(tmp_path, x=images(size=(12, 12)))
    with pytest.raises(ParameterError, match=r"its data are 3 x 12 x 12, the run's own 3 x 6 x 6\. Use --resize"):
        read_ood(words, None, split(4), False)
    foreign = read_ood(words, None, split(4), True)
    assert foreign.split.x.shape == (6, 3, 6, 6)
    assert foreign.split.x.dtype == torch.uint8
    assert foreign.notes == ("resized from 12 x 12 to 6 x 6",)
    oracle = torch.nn.functional.interpolate(foreign.dataset.test.x.double(), (6, 6), mode="bilinear")
    assert (foreign.split.x.double() - oracle).abs().max() <= 0.5 + 1e-4  # rounded to whole numbers


def test_volumes_are_resized_too(tmp_path):
    volumes = np.random.default_rng(0).normal(size=(3, 8, 8, 8)).astype(np.float32)
    known = Split(torch.randn(4, 1, 4, 4, 4), torch.zeros(4, dtype=torch.int64))
    foreign = read_ood(npz(tmp_path, x=volumes) + ",layout=none", None, known, True)
    assert foreign.split.x.shape == (3, 1, 4, 4, 4)
    assert foreign.split.x.dtype == torch.float32


def test_another_kind_of_data_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="data of one kind"):
        read_ood(npz(tmp_path, x=np.zeros((3, 7), np.float32)), None, split(4), True)


def test_other_units_are_noticed(tmp_path):
    words = npz(tmp_path, x=images().astype(np.float32))
    (note,) = read_ood(words, None, split(4), False).notes
    assert "the scale alone may tell them apart" in note
    small = npz(tmp_path, "small.npz", x=images().astype(np.float32) / 255)
    assert read_ood(small, None, split(4), False).notes == ()


def test_a_list_is_written_in_brackets(tmp_path):
    words = npz(tmp_path, x=images(), y=np.arange(6) % 3) + ",classes=[cat,dog,owl],as=shifted"
    foreign = read_ood(words, None, split(4), False)
    assert foreign.dataset.classes == CLASSES
    assert foreign.name == "shifted"
