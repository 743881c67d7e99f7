import gzip
import struct

import numpy as np
import pytest

from mcrepar.data import load
from mcrepar.errors import ParameterError

RNG = np.random.default_rng(0)
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def arrays():
    return [
        RNG.integers(0, 256, (20, 28, 28)),
        np.arange(20) % 10,
        RNG.integers(0, 256, (5, 28, 28)),
        np.array([9, 8, 7, 6, 5]),
    ]


def write(folder, content, rename=lambda name: name, pack=lambda raw: raw):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(NAMES, content, strict=True):
        (folder / rename(name)).write_bytes(pack(idx(array)))


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("form", ["plain", "gz", "dots", "torchvision"])
def test_all_four_files(tmp_path, name, form):
    content = arrays()
    if form == "gz":
        write(tmp_path, content, lambda n: f"{n}.gz", gzip.compress)
    elif form == "dots":
        write(tmp_path, content, lambda n: n.replace("-idx", ".idx"))
    else:
        place = {"mnist": "MNIST/raw", "fashion_mnist": "FashionMNIST/raw"}[name] if form == "torchvision" else ""
        write(tmp_path / place, content)
    data = load(name, root=tmp_path)
    for array, tensor in zip(content, (data.train.x[:, 0], data.train.y, data.test.x[:, 0], data.test.y), strict=True):
        assert np.array_equal(tensor.numpy(), array)
    assert (data.channels, data.size) == (1, (28, 28))
    assert len(data.classes) == 10


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (0, lambda raw: raw[:-9], r"train-images.*15,687 bytes, and its header of \(20, 28, 28\) asks for 15,696"),
        (2, lambda raw: raw + b"x", "t10k-images.*3,937 bytes.*asks for 3,936"),
        (0, lambda raw: raw[:4] + struct.pack(">3I", 2**22, 2**21, 2**21), r"asks for 18,446,744,073,709,551,632"),
        (1, lambda raw: b"", "train-labels.*its 0 bytes start with nothing"),
        (1, lambda raw: raw[:6], "its 6 bytes start with 00 00 08 01"),
        (3, lambda raw: b"<html>no such page</html>", "t10k-labels.*start with 3c 68 74 6d. Use an idx file"),
        (3, lambda raw: b"\0\0\x0d\x01" + raw[4:], "00 00 0d 01.*in 1 dimensions, 00 00 08 01"),
        (3, lambda raw: idx(np.arange(4)), "it holds 4 labels for 5 images"),
        (3, lambda raw: idx(np.array([0, 1, 2, 3, 10])), "example 4 .* label 10"),
        (1, lambda raw: idx(np.arange(20) % 9), "no training example of class '9'"),
        (3, lambda raw: gzip.compress(raw)[:-4], "damaged gz archive"),
    ],
)
def test_bad_files(tmp_path, place, change, words):
    write(tmp_path, arrays())
    path = tmp_path / NAMES[place]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ParameterError, match=words):
        load("mnist", root=tmp_path)


def test_two_files_under_each_others_names(tmp_path):
    write(tmp_path, arrays())
    a, b = tmp_path / NAMES[0], tmp_path / NAMES[1]
    images, labels = a.read_bytes(), b.read_bytes()
    a.write_bytes(labels)
    b.write_bytes(images)
    with pytest.raises(ParameterError, match=r"train-images.*start with 00 00 08 01. Use .* 3 dimensions, 00 00 08 03"):
        load("mnist", root=tmp_path)


def test_images_of_another_size_in_the_test_set(tmp_path):
    content = arrays()
    content[2] = content[2][:, :20, :20]
    write(tmp_path, content)
    with pytest.raises(ParameterError, match=r"train has examples of \(1, 28, 28\), test of \(1, 20, 20\)"):
        load("mnist", root=tmp_path)
