"""The app in a real Chromium: every control moved, its numbers compared with the library's, zoom, files, links, errors.

Where there is no Chromium these tests are skipped; `apt-get install chromium` brings one.
"""

import csv
import re
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.app.browser_page import CHROMIUM, drag, wait_for_reset, wait_for_zoom, zoomed_in
from tests.app.example_run import arrays

from mcrepar.app.controls import Choice, Number, Slider, Switch
from mcrepar.app.export import export_page
from mcrepar.app.views import all_views

VIEWS = ("quality", "distributions", "graph", "memory", "run")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")


def expected(view: str, runs=None, **texts: str):
    """The library's own answer."""
    row = all_views(runs)[view]
    values, errors = row.read(row.texts(texts))
    assert errors == {}
    return row.compute(values)


def drawn(figure) -> list[dict]:
    return [{key: trace[key] for key in ("x", "y")} for trace in figure.plain()["data"]]


def shown(traces: list[dict]) -> list[dict]:
    return [{key: trace[key] for key in ("x", "y")} for trace in traces]


def test_it_opens_on_the_paper_s_sample_run(open_page):
    page = open_page().go()
    answer = expected("quality")
    assert page.view == "quality"
    assert page.headline() == answer.headline
    for figure in answer.figures:
        assert shown(page.traces(figure.name)) == drawn(figure)
    assert page.elsewhere == []
    assert page.faults == []


