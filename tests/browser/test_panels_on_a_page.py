"""What the panel of a node or a value says, and that what leads there and back does so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from page_checks import chain_of, expect, heads

import graphkit
from graphkit.analysis.node_costs import node_costs
from graphkit.render.document_blocks import size_text
from graphkit.shapes import infer

Page = Any  # Playwright's, which is installed for the tests of pages alone
Open = Callable[..., Page]
REPORTS = Path(__file__).parents[2] / "reports"
SOFTMAX = "#node=%2Fblocks.0%2FSoftmax"


@pytest.fixture(scope="module")
def attention() -> str:
    return graphkit.report("example:causal-attention", graphkit.ReportOptions(also=("costs",))).to_html()


@pytest.fixture(scope="module")
def merged() -> str:
    return graphkit.report("example:merged-decoder").to_html()


def listed(page: Page, heading: str) -> Any:
    return page.locator(f"#panel h3:text-is('{heading}') + ul > li")


def test_a_search_finds_weights_and_values(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    page.fill("#search", "blocks.0.q.bias")
    heads(page, "1 match")
    expect(page.locator("#panel .results span")).to_have_text("constant float32 [16]")
    page.keyboard.press("Enter")
    heads(page, "blocks.0.q.bias")
    expect(page.locator("#panel dd")).to_have_text(["constant", "float32 [16]", "64"])
    expect(page.locator("#panel h3").first).to_have_text("Read by 1")
    page.click("#panel ul a")
    heads(page, "/blocks.0/q/Add")
    page.fill("#search", "logits")  # which its node is not called
    expect(page.locator("#panel .results li")).to_have_text(["logits node float32 [batch_size, sequence_length, 64]"])


def test_a_search_finds_what_has_all_words_in_any_order(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    page.fill("#search", "softmax blocks.1")
    heads(page, "1 match")
    expect(page.locator("#panel .results a")).to_have_text("/blocks.1/Softmax")
    page.fill("#search", "bl*cks.1 s*tmax")
    heads(page, "1 match")
    page.fill("#search", "softmax blocks.7")
    heads(page, "0 matches")


def test_an_operator_alone_stands_for_all_of_its_nodes(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    page.fill("#search", "add")
    nodes = [node.path for node in graphkit.load("example:causal-attention").nodes if node.is_op("Add")]
    heads(page, f"{len(nodes)} matches")
    expect(page.locator("#panel .results a")).to_have_text(nodes)
    page.fill("#search", "adds")
    heads(page, "0 matches")


def test_of_very_many_results_the_rest_follows_on_request(open_page: Open) -> None:
    page = open_page(graphkit.report(chain_of([f"node_{number}" for number in range(700)])).to_html())
    page.fill("#search", "neg")
    heads(page, "700 matches")
    expect(page.locator("#panel .results li")).to_have_count(500)
    page.click("text=Show all 700")
    expect(page.locator("#panel .results li")).to_have_count(700)


def test_a_reshape_says_the_elements_of_its_shape_and_its_nearest_cause(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.fill("#search", "else_branch self_attn reshape_1")
    page.keyboard.press("Enter")
    expect(listed(page, "Reads").nth(1)).to_contain_text(re.compile(r"= \[.*-1.*\]"))
    page.click("#panel summary:has-text('Why')")
    first = page.locator("#panel details table tr").first.locator("td")
    expect(first.nth(1)).to_have_text(re.compile("self_attn"))
    expect(first.nth(0)).to_have_text("Concat")
    expect(first.nth(2)).to_have_text(re.compile(r"^int64 \[\d\] = \["))


def test_words_of_the_verdict_lead_to_what_they_are_about(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.click("#top a:has-text('merged If crashes')")
    expect(page.locator("#explanations details[open] summary")).to_have_text("merged If crashes or slows runtimes")
    expect(page.locator("#explanations details[open] h4").first).to_have_text("What it is")
    page.click("#top a:text-is('present.0.encoder.{key|value}')")
    expect(page.locator("#panel .results a").first).to_have_text(re.compile(r"present\.0\.encoder\."))
    page.keyboard.press("Escape")
    page.click("#top a:text-is('hazards')")
    expect(page.locator("#hazards")).to_be_in_viewport()


def test_a_row_of_origins_leads_to_its_nodes(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    group = graphkit.origins("example:causal-attention").groups[0]
    page.click(f"#origins tbody a:text-is('{group.count}x') >> nth=0")
    expect(page.locator("#panel h2")).to_have_text(re.compile("^1: Reshape shape: "))
    expect(page.locator("#panel .results a")).to_have_text([*group.nodes])


def test_a_row_of_a_hazard_leads_to_its_node(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.click("#hazards td a[href*='embed_positions'] >> nth=0")
    expect(page.locator("#panel h2")).to_have_text(re.compile("embed_positions/Gather$"))


def test_a_command_is_copied(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#top .command button")
    expect(page.locator("#top .command button")).to_have_text("Copied")
    command = page.locator("#top .command pre").inner_text()
    assert command.startswith("graphkit split-merged ")
    assert page.evaluate("navigator.clipboard.readText()") == command


def test_a_node_says_what_it_reads_and_gives(open_page: Open, attention: str) -> None:
    page = open_page(attention, SOFTMAX)
    heads(page, "/blocks.0/Softmax")
    expect(page.locator("#panel dt")).to_have_text(["Operator", "Module", "axis", "Operations", "Bytes moved"])
    expect(page.locator("#panel dd").nth(2)).to_have_text("-1")
    expect(listed(page, "Reads")).to_have_text(re.compile(r"^/blocks\.0/Where_output_0float32 .*from Where /blocks"))
    expect(listed(page, "Gives")).to_have_text(re.compile(r"^/blocks\.0/Softmax_output_0float32 .*to MatMul /blocks"))


def test_a_node_says_what_it_costs(open_page: Open, attention: str) -> None:
    page = open_page(attention, "#node=%2Fblocks.0%2Fq%2FMatMul")
    sizes = {"batch_size": 1, "sequence_length": 32}
    shapes = infer(graphkit.load("example:causal-attention"))
    (cost,) = (cost for cost in node_costs(shapes, sizes).nodes if cost.node.label == "/blocks.0/q/MatMul")
    for name, measure, unit in (("MACs", "macs", ""), ("Bytes moved", "bytes_moved", "B")):
        row = page.locator(f"#panel dt:text-is('{name}') + dd data")
        expect(row).to_have_text(size_text(cost.costs[measure].at(sizes) or 0, unit))
    expect(listed(page, "Reads").last).to_have_text("onnx::MatMul_281float32 [16, 16], 1,024 bytes, constant")


def test_a_mention_leads_to_its_row_in_a_section_that_was_folded(open_page: Open, merged: str) -> None:
    page = open_page(merged, "#node=optimum%3A%3Aif", viewport={"width": 1200, "height": 600})
    page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = false; })")
    page.locator("#panel a.mention", has_text="Control flow").first.click()
    expect(page.locator(".found")).to_be_in_viewport()
    expect(page.locator("#control-flow details").first).to_have_attribute("open", "")


def test_a_section_has_an_address_and_folds(open_page: Open, merged: str) -> None:
    page = open_page(merged, "#hazards", viewport={"width": 1200, "height": 600})
    heading = page.locator("#hazards h2")
    expect(heading).to_be_in_viewport()
    expect(page.locator("#hazards table").first).to_be_visible()
    heading.click()
    expect(page.locator("#hazards table").first).to_be_hidden()


def test_a_panel_begins_at_its_head(open_page: Open, merged: str) -> None:
    page = open_page(merged, "#node=optimum%3A%3Aif", viewport={"width": 1200, "height": 400})
    heads(page, "optimum::if")
    panel = page.locator("#panel")
    panel.evaluate("panel => panel.scrollTo(0, 300)")
    panel.locator("a", has_text="use_cache_branch").first.evaluate("link => link.click()")
    heads(page, "use_cache_branch")
    assert panel.evaluate("panel => panel.scrollTop") == 0


def test_a_drawing_has_two_steps_each_way_from_top_to_bottom(open_page: Open, attention: str) -> None:
    page = open_page(attention, SOFTMAX)
    boxes = page.locator("#panel .neighbourhood a")

    def height(name: str) -> float:
        found = boxes.filter(has=page.locator(f".name:text-is('{name}')")).first
        return float(found.locator("rect").get_attribute("y"))

    heights = [height(name) for name in ("Cast", "Where", "Softmax", "MatMul", "Transpose")]
    assert heights == sorted(set(heights))


def test_alike_nodes_of_a_row_are_one_box(open_page: Open, attention: str) -> None:
    nodes = graphkit.load("example:causal-attention").graph.nodes
    widest = max(nodes, key=lambda node: sum(len(value.consumers) for value in node.outputs if value))
    page = open_page(attention, f"#node={quote(widest.label, safe='')}")
    expect(page.locator("#panel .neighbourhood .name").filter(has_text=re.compile(r"^\d+ . \w+$"))).not_to_have_count(0)


def test_small_constants_are_in_the_box_that_reads_them(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.fill("#search", "then_branch*self_attn/unsqueeze")
    page.keyboard.press("Enter")
    expect(page.locator("#panel .neighbourhood a:has(.centre) text >> nth=-1")).to_have_text(
        re.compile(r"^(\w+ +)?\[\d\]$")
    )


def test_a_box_of_a_treemap_leads_to_its_module(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    box = page.locator("#costs svg.treemap [data-module='blocks.0']").first
    box.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#search")).to_have_value("blocks.0")
    expect(page.locator("#panel .results a").first).to_contain_text("blocks.0")


def test_a_family_of_names_leads_to_a_search_of_all(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.locator("main td a", has_text="{key|value}").first.click()
    expect(page.locator("#search")).to_have_value(re.compile(r"^p[\w.]+\*$"))
    expect(page.locator("#panel .results li")).not_to_have_count(0)


def test_a_filter_counts_and_knows_no_case(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.locator(".filter input").first.fill("SOFTMAX")
    expect(page.locator(".filter .count").first).to_have_text("1 shown")


def test_a_sorted_column_says_so(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    button = page.locator("th.number button").first
    for arrow in ("▼", "▲"):
        button.click()
        assert arrow in button.evaluate("button => getComputedStyle(button, '::after').content")


def test_a_slash_begins_a_search_and_is_no_part_of_it(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    expect(page.locator("#search")).to_have_value("")


def test_reset_takes_the_sliders_back(open_page: Open, attention: str) -> None:
    page = open_page(attention)
    slider = page.get_by_label("sequence_length", exact=True)
    first = slider.input_value()
    slider.fill("7")
    page.get_by_role("button", name="Reset").click()
    expect(slider).to_have_value(first)


def test_numbers_sort_by_what_they_are_worth(open_page: Open, merged: str) -> None:
    """A table whose cells have units, a bound, and nothing."""
    cells = ["1.2 MB", ">= 3.0 MB", "900 B", "", "45.0 kB", "-2", "1,024"]
    rows = "".join(f"<tr><td class=number>{cell}</td></tr>" for cell in cells)
    table = f"<table><thead><tr><th class=number>N</th></tr></thead><tbody>{rows}</tbody></table>"
    page = open_page(merged.replace("</main>", f"<div class=scroll id=units>{table}</div></main>"))
    page.click("#units th button")
    expect(page.locator("#units td")).to_have_text([">= 3.0 MB", "1.2 MB", "45.0 kB", "1,024", "900 B", "-2", ""])


def test_a_row_of_an_operator_leads_to_its_nodes(open_page: Open) -> None:
    page = open_page((REPORTS / "detr-resnet-50-quantized.html").read_text("utf-8"))
    page.locator("#blockers td code a:text-is('CumSum')").first.click()
    heads(page, "2 matches")
    expect(page.locator("#panel .results span")).to_have_text(["CumSum", "CumSum"])
