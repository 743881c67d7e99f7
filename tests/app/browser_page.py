"""A page of the app in Chromium, and the few things that one does with it."""

import json
import shutil
from urllib.parse import urlsplit

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
WAIT = 180_000  # milliseconds: on a busy machine


class Page:
    """A page of the app, and the few things that one does with it."""

    def __init__(self, page, url: str) -> None:
        self.page, self.url = page, url
        self.elsewhere: list[str] = []
        self.faults: list[str] = []
        page.set_default_timeout(WAIT)
        page.on("request", self._asked)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)

    def _asked(self, request) -> None:
        here = urlsplit(self.url)
        there = urlsplit(request.url)
        if there.scheme not in ("data", "blob") and (there.scheme, there.netloc) != (here.scheme, here.netloc):
            self.elsewhere.append(request.url)

    def go(self, query: str = "") -> "Page":
        self.page.goto(self.url + query)
        self.page.wait_for_selector("section.view:not([hidden])[data-answered]:not([aria-busy])")
        return self

    @property
    def view(self) -> str:
        return self.page.get_attribute("section.view:not([hidden])", "data-view")

    def panel(self, part: str = ""):
        return self.page.locator(f"section.view:not([hidden]) {part}".strip())

    def field(self, name: str):
        return self.page.locator(f"#{self.view}_{name}")

    def set(self, name: str, text: str) -> None:
        """Change a control as a user does, and wait for what comes of it."""
        answered = self.panel().get_attribute("data-answered")
        field = self.field(name)
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(text)
        elif field.get_attribute("type") == "checkbox":
            field.set_checked(text == "true")
        elif field.get_attribute("type") == "range":
            field.fill(text)
        else:
            field.fill(text)
        self.page.wait_for_function(
            "n => { const p = document.querySelector('section.view:not([hidden])');"
            " return p.dataset.answered !== n && !p.hasAttribute('aria-busy'); }",
            arg=answered,
        )

    def headline(self) -> str:
        return self.panel(".headline").inner_text()

    def error(self, name: str) -> str:
        return self.page.locator(f"#{self.view}_{name}-error").inner_text()

    def table(self, name: str) -> list[list[str]]:
        return self.panel(f'[data-table="{name}"]').evaluate(
            "e => [...e.querySelectorAll('tr')].map(r => [...r.children].map(c => c.textContent))"
        )

    def traces(self, figure: str) -> list[dict]:
        text = self.panel(f'[data-figure="{figure}"] .plot').evaluate(
            "e => JSON.stringify(e.data.map(t => ({name: t.name, x: t.x, y: t.y})))"
        )
        return json.loads(text)

    def range(self, figure: str, axis: str = "xaxis") -> list[float]:
        return self.panel(f'[data-figure="{figure}"] .plot').evaluate(f"e => [...e._fullLayout.{axis}.range]")

    def download(self, button) -> tuple[str, bytes]:
        with self.page.expect_download() as waiting:
            button.click()
        return waiting.value.suggested_filename, waiting.value.path().read_bytes()


def drag(page: Page, figure: str) -> None:
    plot = page.panel(f'[data-figure="{figure}"] .plot .nsewdrag').first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
    page.page.mouse.up()


def zoomed_in(page: Page, figure: str, whole: list[float]) -> bool:
    low, high = page.range(figure)
    return high - low < 0.5 * (whole[1] - whole[0])


def wait_for_zoom(page: Page, figure: str, whole: list[float]) -> None:
    page.page.wait_for_function(
        "([f, w]) => { const r = document.querySelector(`section.view:not([hidden]) [data-figure='${f}'] .plot`)"
        "._fullLayout.xaxis.range; return r[1] - r[0] < 0.5 * (w[1] - w[0]); }",
        arg=[figure, whole],
    )


def wait_for_reset(page: Page, figure: str, whole: list[float]) -> None:
    page.page.wait_for_function(
        "([f, w]) => { const r = document.querySelector(`section.view:not([hidden]) [data-figure='${f}'] .plot`)"
        "._fullLayout.xaxis.range; return Math.abs(r[0] - w[0]) + Math.abs(r[1] - w[1]) < 0.05 * (w[1] - w[0]); }",
        arg=[figure, whole],
    )
