"""Charts of a page at other sizes: they are those that Python draws there; and their boxes can be worked by keys."""

from __future__ import annotations

import html as entities
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from page_checks import expect, heads
from test_sizes_on_a_page import page_of, set_sizes

import graphkit
from graphkit.analysis.costs.cost_table import Costs
from graphkit.render.document_blocks import Chart, Formula, Table, Treemap, cell_text
from graphkit.render.html import block_html
from graphkit.shapes import DimSpec

Page = Any  # Playwright's, which is installed for the tests of pages alone
Open = Callable[..., Page]
MERGED = {
    "batch_size": 2,
    "decoder_sequence_length": 5,
    "past_decoder_sequence_length": 20,
    "encoder_sequence_length": 40,
}
MODELS = [
    ("example:causal-attention", {"batch_size": 3, "sequence_length": 27}),
    ("example:causal-attention", {"batch_size": 1, "sequence_length": 1}),
    ("example:merged-decoder", MERGED),
    ("example:merged-decoder", {**MERGED, "batch_size": 1, "past_decoder_sequence_length": 24}),
]
BOX = re.compile(r'<g ([^>]*)><title>([^<]*)</title><rect (?:class="[^"]*" )?([^>]*)(?:/>|></rect>)')


def boxes(svg: str) -> list[tuple[str, list[float]]]:
    """Return what each box of a chart says after the name of its node, and its place."""
    found = []
    for _, title, place in BOX.findall(svg):
        said = entities.unescape(title)
        found.append((said.rpartition(": ")[2], [float(number) for number in re.findall(r'="([\d.]+)"', place)]))
    return found


def drawn(costs: Costs, kind: type[Treemap] | type[Chart]) -> list[tuple[str, list[float]]]:
    return boxes(next(block_html(block, 1) for block in costs.blocks() if isinstance(block, kind)))


def close(found: list[tuple[str, list[float]]], expected: list[tuple[str, list[float]]]) -> bool:
    return [text for text, _ in found] == [text for text, _ in expected] and all(
        one == pytest.approx(two, abs=0.11) for (_, one), (_, two) in zip(found, expected, strict=True)
    )  # of a tenth of a pixel, which each rounds in its own way


@pytest.mark.parametrize(("model", "sizes"), MODELS)
@pytest.mark.parametrize(("picture", "kind"), [("svg.treemap", Treemap), ("svg.chart", Chart)])
def test_a_chart_is_that_of_python_at_the_sizes(
    open_page: Open, model: str, sizes: dict[str, int], picture: str, kind: type[Treemap] | type[Chart]
) -> None:
    page = open_page(page_of(model))
    chart = page.locator(f"#costs {picture}")
    first = chart.evaluate("chart => chart.innerHTML")
    set_sizes(page, sizes)
    expected = drawn(graphkit.costs(model, dims=sizes), kind)
    found = boxes(chart.evaluate("chart => chart.innerHTML"))
    assert len(expected) > 1
    assert close(found, expected), (found, expected)
    if kind is Chart:  # the column that stands out is the highest, which touches the top
        expect(chart.locator(".marked rect")).to_have_attribute("y", "18.0")
    expect(page.locator("#costs figure.stays")).to_have_count(0)
    page.get_by_role("button", name="Reset").click()
    assert chart.evaluate("chart => chart.innerHTML") == first


@pytest.mark.parametrize(("model", "sizes"), MODELS)
def test_tensors_at_the_peak_are_those_at_the_sizes(open_page: Open, model: str, sizes: dict[str, int]) -> None:
    page = open_page(page_of(model))
    table = page.locator("#costs table", has=page.locator("caption", has_text="In memory at the peak"))
    cells, first = table.locator("td:visible"), table.locator("td").all_inner_texts()
    set_sizes(page, sizes)
    blocks = graphkit.costs(model, dims=sizes).blocks()
    (there,) = (block for block in blocks if isinstance(block, Table) and block.title.startswith("In memory"))
    expect(table.locator("caption")).to_have_text(there.title)
    expect(cells).to_have_text([cell_text(cell) for row in there.rows for cell in row])
    page.get_by_role("button", name="Reset").click()
    expect(table.locator("td")).to_have_text(first)


def test_treemaps_are_laid_out_as_in_python(open_page: Open) -> None:
    choice = random.Random(3)
    names = ["a", "b.0", "b.1", "c", "layers.10", "<i>", "é"]

    def rows() -> list[tuple[str, int, int]]:
        paths = {"/".join(choice.choices(names, k=choice.randint(1, 4))) for _ in range(choice.randint(1, 40))}
        return [(path, choice.randint(0, 10**9), choice.randint(1, 10**7)) for path in sorted(paths)]

    every = [rows() for _ in range(20)]
    begin, sizes = {"batch_size": 1, "sequence_length": 32}, {"batch_size": 5, "sequence_length": 400}

    def picture(parts: list[tuple[str, int, int]], at: Mapping[str, int]) -> str:
        values = [(path, a * at["batch_size"] + b * at["sequence_length"]) for path, a, b in parts]
        expressions = [f"{a}*batch_size + {b}*sequence_length" for _, a, b in parts]
        return block_html(Treemap("Random", "MACs", values, expressions), 1)

    figures = "".join(picture(parts, begin) for parts in every)
    page = open_page(page_of("example:causal-attention").replace("<main>", f"<main><div id=random>{figures}</div>"))
    set_sizes(page, sizes)
    shown = page.locator("#random svg").evaluate_all("all => all.map((each) => each.innerHTML)")
    for parts, svg in zip(every, shown, strict=True):
        assert close(boxes(svg), boxes(picture(parts, sizes)))


