"""Notebooks are their tutorials: the same text, the same code, which test_docs runs, and small outputs."""

import base64
import importlib.util
import io
import json
import re
from pathlib import Path

import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def load(path):
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


notebooks = load(DOCS / "notebooks.py")
OUTPUTS = {
    "stream": {"output_type", "name", "text"},
    "execute_result": {"output_type", "execution_count", "data", "metadata"},
}


def read(name):
    return json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))


def test_every_notebook_has_a_page_and_every_page_says_so():
    assert sorted(path.stem for path in (DOCS / "notebooks").glob("*.ipynb")) == sorted(notebooks.NOTEBOOKS)
    for name, page in notebooks.NOTEBOOKS.items():
        text = (DOCS / "tutorials" / f"{page}.md").read_text(encoding="utf-8")
        assert f"[The same as a notebook](../notebooks/{name}.ipynb)" in text


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_a_notebook_is_up_to_date_with_its_page(name):
    """If not: python docs/notebooks.py."""
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in read(name)["cells"]]
    assert found == notebooks.sources(DOCS / "tutorials" / f"{notebooks.NOTEBOOKS[name]}.md")


def problems(book):
    """What nbformat 4.5 asks of a notebook, of the cells and outputs that occur here."""
    if (book["nbformat"], book["nbformat_minor"]) != (4, 5) or set(book["metadata"]["kernelspec"]) < {"name"}:
        yield "head"
    ids = [cell["id"] for cell in book["cells"]]
    if len(set(ids)) != len(ids) or not all(re.fullmatch(r"[\w-]{1,64}", each) for each in ids):
        yield "ids"
    for cell in book["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        keys |= {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        if cell["cell_type"] not in ("code", "markdown") or cell.keys() != keys:
            yield f"{cell['id']}: keys"
        if not all(isinstance(line, str) for line in cell["source"]):
            yield f"{cell['id']}: source"
        for output in cell.get("outputs", ()):
            if output.keys() != OUTPUTS.get(output["output_type"]):
                yield f"{cell['id']}: output"


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_a_notebook_is_one(name):
    assert list(problems(read(name))) == []
    nbformat = pytest.importorskip("nbformat", reason="its own check besides")
    nbformat.validate(nbformat.reads(json.dumps(read(name)), as_version=4))


def test_a_notebook_that_is_none_is_noticed():
    book = read("regression")
    for change in ({"nbformat": 3}, {"cells": [{**book["cells"][0], "outputs": []}]}, {"cells": book["cells"][:1] * 2}):
        assert list(problems({**book, **change}))


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_a_notebook_reads_well_without_being_run(name):
    path, book = DOCS / "notebooks" / f"{name}.ipynb", read(name)
    assert path.stat().st_size < 300_000
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    for picture in pictures:
        assert min(imread(io.BytesIO(base64.b64decode(picture))).shape[:2]) > 200
    text = "".join("".join(output.get("text", ())) for output in outputs)
    assert text
    assert not re.search(r"Traceback|Warning|/(home|root|tmp|work)/", text)
    assert not re.search(r"savefig|open\(", "".join("".join(cell["source"]) for cell in code)), "it shows its figures"


@pytest.mark.parametrize("page", notebooks.NOTEBOOKS.values())
def test_pictures_of_a_page_follow_the_block_that_draws_them(page):
    text = (DOCS / "tutorials" / f"{page}.md").read_text(encoding="utf-8")
    drawn = [picture for _, _, picture in notebooks.cells(text) if picture]
    assert drawn == re.findall(r"!\[[^\]]+\]\(\.\./figures/(\w+)\.png\)", text)
    for picture in drawn:
        light, dark = (imread(DOCS / "figures" / f"{picture}{suffix}.png") for suffix in ("", "-dark"))
        assert light.shape == dark.shape
        assert light[0, 0, :3].min() > 0.99
        assert dark[0, 0, :3].max() < 0.2


PAGE = """# Title
[The same as a notebook](x.ipynb)

!!! note "A note"
    of two
    lines

```python
x = 3
print("hello")
x + 1
```
See [another](other.md#place).
```sh
make test
```
```python
from mcrepar.plots.style import panel

panel("A title", "x", "y")[0]
```
![a picture](../figures/drawn.png)

The end.
"""


def test_a_page_becomes_cells_and_cells_run(tmp_path):
    found = list(notebooks.cells(PAGE))
    assert [kind for kind, _, _ in found] == ["markdown", "code", "markdown", "code", "markdown"]
    assert found[0][1] == "# Title\n\n> **A note.** of two lines"
    assert "(../tutorials/other.md#place)" in found[2][1]
    assert "make test" in found[2][1]
    assert found[3][2] == "drawn"
    assert found[4][1] == "The end."
    before = Path.cwd()
    results = list(notebooks.execute([text for kind, text, _ in found if kind == "code"], tmp_path))
    assert results[0] == ("hello\n", 4)
    assert hasattr(results[1][1], "savefig")
    assert Path.cwd() == before
    with pytest.raises(ZeroDivisionError):
        list(notebooks.execute(["1 / 0"], tmp_path))
    assert Path.cwd() == before
