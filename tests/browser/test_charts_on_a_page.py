"""Charts of a page: they are drawn in proportion, move with the sizes, and their boxes can be worked by keys."""

from __future__ import annotations

import html as entities
import random
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from page_checks import expect, heads
from test_sizes_on_a_page import page_of, set_sizes

import graphkit
from graphkit.render.document_blocks import Formula, Picture, Table, cell_text, columns, line, treemap
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


def close(found: list[tuple[str, list[float]]], expected: list[tuple[str, list[float]]]) -> bool:
    return [text for text, _ in found] == [text for text, _ in expected] and all(
        one == pytest.approx(two, abs=0.11) for (_, one), (_, two) in zip(found, expected, strict=True)
    )  # of a tenth of a pixel, which each rounds in its own way


def shown_boxes(page: Page, picture: str) -> list[tuple[str, list[float]]]:
    return boxes(page.locator(f"#costs {picture}").evaluate("chart => chart.innerHTML"))


def page_at(model: str, sizes: Mapping[str, int]) -> str:
    """Return the page of a report at some sizes, whose charts are drawn from the numbers that Python has counted."""
    return graphkit.report(model, graphkit.ReportOptions(spec=DimSpec.of(sizes))).to_html()


@pytest.mark.cases("svg.treemap-example:causal-attention-sizes1", "svg.chart-example:merged-decoder-sizes2")
@pytest.mark.parametrize(("model", "sizes"), MODELS)
@pytest.mark.parametrize("picture", ["svg.treemap", "svg.chart"])
def test_a_chart_that_moves_is_that_of_a_report_at_the_sizes(
    open_page: Open, model: str, sizes: dict[str, int], picture: str
) -> None:
    expected = shown_boxes(open_page(page_at(model, sizes)), picture)
    page = open_page(page_of(model))
    first = shown_boxes(page, picture)
    set_sizes(page, sizes)
    found = shown_boxes(page, picture)
    assert len(expected) > 1
    assert found != first
    assert close(found, expected), (found, expected)
    if picture == "svg.chart":  # the column that stands out is the highest, which touches the top
        expect(page.locator(f"#costs {picture} .marked rect")).to_have_attribute("y", "18.0")
    expect(page.locator("#costs figure.stays")).to_have_count(0)
    page.get_by_role("button", name="Reset").click()
    assert shown_boxes(page, picture) == first


@pytest.mark.cases(1)
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


def figures(open_page: Open, shown: Iterable[Picture]) -> Any:
    """Open a page with some charts, and return their drawings."""
    html = "".join(map(block_html, shown))
    return open_page(
        page_of("example:causal-attention").replace("<main>", f"<main><div id=random>{html}</div>")
    ).locator("#random svg")


def test_boxes_fill_the_whole_in_proportion(open_page: Open) -> None:
    choice = random.Random(3)
    names = ["a", "b.0", "b.1", "c", "layers.10", "<i>", "é"]
    every = [{name: choice.randint(10**8, 10**9) for name in choice.sample(names, k=number)} for number in range(2, 8)]
    pictures = [treemap("Random", "MACs", ((name, value, "") for name, value in parts.items())) for parts in every]
    drawings = figures(open_page, pictures).evaluate_all("all => all.map((each) => each.innerHTML)")
    for parts, svg in zip(every, drawings, strict=True):
        found = sorted(boxes(svg), key=lambda box: -box[1][2] * box[1][3])
        areas = [width * height for _, (_, _, width, height) in found]
        assert sum(areas) == pytest.approx(880 * 360, rel=0.001)
        values = sorted(parts.values(), reverse=True)
        assert areas == pytest.approx([880 * 360 * value / sum(values) for value in values], rel=0.01)
        shares = [f"{100 * value / sum(values):.3g} %" for value in values]
        assert [text.rpartition(", ")[2] for text, _ in found] == shares


def test_a_name_in_a_chart_is_text(open_page: Open) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    pictures = (
        treemap(hostile, "MACs", [(hostile, 2, ""), ("b", 1, "")]),
        columns(hostile, "nodes", [(hostile, 2.0, None, False)]),
    )
    titles = figures(open_page, pictures).locator("title").all_text_contents()
    assert titles[0].startswith(f"{hostile}: 2 MACs")
    assert titles[-1] == f"{hostile}: 2"


def test_of_many_points_a_column_has_the_highest(open_page: Open) -> None:
    points = [(f"{number}", float(1 + (number == 4321) * 9), number, False) for number in range(5000)]
    (chart,) = figures(open_page, [columns("Memory", "nodes", points, "B")]).all()
    assert chart.locator(".column").count() == 200
    expect(chart.locator(".marked title")).to_have_text("4321: 10 B")
    expect(chart.locator(".marked")).to_have_attribute("data-node-number", "4321")


def test_a_logarithmic_chart_has_a_step_for_each_power_of_ten(open_page: Open) -> None:
    points = [(f"{value}", value, None, value == 1e-5) for value in (0.0, 1e-6, 1e-5, 1e-4)]
    (chart,) = figures(open_page, [columns("Error", "depth", points, is_logarithmic=True)]).all()
    heights = [place[3] for _, place in boxes(chart.evaluate("chart => chart.innerHTML"))]
    assert heights[:2] == [0, 0]
    assert heights[3] == pytest.approx(2 * heights[2], abs=0.2)
    expect(chart.locator(".marked title")).to_have_text("1e-05: 1e-5")


def test_nothing_is_no_chart() -> None:
    empty = treemap("", "MACs", [("a", 0, "")]), columns("", "nodes", [("a", 0.0, None, False)]), line("", "", [], None)
    assert [*map(block_html, empty)] == ["", "", ""]


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


def test_operators_of_a_table_lead_to_their_nodes(open_page: Open) -> None:
    page = open_page(page_of("example:causal-attention"))
    page.locator("td:first-child a", has_text="Softmax").focus()
    page.keyboard.press("Enter")
    heads(page, "2 matches")
