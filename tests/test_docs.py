"""The documentation: code blocks run, links lead somewhere, tables are whole, the built site asks no other host.

What runs of the code: all of `python`; of `sh` what is cheap, while the rest is parsed and checked in full; of `py`,
which needs more than this library, the rows of distributions/priors.py, and the lines of peers that are installed.
"""

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch
import yaml
from scipy import stats

import mcrepar
from experiments.catalogue import EXPERIMENTS, find
from mcrepar.distributions import priors
from mcrepar.inspect.table1 import score_line, table1
from mcrepar.workbench import cli
from mcrepar.workbench.training.arguments import read_arguments
from mcrepar.workbench.training.config import TrainConfig

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
WRITTEN = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES)
RUNNABLE = [page for page in WRITTEN if any(build.blocks(page))]
LANGUAGES = ("python", "py", "sh", "text", "bibtex")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
EXTRAS = re.findall(r"^(\w+) = \[", PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0], re.M)
CHEAP = ("explain", "table", "graph")  # commands that are run here


def name(page):
    return str(page.relative_to(ROOT))


def typed():
    """Every command of a shell block, without what comments say."""
    for page in WRITTEN:
        for _, block in build.blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield pytest.param(words, id=f"{name(page)}: {shlex.join(words)[:60]}")


@cache
def parser():
    return cli._parser()


def follow(words):
    """Do what a command of the documentation says as far as that is cheap; raises where it would be refused."""
    program, *rest = words
    if program == "torchrun":
        assert all((ROOT / "src" / "mcrepar" / file).is_file() for file in ("__main__.py", "__init__.py"))
        program, *rest = words[words.index("-m") + 1 :]
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), rest
    elif program == "python":
        assert (ROOT / rest[0]).is_file(), rest
    elif words[:2] == ["pip", "install"]:
        asked = re.search(r"\[([\w,]+)\]$", rest[-1])
        assert set(asked[1].split(",") if asked else ()) <= set(EXTRAS), (rest, EXTRAS)
    elif program != "mcrepar":
        pytest.fail(f"nothing here knows how to check the command {shlex.join(words)}")
    elif rest[0] in CHEAP or rest == ["reproduce", "list"]:
        assert cli.main(rest) == 0
    else:
        arguments = parser().parse_args(cli._expanded(rest))
        if arguments.command == "train":
            read_arguments(arguments.train.as_dict()).check()
        elif arguments.command == "reproduce":
            find(arguments.reproduce.name)


# ---- code


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_every_python_block_runs(page, tmp_path):
    needed = re.match(r"<!-- needs (.*) -->", page.read_text(encoding="utf-8"))
    for package in needed[1].split() if needed else ():
        pytest.importorskip(package, reason=f"{package} is not installed, which {name(page)} is about")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        if needed:
            warnings.simplefilter("ignore")  # those of other packages
        build.run(page, tmp_path)


