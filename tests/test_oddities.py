"""Odd but legal models, and odd uses: names, ranks, encodings and graphs that real ones do not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import onnx
import onnx.defs
import onnx.parser
import pytest
from markdown_it import MarkdownIt
from onnx import TensorProto, helper

from graphkit.analysis.architecture import architecture, control_flow
from graphkit.analysis.kv_cache import kv_cache
from graphkit.analysis.model_interface import interface
from graphkit.analysis.report import report
from graphkit.analysis.shape_origins import MAX_LENGTH, group_drawing, origins
from graphkit.analysis.summary import summary
from graphkit.equivalence.spelling import inline_model
from graphkit.errors import ModelError
from graphkit.examples import resolve
from graphkit.graph.cache_entries import cache_entries
from graphkit.graph.declared_types import TensorType
from graphkit.graph.names import family_label
from graphkit.graph.operator_traits import VALUE_INPUTS
from graphkit.graph.roles import zero_length_outputs
from graphkit.model import Model
from graphkit.model_diff.model_diff import diff
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.registry import parse_pipeline
from graphkit.render.document_blocks import Column, Prose, Table
from graphkit.render.markdown import _cell_text, escape_markdown
from graphkit.render.result import Result
from graphkit.rewrite.base import run_passes

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def text(graph: str) -> Model:
    return Model.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "custom" : 1]> {graph}'))


def opaque(inputs: Mapping[str, Sequence[object] | None], outputs: Mapping[str, Sequence[object] | None]) -> Model:
    node = helper.make_node("Opaque", list(inputs), list(outputs), domain="custom")
    given, made = ([helper.make_tensor_value_info(n, 1, d) for n, d in ports.items()] for ports in (inputs, outputs))
    return Model.from_proto(helper.make_model(helper.make_graph([node], "g", given, made)))


@pytest.mark.parametrize("names", [["x#", "x1"], ["x²", "x³"], ["1_@", "1_key"]])
def test_names_that_only_look_alike_are_listed(names: list[str]) -> None:
    assert interface(opaque({name: ["N"] for name in names}, {"y": ["N"]})).input_count == 2


def test_leading_zeros_stay() -> None:
    assert family_label(["h.00", "h.01"]) == "h.{00-01}"


@pytest.mark.parametrize("name", ["past_" + "1" * 5000])
def test_a_number_of_thousands_of_digits_is_a_name(name: str) -> None:
    report(opaque({name: ["N"], f"{name}2": ["N"]}, {"y": ["N"]}))


def test_layer_numbers_of_thousands_of_digits() -> None:
    architecture(text('g (float[N] x) => (y) { ["/layers.' + "1" * 5000 + '/q_proj/MatMul"] y = Relu(x) }'))


def test_a_symbol_may_have_a_comma() -> None:
    found = interface(opaque({"x0": ["max(a, b)"], "x1": ["c"]}, {"y": ["N"]}))
    assert [(p.label, p.shape) for p in found.inputs] == [("x{0-1}", ("*",))]


def test_sequences_of_other_ranks_are_no_family() -> None:
    assert interface(text("g (seq(float[N]) s0, seq(float[N,M]) s1) => () {}")).input_count == 2


def test_an_unknown_rank_is_no_family_with_rank_1() -> None:
    assert len(interface(text("g (float[] x0, float[N] x1) => () {}")).inputs) == 2


def duplicates() -> Model:
    return text("g (float[N] x, int64[1] s) => (y) { [n] a = Relu(x)  [n] y = Reshape(a, s) }")


def test_a_group_of_a_node_whose_name_is_not_unique_can_be_drawn() -> None:
    assert group_drawing(duplicates(), 1).nodes[0][1] == "Reshape n"


def test_an_expression_that_doubles_with_each_level_ends() -> None:
    chain = "  ".join(f"c{n + 1} = Concat <axis = 0> (c{n}, c{n}, c{n})" for n in range(60))
    model = text(f"g (float[N] x) => (y) {{ c0 = Shape(x)  {chain}  y = Reshape(x, c60) }}")
    (group,) = origins(model).groups
    assert len(group.expression) <= MAX_LENGTH


def test_a_graph_with_a_cycle_has_a_page() -> None:
    report(text("g (int64[N] d) => (b) { a = Reshape(d, b)  b = Reshape(d, a) }")).to_html()


@pytest.mark.parametrize(
    ("given", "made"),
    [(["N", 64, "H", 32], ["N", 8, "W", 16]), (["N", 3, "H", 64], ["N", 3, "H", 64])],
    ids=["three dims differ", "no dim differs"],
)
def test_families_pair_by_shape_where_one_dim_differs_only(given: list[object], made: list[object]) -> None:
    model = opaque({"feat0": given, "feat1": given}, {"out0": made, "out1": made})
    assert cache_entries(model.graph) == ()


def test_an_input_that_is_called_new_is_not_a_past() -> None:
    model = opaque({"past_key_0": ["b", 2, "p", 4], "new_embeds": ["b", "s", 8]}, {"present_key_0": ["b", 2, "t", 4]})
    assert kv_cache(model).findings() == ()


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"prev_sample": ["b", 4, "h", "w"]}, {"new_sample": ["b", 4, "h", "w"]}),
        ({"past_values": ["b", 512, 7]}, {"new_values": ["b", 96, 7]}),
        ({"prev_frame": ["b", 3, "h", "w"]}, {"next_frame": ["b", 3, "h", "w"]}),
    ],
)
def test_old_and_new_data_are_not_a_cache(given: Mapping[str, list[object]], made: Mapping[str, list[object]]) -> None:
    assert cache_entries(opaque(given, made).graph) == ()


def test_a_stack_of_key_and_value_of_all_layers_has_all_layers() -> None:
    model = opaque({"past_key_values": [2, 24, "b", 4, "p", 8]}, {"present_key_values": [2, 24, "b", 4, "t", 8]})
    assert kv_cache(model).layers == 24


def test_large_memory_is_written_out() -> None:
    past, present = ["b", 32, "p", 128], ["b", 32, "t", 128]
    model = opaque({"past_key_0": past, "past_value_0": past}, {"present_key_0": present, "present_value_0": present})
    assert "e+0" not in kv_cache(model, context=1 << 20).to_text()


def test_two_initializers_of_one_name_are_a_problem() -> None:
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [1], [value]) for value in (1.0, 2.0)]
    graph = helper.make_graph([helper.make_node("Relu", ["w"], ["y"])], "g", [], [], weights)
    assert Model.from_proto(helper.make_model(graph)).graph.problems == ["'w' is defined twice"]


def test_a_float_of_4_bits_is_not_one_of_at_least_8() -> None:
    assert not TensorType(TensorProto.FLOAT4E2M1, ()).is_float


@pytest.mark.parametrize("letters", ["ZZZ", "GGG"])
def test_domains_and_graph_names_that_are_not_utf8_are_written_out(letters: str) -> None:
    source = '<ir_version: 8, opset_import: ["" : 17, "ZZZ" : 1]> GGG (float[N] x) => (float[N] y) { y = ZZZ.Op(x) }'
    raw = onnx.parser.parse_model(source).SerializeToString().replace(letters.encode(), b"\xffab")
    made = report(Model.from_proto(onnx.ModelProto.FromString(raw)))
    assert "\\xffab" in made.to_text() + made.to_markdown() + made.to_html() + made.to_json()


@pytest.mark.parametrize(
    ("passes", "dim"),
    [("rename{dims=\\xffab=batch}", "batch"), ("set-dims{dims=n=2}", "\\xffab"), ("fold-shapes", "\\xffab")],
)
def test_a_dim_whose_name_is_not_utf8_has_its_bytes_as_escapes(passes: str, dim: str) -> None:
    source = '<ir_version: 10, opset_import: ["" : 18]> g (float[QQQ, n] x) => (float[QQQ, n] y) { y = Relu (x) }'
    raw = onnx.parser.parse_model(source).SerializeToString().replace(b"QQQ", b"\xffab")
    made = run_passes(Model.from_proto(onnx.ModelProto.FromString(raw)), parse_pipeline(passes)).model
    assert [port.shape[0] for port in interface(fold(made).model).inputs] == [dim]


def test_a_function_whose_domain_is_not_utf8_is_proven_nothing_of() -> None:
    source = """<ir_version: 10, opset_import: ["" : 18, "ZZZ" : 1]>
    g (float[n] x) => (float[n] y) { y = ZZZ.f (x) }
    <domain: "ZZZ", opset_import: ["" : 18]> f (a) => (b) { b = Relu (a) }"""
    raw = onnx.parser.parse_model(source).SerializeToString().replace(b"ZZZ", b"\xffab")
    model = Model.from_proto(onnx.ModelProto.FromString(raw))
    with pytest.raises(ModelError, match="the domain of a function or of a version is not UTF-8"):
        inline_model(model)
    assert not diff(model, Model.from_proto(onnx.parser.parse_model(source))).is_equal


def test_an_operator_that_no_function_of_its_domain_defines_is_custom() -> None:
    model = text(
        """g (float[N] x) => (y) { a = custom.F(x)  y = custom.Missing(a) }
        <domain: "custom", opset_import: ["" : 17]> F (a) => (b) { b = Relu(a) }"""
    )
    assert [operator.op for operator in summary(model).custom] == ["Missing"]


def test_dequantizers_alone_are_not_qdq() -> None:
    model = text("g (float[1] s) => (y) <uint8[1] w = {1}> { y = DequantizeLinear(w, s) }")
    assert [style for style in summary(model).quantization if style.startswith("QDQ")] == []


@pytest.mark.parametrize("name", ["__init__", "x __y__ z"])
def test_double_underscores_are_not_emphasis(name: str) -> None:
    assert RENDERER.render(escape_markdown(name)) == f"<p>{name}</p>\n"


@pytest.mark.parametrize("name", ["# x", "- x", "+ x", "1. x", "1) x", "---", "    x"])
def test_the_start_of_a_paragraph_is_no_block(name: str) -> None:
    assert RENDERER.render(escape_markdown(name)) == f"<p>{name.strip()}</p>\n"


@pytest.mark.parametrize("name", ["a``<b>x</b>", "``"])
def test_two_backticks_stay_in_the_code(name: str) -> None:
    cell = _cell_text(name, Column("n", "code"))
    rendered = RENDERER.render(f"| a |\n|---|\n| {cell} |")
    assert f"<td><code>{name.replace('<', '&lt;').replace('>', '&gt;')}</code></td>" in rendered


@pytest.mark.parametrize(("op", "version", "name"), [("CumProd", 26, "axis"), ("Split", 1, "split")])
def test_inputs_that_the_table_lacks(op: str, version: int, name: str) -> None:
    assert name in [parameter.name for parameter in onnx.defs.get_schema(op, version).inputs]
    assert any(since <= version for since, _ in VALUE_INPUTS.get(op, ()))


def test_an_empty_list_is_a_zero_length_output() -> None:
    body = "b () => (float[0] z) { z = Constant <value_floats : floats = []> () }"
    node = text(f"g (bool c) => (y) {{ y = If (c) <then_branch = {body}, else_branch = {body}> }}").graph.nodes[0]
    assert list(zero_length_outputs(node.bodies["then_branch"])) == [0]


def test_the_input_of_a_function_is_not_one_of_the_graph() -> None:
    body = "() => (float[N] u) { u = Relu(a) }"
    model = text(
        f"""g (bool c, float[N] x) => (float[N] y) {{ y = custom.f(c, x) }}
        <domain: "custom", opset_import: ["" : 17]> f (cc, a) => (b) {{
            b = If (cc) <then_branch = t {body}, else_branch = e {body}>
        }}"""
    )
    assert control_flow(model).nodes[0].condition == "on cc"


def test_a_file_may_be_called_example() -> None:
    assert resolve("example") == Path("example")


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    run = [sys.executable, "-m", "graphkit", *map(str, arguments)]
    return subprocess.run(run, capture_output=True, env={**os.environ, **environment}, check=False)


def test_json_is_json_whatever_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(text('g (float[N] "naïve") => (y) { y = Relu("naïve") }').proto, path)
    json.loads(command("report", path, "-f", "json", PYTHONIOENCODING="ascii").stdout)


def test_a_split_into_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    ran = command("split-merged", "example:merged-decoder", "-o", tmp_path / "file")
    assert (ran.returncode, ran.stderr.count(b"\n")) == (2, 1)


def test_a_split_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    command("split-merged", "example:causal-attention", "-o", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_split_has_no_drawing(tmp_path: Path) -> None:
    assert command("split-merged", "example:merged-decoder", "-o", tmp_path, "-f", "dot").returncode == 2


def test_an_empty_name_is_not_the_current_folder() -> None:
    error = command("report", "").stderr
    assert error.startswith(b"Error: a model name is empty")


def test_the_second_line_of_a_note_is_indented_too() -> None:
    @dataclass(frozen=True)
    class Shown(Result):
        title: ClassVar[str] = "T"

        def blocks(self) -> list[Table | Prose]:
            return [Table((Column("Name", "code"), Column("R", "note")), [("n" * 30, "word " * 20)])]

    lines = Shown().to_text(40).splitlines()[4:]
    assert [line for line in lines[1:] if line and not line.startswith("  ")] == []


def test_piped_text_has_no_trailing_spaces() -> None:
    lines = command("report", "example:merged-decoder", "--only", "architecture").stdout.decode().splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
