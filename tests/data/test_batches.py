import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.model_selection import train_test_split

from mcrepar.data.batches import AUGMENTATIONS, augment, channel_statistics, divided, hold_out, standardise
from mcrepar.data.dataset import Split
from mcrepar.errors import ParameterError

SHAPES = {"features": (50, 3), "images": (50, 3, 5, 6), "volumes": (50, 2, 3, 4, 5)}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def data(shape, dtype, seed=0):
    if dtype == torch.uint8:
        return torch.randint(256, shape, dtype=dtype, generator=seeded(seed))
    return 1000 + torch.randn(shape, generator=seeded(seed))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_statistics_and_standardising_are_numpys(shape, dtype, monkeypatch):
    monkeypatch.setattr("mcrepar.data.batches.CHUNK", 16)
    x = data(shape, dtype)
    mean, std = channel_statistics(Split(x, torch.zeros(50)))
    values = x.numpy().astype(np.float64) / (255 if dtype == torch.uint8 else 1)
    axes = tuple(d for d in range(x.dim()) if d != 1)
    np.testing.assert_allclose(mean, values.mean(axes), rtol=1e-6)
    np.testing.assert_allclose(std, values.std(axes), rtol=1e-5)
    standard = standardise(x, mean, std)
    assert standard.dtype == torch.float32
    wide = (1, -1, *[1] * (x.dim() - 2))
    np.testing.assert_allclose(standard, (values - mean.numpy().reshape(wide)) / std.numpy().reshape(wide), atol=2e-4)


@pytest.mark.parametrize(
    "data", [torch.zeros(4, 2, 3), np.zeros((4, 2, 3), np.float32), None], ids=["tensor", "array", "none"]
)
def test_statistics_of_what_is_no_split_are_refused(data):
    with pytest.raises(ParameterError, match=rf"channel_statistics.*{type(data).__name__}.*Split\(x, y\)"):
        channel_statistics(data)


@pytest.mark.parametrize("wrong", ["x", "mean", "std"])
def test_standardising_what_is_no_tensor_is_refused(wrong):
    values = {"x": torch.zeros(4, 2, 3), "mean": torch.zeros(2), "std": torch.ones(2)}
    values[wrong] = values[wrong].numpy()
    with pytest.raises(ParameterError, match=rf"standardise.*{wrong} is a ndarray.*torch\.as_tensor\({wrong}\)"):
        standardise(**values)


def test_standardising_leaves_its_input_alone():
    x = torch.ones(2, 1, 3)
    standardise(x, torch.tensor([5.0]), torch.tensor([2.0]))
    assert x.tolist() == torch.ones(2, 1, 3).tolist()


def test_a_constant_channel_is_not_divided_by_zero():
    x = torch.zeros(4, 2, 3, dtype=torch.uint8)
    x[:, 1] = 255
    mean, std = channel_statistics(Split(x, torch.zeros(4)))
    assert mean.tolist() == [0, 1]
    assert std.tolist() == [1, 1]


def variants(example, kind, padding):
    """All that an augmented example can be, made one at a time with numpy."""
    crop, flip = AUGMENTATIONS[kind]
    spatial = example.ndim - 1
    side = 1 if spatial == 3 else spatial  # left and right
    frame = padding if crop else 0
    framed = np.pad(example, [(0, 0)] + [(frame, frame)] * spatial)
    for shift in itertools.product(range(2 * frame + 1), repeat=spatial):
        cut = framed[(slice(None), *(slice(s, s + n) for s, n in zip(shift, example.shape[1:], strict=True)))]
        yield cut
        if flip:
            yield np.flip(cut, side)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("kind", ["flip", "crop", "crop_flip"])
@pytest.mark.parametrize("size", [(4, 5), (3, 4, 5)], ids=["images", "volumes"])
def test_an_augmentation_is_one_of_all_and_each_is_as_likely(size, kind, dtype):
    """Chi-square over all variants; a false alarm in 1 of 10^5 runs."""
    example = data((1, 2, *size), dtype)
    possible = [variant.tobytes() for variant in map(np.ascontiguousarray, variants(example[0].numpy(), kind, 1))]
    many = augment(example.expand(4000, *example.shape[1:]), kind, padding=1, generator=seeded(3))
    assert many.dtype == dtype
    assert many.shape[1:] == example.shape[1:]
    seen = [image.tobytes() for image in many.numpy()]
    assert set(seen) == set(possible)
    assert stats.chisquare([seen.count(variant) for variant in possible]).pvalue > 1e-5


