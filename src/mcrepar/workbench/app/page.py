"""The page: tabs, fields and places for answers, made from the rows of the views."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from htmltools import HTML, Tag, TagList, tags

from mcrepar.errors import ParameterError
from mcrepar.workbench.app.view import View

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("draw.js", "page.js")
SHINY_HERE = '<meta name="shiny-dependency-placeholder" content="">'


def plotly_script() -> Path:
    """plotly.js, which comes with the plotly wheel; its Python code is not imported."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise ParameterError("mcrepar app", "plotly is not installed", "pip install 'mcrepar[app]'")
    return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


def live_page(views: Mapping[str, View]) -> str:
    """The page that a server serves; Shiny puts its own scripts into the head."""
    head = TagList(
        tags.link(rel="stylesheet", href="static/app.css"), tags.script(src="plotly.min.js"), HTML(SHINY_HERE)
    )
    return document(views.values(), head, [tags.script(src=f"static/{name}") for name in SCRIPTS])


def document(views: Iterable[View], head: TagList, scripts: Iterable[Tag]) -> str:
    """The whole document."""
    views = list(views)
    page = tags.html(
        tags.head(
            tags.meta(charset="utf-8"),
            tags.meta(name="viewport", content="width=device-width, initial-scale=1"),
            tags.title("mcrepar: Bayesian neural networks, looked into"),
            tags.link(rel="icon", href="data:,"),
            head,
        ),
        tags.body(
            tags.a({"class": "skip", "href": "#main"}, "Skip to the content"),
            _header(),
            tags.nav({"class": "tabs"}, *_tabs(views)),
            tags.main({"id": "main"}, *map(_panel, views)),
            *scripts,
        ),
        lang="en",
    )
    return "<!DOCTYPE html>\n" + str(page)


def _header() -> Tag:
    name = tags.h1("mcrepar", tags.span(" Bayesian neural networks, looked into"))
    theme = tags.button({"type": "button", "id": "theme", "class": "button", "aria-pressed": "false"}, "Dark")
    return tags.header(name, theme)


def _tabs(views: Iterable[View]) -> list[Tag]:
    """A row of tabs, and one below it for every tab that stands for several views."""
    groups: dict[str, list[View]] = {}
    for view in views:
        groups.setdefault(view.group or view.name, []).append(view)
    first = [_tab(v[0]) if not v[0].group else _tab(v[0], group, v) for group, v in groups.items()]
    rows = [tags.div({"role": "tablist", "aria-label": "Views"}, *first)]
    for group, members in groups.items():
        if members[0].group:
            tabs = map(_tab, members)
            rows.append(tags.div({"role": "tablist", "class": "below", "aria-label": group}, *tabs, hidden=""))
    return rows


def _tab(view: View, group: str = "", members: Iterable[View] = ()) -> Tag:
    id = re.sub(r"\W+", "-", group.lower()) if group else view.name
    return tags.button(
        {"type": "button", "role": "tab", "id": f"tab-{id}", "aria-controls": f"view-{view.name}"},
        group or view.tab,
        data_view=view.name,
        data_holds=" ".join(member.name for member in members) or view.name,
    )


def _panel(view: View) -> Tag:
    return tags.section(
        {"class": "view", "role": "tabpanel", "id": f"view-{view.name}", "aria-labelledby": f"tab-{view.name}"},
        tags.h2(view.title),
        tags.div({"class": "explanation"}, *(tags.p(text) for text in view.explanation)),
        tags.div({"class": "columns"}, _controls(view), _answer()),
        data_view=view.name,
        hidden="",
    )


def _controls(view: View) -> Tag:
    drawn = [control.drawn(view.name, control.default) for control in view.controls]
    more = [control.drawn(view.name, control.default) for control in view.more]
    buttons = tags.div(
        {"class": "buttons"},
        tags.button({"type": "button", "class": "button copy-link"}, "Copy link"),
        tags.a({"class": "button", "href": f"?view={view.name}"}, "Initial values"),
    )
    fold = tags.details(tags.summary("More settings"), tags.div({"class": "fields"}, *more)) if more else None
    fields = tags.div({"class": "fields"}, *drawn)
    return tags.div(
        {"class": "controls", "role": "group", "aria-label": f"Settings: {view.tab}"}, fields, fold, buttons
    )


def _answer() -> Tag:
    return tags.div(
        {"class": "answer"},
        tags.p({"class": "banner", "hidden": ""}),
        tags.p({"class": "notice", "role": "alert", "hidden": ""}),
        tags.p({"class": "headline", "role": "status"}, "Computing …"),
        tags.div({"class": "figures"}),
        tags.div({"class": "galleries"}),
        tags.div({"class": "notes"}),
        tags.div({"class": "code", "hidden": ""}),
        tags.div({"class": "tables"}),
    )
