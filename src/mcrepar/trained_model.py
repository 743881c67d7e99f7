"""A network together with what its numbers mean: the likelihood of its output, and how its input is prepared."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mcrepar.data.batches import standardise
from mcrepar.errors import ParameterError
from mcrepar.likelihoods import Likelihood, likelihood_of
from mcrepar.nn.calibration import outside
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.saving import read_model, write_model
from mcrepar.prediction import MAX_BYTES, Prediction, predict
from mcrepar.validation import whole_number

FAR = 50.0  # standard deviations from the training data, in the mean, that are no examples of the kind
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions of a batch


@dataclass(frozen=True)
class Preparation:
    """From raw examples to the network's input: standardised by channel, in the memory layout that is faster.

    Args:
        mean: of every channel of the training data, of x / 255 where x is uint8; () leaves the values as they are.
        std: of every channel.
        channels_last: bring images and volumes into the memory layout in which channels are next to each other.

    >>> Preparation((0.5,), (0.25,))(torch.full((1, 1, 2), 255, dtype=torch.uint8))
    tensor([[[2., 2.]]])
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    channels_last: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            why = f"there are {len(self.mean)} means and {len(self.std)} standard deviations"
            why = why if len(self.mean) != len(self.std) else f"std={self.std} is not positive"
            raise ParameterError("Preparation(mean, std)", why, "one mean and one positive std for every channel")

    def __call__(self, x: Tensor) -> Tensor:
        """The input, on the device of x."""
        if self.mean:
            x = standardise(x, torch.tensor(self.mean), torch.tensor(self.std))
        layout = LAYOUTS.get(x.dim()) if self.channels_last else None
        return x if layout is None else x.contiguous(memory_format=layout)


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained Bayesian neural network with its likelihood and its preparation of the data.

    Args:
        bnn: the network.
        likelihood: of y given its output, with the scale that was learned, or its name; None takes the output itself
            for y.
        prepare: from raw examples to the network's input.

    >>> from mcrepar import bayesian
    >>> from mcrepar.likelihoods import Normal
    >>> model = TrainedModel(bayesian(nn.Linear(2, 1)), Normal("learned"), Preparation((1.0, 5.0), (2.0, 1.0)))
    >>> model.predict(torch.zeros(3, 2), draws=10).mean.shape
    torch.Size([3, 1])
    """

    bnn: BayesianModule
    likelihood: Likelihood | None = None
    prepare: Preparation = field(default_factory=Preparation)

    def __post_init__(self) -> None:
        object.__setattr__(self, "likelihood", likelihood_of(self.likelihood))

    def to(self, device: torch.device | str) -> TrainedModel:
        """The same model, moved to a device."""
        self.bnn.to(device)
        if self.likelihood is not None:
            self.likelihood.to(device)
        return self

    def batches(self, x: Any, batch_size: int = 256) -> Batches:
        """Raw examples as batches of the network's input, in its precision, for `predict`.

        Args:
            x: a tensor or an array, (examples, ...).
            batch_size: examples of each.
        """
        dtype = next((p.dtype for p in self.bnn.parameters() if p.is_floating_point()), torch.float32)
        found = Batches(self.prepare, torch.as_tensor(x), whole_number("batch_size", batch_size), dtype)
        self._warn_of_units(found.x)
        return found

    def _warn_of_units(self, x: Tensor) -> None:
        """Say that real numbers are far from the training data, as images of 0 to 255 are where uint8 was meant."""
        if not (self.prepare.mean and x.is_floating_point() and x.device.type == "cpu" and len(x)):
            return
        away = float(self.prepare(x[:16]).abs().mean())
        if away > FAR:
            warnings.warn(
                f"in the mean the examples are {away:.0f} standard deviations away from the training data; images with "
                "values of 0 to 255 belong into uint8, or are divided by 255",
                stacklevel=outside(),
            )

    def predict(
        self,
        x: Any,
        draws: int | str = 100,
        batch_size: int = 256,
        generator: torch.Generator | None = None,
        progress: bool = False,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> Prediction:
        """Prepare raw examples and predict y with the model's own likelihood; the arguments are those of `predict`.

        Args:
            x: raw examples, a tensor or an array, (examples, ...).
            draws: the number of draws of the weights, or "moments".
            batch_size: how many examples go through the network at once.
            generator: the source of the draws; None is the default RNG.
            progress: show a bar, where rich is installed.
            max_bytes: up to which the samples are kept.
        """
        batches = self.batches(x, batch_size)
        return predict(self.bnn, batches, draws, batch_size, self.likelihood, generator, progress, max_bytes=max_bytes)

    def save(self, folder: str | os.PathLike[str], *, keep_calibration_data: bool = False) -> None:
        """Write network, likelihood and preparation to a folder, as `mcrepar.save` does.

        Args:
            folder: as for `mcrepar.save`; `mcrepar.load` gives the network alone.
            keep_calibration_data: as for `mcrepar.save`.
        """
        write_model(self.bnn, folder, self.likelihood, asdict(self.prepare), keep_data=keep_calibration_data)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], net: nn.Module) -> TrainedModel:
        """What was saved, around a plain network of the same architecture.

        Args:
            folder: written by `TrainedModel.save` or `mcrepar.save`; without a likelihood or a preparation in it, the
                model has none.
            net: as for `mcrepar.load`.

        Raises:
            ParameterError: where the folder is damaged, or of another network.
        """
        bnn, likelihood, prepare = read_model(folder, net)
        try:
            return cls(bnn, likelihood, preparation_from(prepare))
        except (LookupError, TypeError, ValueError) as error:
            why = f"its preparation of the data is of another form ({type(error).__name__}: {error})"
            raise ParameterError(f"load({os.fspath(folder)!r})", why, "a folder that mcrepar.save wrote") from None


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of input, prepared anew at every pass: a float copy of all examples may not fit into the memory.

    Args:
        prepare: from raw examples to input.
        x: raw, (examples, ...).
        batch_size: examples of each.
        dtype: of input of real numbers.
    """

    prepare: Preparation
    x: Tensor
    batch_size: int
    dtype: torch.dtype

    def __iter__(self) -> Iterator[Tensor]:
        for k in range(0, len(self.x), self.batch_size):
            batch = self.prepare(self.x[k : k + self.batch_size])
            yield batch.to(self.dtype) if batch.is_floating_point() else batch


def preparation_from(item: Any) -> Preparation:
    """What was described by `dataclasses.asdict`; None is the one that changes nothing.

    >>> preparation_from({"mean": [0.5], "std": [1.0], "channels_last": False})
    Preparation(mean=(0.5,), std=(1.0,), channels_last=False)
    """
    if item is None:
        return Preparation()
    mean, std = (tuple(float(number) for number in item[key]) for key in ("mean", "std"))
    if len(mean) != len(std):
        raise ValueError(f"{len(mean)} means and {len(std)} standard deviations")
    return Preparation(mean, std, bool(item["channels_last"]))
