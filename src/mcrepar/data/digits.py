"""The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn brings along."""

from __future__ import annotations

from pathlib import Path

import torch

from mcrepar.data.batches import hold_out
from mcrepar.data.dataset import Dataset, Split
from mcrepar.errors import ParameterError


def read_digits(root: Path | None = None, test_share: float = 0.2, seed: int = 0) -> Dataset:
    """The digits, split at random with the same shares of the classes.

    Args:
        root: not needed.
        test_share: of all digits, for the test set.
        seed: of the split.

    >>> read_digits().size
    (8, 8)
    """
    if root is not None:
        raise ParameterError(f"load('digits', root={str(root)!r})", "the digits come with scikit-learn", "no root")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ParameterError("load('digits')", "scikit-learn is not installed", "pip install scikit-learn") from error
    x, y = load_digits(return_X_y=True)
    x = torch.from_numpy(x).mul(255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)  # 17 grey levels, 0 to 16
    train, test = hold_out(Split(x, torch.from_numpy(y).long()), test_share, seed)
    return Dataset("digits", train, None, test, tuple("0123456789"), source="digits of scikit-learn")
