import io
import zipfile

import numpy as np
import pytest
import torch

from mcrepar.data import load
from mcrepar.errors import ParameterError

RNG = np.random.default_rng(0)


def save(folder, name="mine.npz", **arrays):
    np.savez_compressed(folder / name, **arrays)
    return folder / name


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("shape", "layout", "wanted"),
    [
        ((6, 5), "auto", (5,)),
        ((6, 8, 9), "auto", (1, 8, 9)),
        ((6, 8, 9, 3), "auto", (3, 8, 9)),
        ((6, 3, 8, 9), "auto", (3, 8, 9)),
        ((6, 8, 9, 7), "auto", (1, 8, 9, 7)),
        ((6, 8, 9, 7, 1), "auto", (1, 8, 9, 7)),
        ((6, 4, 8, 9, 7), "auto", (4, 8, 9, 7)),
        ((6, 8, 9, 2), "last", (2, 8, 9)),
        ((6, 2, 8, 9), "first", (2, 8, 9)),
        ((6, 3, 8, 9), "none", (1, 3, 8, 9)),
    ],
)
def test_the_channels_are_found(tmp_path, shape, layout, wanted):
    x = pixels(*shape)
    y = np.arange(6) % 2
    data = load("arrays", root=save(tmp_path, x_train=x, y_train=y, x_test=x, y_test=y), layout=layout)
    assert (data.channels, *data.size) == wanted
    assert data.train.x.dtype == torch.uint8
    turned = np.moveaxis(x, -1, 1) if layout == "last" or shape[-1] in (1, 3) else x
    assert np.array_equal(data.train.x.numpy().reshape(6, *wanted), turned.reshape(6, *wanted))
    assert data.classes == ("0", "1")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, bool])
def test_other_numbers_become_float32(tmp_path, dtype):
    x = pixels(4, 5, 5).astype(dtype)
    y = np.array([0, 1, 1, 0])
    data = load("arrays", root=save(tmp_path, x_train=x, y_train=y, x_test=x, y_test=y))
    assert data.train.x.dtype == torch.float32
    assert np.array_equal(data.train.x.numpy()[:, 0], x.astype(np.float32))


def test_three_parts_and_names(tmp_path):
    parts = {
        f"{kind}_{part}": pixels(4, 5) if kind == "x" else np.arange(4) % 2
        for part in ("train", "val", "test")
        for kind in "xy"
    }
    data = load("arrays", root=save(tmp_path, **parts), classes=["cat", "dog"])
    assert list(data.parts) == ["train", "validation", "test"]
    assert data.classes == ("cat", "dog")
    assert np.array_equal(data.validation.x.numpy(), parts["x_val"])


def test_a_validation_part_serves_as_the_test_set(tmp_path):
    data = load(
        "arrays", root=save(tmp_path, x_train=pixels(4, 5), y_train=[0, 1, 0, 1], x_val=pixels(2, 5), y_val=[0, 1])
    )
    assert (len(data.train), data.validation, len(data.test)) == (4, None, 2)
    assert "validation part is the test set" in data.source


def test_a_regression(tmp_path):
    y = np.array([[0.5], [1.5], [-2.0]])
    data = load("arrays", root=save(tmp_path, x_train=np.eye(3), y_train=y, x_test=np.eye(3), y_test=y[:, 0]))
    assert data.classes == ()
    assert data.train.y.dtype == torch.float32
    assert data.train.y.tolist() == data.test.y.tolist() == [0.5, 1.5, -2.0]


def test_whole_numbers_that_are_floats_are_a_regression_with_a_warning(tmp_path):
    y = np.array([0.0, 1.0, 2.0])
    path = save(tmp_path, x_train=np.eye(3), y_train=y, x_test=np.eye(3), y_test=y)
    with pytest.warns(UserWarning, match=r"mine\.npz': its y are floats, .* whole numbers; .* y\.astype") as found:
        data = load("arrays", root=path)
    assert found[0].filename == __file__
    assert data.classes == ()
    assert data.train.y.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("key", ["x", "images"])
def test_images_without_labels_are_a_test_set_that_cannot_be_scored(tmp_path, key):
    data = load("arrays", root=save(tmp_path, **{key: pixels(3, 8, 8, 3)}, other=np.arange(3)))
    assert data.train is None
    assert not data.test.labelled
    assert data.test.y.tolist() == [-1, -1, -1]
    assert data.classes == ()


