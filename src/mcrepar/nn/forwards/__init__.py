"""How a sample of the weights enters the forward: one row per way, with what it refuses and how it runs.

weights      one sample of all weights, shared by the batch
local        the output of a dense or convolutional layer is drawn instead of its weights (local reparameterization):
             each output has its distribution, but positions of one example (pixels, tokens) have independent noise
flipout      one sample, whose noise is multiplied by random signs of every example
antithetic   one sample, whose noise has another sign for the second half of the batch
per_example  a sample of all weights of its own for every example
auto         local for dense layers whose rows are the examples (a third more time in an MLP of 50 units), one sample
             for all other layers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcrepar.distributions.posterior import Posterior
from mcrepar.nn.forwards import antithetic, auto, flipout, local, per_example
from mcrepar.nn.select import Place
from mcrepar.nn.swap import run

if TYPE_CHECKING:
    from mcrepar.nn.module import BayesianModule


@dataclass(frozen=True)
class Forward:
    """One way in which weights are drawn in a forward."""

    # run(bnn, args, kwargs) is the network's output
    run: Callable[[BayesianModule, tuple[Any, ...], Mapping[str, Any]], Any]
    # check(posterior, place) refuses a family or a layer that it does not suit
    check: Callable[[Posterior, Place], None] = lambda posterior, place: None


FORWARDS: dict[str, Forward] = {
    "weights": Forward(lambda bnn, args, kwargs: run(bnn, bnn.draw(), *args, **kwargs)),
    "local": Forward(local.run, local.check),
    "flipout": Forward(flipout.run, flipout.check),
    "antithetic": Forward(antithetic.run, antithetic.check),
    "per_example": Forward(per_example.run, per_example.check),
    "auto": Forward(auto.run),
}
