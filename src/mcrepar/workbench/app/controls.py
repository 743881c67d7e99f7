"""The controls of a view: rows that know their label, their bounds, how a text is read and how the field is drawn.

What comes from a page is never trusted: `read` takes any object and either returns a value within the bounds or raises
a FieldError with the sentence that the field shows.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from htmltools import Tag, tags
from shiny import ui

_LONGEST = 200  # characters of a value that are looked at


class FieldError(ValueError):
    """A value that a field refuses, as the sentence that it shows; `name` is the control."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.name = name


@dataclass(frozen=True)
class Control(ABC):
    """A field of a view.

    Args:
        name: its name in links and settings.
        label: what the user reads.
        default: its text when the page opens.
        hint: a line under the field.
        needs: the values of other controls with which it is shown, by name; empty means always.
    """

    name: str
    label: str
    default: str
    hint: str = ""
    needs: Mapping[str, Sequence[str]] | None = None

    @abstractmethod
    def read(self, raw: object) -> Any:
        """The value of what the page sent."""

    @abstractmethod
    def field(self, id: str, text: str) -> Tag:
        """The field, showing `text`."""

    def text(self, raw: object) -> str:
        """What the page sent, as links and settings spell it."""
        if isinstance(raw, bool):
            return "true" if raw else "false"
        text = str(raw)[:_LONGEST] if isinstance(raw, str | int | float) else f"a {type(raw).__name__}"
        return text.encode("utf-8", "replace").decode().strip()  # half of a surrogate pair cannot be sent back

    def frozen(self, texts: Sequence[str]) -> Control:
        """The same control with a few values to choose from, for a page without a server."""
        return Choice(self.name, self.label, texts[0], self.hint, self.needs, {text: text for text in texts})

    def drawn(self, prefix: str, text: str) -> Tag:
        """The field with its hint and the place of its error, tied together for a screen reader."""
        id = f"{prefix}_{self.name}"
        field = self.field(id, text)
        conditions = {f"data-needs-{name}": " ".join(values) for name, values in (self.needs or {}).items()}
        error = tags.p({"class": "error", "id": f"{id}-error", "role": "alert"})
        hint = tags.p({"class": "hint", "id": f"{id}-hint"}, self.hint) if self.hint else None
        return tags.div({"class": "control", "data-control": self.name, **conditions}, field, hint, error)


@dataclass(frozen=True)
class Number(Control):
    """A number within bounds, or one of a few words that stand for one.

    Args:
        least: the smallest value.
        most: the largest value.
        whole: whether it is a whole number.
        blank: whether it may be left empty, which reads as None.
        words: names that stand for a number, such as networks.
        presets: texts to choose from beside the field and what they say, by group.
    """

    least: float = 0.0
    most: float = math.inf
    whole: bool = False
    blank: bool = False
    words: tuple[str, ...] = ()
    presets: Mapping[str, Mapping[str, str]] | None = None

    def read(self, raw: object) -> Any:
        """The number, the word where one was typed, or None where it was left empty."""
        text = self.text(raw)
        if not text:
            if self.blank:
                return None
            raise FieldError("Type a number." if not self.words else "Type a number or a name.")
        word = self.word(text)
        if word is not None:
            return word
        try:
            value = parse_number(text)
        except ValueError:
            near = " or a name from the list" if self.words else ""
            raise FieldError(f"“{text[:30]}” is no number; type one such as {self._example}{near}.") from None
        if value < self.least:
            raise FieldError(f"{text[:30]} is too small: at least {spelled(self.least)}.")
        if value > self.most:
            raise FieldError(f"{text[:30]} is too large: at most {spelled(self.most)}.")
        if self.whole and value != math.floor(value):
            raise FieldError(f"{text[:30]} is not a whole number.")
        return int(value) if self.whole else value

    def word(self, text: str) -> str | None:
        """The name that `text` means: spelled in any case, with or without hyphens and a family's prefix."""
        wanted = _letters(text)
        exact = [word for word in self.words if _letters(word) == wanted]
        ending = [word for word in self.words if _letters(word).endswith(wanted)] if not wanted.isdigit() else []
        return next(iter(exact or (ending if len(ending) == 1 else [])), None)

    @property
    def _example(self) -> str:
        return self.default if parses(self.default) else spelled(max(self.least, 1))

    def field(self, id: str, text: str) -> Tag:
        field = ui.input_text(id, self.label, text)
        _input(field, inputmode="text" if self.words else "decimal")
        return tags.div({"class": "combined"}, field, self._menu()) if self.presets else field

    def _menu(self) -> Tag:
        """The presets. It has no id, so that Shiny takes the field alone for an input."""
        groups = [
            tags.optgroup({"label": name}, *(tags.option({"value": text}, says) for text, says in texts.items()))
            for name, texts in (self.presets or {}).items()
        ]
        title = f"{self.label}: presets"
        return tags.select({"class": "presets", "aria-label": title, "title": title}, *groups)


