"""Arrays that a view cannot compute with are named before it tries."""

import numpy as np
import pytest

from mcrepar.workbench.app.run_arrays import Damaged, checked
from tests.workbench.app.example_run import DATA, arrays

Y = np.linspace(0, 1, 50)
NUMBERS = {"y": Y, "mean": Y, "lower": Y - 1, "upper": Y + 1}


def test_whole_arrays_pass():
    assert set(checked(arrays())) == set(arrays())
    assert set(checked(NUMBERS)) == set(NUMBERS)


@pytest.mark.parametrize("name", ["y", "label", "probs", "draws"])
def test_a_missing_array_is_named(name):
    with pytest.raises(Damaged, match=f"it has no array {name!r}"):
        checked({key: array for key, array in arrays().items() if key != name})


@pytest.mark.parametrize("name", ["y", "label", "confidence", "probs", "entropy", "mutual_information", "thumbnails"])
def test_a_wrong_length_is_named(name):
    short = arrays()[name][:-1]
    with pytest.raises(Damaged, match="has the shape"):
        checked(arrays() | {name: short})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"y": np.full(DATA, 3)}, "y goes from 3 to 3"),
        ({"label": np.full(DATA, -1)}, "label goes from -1 to -1"),
        ({"label": np.full(DATA, "cat")}, "label is of type <U3"),
        ({"confidence": np.full(DATA, np.nan)}, "confidence goes from nan"),
        ({"confidence": np.full(DATA, 1.5)}, "confidence goes from 1.5"),
        ({"probs": np.zeros((DATA, 3, 2))}, r"probs has the shape \(400, 3, 2\), not \(400, any\)"),
        ({"draws": np.array(0)}, "draws goes from 0"),
        ({"draws": np.array([1, 2])}, "draws has the shape"),
        ({"thumbnail_indices": np.arange(60) + DATA}, "thumbnail_indices goes from 400"),
        ({"thumbnails": np.zeros((60, 2, 2, 3), np.uint16)}, "thumbnails are uint16"),
        ({"thumbnails": np.zeros((60, 2000, 2, 3), np.uint8)}, r"thumbnails are uint8 of \(60, 2000, 2, 3\)"),
        ({"thumbnails": np.zeros((60, 2, 2, 7), np.uint8)}, "thumbnails are uint8"),
        ({"ood_noise_confidence": np.ones((2, 2))}, "ood_noise_confidence has the shape"),
        ({"classes": np.arange(3)}, "classes is of type int64"),
        ({"classes": np.array([0x110000], np.uint32).view("U1")}, "classes are no names"),
        ({"y": np.zeros(0, int)}, "it holds 0 examples"),
        ({"y": np.zeros(2_000_000, int)}, "it holds 2,000,000 examples"),
    ],
)
def test_what_is_wrong_is_said(changed, words):
    with pytest.raises(Damaged, match=words):
        checked(arrays() | changed)


@pytest.mark.parametrize("name", ["mean", "lower", "upper"])
def test_a_regression_is_checked_too(name):
    with pytest.raises(Damaged, match="it has no array"):
        checked({key: array for key, array in NUMBERS.items() if key != name})
    with pytest.raises(Damaged, match=f"{name} has the shape"):
        checked(NUMBERS | {name: Y[:3]})
    with pytest.raises(Damaged, match=f"{name} goes from"):
        checked(NUMBERS | {name: np.full(50, np.inf)})


def test_names_of_classes_can_be_sent():
    assert checked(arrays() | {"classes": np.array(["a", "\ud800", "c"])})["classes"].tolist() == ["a", "?", "c"]
