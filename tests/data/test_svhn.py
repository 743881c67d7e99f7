import os
import zlib

import numpy as np
import pytest
from scipy.io import savemat

from mcrepar.data import files, load, svhn
from mcrepar.errors import ParameterError

RNG = np.random.default_rng(0)
LABELS = np.arange(20) % 10 + 1


def write(folder, name="test_32x32.mat", **changed):
    folder.mkdir(parents=True, exist_ok=True)
    content = {"X": RNG.integers(0, 256, (32, 32, 3, 20)).astype(np.uint8), "y": LABELS[:, None].astype(np.uint8)}
    savemat(folder / name, {k: v for k, v in {**content, **changed}.items() if v is not None}, do_compression=True)
    return content


@pytest.mark.parametrize("inside", ["", "SVHN"])
def test_both_files(tmp_path, inside):
    train, test = (write(tmp_path / inside, f"{part}_32x32.mat") for part in ("train", "test"))
    data = load("svhn", root=tmp_path)
    for part, content in ((data.train, train), (data.test, test)):
        assert np.array_equal(part.x.permute(2, 3, 1, 0).numpy(), content["X"])
        assert part.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 2  # the label 10 is the digit 0
    assert (data.channels, data.size, data.classes[0]) == (3, (32, 32), "0")


def test_the_test_file_is_enough_to_evaluate_with(tmp_path):
    write(tmp_path)
    data = load("svhn", root=tmp_path)
    assert data.train is None
    assert len(data.test) == 20


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"y": None}, "it holds X, without X or y. Use SVHN's format 2"),
        ({"y": LABELS[:7, None]}, r"X is uint8 of \(32, 32, 3, 20\), with 7 labels"),
        ({"X": np.zeros((32, 32, 3, 20))}, "X is float64"),
        ({"y": LABELS[:, None] - 1}, "labels go from 0 to 9"),
    ],
)
def test_other_contents_are_refused(tmp_path, changed, words):
    write(tmp_path, **changed)
    with pytest.raises(ParameterError, match=words):
        load("svhn", root=tmp_path)


@pytest.mark.parametrize("cut", [slice(0, 200), slice(0, 0), slice(5, None)])
def test_damaged_files_are_named_with_their_bytes(tmp_path, cut):
    write(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[cut])
    with pytest.raises(ParameterError, match=r"test_32x32.mat.*bytes are no whole MATLAB file"):
        load("svhn", root=tmp_path)


def test_a_folder_without_them_says_what_is_missing(tmp_path):
    with pytest.raises(ParameterError, match=r"a folder with test_32x32.mat"):
        load("svhn", root=tmp_path)


def test_a_flipped_bit_never_changes_a_packed_matrix(tmp_path):
    """Each is packed by zlib, whose checksum comes last."""
    content = write(tmp_path, X=np.zeros((32, 32, 3, 20), np.uint8))
    path = tmp_path / "test_32x32.mat"
    raw, refused = path.read_bytes(), 0
    for place in range(128, len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = load("svhn", root=tmp_path).test
        except ParameterError:
            refused += 1
        else:
            assert not found.x.any(), place
            assert np.array_equal(found.y, LABELS % 10)
    assert content["X"].shape[-1] == 20
    assert refused > 0.9 * (len(raw) - 128)


def test_a_matrix_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    write(tmp_path, X=np.zeros((32, 32, 3, 20), np.uint8))
    monkeypatch.setattr(files, "ALWAYS_UNPACKED", 10_000)
    with pytest.raises(ParameterError, match=r"is cut, or has more than [\d,]+ when unpacked"):
        load("svhn", root=tmp_path)


def test_cells_and_texts_are_passed_over(tmp_path):
    write(tmp_path, X="a text")
    with pytest.raises(ParameterError, match="it holds y, without X or y"):
        load("svhn", root=tmp_path)
    write(tmp_path, other=np.array([[1, "a"]], dtype=object))
    assert len(load("svhn", root=tmp_path).test) == 20


def test_what_stands_in_the_place_of_a_file_is_refused(tmp_path):
    write(tmp_path)
    path = tmp_path / "train_32x32.mat"
    os.mkfifo(path)
    with pytest.raises(ParameterError, match=r"train_32x32\.mat': it is no regular file"):
        load("svhn", root=tmp_path)
    path.unlink()
    path.symlink_to("nothing")
    with pytest.raises(ParameterError, match=r"train_32x32\.mat': there is no such file"):
        load("svhn", root=tmp_path)


def test_an_element_is_never_unpacked_beyond_its_bound():
    """Not even by one byte: the next element would then have no bound at all."""
    packed = zlib.compress(bytes(1001))
    assert svhn._unpacked(packed, 1001) == bytes(1001)
    with pytest.raises(ValueError, match="more than 1,000 when unpacked"):
        svhn._unpacked(packed, 1000)
