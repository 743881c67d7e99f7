"""Arrays in numpy's files: read as numpy does, within bounds, or refused by name."""

import io
import pickle
import zipfile

import numpy as np
import pytest

from mcrepar.data import files
from mcrepar.data.numpy_files import npz_names, read_npy, read_npz
from mcrepar.errors import ParameterError


def test_an_array_is_read_and_what_is_none_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    assert read_npy(tmp_path / "a.npy").tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-3])
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps([1, 2]))
    np.savez(tmp_path / "several.npz", a=np.arange(2))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, words in {
        "cut": r"cut\.npy': its 165 bytes are no whole numpy file",
        "text": "its 5 bytes are no whole numpy file .*start with b'hello'",
        "empty": "its 0 bytes",
        "pickle": "pickled objects",
        "objects": "pickled objects, which can run code",
        "gone": "no such file",
    }.items():
        with pytest.raises(ParameterError, match=words):
            read_npy(tmp_path / f"{name}.npy")
    with pytest.raises(ParameterError, match="several arrays"):
        read_npy(tmp_path / "several.npz")


def npy(header, body=b""):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (npy("{'descr': '<u1', 'shape': (2, 'fortran_order': False"), "no whole numpy file"),  # TokenError
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4611686018427387905, 4), }", b"1234"), "there are 4"),
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -4), }", b"1234"), "no whole numpy file"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }", b"12345678"), "there are 8"),
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }", b"1234"), "needs 3 bytes, and there are 4"),
        (npy("(" * 5000), "no whole numpy file"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"12345678"), "pickled objects"),
        (b"\x93NUMPY\x09\x00", "no whole numpy file"),
    ],
)
def test_headers_are_not_trusted(tmp_path, raw, words):
    (tmp_path / "a.npy").write_bytes(raw)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", raw)
    with pytest.raises(ParameterError, match=rf"a\.npy'.*{words}"):
        read_npy(tmp_path / "a.npy")
    with pytest.raises(ParameterError, match=rf"a\.npz'.*{words}"):
        read_npz(tmp_path / "a.npz", ["a"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_as_numpy_reads_them(tmp_path, save, order):
    kept = {
        "a": np.asarray(np.arange(12.0).reshape(3, 4), order=order),
        "b": np.array("text"),
        "c": np.array([], dtype=np.int32),
        "d": np.array([1, 2], dtype=">i2"),
        "e": np.array(True),
    }
    save(tmp_path / "a.npz", **kept)
    assert npz_names(tmp_path / "a.npz") == list(kept)
    found = read_npz(tmp_path / "a.npz", [*kept, "other"])
    for name, array in kept.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert found[name].flags.writeable


def test_what_nobody_asked_for_is_not_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", bytes(10**6))
        archive.writestr("objects.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"12345678"))
    monkeypatch.setattr(files, "ALWAYS_UNPACKED", 10_000)
    assert read_npz(tmp_path / "a.npz", ["x"])["x"].tolist() == [0, 1, 2]
    with pytest.raises(ParameterError, match=r"1,000,152 bytes when unpacked, more than"):
        read_npz(tmp_path / "a.npz", ["x", "bomb"])


def test_a_member_that_lies_about_its_size_is_refused(tmp_path):
    file = io.BytesIO()
    np.savez_compressed(file, x=np.zeros(100_000, np.uint8))
    raw, size = file.getvalue(), (100_000 + 128).to_bytes(4, "little")
    assert raw.count(size) >= 1
    (tmp_path / "a.npz").write_bytes(raw.replace(size, (1000).to_bytes(4, "little")))
    with pytest.raises(ParameterError, match="no whole numpy file"):
        read_npz(tmp_path / "a.npz", ["x"])


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_kinds_of_packing_are_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("x.npy", b"x" * 1000)
    with pytest.raises(ParameterError, match=rf"x\.npy is packed by method {method}"):
        read_npz(tmp_path / "a.npz", ["x"])


def test_a_flipped_bit_never_changes_an_array(tmp_path):
    whole = np.arange(300, dtype=np.int64) % 7
    np.savez_compressed(tmp_path / "a.npz", x=whole)
    raw, refused = (tmp_path / "a.npz").read_bytes(), 0
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "a.npz").write_bytes(damaged)
        try:
            found = read_npz(tmp_path / "a.npz", ["x"])
        except ParameterError:
            refused += 1
        else:
            assert np.array_equal(found.get("x", whole), whole)
    assert refused > len(raw) // 2
