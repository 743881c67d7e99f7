"""How a sample of the weights enters the forward: one row per way, with what it refuses and how it runs.

weights      one sample of all weights, shared by the batch
local        the output of a dense or convolutional layer is drawn instead of its weights (local reparameterization):
             each output has its distribution, but positions of one example (pixels, tokens) have independent noise
flipout      one sample, whose noise is multiplied by random signs of every example
per_example  a sample of all weights of its own for every example
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcrepar.distributions.posterior import Posterior
from mcrepar.nn.forwards import flipout, local, per_example
from mcrepar.nn.select import Place
from mcrepar.nn.swap import run

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule


@dataclass(frozen=True)
class Forward:
    """One way in which weights are drawn in a forward.

    Args:
        run: run(bnn, args, kwargs) is the network's output.
        check: check(posterior, place) refuses a family or a layer that it does not suit.
    """

    run: Callable[[BayesianModule, tuple[Any, ...], Mapping[str, Any]], Any]
    check: Callable[[Posterior, Place], None] = lambda posterior, place: None


FORWARDS: dict[str, Forward] = {
    "weights": Forward(lambda bnn, args, kwargs: run(bnn, bnn.draw(), *args, **kwargs)),
    "local": Forward(local.run, local.check),
    "flipout": Forward(flipout.run, flipout.check),
    "per_example": Forward(per_example.run, per_example.check),
}