def test_a_labelled_test_set_alone(tmp_path):
    data = load("arrays", root=save(tmp_path, images=pixels(3, 8, 8), labels=np.array([2, 0, 2])))
    assert data.test.y.tolist() == [2, 0, 2]
    assert data.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        ({"a": pixels(3, 4), "b": np.arange(3)}, {}, "mine.npz': it holds a, b. Use x_train, y_train"),
        ({"x_train": pixels(3, 4), "x_test": pixels(3, 4)}, {}, "train has no labels"),
        ({"x_train": pixels(3, 4), "y_train": [0, 1, 0]}, {}, "no test part"),
        ({"x": pixels(3, 4), "y": [0, 1]}, {}, r"test has x of \(3, 4\), y of \(2,\)"),
        ({"x": pixels(0, 4), "y": np.arange(0)}, {}, "N at least 1"),
        ({"x": pixels(3), "y": [0, 1, 0]}, {}, r"x of \(3,\)"),
        ({"x": np.array(["a", "b"])[:, None], "y": [0, 1]}, {}, "x is <U1"),
        ({"x": pixels(3, 4, 4, 1, 1, 1), "y": [0, 1, 0]}, {}, "numbers in"),
        ({"x": pixels(2, 4), "y": np.array(["a", "b"])}, {}, "y is <U1"),
        ({"x": pixels(2, 4), "y": [0.5, 1]}, {"classes": ["a", "b"]}, "y is float64"),
        ({"x": pixels(2, 4), "y": [0, 1]}, {"layout": "middle"}, "auto, first, last, none"),
        ({"x": pixels(2, 4), "y": [0, 2]}, {"classes": ["a", "b"]}, "label 2"),
        ({"x": pixels(3, 4), "y": [0, 1, 10**12]}, {}, "the label 1000000000000 in 3 examples"),
        ({"x": np.array([[1.0], [np.nan]]), "y": [0, 1]}, {}, "x of test is not finite, first in example 1"),
        ({"x_train": pixels(3, 4), "y_train": [0, 0, 2], "x_test": pixels(1, 4), "y_test": [1]}, {}, "class '1'"),
        ({"x_train": pixels(2, 5, 5), "y_train": [0, 1], "x_test": pixels(1, 6, 6), "y_test": [1]}, {}, "of one size"),
        (
            {"x_train": pixels(2, 4), "y_train": [0, 0], "x_test": pixels(1, 4), "y_test": [0]},
            {},
            "'0' is its only class",
        ),
        ({"x": np.array([{}, {}], dtype=object), "y": [0, 1]}, {}, "pickled objects, which can run code"),
    ],
)
def test_bad_arrays(tmp_path, arrays, options, words):
    with pytest.raises(ParameterError, match=words):
        load("arrays", root=save(tmp_path, **arrays), **options)


def test_the_file_in_a_folder(tmp_path):
    with pytest.raises(ParameterError, match=r"0 .npz files; the folder .* holds nothing"):
        load("arrays", root=tmp_path)
    save(tmp_path, "one.npz", x=pixels(2, 4))
    assert len(load("arrays", root=tmp_path).test) == 2
    save(tmp_path, "two.npz", x=pixels(3, 4))
    with pytest.raises(ParameterError, match=r"2 .npz files; .* one\.npz, two\.npz. Use file="):
        load("arrays", root=tmp_path)
    assert len(load("arrays", root=tmp_path, file="two.npz").test) == 3
    with pytest.raises(ParameterError, match=r"three\.npz.*no such file; the folder .* holds one\.npz, two\.npz"):
        load("arrays", root=tmp_path, file="three.npz")


def test_damaged_files_and_files_of_other_kinds(tmp_path):
    raw = save(tmp_path, x=pixels(50, 40)).read_bytes()
    middle = len(raw) // 2
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "hello")
    np.save(tmp_path / "single.npy", np.arange(3))
    cases = {
        "truncated": (raw[:-30], rf"its {len(raw) - 30:,} bytes are no whole numpy file"),
        "flipped": (raw[:middle] + bytes([raw[middle] ^ 255]) + raw[middle + 1 :], "no whole numpy file"),
        "empty": (b"", "its 0 bytes"),
        "text": (b"x,y\n1,2\n", "they start with b'x,y"),
        "zip": (other.getvalue(), "Use x_train"),
        "single": ((tmp_path / "single.npy").read_bytes(), "one array without a name"),
    }
    for name, (content, words) in cases.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(ParameterError, match=words):
            load("arrays", root=tmp_path / f"{name}.npz")


def medmnist(shape, labels=lambda n: np.arange(n)[:, None] % 2):
    sizes = {"train": 6, "val": 3, "test": 4}
    images = {f"{part}_images": pixels(n, *shape) for part, n in sizes.items()}
    return images | {f"{part}_labels": labels(n).astype(np.uint8) for part, n in sizes.items()}


@pytest.mark.parametrize(
    ("shape", "wanted"), [((28, 28), (1, 28, 28)), ((28, 28, 3), (3, 28, 28)), ((28, 28, 28), (1, 28, 28, 28))]
)
def test_medmnist(tmp_path, shape, wanted):
    content = medmnist(shape)
    save(tmp_path, "adrenalmnist3d.npz", **content)
    save(tmp_path, "other.npz", x=pixels(2, 2))
    data = load("medmnist", root=tmp_path, file="adrenalmnist3d.npz", classes=("normal", "hyperplasia"))
    assert (data.channels, *data.size) == wanted
    assert [len(part) for part in data.parts.values()] == [6, 3, 4]
    assert data.train.y.tolist() == [0, 1] * 3
    turned = np.moveaxis(content["val_images"], -1, 1) if shape[-1] == 3 else content["val_images"][:, None]
    assert np.array_equal(data.validation.x.numpy(), turned)
    assert data.classes == ("normal", "hyperplasia")
    assert data.source == "adrenalmnist3d.npz"


def test_bad_medmnist(tmp_path):
    content = medmnist((4, 4))
    del content["val_labels"]
    with pytest.raises(ParameterError, match=r"without val_labels; it holds test_images, .*a file of MedMNIST"):
        load("medmnist", root=save(tmp_path, **content))
    several = medmnist((4, 4), lambda n: np.ones((n, 14)))
    with pytest.raises(ParameterError, match=r"train_labels has the shape \(6, 14\): several labels"):
        load("medmnist", root=save(tmp_path, **several))
