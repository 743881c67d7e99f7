import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mcrepar.data import folder, load
from mcrepar.errors import ParameterError

RNG = np.random.default_rng(0)


def picture(path, size=(6, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"RGB": (3,), "RGBA": (4,), "L": ()}[mode]
    pixels = RNG.integers(0, 256, (*size, *channels), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.mark.parametrize(("names", "parts"), [(("train", "val", "test"), 3), (("train", "validation"), 2)])
def test_parts_and_classes(tmp_path, names, parts):
    pixels = {}
    for part in names:
        for kind in ("cat", "ant"):
            for i in range(3):
                pixels[part, kind, i] = picture(tmp_path / part / kind / f"{i}.png")
    data = load("folder", root=tmp_path)
    assert data.classes == ("ant", "cat")
    assert len(data.parts) == parts
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(data.train.x[4].numpy(), pixels["train", "cat", 1].transpose(2, 0, 1))
    last = names[-1]
    assert np.array_equal(data.test.x[0].numpy(), pixels[last, "ant", 0].transpose(2, 0, 1))
    assert (data.channels, data.size) == (3, (6, 8))


def test_classes_alone_are_split_at_random_with_the_same_shares(tmp_path):
    for kind, count in (("a", 10), ("b", 5)):
        for i in range(count):
            picture(tmp_path / kind / f"{i}.bmp")
    data = load("folder", root=tmp_path, test_share=0.2)
    assert data.train.y.bincount().tolist() == [8, 4]
    assert data.test.y.bincount().tolist() == [2, 1]
    assert load("folder", root=tmp_path, test_share=0.2).test.x.equal(data.test.x)


def test_grey_images_have_one_channel_and_a_mixture_three(tmp_path):
    pixels = [picture(tmp_path / "test" / "a" / f"{i}.png", mode="L") for i in range(2)]
    data = load("folder", root=tmp_path)
    assert np.array_equal(data.test.x.numpy(), np.stack(pixels)[:, None])
    colours = picture(tmp_path / "test" / "a" / "0b.png", mode="RGBA")  # between the two
    mixed = load("folder", root=tmp_path)
    assert np.array_equal(mixed.test.x[0].numpy(), np.stack([pixels[0]] * 3))
    assert np.array_equal(mixed.test.x[1].numpy(), colours[..., :3].transpose(2, 0, 1))


def test_what_is_no_image_by_its_name_is_passed_over(tmp_path):
    for kind in ("a", "b"):
        picture(tmp_path / "test" / kind / "0.PNG")
        (tmp_path / "test" / kind / "notes.txt").write_text("hello")
    (tmp_path / "test" / ".cache").mkdir()
    assert load("folder", root=tmp_path).classes == ("a", "b")


def test_images_of_different_sizes_need_a_size(tmp_path):
    picture(tmp_path / "test" / "a" / "first.png", (6, 8))
    picture(tmp_path / "test" / "b" / "second.png", (7, 9))
    words = r"first\.png is 6 x 8, second\.png is 7 x 9 \(height x width\). Use size=\(6, 8\) to resize"
    with pytest.raises(ParameterError, match=words):
        load("folder", root=tmp_path)
    for size in ([12, 16], (12, 16), "(12, 16)", "[12,16]", "12,16"):
        assert load("folder", root=tmp_path, size=size).size == (12, 16)


def test_a_size_is_height_and_width(tmp_path):
    halves = np.repeat(np.array([0, 200], dtype=np.uint8), 8)[:, None].repeat(16, axis=1)  # dark above, bright below
    (tmp_path / "test" / "a").mkdir(parents=True)
    Image.fromarray(halves).save(tmp_path / "test" / "a" / "0.png")
    x = load("folder", root=tmp_path, size=(4, 8)).test.x[0, 0]
    assert x.shape == (4, 8)
    assert x[[0, 3]].tolist() == [[0] * 8, [200] * 8]


def test_resizing_keeps_a_constant_and_the_mean(tmp_path):
    pixels = picture(tmp_path / "test" / "a" / "0.png", (32, 32), mode="L")
    Image.fromarray(np.full((10, 20), 77, dtype=np.uint8)).save(tmp_path / "test" / "a" / "1.png")
    x = load("folder", root=tmp_path, size=(8, 8)).test.x.float()
    assert abs(float(x[0].mean()) - pixels.mean()) < 4  # the edges weigh a little less
    assert (x[1] == 77).all()


def broken(path):
    picture(path)
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda root: (root / "train" / "a").mkdir(parents=True),
            "class 'a' has no image; the folder 'a' holds nothing",
        ),
        (lambda root: (root / "train").mkdir(), "the folder 'train' holds nothing"),
        (lambda root: (root / "notes.txt").write_text("x"), r"holds notes\.txt. Use a folder with one folder for each"),
        (lambda root: picture(root / "a.png"), r"holds a\.png"),
        (
            lambda root: [picture(root / p / "0.png") for p in ("train/a", "test/b")],
            "test has the class 'b', train has a",
        ),
        (
            lambda root: [picture(root / p / "0.png") for p in ("train/a", "dog")],
            "it has the parts train, and beside them dog",
        ),
        (
            lambda root: [picture(root / p / "0.png") for p in ("train/a", "val/a", "validation/a")],
            "it has the parts train, validation, and beside them val",
        ),
        (lambda root: broken(root / "test" / "a" / "0.png"), r"0\.png.*bytes are a damaged image"),
    ],
)
def test_bad_folders(tmp_path, make, words):
    make(tmp_path)
    with pytest.raises(ParameterError, match=words):
        load("folder", root=tmp_path)


