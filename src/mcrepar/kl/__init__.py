"""From a posterior and a prior to a number: plan first, then apply.

The package is callable, because `mcrepar.kl(bnn)` is what users type and `mcrepar.kl` is where it lives.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class _CallablePackage(types.ModuleType):
    def __call__(
        self, bnn: Any, method: str | None = None, n_mc_iter: int | None = None, generator: Any = None
    ) -> Tensor:
        """The sum of KL(q || p) over all random tensors of a Bayesian network, in nats; see `BayesianModule.kl`."""
        module = bnn.module if hasattr(bnn, "module") and not hasattr(bnn, "kl") else bnn
        total: Tensor = module.kl(method, n_mc_iter, generator)
        return total


sys.modules[__name__].__class__ = _CallablePackage