def test_a_wrong_block_is_noticed_with_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        build.run(page, tmp_path)
    assert caught.traceback[-1].lineno + 1 == 7
    assert Path.cwd() != tmp_path


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_every_fence_names_a_language(page):
    found = list(build.fences(page))
    assert 2 * len(found) == len(re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert [f"line {line}" for line, language, _ in found if language not in LANGUAGES] == []


def test_a_fence_without_a_language_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\nmake test\n```\ntext\n```\nmake demo\n```\n")
    assert list(build.fences(page)) == [(2, "sh", "make test\n"), (6, "", "make demo\n")]


@pytest.mark.parametrize("words", list(typed()))
def test_every_command_is_accepted(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.yaml").write_text(TrainConfig().to_yaml())  # the run to go on with
    follow(words)


@pytest.mark.parametrize(
    "line",
    [
        "mcrepar train --recipe nothing",
        "mcrepar train --recipe digits --n-mc-iter 0",
        "mcrepar train --epoch_s 3",
        "mcrepar train --resume --out runs/nowhere",
        "mcrepar explain radial nothing",
        "mcrepar reproduce nothing",
        "make nothing",
        "pip install mcrepar[nothing]",
        "python nothing.py",
        "torchrun -m mcrepar train --recipe nothing",
        "nothing at all",
    ],
)
def test_a_wrong_command_is_noticed(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AssertionError, SystemExit, mcrepar.McreparError, pytest.fail.Exception)):
        follow(shlex.split(line))


ROWS = [page for page in WRITTEN if page.parent == ROOT and any(build.blocks(page, "py"))]


def test_the_row_of_a_prior_works_where_the_text_says(tmp_path):
    """Pasted, as it stands, at the end of distributions/priors.py."""
    codes = {code for page in ROWS for _, code in build.blocks(page, "py")}
    (code,) = codes
    for page in ROWS:
        assert "at the end of `distributions/priors.py`" in " ".join(page.read_text().split())
    copy = tmp_path / "mcrepar"
    shutil.copytree(ROOT / "src" / "mcrepar", copy, ignore=shutil.ignore_patterns("__pycache__", "app"))
    with (copy / "distributions" / "priors.py").open("a") as file:
        file.write(f"\n\n{code}")
    program = (
        "import mcrepar, torch; p = mcrepar.prior('half_normal', scale=0.7); print(p.support);"
        "print(p.log_prob(torch.tensor([0.1, 0.5, 3.0], dtype=torch.float64)).tolist());"
        "print(mcrepar.__file__, mcrepar.explain('gamma', 'half_normal').method)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    support, values, (file, method) = *done.stdout.splitlines()[:2], done.stdout.splitlines()[2].split()
    assert support == str(priors.HALF_LINE)
    assert json.loads(values) == pytest.approx(stats.halfnorm(scale=0.7).logpdf([0.1, 0.5, 3.0]))
    assert (Path(file), method) == (copy / "__init__.py", "exact")


MIGRATING = DOCS / "migrating.md"
PEERS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
dataset, batch_size = range(1000), 16
x, y, criterion = torch.randn(16, 4), torch.randint(3, (16,)), nn.functional.cross_entropy
"""


def test_only_these_pages_have_python_that_needs_more():
    assert [page for page in WRITTEN if any(build.blocks(page, "py"))] == [*ROWS, MIGRATING]


@pytest.mark.parametrize(("line", "code"), list(build.blocks(MIGRATING, "py")))
def test_the_lines_of_other_libraries_run_where_they_are_installed(line, code):
    compile("\n" * (line - 1) + code, str(MIGRATING), "exec")
    python = load(ROOT / "benchmarks" / "peers_environment.py").interpreter()
    if python is not None:
        told = PEERS + code + "\nloss.backward()\nassert torch.isfinite(loss)\n"
        done = subprocess.run([python, "-c", told], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", sorted((DOCS / "tutorials").glob("*.md")), ids=name)
def test_tutorials_show_the_pictures_that_they_save(page):
    text = page.read_text(encoding="utf-8")
    saved = set(re.findall(r'savefig\("([^"]+)"', text))
    if "[The same as a notebook]" in text:
        pytest.skip("it shows its figures: tests/test_notebooks.py")
    shown = {Path(target).name for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)}
    assert saved == shown


# ---- links


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(page):
    """The ids of the headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return set(map(build.anchor, headings))


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


# ---- tables


def ragged(text):
    """The rows of tables that have not as many cells as the header; a bar inside a cell is written \\|."""
    cells, found = 0, []
    for line, below in itertools.pairwise([*text.splitlines(), ""]):
        if not line.startswith("|"):
            cells = 0
        elif cells == 0 and re.fullmatch(r"\|(?:\s*:?-+:?\s*\|)+", below):
            cells = len(re.findall(r"(?<!\\)\|", line))
        if cells and len(re.findall(r"(?<!\\)\|", line)) != cells:
            found.append(line)
    return found


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_every_row_has_as_many_cells_as_its_header(page):
    assert ragged(page.read_text(encoding="utf-8")) == []


def test_a_ragged_row_is_noticed():
    table = "| a | b |\n|---|---|\n| 1 | \\|2\\| |\n| 1 | |2| |\n\ntext\n| no | table |\n|x|\n"
    assert ragged(table) == ["| 1 | |2| |"]


# ---- the site


def test_staging_writes_the_table_of_the_code(tmp_path):
    build.stage(tmp_path)
    text = (tmp_path / "docs" / "table1.md").read_text(encoding="utf-8")
    cells = table1()
    assert build.TABLE not in text
    assert score_line(cells) in text
    assert all(f"| {cell.posterior} |" in text and f" {cell.prior} |" in text for cell in cells)
    assert not list((tmp_path / "docs").rglob("*.py"))
    assert build.CLAIMS not in (tmp_path / "docs" / "claims.md").read_text(encoding="utf-8")


def test_pictures_have_a_dark_side_where_there_is_one(tmp_path):
    (tmp_path / "a-dark.png").touch()
    text = build.both_schemes("![one](a.png) ![other](b.png)", tmp_path)
    assert text == "![one](a.png#only-light)\n![one](a-dark.png#only-dark) ![other](b.png)"


def result(folder, experiment, scale):
    """What an experiment leaves, with one sentence that held, one that did not, one inconclusive, and one of ours."""
    (done := folder / experiment).mkdir(parents=True)
    findings = [
        {"held": held, "ours": ours} for held, ours in ((True, False), (False, False), (None, False), (True, True))
    ]
    found = {"where": "Figure 4", "verdict": "held in part", "findings": findings, "scale": scale}
    (done / "result.json").write_text(json.dumps(found), encoding="utf-8")
    (done / "README.md").write_text("![a graph](figure.png) of docs/math.md, D4.", encoding="utf-8")
    (done / "figure.png").write_bytes(b"picture")


def test_experiments_that_were_run_have_a_page(tmp_path):
    result(tmp_path / "results", "fig4", "cpu")
    result(tmp_path / "results", "taylor", "tiny")
    rows = build.stage_results(tmp_path / "claims", tmp_path / "results").splitlines()
    assert len(rows) == 2 + len(EXPERIMENTS)
    (row,) = (row for row in rows if "fig4" in row)
    assert "(claims/fig4.md)" in row
    assert row.endswith("| cpu | held in part | 1 of 3, 1 inconclusive |")
    assert sum("| not run yet |" in row for row in rows) == len(EXPERIMENTS) - 1
    assert sorted(file.name for file in (tmp_path / "claims").iterdir()) == ["fig4.md", "fig4.png"]
    page = (tmp_path / "claims" / "fig4.md").read_text(encoding="utf-8")
    assert page.startswith(
        "[![a graph](fig4.png)](fig4.png) of [docs/math.md, D4](../math.md#d4-distribution-of-the-mc-error"
    )
    assert (tmp_path / "claims" / "fig4.png").read_bytes() == b"picture"


def test_the_menu_of_the_site_has_the_pages_of_experiments():
    text = build.configuration(CONFIG.read_text(encoding="utf-8"), ["fig4", "taylor"])
    (claims,) = (entry["The paper, run"] for entry in yaml.safe_load(text)["nav"] if "The paper, run" in entry)
    assert [page for entry in claims for page in entry.values()] == ["claims.md", "claims/fig4.md", "claims/taylor.md"]


@pytest.mark.parametrize(
    ("typed", "staged"),
    [
        ("W = theta*xi, mean_i log q_theta", r"W = theta\*xi, mean\_i log q\_theta"),
        ("s^2<b^2 and *emphasis* and **strong** words", "s^2&lt;b^2 and *emphasis* and **strong** words"),
        ("`a_b*c<d` a_b", r"`a_b*c<d` a\_b"),
        ("The formula\n  a = b", "The formula  \n  a = b"),
        ("| a |\n text", "| a |\n text"),
        ("[a+b](k-1) [D2]", r"[a+b\](k-1) [D2]"),
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


class Anchors(HTMLParser):
    """Where a page leads to, and the places in it that can be led to."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.targets += [given[key] for key in ("href", "src") if given.get(key)]
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}


def broken(site):
    """The relative links and pictures of all pages that lead to no file, or to no place in it."""
    pages = {page: Anchors(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    for page, found in pages.items():
        for target in found.targets:
            if re.match(r"(?:\w+:|//|/)", target) or page.name == "404.html":  # which is for any address
                continue
            path, _, place = target.partition("#")
            file = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            if not file.exists() or (place and file in pages and unquote(place) not in pages[file].ids):
                yield f"{page.name}: {target}"


def test_a_broken_link_is_noticed(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">b</a> <a href="b.html#gone">b</a> <img src="a.png">')
    (tmp_path / "b.html").write_text('<h1 id="there"><a href="kM-1">x</a> <a href="https://a.org">y</a>')
    assert sorted(broken(tmp_path)) == ["a.html: a.png", "a.html: b.html#gone", "b.html: kM-1"]


def test_the_built_site_is_whole_and_asks_no_other_host(tmp_path):
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    build.stage(tmp_path)
    build.build(tmp_path)
    site = tmp_path / "site"
    assert list(broken(site)) == []
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
