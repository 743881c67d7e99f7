"""What happens to a batch before the network sees it, and a part held out: tensor operations, no loop over images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mcrepar.data.dataset import Split
from mcrepar.data.scans import Scans
from mcrepar.errors import ParameterError

AUGMENTATIONS = {"none": (False, False), "flip": (False, True), "crop": (True, False), "crop_flip": (True, True)}
CHUNK = 2**24  # numbers at a time where a whole split as float32 would fill the memory


def standardise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(x - mean) / std by channel, in float32; uint8 is divided by 255 first.

    Args:
        x: (N, C, *size), uint8 or float.
        mean: (C,), as `channel_statistics` gives it.
        std: (C,).

    >>> standardise(torch.full((1, 1, 2), 255, dtype=torch.uint8), torch.tensor([0.5]), torch.tensor([0.25]))
    tensor([[[2., 2.]]])
    """
    for name, value in (("x", x), ("mean", mean), ("std", std)):
        _demand(Tensor, "standardise(x, mean, std)", name, value, f"torch.as_tensor({name})")
    unit = 255.0 if x.dtype == torch.uint8 else 1.0
    shape = (-1, *[1] * (x.dim() - 2))
    mean, std = (v.to(x.device, torch.float32).mul(unit).view(shape) for v in (mean, std))
    return (x.float() - mean).div_(std)


def channel_statistics(split: Split) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of every channel, of x / 255 where x is uint8; 1 where a channel is constant.

    All voxels of images of different sizes count alike, and nothing of what fills up the smaller ones.

    Args:
        split: the part to count, usually the training set.

    >>> mean, std = channel_statistics(Split(torch.tensor([[0.0, 7.0], [2.0, 7.0]]), torch.zeros(2)))
    >>> mean, std
    (tensor([1., 7.]), tensor([1., 1.]))
    """
    _demand(Split, "channel_statistics(split)", "split", split, "Split(x, y), of mcrepar.data.dataset")
    unit = 255.0 if split.x.dtype == torch.uint8 else 1.0
    each = [torch.var_mean(flat.float(), 2, correction=0) for flat in _pieces(split)]
    within, means = (torch.cat(values).double() for values in zip(*each, strict=True))
    sizes = [math.prod(scan.extent) for scan in split.about] if isinstance(split, Scans) else [1] * len(split)
    share = torch.tensor(sizes, dtype=torch.float64)[:, None] / sum(sizes)
    mean = (share * means).sum(0)
    std = (share * (within + (means - mean).square())).sum(0).sqrt() / unit  # Var x = E Var(x | i) + Var E(x | i)
    return (mean / unit).float(), torch.where(std > 0, std, 1.0).float()


def _pieces(split: Split) -> Iterator[Tensor]:
    """All x as (examples, C, numbers), some at a time; images of different sizes one by one, as large as they are."""
    if isinstance(split, Scans):
        yield from (split.image(place)[0].flatten(1)[None] for place in range(len(split)))
        return
    flat = split.x.reshape(*split.x.shape[:2], -1)
    size = max(1, CHUNK // flat[0].numel())
    yield from (flat[first : first + size] for first in range(0, len(flat), size))


def _demand(kind: type, asked: str, name: str, value: object, instead: str) -> None:
    """Refuse what is of another type, before it fails at an attribute that it lacks."""
    if not isinstance(value, kind):
        raise ParameterError(asked, f"{name} is a {type(value).__name__}, and no {kind.__name__}", instead)


def augment(x: Tensor, kind: str, padding: int = 4, generator: Generator | None = None) -> Tensor:
    """Every example cropped at a place of its own out of a frame of zeros, and mirrored with probability 1/2.

    The mirror swaps left and right: the last axis of an image, the first of a volume (right, front, up).

    Args:
        x: (N, C, *size), of any dtype.
        kind: none, flip, crop or crop_flip.
        padding: the width of the frame, so that an example moves by at most as much along each axis.
        generator: where the noise comes from.

    >>> x = torch.arange(4.0).view(1, 1, 2, 2)
    >>> augment(x, "crop", padding=1, generator=torch.Generator().manual_seed(2)).shape
    torch.Size([1, 1, 2, 2])
    """
    if kind not in AUGMENTATIONS:
        raise ParameterError(f"augment(kind={kind!r})", "there is no such augmentation", ", ".join(AUGMENTATIONS))
    if padding < 0:
        raise ParameterError(f"augment(padding={padding})", "a frame has no negative width", "padding=0 or more")
    crop, flip = AUGMENTATIONS[kind]
    size, device = x.shape[2:], x.device
    if not size or not (crop or flip):
        return x
    where = device if generator is None else generator.device
    frame = padding if crop else 0
    shift = torch.randint(2 * frame + 1, (len(size), len(x), 1), device=where, generator=generator).to(device)
    mirror = torch.randint(2, (len(x), 1), device=where, generator=generator).to(device).bool()
    sided = 0 if len(size) == 3 else len(size) - 1
    place = torch.zeros(len(x), 1, dtype=torch.int64, device=device)  # in the framed example, flattened
    for axis, length in enumerate(size):
        along = torch.arange(length, device=device).expand(len(x), -1)
        if flip and axis == sided:
            along = torch.where(mirror, along.flip(1), along)
        place = (place * (length + 2 * frame)).unsqueeze(2) + (along + shift[axis]).unsqueeze(1)
        place = place.flatten(1)
    framed = F.pad(x, [frame] * 2 * len(size)).flatten(2)
    return framed.gather(2, place.unsqueeze(1).expand(-1, x.shape[1], -1)).view_as(x)


def hold_out(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """A split in two, (rest, held), with the same shares of the classes in both and in the order of the original.

    Of images with label maps, all of a subject are in one of the two.

    Args:
        split: what to divide.
        share: of the held part, between 0 and 1; its size is round(share * N).
        seed: of the choice.

    >>> part = Split(torch.zeros(10, 1), torch.tensor([0, 1] * 5))
    >>> [len(p) for p in hold_out(part, 0.2, seed=0)]
    [8, 2]
    """
    if isinstance(split, Scans):
        return split.hold_out(share, seed)
    asked = f"a share of {share:g} of {len(split)} examples, held out"
    if not 0 < share < 1 or not 0 < round(share * len(split)) < len(split):
        raise ParameterError(
            asked, "one of the two parts would be empty", "a share between 0 and 1 that leaves both some"
        )
    group = torch.zeros_like(split.y, dtype=torch.int64) if split.y.is_floating_point() else split.y - split.y.min()
    count = torch.bincount(group)
    wanted = count * share
    take = wanted.floor().long()
    missing = round(share * len(split)) - int(take.sum())
    take[(wanted - take).argsort(descending=True, stable=True)[:missing]] += 1
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    order = order[group[order].argsort(stable=True)]  # by class, at random inside a class
    rank = torch.arange(len(split)) - (count.cumsum(0) - count)[group[order]]
    held = torch.zeros(len(split), dtype=torch.bool)
    held[order] = rank < take[group[order]]
    return split.at(~held), split.at(held)


def divided(whole: Split, parts: Sequence[str], share: float, seed: int) -> dict[str, Split]:
    """The parts of what was read in one piece: as each example says, or by `hold_out` where it says nothing.

    Args:
        whole: all examples.
        parts: train, validation or test for each; or an empty text for each.
        share: of the test part where nothing is said.
        seed: of that choice.
    """
    if any(parts):
        return {name: whole.at(torch.tensor([part == name for part in parts])) for name in dict.fromkeys(parts)}
    return dict(zip(("train", "test"), hold_out(whole, share, seed), strict=True))
