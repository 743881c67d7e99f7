"""The page itself in a real Chromium: zoom, keyboard, screen reader, widths, themes, the stored page, its end.

Where there is no Chromium these tests are skipped.
"""

import re

import pytest

from mcrepar.workbench.app.export import export_page
from tests.workbench.app.browser_page import RESET, ZOOMED
from tests.workbench.app.conftest import start_server, stop_server
from tests.workbench.app.test_browser import VIEWS, assert_shown, expected

pytestmark = pytest.mark.browser


def test_a_zoom_survives_a_change_and_ends_with_a_double_click(open_page):
    page = open_page().go("?view=quality")
    figure = "absolute-error"
    whole = page.range(figure)
    page.drag(figure)
    page.wait_for_range(figure, ZOOMED, whole)
    zoomed = page.range(figure)
    for texts in ({"variance": "1e-3"}, {"entropy": "mc"}):
        page.set(**texts)
        assert page.range(figure) == pytest.approx(zoomed)
    page.double_click(figure)
    page.wait_for_range(figure, RESET, whole)
    assert page.faults == []


def test_a_zoom_by_keyboard(open_page):
    page = open_page().go("?view=run")
    figure = "confidence-sets"
    whole = page.range(figure)
    tools = page.panel(f'[data-figure="{figure}"] .tools')
    for _ in range(2):
        tools.get_by_role("button", name="Zoom in").focus()
        page.page.keyboard.press("Enter")
    page.wait_for_range(figure, ZOOMED, whole)
    page.set(threshold="0.7")
    page.wait_for_range(figure, ZOOMED, whole)
    tools.get_by_role("button", name="Reset the zoom").focus()
    page.page.keyboard.press("Enter")
    page.wait_for_range(figure, RESET, whole)


def test_it_is_used_by_keyboard_alone(open_page):
    page = open_page().go()
    keyboard, focused = page.page.keyboard, "document.activeElement"
    keyboard.press("Tab")
    assert page.page.evaluate(f"{focused}.textContent") == "Skip to the content"
    page.page.locator("#tab-run").focus()
    for tab, view in (("network", "network"), ("the-paper", "quality"), ("run", "run"), ("the-paper", "quality")):
        keyboard.press("End" if (tab, view) == ("the-paper", "quality") else "ArrowRight")
        assert page.page.evaluate(f"{focused}.id") == f"tab-{tab}"
        page.page.wait_for_selector(f"#view-{view}[data-answered]:not([hidden])")
    keyboard.press("Tab")  # to the views behind this tab
    for name in ("distributions", "graph", "memory", "quality"):
        keyboard.press("ArrowRight")
        assert page.page.evaluate(f"{focused}.id") == f"tab-{name}"
        page.page.wait_for_selector(f"#view-{name}[data-answered]:not([hidden])")
    keyboard.press("Tab")
    assert page.page.evaluate(f"{focused}.id") == "quality_iterations"
    keyboard.press("Control+A")
    with page.answered():
        keyboard.type("64")
    page.page.wait_for_function("document.querySelector('#view-quality .headline').textContent.includes('M = 64:')")


def test_a_tab_of_several_views_leads_to_the_one_seen_last(open_page):
    page = open_page().go("?view=graph")
    page.open_tab("run")
    assert page.page.locator("#tab-graph").is_hidden()
    page.page.locator("#tab-the-paper").click()
    assert page.view == "graph"
    assert page.page.locator("#tab-the-paper").get_attribute("aria-controls") == "view-graph"


def assert_full_rows(page, width: int) -> None:
    """Figures fill their rows, three to a row on a screen; no table is clipped there."""
    places = page.panel("figure").evaluate_all("all => all.map(e => e.getBoundingClientRect().toJSON())")
    whole = page.panel(".figures").bounding_box()
    rows = {}
    for place in places:
        rows.setdefault(round(place["top"]), []).append(place)
    for row in rows.values():
        assert max(p["right"] for p in row) == pytest.approx(whole["x"] + whole["width"], abs=1)
        assert len({round(p["bottom"]) for p in row}) == 1
    if width >= 1440:
        assert max(map(len, rows.values())) == (3 if len(places) not in (1, 2, 4) else min(len(places), 2))
        clipped = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
        assert page.panel(".scroll").evaluate_all(clipped) == []


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1440, "light"), (1920, "light")])
def test_a_screen_reader_finds_its_way_and_nothing_hangs_over(open_page, width, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(width=width, color_scheme=scheme).go()
    background = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
    for view in VIEWS:
        if view == "quality":
            page.page.locator("#tab-the-paper").click()
        page.open_tab(view)
        for fold in page.panel("summary").all():
            fold.click()
        assert_full_rows(page, width)
        if width != 1440:  # between a phone and a large screen nothing changes for a screen reader
            found = Axe().run(page.page, options={"resultTypes": ["violations"]}).response["violations"]
            assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("critical", "serious")] == []
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width
        for plot in page.panel(".plot").all():
            assert plot.locator(".main-svg").first.bounding_box()["width"] <= width
    assert all(tab.bounding_box()["x"] >= 0 for tab in page.page.get_by_role("tab").all())
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
    assert_shown(page, expected("quality"))
    page.set(entropy="mc", iterations="10")
    answer = expected("quality", iterations="10", entropy="mc")
    assert_shown(page, answer)
    assert open_page(url=page.page.url).go().headline() == answer.headline
    page.open_tab("graph")
    page.set(prior="laplace")
    assert "Theorem F" in page.panel(".notice").inner_text()
    assert page.faults == []


def test_the_server_going_away_is_said(open_page):
    process, url = start_server()
    try:
        page = open_page(url=url).go("?view=graph")
    finally:
        stop_server(process)
    page.page.wait_for_selector(".notice:not([hidden])")
    assert "The server has gone" in page.panel(".notice").inner_text()
    assert page.traces("direct")


def test_a_page_that_hangs_ends_its_test_and_no_other(chromium, server):
    page = chromium.page(server).go()
    with pytest.raises(TimeoutError, match="ended after 1 s"), chromium.deadline(1):
        page.page.evaluate("() => { while (true); }")
    assert chromium.page(server).go().headline()
