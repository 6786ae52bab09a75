"""Pages in a browser: how soon a report can be used, and how soon it answers.

    python benchmarks/pages.py [PAGE...]

Needs Playwright and a Chromium on PATH, as `make browser-test` does. Of each page, the time until its script has run,
and that of a slider and a search together; the peer is the time in which Chromium reads the page without its script.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from statistics import median

from measure import environment
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.table import Table

REPORTS = Path(__file__).parents[1] / "reports"
PAGES = [REPORTS / f"{name}.html" for name in ("gemma-270m", "detr-resnet-50-quantized", "nllb-600m-merged")]
USABLE = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
ANSWER = """() => {
    const begin = performance.now();
    for (const [place, value] of [[".sizes input[type=number]", "2"], ["#search", "softmax"]]) {
        const field = document.querySelector(place);
        if (field) {
            field.value = value;
            field.dispatchEvent(new Event("input"));
        }
    }
    return performance.now() - begin;
}"""


def measure_page(browser: Browser, path: Path, *, has_script: bool) -> tuple[float, float]:
    """Return in how many milliseconds a page is usable, and answers."""
    page = browser.new_context(java_script_enabled=has_script).new_page()
    page.goto(path.resolve().as_uri())
    found = page.evaluate(USABLE), page.evaluate(ANSWER) if has_script else 0.0
    page.context.close()
    return found


def main() -> None:
    """Measure pages in turns, with and without their scripts."""
    parser = argparse.ArgumentParser(description="Measure how soon pages are usable.")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, metavar="PAGE")
    parser.add_argument("--rounds", type=int, default=7, help="of each page (default: 7)")
    options = parser.parse_args()
    table = Table("page", "usable", "over reading it alone", "a slider and a search", title="Pages")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for path in options.pages:
            rounds = [
                [measure_page(browser, path, has_script=has) for has in (True, False)] for _ in range(options.rounds)
            ]
            usable, bare, answers = (
                median(each) for each in zip(*((w[0], b[0], w[1]) for w, b in rounds), strict=True)
            )
            table.add_row(path.stem, f"{usable:.0f} ms", f"{usable / bare:.2f}x", f"{answers:.0f} ms")
    console = Console()
    console.print(environment())
    console.print(table)


if __name__ == "__main__":
    main()
