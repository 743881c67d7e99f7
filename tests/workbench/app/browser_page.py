"""A page of the app in Chromium, and the few things that one does with it; nothing here waits for ever."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")  # fmt: skip
WAIT = 60_000  # milliseconds of one wait: on a busy machine
DEADLINE = 240  # seconds of a whole test
_SHOWN = "section.view:not([hidden])"
_ANSWERED = f"""() => {{
  const panel = document.querySelector("{_SHOWN}");
  const text = (field) => (field.type === "checkbox" ? String(field.checked) : field.value);
  const boxes = [...panel.querySelectorAll("[data-control]")];
  const now = Object.fromEntries(boxes.map((b) => [b.dataset.control, text(b.querySelector("input, select"))]));
  return !panel.hasAttribute("aria-busy") && panel.dataset.asked === JSON.stringify(now);
}}"""  # the last answer is to what the fields show
_LAUNCHER = '#!/bin/sh\necho $$ > "{pid}"\nexec "{chromium}" "$@"\n'  # exec keeps the number of the process


class Chromium:
    """A browser that starts when it is needed, and again after a deadline has ended it.

    A renderer that hangs answers nothing, and what is evaluated in a page has no time limit of its own.
    """

    def __init__(self, playwright, folder: Path) -> None:
        self._playwright, self._pid, self._launcher = playwright, folder / "pid", folder / "chromium"
        self._launcher.write_text(_LAUNCHER.format(pid=self._pid, chromium=CHROMIUM))
        self._launcher.chmod(0o700)
        self._browser = self._context = None

    def page(self, url: str, width: int = 1200, **options) -> "Page":
        """A new page; those without options share what the browser remembers."""
        if self._browser is None or not self._browser.is_connected():
            launch = self._playwright.chromium.launch
            self._browser = launch(executable_path=self._launcher, args=list(FLAGS), timeout=WAIT)
            self._context = self._browser.new_context()
        context = self._browser.new_context(**options) if options else self._context
        page = context.new_page()
        page.set_viewport_size({"width": width, "height": 900})
        return Page(page, url)

    def close(self) -> None:
        if self._browser is not None and self._browser.is_connected():
            self._browser.close()

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """End the browser after so many seconds: whoever waits for it goes on with an error."""
        late = threading.Event()

        def end() -> None:
            late.set()
            os.killpg(int(self._pid.read_text()), signal.SIGKILL)  # Playwright starts it in a group of its own

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if late.is_set():
                raise TimeoutError(f"the browser was ended after {seconds} s")


class Page:
    """A page of the app."""

    def __init__(self, page, url: str) -> None:
        self.page, self.url = page, url
        self.elsewhere: list[str] = []
        self.faults: list[str] = []
        page.set_default_timeout(WAIT)
        page.on("request", lambda request: self._asked(request.url))
        page.on("websocket", lambda socket: self._asked(socket.url))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)

    def _asked(self, url: str) -> None:
        here, there = urlsplit(self.url), urlsplit(url)
        own = there.scheme in (here.scheme, "ws") and there.netloc == here.netloc
        if not own and there.scheme not in ("data", "blob"):
            self.elsewhere.append(url)

    def go(self, query: str = "") -> "Page":
        self.page.goto(self.url + query)
        self.page.wait_for_selector(f"{_SHOWN}[data-answered]:not([aria-busy])")
        return self

    @property
    def view(self) -> str:
        return self.page.get_attribute(_SHOWN, "data-view")

    @property
    def query(self) -> str:
        return urlsplit(self.page.url).query

    def panel(self, part: str = ""):
        return self.page.locator(f"{_SHOWN} {part}".strip())

    def field(self, name: str):
        return self.page.locator(f"#{self.view}_{name}")

    def names(self) -> list[str]:
        """The controls of the view."""
        return self.panel("[data-control]").evaluate_all("all => all.map(e => e.dataset.control)")

    def text(self, name: str) -> str:
        """What a field shows."""
        return self.field(name).evaluate("e => e.type === 'checkbox' ? String(e.checked) : e.value")

    def set(self, **texts: str) -> None:
        """Change controls as a user does, one after the other, and wait for the answer to all of them."""
        for name, text in texts.items():
            field = self.field(name)
            if not field.is_visible():
                self.panel("summary").click()
            kind = field.evaluate("e => e.tagName === 'SELECT' ? 'select' : e.type")
            if kind == "select":
                field.select_option(text)
            elif kind == "checkbox":
                field.set_checked(text == "true")
            else:
                field.fill(text)
        self.page.wait_for_function(_ANSWERED)

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Wait for the answer to what is done inside."""
        before = self.panel().get_attribute("data-answered")
        yield
        self.page.wait_for_function(
            f"n => {{ const p = document.querySelector('{_SHOWN}');"
            " return p.dataset.answered !== n && !p.hasAttribute('aria-busy'); }",
            arg=before,
        )

    def open_tab(self, view: str) -> None:
        self.page.locator(f"#tab-{view}").click()
        self.page.wait_for_selector(f"#view-{view}[data-answered]:not([hidden])")

    def headline(self) -> str:
        return self.panel(".headline").inner_text()

    def error(self, name: str) -> str:
        return self.page.locator(f"#{self.view}_{name}-error").inner_text()

    def traces(self, figure: str) -> list[dict]:
        text = self.panel(f'[data-figure="{figure}"] .plot').evaluate(
            "e => JSON.stringify(e.data.map(t => ({x: t.x, y: t.y})))"
        )
        return json.loads(text)

    def range(self, figure: str, axis: str = "xaxis") -> list[float]:
        return self.panel(f'[data-figure="{figure}"] .plot').evaluate(f"e => [...e._fullLayout.{axis}.range]")

    def download(self, button) -> tuple[str, bytes]:
        with self.page.expect_download() as waiting:
            button.click()
        return waiting.value.suggested_filename, waiting.value.path().read_bytes()

    def drag(self, figure: str) -> None:
        """Mark a part of a plot with the mouse."""
        plot = self.panel(f'[data-figure="{figure}"] .plot .nsewdrag').first
        plot.scroll_into_view_if_needed()
        box, mouse = plot.bounding_box(), self.page.mouse
        mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
        mouse.down()
        mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
        mouse.up()

    def double_click(self, figure: str) -> None:
        box = self.panel(f'[data-figure="{figure}"] .plot .nsewdrag').first.bounding_box()
        self.page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def wait_for_range(self, figure: str, condition: str, whole: list[float]) -> None:
        """Wait until the range r of a plot is so, compared with the whole w."""
        self.page.wait_for_function(
            f"([f, w]) => {{ const r = document.querySelector(`{_SHOWN} [data-figure='${{f}}'] .plot`)"
            f"._fullLayout.xaxis.range; return {condition}; }}",
            arg=[figure, whole],
        )


ZOOMED = "r[1] - r[0] < 0.5 * (w[1] - w[0])"
RESET = "Math.abs(r[0] - w[0]) + Math.abs(r[1] - w[1]) < 0.05 * (w[1] - w[0])"
