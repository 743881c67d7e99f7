import pickle
import pickletools
import struct
from fractions import Fraction

import numpy as np
import pytest

from mcrepar.data import plain_pickle
from mcrepar.data.plain_pickle import read_plain_pickle
from mcrepar.errors import ParameterError

CONTENT = {
    "batch_label": "testing batch 1 of 1",
    "labels": [6, 9, 300, 70000, -5],
    "data": np.arange(24, dtype=np.uint8).reshape(4, 6),
    "wide": np.array([[1, -2], [3, 2**40]], dtype=np.int64),
    "names": [b"a.png", "é.png", None, True, False, 0.5],
    "nested": {"empty": [], "none": {}},
}


def same(a, b):
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in b)
    if isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_it_reads_what_python_and_numpy_write(protocol):
    assert same(read_plain_pickle(pickle.dumps(CONTENT, protocol=protocol)), CONTENT)


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_order_and_the_bytes_of_an_array_are_kept(order):
    array = np.asarray(np.arange(6, dtype=">i4").reshape(2, 3), order=order)
    assert np.array_equal(read_plain_pickle(pickle.dumps(array, protocol=2)), array)


def python2_batch(labels, rows):
    """A batch byte by byte as Python 2 wrote it: protocol 2, text as byte strings, numpy under its old name."""

    def text(value):
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    count = b"".join(b"K" + bytes([label]) for label in labels)
    dtype = b"cnumpy\ndtype\nq\x05(" + text(b"u1") + b"K\x00K\x01tq\x06Rq\x07(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"M" + struct.pack("<H", rows.shape[0]) + b"M" + struct.pack("<H", rows.shape[1]) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x03(cnumpy\nndarray\nq\x04K\x00\x85" + text(b"b") + b"tR"
    array += b"(K\x01" + shape + dtype + b"\x89" + text(rows.tobytes()) + b"tb"
    items = text(b"labels") + b"](" + count + b"e" + text(b"data") + array
    return b"\x80\x02}q\x01(" + items + b"u."


def test_it_reads_the_bytes_of_python_2():
    rows = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    raw = python2_batch([3, 250, 0], rows)
    oracle = pickle.loads(raw, encoding="bytes")  # noqa: S301
    content = read_plain_pickle(raw)
    assert content[b"labels"] == oracle[b"labels"] == [3, 250, 0]
    assert np.array_equal(content[b"data"], rows)
    assert np.array_equal(oracle[b"data"], rows)


class Shell:
    def __reduce__(self):
        import os

        return os.system, ("exit 1",)


class Getter:
    def __reduce__(self):
        return getattr, (CONTENT, "keys")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        Shell(),
        [Getter()],
        {"a": Fraction(1, 3)},
        {1, 2},
        range(3),
        np.float64(1.0),
        np.array(["a"], dtype=object),
        np.ones(2),
    ],
    ids=["shell", "getattr", "class", "set", "range", "scalar", "objects", "floats"],
)
def test_it_refuses_everything_else(value, protocol):
    with pytest.raises(ParameterError, match="asks for"):
        read_plain_pickle(pickle.dumps(value, protocol=protocol))


def test_it_says_which_name_was_asked_for():
    with pytest.raises(ParameterError, match=r"asks for posix\.system, which plain data does not need"):
        read_plain_pickle(pickle.dumps(Shell(), protocol=2))


def test_no_name_is_imported_under_another_spelling():
    for name in ("os\nsystem", "builtins\neval", "numpy\nload", "numpy.core.multiarray\nfromfile", "_codecs\ndecode"):
        with pytest.raises(ParameterError, match="asks for"):
            read_plain_pickle(b"\x80\x02c" + name.encode() + b"\n.")


def test_a_call_of_a_value_is_refused():
    with pytest.raises(ParameterError, match="asks for a call"):
        read_plain_pickle(b"\x80\x02U\x01aU\x01b\x85R.")


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_cut_anywhere_is_refused(protocol):
    raw = pickletools.optimize(pickle.dumps(CONTENT, protocol=protocol))
    for length in range(len(raw)):
        with pytest.raises(ParameterError):
            read_plain_pickle(raw[:length])


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # by the standard library
def test_damage_gives_a_value_or_our_error_and_nothing_else():
    rng = np.random.default_rng(0)
    raw = bytearray(pickle.dumps(CONTENT, protocol=2))
    refused = 0
    for _ in range(2000):
        place, old = int(rng.integers(len(raw))), None
        old, raw[place] = raw[place], int(rng.integers(256))
        try:
            read_plain_pickle(bytes(raw))
        except ParameterError:
            refused += 1
        raw[place] = old
    assert refused > 500


def nested(kind, depth):
    value = kind([1])
    for _ in range(depth):
        value = kind([value, value])
    return value


def test_parts_that_are_shared_do_not_multiply():
    loop = []
    loop.append(loop)
    shared = [loop, nested(list, 40), nested(tuple, 40), [d := {"a": 1}, d]]
    for value in shared:
        with pytest.raises(ParameterError, match=r"a (list|tuple|dict) in two places"):
            read_plain_pickle(pickle.dumps(value, protocol=2))


def test_a_key_that_is_deep_is_refused():
    """Its hash would overflow the stack of the interpreter."""
    deep = b"\x80\x02}K\x01" + b"\x85" * 200_000 + b"K\x01s."
    with pytest.raises(ParameterError, match="a key that is a tuple"):
        read_plain_pickle(deep)


def test_instructions_are_counted(monkeypatch):
    monkeypatch.setattr(plain_pickle, "MOST_INSTRUCTIONS", 1000)
    with pytest.raises(ParameterError, match="it asks for more than 1,000 instructions"):
        read_plain_pickle(b"\x80\x02" + b"N" * 1_000_000)
