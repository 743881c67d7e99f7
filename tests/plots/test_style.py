"""Figures as files: PNG that is a picture, SVG that follows the page, asks for nothing and shares no id."""

import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from mcrepar import ParameterError, plots
from mcrepar.plots.style import COLOURS, DARK_PAPER, line, panel, percent, thinned

PAGES = {"light": ("#ffffff", "#f6f7f9"), "dark": ("#1c2229", "#14181d")}  # of cards, and around them


def figure(name="test"):
    return plots.histograms({name: [0.1, 0.2, 0.9], "other": [0.5, 0.6]}, "A title", "nats")


def parsed(svg):
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="link" ', 1))


def luminance(colour):
    values = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", [name for name in COLOURS if name != "grid"])
def test_colours_can_be_read_on_both_pages(name):
    light, dark = COLOURS[name]
    for page in PAGES["light"]:
        assert contrast(light, page) >= 4.5  # what WCAG asks of text
    for page in PAGES["dark"]:
        assert contrast(dark, page) >= 4.5


def test_a_png_is_a_picture_on_white():
    pixels = imread(io.BytesIO(plots.png(figure(), dpi=100)))
    assert pixels.shape[:2] == (310, 450)
    assert (pixels[0, 0, :3] == 1).all()
    assert (pixels[:, :, :3] < 0.9).any()


def colours_in(picture):
    pixels = (imread(io.BytesIO(picture))[:, :, :3] * 255).round().astype(int)
    return {f"#{r:02x}{g:02x}{b:02x}" for r, g, b in pixels.reshape(-1, 3)}, tuple(pixels[0, 0])


def test_a_dark_png_has_the_colours_of_a_dark_page_and_leaves_the_figure():
    drawn = plots.reliability_diagram([0.5, 0.75], [0.75, 1.0], [0.6, 0.9], [0.5, 0.95], [3, 97])
    before = plots.png(drawn, dpi=100)
    found, corner = colours_in(plots.png(drawn, dpi=100, dark=True))
    assert "#{:02x}{:02x}{:02x}".format(*corner) == PAGES["dark"][1] == DARK_PAPER
    light, dark = COLOURS["orange"]
    assert dark in found
    assert not {light, COLOURS["ink"][0], COLOURS["blue"][0], "#ffffff"} & found
    assert plots.png(drawn, dpi=100) == before
    assert light in colours_in(before)[0]


def test_an_svg_stands_alone():
    svg = plots.svg(figure(), 'what "it" shows', "first")
    root = parsed(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'what "it" shows'
    assert root.get("viewBox")
    assert root.get("width") is None
    assert not re.search(r"https?:|<\?xml|<!DOCTYPE|<metadata|@import|<image", svg)
    texts = {"".join(element.itertext()).strip() for element in root.iter("text")}
    assert {"A title", "nats", "test, 3", "other, 2"} <= texts


def test_an_svg_takes_the_colours_of_the_page():
    svg = plots.svg(figure(), "", "first")
    for name in ("ink", "muted", "grid", "blue", "orange"):
        assert f"var(--{name})" in svg
    assert set(re.findall(r"#[0-9a-fA-F]{6}\b", svg)) == set()


def test_no_two_figures_share_an_id_and_every_reference_is_met():
    first, second = plots.svg(figure(), "", "first"), plots.svg(figure(), "", "second")
    ids = [re.findall(r'id="([^"]+)"', svg) for svg in (first, second)]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    for svg, own in zip((first, second), ids, strict=True):
        assert len(own) == len(set(own))
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(own)


def test_the_same_figure_gives_the_same_bytes():
    assert plots.svg(figure(), "", "a") == plots.svg(figure(), "", "a")
    assert plots.png(figure()) == plots.png(figure())


@pytest.mark.parametrize("name", ["a$b$", "<b>&", "日本", "%d {x}", "_hidden"])
def test_names_of_users_are_taken_literally(name):
    shown = {"".join(e.itertext()).strip() for e in parsed(plots.svg(figure(name), "", "p")).iter("text")}
    assert f"{name}, 3" in shown
    assert plots.png(figure(name))


def test_thinning_keeps_the_ends():
    kept, same = thinned(np.arange(5000), np.arange(5000) * 2)
    assert (kept[0], kept[-1], len(kept)) == (0, 4999, 400)
    np.testing.assert_array_equal(same, 2 * kept)
    np.testing.assert_array_equal(thinned(np.arange(7))[0], np.arange(7))


@pytest.mark.parametrize("values", [[], [[1.0]], [1.0, 2.0]])
def test_lines_of_other_lengths_are_refused(values):
    with pytest.raises(ParameterError, match="the shapes are"):
        line("a line", x=[1.0], y=values)


def test_no_state_of_pyplot_is_touched():
    import sys

    import matplotlib as mpl

    before = dict(mpl.rcParams)
    plots.svg(panel("t", "x", "y")[0], "", "p")
    assert dict(mpl.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_percentage_has_the_digits_it_needs():
    _, axes = panel("A title", "x", "y")
    percent(axes.yaxis)
    axes.set_yticks([0.9, 0.925, 0.1 + 0.2, 1.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["90 %", "92.5 %", "30 %", "100 %"]