def test_the_page_draws_what_python_has_drawn(open_page: Open) -> None:
    """At nearly the first sizes: a slider that moves and comes back."""
    page = open_page(page_of("example:merged-decoder"))
    first = {name: dict(graphkit.costs("example:merged-decoder").sizes)[name] for name in MERGED}
    set_sizes(page, MERGED)
    set_sizes(page, {**first, "encoder_sequence_length": first["encoder_sequence_length"] + 1})
    costs = graphkit.costs("example:merged-decoder", dims={**first, "encoder_sequence_length": 129})
    found = boxes(page.locator("#costs svg.chart").evaluate("chart => chart.innerHTML"))
    assert close(found, drawn(costs, Chart))


def test_a_chart_of_which_an_expression_is_wrong_stays_and_says_so(open_page: Open) -> None:
    text = page_of("example:causal-attention")
    faulty = re.sub(r"(&quot;parts&quot;:\[\[&quot;)", r"\g<1>7 + ", text)
    faulty = re.sub(r'"found":\[(\d+),(\d+),', lambda match: f'"found":[{match[1]},{int(match[2]) + 1},', faulty)
    assert faulty.count("7 + ") == text.count("7 + ") + 1
    page = open_page(faulty)
    pictures = page.locator("#costs figure[data-chart] svg")
    first = pictures.evaluate_all("all => all.map((each) => each.innerHTML)")
    set_sizes(page, {"batch_size": 5})
    expect(page.locator("#costs figure.stays")).to_have_count(2)
    assert pictures.evaluate_all("all => all.map((each) => each.innerHTML)") == first
    peak = page.locator("#costs tr", has_text="peak memory of activations").locator("data")
    expect(peak).to_have_class("stays")


def test_the_verdict_and_a_curve_move_too(open_page: Open) -> None:
    spec = DimSpec.of(ranges={"sequence_length": (1, 512)})
    model, sizes = "example:causal-attention", {"batch_size": 3, "sequence_length": 27}
    page = open_page(graphkit.report(model, graphkit.ReportOptions(spec=spec)).to_html())
    set_sizes(page, sizes)
    there = graphkit.costs(model, spec, dims={"batch_size": 3})
    (curve,) = (block for block in there.blocks() if isinstance(block, Table) and block.title.startswith("Over"))
    cells = [cell.text for row in curve.rows for cell in row if isinstance(cell, Formula)]
    assert len(cells) >= 40
    table = page.locator("#costs table", has=page.locator("caption", has_text="Over sequence_length"))
    expect(table.locator("data")).to_have_text(cells)
    expect(page.locator("#top .lines li", has_text="MACs")).to_contain_text(_verdict(model, sizes))
    expect(page.locator("#top data.stays")).to_have_count(0)
    expect(page.locator("#costs p.sized")).to_have_text("At batch_size 3, sequence_length 27, as set here.")


def _verdict(model: str, sizes: Mapping[str, int]) -> str:
    spec = DimSpec.of(sizes)
    (lines, *_) = graphkit.report(model, graphkit.ReportOptions(only=("verdict",), spec=spec)).blocks()
    return next(text for text, _ in lines.rows if text.startswith("MACs")).partition(" No faults")[0]  # type: ignore[union-attr]


def test_the_growth_of_a_cache_has_a_mark_at_the_sizes(open_page: Open) -> None:
    page = open_page(page_of("example:merged-decoder"))
    mark = page.locator("#kv-cache circle.here title")
    expect(mark).to_have_text("31 tokens: 4.0 kB")  # 128 bytes for each
    set_sizes(page, {"past_decoder_sequence_length": 20})
    expect(mark).to_have_text("20 tokens: 2.6 kB")
    expect(page.locator("#kv-cache figure.stays")).to_have_count(0)


def test_boxes_of_charts_are_reached_and_worked_by_keys(open_page: Open) -> None:
    page = open_page(page_of("example:causal-attention"))
    for picture, label in (("svg.treemap", "MACs, "), ("svg.chart", " B")):
        boxes = page.locator(f"#costs {picture} [tabindex]")
        expect(page.locator(f"#costs {picture} [tabindex='0']")).to_have_count(1)  # one stop of the Tab key
        boxes.first.focus()
        page.keyboard.press("ArrowRight")
        expect(boxes.nth(1)).to_be_focused()
        expect(boxes.nth(1)).to_have_attribute("aria-label", re.compile(label))
        expect(boxes.nth(1).locator("rect")).to_have_css("stroke-width", "3px")
        expect(boxes.nth(1)).to_have_role("link")
        page.keyboard.press("End")
        expect(boxes.last).to_be_focused()
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        expect(page.locator("#panel")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#panel")).to_be_hidden()
        expect(boxes.first).to_be_focused()  # where the reader was


def test_operators_of_a_chart_lead_to_their_nodes(open_page: Open) -> None:
    page = open_page(page_of("example:causal-attention"))
    page.locator(".bars a", has_text="Softmax").focus()
    page.keyboard.press("Enter")
    heads(page, "2 matches")
