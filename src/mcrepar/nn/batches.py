"""What goes into a network and comes out: the same batches of x at every pass, and the one tensor of an output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, IterableDataset

from mcrepar.errors import ParameterError

_MOVED: Any = (Tensor, PackedSequence)
Output = int | str | Callable[[Any], Tensor] | None
MISFIT = re.compile(r"cannot be multiplied|expected input|Expected \dD|should contain \d+ elements|size mismatch")
OTHER_DTYPE = re.compile(r"the same dtype|expected scalar type|Input type \(.*\) and (weight|bias) type")
OTHER_ARGUMENTS = re.compile(r"forward\(\) (takes .* given|got an unexpected keyword|missing \d+ required)")


def from_numpy(value: Any, net: nn.Module) -> Any:
    """The same, with numpy arrays as tensors on the network's device, real numbers in its precision.

    >>> from_numpy({"x": np.zeros((2, 3))}, nn.Linear(3, 1))["x"].dtype
    torch.float32
    """
    if isinstance(value, Tensor):
        return value
    reference = next((p for p in net.parameters() if p.is_floating_point()), torch.empty(0))

    def tensor(array: np.ndarray[Any, Any]) -> Tensor:
        try:
            found = torch.from_numpy(np.array(array, order="C"))  # a copy: torch takes no reversed or read-only one
        except TypeError:
            why = f"torch has no {array.dtype}"
            raise ParameterError("a numpy array", why, "numbers, for instance array.astype('float32')") from None
        return found.to(reference.device, reference.dtype if found.is_floating_point() else found.dtype)

    if isinstance(value, Mapping):
        value = dict(value)
    return pytree.tree_map_only(np.ndarray, tensor, value, lambda part: isinstance(part, PackedSequence))


class Batches:
    """The batches of x as arguments of a network, the same ones at every pass.

    Args:
        x: a tensor or array, a tuple of arguments or a dict of keyword arguments, cut along dimension 0; or an iterable
            of batches in a fixed order, of which a tuple or list means (inputs, targets, ...).
        size: of the batches that x is cut into.
        net: on whose device they go.

    >>> [args[0].tolist() for args, _ in Batches(torch.arange(5), 3, nn.Linear(2, 1))]
    [[0, 1, 2], [3, 4]]
    """

    def __init__(self, x: Any, size: int, net: nn.Module) -> None:
        self.whole = isinstance(x, Tensor | np.ndarray | tuple | Mapping) and not isinstance(x, PackedSequence)
        self.x, self.size, self.net = from_numpy(x, net) if self.whole else x, size, net
        self.device = next((p.device for p in net.parameters()), torch.device("cpu"))
        self.first: list[Tensor] | None = None
        if isinstance(x, PackedSequence):
            why = "its examples are not in dimension 0, where x is cut into batches"
            raise ParameterError("predict(bnn, x) with x a PackedSequence", why, "[x], a list of batches")
        asked = f"predict(bnn, x) with x a {type(x).__name__}"
        if isinstance(x, Dataset) and not isinstance(x, IterableDataset):
            raise ParameterError(asked, "its items are no batches", "DataLoader(x, batch_size=256)")
        if not self.whole and (not isinstance(x, Iterable) or iter(x) is x):
            raise ParameterError(asked, "every draw must read it anew", "a tensor, a list of batches or a DataLoader")

    def __iter__(self) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        for k, inputs in enumerate(self._cut() if self.whole else self._read()):
            inputs = from_numpy(inputs, self.net)
            if not isinstance(inputs, Tensor | tuple | list | Mapping):
                kind = type(inputs).__name__
                raise ParameterError("predict(bnn, x)", f"a batch of x is a {kind}", "tensors, tuples or dicts")
            leaves, spec = pytree.tree_flatten(inputs, lambda part: isinstance(part, PackedSequence))
            if k == 0 and not self.whole:
                self._check_first(leaves)
            # copies: a network that writes to its input finds at every draw what was given
            own = {id(leaf): self._own(leaf) for leaf in leaves if isinstance(leaf, _MOVED)}
            inputs = pytree.tree_unflatten([own.get(id(leaf), leaf) for leaf in leaves], spec)
            if isinstance(inputs, Mapping):
                yield (), dict(inputs)
            else:
                yield ((inputs,) if isinstance(inputs, Tensor) or hasattr(inputs, "_fields") else tuple(inputs)), {}

    def _own(self, leaf: Any) -> Any:
        """A copy on the network's device; of what is packed only where it moves, for torch does not copy it."""
        return leaf.to(device=self.device, **({"copy": True} if isinstance(leaf, Tensor) else {}))

    def check_rows(self, rows: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse an output without a row for every example that x was cut into."""
        if self.whole and rows != (count := examples(args, kwargs)):
            why = f"the network gives {rows} {'row' if rows == 1 else 'rows'} for {count} examples"
            raise ParameterError("predict(bnn, x)", why, "[x], a list of batches, where x is one batch by itself")

    def _cut(self) -> Iterator[Any]:
        leaves, spec = pytree.tree_flatten(dict(self.x) if isinstance(self.x, Mapping) else self.x)
        lengths = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()}
        if len(lengths) != 1:
            why = f"its tensors have the lengths {sorted(lengths)}" if lengths else "it holds no tensor with examples"
            raise ParameterError("predict(bnn, x)", why, "tensors with the examples in dimension 0")
        for k in range(0, lengths.pop(), self.size):
            cut = [t[k : k + self.size] if isinstance(t, Tensor) and t.dim() else t for t in leaves]
            yield pytree.tree_unflatten(cut, spec)

    def _read(self) -> Iterator[Any]:
        for batch in self.x:
            several = isinstance(batch, tuple | list) and not isinstance(batch, PackedSequence)
            yield batch[0] if several and batch else batch

    def _check_first(self, leaves: list[Any]) -> None:
        """All draws must see the same examples in the same order."""
        tensors = [leaf.data for leaf in leaves if isinstance(leaf, Tensor | PackedSequence)]
        if self.first is None:
            self.first = [t.clone() for t in tensors]
        elif len(self.first) != len(tensors) or not all(map(torch.equal, self.first, tensors)):
            raise ParameterError(
                "predict(bnn, x)", "x gives its examples in another order every time", "shuffle=False, no augmentation"
            )


def copies(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments whose tensors are copies: a forward that runs once more finds what the first one may have written to.

    >>> x = torch.zeros(2)
    >>> (a, b), _ = copies((x, x), {})
    >>> a is b, a is x
    (True, False)
    """
    own: dict[int, Tensor] = {}  # what is given twice stays one tensor, as attention asks of its query and key

    def copy(tensor: Tensor) -> Tensor:
        return own[id(tensor)] if id(tensor) in own else own.setdefault(id(tensor), tensor.clone())

    found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(Tensor, copy, (args, dict(kwargs)))
    return found


def one_more(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Copies of the arguments whose last example is there twice; None where they hold more than tensors and numbers.

    >>> one_more((torch.tensor([3, 5]), 7), {})
    ((tensor([3, 5, 5]), 7), {})
    """
    leaves = pytree.tree_leaves((args, dict(kwargs)), lambda part: isinstance(part, PackedSequence))
    batch, known = examples(args, kwargs), (Tensor, int, float, str, type(None))
    if not batch or not all(isinstance(leaf, known) for leaf in leaves):
        return None
    own: dict[int, Tensor] = {}  # as in `copies`

    def longer(tensor: Tensor) -> Tensor:
        again = tensor.dim() > 0 and len(tensor) == batch
        return own.setdefault(id(tensor), torch.cat([tensor, tensor[-1:]]) if again else tensor.clone())

    found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(Tensor, longer, (args, dict(kwargs)))
    return found


def examples(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The number of examples of a batch: the length of the first tensor that is passed, or of what is packed there.

    >>> examples((nn.utils.rnn.pack_sequence([torch.ones(5, 3), torch.ones(2, 3)]),), {})
    2
    """
    leaves = pytree.tree_leaves((args, dict(kwargs)), lambda part: isinstance(part, PackedSequence))
    for leaf in leaves:
        if isinstance(leaf, PackedSequence):
            return int(leaf.batch_sizes[0])
        if isinstance(leaf, Tensor) and leaf.dim():
            return len(leaf)
    return 1


def real_tensors(x: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of real numbers in x, with their places."""
    if isinstance(x, Tensor):
        if x.is_floating_point():
            yield "x", x
        return
    for path, leaf in pytree.tree_flatten_with_path(dict(x) if isinstance(x, Mapping) else x)[0]:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield f"x{pytree.keystr(path)}", leaf


@contextmanager
def fitting(asked: str, net: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """What torch says of an input that does not fit a network, as a sentence that names the input's shape."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        if OTHER_ARGUMENTS.search(str(error)):
            why = f"the network takes other arguments than the {len(args) + len(kwargs)} in x ({error})"
            raise ParameterError(asked, why, "Give a tensor, or a tuple or dict of just its arguments.") from error
        shaped, typed = MISFIT.search(str(error)), OTHER_DTYPE.search(str(error))
        if not shaped and not typed:
            raise
        given = real_tensors(args[0] if len(args) == 1 and not kwargs else kwargs or args)
        what = ", ".join(f"{name} of shape {tuple(t.shape)} and {t.dtype}" for name, t in given) or "this x"
        dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
        instead = "examples of the shape that its layers were built for" if shaped else f"x.to({dtype})"
        raise ParameterError(asked, f"the network cannot take {what} ({error})", instead) from error


def the_tensor(out: Any, output: Output) -> Tensor:
    """The one tensor, (examples, ...), of a network's output, by an index, a key or a function where it returns more.

    >>> the_tensor({"logits": torch.zeros(2, 3)}, "logits").shape
    torch.Size([2, 3])
    """
    kind = type(out).__name__
    if callable(output):
        out = output(out)
    elif output is not None:
        try:
            out = out[output]
        except (KeyError, IndexError, TypeError) as error:
            raise ParameterError(f"output={output!r}", f"the network's {kind} has none: {error}", _keys(out)) from None
    if not isinstance(out, Tensor) or not out.dim() or not out.is_floating_point():
        what = f"{out.dtype} tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else kind
        raise ParameterError("the network's output", f"it is a {what}, not one output per example", _keys(out))
    return out


def check_examples(mean: Tensor, asked: str = "predict(bnn, x)") -> None:
    """Refuse outputs that are not finite, by their examples."""
    wrong = ~mean.isfinite().unsqueeze(-1).flatten(1).all(1)  # an empty batch has no example that is wrong
    if bool(wrong.any()):
        first, count = int(wrong.nonzero()[0]), int(wrong.sum())
        why = f"the output is not finite for {count} of {len(wrong)} examples, the first being {first}"
        raise ParameterError(asked, why, "an x without NaN or infinity, or look at the weights")


def with_bar(draws: Sequence[int], progress: bool) -> Iterable[int]:
    """The numbers of the draws, with a bar that shows how many are done if `progress`, where rich is installed."""
    if progress:
        with suppress(ImportError):
            from rich.progress import track

            return track(draws, description="draws")
    return draws


def _keys(out: Any) -> str:
    if isinstance(out, Mapping):
        return " or ".join(f"output={key!r}" for key in out) or "output=a function"
    return "output=0" if isinstance(out, tuple | list) else "output=a function that returns a tensor, (examples, ...)"
