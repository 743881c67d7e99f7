"""What can be chosen: noises, forms, statistics, and the two tables of posteriors and priors. No estimation.

`mcrepar.distributions.Radial(loc, scale)` and its like are the families as torch.distributions has them.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """A family as a torch distribution, made when it is first asked for."""
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    families = import_module("mcrepar.distributions.torch_families").FAMILIES
    if name not in families:
        raise AttributeError(f"module {__name__!r} has no family {name!r}; it has {', '.join(sorted(families))}")
    return families[name]
