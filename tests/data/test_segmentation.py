"""Label maps in NIfTI files: turned with their images, written back into their space, refused by name."""

import csv

import nibabel
import numpy as np
import pytest
import torch

from mcrepar.data import load
from mcrepar.data.segmentation import turned, write_map
from mcrepar.errors import ParameterError

RNG = np.random.default_rng(0)
SIZE = (8, 9, 10)
AFFINE = np.array([[0.0, -2, 0, 10], [0, 0, 3, -5], [1, 0, 0, 2], [0, 0, 0, 1]])  # axes point up, left and front


def save(path, values, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, affine), path)


def table(folder, rows, columns=("image", "label", "subject", "split")):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def study(root, count=4, size=SIZE, affine=AFFINE, parts=("train", "train", "val", "test")):
    """Images whose intensity is 100 times their label plus noise, one for each subject."""
    rows = []
    for k in range(count):
        label = RNG.integers(0, 3, size).astype(np.uint8)
        save(root / f"scans/{k}/image.nii.gz", (100 * label + RNG.normal(0, 5, size)).astype(np.float32), affine)
        save(root / f"scans/{k}/label.nii.gz", label, affine)
        rows.append([f"scans/{k}/image.nii.gz", f"scans/{k}/label.nii.gz", f"s{k}", parts[k % len(parts)]])
    table(root, rows)
    return rows


def read(root, **options):
    return load("segmentation", root=root, **{"patch": (4, 4, 4), **options})


def test_images_and_labels_are_turned_alike(tmp_path):
    study(tmp_path)
    data = read(tmp_path)
    assert (data.classes, data.size, data.channels, data.simulated) == (("0", "1", "2"), (4, 4, 4), 1, False)
    assert [len(part) for part in data.parts.values()] == [2, 1, 1]
    scan, (image, label) = data.train.about[0], data.train.image(0)
    assert (scan.name, scan.subject, scan.extent) == ("scans_0_image", "s0", (9, 10, 8))  # right, front, up
    canonical = nibabel.as_closest_canonical(nibabel.load(tmp_path / "scans/0/label.nii.gz"))
    assert np.array_equal(label.numpy(), np.asarray(canonical.dataobj))
    grey = [float(image[0][label == c].float().mean()) for c in range(3)]
    assert grey[0] < 30 < 100 < grey[1] < 160 < 220 < grey[2]


@pytest.mark.parametrize("affine", [AFFINE, np.diag([2.0, 2, 2, 1]), np.diag([-1.0, 1, -3, 1])])
def test_a_map_is_written_in_the_space_of_its_image(tmp_path, affine):
    study(tmp_path, affine=affine)
    data = read(tmp_path)
    scan, (_, label) = data.test.about[0], data.test.image(0)
    for kind in (np.uint8, np.float32):
        path = write_map(tmp_path / "maps" / "one.nii.gz", scan, label.numpy().astype(kind))
        written, original = nibabel.load(path), nibabel.load(tmp_path / "scans/3/label.nii.gz")
        assert written.get_data_dtype() == kind
        assert np.array_equal(written.affine, original.affine)
        assert np.array_equal(np.asarray(written.dataobj), np.asarray(original.dataobj))
        assert written.header.get_zooms() == nibabel.load(scan.path).header.get_zooms()


def test_there_and_back(tmp_path):
    study(tmp_path)
    scan = read(tmp_path).train.about[0]
    values = RNG.normal(size=SIZE)
    assert np.array_equal(turned(scan, turned(scan, values), back=True), values)


@pytest.mark.parametrize("size", [(12, 10), (12, 10, 1)])
def test_images_of_two_dimensions(tmp_path, size):
    study(tmp_path, size=size)
    data = read(tmp_path, patch=(8, 8))
    assert (data.size, data.train.about[0].extent, data.train.about[0].shape) == ((8, 8), (12, 10, 1), size)
    label = data.test.image(0)[1].numpy()
    path = write_map(tmp_path / "map.nii.gz", data.test.about[0], label)
    assert np.array_equal(np.asarray(nibabel.load(path).dataobj),
                          np.asarray(nibabel.load(tmp_path / "scans/3/label.nii.gz").dataobj))  # fmt: skip


def test_a_fourth_dimension_is_channels(tmp_path):
    rows = study(tmp_path)
    for row in rows:
        save(tmp_path / row[0], RNG.normal(size=(*SIZE, 2)).astype(np.float32))
    assert read(tmp_path).channels == 2
    save(tmp_path / rows[1][0], RNG.normal(size=SIZE).astype(np.float32))
    with pytest.raises(ParameterError, match=r"scans/1/image.nii.gz.*1 channels, and image.nii.gz has 2"):
        read(tmp_path)


def test_without_a_split_subjects_are_chosen(tmp_path):
    rows = study(tmp_path, 6)
    table(tmp_path, [[*row[:2], f"s{k // 2}"] for k, row in enumerate(rows)], ("image", "label", "subject"))
    data = read(tmp_path, test_share=0.34)
    assert (len(data.train), len(data.test), data.validation) == (4, 2, None)
    assert len({scan.subject for scan in data.test.about}) == 1


