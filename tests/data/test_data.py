import inspect
import os
import signal
import subprocess
import sys

import pytest

from mcrepar.data import DATASETS, DataRow, load
from mcrepar.data.batches import AUGMENTATIONS
from mcrepar.errors import ParameterError


@pytest.mark.parametrize("name", DATASETS)
def test_every_row_has_a_reader_whose_options_are_explained(name):
    row = DATASETS[name]
    parameters = list(inspect.signature(row.read).parameters)
    assert parameters == ["root", *row.options]
    assert row.summary
    assert row.augment in AUGMENTATIONS
    for parameter in parameters:
        assert f"{parameter}: " in row.read.__doc__


@pytest.mark.parametrize("name", [name for name, row in DATASETS.items() if row.files])
def test_a_root_is_asked_for_where_there_are_files(name, tmp_path):
    with pytest.raises(ParameterError, match=r"not part of the package. Use root="):
        load(name)
    with pytest.raises(ParameterError, match=r"holds nothing|no such file"):
        load(name, root=tmp_path)
    with pytest.raises(ParameterError, match="no such f"):
        load(name, root=tmp_path / "away")


def test_names_and_options_are_corrected():
    with pytest.raises(ParameterError, match=r"no such data set\. Use cifar10"):
        load("cifar-10")
    with pytest.raises(ParameterError, match="digits"):
        load("zzz")
    with pytest.raises(ParameterError, match=r"no option 'test_shre'\. Use test_share"):
        load("digits", test_shre=0.1)
    with pytest.raises(ParameterError, match=r"no option 'size'\. Use no option"):
        load("mnist", root=".", size=3)


def test_the_table_imports_no_torch():
    code = "import sys, mcrepar.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def ten_seconds():
    def late(*_):
        pytest.fail("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


PIPES = {
    "mnist": ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
    "cifar10": [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"],
    "cifar100": ["train", "test", "meta"],
    "cifar10_c": ["labels.npy", "gaussian_noise.npy"],
    "svhn": ["train_32x32.mat", "test_32x32.mat"],
    "medmnist": ["adrenal.npz"],
    "arrays": ["mine.npz"],
    "folder": ["train/a/0.png", "test/a/0.png"],
    "nifti": ["participants.csv"],
}


@pytest.mark.parametrize("name", PIPES)
@pytest.mark.usefixtures("ten_seconds")
def test_no_reader_waits_at_a_pipe(name, tmp_path):
    for file in PIPES[name]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / file)
    with pytest.raises(ParameterError):
        load(name, root=tmp_path)


@pytest.mark.parametrize("name", PIPES)
def test_a_root_that_the_system_refuses_is_named(name, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for root in (tmp_path / "loop", "x" * 5000, "a\0b"):
        with pytest.raises(ParameterError):
            load(name, root=root)


def test_a_new_reader_is_one_row_and_its_function(monkeypatch):
    monkeypatch.setitem(DATASETS, "mine", DataRow("digits.read_digits", "my digits"))
    assert load("mine", test_share=0.5).size == (8, 8)
