"""The page: well-formed, labelled, and without a word to any other machine."""

import re
from html.parser import HTMLParser

import pytest

from mcrepar.workbench.app.page import SHINY_HERE, STATIC, live_page, plotly_script
from mcrepar.workbench.app.views import all_views


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def elements():
    reader = Reader()
    reader.feed(live_page(all_views(None)))
    return reader.elements


def test_every_field_has_a_label(elements):
    labelled = {attributes["for"] for tag, attributes in elements if tag == "label" and "for" in attributes}
    fields = [a for tag, a in elements if tag in ("input", "select") and a.get("type") != "checkbox"]
    assert all(field["aria-label"] for field in fields if "id" not in field)  # menus of presets
    fields = [field for field in fields if "id" in field]
    assert len(fields) > 40
    assert {field["id"] for field in fields} <= labelled


def test_names_are_unique(elements):
    names = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_every_tab_has_its_panel(elements):
    tabs = {a["aria-controls"] for _, a in elements if a.get("role") == "tab"}
    panels = {a["id"] for _, a in elements if a.get("role") == "tabpanel"}
    assert tabs == panels
    assert len(tabs) == 6
    rows = [a["aria-label"] for _, a in elements if a.get("role") == "tablist"]
    assert rows == ["Views", "The paper"]


def test_nothing_comes_from_elsewhere():
    page = live_page(all_views(None))
    assert SHINY_HERE in page
    for text in (page, *(path.read_text(encoding="utf-8") for path in STATIC.iterdir())):
        assert re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]{2,}", re.sub(r"^\s*//.*$", "", text, flags=re.M)) == []


def test_scripts_write_no_html():
    for path in STATIC.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", path.read_text())


def test_plotly_is_where_it_is_looked_for():
    assert plotly_script().is_file()


def test_a_run_s_name_is_escaped(tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    (folder / "config.yaml").write_text("")
    page = live_page(all_views(tmp_path))
    assert "<img" not in page
    assert "&lt;img src=x" in page