def other(rows, row, place, value):
    return [[value if (k, j) == (row, place) else cell for j, cell in enumerate(r)] for k, r in enumerate(rows)]


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, "away.nii.gz", r"line 3 names the image 'away.nii.gz', and there is no such file"),
        (1, "away.nii.gz", r"line 3 names the label 'away.nii.gz', and there is no such file"),
        (2, "", "line 3 has no subject"),
        (2, "s3", r"subject 's3' is in train \(line 3\) and in test \(line 5\)"),
        (3, "both", "line 3 has the split 'both'"),
        (0, "scans/0/image.nii.gz", "lines 2 and 3 name the same image"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, place, value, words):
    table(tmp_path, other(study(tmp_path), 1, place, value))
    with pytest.raises(ParameterError, match=words):
        read(tmp_path)


def test_a_table_without_subjects_is_refused(tmp_path):
    rows = study(tmp_path)
    table(tmp_path, [row[:2] for row in rows], ("image", "label"))
    with pytest.raises(ParameterError, match="its columns are image, label, without subject"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("values", "affine", "words"),
    [
        (np.zeros((8, 9, 11), np.uint8), AFFINE, r"label map is of \(8, 9, 11\), and its image image.nii.gz of \(8, 9"),
        (np.zeros(SIZE, np.uint8), AFFINE + np.eye(4)[3] * 0.5, "its affine differs .* by up to 0.5"),
        (np.full(SIZE, 0.5, np.float32), AFFINE, r"it holds 0.5, one of 720\. Use whole numbers from 0"),
        (np.full(SIZE, -1, np.int16), AFFINE, "it holds -1, one of 720"),
        (np.full(SIZE, np.nan, np.float32), AFFINE, "it holds nan"),
        (np.full(SIZE, 300, np.int16), AFFINE, "it holds 300"),
        (np.full(SIZE, 7, np.uint8), AFFINE, "it holds the label 7, and classes= names 3, 0 to 2"),
    ],
)
def test_a_wrong_label_map_is_refused_by_its_name(tmp_path, values, affine, words):
    study(tmp_path)
    save(tmp_path / "scans/1/label.nii.gz", values, affine)
    with pytest.raises(ParameterError, match=words) as caught:
        read(tmp_path, classes=("air", "skin", "bone"))
    assert "scans/1/label.nii.gz" in str(caught.value)


def test_labels_with_gaps_are_refused(tmp_path):
    study(tmp_path)
    save(tmp_path / "scans/1/label.nii.gz", np.full(SIZE, 9, np.uint8))
    with pytest.raises(
        ParameterError, match=r"scans/1/label.nii.gz.*it holds the label 9, and no image has the label 3"
    ):
        read(tmp_path)


def test_a_patch_that_does_not_fit_is_refused(tmp_path):
    study(tmp_path)
    with pytest.raises(ParameterError, match=r"9 x 10 x 8 voxels, and a patch of 4 x 4 x 16 .*patch 4,4,8, or smaller"):
        read(tmp_path, patch=(4, 4, 16))
    for patch in ((4,), (4, 4, 4, 4), (0, 4), ("a", "b")):
        with pytest.raises(ParameterError, match="patch"):
            read(tmp_path, patch=patch)
    with pytest.raises(ParameterError, match="an epoch would take nothing"):
        read(tmp_path, patches=0)


def test_a_damaged_image_is_named(tmp_path):
    study(tmp_path)
    path = tmp_path / "scans/2/image.nii.gz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ParameterError, match=r"scans/2/image.nii.gz"):
        read(tmp_path)


def test_a_root_that_is_the_table_is_explained(tmp_path):
    study(tmp_path)
    with pytest.raises(ParameterError, match="it is a file"):
        read(tmp_path / "images.csv")


def test_the_labels_are_bytes(tmp_path):
    study(tmp_path)
    assert read(tmp_path).train.y.dtype == torch.uint8


@pytest.mark.parametrize(
    ("images", "names"),
    [
        (["sub/x", "sub_x", "sub_x_2"], ["sub_x", "sub_x_2", "sub_x_2_2"]),
        (["\u8111", "\u5fc3", "a\u8111"], ["image", "image_2", "a"]),
        (["a/Scan", "a_scan", "b"], ["a_Scan", "a_scan_2", "b"]),
    ],
)
def test_no_two_images_have_the_same_name(tmp_path, images, names):
    """Their maps would overwrite each other."""
    study(tmp_path, count=1)
    rows = []
    for k, image in enumerate(images):
        save(tmp_path / f"{image}.nii.gz", RNG.normal(size=SIZE).astype(np.float32))
        rows.append([f"{image}.nii.gz", "scans/0/label.nii.gz", f"s{k}", "test" if k else "train"])
    table(tmp_path, rows)
    data = read(tmp_path)
    assert [scan.name for scan in (*data.train.about, *data.test.about)] == names


def test_absolute_paths_go_with_a_relative_root(tmp_path, monkeypatch):
    rows = study(tmp_path / "data")
    save(tmp_path / "elsewhere.nii.gz", RNG.normal(size=SIZE).astype(np.float32))
    places = ["scans/0/image.nii.gz", "../elsewhere.nii.gz", "scans/2/image.nii.gz", "scans/3/image.nii.gz"]
    places = [str((tmp_path / "data" / place).resolve()) for place in places]
    table(tmp_path / "data", [[place, *row[1:]] for place, row in zip(places, rows, strict=True)])
    monkeypatch.chdir(tmp_path)
    assert [scan.name for scan in read("data").train.about] == ["scans_0_image", "elsewhere"]
