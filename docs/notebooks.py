"""Write docs/notebooks/*.ipynb from the tutorials, and the pictures of their pages.

    python docs/notebooks.py [NAME...]

A tutorial is the only source: its text becomes Markdown cells, its Python blocks code cells, which are run here, so
that a notebook reads well where nobody runs it. Where a block ends with a figure, the notebook holds it as a small PNG,
and docs/figures has it for light and dark pages, under the name of the image that follows. No Jupyter is needed.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "notebooks"
NOTEBOOKS = {"five_minutes": "your_network", "regression": "regression", "abstain": "breast_cancer"}
DPI, PAGE_DPI = 80, 130  # of pictures in a notebook, and on a page
SETUP = "%matplotlib inline\n# needed once: pip install 'mcrepar[train]'"
_FENCE = re.compile(r"^```python\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
_IMAGES = re.compile(r"\A\s*(?:!\[[^\]]*\]\(\S+\)\n?)+")
_SHOWN = re.compile(r"\]\(\.\./figures/(\w+)\.png(?:#only-light)?\)")
_NOTE = re.compile(r'^!!! \w+ "([^"]*)"\n((?:    .*\n?)+)', re.MULTILINE)


def cells(text: str) -> Iterator[tuple[str, str, str]]:
    """The cells of a page: markdown or code, the source, and the name of the picture that a code cell ends with."""
    end, found = 0, list(_FENCE.finditer(text))
    for place, match in enumerate(found):
        yield from _prose(text[end : match.start()])
        end = match.end()
        after = text[end : found[place + 1].start() if place + 1 < len(found) else None]
        images = _IMAGES.match(after)
        shown = _SHOWN.search(images[0]) if images else None
        if shown is not None:
            end += images.end()  # the output shows it
        yield "code", match[1].rstrip(), shown[1] if shown is not None else ""
    yield from _prose(text[end:])


def _prose(text: str) -> Iterator[tuple[str, str, str]]:
    """A Markdown cell, as other readers than the site understand it; none where there is no text."""
    text = re.sub(r"^\[The same as a notebook\]\(\S+\)\n", "", text, flags=re.MULTILINE)
    text = _NOTE.sub(lambda note: f"> **{note[1]}.** {' '.join(note[2].split())}\n", text)
    text = re.sub(r"\]\((\w+\.md)", r"](../tutorials/\1", text)
    if text.strip():
        yield "markdown", re.sub(r"\n{3,}", "\n\n", text.strip()), ""


def execute(codes: list[str], folder: Path) -> Iterator[tuple[str, Any]]:
    """Run code cells one after another in `folder`: what each prints, and the value of an expression at its end."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for number, code in enumerate(codes, 1):
            tree = ast.parse(code)
            if tree.body and isinstance(last := tree.body[-1], ast.Expr):
                tree.body[-1] = ast.Assign([ast.Name("_", ast.Store())], last.value)
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(ast.fix_missing_locations(tree), f"<cell {number}>", "exec"), names)
            yield printed.getvalue(), names.pop("_", None)
    finally:
        os.chdir(before)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _outputs(printed: str, value: Any, number: int) -> list[dict[str, Any]]:
    """What a reader sees under a cell, as nbformat has it."""
    from mcrepar.plots import png

    found: list[dict[str, Any]] = []
    if printed:
        found.append({"output_type": "stream", "name": "stdout", "text": _lines(printed)})
    if hasattr(value, "savefig"):
        picture = base64.b64encode(png(value, DPI)).decode() + "\n"
        data = {"image/png": picture, "text/plain": [str(value)]}
        found.append({"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}})
    elif value is not None:
        data = {"text/plain": _lines(repr(value))}
        found.append({"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}})
    return found


def sources(page: Path) -> list[tuple[str, str]]:
    """Kind and text of all cells of a notebook, with the one that only a notebook needs."""
    first, *rest = [(kind, text) for kind, text, _ in cells(page.read_text(encoding="utf-8"))]
    return [first, ("code", SETUP), *rest]


def write(name: str) -> None:
    """Run a tutorial, and write its notebook and its pictures."""
    from mcrepar.plots import png

    page = DOCS / "tutorials" / f"{NOTEBOOKS[name]}.md"
    found = list(cells(page.read_text(encoding="utf-8")))
    pictures = [picture for kind, _, picture in found if kind == "code"]
    outputs: list[list[dict[str, Any]]] = [[]]
    with tempfile.TemporaryDirectory() as folder:
        results = execute([text for kind, text, _ in found if kind == "code"], Path(folder))
        for number, ((printed, value), picture) in enumerate(zip(results, pictures, strict=True), 2):
            outputs.append(_outputs(printed, value, number))
            if picture:
                for suffix, dark in (("", False), ("-dark", True)):
                    (DOCS / "figures" / f"{picture}{suffix}.png").write_bytes(png(value, PAGE_DPI, dark))
    count, made = 0, []
    for place, (kind, text) in enumerate(sources(page)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{place}", "metadata": {}, "source": _lines(text)}
        if kind == "code":
            cell |= {"execution_count": count + 1, "outputs": outputs[count]}
            count += 1
        made.append(cell)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": made, "metadata": {**kernel, "language_info": {"name": "python"}}, "nbformat": 4}
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / f"{name}.ipynb"
    target.write_text(json.dumps({**whole, "nbformat_minor": 5}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"docs/notebooks/{target.name}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for asked in sys.argv[1:] or NOTEBOOKS:
        write(asked)
