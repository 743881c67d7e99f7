"""Windows cover every voxel; random ones, with their weights, count all voxels alike: proved by enumeration."""

import itertools
import math

import pytest
import torch

from mcrepar.data.patches import cut, grid, inverse_coverage, random_corners, tiles, weights_of
from tests.conftest import seeded


@pytest.mark.parametrize(("size", "window", "step"), [((10, 7), (4, 7), (3, 1)), ((5, 5, 5), (5, 2, 3), (5, 2, 3))])
def test_a_grid_covers_the_image_and_stays_inside(size, window, step):
    seen = torch.zeros(size)
    for corner in grid(size, window, step):
        part = cut(seen, corner, window)
        assert part.shape == window
        part += 1
    assert bool((seen > 0).all())


def test_tiles_that_fit_do_not_overlap():
    seen = torch.zeros(6, 4)
    for corner in tiles((6, 4), (3, 2)):
        cut(seen, corner, (3, 2)).add_(1)
    assert bool((seen == 1).all())


def outcomes(n, w):
    """Every corner along an axis with its probability, from the rule: up to a quarter outside, then to the inside."""
    places = [min(max(k, 0), n - w) for k in range(-(w // 4), n - w + w // 4 + 1)]
    return [(c, places.count(c) / len(places)) for c in sorted(set(places))]


@pytest.mark.parametrize(("n", "w"), [(8, 3), (9, 4), (5, 5), (6, 5), (12, 1), (40, 16), (127, 64)])
def test_the_coverage_of_an_axis(n, w):
    expected = [sum(p for c, p in outcomes(n, w) if c <= v < c + w) for v in range(n)]
    (found,) = inverse_coverage((n,), (w,))
    assert (1 / found).tolist() == pytest.approx(expected)
    assert max(expected) < 6 * min(expected), "a voxel is seen six times as often as another"


def test_the_least_coverage_is_that_of_the_docstring():
    """More than 1/6 for every window and image, the limit of long windows at n = 2 w - 1."""
    for w in range(1, 70):
        for n in {w, w + 1, 2 * w - 2, 2 * w - 1, 2 * w, 3 * w} - set(range(w)):
            (rare,) = inverse_coverage((n,), (w,))
            assert float(rare.max() / rare.min()) < 6 - 1e-3, (n, w)
    (rare,) = inverse_coverage((1999,), (1000,))
    assert float(rare.max() / rare.min()) == pytest.approx(1500 / 251)
    assert "more than 1/6 as many" in " ".join(str(random_corners.__doc__).split())


@pytest.mark.parametrize("sizes", [[(7, 5)], [(7, 5), (4, 9)]])
def test_the_weighted_mean_of_a_patch_is_that_of_all_voxels_of_all_images(sizes):
    """E over images and corners, summed over every outcome, of mean_v w_v f_v; images of different sizes too."""
    window, rng = (3, 4), seeded(0)
    images = [torch.rand(size, generator=rng, dtype=torch.float64) for size in sizes]
    mean_voxels = sum(f.numel() for f in images) / len(images)
    total = 0.0
    for f, size in zip(images, sizes, strict=True):
        axes = [outcomes(n, w) for n, w in zip(size, window, strict=True)]
        for outcome in itertools.product(*axes):
            corner, probability = tuple(c for c, _ in outcome), math.prod(p for _, p in outcome)
            weight = weights_of(size, corner, window, mean_voxels)
            total += probability / len(images) * float((weight * cut(f, corner, window)).mean())
    everything = torch.cat([f.flatten() for f in images])
    assert total == pytest.approx(float(everything.mean()), rel=1e-6)


def test_random_corners_have_the_stated_distribution():
    """Chi-squared over 6 corners, 6,000 draws, fixed seed; 20.5 would be passed by chance in 1 of 1,000."""
    n, w, draws, rng = 9, 4, 6000, seeded(1)
    count = dict.fromkeys(range(n - w + 1), 0)
    for _ in range(draws):
        count[random_corners((n,), (w,), rng)[0]] += 1
    chi = sum((count[c] - draws * p) ** 2 / (draws * p) for c, p in outcomes(n, w))
    assert chi < 20.5
