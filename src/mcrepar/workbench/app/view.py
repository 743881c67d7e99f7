"""A view: its controls and the function from their values to an answer; everything else is made from this row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from mcrepar.workbench.app.answer import Answer
from mcrepar.workbench.app.controls import Control, FieldError

Texts = Mapping[str, str]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class View:
    """One page of the app.

    Args:
        name: in links.
        tab: on its tab.
        title: its heading.
        explanation: a few sentences in plain words.
        controls: its fields, in order.
        compute: the answer to values that the controls have let pass; raises FieldError or McreparError.
        more: controls that are shown only when asked for.
        lasting: whether the same settings have the same answer for ever.
        stored: for a page without a server: the texts that a control offers there, by name; its default elsewhere.
        group: the tab behind which it stands with others; "" has a tab of its own.
    """

    name: str
    tab: str
    title: str
    explanation: Sequence[str]
    controls: Sequence[Control]
    compute: Callable[[Values], Answer]
    more: Sequence[Control] = ()
    lasting: bool = True
    stored: Callable[[], Mapping[str, Sequence[str]]] = field(default=dict)
    group: str = ""

    @property
    def every(self) -> tuple[Control, ...]:
        """All controls."""
        return (*self.controls, *self.more)

    @property
    def defaults(self) -> dict[str, str]:
        """The texts with which the page opens."""
        return {control.name: control.default for control in self.every}

    def texts(self, raw: Mapping[str, object]) -> dict[str, str]:
        """What a page or a link sent, as texts; defaults where it sent nothing."""
        return {c.name: c.text(raw[c.name]) if c.name in raw else c.default for c in self.every}

    def read(self, texts: Texts) -> tuple[dict[str, Any], dict[str, str]]:
        """The values, and the errors of the fields that have none."""
        values: dict[str, Any] = {}
        errors: dict[str, str] = {}
        for control in self.every:
            hidden = any(texts[name] not in wanted for name, wanted in (control.needs or {}).items())
            try:
                values[control.name] = control.read(control.default if hidden else texts[control.name])
            except FieldError as error:
                errors[control.name] = error.text
        return values, errors

    def link(self, texts: Texts) -> str:
        """The query that restores these settings; what has its default value is left out."""
        changed = {name: text for name, text in texts.items() if text != self.defaults[name]}
        return urlencode({"view": self.name, **changed})