def test_a_file_that_is_no_image_and_one_of_16_bits(tmp_path):
    path = tmp_path / "test" / "a" / "0.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<html></html>")
    with pytest.raises(ParameterError, match=r"0\.png': its 13 bytes are no image"):
        load("folder", root=tmp_path)
    Image.fromarray(np.full((4, 4), 60000, dtype=np.uint16)).save(path)
    with pytest.raises(ParameterError, match=r"mode 'I;16'. Use 8 bits a channel"):
        load("folder", root=tmp_path)


def test_an_empty_class_in_training_and_a_bad_size(tmp_path):
    picture(tmp_path / "train" / "a" / "0.png")
    (tmp_path / "train" / "b").mkdir()
    (tmp_path / "train" / "b" / "x.txt").write_text("x")
    with pytest.raises(ParameterError, match=r"class 'b' has no image; the folder 'b' holds x\.txt"):
        load("folder", root=tmp_path)
    for size in ((4,), (0, 4), (4, 4, 4)):
        with pytest.raises(ParameterError, match="2 whole numbers of at least 1"):
            load("folder", root=tmp_path, size=size)
    with pytest.raises(ParameterError, match="a list of whole numbers"):
        load("folder", root=tmp_path, size=4)


def test_a_class_may_be_called_train(tmp_path):
    for kind in ("Train", "Car", "Bus"):
        for i in range(5):
            picture(tmp_path / kind / f"{i}.png")
    assert load("folder", root=tmp_path).classes == ("Bus", "Car", "Train")


def test_parts_in_capitals_and_links_to_no_file(tmp_path):
    for part in ("Train", "Test"):
        for kind in ("a", "b"):
            picture(tmp_path / part / kind / "0.png")
    assert set(load("folder", root=tmp_path).parts) == {"train", "test"}
    (tmp_path / "Test" / "a" / "1.png").symlink_to(tmp_path / "nosuch.png")
    with pytest.raises(ParameterError, match=r"1\.png.*a link to no file"):
        load("folder", root=tmp_path)
    with pytest.raises(ParameterError, match="it is a file"):
        load("folder", root=tmp_path / "Train" / "a" / "0.png")


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def claims(width, height):
    """A PNG that says to have so many pixels, and has almost none."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [50_000, 10_000])  # pillow refuses the one and warns of the other
def test_too_many_pixels_are_refused_before_they_are_decoded(tmp_path, side):
    path = tmp_path / "test" / "a" / "0.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(claims(side, side))
    with pytest.raises(ParameterError, match=r"0\.png': its 74 bytes hold too many pixels"):
        load("folder", root=tmp_path, size=(4, 4))


def test_what_only_looks_like_an_image_is_refused(tmp_path):
    picture(tmp_path / "test" / "a" / "0.png")
    path = tmp_path / "test" / "a" / "1.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\n")  # pillow would call Ghostscript
    with pytest.raises(ParameterError, match=r"1\.png': its \d+ bytes are no image"):
        load("folder", root=tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ParameterError, match=r"1\.png': it is no regular file"):
        load("folder", root=tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ParameterError, match=r"1\.png': it cannot be read \(Is a directory\)"):
        load("folder", root=tmp_path)


def test_a_flipped_bit_never_changes_a_png(tmp_path):
    pixels = picture(path := tmp_path / "test" / "a" / "0.png", (16, 16))
    raw, refused = path.read_bytes(), 0
    for place in range(0, len(raw), 3):
        damaged = bytearray(raw)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = load("folder", root=tmp_path, size=(16, 16)).test.x[0]
        except ParameterError:
            refused += 1
        else:
            assert np.array_equal(found, pixels.transpose(2, 0, 1)), place
    assert refused > 0.9 * len(raw) / 3


def test_a_png_whose_length_hides_the_checksum_of_its_pixels_is_refused(tmp_path):
    picture(path := tmp_path / "test" / "a" / "0.png", (12, 12))
    raw = bytearray(path.read_bytes())
    place = raw.index(b"IDAT")
    raw[place - 1] -= 1  # without the last byte of zlib's checksum
    raw[place + 40] ^= 1  # a pixel
    path.write_bytes(raw)
    with pytest.raises(ParameterError, match="damaged image"):
        load("folder", root=tmp_path)


def test_every_file_is_read_once(tmp_path, monkeypatch):
    for kind in ("a", "b"):
        for i in range(3):
            picture(tmp_path / kind / f"{i}.png", (6, 8), "RGB" if i else "L")
    read, calls = folder.read_file, []
    monkeypatch.setattr(folder, "read_file", lambda path, most: (calls.append(path), read(path, most))[1])
    dataset = load("folder", tmp_path)
    assert len(calls) == len(set(calls)) == 6
    assert dataset.channels == 3


def test_a_grey_image_among_coloured_ones_has_three_equal_channels(tmp_path):
    for i, mode in enumerate(("L", "RGB", "L", "L")):
        picture(tmp_path / "train" / "a" / f"{i}.png", (6, 8), mode)
        picture(tmp_path / "train" / "b" / f"{i}.png", (6, 8), mode)
        picture(tmp_path / "test" / "a" / f"{i}.png", (6, 8), mode)
    x = load("folder", tmp_path, size=(3, 4)).train.x
    assert x.shape == (8, 3, 3, 4)
    for i in (0, 2, 3, 4, 6, 7):
        assert (x[i] == x[i, :1]).all()
