"""Segmentation of whole images through overlapping windows: each draw of the weights is one network for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.data.patches import cut, grid
from mcrepar.errors import ParameterError
from mcrepar.likelihoods import PerVoxel
from mcrepar.nn.batches import Output, the_tensor, with_bar
from mcrepar.nn.module import random_parts
from mcrepar.nn.prediction_passes import evaluating, one_draw
from mcrepar.validation import check_generator, whole_number

Prepare = Callable[[Tensor], Tensor]
SHARPNESS = 8  # the standard deviation of a window's weights is an eighth of its length
LEAST_WEIGHT = 1e-3


@dataclass(frozen=True, eq=False)
class VoxelPrediction:
    """The classes of all voxels of an image, averaged over draws of the weights; made by `predict_image`.

    Args:
        draws: the number of draws.
        probs: mean probabilities, (classes, *size).
        expected_entropy: the mean of the draws' entropies, (*size), in nats: what remains if the weights were known.
    """

    draws: int
    probs: Tensor
    expected_entropy: Tensor

    @property
    def label(self) -> Tensor:
        """The class of the largest mean probability, (*size)."""
        return self.probs.argmax(0)

    @property
    def entropy(self) -> Tensor:
        """-sum_c p_c log p_c of the mean probabilities, in nats: the whole uncertainty."""
        return _entropy(self.probs)

    @property
    def mutual_information(self) -> Tensor:
        """entropy - expected_entropy, in nats: what knowing the weights would tell."""
        return (self.entropy - self.expected_entropy).clamp_min(0)


def predict_image(
    bnn: nn.Module,
    image: Tensor,
    window: Sequence[int],
    draws: int = 20,
    *,
    overlap: float = 0.5,
    batch_size: int = 4,
    generator: torch.Generator | None = None,
    prepare: Prepare | None = None,
    precision: torch.dtype = torch.float32,
    progress: bool = False,
    output: Output = None,
) -> VoxelPrediction:
    """The classes of all voxels of one image of any size, in bounded memory, in eval mode and without gradients.

    p_k(v) = sum_w g_w(v) softmax(f(window w; W_k))(v) / sum_w g_w(v), then p = mean_k p_k, and the mean of H[p_k]

    A draw W_k serves all windows of the image, so that p_k is the answer of one network and the mutual information is
    about the weights alone, not about where windows end. Memory: 2 C + 4 numbers per voxel for C classes, and one batch
    of windows, whatever the number of draws. Images that are shorter than a window are extended by their last voxels.

    Args:
        bnn: a Bayesian neural network whose output is (batch, classes, *window).
        image: (channels, *size).
        window: the lengths of the windows, as in training; two for a 2D network, which sees a volume slice by slice.
        draws: of the weights.
        overlap: the share of a window that the next one covers again, from 0 to below 1; where windows overlap, the
            middle of each counts most: g is Normal, with an eighth of the window's length as standard deviation.
        batch_size: how many windows go through the network at once.
        generator: the source of the draws; None is the default RNG.
        prepare: from raw windows, (batch, channels, *window), to the network's input; None gives float32.
        precision: of the forward: torch.float32, or torch.bfloat16 or torch.float16 for autocast.
        progress: show a bar, where rich is installed.
        output: what to take of a network that returns more than a tensor.

    >>> import mcrepar
    >>> from mcrepar.models import model
    >>> bnn = mcrepar.bayesian(model("unet2d", classes=3, channels=1, width=2, halvings=2, norm="group"))
    >>> p = predict_image(bnn, torch.zeros(1, 40, 21), window=(16, 16), draws=2)
    >>> p.probs.shape, p.label.shape, bool((p.mutual_information <= p.entropy).all())
    (torch.Size([3, 40, 21]), torch.Size([40, 21]), True)
    """
    random_parts(bnn, "a prediction of")
    draws, batch_size = whole_number("draws", draws), whole_number("batch_size", batch_size)
    check_generator(generator)
    windows = _Windows(image, _checked(image, window, overlap), len(window), overlap)
    device, mean = next(bnn.parameters()).device, None
    expected = torch.zeros(windows.size)
    with evaluating(bnn), torch.no_grad():
        for k in with_bar(range(draws), progress):
            with one_draw(bnn, generator, k) as call:
                probs = windows.probs(partial(_run, call, device, prepare, precision, output), batch_size)
            mean = probs.clone() if mean is None else mean.add_(probs)
            expected += _entropy(probs)
            del probs  # before those of the next draw are made
    assert mean is not None
    if not bool(mean.sum().isfinite()):  # as finite as all of them, which are probabilities, and needs no memory
        wanted = "an image without NaN or infinity, or look at the weights"
        raise ParameterError("predict_image(bnn, image)", "the network's output is not finite", wanted)
    return VoxelPrediction(draws, mean.div_(draws), expected.div_(draws))


def _run(
    call: Callable[..., Any],
    device: torch.device,
    prepare: Prepare | None,
    precision: torch.dtype,
    output: Output,
    x: Tensor,
) -> Tensor:
    """The network's output for raw windows."""
    x = (x.float() if prepare is None else prepare(x)).to(device)
    with torch.autocast(device.type, precision, enabled=precision != torch.float32):
        return the_tensor(call(x), output)


