"""Build the site of docs/ without a network: python docs/build.py [--figures]; make docs does it too.

The pages are staged in build/docs with what the code says at this moment (the corrected Table 1) and what the
experiments found (experiments/results), beside a copy of mkdocs.yml that has them in its menu, and Zensical renders
them into build/site. `--figures` runs the tutorials again first and renews the pictures that they save; those that are
notebooks too are renewed by docs/notebooks.py. A picture that has a twin for dark pages (x-dark.png beside x.png) is
shown as either.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # for experiments/, which is not installed
DOCS = ROOT / "docs"
BUILD = ROOT / "build"
RESULTS = ROOT / "experiments" / "results"
SHOWN = ("cpu", "paper")  # scales whose results are shown; tiny ones only show that the code runs
TABLE = "<!-- the table is put here by docs/build.py -->"
CLAIMS = "<!-- the results are put here by docs/build.py -->"
SHIM = "https://unpkg.com/iframe-worker/shim"  # what Zensical asks for to search pages opened as files
_PRODUCT = re.compile(r"(?<=[\w)\]])\*(?=[\w(\[|])")  # x*y, but neither *emphasis* nor **strong**
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CITED = re.compile(r"docs/(\w+\.md), ([A-H]\d?)\b")  # docs/math.md, D4


def fences(page: Path) -> Iterator[tuple[int, str, str]]:
    """The code blocks of a page: the line on which the code starts, the language ("" where none is named), the code."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        yield text.count("\n", 0, match.start(2)) + 1, match[1], match[2]


def blocks(page: Path, language: str = "python") -> Iterator[tuple[int, str]]:
    """Those in one language."""
    yield from ((line, code) for line, named, code in fences(page) if named == language)


def run(page: Path, folder: Path) -> dict[str, object]:
    """Run the Python blocks of a page one after another in `folder`; returns the names they define."""
    names: dict[str, object] = {"__name__": page.stem}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for line, code in blocks(page):
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)  # a traceback shows the page's line
    finally:
        os.chdir(before)
    return names


