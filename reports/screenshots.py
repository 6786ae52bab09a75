"""Take the pictures in `reports/screenshots` of the example reports anew, in a Chromium: see `make browser-test`.

    .venv/bin/python reports/screenshots.py

They are not compared by a test: each Chromium draws letters in its own way.
"""

from __future__ import annotations

import html
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright

import graphkit

FOLDER = Path(__file__).parent
OUT = FOLDER / "screenshots"
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
RESHAPE = "/model/decoder/layers.0/self_attn/Reshape_1"
FOLDED = "optimum::if/then_branch//model/decoder/layers.0/self_attn/Reshape_1"


@dataclass(frozen=True)
class Picture:
    """A picture of a page: where it is looked at, what is clicked, and the colours of its drawing if that is shown."""

    report: str
    fragment: str = ""
    click: str = ""
    colours: str = ""
    size: Mapping[str, int] = field(default_factory=WIDE.copy)
    is_dark: bool = False


PICTURES = {
    "detr": Picture("detr-resnet-50-quantized"),
    "detr-phone": Picture("detr-resnet-50-quantized", size=NARROW),
    "detr-drawing": Picture("detr-resnet-50-quantized", colours="Blockers for ethos-u85"),
    "detr-costs": Picture("detr-resnet-50-quantized", "#costs"),
    "detr-reshape": Picture("detr-resnet-50-quantized", f"#node={RESHAPE}", "#panel details summary >> nth=0"),
    "gemma-drawing": Picture("gemma-270m", colours="Multiply-accumulates", is_dark=True),
    "gemma-phone": Picture("gemma-270m", colours="Operators", size=NARROW, is_dark=True),
    "merged-decoder": Picture("nllb-600m-merged", "#node=optimum%3A%3Aif", is_dark=True),
    "fold": Picture("marian-tiny-fold", f"#node={quote(FOLDED)}"),
    "fold-drawing": Picture("marian-tiny-fold", colours="Changes"),
    "bundle": Picture("marian-tiny-bundle"),
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
        for name, picture in PICTURES.items():
            page: Page = browser.new_page(viewport=picture.size, color_scheme="dark" if picture.is_dark else "light")
            page.goto(f"{(FOLDER / picture.report).as_uri()}.html{picture.fragment}")
            page.wait_for_selector("html.live", state="attached")
            if picture.click:
                page.click(picture.click)
            if picture.colours:
                page.get_by_label("Colours of the drawing").select_option(picture.colours)
                page.evaluate("document.getElementById('drawing').scrollIntoView()")
            page.screenshot(path=OUT / f"{name}.png")
            page.close()
        with tempfile.TemporaryDirectory() as folder:
            beside(browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
