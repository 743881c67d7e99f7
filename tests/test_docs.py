"""The documentation: every code block runs, every link leads somewhere, the built site asks no other host."""

import importlib.util
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import yaml

from mcrepar.cli import _parser
from mcrepar.experiments.catalogue import EXPERIMENTS
from mcrepar.kl.render import score_line
from mcrepar.kl.table import table1

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CONFIG = ROOT / "mkdocs.yml"


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load(DOCS / "build.py")
RUNNABLE = [page for page in (ROOT / "README.md", *PAGES) if "```python\n" in page.read_text(encoding="utf-8")]


def name(page):
    return str(page.relative_to(ROOT))


def commands():
    """Every `mcrepar ...` line of a shell block."""
    for page in (ROOT / "README.md", *PAGES):
        for _, block in build.blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("mcrepar "):
                    yield pytest.param(line, id=f"{name(page)}: {line[:60]}")


# ---- code


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_every_python_block_runs(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    assert len(list(build.blocks(page))) == text.count("```python\n")
    torch.manual_seed(0)
    build.run(page, tmp_path)


def test_a_wrong_block_is_noticed_with_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        build.run(page, tmp_path)
    assert caught.traceback[-1].lineno + 1 == 7
    assert Path.cwd() != tmp_path


@pytest.mark.parametrize("line", list(commands()))
def test_every_command_is_accepted(line):
    _parser().parse_args(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=name)
def test_tutorials_show_the_pictures_that_they_save(page):
    text = page.read_text(encoding="utf-8")
    saved = set(re.findall(r'savefig\("([^"]+)"', text))
    shown = {Path(target).name for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)}
    assert saved == shown


# ---- links


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(page):
    """The ids of the headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]*(?:\.\w+|#[\w-]+))\)", without_code(page.read_text(encoding="utf-8"))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{name(page)} links {target}"
        assert not anchor or anchor in anchors(file), f"{name(page)} links {target}"


def test_the_menu_is_the_pages():
    def leaves(entry):
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values() if isinstance(entry, dict) else entry:
                yield from leaves(value)

    menu = list(leaves(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]))
    assert sorted(menu) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


# ---- the site


def test_staging_writes_the_table_of_the_code(tmp_path):
    build.stage(tmp_path / "docs")
    text = (tmp_path / "docs" / "table1.md").read_text(encoding="utf-8")
    cells = table1()
    assert build.TABLE not in text
    assert score_line(cells) in text
    assert all(f"| {cell.posterior} |" in text and f" {cell.prior} |" in text for cell in cells)
    assert not list((tmp_path / "docs").rglob("*.py"))
    assert build.CLAIMS not in (tmp_path / "docs" / "claims.md").read_text(encoding="utf-8")


def test_experiments_that_were_run_have_a_page(tmp_path):
    done = tmp_path / "results" / "fig4"
    done.mkdir(parents=True)
    findings = [
        {"held": held, "ours": ours} for held, ours in ((True, False), (False, False), (None, False), (True, True))
    ]
    found = {"where": "Figure 4", "verdict": "held in part", "findings": findings}
    (done / "result.json").write_text(json.dumps(found), encoding="utf-8")
    (done / "README.md").write_text("![a graph](figure.png)", encoding="utf-8")
    (done / "figure.png").write_bytes(b"picture")
    rows = build.stage_results(tmp_path / "claims", tmp_path / "results").splitlines()
    assert len(rows) == 2 + len(EXPERIMENTS)
    (row,) = (row for row in rows if "fig4" in row)
    assert "(claims/fig4.md)" in row
    assert row.endswith("| held in part | 1 of 2 |")
    assert sum("not run yet" in row for row in rows) == len(EXPERIMENTS) - 1
    assert (tmp_path / "claims" / "fig4.md").read_text(encoding="utf-8") == "![a graph](fig4.png)"
    assert (tmp_path / "claims" / "fig4.png").read_bytes() == b"picture"


@pytest.mark.parametrize(
    ("typed", "staged"),
    [
        ("W = theta*xi, mean_i log q_theta", r"W = theta\*xi, mean\_i log q\_theta"),
        ("s^2<b^2 and *emphasis* and **strong** words", "s^2&lt;b^2 and *emphasis* and **strong** words"),
        ("`a_b*c<d` a_b", r"`a_b*c<d` a\_b"),
        ("The law\n  a = b", "The law  \n  a = b"),
        ("| a |\n text", "| a |\n text"),
    ],
)
def test_formulas_typed_in_ascii_are_shown_as_they_are(typed, staged):
    assert build.literal(typed) == staged + "\n"


def test_doctests_become_code_blocks():
    griffe = pytest.importorskip("griffe")
    extension = load(DOCS / "doctest_fences.py").DoctestFences()
    made = griffe.Function("f")
    made.docstring = griffe.Docstring("Text.\n\n>>> f(\n...     1)\n[8, 2]\n\nMore.")
    extension.on_object(obj=made)
    assert made.docstring.value == "Text.\n\n```pycon\n>>> f(\n...     1)\n[8, 2]\n```\n\nMore."


class Resources(HTMLParser):
    """What a browser loads for a page without being asked to."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.found += [given[key] for key in ("src", "srcset", "poster", "data") if given.get(key)]
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(given["href"])


def outside(text, suffix):
    """The addresses on other hosts that a page or a style sheet loads."""
    if suffix == ".css":
        found = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')\s]+)", text)
    else:
        page = Resources()
        page.feed(text)
        found = page.found
    return [address for address in found if re.match(r"(?:\w+:)?//", address)]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ('<script src="https://unpkg.com/a"></script>', ".html"),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ".html"),
        ('<img src="http://example.org/a.png">', ".html"),
        ("@import 'https://example.org/a.css'", ".css"),
        ("a{background:url(https://example.org/a.png)}", ".css"),
    ],
)
def test_an_outside_request_is_noticed(text, suffix):
    assert outside(text, suffix)


def test_the_built_site_asks_no_other_host(tmp_path):
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    build.stage(tmp_path / "docs")
    text = CONFIG.read_text(encoding="utf-8")
    for ours, here in (
        ("build/docs", "docs"),
        ("build/site", "site"),
        ("[src]", f"[{ROOT / 'src'}]"),
        ("docs/doctest_fences.py", str(DOCS / "doctest_fences.py")),
    ):
        assert ours in text
        text = text.replace(ours, here)
    (tmp_path / "mkdocs.yml").write_text(text, encoding="utf-8")
    site = tmp_path / "site"
    build.build(tmp_path / "mkdocs.yml", site)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for file in (*pages, *site.rglob("*.css")):
        assert outside(file.read_text(encoding="utf-8"), file.suffix) == [], file.name
    assert "kl_divergence" in (site / "api.html").read_text(encoding="utf-8")
    assert "horseshoe" in (site / "search.js").read_text(encoding="utf-8")  # the index, for pages opened as files
    style = (site / "vendor" / "katex" / "katex.min.css").read_text(encoding="utf-8")
    fonts = re.findall(r"url\((fonts/[\w-]+\.woff2)\)", style)
    assert fonts
    assert all((site / "vendor" / "katex" / font).is_file() for font in fonts)
