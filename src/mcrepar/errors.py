"""The errors of mcrepar: each message says what was asked, why it cannot be, and what to do instead."""

from __future__ import annotations


class McreparError(ValueError):
    """A request that cannot be met, in three parts: what was asked, why not, what to do instead.

    Args:
        asked: the request, as the user wrote it.
        why: the reason, a clause without a full stop.
        instead: what to do, a whole sentence; or only what to use, which becomes one.

    >>> str(McreparError("KL(gamma || dirichlet)", "the supports differ", "prior='gamma'"))
    "KL(gamma || dirichlet): the supports differ. Use prior='gamma'."
    >>> str(McreparError("mcrepar evaluate", "it runs in a single process", "Start it without torchrun."))
    'mcrepar evaluate: it runs in a single process. Start it without torchrun.'
    """

    def __init__(self, asked: str, why: str, instead: str) -> None:
        sentence = instead[:1].isupper() and instead.endswith(".") and not instead.endswith("...")
        super().__init__(f"{asked}: {why}. {instead if sentence else f'Use {instead}.'}")
        self.asked = asked
        self.why = why
        self.instead = instead

    def within(self, where: str) -> McreparError:
        """The same error, with the part of the request it is about."""
        return type(self)(f"{where}: {self.asked}", self.why, self.instead)

    def __reduce__(self) -> tuple[type[McreparError], tuple[str, str, str]]:
        return type(self), (self.asked, self.why, self.instead)


class SupportMismatchError(McreparError):
    """The posterior puts mass where the prior has none, so the KL is infinite."""


class InfiniteKLError(McreparError):
    """A moment that the KL needs does not exist, so the KL is infinite."""


class InfiniteVarianceError(McreparError):
    """The KL is finite, but its Monte Carlo estimate has no variance."""


class NoFiniteTupleError(McreparError):
    """No parameterization tuple of a size independent of M exists (Theorem F)."""


class MethodError(McreparError):
    """A method or option that does not apply to this pair."""


class ParameterError(McreparError):
    """A parameter of the wrong value, shape, dtype or device."""


class UnknownFamilyError(McreparError):
    """A name that is in neither table."""


class InfiniteVarianceWarning(UserWarning):
    """A forced Monte Carlo estimate whose variance is infinite."""


class CollapseWarning(UserWarning):
    """A posterior that says what its prior says: nothing of the data is left in it."""


class TaylorWarning(UserWarning):
    """A Taylor estimate: biased, and divergent as its degree grows."""


class QuadratureWarning(UserWarning):
    """A quadrature that did not reach its accuracy; the text has the estimated error."""