def draw_figures() -> None:
    """Run the tutorials and keep the pictures that their pages show."""
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        if "savefig(" not in page.read_text(encoding="utf-8"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            run(page, Path(folder))
            for picture in sorted(Path(folder).glob("*.png")):
                shutil.copy(picture, DOCS / "figures" / picture.name)
                print(f"docs/figures/{picture.name}")


def stage(folder: Path = BUILD) -> None:
    """Write the pages into folder/docs, as the code and the results have them, and their configuration beside them."""
    from mcrepar.inspect.table1 import render_table, table1

    pages = folder / "docs"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS, pages, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    _rewrite(pages / "table1.md", lambda text: text.replace(TABLE, render_table(table1(), "md")))
    _rewrite(pages / "math.md", literal)
    _rewrite(pages / "claims.md", lambda text: text.replace(CLAIMS, stage_results(pages / "claims")))
    for page in pages.rglob("*.md"):
        _rewrite(page, lambda text, folder=page.parent: both_schemes(text, folder))
    results = sorted(page.stem for page in (pages / "claims").glob("*.md"))
    config = configuration((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), results)
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")


def both_schemes(text: str, folder: Path) -> str:
    """Markdown in which every picture with a twin for dark pages is shown on light ones, and the twin on dark ones."""

    def both(found: re.Match[str]) -> str:
        dark = found[2].removesuffix(".png") + "-dark.png"
        if not (folder / dark).is_file():
            return found[0]
        return f"![{found[1]}]({found[2]}#only-light)\n![{found[1]}]({dark}#only-dark)"

    return re.sub(r"!\[([^\]]*)\]\(([\w./]+\.png)\)", both, text)


def configuration(text: str, results: Sequence[str]) -> str:
    """The text of mkdocs.yml for a folder that has docs/ and site/, with the pages of the experiments in its menu."""
    claims = "- The paper, run: claims.md\n"
    pages = "".join(f"      - {name}: claims/{name}.md\n" for name in results)
    for ours, there in (
        ("build/docs", "docs"),
        ("build/site", "site"),
        ("[src]", f"[{ROOT / 'src'}]"),
        ("docs/doctest_fences.py", str(DOCS / "doctest_fences.py")),
        (claims, f"- The paper, run:\n      - Its claims, judged: claims.md\n{pages}"),
    ):
        assert text.count(ours) == 1, ours
        text = text.replace(ours, there)
    return text


def stage_results(folder: Path, results: Path = RESULTS) -> str:
    """Copy page and figure of every experiment that was run into a folder; the table that links them, in Markdown."""
    from experiments.catalogue import EXPERIMENTS, find
    from experiments.experiment import markdown

    folder.mkdir()
    rows = []
    for name, summary in EXPERIMENTS.items():
        file = results / name / "result.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        if found is None or found["scale"] not in SHOWN:
            rows.append([name, find(name).where, summary, "", "not run yet", ""])
            continue
        held = [finding["held"] for finding in found["findings"] if not finding["ours"]]
        judged = f"{held.count(True)} of {len(held)}" + (f", {held.count(None)} inconclusive" if None in held else "")
        link = f"[{name}](claims/{name}.md)"
        rows.append([link, found["where"], summary, found["scale"], found["verdict"], judged])
        page = (results / name / "README.md").read_text(encoding="utf-8")
        (folder / f"{name}.md").write_text(result_page(page, f"{name}.png"), encoding="utf-8")
        shutil.copy(results / name / "figure.png", folder / f"{name}.png")
    header = ["experiment", "in the paper", "what is measured", "scale", "the claim", "sentences that held"]
    return markdown(header, rows)


def result_page(text: str, picture: str) -> str:
    """The page of an experiment as the site shows it: its figure opens in full size, sections of the docs are links."""
    figure = re.sub(r"!\[([^\]]*)\]\(figure\.png\)", rf"[![\1]({picture})]({picture})", text)
    return _CITED.sub(lambda cited: f"[{cited[0]}](../{cited[1]}#{_anchor(cited[1], cited[2])})", figure)


def anchor(heading: str) -> str:
    """The id that the site gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _anchor(page: str, section: str) -> str:
    headings = re.findall(rf"^#+ ({section}\..*)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) == 1, (page, section)
    return anchor(headings[0])


def literal(text: str) -> str:
    """Markdown that shows formulas typed in ASCII as they are: a_b, x*y, a<b, [a](b); a line each if indented."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and lines and lines[-1] and not lines[-1].startswith(("|", "#")):
            lines[-1] += "  "  # a line break
        parts = line.split("`")  # every second one is code
        parts[::2] = [_PRODUCT.sub(r"\\*", _escaped(part)) for part in parts[::2]]
        lines.append("`".join(parts))
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    for typed, shown in (("_", r"\_"), ("<", "&lt;"), ("](", r"\](")):
        text = text.replace(typed, shown)
    return text


def _rewrite(page: Path, change: Callable[[str], str]) -> None:
    page.write_text(change(page.read_text(encoding="utf-8")), encoding="utf-8")


def build(folder: Path = BUILD) -> None:
    """Render what is staged in a folder, and take the one outside script that the search wants from our own copy."""
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "mkdocs.yml"]
    subprocess.run(command, cwd=folder, check=True)
    for page in site.rglob("*.html"):
        shim = "../" * (len(page.relative_to(site).parts) - 1) + "vendor/iframe-worker/shim.js"
        _rewrite(page, lambda text, shim=shim: text.replace(SHIM, shim))


def main() -> None:
    """Stage and build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figures", action="store_true", help="run the tutorials again and renew their pictures")
    if parser.parse_args().figures:
        draw_figures()
    stage()
    build()
    print(f"open {(BUILD / 'site' / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
