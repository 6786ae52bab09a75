"""Take the pictures in `reports/screenshots` of the example reports anew, in a Chromium: see `make browser-test`.

    .venv/bin/python reports/screenshots.py

They are not compared by a test: each Chromium draws letters in its own way.
"""

from __future__ import annotations

import html
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright

import graphkit

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
BESIDE = "example:merged-decoder"  # of which the README shows the verdict in front of the page
STYLE = """
body { margin: 0; height: 600px; position: relative; background: #e8e8ec }
img { position: absolute; top: 20px; right: 20px; width: 820px; border-radius: 8px; box-shadow: 0 2px 12px #0004 }
pre { position: absolute; bottom: 20px; left: 20px; margin: 0; padding: 16px 18px; border-radius: 8px;
      background: #1e1e24; color: #e6e6e6; font: 12px/1.5 monospace; box-shadow: 0 4px 24px #0008 }
"""


def beside(browser: Browser, folder: Path) -> None:
    """Take the picture of a verdict in a terminal in front of the page of its report."""
    made = graphkit.report(BESIDE)
    (folder / "report.html").write_text(made.to_html(), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1180, "height": 560}, color_scheme="light", device_scale_factor=2)
    page.goto((folder / "report.html").as_uri())
    page.wait_for_selector("html.live", state="attached")
    page.screenshot(path=folder / "page.png")
    verdict = html.escape(made.sections["verdict"].to_text().strip().removeprefix("Verdict"))
    command = html.escape(f"$ graphkit report {BESIDE} --only verdict")
    (folder / "both.html").write_text(
        f'<style>{STYLE}</style><img src="page.png"><pre>{command}\n{BESIDE}{verdict}</pre>', encoding="utf-8"
    )
    page.set_viewport_size({"width": 1000, "height": 600})
    page.goto((folder / "both.html").as_uri())
    page.screenshot(path=OUT / "verdict-and-page.png")
    page.close()


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
        with tempfile.TemporaryDirectory() as folder:
            beside(browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
