import csv

import nibabel
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mcrepar.data import load
from mcrepar.data.nifti import read_volume, resample
from mcrepar.errors import ParameterError

RNG = np.random.default_rng(0)
SIZE = (5, 6, 7)
INFINITE = np.where(np.arange(7) < 3, np.nan, np.inf) * np.ones(SIZE)


def volume(path, values=None, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = RNG.normal(100, 20, SIZE).astype(np.float32) if values is None else values
    nibabel.save(nibabel.Nifti1Image(values, np.diag([2.0, 2, 2, 1]) if affine is None else affine), path)
    return values


def table(folder, rows, name="participants.csv"):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if name.endswith("tsv") else ",").writerows(rows)


def study(root, count=10):
    """Volumes of two classes with paths, labels and parts."""
    rows = [["participant_id", "path", "label", "split"]]
    for i in range(count):
        volume(root / "scans" / f"s{i}.nii.gz")
        rows.append([f"s{i}", f"scans/s{i}.nii.gz", "AD" if i % 2 else "CN", "train" if i < 6 else "val"])
    table(root, rows)
    return rows


def test_a_table_with_paths_and_parts(tmp_path):
    study(tmp_path)
    data = load("nifti", root=tmp_path, size=SIZE)
    assert data.classes == ("AD", "CN")
    assert data.train.y.tolist() == [1, 0] * 3
    assert (len(data.train), data.validation, len(data.test)) == (6, None, 4)
    assert data.train.x.dtype == torch.uint8
    assert (data.channels, data.size, data.simulated) == (1, SIZE, False)
    assert load("nifti", root=tmp_path, size=SIZE, classes=("CN", "AD")).train.y.tolist() == [0, 1] * 3


@pytest.mark.parametrize(("place", "value"), [(70, b"\x77\x77"), (40, b"\xff\xff")])
def test_a_damaged_header_is_named(tmp_path, place, value):
    study(tmp_path, 4)
    volume(path := tmp_path / "bad.nii")
    data = path.read_bytes()
    path.write_bytes(data[:place] + value + data[place + len(value) :])
    table(tmp_path, [["path", "label"], ["bad.nii", "a"], ["scans/s0.nii.gz", "b"], ["scans/s1.nii.gz", "a"]])
    with pytest.raises(ParameterError, match=r"bad\.nii.*no whole NIfTI volume"):
        load("nifti", root=tmp_path, size=SIZE)


@pytest.mark.parametrize("place", range(0, 300, 5))
def test_a_flipped_bit_in_a_packed_volume_never_changes_it(tmp_path, place):
    """gz ends in a checksum of all that it holds, and stopping before it let a third of such files pass."""
    values = volume(path := tmp_path / "v.nii.gz")
    raw = bytearray(path.read_bytes())
    raw[place * len(raw) // 300] ^= 1 << place % 8
    path.write_bytes(raw)
    try:
        found, _ = read_volume(path)
    except ParameterError:
        return
    assert np.array_equal(found, values)


def test_a_header_that_asks_for_more_than_there_is_takes_no_memory(tmp_path):
    volume(path := tmp_path / "v.nii")
    raw = bytearray(path.read_bytes())
    raw[42:48] = np.array([30000, 30000, 3000], "<i2").tobytes()
    path.write_bytes(raw)
    with pytest.raises(ParameterError, match=r"its header of \(30000, 30000, 3000\) needs 10,800,000,000,000 bytes"):
        read_volume(path)


def test_both_versions_of_the_format_are_read(tmp_path):
    values = RNG.normal(size=SIZE).astype(np.float32)
    nibabel.save(nibabel.Nifti2Image(values, np.eye(4)), tmp_path / "v.nii.gz")
    assert np.array_equal(read_volume(tmp_path / "v.nii.gz")[0].numpy(), values)


def test_a_table_as_the_root_is_told_from_its_folder(tmp_path):
    study(tmp_path, 2)
    with pytest.raises(ParameterError, match=r"it is a file. Use its folder as the root, and table=participants\.csv"):
        load("nifti", root=tmp_path / "participants.csv")


def test_the_default_size_is_the_papers(tmp_path):
    study(tmp_path, 2)
    table(tmp_path, [["path", "label", "split"], ["scans/s0.nii.gz", "1", "train"], ["scans/s1.nii.gz", "2", "test"]])
    assert load("nifti", root=tmp_path, regression=True).size == (105, 127, 105)


def test_ids_find_their_volumes_and_no_others(tmp_path):
    rows = [["participant_id", "age", "sex"]]
    for i in (1, 10, 11, 2, 3):
        volume(tmp_path / f"sub-{i}" / "anat" / f"sub-{i}_T1w.nii", np.full(SIZE, 1.0) * np.arange(7) * i)
        rows.append([f"sub-{i}", 20.5 + i, "f"])
    table(tmp_path, rows, "participants.tsv")
    data = load(
        "nifti", root=tmp_path, table="participants.tsv", label_column="age", regression=True, size=SIZE, seed=1
    )
    assert data.classes == ()
    assert (len(data.train), len(data.test)) == (4, 1)
    assert sorted(torch.cat([data.train.y, data.test.y]).tolist()) == [21.5, 22.5, 23.5, 30.5, 31.5]
    volume(tmp_path / "sub-1" / "anat" / "sub-1_T2w.nii")
    with pytest.raises(ParameterError, match=r"line 2 has the id 'sub-1', and 2 volumes start with it \(sub-1_T1w"):
        load("nifti", root=tmp_path, table="participants.tsv", label_column="sex", size=SIZE)
    (tmp_path / "sub-10" / "anat" / "sub-10_T1w.nii").unlink()
    (tmp_path / "sub-1" / "anat" / "sub-1_T2w.nii").unlink()
    with pytest.raises(ParameterError, match="line 3 has the id 'sub-10', and no volume does"):
        load("nifti", root=tmp_path, table="participants.tsv", label_column="sex", size=SIZE)


@pytest.mark.parametrize("codes", ["RAS", "LPS", "SAR", "PIL", "IRP"])
def test_a_volume_is_turned_to_right_front_up(tmp_path, codes):
    values = RNG.normal(size=SIZE).astype(np.float32)
    canonical = nibabel.Nifti1Image(values, np.eye(4))
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(codes)
    )
    nibabel.save(canonical.as_reoriented(turn), tmp_path / "v.nii.gz")
    assert "".join(nibabel.aff2axcodes(nibabel.load(tmp_path / "v.nii.gz").affine)) == codes
    assert np.array_equal(read_volume(tmp_path / "v.nii.gz")[0].numpy(), values)


