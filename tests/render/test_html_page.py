from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode

import pytest
from builders import Shown

import graphkit
from graphkit.render.document_blocks import Heading, Prose, Table, table
from graphkit.render.html import MODULES, _page_file, html_page

PAGE = "# a\n\n## Why\n\nuse `x < 1`,\nor\n\n- one\n  more\n- two\n"
TABLE = table("Name:code | Count:number", [("a", 1), ("b", 2)])


def test_a_page_is_a_document_with_a_title() -> None:
    text = html_page(Shown((Prose("One."),)))
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n')
    assert "<title>Title</title>" in text
    assert '<main>\n<h1>Title</h1>\n<section id="top">\n<p>One.</p>\n</section>\n</main>\n' in text
    assert text.endswith("</script>\n</body>\n</html>\n")


def test_a_heading_begins_a_section_that_folds() -> None:
    text = html_page(Shown((Prose("One."), Heading("KV cache"), TABLE, Heading("KV cache!"), Heading("Δ"))))
    assert '<section id="kv-cache"><details open><summary><h2>KV cache</h2></summary>\n<div class="scroll">' in text
    assert '<section id="kv-cache-2"><details open><summary><h2>KV cache!</h2></summary>\n</details></section>' in text
    assert '<section id="section"><details open><summary><h2>Δ</h2></summary>' in text


def test_the_contents_name_each_section_and_count_its_rows() -> None:
    text = html_page(Shown((Prose("One."), Heading("KV cache"), TABLE, Heading("Top"))))
    assert '<li><a href="#top">Verdict</a></li>\n' in text
    assert '<li><a href="#kv-cache">KV cache</a> <span class="count">2</span></li>\n' in text
    assert '<li><a href="#top-2">Top</a></li>\n' in text


def test_an_inner_heading_is_a_place_in_its_section_and_in_the_contents() -> None:
    inner = [Heading(name, is_inner=True) for name in ("Costs", "KV cache", "Costs")]
    text = html_page(Shown((Heading("A"), inner[0], TABLE, inner[1], Heading("A costs"), Heading("B"), inner[2])))
    assert '<summary><h2>A</h2></summary>\n<h3 id="a.costs">Costs</h3>\n<div class="scroll">' in text
    rows = [
        f'<li><a href="#{place}">{name}</a></li>\n'
        for place, name in (("a.costs", "Costs"), ("a.kv-cache", "KV cache"))
    ]
    assert f'<li><a href="#a">A</a> <span class="count">2</span><ol>\n{"".join(rows)}</ol>\n</li>\n' in text
    places = re.findall(r' id="([^"]*)"', text)
    assert len(places) == len(set(places))
    assert {"a-costs", "b", "b.costs"} < set(places)


def test_only_a_page_with_a_graph_has_a_search() -> None:
    assert 'id="search"' not in html_page(Shown(()))
    assert 'id="search"' in html_page(Shown(()), [{"nodes": []}])


def test_the_data_of_a_graph_cannot_end_its_element() -> None:
    graph = {"texts": ["</script><script>alert(1)</script>", "<!--", "é"]}
    text = html_page(Shown(()), [graph])
    (data,) = re.findall(r'<script type="application/json" class="graph">(.*?)</script>', text)
    assert "<" not in data
    assert json.loads(data) == graph


def test_a_page_names_no_other_place() -> None:
    text = html_page(Shown((Heading("x"), Prose("x"), TABLE)), [{"texts": []}])
    of_drawings = '"http://www.w3.org/2000/svg"'  # a name, of which nothing is asked
    assert re.findall(r"(?i)<link|src=|url\(|@import|https?://", text.replace(of_drawings, "")) == []
    assert {place[0] for place in re.findall(r'href="([^"]*)"', text)} == {"#"}


def test_the_policy_allows_the_style_and_the_script_of_the_page_alone() -> None:
    text = html_page(Shown((Prose("x"),)), [{"texts": []}])
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    (style,), (script,) = (
        re.findall("<style>(.*?)</style>", text, re.S),
        re.findall('<script type="module">(.*?)</script>', text, re.S),
    )
    for rule, content in (("style-src", style), ("script-src", script)):
        assert b64decode(rules[rule].strip("'").removeprefix("sha256-")) == hashlib.sha256(content.encode()).digest()
    assert {name: value for name, value in rules.items() if not name.endswith("-src")} == {
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert rules["default-src"] == "'none'"
    assert {name for name in rules if name.endswith("-src")} == {"default-src", "style-src", "script-src"}
    assert re.findall(r"<[^>]* (?:style|on\w+)=", text) == []  # which the policy would not let work


def test_style_and_script_are_light() -> None:
    assert len(html_page(Shown(()))) < 150_000


@pytest.mark.parametrize("name", MODULES)
def test_a_module_comes_after_those_that_it_imports(name: str) -> None:
    imported = re.findall(r'from "\./(\w+)\.mjs"', _page_file(f"{name}.mjs"))
    assert set(imported) <= set(MODULES[: MODULES.index(name)])


def test_the_margins_of_a_page_are_as_dark_as_the_page() -> None:
    text = html_page(Shown(()))
    for color in re.findall(r"--paper: (#[0-9a-f]+)", text):
        assert f"background: {color};" in text
    assert text.count("prefers-color-scheme: dark") == 2


def test_the_title_of_a_page_names_its_models() -> None:
    model = graphkit.load("example:causal-attention")
    several = graphkit.compare([model, "example:encoder"], graphkit.ReportOptions(only=("summary",)))
    for result in (graphkit.costs(model), graphkit.diff(model, model), graphkit.report(model), several):
        assert re.search(r"<title>.*causal-attention.*</title>", result.to_html())


def test_a_marked_row_has_a_colour() -> None:
    text = html_page(Shown((Table(TABLE.columns, TABLE.rows, marked=(1,)),)))
    assert re.findall(r'<tr( class="warning")?><td><code>(\w)', text) == [("", "a"), (' class="warning"', "b")]


def test_explanations_are_folded_below_the_first_section() -> None:
    text = html_page(Shown((Prose("One."), Heading("Two"))), explanations={"a <b>": PAGE})
    assert text.index('id="top"') < text.index('id="explanations"') < text.index('id="two"')
    shown = "<h4>Why</h4>\n<p>use <code>x &lt; 1</code>,\nor</p>\n<ul>\n<li>one\n  more</li>\n<li>two</li>\n</ul>\n"
    assert f'<details id="explanations.a-b"><summary>a &lt;b&gt;</summary>\n{shown}</details>' in text
    assert 'id="explanations"' not in html_page(Shown((Prose("One."),)))
