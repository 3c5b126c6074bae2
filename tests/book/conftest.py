"""The built book and one headless Chromium, which sees nothing but the book."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from built_book import HTML, ROOT

AXE = ROOT / "build-assets" / "axe-core" / "axe.min.js"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_BOOK = "the book is not built: run `make book` first"
NO_AXE = "axe-core is missing: run `python tools/vendor.py axe-core` first"
NO_CHROMIUM = (
    "Chromium is missing: install it with `sudo apt-get install chromium` or with "
    "`python -m playwright install chromium`, or name it in the environment variable CHROMIUM"
)


def missing(reason: str) -> None:
    """Fail where a machine checks, and say what to do where a person does."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built book."""
    if not (HTML / "index.html").exists():
        missing(NO_BOOK)
    return HTML


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    if not AXE.exists():
        missing(NO_AXE)
    return AXE.read_text(encoding="utf-8")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


@pytest.fixture(scope="session")
def origins(html: Path) -> Iterator[dict[str, str]]:
    """Where the book is read from: a local server, and the disk."""
    handler = functools.partial(Quiet, directory=str(html))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield {"http": f"http://127.0.0.1:{server.server_port}/", "file": html.as_uri() + "/"}
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def chromium():
    """One Chromium for the whole session; it resolves no name but the local address."""
    from playwright.sync_api import Error, sync_playwright

    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    arguments = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=arguments)
        except Error as error:
            missing(f"{NO_CHROMIUM} ({str(error).splitlines()[0]})")
        yield browser
        browser.close()


@dataclass
class Seen:
    """What a page did while it was open."""

    outside: list[str] = field(default_factory=list)  # requests to anything but the book
    errors: list[str] = field(default_factory=list)  # on the console, or raised by a script
    failed: list[str] = field(default_factory=list)  # parts of the book that were not there


def watch(page, base: str) -> Seen:
    """Note what a page asks for and logs, from now on; what begins with `base` is its own."""
    seen = Seen()

    def note_request(request) -> None:
        if not request.url.startswith((base, "data:", "blob:")):
            seen.outside.append(request.url)

    def note_message(message) -> None:
        if message.type == "error":
            seen.errors.append(message.text)

    def note_failure(request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the reader went on to the next page
            seen.failed.append(request.url)

    def note_answer(answer) -> None:
        if answer.status >= 400:
            seen.failed.append(answer.url)

    page.on("request", note_request)
    page.on("console", note_message)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("requestfailed", note_failure)
    page.on("response", note_answer)
    return seen


@pytest.fixture(scope="session")
def contexts(chromium) -> Iterator[Callable]:
    """One browser context for each kind of reader, kept for the session: its cache helps the next page."""
    kept = {}

    def context(width: int, scripts: bool, theme: str):
        kind = (width, scripts, theme)
        if kind not in kept:
            kept[kind] = chromium.new_context(
                viewport={"width": width, "height": 900},
                java_script_enabled=scripts,
                color_scheme=theme,
                reduced_motion="reduce",
            )
            kept[kind].set_default_timeout(120_000)  # milliseconds: a busy machine is no fault of the book
        return kept[kind]

    yield context
    for opened in kept.values():
        opened.close()


@pytest.fixture(scope="session")
def reader(contexts, origins):
    """Open a page as a reader does: `with reader("book/attention.html") as (page, seen)`."""

    @contextmanager
    def open_page(name: str, origin="http", width=1280, scripts=True, theme="light"):
        base = origins[origin]
        page = contexts(width, scripts, theme).new_page()
        try:
            seen = watch(page, base)
            page.goto(base + name)
            yield page, seen
        finally:
            page.close()

    return open_page


@pytest.fixture(scope="session")
def shown(contexts, tmp_path_factory):
    """Open a figure on a page of its own, from the disk: `with shown(figure) as (page, seen)`."""
    folder = tmp_path_factory.mktemp("figures")

    @contextmanager
    def open_figure(figure, width=1280, scripts=True, theme="light", copies=1):
        path = folder / f"{figure.name}.html"
        path.write_text(figure.page(theme, copies), encoding="utf-8")
        page = contexts(width, scripts, theme).new_page()
        try:
            seen = watch(page, path.as_uri())
            page.goto(path.as_uri())
            yield page, seen
        finally:
            page.close()

    return open_figure
