"""Networks to look into: those of runs, saved ones and fresh ones of the zoo, each with inputs to predict on.

Nothing outside the folder of runs is read, so the inputs are the images that an evaluation stored, or noise. Of a saved
network the folder knows the tensors alone, not the code that uses them: its posterior can be looked at, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mcrepar.distributions.posteriors import POSTERIORS
from mcrepar.errors import McreparError, ParameterError
from mcrepar.likelihoods import Categorical, Likelihood
from mcrepar.models import MODELS, model
from mcrepar.nn.model_folder import CONFIG
from mcrepar.nn.module import BayesianModule, bayesian
from mcrepar.nn.saving import load
from mcrepar.user_files import read_json
from mcrepar.workbench.app.memory_budget import network_sides
from mcrepar.workbench.app.runs import MOST_BYTES, Runs, inside
from mcrepar.workbench.training.config import read_config
from mcrepar.workbench.training.setup import build_network, open_run
from mcrepar.workbench.training.task import Facts

_LEFT_OUT = ("vgg.VGG", "preact_resnet.PreActResNet", "densenet.DenseNet",  # too large or too deep for a page
             "unet.UNet2D", "unet.UNet3D")  # of a class per voxel  # fmt: skip
ZOO = {f"zoo:{name}": f"{name}, untrained" for name in sorted(MODELS, key=lambda name: name != "small_conv")
       if MODELS[name].home not in _LEFT_OUT}  # the first one is shown first  # fmt: skip
NOISE = "noise, as standardised data would be"
_RANDOM = ("uniform_", "normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "trunc_normal_")
_MOST_WEIGHTS = 80_000_000
_FEW = 1_000_000  # weights, from which on fewer inputs are predicted
_MOST_NUMBERS = 2**24  # of all inputs
_WRONG = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, OSError, MemoryError)


@dataclass(frozen=True, eq=False)
class Network:
    """A network and what it can be tried on.

    Args:
        bnn: in eval mode.
        likelihood: of y given its output; None where it is not known.
        x: inputs as the network takes them; None where it cannot be called.
        inputs: what they are.
        code: Python that makes `bnn`, and `x` and `likelihood` where it can be called.
        notes: what a reader must know of it.
    """

    bnn: BayesianModule
    likelihood: Likelihood | None
    x: Tensor | None
    inputs: str
    code: str
    notes: tuple[str, ...] = ()


class _Seeded(TorchFunctionMode):
    """Initial weights from a generator of their own: torch's default one is shared by all threads."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = {"generator": self.generator} if func.__name__ in _RANDOM else {}
        return func(*args, **{**(kwargs or {}), **own})


def zoo_network(name: str, posterior: str, prior: str) -> Network:
    """A network of the zoo with random initial weights, 10 classes and inputs of 3 channels and 32 to a side.

    Args:
        name: a key of `mcrepar.models.MODELS`.
        posterior: its name.
        prior: its name.
    """
    sides = network_sides(name)
    with _Seeded():
        net = model(name, size=sides)
    signs = "keep" if POSTERIORS[posterior].support.lower >= 0 else ""
    bnn = bayesian(net, posterior, prior, signs=signs).eval()
    x = _noise(bnn, 3, sides)
    if x is not None and bnn.calibration.layers:
        bnn.calibrate(x)
    given = f', signs="{signs}"' if signs else ""
    code = (
        f'net = mcrepar.models.model("{name}", size={sides})\n'
        f'bnn = mcrepar.bayesian(net, "{posterior}", "{prior}"{given})\n'
        f'x, likelihood = torch.randn{(len(x) if x is not None else 1, 3, *sides)}, "categorical"'
    )
    code += "\nbnn.calibrate(x)  # BatchNorm" if bnn.calibration.layers else ""
    note = f"{name} ({MODELS[name].summary}) is as it was initialised: this is where a training begins."
    return Network(bnn, Categorical(), x, NOISE, code, (note,))


def stored_network(runs: Runs, name: str) -> Network:
    """The network of a run or of a folder that `mcrepar.save` wrote, below the folder of runs.

    Args:
        runs: the folder.
        name: of the run or saved network in it.
    """
    folder = runs.folder(name)
    _check_files(runs, folder)
    try:
        return _saved(runs, name) if (folder / CONFIG).is_file() else _of_run(runs, name)
    except McreparError:
        raise
    except _WRONG as error:
        why = f"it is damaged ({type(error).__name__}: {error})"
        raise ParameterError(f"network {name!r}", why, "a folder as mcrepar wrote it") from None


def network_files(folder: Path) -> list[Path]:
    """What a network in a folder is read from."""
    return [path for place in (folder, folder / "model", folder / "checkpoints") for path in sorted(place.glob("*"))]


