import pytest
import torch

from mcrepar.data.dataset import Dataset, Split, check, checked_size, joined
from mcrepar.errors import ParameterError


def split(labels, size=(1, 4, 4)):
    return Split(torch.zeros(len(labels), *size), torch.tensor(labels))


@pytest.mark.parametrize(
    ("x", "y", "word"),
    [
        (torch.zeros(2, 1, 4), torch.zeros(3, dtype=torch.int64), "x holds 2 examples"),
        (torch.zeros(2, 1, 4), torch.zeros(2, 1), r"shape \(2, 1\)"),
        (torch.zeros(2, 1, 4, dtype=torch.float64), torch.zeros(2), "float64"),
        (torch.zeros(2, 1, 4), torch.zeros(2, dtype=torch.int32), "int32"),
        (torch.zeros(2), torch.zeros(2), r"shape \(2,\)"),
        (torch.zeros(0, 1, 4), torch.zeros(0), "empty"),
    ],
)
def test_a_split_refuses_what_does_not_fit(x, y, word):
    with pytest.raises(ParameterError, match=word):
        Split(x, y)


def test_labelled_and_at():
    assert split([0, 1]).labelled
    assert not split([-1, -1]).labelled
    assert split([0.5, -1.0]).labelled
    part = Split(torch.arange(6.0).view(3, 2), torch.tensor([5, 6, 7])).at(torch.tensor([2, 0]))
    assert part.x.tolist() == [[4, 5], [0, 1]]
    assert part.y.tolist() == [7, 5]


def test_a_dataset_names_its_parts_and_size():
    data = Dataset("mine", None, split([0]), split([1], (3, 5, 6, 7)), ("a", "b"))
    assert list(data.parts) == ["validation", "test"]
    assert (data.channels, data.size) == (3, (5, 6, 7))


def test_a_validation_part_alone_is_the_test_set():
    train, held = split([0, 1]), split([1])
    data = joined("mine", {"train": train, "validation": held}, ("a", "b"), source="file.npz")
    assert data.test is held
    assert data.validation is None
    assert "validation part is the test set" in data.source
    with pytest.raises(ParameterError, match="no test part"):
        joined("mine", {"train": train}, ("a", "b"), source="file.npz")


def test_check_returns_a_good_dataset():
    data = Dataset("mine", split([0, 1]), None, split([1]), ("a", "b"))
    assert check(data) is data
    assert check(Dataset("mine", None, None, split([-1]), ())).test.y.tolist() == [-1]
    assert check(Dataset("mine", None, None, split([0]), ("a",))).test.y.tolist() == [0]  # nothing is trained


NAN = torch.tensor([0.0, float("nan")])


@pytest.mark.parametrize(
    ("train", "test", "classes", "words"),
    [
        (split([0, 1], (1, 4, 5)), split([1]), ("a", "b"), r"train has examples of \(1, 4, 5\), test of \(1, 4, 4\)"),
        (split([0.0, 1.0]), split([1]), (), "y of train is torch.float32, of test torch.int64"),
        (
            split([0, 1]),
            split([0, 2, 3]),
            ("a", "b"),
            r"example 1 .* label 2, one of 2 out of range. Use labels 0 to 1",
        ),
        (split([0, -1]), split([1]), ("a", "b"), "the label -1"),
        (split([0, 0]), split([1]), ("a", "b"), "no training example of class 'b'"),
        (split([0, 0]), split([0]), ("a",), "'a' is its only class, .*. Use examples of two classes or more"),
        (Split(NAN.view(2, 1), torch.tensor([0.0, 1.0])), split([1.0], (1,)), (), "x of train .* example 1"),
        (Split(torch.zeros(2, 1), NAN), split([1.0], (1,)), (), "y of train .* example 1"),
    ],
)
def test_check_refuses(train, test, classes, words):
    with pytest.raises(ParameterError, match=words):
        check(Dataset("mine", train, None, test, classes, source="file.npz"))


def test_many_empty_classes_are_counted():
    with pytest.raises(ParameterError, match="'1', '2', '3', '4', '5' and 94 more"):
        check(Dataset("mine", split([0]), None, split([0]), tuple(str(i) for i in range(100))))


@pytest.mark.parametrize("size", [32, (), (4, 4, 4), (4, 3), (4, 4.0), ("4", "4"), "44", None, (True, 4)])
def test_a_size_is_so_many_whole_numbers(size):
    with pytest.raises(ParameterError, match=r"2 whole numbers of at least 4, such as \[32, 32\]"):
        checked_size("load", size, 2, least=4)
