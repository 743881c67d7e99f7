"""What the report finds in a run folder where something is missing or broken."""

import pytest

from mcrepar.errors import ParameterError
from mcrepar.workbench.evaluation.report_files import figure_path, read_text
from mcrepar.workbench.training.folder import read_run


@pytest.mark.parametrize("content", [None, "", "[1]", "{", "\x00"])
def test_a_run_that_says_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert read_run(tmp_path) == {}


def test_text_that_is_not_there(tmp_path):
    assert read_text(tmp_path / "config.yaml") == ""
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\xff")
    assert read_text(tmp_path / "config.yaml") == ""


@pytest.mark.parametrize("name", ["x/../../evil", "..", "a b", "", "/evil", "x\\y", "a\n", "a\0"])
def test_a_figure_is_written_inside_the_folder_or_not_at_all(name, tmp_path):
    with pytest.raises(ParameterError, match="cannot be a part of a file name"):
        figure_path(tmp_path, name)
    assert figure_path(tmp_path, "images_svhn-2_wrong") == tmp_path / "figures" / "images_svhn-2_wrong.png"