CHANGES = {
    "quality": {"iterations": "10^6", "variance": "0.01", "size1": "AlexNet", "size2": "", "size3": "10^9",
                "size4": "VGG-19", "simulations": "1000", "entropy": "mc", "measure": "std", "log": "false"},
    "distributions": {"posterior": "gamma", "prior": "inverse_gaussian", "q_scale": "0.8", "weights": "7",
                      "iterations": "200"},
    "graph": {"posterior": "normal", "prior": "student_t", "iterations": "12"},
    "memory": {"network": "VGG-16", "batch": "32", "memory": "24", "iterations": "10^4", "posterior": "gamma",
               "prior": "gamma"},
    "run": {"threshold": "0.55", "show": "sure"},
}  # fmt: skip
MORE = {
    "quality": {"distance": "0.5", "prior_variance": "2", "seed": "4"},
    "distributions": {"q_concentration": "1.5", "p_loc": "2", "p_concentration": "3", "seed": "2"},
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_moves_the_numbers_to_the_library_s(open_page, runs_folder, view):
    page = open_page().go(f"?view={view}")
    texts: dict[str, str] = {}
    for name, text in CHANGES[view].items():
        page.set(name, text)
        texts[name] = text
    if view in MORE:
        page.panel("summary").click()
        for name, text in MORE[view].items():
            page.set(name, text)
            texts[name] = text
    if view == "graph":  # a pair without a tuple: the last good picture stays, and the page says why
        assert "Theorem F" in page.panel(".notice").inner_text()
        assert "radial" not in page.headline()
        page.set("prior", "normal")
        texts["prior"] = "normal"
    answer = expected(view, runs_folder, **texts)
    assert page.headline() == answer.headline
    assert [f.get_attribute("data-figure") for f in page.panel("figure").all()] == [f.name for f in answer.figures]
    for figure in answer.figures:
        assert shown(page.traces(figure.name)) == drawn(figure)
    assert [len(page.table(t.name)) - 1 for t in answer.tables] == [len(t.rows) for t in answer.tables]
    assert page.panel(".notice").is_hidden()
    assert page.elsewhere == []
    assert page.faults == []


def test_all_controls_are_among_the_changes():
    for name, view in all_views(None).items():
        for control in view.controls:
            assert isinstance(control, Number | Choice | Switch | Slider)
            hidden = bool(control.needs)
            assert hidden or control.name in CHANGES[name] or control.name == "run", f"{name}: {control.name}"


def test_a_zoom_survives_a_change_and_ends_with_a_double_click(open_page):
    page = open_page().go()
    figure = "absolute-error"
    whole = page.range(figure)
    drag(page, figure)
    wait_for_zoom(page, figure, whole)
    zoomed = page.range(figure)
    page.set("variance", "1e-3")
    assert page.range(figure) == pytest.approx(zoomed)
    page.set("entropy", "mc")
    assert page.range(figure) == pytest.approx(zoomed)
    box = page.panel(f'[data-figure="{figure}"] .plot .nsewdrag').first.bounding_box()
    page.page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    wait_for_reset(page, figure, whole)
    assert page.faults == []


def test_a_zoom_by_keyboard(open_page):
    page = open_page().go("?view=run")
    figure = "confidence-sets"
    whole = page.range(figure)
    tools = page.panel(f'[data-figure="{figure}"] .tools')
    for _ in range(2):
        tools.get_by_role("button", name="Zoom in").focus()
        page.page.keyboard.press("Enter")
    wait_for_zoom(page, figure, whole)
    page.set("threshold", "0.7")
    assert zoomed_in(page, figure, whole)
    tools.get_by_role("button", name="Reset the zoom").focus()
    page.page.keyboard.press("Enter")
    wait_for_reset(page, figure, whole)


def test_downloads(open_page):
    page = open_page().go()
    name, data = page.download(page.panel('[data-table="models"]').get_by_role("button"))
    assert name == "mcrepar-quality-models.csv"
    rows = list(csv.reader(data.decode("utf-8").splitlines()))
    table = expected("quality").tables[0]
    assert rows[0] == list(table.header)
    assert [float(x) for x in rows[1][1:]] == [float(x) for x in table.rows[0][1:]]
    figure = page.panel('[data-figure="relative-error"]')
    name, data = page.download(figure.get_by_role("button", name="PNG"))
    assert name == "mcrepar-quality-relative-error.png"
    assert data.startswith(b"\x89PNG")
    name, data = page.download(figure.get_by_role("button", name="SVG"))
    assert name == "mcrepar-quality-relative-error.svg"
    assert b"<svg" in data
    assert page.elsewhere == []
    assert page.faults == []


def test_a_link_restores_the_same_settings(open_page, server):
    page = open_page().go()
    page.page.get_by_role("tab", name="Distributions").click()
    page.page.wait_for_selector("#view-distributions[data-answered]")
    page.set("posterior", "gamma")
    page.set("prior", "student_t")
    page.panel("summary").click()
    page.set("p_df", "9")
    link = page.page.url
    assert urlsplit(link).query == "view=distributions&posterior=gamma&prior=student_t&p_df=9"
    other = open_page().go("?" + urlsplit(link).query)
    assert other.view == "distributions"
    assert other.headline() == page.headline()
    assert other.field("p_df").input_value() == "9"
    assert other.field("p_df").is_visible()
    assert other.table("estimates") == page.table("estimates")


def test_bad_values_are_said_and_the_last_good_picture_stays(open_page):
    page = open_page().go()
    before, traces = page.headline(), page.traces("absolute-error")
    for text, says in (("", "Type a number."), ("-3", "too small"), ("many", "is no number"), ("1e30", "too large"),
                       ("<img src=x onerror=alert(1)>", "is no number")):  # fmt: skip
        page.set("iterations", text)
        assert says in page.error("iterations")
        assert page.field("iterations").get_attribute("aria-invalid") == "true"
        assert page.headline() == before
        assert page.traces("absolute-error") == traces
    page.set("iterations", "500")
    assert page.error("iterations") == ""
    assert page.headline() != before
    for name in ("size1", "size2", "size3", "size4"):
        page.set(name, "")
    assert "at least one size" in page.error("size1")
    assert page.page.locator("img[src=x]").count() == 0


def test_a_link_with_bad_values_shows_the_start_values_and_says_so(open_page):
    page = open_page().go("?view=distributions&posterior=%3Cb%3Enothing&q_scale=-4&weights=7")
    assert "is not in the list" in page.error("posterior")
    assert "too small" in page.error("q_scale")
    assert page.headline() == expected("distributions", weights="7").headline
    assert open_page().go("?view=nothing").view == "quality"


def test_a_damaged_run_is_named(open_page):
    page = open_page().go("?view=run")
    before = page.headline()
    page.set("run", "broken")
    assert "predictions.npz is damaged" in page.panel(".notice").inner_text()
    assert page.headline() == before
    page.set("run", "shapes")
    assert page.panel(".notice").is_hidden()


def test_images_follow_the_threshold(open_page):
    page = open_page().go("?view=run")
    page.set("show", "wrong")
    counts = []
    for tau in ("0.4", "0.7", "1"):
        page.set("threshold", tau)
        a = arrays()
        inside = (a["confidence"] >= float(tau) - 1e-9) & (a["label"] != a["y"])
        counts.append(page.panel(".gallery img").count())
        assert counts[-1] == min(24, int(inside[:60].sum()))
        assert page.panel("output").inner_text() == tau
    assert counts == sorted(counts, reverse=True)
    if counts[1]:
        page.set("threshold", "0.7")
        width = page.panel(".gallery img").first.evaluate("e => e.naturalWidth")
        assert width == 16


def test_it_is_used_by_keyboard_alone(open_page):
    page = open_page().go()
    keyboard = page.page.keyboard
    keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.page.locator("#tab-quality").focus()
    for name in (*VIEWS[1:], VIEWS[0]):
        keyboard.press("ArrowRight")
        assert page.page.evaluate("document.activeElement.id") == f"tab-{name}"
        page.page.wait_for_selector(f"#view-{name}[data-answered]:not([hidden])")
    keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.id") == "quality_iterations"
    keyboard.press("Control+A")
    keyboard.type("64")
    page.page.wait_for_function(
        "() => document.querySelector('#view-quality .headline').textContent.includes('M = 64:')"
    )


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1920, "light")])
def test_a_screen_reader_finds_its_way_and_nothing_hangs_over(open_page, width, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(width=width, color_scheme=scheme).go()
    background = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
    for view in VIEWS:
        page.page.locator(f"#tab-{view}").click()
        page.page.wait_for_selector(f"#view-{view}[data-answered]:not([hidden])")
        found = Axe().run(page.page).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("critical", "serious")] == []
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
        for plot in page.panel(".plot").all():
            assert plot.locator(".main-svg").first.bounding_box()["width"] <= width
    assert page.faults == []


