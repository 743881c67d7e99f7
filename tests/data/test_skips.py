"""Damaged files are an error that says how to go on, or are left out, listed and counted."""

import numpy as np
import pytest

from mcrepar.data import load
from mcrepar.errors import ParameterError
from tests.data.test_folder import picture
from tests.data.test_nifti import SIZE, study


@pytest.fixture
def folder(tmp_path):
    for part in ("train", "test"):
        for kind in ("a", "b"):
            for i in range(3):
                picture(tmp_path / part / kind / f"{i}.png")
    (tmp_path / "train" / "a" / "1.png").write_bytes(b"no image")
    cut = tmp_path / "test" / "b" / "2.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    (tmp_path / "test" / "b" / "3.png").symlink_to("nothing")
    return tmp_path


def test_an_error_says_how_to_go_on(folder):
    with pytest.raises(ParameterError, match=r"\.png': it.*, or skip_damaged=True \(--skip-damaged\) to"):
        load("folder", root=folder)


def test_damaged_images_are_left_out_and_listed(folder):
    words = r"3 of 13 files are damaged and were left out: .*test/b/2.png \(its \d+ bytes.*test/b/3.png \(it is a link"
    with pytest.warns(UserWarning, match=words) as caught:
        data = load("folder", root=folder, skip_damaged=True)
    assert caught[0].filename == __file__
    assert set(data.skipped) == {"train/a/1.png", "test/b/2.png", "test/b/3.png"}
    assert data.train.y.tolist() == [0, 0, 1, 1, 1]
    assert data.test.y.tolist() == [0, 0, 0, 1, 1]
    assert data.source.endswith("10 images")
    for path in data.skipped:
        (folder / path).unlink()
    whole = load("folder", root=folder)
    assert whole.train.x.equal(data.train.x)
    assert whole.test.x.equal(data.test.x)
    assert whole.skipped == ()


def test_a_class_without_a_whole_image_is_refused(folder):
    for i in range(3):
        (folder / "train" / "a" / f"{i}.png").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="5 of 13"),
        pytest.raises(ParameterError, match="no training example of class"),
    ):
        load("folder", root=folder, skip_damaged=True)


def test_nothing_but_damaged_images_is_refused(tmp_path):
    (tmp_path / "test" / "a").mkdir(parents=True)
    (tmp_path / "test" / "a" / "0.png").write_bytes(b"x")
    with pytest.raises(ParameterError, match=r"all files are damaged; test/a/0\.png: its 1 bytes are no image"):
        load("folder", root=tmp_path, skip_damaged=True)


def test_what_is_not_damage_is_still_refused(folder):
    picture(folder / "test" / "a" / "9.png", (20, 20))
    with pytest.raises(ParameterError, match="images of one size"):
        load("folder", root=folder, skip_damaged=True)


def test_damaged_volumes_are_left_out(tmp_path):
    study(tmp_path)
    path = tmp_path / "scans" / "s3.nii.gz"
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 1  # of the checksum
    path.write_bytes(raw)
    with pytest.warns(UserWarning, match=r"1 of 10 files .*: scans/s3\.nii\.gz \(its .* damaged gz archive"):
        data = load("nifti", root=tmp_path, size=SIZE, skip_damaged=True)
    assert data.skipped == ("scans/s3.nii.gz",)
    assert data.train.y.tolist() == [1, 0, 1, 1, 0]
    path.write_bytes(b"")
    with pytest.raises(ParameterError, match="skip_damaged=True"):
        load("nifti", root=tmp_path, size=SIZE)
    assert np.prod(data.size) == np.prod(SIZE)