@dataclass(frozen=True)
class Choice(Control):
    """One of a few values, by name and by what the user reads."""

    choices: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None

    @property
    def options(self) -> Mapping[str, str]:
        """The values and their labels, now."""
        return self.choices() if callable(self.choices) else self.choices or {}

    def read(self, raw: object) -> str:
        text = self.text(raw)
        if text not in self.options:
            raise FieldError(f"“{text[:30]}” is not in the list." if self.options else "There is nothing to choose.")
        return text

    def field(self, id: str, text: str) -> Tag:
        options = dict(self.options)
        return ui.input_select(id, self.label, options, selected=text if text in options else None)

    def frozen(self, texts: Sequence[str]) -> Control:
        return replace(self, default=texts[0], choices={text: self.options[text] for text in texts})


@dataclass(frozen=True)
class Switch(Control):
    """On or off."""

    def read(self, raw: object) -> bool:
        text = self.text(raw)
        if text not in ("true", "false"):
            raise FieldError("It is on or off.")
        return text == "true"

    def field(self, id: str, text: str) -> Tag:
        return ui.input_checkbox(id, self.label, text == "true")

    def frozen(self, texts: Sequence[str]) -> Control:
        words = {"true": "yes", "false": "no"}
        return Choice(self.name, self.label, texts[0], self.hint, self.needs, {text: words[text] for text in texts})


@dataclass(frozen=True)
class Slider(Control):
    """A number that can be dragged, between bounds and in steps."""

    least: float = 0.0
    most: float = 1.0
    step: float = 0.01

    def read(self, raw: object) -> float:
        value: float = Number(self.name, self.label, self.default, least=self.least, most=self.most).read(raw)
        return value

    def field(self, id: str, text: str) -> Tag:
        slider = tags.input(
            id=id, type="range", min=self.least, max=self.most, step=self.step, value=text, class_="dragged"
        )
        shown = tags.output({"for": id}, text)
        return tags.div({"class": "form-group"}, tags.label({"for": id}, self.label, " ", shown), slider)


def _input(field: Tag, **attributes: Any) -> None:
    """Give the input inside a field more attributes."""
    for child in field.children:
        if isinstance(child, Tag) and child.name == "input":
            child.attrs.update(**attributes)


def parse_number(text: str) -> float:
    """A number as people type it.

    >>> parse_number("10^6"), parse_number("1,000"), parse_number("2e-4")
    (1000000.0, 1000.0, 0.0002)
    """
    plain = re.sub(r"(?<=\d)[ ,_\u202f](?=\d)", "", text.strip().replace("\u2212", "-"))
    power = re.fullmatch(r"(?:([+-]?[\d.]+)\s*[*x\u00b7\u00d7]\s*)?10\^([+-]?\d{1,3})", plain)
    if power:
        plain = f"{power[1] or 1}e{power[2]}"
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", plain):
        raise ValueError(text)
    return float(plain)


def parses(text: str) -> bool:
    """Whether a text is a number."""
    try:
        parse_number(text)
    except ValueError:
        return False
    return True


def spelled(value: float) -> str:
    """A number for people: whole ones with commas, others with six digits.

    >>> spelled(1e6), spelled(1e-12), spelled(0.25)
    ('1,000,000', '1e-12', '0.25')
    """
    return f"{int(value):,}" if value == math.floor(value) and abs(value) < 1e15 else f"{value:g}"


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