def _shown(runs: Runs, name: str) -> Path:
    """The folder as a reader would name it, who sits where the app was started."""
    assert runs.root is not None
    return runs.root / name


def _check_files(runs: Runs, folder: Path) -> None:
    """Refuse links that lead outside the folder of runs, and more bytes than a page is made of."""
    assert runs.root is not None
    files = network_files(folder)
    for path in files:
        inside(runs.root, str(path), f"network {folder.name!r}: {path.name}")
    tensors = [path.stat().st_size for path in files if path.suffix in (".safetensors", ".pt") and path.is_file()]
    if max(tensors, default=0) > MOST_BYTES:
        why = f"its file of tensors has more than {MOST_BYTES / 2**20:.0f} MB"
        raise ParameterError(f"network {folder.name!r}", why, "bnn.diagnose() in Python")


def _of_run(runs: Runs, name: str) -> Network:
    folder = _shown(runs, name)
    config = read_config(folder / "config.yaml")
    facts = Facts.read(read_json(folder / "run.json")["data"])
    with torch.device("meta"):  # a network that does not fit must be refused before it is made
        weights = sum(p.numel() for p in build_network(config, facts).parameters())
    if weights > _MOST_WEIGHTS:
        raise ParameterError(f"network {name!r}", f"it has {weights:,} weights", "bnn.diagnose() in Python")
    run = open_run(folder)
    notes = [f"{run.note[:1].upper()}{run.note[1:]}."] if run.note else []
    if run.bnn.calibration.layers and run.bnn.calibration.kept is None:
        run.bnn.calibration.warned = True  # this note says it
        notes.append("BatchNorm uses stored statistics here; mcrepar evaluate finds those of every draw.")
    images = _stored_images(runs, name, facts)
    x = _noise(run.bnn, facts.channels, facts.size) if images is None else run.prepare(images)
    inputs = NOISE if images is None else f"the {len(images)} images that the evaluation stored"
    code = (
        "from mcrepar.workbench.training.setup import open_run\n\n"
        f"run = open_run({str(folder)!r})\nrun.calibrate()  # BatchNorm, if there is any\n"
        "bnn, likelihood = run.bnn, run.likelihood\n"
        f"x = run.prepare(run.dataset.test{'.middle()' if facts.voxels else ''}.x[:100])"
    )
    return Network(run.bnn, run.likelihood, x, inputs, code, tuple(notes))


def _stored_images(runs: Runs, name: str, facts: Facts) -> Tensor | None:
    """The images of an evaluation where they are whole: neither slices of volumes nor made smaller."""
    try:
        arrays = runs.open(name).arrays
    except ParameterError:  # the view of runs says it
        return None
    images, places = arrays.get("thumbnails"), arrays.get("thumbnail_indices")
    if images is None or places is None or images.shape[1:] != (*facts.size, facts.channels) or not len(images):
        return None
    _, first = np.unique(places, return_index=True)  # one may be stored twice: as doubtful and as a mistake
    return torch.from_numpy(images[first]).permute(0, 3, 1, 2).contiguous()


def _noise(bnn: BayesianModule, channels: int, size: tuple[int, ...]) -> Tensor | None:
    count = 32 if sum(p.numel() for p in bnn.parameters()) < 2 * _FEW else 8
    if count * channels * math.prod(size) > _MOST_NUMBERS:
        return None
    return torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(0))


# ---- saved networks


def _saved(runs: Runs, name: str) -> Network:
    folder = _shown(runs, name)
    bnn = load(folder, _without_code(read_json(folder / CONFIG))).eval()
    code = f"bnn = mcrepar.load({str(folder)!r}, net)  # net: the network that was given to bayesian"
    return Network(bnn, None, None, "", code, ("A saved network has no code: predictions need the network itself.",))


def _without_code(config: Mapping[str, Any]) -> nn.Module:
    """A module with the tensors that a saved network says it has, and no forward."""
    net, made, plain, tied = nn.Module(), dict[str, Any](), config["plain"], config["tied"]
    items = {name: item for item in config["random"] for name in item["names"]}
    first = {**{name: item["names"][0] for name, item in items.items()}, **tied}
    aspects = {**plain, **items, **{name: plain[other] for name, other in tied.items()}}
    if sum(math.prod(item["shape"]) for item in aspects.values()) > _MOST_WEIGHTS:
        raise ParameterError("a saved network", "it has too many weights for a page", "bnn.diagnose() in Python")
    for name, item in aspects.items():
        key = first.get(name, name)
        if key not in made:
            zeros = torch.zeros(item["shape"], dtype=getattr(torch, item["dtype"]))
            made[key] = nn.Parameter(zeros) if name in items else zeros
        *path, last = name.split(".")
        owner = net
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        if name in items:
            owner.register_parameter(last, made[key])
        else:
            owner.register_buffer(last, made[key])
    return net
