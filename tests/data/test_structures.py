import nibabel
import numpy as np
import pytest
import torch

from mcrepar.data import load
from mcrepar.data.structures import image_of, write_structures
from mcrepar.errors import ParameterError


@pytest.mark.parametrize("size", [(32, 40), (24, 26, 28)])
def test_files_and_memory_hold_the_same(tmp_path, size):
    patch = (24,) * len(size)
    made = load("structures", size=size, patch=patch, subjects=5, seed=3)
    root = write_structures(tmp_path / "study", size, subjects=5, seed=3)
    found = load("segmentation", root=root, patch=patch, classes=made.classes)
    assert found.simulated
    for name, part in made.parts.items():
        assert torch.equal(found.parts[name].y, part.y)
        assert [scan.subject for scan in found.parts[name].about] == [scan.subject for scan in part.about]
    with pytest.raises(ParameterError, match="something is there already"):
        write_structures(root)
    image = nibabel.load(root / "simulated-000-1.nii.gz")
    assert image.shape == size
    assert b"no patient" in image.header["descrip"].item()


def test_structures_are_brighter_and_darker_than_what_is_around_them():
    for subject in range(3):
        image, label = image_of(subject, 0, (64, 64), seed=0)
        grey = [float(image[label == c].mean()) for c in range(3)]
        assert grey[1] > grey[0] + 30
        assert grey[1] > grey[2] + 10


def test_visits_show_the_same_anatomy_and_seeds_another():
    first, second = (image_of(4, visit, (48, 48), seed=0) for visit in (0, 1))
    assert not np.array_equal(first[0], second[0])
    overlap = ((first[1] > 0) & (second[1] > 0)).sum() / (first[1] > 0).sum()
    assert overlap > 0.8
    assert not np.array_equal(image_of(4, 0, (48, 48), seed=1)[1], first[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": (20, 20)}, "a size is two or three lengths"),
        ({"size": (32,)}, "a size is two or three lengths"),
        ({"subjects": 3}, "all parts need one"),
        ({"size": (32, 32), "patch": (40, 32)}, "the patch is larger than the images"),
        ({"patch": (48, 48, 48)}, "the patch is larger than the images"),
        ({"root": "."}, "simulated"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ParameterError, match=words):
        load("structures", **options)
