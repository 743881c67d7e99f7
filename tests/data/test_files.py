import gzip

import pytest

from mcrepar.data import files
from mcrepar.data.files import Layout, existing, find, read_bytes
from mcrepar.errors import ParameterError

LAYOUTS = (Layout(("a.bin", "b.bin"), ("inner",)), Layout(("a", "b"), ("other",)))


def fill(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x")


@pytest.mark.parametrize(
    ("place", "names", "layout"),
    [
        ("", ("a.bin", "b.bin"), 0),
        ("inner", ("a.bin", "b.bin"), 0),
        ("other", ("a", "b"), 1),
        ("", ("a.gz", "b"), 1),
        ("", ("a.bin", "b.bin", "a", "b"), 0),
    ],
)
def test_the_files_are_found(tmp_path, place, names, layout):
    fill(tmp_path / place, *names)
    assert find(tmp_path, LAYOUTS) == (LAYOUTS[layout], tmp_path / place)


def test_a_missing_file_is_named_and_the_folder_listed(tmp_path):
    fill(tmp_path / "inner", "a.bin", "b_renamed.bin")
    with pytest.raises(ParameterError, match=r"without b\.bin \(the folder 'inner' holds a\.bin, b_renamed\.bin\)"):
        find(tmp_path, LAYOUTS)


def test_a_folder_of_something_else_is_listed(tmp_path):
    fill(tmp_path / "photos", "x")
    fill(tmp_path, *(f"{i}.txt" for i in range(9)))
    with pytest.raises(
        ParameterError, match=r"holds 0\.txt, .* and 3 more. Use a folder with a\.bin, b\.bin or a, b\."
    ):
        find(tmp_path, LAYOUTS)


def test_an_empty_folder_no_folder_and_a_file(tmp_path):
    with pytest.raises(ParameterError, match="holds nothing"):
        find(tmp_path, LAYOUTS)
    with pytest.raises(ParameterError, match="no such folder"):
        find(tmp_path / "away", LAYOUTS)
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(ParameterError, match="it is a file of 5 bytes"):
        find(tmp_path / "file", LAYOUTS)


def test_bytes_with_and_without_gz(tmp_path):
    (tmp_path / "plain").write_bytes(b"abc")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"def"))
    (tmp_path / "misnamed").write_bytes(gzip.compress(b"ghi"))
    assert [read_bytes(tmp_path, name) for name in ("plain", "packed", "misnamed")] == [b"abc", b"def", b"ghi"]
    with pytest.raises(ParameterError, match=r"no such file; the folder .* holds misnamed, packed.gz, plain"):
        read_bytes(tmp_path, "gone")


def test_a_damaged_gz_is_named_with_its_bytes(tmp_path):
    whole = gzip.compress(bytes(range(256)) * 40)
    for i, raw in enumerate((whole[:-5], whole[: len(whole) // 2], whole[:10] + b"\xff" * 30, whole[:-6] + b"abcdef")):
        (tmp_path / f"{i}.gz").write_bytes(raw)
        with pytest.raises(ParameterError, match=rf"{i}\.gz.*its {len(raw)} bytes are a damaged gz"):
            read_bytes(tmp_path, str(i))


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ALWAYS_UNPACKED", 10_000)
    (tmp_path / "fair.gz").write_bytes(gzip.compress(bytes(10_000)))
    assert read_bytes(tmp_path, "fair") == bytes(10_000)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(1_000_000)))
    with pytest.raises(ParameterError, match=r"bomb\.gz': its [\d,]+ bytes unpack to more than [\d,]+, which is no"):
        read_bytes(tmp_path, "bomb")


def test_a_file_in_no_folder(tmp_path):
    with pytest.raises(ParameterError, match="nor a folder 'away'"):
        existing(tmp_path / "away" / "file")
