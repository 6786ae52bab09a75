"""Take the pictures in `reports/screenshots` of the example reports anew, in a Chromium: see `make browser-test`.

    .venv/bin/python reports/screenshots.py

They are not compared by a test: each Chromium draws letters in its own way.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent
OUT = FOLDER / "screenshots"
SIZE = {"width": 1280, "height": 800}
RESHAPE = "/model/decoder/layers.0/self_attn/Reshape_1"
FOLDED = "optimum::if/then_branch//model/decoder/layers.0/self_attn/Reshape_1"
# Picture -> the page, its fragment, what is clicked, and whether it is dark.
PICTURES: dict[str, tuple[str, str, tuple[str, ...], bool]] = {
    "detr": ("detr-resnet-50-quantized", "", (), False),
    "detr-costs": ("detr-resnet-50-quantized", "#costs", (), False),
    "detr-reshape": ("detr-resnet-50-quantized", f"#node={RESHAPE}", ("#panel details summary >> nth=0",), False),
    "merged-decoder": ("nllb-600m-merged", "#node=optimum%3A%3Aif", (), True),
    "fold": ("marian-tiny-fold", f"#node={quote(FOLDED)}", (), False),
    "bundle": ("marian-tiny-bundle", "", (), False),
}


def main() -> None:
    """Take them all."""
    OUT.mkdir(exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (report, fragment, clicks, is_dark) in PICTURES.items():
            page: Page = browser.new_page(viewport=SIZE, color_scheme="dark" if is_dark else "light")
            page.goto(f"{(FOLDER / report).as_uri()}.html{fragment}")
            page.wait_for_selector("html.live", state="attached")
            for selector in clicks:
                page.click(selector)
            page.screenshot(path=OUT / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
