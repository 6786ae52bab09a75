"""A browser for the tests of pages: `make browser-test` sets up what they need."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Browser = Page = Any  # Playwright's, which is installed for these tests alone
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SWITCHES = ["--no-sandbox", "--disable-gpu"]
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Start a browser, with the switches that a file of tests names."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: run `make browser-test`")
    if CHROMIUM is None:
        pytest.skip("needs a Chromium on PATH, such as Debian's package chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=getattr(request.module, "SWITCHES", SWITCHES))
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a page of HTML, and fail on any error in it, and on any request but that for the page."""
    faults: list[str] = []
    pages: list[Page] = []

    def opened(html: str, hash: str = "", **options: object) -> Page:
        file = tmp_path / f"{len(pages)}.html"
        file.write_text(html, encoding="utf-8")
        page = browser.new_page(**options)
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else faults.append(request.url))
        page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        page.goto(f"{file.as_uri()}{hash}")
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html.live", state="attached")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert faults == []
