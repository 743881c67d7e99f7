import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


sys.path.append(str(ROOT / "benchmarks"))  # where a benchmark finds its kin


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", load(ROOT / "benchmarks" / "readme.py").BLOCKS)
def test_numbers_are_the_measured_ones(name):
    writer = load(ROOT / "benchmarks" / "readme.py")
    found = writer.results(name)
    assert not found.get("quick")
    assert writer.block(name, found) in (ROOT / writer.BLOCKS[name].page).read_text()


def test_rewriting_touches_nothing_else(tmp_path):
    writer = load(ROOT / "benchmarks" / "readme.py")
    new = writer.block("kl", writer.results("kl"))
    first, *_, last = new.splitlines()
    copy = tmp_path / "docs" / "benchmarks.md"
    copy.parent.mkdir()
    copy.write_text(f"before\n{first}\nold\n{last}\nafter\n")
    writer.rewrite("kl", tmp_path)
    assert copy.read_text() == f"before\n{new}\nafter\n"


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README.read_text()))
def test_linked_files_exist(target):
    assert (ROOT / target).exists()


def test_it_is_short():
    assert len(README.read_text().split()) <= 900


def test_the_table_of_families_is_the_planners():
    from mcrepar import POSTERIORS, PRIORS
    from mcrepar.inspect.table1 import score, table1

    text = (ROOT / "docs" / "concepts.md").read_text()
    posteriors, priors = (
        re.search(rf"^\| \**{side}\** \| (.*) \|$", text, re.MULTILINE) for side in ("posteriors", "priors")
    )
    assert set(posteriors[1].split()) == set(POSTERIORS)
    assert set(priors[1].split()) == set(PRIORS)
    counts, plain = score(table1()), " ".join(text.split())
    assert f"claims a tuple of fixed size for {counts['claimed']} pairs" in plain
    assert f"{counts['tuple']} have one" in plain
    assert f"is finite for {counts['finite']} ({counts['INF-S']} others" in plain
    assert f"{counts['both']} have both" in plain
