"""The page of a report in a real browser: `make browser-test` sets up what these tests need."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from onnx import TensorProto, helper
from page_checks import HOSTILE, chain_of, expect, heads

import graphkit
from graphkit.model import Model

Browser = Page = Any  # Playwright's, which is installed for these tests alone
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def merged() -> str:
    return graphkit.report("example:merged-decoder").to_html()


def test_a_search_finds_operators_nodes_and_values(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    heads(page, "4 matches")
    page.keyboard.press("Enter")
    heads(page, "optimum::if/else_branch//model/decoder/layers.0/self_attn/Softmax")
    expect(page.locator("#panel dl")).to_contain_text("Softmax")
    page.fill("#search", "layers.0*encoder_attn*reshape_1")
    heads(page, "2 matches")
    page.fill("#search", "use_cache")
    page.click("#panel .results a")
    heads(page, "use_cache_branch")
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()


def test_an_address_opens_a_node(open_page: Open, merged: str) -> None:
    page = open_page(merged, "#node=optimum%3A%3Aif")
    heads(page, "optimum::if")
    expect(page.locator("#panel")).to_contain_text("graph of 369 nodes")
    expect(page.locator("#panel")).to_contain_text("depends on 'use_cache_branch'")
    expect(page.locator("#panel .neighbourhood rect.frame")).to_have_count(2)
    expect(page.locator("#panel .neighbourhood .head")).to_have_text(["▾ else_branch", "▾ then_branch"])


def test_boxes_around_a_node_say_what_they_are(open_page: Open) -> None:
    page = open_page(graphkit.report("example:causal-attention").to_html(), "#node=%2Fblocks.0%2FSoftmax")
    heads(page, "/blocks.0/Softmax")
    centre = page.locator("#panel .neighbourhood a", has=page.locator("rect.centre"))
    expect(centre.locator("rect.activation")).to_have_count(1)
    expect(centre.locator("text")).to_have_text(["Softmax", "/blocks.0"])
    shape = page.locator("#panel .neighbourhood > .gives", has_text="[batch_size, 2, sequence_length, sequen…")
    expect(shape).not_to_have_count(0)
    expect(page.locator("#panel .kinds span")).to_have_text(["products", "activations and norms", "layout", "types"])
    boxes = page.locator("#panel .neighbourhood a")
    colors = {
        name: boxes.filter(has_text=name).locator("rect").first.evaluate("box => getComputedStyle(box).fill")
        for name in ("Softmax", "MatMul")
    }
    assert len(set(colors.values())) == 2


def test_of_many_outputs_the_first_are_shown(open_page: Open) -> None:
    puts = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name, size in (("x", 9), ("y3", 1))]
    node = helper.make_node("Split", ["x"], [f"y{number}" for number in range(9)], "split", num_outputs=9)
    graph = helper.make_graph([node], "g", puts[:1], puts[1:])
    model = Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    page = open_page(graphkit.report(model).to_html(), "#node=split")
    expect(page.locator("#panel .values li:visible")).to_have_count(7)
    page.click("#panel summary:has-text('3 more')")
    expect(page.locator("#panel .values li:visible")).to_have_count(10)


def test_an_address_of_nothing_says_so(open_page: Open, merged: str) -> None:
    page = open_page(merged, "#node=nothing")
    expect(page.locator("#panel")).to_contain_text("no node or value of this name")


def test_a_finding_leads_to_its_node_and_the_node_back(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    page.click("#top li.warning a[href^='#node']")
    heads(page, "optimum::if")
    mentions = page.locator("#panel li", has=page.locator("a.mention"))
    row = "Interface: 0 · logits · float32 · [batch_size, decoder_sequence_length, 64]"
    expect(mentions.filter(has_text=row)).to_have_count(1)
    mentions.first.locator("a.mention").click()
    expect(page.locator(".found")).to_have_count(1)


def test_a_box_of_the_drawing_leads_to_its_node(open_page: Open, merged: str) -> None:
    page = open_page(merged, "#node=optimum%3A%3Aif")
    page.click("#panel .neighbourhood a[href*=_branch] >> nth=0")
    expect(page.locator("#panel h2")).to_have_text(re.compile("^optimum::if/"))


def test_why_a_shape_is_what_it_is(open_page: Open, merged: str) -> None:
    page = open_page(merged, "#node=optimum%3A%3Aif")
    page.click("#panel .body > details >> nth=0")
    rows = page.locator("#panel .body > details >> nth=0").locator("tr")
    expect(rows.filter(has_text="input_ids")).not_to_have_count(0)
    cells = rows.first.locator("td")  # the nearest cause
    expect(cells).to_have_text(["Add", "logits", "float32 [batch_size, decoder_sequence_length, 64]"])


def test_tables_sort_and_filter(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    operators = page.locator("table", has=page.locator("caption", has_text="Operators")).first
    cells = operators.locator("tbody td.number")
    declared = cells.all_inner_texts()
    by_count = sorted(declared, key=lambda text: int(text.replace(",", "")))
    for rows in ([*reversed(by_count)], by_count, declared):
        operators.locator("th.number button").click()
        expect(cells).to_have_text(rows)
    page.locator(".filter input").first.fill("Soft")
    expect(operators.locator("tbody tr:visible")).to_have_count(1)


def test_a_column_of_memory_leads_to_its_node(open_page: Open, merged: str) -> None:
    page = open_page(merged)
    column = page.locator("svg.chart .marked")
    name = column.locator("title").text_content()
    column.click()
    expect(page.locator("#panel h2")).to_have_text(str(name).partition(": ")[0].partition(" ")[2])


def test_two_models_have_addresses_of_their_own(open_page: Open) -> None:
    both = graphkit.compare(["example:merged-decoder", "example:causal-attention"])
    page = open_page(both.to_html(), "#model=1&node=%2Fblocks.0%2FSoftmax")
    heads(page, "/blocks.0/Softmax")
    page.fill("#search", "/blocks.1/Softmax")
    page.click("#panel .results a >> nth=0")
    page.wait_for_url(re.compile("#model=1&"))
    heads(page, "/blocks.1/Softmax")


def test_the_table_of_several_models_sorts_and_leads_to_each(open_page: Open) -> None:
    page = open_page(graphkit.compare(["example:causal-attention", "example:merged-decoder"]).to_html())
    models = page.locator("#top table").first
    names = models.locator("tbody td:first-child")
    expect(names).to_have_text(["example:causal-attention", "example:merged-decoder"])
    models.get_by_role("button", name="Nodes").click()
    expect(names).to_have_text(["example:merged-decoder", "example:causal-attention"])
    models.get_by_role("link", name="example:causal-attention").click()
    expect(page.locator("section", has=page.locator("h2:text-is('example:causal-attention')"))).to_be_in_viewport()


def test_sliders_of_several_models_move_their_own_numbers(open_page: Open) -> None:
    models = ["example:causal-attention", "example:merged-decoder"]
    page = open_page(graphkit.compare(models, graphkit.ReportOptions(also=("costs",))).to_html())
    expect(page.locator("section .sizes")).to_have_count(2)
    first, second = (
        page.locator(f"section:has(h2:text-is('example:{name}'))") for name in ("causal-attention", "merged-decoder")
    )
    own, others = (part.locator("data").all_inner_texts() for part in (first, second))
    assert own
    assert others
    first.get_by_label("batch_size, as a number").fill("7")
    expect(first.locator("p.sized")).to_have_text("At batch_size 7, sequence_length 32, as set here.")
    expect(first.locator("data").first).not_to_have_text(own[0])
    expect(second.locator("data")).to_have_text(others)
    expect(second.locator("p.sized")).not_to_contain_text("as set here")


def test_dark_mode_is_dark(open_page: Open, merged: str) -> None:
    page = open_page(merged, color_scheme="dark")
    for place in ("body", "#panel"):
        expect(page.locator(place)).to_have_css("background-color", "rgb(20, 24, 30)")


def test_a_page_without_a_script_is_a_document(open_page: Open, merged: str) -> None:
    page = open_page(merged, java_script_enabled=False)
    for place in ("#search", "#panel"):
        expect(page.locator(place)).to_be_hidden()
    expect(page.locator("#kv-cache table").first).to_be_visible()


def test_hostile_names_are_text(open_page: Open) -> None:
    page = open_page(graphkit.report(chain_of([*HOSTILE])).to_html())
    for name in HOSTILE:
        page.evaluate("name => { location.hash = `#node=${encodeURIComponent(name)}` }", name)
        heads(page, name)
        page.fill("#search", name.replace("*", ""))
        heads(page, "1 match")
    assert page.evaluate("window.attacked") is None
    assert page.locator("img, iframe, object, main script").count() == 0


@pytest.mark.parametrize("is_protected", [True, False])
def test_the_policy_stops_a_script_that_got_in(merged: str, browser: Browser, is_protected: bool) -> None:
    page = browser.new_page()
    page.set_content(merged if is_protected else merged.replace("Content-Security-Policy", "No-Policy"))
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.attacked=1>')")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.attacked=1'}))")
    page.evaluate("new Promise(done => { const image = new Image(); image.onerror = done; image.src = 'y'; })")
    assert page.evaluate("window.attacked") == (None if is_protected else 1)
    page.close()


def test_the_policy_forbids_every_request(merged: str, browser: Browser) -> None:
    page = browser.new_page()
    page.set_content(merged)
    refused = page.evaluate("""async () => {
        const found = [];
        document.addEventListener("securitypolicyviolation", (event) => found.push(event.effectiveDirective));
        document.body.append(Object.assign(new Image(), { src: "https://localhost/image" }));
        document.body.append(Object.assign(document.createElement("iframe"), { src: "https://localhost/frame" }));
        const style = { rel: "stylesheet", href: "https://localhost/style" };
        document.head.append(Object.assign(document.createElement("link"), style));
        await fetch("https://localhost/fetch").catch(() => null);
        await new Promise((done) => setTimeout(done, 200));
        return found.sort();
    }""")
    assert refused == ["connect-src", "frame-src", "img-src", "style-src-elem"]
    page.close()


@pytest.mark.slow
def test_a_graph_of_50_000_nodes_is_searched_and_opened(open_page: Open) -> None:
    model = chain_of([f"layers.{number // 50}/node_{number}" for number in range(50_000)])
    page = open_page(graphkit.report(model, graphkit.ReportOptions(only=("summary",))).to_html())
    found = page.evaluate("""() => {
        const field = document.getElementById("search");
        field.value = "node_49";
        field.dispatchEvent(new Event("input"));
        const found = document.querySelector("#panel h2").textContent;
        location.hash = "#node=" + encodeURIComponent("layers.500/node_25000");
        return found;
    }""")
    assert found.startswith("1,111 matches")
    heads(page, "layers.500/node_25000")
