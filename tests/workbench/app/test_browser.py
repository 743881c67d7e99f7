"""The views in a real Chromium: every control moved, numbers compared with the library's, files, links, bad values.

Where there is no Chromium these tests are skipped.
"""

import csv
import re

import pytest

from mcrepar.workbench.app.answer import Table
from mcrepar.workbench.app.views import all_views
from tests.workbench.app.example_run import arrays

pytestmark = pytest.mark.browser

VIEWS = ("run", "network", "quality", "distributions", "graph", "memory")
CHANGES = {
    "quality": {"iterations": "10^6", "variance": "0.01", "size1": "AlexNet", "size2": "", "size3": "10^9",
                "size4": "VGG-19", "simulations": "1000", "entropy": "mc", "measure": "std", "log": "false",
                "distance": "0.5", "prior_variance": "2", "seed": "4"},
    "distributions": {"q_loc": "0.7", "posterior": "gamma", "prior": "inverse_gaussian", "q_scale": "0.8",
                      "weights": "7", "iterations": "200", "q_concentration": "1.5", "p_loc": "2",
                      "p_concentration": "3", "seed": "2"},
    "graph": {"posterior": "normal", "prior": "cauchy", "iterations": "12"},
    "memory": {"network": "VGG-16", "batch": "32", "memory": "24", "iterations": "10^4", "posterior": "gamma",
               "prior": "gamma"},
    "run": {"run": "simulated", "threshold": "0.55", "show": "sure"},
    "network": {"draws": "3", "network": "zoo:small_conv", "posterior": "normal", "prior": "laplace", "fit": "true"},
}  # fmt: skip
FAMILIES = {  # the fields that only some families have
    ("horseshoe", "mixture"): {"q_slab": "2.5", "p_mix": "0.3", "p_scale1": "2", "p_scale2": "0.4"},
    ("student_t", "normal"): {"q_df": "6"},
    ("error", "student_t"): {"q_power": "3", "p_df": "7", "p_loc": "0.1", "p_scale": "3"},
    ("gamma", "inverse_gamma"): {"p_concentration": "4", "p_rate": "2"},
    ("lognormal", "pareto"): {"p_alpha": "1.5", "improper": "true"},
    ("normal", "horseshoe"): {"p_softening": "0.5"},
    ("normal", "error"): {"p_power": "2.5"},
    ("normal", "hierarchical"): {"p_scale": "0.3", "p_loc_scale": "0.8"},
}


def expected(view: str, runs=None, **texts: str):
    """The library's own answer."""
    row = all_views(runs)[view]
    values, errors = row.read(row.texts(texts))
    assert errors == {}
    return row.compute(values)


def assert_shown(page, answer) -> None:
    """The page shows this answer, number by number."""
    assert page.headline() == answer.headline
    assert [f.get_attribute("data-figure") for f in page.panel("figure").all()] == [f.name for f in answer.figures]
    for figure in answer.figures:
        drawn = [{key: trace[key] for key in ("x", "y")} for trace in figure.plain()["data"]]
        assert page.traces(figure.name) == drawn
    assert [t.get_attribute("data-table") for t in page.panel(".numbers").all()] == [t.name for t in answer.tables]
    assert page.panel(".notice").is_hidden()
    assert page.faults == []


def assert_csv(data: bytes, table: Table) -> None:
    """A file has the numbers of a table, all digits of them."""
    header, *rows = csv.reader(data.decode("utf-8").splitlines())
    assert header == list(table.header)
    assert len(rows) == len(table.rows)
    for row, cells in zip(rows, table.plain()["rows"], strict=True):
        for text, cell in zip(row, cells, strict=True):
            assert (float(text) == cell) if isinstance(cell, float | int) else (text == (cell or ""))


def test_it_opens_on_the_newest_run_and_the_paper_s_view_on_its_sample_run(open_page, runs_folder):
    page = open_page().go()
    assert page.view == "run"
    assert_shown(page, expected("run", runs_folder))
    page.page.locator("#tab-the-paper").click()
    page.page.wait_for_selector("#view-quality[data-answered]")
    assert_shown(page, expected("quality"))


def test_every_control_is_among_the_changes():
    for name, view in all_views(None).items():
        moved = set(CHANGES[name]) | {f for fields in FAMILIES.values() for f in fields if name == "distributions"}
        assert {control.name for control in view.every} == moved


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_moves_the_numbers_to_the_library_s(open_page, runs_folder, view):
    page = open_page().go(f"?view={view}")
    texts = dict(CHANGES[view])
    page.set(**texts)
    if view == "graph":  # a pair without a tuple: the last good picture stays, and the page says why
        assert "Theorem F" in page.panel(".notice").inner_text()
        page.set(prior="normal")
        texts["prior"] = "normal"
    row = all_views(runs_folder)[view]
    assert_shown(page, expected(view, runs_folder, **texts))
    assert page.query == row.link(row.texts(texts))
    assert page.panel(".banner").is_visible() == (view == "run")


