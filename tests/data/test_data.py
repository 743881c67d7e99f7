import inspect
import subprocess
import sys

import pytest

from mcrepar.data import DATASETS, load
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
    with pytest.raises(ParameterError, match=r"not part of the package; use root="):
        load(name)
    with pytest.raises(ParameterError, match=r"holds nothing|no such file"):
        load(name, root=tmp_path)
    with pytest.raises(ParameterError, match="no such f"):
        load(name, root=tmp_path / "away")


def test_names_and_options_are_corrected():
    with pytest.raises(ParameterError, match="no such data set; use cifar10"):
        load("cifar-10")
    with pytest.raises(ParameterError, match="digits"):
        load("zzz")
    with pytest.raises(ParameterError, match="no option 'test_shre'; use test_share"):
        load("digits", test_shre=0.1)
    with pytest.raises(ParameterError, match="no option 'size'; use no option"):
        load("mnist", root=".", size=3)


def test_the_table_imports_no_torch():
    code = "import sys, mcrepar.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
