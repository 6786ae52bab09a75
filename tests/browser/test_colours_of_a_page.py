"""Whether all text of a page can be read, by day and by night: the contrast that WCAG asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from page_checks import heads

import graphkit

Page = Any  # Playwright's, which is installed for the tests of pages alone
Open = Callable[..., Page]
# The contrast of each text that is seen with what is behind it: the box of a drawing around it, or else a background.
PALE = """least => {
    const parts = (color) => (color.match(/[\\d.]+/g) ?? []).map(Number);
    const bright = ([r, g, b]) => [r, g, b].map((part) => part / 255)
        .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const over = (top, alpha, under) => top.map((part, at) => alpha * part + (1 - alpha) * under[at]);
    const behind = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const [r, g, b, alpha = 1] = parts(getComputedStyle(each).backgroundColor);
            if (alpha > 0) return [r, g, b];
        }
        return [255, 255, 255];
    };
    const under = (text) => {
        const box = text instanceof SVGElement && !text.matches(".gives, .framed")
            ? text.parentElement.querySelector(":scope > rect") : null;
        const page = behind((text instanceof SVGElement ? text.closest("svg") : text));
        if (box === null) return page;
        const style = getComputedStyle(box);
        return over(parts(style.fill).slice(0, 3), Number(style.fillOpacity), page);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const [text, place] = [walker.currentNode.data.trim(), walker.currentNode.parentElement];
        if (!text || place.closest("script, style, title") || !place.checkVisibility()) continue;
        const style = getComputedStyle(place);
        const color = parts(place instanceof SVGElement ? style.fill : style.color).slice(0, 3);
        const [one, two] = [bright(color), bright(under(place))].sort((a, b) => b - a);
        const contrast = (one + 0.05) / (two + 0.05);
        if (contrast < least) found.push(`${contrast.toFixed(1)}: ${text.slice(0, 60)} (${color})`);
        found.count = (found.count ?? 0) + 1;
    }
    return [found.count, found];
}"""


@pytest.fixture(scope="module")
def html() -> str:
    return graphkit.report("example:merged-decoder", graphkit.ReportOptions(also=("costs", "what-if"))).to_html()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(open_page: Open, html: str, scheme: str) -> None:
    name = "optimum::if/else_branch//model/decoder/layers.0/self_attn/Softmax"
    page = open_page(html, color_scheme=scheme)
    for address in ("", f"#node={name}", "#node=optimum%3A%3Aif", "#search=softmax"):
        page.evaluate("address => { location.hash = address; }", address)
        if address.startswith("#node"):
            heads(page, name if name in address else "optimum::if")
        count, pale = page.evaluate(PALE, 4.5)
        assert count > 500
        assert pale == []
