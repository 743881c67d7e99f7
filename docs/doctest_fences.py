"""An extension of griffe, which reads the docstrings for the site: their doctests become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to the next empty line


class DoctestFences(griffe.Extension):
    """Fence every doctest, which Markdown would otherwise show as a quotation of a quotation."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring before it is rendered."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