class _Windows:
    """Windows that cover an image.

    Args:
        image: (channels, *size).
        lengths: of a window along all axes of the image.
        sides: of what the network takes: 2 where a volume is cut into slices.
        overlap: of windows.
    """

    def __init__(self, image: Tensor, lengths: tuple[int, ...], sides: int, overlap: float) -> None:
        self.size, self.lengths, self.sides = tuple(image.shape[1:]), lengths, sides
        self.image = _extended(image, lengths)
        steps = [max(1, round(w * (1 - overlap))) for w in lengths]
        self.corners = grid(self.image.shape[1:], lengths, steps)
        self.weight = _weight(lengths)
        self.total = torch.zeros(self.image.shape[1:])
        for corner in self.corners:
            cut(self.total, corner, lengths).add_(self.weight)

    def probs(self, run: Callable[[Tensor], Tensor], batch_size: int) -> Tensor:
        """The probabilities of one network, (classes, *size), averaged where windows overlap."""
        found, likelihood = torch.zeros(0), PerVoxel()
        for k in range(0, len(self.corners), batch_size):
            corners = self.corners[k : k + batch_size]
            x = torch.stack([cut(self.image, corner, self.lengths) for corner in corners])
            out = run(x.flatten(self.sides + 1) if self.sides < len(self.lengths) else x)
            likelihood.check_output(out)
            if out.shape[2:] != self.lengths[: self.sides]:
                why = f"windows of {tuple(x.shape)} gave an output of {tuple(out.shape)}"
                raise ParameterError("predict_image(bnn, image)", why, "a network with a class for every voxel")
            probs = likelihood.probs(out).cpu()
            if not k:
                found = torch.zeros(probs.shape[1], *self.image.shape[1:])
            for corner, p in zip(corners, probs, strict=True):
                cut(found, corner, self.lengths).add_(p.reshape(-1, *self.lengths) * self.weight)
        return found.div_(self.total)[(slice(None), *map(slice, self.size))]


def _checked(image: Tensor, window: Sequence[int], overlap: float) -> tuple[int, ...]:
    """The lengths of a window along all axes of the image."""
    axes = image.dim() - 1
    if axes not in (2, 3):
        why = f"it has the shape {tuple(image.shape)}"
        raise ParameterError(
            "predict_image(bnn, image)", why, "one image of (channels, *size), with two or three sides"
        )
    if not 2 <= len(window) <= axes or min(window) < 1:
        asked = f"predict_image(window={tuple(window)!r})"
        raise ParameterError(asked, f"the image has {axes} sides", "two lengths for a 2D network, three for a 3D one")
    if not 0 <= overlap < 1:
        raise ParameterError(f"predict_image(overlap={overlap!r})", "it is no share below 1", "overlap=0.5")
    return (*window, *(1,) * (axes - len(window)))


def _extended(image: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The image, no shorter than a window along any axis: its last voxels are repeated."""
    for axis, length in enumerate(lengths, start=1):
        short = length - image.shape[axis]
        if short > 0:
            last = image.narrow(axis, image.shape[axis] - 1, 1)
            image = torch.cat([image, last.expand(*image.shape[:axis], short, *image.shape[axis + 1 :])], axis)
    return image


def _weight(lengths: tuple[int, ...]) -> Tensor:
    """How much the places of a window count where windows overlap: most in the middle."""
    weight = torch.ones(lengths)
    for axis, length in enumerate(lengths):
        away = (torch.arange(length) - (length - 1) / 2) / (length / SHARPNESS)
        shape = [-1 if k == axis else 1 for k in range(len(lengths))]
        weight = weight * torch.exp(-0.5 * away.square()).view(shape)
    return weight.clamp_min(LEAST_WEIGHT * float(weight.max()))


def _entropy(probs: Tensor) -> Tensor:
    """Class by class, so that no second array of all classes is needed."""
    total = torch.zeros(probs.shape[1:])
    for p in probs:
        total += torch.special.entr(p)
    return total


def windows_at_once(window: Sequence[int], most: int, batch_size: int) -> int:
    """How many windows go through a network at once: at most `batch_size`, and at most so many voxels.

    >>> windows_at_once((64, 64), 2**14, 256)
    4
    """
    return max(1, min(batch_size, most // math.prod(window)))
