"""With which power of x does y change?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def power(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the line through log x and log y.

    >>> round(power([1, 10, 100], [2.0, 0.2, 0.02]), 6)
    -1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
