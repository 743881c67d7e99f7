import numpy as np
import pytest
from sklearn.datasets import load_digits

from mcrepar.data import load
from mcrepar.errors import ParameterError


def test_every_digit_is_there_once_with_its_grey_levels():
    data = load("digits")
    assert (len(data.train), len(data.test), data.size) == (1438, 359, (8, 8))
    pixels, labels = load_digits(return_X_y=True)
    ours = np.concatenate([part.x.numpy().reshape(-1, 64) * (16 / 255) for part in (data.train, data.test)]).round()
    together = np.column_stack([ours, np.concatenate([data.train.y, data.test.y])])
    oracle = np.column_stack([pixels, labels])
    assert np.array_equal(together[np.lexsort(together.T)], oracle[np.lexsort(oracle.T)])


def test_options_and_a_root_that_is_not_needed(tmp_path):
    assert len(load("digits", test_share=0.5, seed=3).test) == 898
    assert not load("digits", seed=1).test.x.equal(load("digits", seed=2).test.x)
    with pytest.raises(ParameterError, match="Use no root"):
        load("digits", root=tmp_path)
