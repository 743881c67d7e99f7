import pickle

import numpy as np
import pytest

from mcrepar.data import load
from mcrepar.errors import ParameterError

CLASSES = 10
RNG = np.random.default_rng(0)


def images(count):
    return RNG.integers(0, 256, (count, 3072), dtype=np.uint8)


def records(labels, pixels):
    return np.concatenate([np.asarray(labels, dtype=np.uint8).reshape(len(pixels), -1), pixels], axis=1).tobytes()


def batches10():
    """Five training batches with every class, and one test batch: {stem: (labels, pixels)}."""
    stems = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {stem: (RNG.permutation(CLASSES).tolist(), images(CLASSES)) for stem in stems}


@pytest.fixture
def binary10(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    content = batches10()
    for stem, (labels, pixels) in content.items():
        (folder / f"{stem}.bin").write_bytes(records(labels, pixels))
    return tmp_path, content


def write_python10(root, content, protocol=2):
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for stem, (labels, pixels) in content.items():
        batch = {
            b"batch_label": stem.encode(),
            b"labels": labels,
            b"data": pixels,
            b"filenames": [b"a.png"] * len(labels),
        }
        (folder / stem).write_bytes(pickle.dumps(batch, protocol=protocol))
    return folder


def expect10(data, content):
    *train, test = content.values()
    assert data.train.y.tolist() == [label for labels, _ in train for label in labels]
    assert np.array_equal(data.train.x.numpy(), np.concatenate([p for _, p in train]).reshape(-1, 3, 32, 32))
    assert data.test.y.tolist() == test[0]
    assert np.array_equal(data.test.x.numpy(), test[1].reshape(-1, 3, 32, 32))
    assert data.classes[3] == "cat"


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_binary_batches(binary10, inside):
    root, content = binary10
    data = load("cifar10", root=root / inside)
    expect10(data, content)
    assert (
        data.source
        == "data_batch_1.bin, data_batch_2.bin, data_batch_3.bin, data_batch_4.bin, data_batch_5.bin, test_batch.bin"
    )


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_python_batches(tmp_path, protocol):
    content = batches10()
    write_python10(tmp_path, content, protocol)
    expect10(load("cifar10", root=tmp_path), content)


def test_a_pixel_is_where_the_format_says(tmp_path, binary10):
    """Byte 1 + 1024 c + 32 row + column of a record."""
    root, _ = binary10
    raw = (root / "cifar-10-batches-bin" / "test_batch.bin").read_bytes()
    assert int(load("cifar10", root=root).test.x[2, 1, 5, 7]) == raw[2 * 3073 + 1 + 1024 + 32 * 5 + 7]


@pytest.mark.parametrize("kind", ["fine", "coarse"])
@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar100(tmp_path, kind, form):
    fine, pixels = RNG.permutation(100), images(100)
    labels = {"coarse": fine % 20, "fine": fine}
    names = {k: [f"{k}_{i}" for i in range(n)] for k, n in (("fine", 100), ("coarse", 20))}
    if form == "binary":
        for file in ("train.bin", "test.bin"):
            (tmp_path / file).write_bytes(records(np.stack([labels["coarse"], labels["fine"]], axis=1), pixels))
        for k, listed in names.items():
            (tmp_path / f"{k}_label_names.txt").write_text("\n".join(listed) + "\n")
    else:
        for file in ("train", "test"):
            batch = {f"{k}_labels".encode(): v.tolist() for k, v in labels.items()} | {b"data": pixels}
            (tmp_path / file).write_bytes(pickle.dumps(batch, protocol=2))
        meta = {f"{k}_label_names".encode(): [name.encode() for name in listed] for k, listed in names.items()}
        (tmp_path / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    data = load("cifar100", root=tmp_path, labels=kind)
    assert data.train.y.tolist() == labels[kind].tolist()
    assert np.array_equal(data.test.x.numpy(), pixels.reshape(-1, 3, 32, 32))
    assert data.classes == tuple(names[kind])


def test_cifar100_without_names_has_numbers_and_with_too_few_an_error(tmp_path):
    for file in ("train.bin", "test.bin"):
        (tmp_path / file).write_bytes(records([[i % 20, i] for i in range(100)], images(100)))
    assert load("cifar100", root=tmp_path).classes[99] == "99"
    (tmp_path / "fine_label_names.txt").write_text("apple\nbaby\n")
    with pytest.raises(ParameterError, match=r"fine_label_names\.txt.*it names 2 fine classes"):
        load("cifar100", root=tmp_path)
    with pytest.raises(ParameterError, match="fine or coarse"):
        load("cifar100", root=tmp_path, labels="medium")


@pytest.mark.parametrize("severity", [1, 5])
def test_corrupted_images(tmp_path, severity):
    pixels = RNG.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "fog.npy", pixels)
    labels = RNG.integers(0, 10, 20, dtype=np.uint8)
    np.save(tmp_path / "labels.npy", labels)
    data = load("cifar10_c", root=tmp_path, corruption="fog", severity=severity)
    assert data.train is None
    chosen = slice(4 * (severity - 1), 4 * severity)
    assert data.test.y.tolist() == labels[chosen].tolist()
    assert np.array_equal(data.test.x.numpy(), pixels[chosen].transpose(0, 3, 1, 2))
    assert data.source == f"fog.npy, severity {severity}"


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        ({}, {}, r"Use a folder with labels\.npy"),
        ({"labels": np.zeros(10, np.uint8)}, {"corruption": "fog"}, "no such file.*CIFAR-10-C"),
        (
            {"labels": np.zeros(5, np.uint8), "snow": np.zeros((5, 32, 32, 3), np.uint8)},
            {"corruption": "fog"},
            "corruption= one of snow",
        ),
        ({"labels": np.zeros(5, np.uint8), "fog": np.zeros((5, 32, 32), np.uint8)}, {}, r"uint8 of \(5, 32, 32\)"),
        ({"labels": np.zeros(5, np.uint8), "fog": np.zeros((4, 32, 32, 3), np.uint8)}, {}, "five severities"),
        ({"labels": np.zeros(4, np.uint8), "fog": np.zeros((5, 32, 32, 3), np.uint8)}, {}, "5 whole numbers"),
        ({"labels": np.full(5, 11, np.uint8), "fog": np.zeros((5, 32, 32, 3), np.uint8)}, {}, "label 11"),
        ({"labels": np.zeros(5, np.uint8)}, {"severity": 6}, "1 to 5"),
    ],
)
def test_bad_corrupted_sets(tmp_path, files, options, words):
    for name, array in files.items():
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(ParameterError, match=words):
        load("cifar10_c", root=tmp_path, **{"corruption": "fog", **options})


