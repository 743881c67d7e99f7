"""What the report finds in a run folder where something is missing or broken."""

import pytest

from mcrepar.training.folder import read_run
from mcrepar.training.report_files import read_text


@pytest.mark.parametrize("content", [None, "", "[1]", "{", "\x00"])
def test_a_run_that_says_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert read_run(tmp_path) == {}


def test_text_that_is_not_there(tmp_path):
    assert read_text(tmp_path / "config.yaml") == ""
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\xff")
    assert read_text(tmp_path / "config.yaml") == ""
