"""The sliders of a page: its numbers at other sizes are those that Python finds there."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from page_checks import expect, heads

import graphkit
from graphkit.model import Model
from graphkit.render.document_blocks import Formula, Table
from graphkit.shapes import Expr, ceil_div, floor_div, maximum, minimum, symbol

Browser = Page = Any  # Playwright's, which is installed for these tests alone
Open = Callable[..., Page]
NAMES = ("a", "a1", "past", "past_x", "min", "h//2", "b c", "a.b", "é", "2*a", "3", "-1", "it's")


def page_of(model: str) -> str:
    return graphkit.report(model, graphkit.ReportOptions(also=("costs",))).to_html()


@pytest.fixture(scope="module")
def attention() -> str:
    return page_of("example:causal-attention")


def set_sizes(page: Page, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        page.get_by_label(f"{name}, as a number", exact=True).fill(str(size))


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("example:causal-attention", {"batch_size": 3, "sequence_length": 27}),
        (
            "example:merged-decoder",
            {
                "batch_size": 2,
                "decoder_sequence_length": 5,
                "past_decoder_sequence_length": 20,
                "encoder_sequence_length": 40,
            },
        ),
    ],
)
def test_every_number_is_that_of_python_at_the_sizes(open_page: Open, model: str, sizes: dict[str, int]) -> None:
    page = open_page(page_of(model))
    numbers = page.locator("#costs data")
    begin = numbers.all_inner_texts()
    set_sizes(page, sizes)
    rows = page.locator("#costs table").first.locator("tr")
    for name, text in _totals(model, sizes).items():
        expect(rows.filter(has_text=name).locator("data")).to_have_text(text)
    expect(page.locator("#costs data.stays")).to_have_count(0)
    page.get_by_role("button", name="Reset").click()
    expect(numbers).to_have_text(begin)


def _totals(model: str, sizes: Mapping[str, int]) -> dict[str, str]:
    totals = next(block for block in graphkit.costs(model, dims=sizes).blocks() if isinstance(block, Table))
    return {str(row[0]): row[1].text for row in totals.rows if isinstance(row[1], Formula)}


def test_rows_and_shares_move_too(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    sizes = {"batch_size": 3, "sequence_length": 27}
    set_sizes(page, sizes)
    layers = page.locator("#costs table", has=page.locator("caption", has_text="Costs by layer"))
    tables = [
        block for block in graphkit.costs("example:causal-attention", dims=sizes).blocks() if isinstance(block, Table)
    ]
    (by_layer,) = (table for table in tables if table.title.startswith("Costs by layer"))
    cells = [cell.text for row in by_layer.rows for cell in row if isinstance(cell, Formula)]
    assert len(cells) > 6
    expect(layers.locator("data")).to_have_text(cells)


def test_a_slider_moves_by_keys_and_the_panel_follows(open_page: Open, attention: str) -> None:
    page = open_page(attention, "#node=%2Fblocks.0%2FSoftmax")
    heads(page, "/blocks.0/Softmax")
    dims = page.locator("#panel data[data-unit=dims]").first
    expect(dims).to_have_text("= [1, 2, 32, 32]")
    page.get_by_label("sequence_length", exact=True).focus()
    page.keyboard.press("End")
    expect(dims).to_have_text("= [1, 2, 4096, 4096]")
    page.keyboard.press("Home")
    expect(dims).to_have_text("= [1, 2, 1, 1]")
    page.evaluate("location.hash = '#node=%2Fblocks.1%2FSoftmax'")
    heads(page, "/blocks.1/Softmax")
    expect(dims).to_have_text("= [1, 2, 1, 1]")


def test_the_table_of_models_moves_each_by_its_own_sliders_and_sorts(open_page: Open) -> None:
    models = ["example:causal-attention", "example:merged-decoder"]
    page = open_page(graphkit.compare(models, graphkit.ReportOptions(also=("costs",))).to_html())
    table = page.locator("#top table")
    cells, names = table.locator("data"), table.locator("td:first-child")
    first = cells.all_inner_texts()
    page.get_by_label("sequence_length, as a number", exact=True).fill("27")
    costs = graphkit.costs(models[0], dims={"batch_size": 1, "sequence_length": 27})
    moved = [costs.macs.cell().text, costs.peak.bytes.cell("B").text]
    assert moved != first[:2]
    expect(cells).to_have_text([*moved, *first[2:]])
    other = graphkit.costs(models[1])
    for heading, one, two in (("MACs", costs.macs, other.macs), ("Peak", costs.peak.bytes, other.peak.bytes)):
        table.get_by_role("button", name=heading).click()
        expected = models if (one.value or 0) > (two.value or 0) else models[::-1]
        expect(names).to_have_text(expected)  # the most first
        table.get_by_role("button", name=heading).click()
        expect(names).to_have_text(expected[::-1])


def test_a_number_that_is_not_known_to_be_right_stays(open_page: Open, attention: str) -> None:
    """Faults in the page: a value that is not that of its expression, an expression that cannot be read, and none."""
    cells = [
        f'<data value="{value}" data-formula="{text}">7</data>' for value, text in (("7", "batch_size"), ("7", "f(x)"))
    ]
    cells += ['<data value="7">7</data>', '<data value="1" data-formula="batch_size">1</data>']
    page = open_page(attention.replace("<main>", f"<main><p id=faults>{''.join(cells)}</p>"))
    set_sizes(page, {"batch_size": 5})
    expect(page.locator("#faults data")).to_have_text(["7", "7", "7", "5"])
    expect(page.locator("#faults data.stays")).to_have_count(3)


def test_sizes_that_do_not_go_together_are_told(open_page: Open) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    kernel = numpy_helper.from_array(np.ones((1, 1, 9, 1), np.float32), "w")
    puts = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, dim, 8])
        for name, dim in (("x", "h"), ("y", None))
    ]
    graph = helper.make_graph([conv], "convs", puts[:1], puts[1:], [kernel])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    page = open_page(graphkit.report(Model.from_proto(proto)).to_html())
    expect(page.locator(".sizes .broken")).to_be_hidden()
    set_sizes(page, {"h": 8})
    expect(page.locator(".sizes .broken")).to_have_text(
        "The model may not run at these sizes: h - 9 >= 0 does not hold."
    )
    set_sizes(page, {"h": 9})
    expect(page.locator(".sizes .broken")).to_be_hidden()


@pytest.fixture(scope="module")
def evaluator(browser: Browser) -> Callable[[list[list[Any]]], list[str]]:
    source = (files("graphkit.render") / "page" / "formulas.mjs").read_text("utf-8")
    page = browser.new_page()

    def evaluated(cases: list[list[Any]]) -> list[str]:
        script = """async ([source, cases]) => {
            const { parserOf } = await import("data:text/javascript," + encodeURIComponent(source));
            return cases.map(([text, sizes]) => {
                try {
                    const known = new Map(Object.entries(sizes).map(([name, size]) => [name, BigInt(size)]));
                    return String(parserOf(known.keys())(text)(known));
                } catch (error) { return error.name; }
            });
        }"""
        return list(page.evaluate(script, [source, cases]))

    return evaluated


def random_expression(choice: random.Random, depth: int) -> Expr:
    if depth == 0 or choice.random() < 0.2:
        return symbol(choice.choice(NAMES)) if choice.random() < 0.7 else Expr.of(choice.randint(-9, 2**33))
    left, right = random_expression(choice, depth - 1), random_expression(choice, depth - 1)
    operations = (
        lambda: left + right,
        lambda: left - right,
        lambda: left * right,
        lambda: minimum(left, right),
        lambda: maximum(left, right),
        lambda: floor_div(left, right),
        lambda: ceil_div(left, 32),
        lambda: left % right,
    )
    try:
        return choice.choice(operations)()
    except (ZeroDivisionError, graphkit.symbolic.expr.TooComplexError):
        return left


def test_expressions_come_to_what_python_finds(evaluator: Callable[[list[list[Any]]], list[str]]) -> None:
    choice = random.Random(7)
    cases, expected = [], []
    for _ in range(500):
        expression = random_expression(choice, 4)
        sizes = {name: choice.choice((0, 1, 2, 3, 31, 32, 33, 224, 10**9)) for name in NAMES}
        cases.append([str(expression), sizes])
        try:
            expected.append(str(expression.evaluate(sizes)))
        except ZeroDivisionError:
            expected.append("RangeError")
    assert evaluator(cases) == expected


def test_what_is_no_expression_is_an_error(evaluator: Callable[[list[list[Any]]], list[str]]) -> None:
    texts = ["", "a +", "(a", "a)", "a b", "ab", "min(a", "a..b", "2a", "alert(1)", "a; b", "a1"]
    assert evaluator([[text, {"a": 1}] for text in texts]) == ["SyntaxError"] * len(texts)
    assert evaluator([["2**3*a + a**2", {"a": 10}]]) == ["180"]


def test_a_size_past_a_limit_says_why(open_page: Open) -> None:
    page = open_page(page_of("example:causal-attention"))
    field, note = page.get_by_label("sequence_length, as a number", exact=True), page.locator(".sizes .broken")
    field.fill("0")
    expect(note).to_have_text("sequence_length is at least 1.")
    field.fill("33")  # positions have 32 rows
    expect(note).to_contain_text("sequence_length - 32 <= 0 does not hold, in /Gather_2.")
    field.fill("16")
    expect(note).to_be_hidden()
