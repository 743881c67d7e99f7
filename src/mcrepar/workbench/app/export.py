"""The app as one file for people who cannot run a server: every answer to a few values of each control, stored."""

from __future__ import annotations

import base64
import gzip
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from htmltools import HTML, TagList, tags

from mcrepar.errors import ParameterError
from mcrepar.user_files import write_file
from mcrepar.workbench.app.page import SCRIPTS, STATIC, document, plotly_script
from mcrepar.workbench.app.server import Answers
from mcrepar.workbench.app.view import View
from mcrepar.workbench.app.views import all_views

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"

Stored = Mapping[str, Sequence[str]]


def export_page(out: Path, runs: Path | None = None, stored: Mapping[str, Stored] | None = None) -> Path:
    """Write a self-contained page; it asks nothing of any machine.

    Args:
        out: the file.
        runs: the folder of runs, the newest of which are put in.
        stored: the texts that the controls offer, by view and control; None takes what each view suggests.
    """
    _check(out)
    views = all_views(runs)
    wanted = stored or {name: view.stored() for name, view in views.items() if not _empty(view)}
    frozen = [_frozen(views[name], texts) for name, texts in wanted.items()]
    answers = {name: _answers(views, views[name], texts) for name, texts in wanted.items()}
    _write(out, _page(frozen, answers))
    return out


def _empty(view: View) -> bool:
    """Whether there is nothing to choose, as where there are no runs."""
    return any(list(texts) == [""] for texts in view.stored().values())


def _frozen(view: View, stored: Stored) -> View:
    """The view with controls that offer what is stored, and without the others."""
    return replace(view, controls=[c.frozen(stored[c.name]) for c in view.every if c.name in stored], more=())


def _answers(views: Mapping[str, View], view: View, stored: Stored) -> dict[str, Any]:
    """The replies, by the texts of the controls in their order on the page."""
    answers = Answers(views)
    names = [control.name for control in view.every if control.name in stored]
    cases = list(product(*(stored[name] for name in names)))
    found = {}
    for number, texts in enumerate(cases, start=1):
        if sys.stderr.isatty():
            print(f"\r{view.tab}: {number} of {len(cases)}", end="", file=sys.stderr, flush=True)
        reply = answers.reply(view, dict(zip(names, texts, strict=True)), again=False)
        key = json.dumps(texts, separators=(",", ":"), ensure_ascii=False)
        found[key] = {part: reply[part] for part in ("answer", "link", "notice", "errors") if reply.get(part)}
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return found


def _page(views: Iterable[View], answers: Mapping[str, Any]) -> str:
    packed = gzip.compress(json.dumps(answers, separators=(",", ":"), ensure_ascii=False).encode(), mtime=0)
    text = base64.b64encode(packed).decode()
    head = TagList(
        tags.meta({"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        tags.style(HTML((STATIC / "app.css").read_text(encoding="utf-8"))),
        tags.script(HTML(plotly_script().read_text(encoding="utf-8"))),
    )
    scripts = [tags.script(HTML((STATIC / name).read_text(encoding="utf-8"))) for name in SCRIPTS]
    store = tags.script({"id": "stored", "type": "text/plain"}, HTML(text))
    return document(views, head, [store, *scripts])


def _check(out: Path) -> None:
    """Refuse before any work what could not be written after it."""
    asked = f"--export {out}"
    if out.is_dir():
        raise ParameterError(asked, "it is a folder", "the name of a file, such as app.html")
    if not out.parent.is_dir():
        raise ParameterError(asked, f"there is no folder {out.parent}", "a folder that exists")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ParameterError(asked, "it cannot be written", "a place where you may write")


def _write(out: Path, text: str) -> None:
    try:
        write_file(out, text)
    except OSError as error:
        raise ParameterError(f"--export {out}", str(error), "a place with room") from None
