"""From a posterior and a prior to a number: plan first, then apply.

The package is callable, because `mcrepar.kl(bnn)` is what users type and `mcrepar.kl` is where it lives.
"""

from __future__ import annotations

import sys
import types
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class _CallablePackage(types.ModuleType):
    def __call__(
        self, net: Any, method: str | None = None, n_mc_iter: int | None = None, generator: Any = None
    ) -> Tensor:
        """The sum of KL(q || p) over all random tensors of a network, in nats.

        Args:
            net: a Bayesian network, or one that holds Bayesian layers (wrapped for parallel training or not).
            method: instead of the one chosen when the network was made.
            n_mc_iter: likewise.
            generator: the source of the noise.
        """
        network = import_module("mcrepar.nn.module")  # when called, never when imported: kl knows no network
        total: Tensor = network.total_kl(net, method, n_mc_iter, generator)
        return total


sys.modules[__name__].__class__ = _CallablePackage