def test_the_theme_can_be_chosen_and_is_kept(open_page):
    page = open_page(color_scheme="light").go()
    colour = "getComputedStyle(document.querySelector('.plot .main-svg')).background"
    light = page.page.evaluate(colour)
    page.page.locator("#theme").click()
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.page.evaluate(colour) != light
    page.go()
    assert page.page.locator("#theme").get_attribute("aria-pressed") == "true"


def test_the_page_without_a_server(open_page, tmp_path):
    stored = {
        "quality": {"iterations": ("1000", "10"), "entropy": ("exact", "mc")},
        "graph": {"posterior": ("radial",), "prior": ("normal", "laplace")},
    }
    out = export_page(tmp_path / "app.html", stored=stored)
    page = open_page(url=out.as_uri()).go()
    answer = expected("quality")
    assert page.headline() == answer.headline
    assert shown(page.traces("absolute-error")) == drawn(answer.figures[0])
    page.set("entropy", "mc")
    page.set("iterations", "10")
    answer = expected("quality", iterations="10", entropy="mc")
    assert page.headline() == answer.headline
    again = open_page(url=page.page.url).go()
    assert again.headline() == answer.headline
    page.page.get_by_role("tab", name="Graph").click()
    page.set("prior", "laplace")
    assert "Theorem F" in page.panel(".notice").inner_text()
    assert page.elsewhere == []
    assert page.faults == []


def test_the_server_going_away_is_said(open_page):
    from tests.app.conftest import start_server, stop_server

    process, url = start_server()
    page = open_page(url=url).go()
    stop_server(process)
    page.page.wait_for_selector(".notice:not([hidden])")
    assert "The server has gone" in page.panel(".notice").inner_text()
    assert np.isfinite(page.range("absolute-error")).all()