def test_fields_of_some_families_move_the_numbers_too(open_page):
    page = open_page().go("?view=distributions&weights=3&iterations=20")
    for pair, fields in FAMILIES.items():
        texts = {name: page.text(name) for name in page.names()}
        texts |= {"posterior": pair[0], "prior": pair[1], **fields}
        page.set(posterior=pair[0], prior=pair[1], **fields)
        assert_shown(page, expected("distributions", **texts))


def test_a_model_is_chosen_from_the_presets(open_page):
    page = open_page().go("?view=quality")
    menu = page.panel('[data-control="size4"] .presets')
    assert menu.input_value() == "10^8"
    with page.answered():
        menu.select_option("vgg19")
    assert page.text("size4") == "vgg19"
    assert page.headline() == expected("quality", size4="VGG-19").headline
    page.set(size4="12345678")
    assert menu.evaluate("e => e.selectedIndex") == -1


@pytest.mark.parametrize("view", VIEWS)
def test_a_link_restores_the_settings_and_what_it_shows_can_be_downloaded(open_page, runs_folder, view):
    row, texts = all_views(runs_folder)[view], dict(CHANGES[view])
    if view == "graph":
        texts["prior"] = "normal"
    answer, link = expected(view, runs_folder, **texts), row.link(row.texts(texts))
    page = open_page().go(f"?{link}")
    assert page.view == view
    assert {name: page.text(name) for name in texts} == texts
    assert page.headline() == answer.headline != expected(view, runs_folder).headline
    assert page.query == link
    for table in answer.tables:
        name, data = page.download(page.panel(f'[data-table="{table.name}"]').get_by_role("button"))
        assert name == f"mcrepar-{view}-{table.name}.csv"
        assert_csv(data, table)
    figure = answer.figures[-1].name
    for format, starts in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        name, data = page.download(page.panel(f'[data-figure="{figure}"]').get_by_role("button", name=format))
        assert name == f"mcrepar-{view}-{figure}.{format.lower()}"
        assert data.startswith(starts)
    assert page.faults == []


def test_bad_values_are_said_and_the_last_good_picture_stays(open_page):
    page = open_page().go("?view=quality")
    before, traces = page.headline(), page.traces("absolute-error")
    for text, says in (("", "Type a number."), ("-3", "too small"), ("many", "is no number"), ("1e30", "too large"),
                       ("<img src=x onerror=alert(1)>", "is no number")):  # fmt: skip
        page.set(iterations=text)
        assert says in page.error("iterations")
        assert page.field("iterations").get_attribute("aria-invalid") == "true"
        assert page.headline() == before
        assert page.traces("absolute-error") == traces
    page.set(iterations="500")
    assert page.error("iterations") == ""
    assert page.headline() != before
    page.set(size1="", size2="", size3="", size4="")
    assert "at least one size" in page.error("size1")
    assert page.page.locator("img[src=x]").count() == 0
    assert page.faults == []


def test_a_link_with_bad_values_shows_the_start_values_and_says_so(open_page):
    page = open_page().go("?view=distributions&posterior=%3Cb%3Enothing&q_scale=-4&weights=7")
    assert "is not in the list" in page.error("posterior")
    assert "too small" in page.error("q_scale")
    assert page.headline() == expected("distributions", weights="7").headline
    assert open_page().go("?view=nothing").view == "run"


def test_a_damaged_run_is_named(open_page):
    page = open_page().go("?view=run")
    before = page.headline()
    page.set(run="broken")
    assert "predictions.npz is damaged" in page.panel(".notice").inner_text()
    assert page.headline() == before
    page.set(run="shapes")
    assert page.panel(".notice").is_hidden()


def test_images_follow_the_threshold(open_page):
    page, a = open_page().go("?view=run&show=wrong"), arrays()
    counts = []
    for tau in ("0.4", "0.7", "1"):
        page.set(threshold=tau)
        wrong = (a["confidence"] >= float(tau) - 1e-9) & (a["label"] != a["y"])
        counts.append(page.panel(".gallery img").count())
        assert counts[-1] == min(24, int(wrong[a["thumbnail_indices"]].sum()))
        assert page.panel("output").inner_text() == tau
    assert counts[0] > counts[-1]
    page.set(threshold="0.4")
    assert page.panel(".gallery img").first.evaluate("e => e.naturalWidth") == 16
    assert re.search(r"wrong: it is (circle|square|triangle)", page.panel(".gallery img").first.get_attribute("alt"))