def test_scaled_integers_are_read_in_their_units(tmp_path):
    image = nibabel.Nifti1Image(np.arange(24, dtype=np.int16).reshape(2, 3, 4), np.eye(4))
    image.header.set_slope_inter(0.5, 10)
    nibabel.save(image, tmp_path / "v.nii")
    assert read_volume(tmp_path / "v.nii")[0].flatten().tolist() == pytest.approx((0.5 * np.arange(24) + 10).tolist())


def test_growing_is_trilinear():
    v = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))
    oracle = F.interpolate(v[None, None], (9, 5, 13), mode="trilinear", align_corners=False)[0, 0]
    np.testing.assert_allclose(resample(v, (9, 5, 13)), oracle, atol=1e-5)


def triangle(old, new):
    """The weights of linear interpolation, as wide as a new voxel: (new, old)."""
    centre = (np.arange(new)[:, None] + 0.5) * old / new
    weight = np.clip(1 - np.abs(np.arange(old) + 0.5 - centre) * new / old, 0, None)
    return weight / weight.sum(1, keepdims=True)


def test_shrinking_averages_over_a_new_voxel():
    v = RNG.normal(size=(32, 20, 18)).astype(np.float32)
    oracle = np.einsum("xyz,ax,by,cz->abc", v, triangle(32, 8), triangle(20, 7), triangle(18, 5))
    np.testing.assert_allclose(resample(torch.from_numpy(v), (8, 7, 5)), oracle, atol=1e-5)


def test_intensities_lie_between_two_percentiles_of_the_foreground(tmp_path):
    values = np.zeros((20, 20, 20), dtype=np.float32)
    values[5:15, 5:15, 5:15] = RNG.normal(500, 50, (10, 10, 10))
    values[5, 5, 5], values[0, 0, 0] = 1e6, np.nan  # a hot voxel, and a masked one
    volume(tmp_path / "a.nii.gz", values)
    volume(tmp_path / "b.nii.gz", 7 * values + 3)
    table(tmp_path, [["path", "label", "split"], ["a.nii.gz", "1", "train"], ["b.nii.gz", "2", "test"]])
    data = load("nifti", root=tmp_path, size=(20, 20, 20), regression=True)
    low, high = np.percentile(values[5:15, 5:15, 5:15], (1, 99))
    expected = np.clip((np.nan_to_num(values) - low) / (high - low) * 255, 0, 255)
    assert np.abs(data.train.x[0, 0].numpy() - expected).max() <= 0.51
    assert (data.test.x.int() - data.train.x.int()).abs().max() <= 1, "the same in another unit"


