"""What a page of a large model may weigh, and that it can be printed and worked by keys alone.

How soon it is usable is measured by `benchmarks/pages.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_checks import expect, heads

Page = Any  # Playwright's, which is installed for the tests of pages alone
Open = Callable[..., Page]
REPORTS = Path(__file__).parents[2] / "reports"
LARGE = ("gemma-270m", "detr-resnet-50-quantized", "nllb-600m-merged")  # 5,701, 3,211 and 5,580 nodes


def example(name: str) -> str:
    return (REPORTS / f"{name}.html").read_text("utf-8")


@pytest.mark.cases("detr")
@pytest.mark.parametrize("name", LARGE)
def test_a_large_page_is_light_and_usable_once_it_is_read(open_page: Open, name: str) -> None:
    html = example(name)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    assert len(html.encode()) < 3_000_000
    assert len(style.encode()) + len(script.encode()) < 300_000
    page = open_page(html)
    assert page.evaluate("document.querySelectorAll('*').length") < 5_000  # none for each node


@pytest.mark.cases("detr")
@pytest.mark.parametrize("name", LARGE)
def test_a_slider_and_a_search_answer_before_the_page_does_anything_else(open_page: Open, name: str) -> None:
    page = open_page(example(name))
    found = page.evaluate("""() => {
        for (const [place, value] of [[".sizes input[type=number]", "2"], ["#search", "softmax"]]) {
            const field = document.querySelector(place);
            field.value = value;
            field.dispatchEvent(new Event("input"));
        }
        return ["#costs p.sized", "#panel h2"].map((place) => document.querySelector(place).textContent);
    }""")
    assert "as set here" in found[0]
    assert re.match(r"\d+ matches", found[1])


def test_a_page_can_be_worked_by_keys_alone(open_page: Open) -> None:
    page = open_page(example("marian-tiny-merged"))
    page.keyboard.press("/")
    page.keyboard.type("layers.0/self_attn/Softmax")
    page.keyboard.press("Enter")
    expect(page.locator("#panel h2")).to_have_text(re.compile("layers.0/self_attn/Softmax"))
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    page.keyboard.press("Tab")
    expect(page.get_by_label("batch_size", exact=True)).to_be_focused()
    page.keyboard.press("ArrowRight")
    heading = page.locator("#costs th button").first
    heading.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#costs th").first).to_have_attribute("aria-sort", "ascending")
    page.locator("#costs summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#costs table").first).to_be_hidden()


def test_a_page_prints_as_a_document(open_page: Open) -> None:
    page = open_page(example("marian-tiny-merged"), "#node=optimum%3A%3Aif", color_scheme="dark")
    heads(page, "optimum::if")
    page.locator("#costs summary").click(position={"x": 5, "y": 5})
    expect(page.locator("#costs table").first).to_be_hidden()
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    for place in ("header.bar", ".contents", "#panel", ".filter >> nth=0", ".sizes"):
        expect(page.locator(place)).to_be_hidden()
    expect(page.locator("#costs table").first).to_be_visible()
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")


def test_a_page_without_a_script_has_no_empty_pictures(open_page: Open) -> None:
    page = open_page(example("marian-tiny-merged"), java_script_enabled=False)
    expect(page.locator("#costs figure[data-chart]").first).to_be_hidden()
    expect(page.locator(".sizes")).to_have_count(0)


def test_nothing_is_wider_than_a_narrow_screen(open_page: Open) -> None:
    page = open_page(example("gemma-270m"), viewport={"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.cases("detr")
@pytest.mark.parametrize("name", ["detr-resnet-50-quantized", "nllb-600m-merged", "marian-tiny-bundle"])
def test_the_verdict_is_on_the_first_screen_of_a_phone(open_page: Open, name: str) -> None:
    page = open_page(example(name), viewport={"width": 390, "height": 844})
    expect(page.locator("#top .lines li").nth(1)).to_be_in_viewport(ratio=1)
    places = [page.locator(each).first.bounding_box()["y"] for each in ("h1", "#top .lines", ".contents", "#top ~ *")]
    assert places == sorted(places)


@pytest.mark.cases("mt8371-360", "quantized-800", "bundle-1280")
@pytest.mark.parametrize("width", [360, 800, 1280])
@pytest.mark.parametrize("name", ["marian-tiny-mt8371", "detr-resnet-50-quantized", "opus-mt-en-fr-bundle"])
def test_names_in_tables_are_broken_only_where_they_are_long(open_page: Open, name: str, width: int) -> None:
    page = open_page(example(name), viewport={"width": width, "height": 800})
    lines = page.locator(".scroll td code").evaluate_all("""all => all
        .filter((code) => code.offsetHeight && !/\\s/.test(code.textContent.trim()))
        .map((code) => {
            const words = document.createRange();
            words.selectNodeContents(code);
            const rows = new Set([...words.getClientRects()].map(({ top }) => Math.round(top)));
            return [code.textContent, rows.size, code.offsetWidth];
        })""")
    assert len(lines) > 10
    assert all(rows >= 1 for _, rows, _ in lines)
    assert [text for text, rows, _ in lines if rows > 1 and len(text) <= 16] == []
    assert max(wide for *_, wide in lines) <= 24 * 16 + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