def test_a_shift_and_a_flip_are_independent_between_examples():
    x = torch.arange(36.0).view(1, 1, 6, 6).expand(64, -1, -1, -1)
    out = augment(x, "crop_flip", padding=2, generator=seeded(0))
    assert len({image.numpy().tobytes() for image in out}) > 20


def test_augmenting_repeats_with_its_generator_and_follows_the_global_seed_without():
    x = data((8, 3, 8, 8), torch.uint8)
    assert augment(x, "crop_flip", generator=seeded(5)).equal(augment(x, "crop_flip", generator=seeded(5)))
    assert not augment(x, "crop_flip", generator=seeded(5)).equal(augment(x, "crop_flip", generator=seeded(6)))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = augment(x, "crop_flip")
        torch.manual_seed(1)
        assert augment(x, "crop_flip").equal(first)


def test_what_has_no_place_is_left_alone():
    images, features = data((4, 1, 5, 5), torch.uint8), data((4, 3), torch.float32)
    assert augment(images, "none") is images
    assert augment(features, "crop_flip") is features


@pytest.mark.parametrize(("options", "word"), [({"kind": "rotate"}, "rotate"), ({"kind": "crop", "padding": -1}, "-1")])
def test_augment_refuses(options, word):
    with pytest.raises(ParameterError, match=word):
        augment(torch.zeros(1, 1, 4, 4), **options)


def test_hold_out_keeps_the_shares_as_scikit_learn_does():
    y = torch.repeat_interleave(torch.arange(4), torch.tensor([7, 50, 123, 20]))[
        torch.randperm(200, generator=seeded(0))
    ]
    part = Split(torch.arange(200.0).view(200, 1), y)
    rest, held = hold_out(part, 0.23, seed=1)
    _, oracle = train_test_split(y.numpy(), test_size=46, stratify=y.numpy(), random_state=0)
    assert held.y.bincount().tolist() == np.bincount(oracle).tolist()
    assert torch.cat([rest.x, held.x]).flatten().sort().values.equal(torch.arange(200.0))
    for one in (rest, held):
        assert one.x.flatten().equal(one.x.flatten().sort().values), "the order of the original"
        assert one.y.equal(y[one.x.flatten().long()]), "each x with its y"


def test_hold_out_depends_on_the_seed_only():
    part = Split(torch.arange(100.0).view(100, 1), torch.arange(100) % 3)
    first = hold_out(part, 0.2, seed=4)[1].x
    torch.rand(7)
    assert hold_out(part, 0.2, seed=4)[1].x.equal(first)
    assert not hold_out(part, 0.2, seed=5)[1].x.equal(first)


def test_hold_out_is_even_over_examples():
    """Each example is held in a fifth of the seeds: |z| < 5 for 40 examples, a false alarm in 40 of 1.7 million."""
    part = Split(torch.arange(40.0).view(40, 1), torch.arange(40) % 2)
    held = torch.zeros(40)
    for seed in range(500):
        held[hold_out(part, 0.2, seed)[1].x.long().flatten()] += 1
    assert ((held - 100) / (500 * 0.2 * 0.8) ** 0.5).abs().max() < 5


@pytest.mark.parametrize("y", [torch.linspace(0, 1, 10), torch.full((10,), -1)], ids=["regression", "unlabelled"])
def test_hold_out_without_classes(y):
    rest, held = hold_out(Split(torch.zeros(10, 1), y), 0.3, seed=0)
    assert (len(rest), len(held)) == (7, 3)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, 0.01, 0.99])
def test_hold_out_leaves_no_part_empty(share):
    with pytest.raises(ParameterError, match="empty"):
        hold_out(Split(torch.zeros(10, 1), torch.zeros(10)), share, seed=0)


def test_divided_follows_what_examples_say_or_chance():
    whole = Split(torch.arange(5.0).view(5, 1), torch.tensor([0, 1, 0, 1, 0]))
    parts = divided(whole, ["train", "test", "train", "validation", "test"], 0.4, seed=0)
    assert {name: part.x.flatten().tolist() for name, part in parts.items()} == {
        "train": [0, 2],
        "test": [1, 4],
        "validation": [3],
    }
    assert {name: len(part) for name, part in divided(whole, [""] * 5, 0.4, seed=0).items()} == {"train": 3, "test": 2}
