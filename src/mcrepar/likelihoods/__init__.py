"""log p(y | the network's output), and what it says of y: the mean, the probabilities, the noise that stays."""

from __future__ import annotations

from collections.abc import Mapping

from mcrepar.errors import ParameterError
from mcrepar.likelihoods.classes import Bernoulli, Categorical, NoisyDirichlet, OneOfMany, PerVoxel
from mcrepar.likelihoods.likelihood import Likelihood
from mcrepar.likelihoods.normal import Normal

__all__ = [
    "LIKELIHOODS", "Bernoulli", "Categorical", "Likelihood", "NoisyDirichlet", "Normal", "OneOfMany", "PerVoxel",
    "likelihood_of",
]  # fmt: skip

LIKELIHOODS: Mapping[str, type[Likelihood]] = {"categorical": Categorical, "bernoulli": Bernoulli, "normal": Normal,
                                               "noisy_dirichlet": NoisyDirichlet, "per_voxel": PerVoxel}  # fmt: skip


def likelihood_of(asked: Likelihood | str | None) -> Likelihood | None:
    """A likelihood by its name, or as it is; None takes the network's outputs themselves for y.

    >>> likelihood_of("categorical")
    Categorical()
    """
    if asked is None or isinstance(asked, Likelihood):
        return asked
    if asked not in LIKELIHOODS:
        known = " or ".join(map(repr, LIKELIHOODS))
        raise ParameterError(f"likelihood={asked!r}", "there is no such likelihood", known)
    return LIKELIHOODS[asked]()
