"""Checks of a page that wait until they hold, as an address opens its panel a moment after a click; hostile names."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper

from graphkit.model import Model

Page = Any  # Playwright's, which is installed for the tests of pages alone
HOSTILE = (
    "<img src=x onerror=window.attacked=1>",
    "</script><script>window.attacked=1</script>",
    "javascript:window.attacked=1",
    '"><svg onload=window.attacked=1>',
    "' onclick='window.attacked=1",
    "#node=x&model=7",
    "{0-3}<!--",
    "__proto__",
    "constructor",
)


def heads(page: Page, text: str) -> None:
    """Wait until the panel has this heading."""
    expect(page.locator("#panel h2").first).to_have_text(text)


def expect(found: Any) -> Any:
    """Return Playwright's assertions of a locator."""
    from playwright.sync_api import expect as expected

    return expected(found)


def chain_of(names: list[str]) -> Model:
    """Return a model of nodes one after another, each with its name for its output too."""
    befores = ["x", *names[:-1]]
    nodes = [helper.make_node("Neg", [before], [name], name) for before, name in zip(befores, names, strict=True)]
    puts = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in ("x", names[-1])]
    graph = helper.make_graph(nodes, "chain", puts[:1], puts[1:])
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
