"""Build the site of docs/ without a network: python docs/build.py [--figures]; make docs does it too.

The pages are staged in build/docs with what the code says at this moment (the corrected Table 1) and what the
experiments found (results/), and Zensical renders them into build/site. `--figures` runs the tutorials again first and
renews the pictures that they save.
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
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STAGE, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
RESULTS = ROOT / "results"
TABLE = "<!-- the table is put here by docs/build.py -->"
CLAIMS = "<!-- the results are put here by docs/build.py -->"
SHIM = "https://unpkg.com/iframe-worker/shim"  # what Zensical asks for to search pages opened as files
_PRODUCT = re.compile(r"(?<=[\w)\]])\*(?=[\w(\[|])")  # x*y, but neither *emphasis* nor **strong**
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str = "python") -> Iterator[tuple[int, str]]:
    """The code blocks of a page in one language, each with the line on which its code starts."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        if match[1] == language:
            yield text.count("\n", 0, match.start(2)) + 1, match[2]


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
        with tempfile.TemporaryDirectory() as folder:
            run(page, Path(folder))
            for picture in sorted(Path(folder).glob("*.png")):
                shutil.copy(picture, DOCS / "figures" / picture.name)
                print(f"docs/figures/{picture.name}")


def stage(folder: Path = STAGE) -> None:
    """Copy the pages into a new folder, with the table as the code has it, and the pages of the experiments."""
    from mcrepar.kl.render import render_table
    from mcrepar.kl.table import table1

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    _rewrite(folder / "table1.md", lambda text: text.replace(TABLE, render_table(table1(), "md")))
    _rewrite(folder / "math.md", literal)
    _rewrite(folder / "claims.md", lambda text: text.replace(CLAIMS, stage_results(folder / "claims")))


def stage_results(folder: Path, results: Path = RESULTS) -> str:
    """Copy page and figure of every experiment that was run into a folder; the table that links them, in Markdown."""
    from mcrepar.experiments.catalogue import EXPERIMENTS
    from mcrepar.experiments.experiment import markdown

    folder.mkdir()
    rows = []
    for name, row in EXPERIMENTS.items():
        if not (results / name / "result.json").is_file():
            rows.append([name, row.experiment.where, row.summary, "not run yet", ""])
            continue
        found = json.loads((results / name / "result.json").read_text(encoding="utf-8"))
        judged = [f["held"] for f in found["findings"] if f["held"] is not None and not f["ours"]]
        held = f"{sum(judged)} of {len(judged)}" if judged else "-"
        rows.append([f"[{name}](claims/{name}.md)", found["where"], row.summary, found["verdict"], held])
        page = (results / name / "README.md").read_text(encoding="utf-8")
        (folder / f"{name}.md").write_text(page.replace("(figure.png)", f"({name}.png)"), encoding="utf-8")
        shutil.copy(results / name / "figure.png", folder / f"{name}.png")
    return markdown(["experiment", "in the paper", "what is measured", "the claim", "sentences that held"], rows)


def literal(text: str) -> str:
    """Markdown that shows formulas typed in ASCII as they are: a_b, x*y and a<b, each on its own line if indented."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and lines and lines[-1] and not lines[-1].startswith(("|", "#")):
            lines[-1] += "  "  # a line break
        parts = line.split("`")  # every second one is code
        parts[::2] = [_PRODUCT.sub(r"\\*", part.replace("_", r"\_").replace("<", "&lt;")) for part in parts[::2]]
        lines.append("`".join(parts))
    return "\n".join(lines) + "\n"


def _rewrite(page: Path, change: Callable[[str], str]) -> None:
    page.write_text(change(page.read_text(encoding="utf-8")), encoding="utf-8")


def build(config: Path = ROOT / "mkdocs.yml", site: Path = SITE) -> None:
    """Render the staged pages, and take the one outside script that the search wants from our own copy."""
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", config.name]
    subprocess.run(command, cwd=config.parent, check=True)
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
    print(f"open {SITE.relative_to(ROOT) / 'index.html'}")


if __name__ == "__main__":
    main()