def test_a_truncated_binary_batch_is_named_with_its_bytes(binary10):
    root, _ = binary10
    path = root / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(
        ParameterError, match=r"data_batch_3\.bin.*its 30,723 bytes are no whole number of records of 3,073"
    ):
        load("cifar10", root=root)


def test_a_batch_cut_between_records_is_noticed(binary10):
    root, _ = binary10
    path = root / "cifar-10-batches-bin" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[: 3073 * 6])
    with pytest.raises(ParameterError, match=r"data_batch_4\.bin.*it holds 6 images, and data_batch_1\.bin 10"):
        load("cifar10", root=root)


def test_an_empty_batch_a_missing_one_and_one_of_cifar100(binary10):
    root, _ = binary10
    folder = root / "cifar-10-batches-bin"
    (folder / "test_batch.bin").write_bytes(b"")
    with pytest.raises(ParameterError, match=r"test_batch\.bin.*its 0 bytes"):
        load("cifar10", root=root)
    (folder / "test_batch.bin").write_bytes(records([[1, 2]] * 4, images(4)))
    with pytest.raises(ParameterError, match=r"its 12,296 bytes are no whole number"):
        load("cifar10", root=root)
    (folder / "test_batch.bin").rename(folder / "test.bin")
    with pytest.raises(ParameterError, match=r"without test_batch\.bin .*holds .*test\.bin"):
        load("cifar10", root=root)


def test_a_label_out_of_range_says_where(binary10):
    root, _ = binary10
    (root / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(records([0, 1, 10, 12], images(4)))
    with pytest.raises(
        ParameterError, match=r"test: example 2 .* the label 10, one of 2 out of range. Use labels 0 to 9"
    ):
        load("cifar10", root=root)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({b"data": images(3)}, "test_batch.*it holds data. Use a batch with data and labels"),
        ({b"data": images(3), b"labels": [1, 2]}, r"labels is int64 of \(2,\)"),
        ({b"data": images(3)[:, :10], b"labels": [1, 2, 3]}, r"data is uint8 of \(3, 10\)"),
        ({b"data": images(3), b"labels": [1, 2, 30]}, "label 30"),
        ({b"data": images(3), b"labels": [[1], 2, 3]}, "labels a list, not an array and whole numbers"),
        ({b"data": [1, 2, 3], b"labels": [1, 2, 3]}, "data is a list"),
        ([1, 2], "it holds a list"),
        ({b"data": range(3)}, "test_batch.*asks for builtins.range"),
    ],
)
def test_bad_python_batches(tmp_path, batch, words):
    folder = write_python10(tmp_path, batches10())
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol=3))
    with pytest.raises(ParameterError, match=words):
        load("cifar10", root=tmp_path)


def test_a_truncated_python_batch(tmp_path):
    folder = write_python10(tmp_path, batches10())
    raw = (folder / "data_batch_2").read_bytes()
    (folder / "data_batch_2").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(ParameterError, match=rf"data_batch_2.*its {len(raw) // 2:,} bytes are damaged"):
        load("cifar10", root=tmp_path)