def test_a_file_that_says_simulated_makes_the_set_simulated(tmp_path):
    rows = study(tmp_path)
    image = nibabel.Nifti1Image(RNG.normal(size=SIZE).astype(np.float32), np.eye(4))
    image.header["descrip"] = b"simulated by hand"
    nibabel.save(image, tmp_path / rows[3][1])
    assert load("nifti", root=tmp_path, size=SIZE).simulated


def change(cell, value):
    def make(root, rows):
        rows[cell[0]][cell[1]] = value
        table(root, rows)

    return make


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda r, _: (r / "participants.csv").rename(r / "people.csv"), {}, r"no such file.*people\.csv.*Use table="),
        (lambda r, _: (r / "scans/s4.nii.gz").unlink(), {}, r"participants\.csv': line 6 names 'scans/s4\.nii\.gz'"),
        (change((3, 2), ""), {}, "line 4 has no label"),
        (change((3, 1), " "), {}, "line 4 has no volume"),
        (change((5, 3), "holdout"), {}, "line 6 has the split 'holdout'. Use train, val or test"),
        (change((0, 2), "diagnosis"), {}, "its columns are participant_id, path, diagnosis, split"),
        (lambda r, rows: table(r, rows[:1]), {}, "its columns are none"),
        (lambda r, _: (r / "participants.csv").write_bytes(b"\xff\xfe\x00\x81"), {}, "no text in utf-8"),
        (lambda r, _: None, {"regression": True}, "line 2 has the label 'CN'. Use numbers"),
        (lambda r, _: None, {"classes": ("CN", "MCI")}, "line 3 has the label 'AD'. Use labels among classes="),
        (lambda r, _: None, {"size": (5, 6)}, "3 whole numbers"),
        (change((8, 2), "new"), {}, "no training example of class 'new'"),
        (
            lambda r, _: (r / "scans/s2.nii.gz").write_bytes(b"hello"),
            {},
            r"s2\.nii\.gz': its 5 bytes are no whole NIfTI",
        ),
        (
            lambda r, _: (r / "scans/s2.nii.gz").write_bytes((r / "scans/s2.nii.gz").read_bytes()[:400]),
            {},
            r"s2\.nii\.gz': its 400 bytes are a damaged gz archive",
        ),
        (lambda r, _: volume(r / "scans/s2.nii.gz", np.zeros((4, 4, 4, 3), np.float32)), {}, r"shape \(4, 4, 4, 3\)"),
        (lambda r, _: volume(r / "scans/s2.nii.gz", np.full(SIZE, 3.0)), {}, r"s2\.nii\.gz': all its values are equal"),
        (lambda r, _: volume(r / "scans/s2.nii.gz", np.full(SIZE, np.nan)), {}, "all its values are NaN. Use"),
        (lambda r, _: volume(r / "scans/s2.nii.gz", INFINITE), {}, "all its values are NaN or inf. Use"),
        (change((9, 1), "scans/s1.nii.gz"), {}, r"lines 3 and 10 name the same volume, 's1\.nii\.gz'. Use one line"),
        (change((9, 1), "scans/../scans/s1.nii.gz"), {}, "lines 3 and 10 name the same volume"),
    ],
)
def test_bad_studies(tmp_path, make, options, words):
    make(tmp_path, study(tmp_path))
    with pytest.raises(ParameterError, match=words):
        load("nifti", root=tmp_path, **{"size": SIZE, **options})


def test_blank_lines_do_not_move_the_numbers(tmp_path):
    study(tmp_path)
    lines = (tmp_path / "participants.csv").read_text().splitlines()
    lines.insert(3, "")
    (tmp_path / "participants.csv").write_text("\n".join(lines).replace("scans/s5", "scans/gone"))
    with pytest.raises(ParameterError, match=r"line 8 names 'scans/gone"):
        load("nifti", root=tmp_path, size=SIZE)
    assert lines[7].startswith("s5,")


def test_a_single_volume_in_four_dimensions_and_a_binary_mask(tmp_path):
    mask = np.zeros((*SIZE, 1), dtype=np.uint8)
    mask[2:4] = 1
    volume(tmp_path / "a.nii", mask)
    table(tmp_path, [["path", "label", "split"], ["a.nii", "x", "test"]])
    assert np.array_equal(load("nifti", root=tmp_path, size=SIZE).test.x[0, 0].numpy(), 255 * mask[..., 0])
