"""Checks of a page that wait until they hold: an address opens its panel a moment after a click or a key."""

from __future__ import annotations

from typing import Any

Page = Any  # Playwright's, which is installed for the tests of pages alone


def heads(page: Page, text: str) -> None:
    """Wait until the panel has this heading."""
    expect(page.locator("#panel h2").first).to_have_text(text)


def expect(found: Any) -> Any:
    """Return Playwright's assertions of a locator."""
    from playwright.sync_api import expect as expected

    return expected(found)
