from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner
from onnx import parser

from graphkit.analysis.tensor_shapes import _letter_unknowns, tensor_shapes, why_shape
from graphkit.cli import app
from graphkit.errors import UsageError
from graphkit.model import Model, load

SMALL = Model.from_proto(
    parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N, 4] x, float[M, 4] w) => (float[N, K] y) {
        t = Transpose <perm = [1, 0]> (w)
        y = MatMul (x, t)
        z = NonZero (x)
    }""")
)


def test_what_several_nodes_need_is_said_once() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, K] x, float[4, M] w) => (float[N, M] y, float[N, M] z) { y = MatMul (x, w) z = MatMul (x, w) }"""
    assert tensor_shapes(Model.from_proto(parser.parse_model(text))).facts == ("K = 4",)


def test_shapes_as_text() -> None:
    assert (
        tensor_shapes(SMALL).to_text()
        == """\
Tensor shapes

4 of 5 tensors have known shapes (80 %).

main graph
Tensor  Dtype    Shape
───────────────────────────────────
x       float32  [N, 4]
w       float32  [M, 4]
t       float32  [4, M]
y       float32  [N, M]
z       int64    [2, ?0.NonZero#2]
  ?0.NonZero#2: it is how many elements of 'x' are not zero

"""
    )


def test_a_declaration_is_shown_where_no_rule_knows() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "custom" : 1]>
    g (float[N, 4] x) => (float[N, 9] y) <float[7, K] z> { z = custom.Nothing (x)  y = Neg (z) }"""
    found = tensor_shapes(Model.from_proto(parser.parse_model(text)))
    assert [(row.shape, row.dtype, row.unknown) for row in found.rows[1:]] == [
        (None, "?", "Nothing#0: there is no rule for custom.Nothing (declared as float32 [7, K])"),
        (None, "?", "Nothing#0: there is no rule for custom.Nothing (declared as float32 [N, 9])"),
    ]
    assert found.known == 1


def test_dims_and_inputs_specialize() -> None:
    def shape(**given: object) -> object:
        return tensor_shapes(SMALL, **given).rows[3].shape  # type: ignore[arg-type]

    assert shape(dims={"N": 2}) == (2, "M")
    assert shape(inputs={"x": (3, 4), "w": (5, 4)}) == (3, 5)


def test_why_tells_the_chain_from_the_inputs() -> None:
    found = why_shape(SMALL, "y")
    assert found.shape == ("N", "M")
    assert found.steps[-1].startswith("y: [N, M], MatMul of x, t")
    assert any(step.startswith("w: [M, 4], an input") for step in found.steps)


LAYERS = Model.from_proto(
    parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N, 4] x, float[M] v) => (float[N, M] y)
    <float[4] w = {1, 2, 3, 4}, int64[2] axes = {0, 1}> {
        w_copy = Identity (w)
        h_0 = Relu (x)
        h_1 = Relu (h_0)
        h_2 = Add (h_1, w_copy)
        h_3 = Neg (h_2)
        n = ReduceMax <axes = [1]> (h_3)
        ["layers.0/last"] y = Add (n, v)
    }""")
)


def test_families_are_one_row_in_the_order_of_the_graph_and_constants_are_left_out() -> None:
    assert (
        tensor_shapes(LAYERS).to_text()
        == """\
Tensor shapes

8 of 8 tensors have known shapes (100 %).

main graph
Tensor   Dtype    Shape
─────────────────────────
x        float32  [N, 4]
v        float32  [M]
h_{0-3}  float32  [N, 4]
n        float32  [N, 1]
y        float32  [N, M]

"""
    )


def test_dims_that_are_unknown_for_one_reason_part_no_family() -> None:
    """Each output of an If has symbols of its own; a symbol that two tensors share is told by its name."""
    text = tensor_shapes(load("example:merged-decoder"), filters=["present*"]).to_text(100)
    assert (
        text.split("\n\n")[2]
        == """\
main graph
Tensor                         Dtype    Shape
───────────────────────────────────────────────────────────────────────────────
present.0.decoder.{key|value}  float32  [batch_size, 2, ?a.optimum::if, 8]
  ?a.optimum::if: it depends on 'use_cache_branch': then_branch gives decoder_sequence_length +
  past_decoder_sequence_length, else_branch decoder_sequence_length
present.0.encoder.{key|value}  float32  [?a.optimum::if, 2, ?b.optimum::if, 8]
  ?a.optimum::if: it depends on 'use_cache_branch': then_branch gives 0, else_branch batch_size;
  ?b.optimum::if: it depends on 'use_cache_branch': then_branch gives 1, else_branch
  encoder_sequence_length"""
    )
    model = Model.from_proto(
        parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N] x) => (a_0, a_1) { p = NonZero (x) a_0 = Neg (p) a_1 = Neg (p) }""")
    )
    assert "a_{0-1}  int64    [1, ?0.NonZero#0]" in tensor_shapes(model).to_text()


@pytest.mark.parametrize(
    ("filters", "constants", "names"),
    [
        (("h_*",), False, "h_0 h_1 h_2 h_3"),
        (("h_{0,2-3}",), False, "h_0 h_2 h_3"),
        (("?",), False, "x v n y"),
        (("y", "x"), False, "x y"),
        (("layers.0/*",), False, "y"),
        (("w*",), True, "w w_copy"),
        ((), True, "x v w axes w_copy h_0 h_1 h_2 h_3 n y"),
    ],
)
def test_filters_and_constants(filters: tuple[str, ...], constants: bool, names: str) -> None:
    found = tensor_shapes(LAYERS, filters=filters, constants=constants)
    assert [row.name for row in found.rows] == names.split()


@pytest.mark.parametrize(
    ("glob", "message"),
    [
        ("q-*", "no tensor matches 'q-*' - `graphkit shapes` lists the names"),
        ("w*", "'w*' matches constants only - add --constants to show them"),
        ("h__1", "no tensor matches 'h__1' - did you mean 'h_1'?"),
        ("h_{0-99999}", "'h_{0-99999}' stands for 100,000 names - write * for so many, 10,000 at most"),
    ],
)
def test_a_filter_that_matches_nothing_is_an_error(glob: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        tensor_shapes(LAYERS, filters=(glob,))
    assert str(error.value) == message


def test_a_tensor_in_a_body_matches_with_its_scope() -> None:
    scopes = {row.scope for row in tensor_shapes(load("example:merged-decoder"), filters=("*then_branch::*",)).rows}
    assert scopes == {"optimum::if/then_branch"}


def test_why_tells_steps_that_keep_the_shape_as_one() -> None:
    found = why_shape(LAYERS, "y")
    assert len(found.steps) == 8
    assert (
        found.to_text()
        == """\
Why y is [N, M]

Step  Tensor and shape
──────────────────────────────────
   1  x: [N, 4], an input
 2-5  4 nodes that keep the shape
   6  n: [N, 1], ReduceMax of h_3
   7  v: [M], an input
   8  y: [N, M], Add of n, v

"""
    )


def test_a_tensor_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="there is no tensor 'nope' in the main graph"):
        why_shape(SMALL, "nope")


def test_a_merged_decoder_tells_that_its_outputs_depend_on_the_branch() -> None:
    rows = {row.name: row for row in tensor_shapes(load("example:merged-decoder")).rows if not row.scope}
    assert "depends on 'use_cache_branch'" in rows["present.0.decoder.key"].unknown


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--dim", "x"], "--dim x: is not NAME=VALUE"),
        (["--dim", "batch_size=two"], "--dim: 'two' is not a size"),
        (["--dim", "nope=2"], "no input has a dim 'nope'"),
        (["--why", "nope"], "there is no tensor 'nope'"),
    ],
)
def test_wrong_options_are_one_error(arguments: list[str], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        CliRunner().invoke(app, ["shapes", "example:causal-attention", *arguments], catch_exceptions=False)


def test_the_command_line() -> None:
    run = CliRunner().invoke(
        app,
        [
            "shapes",
            "example:causal-attention",
            "--input",
            "input_ids=2x5",
            "--range",
            "sequence_length=5",
            "-f",
            "json",
        ],
    )
    rows = {row["name"]: row["shape"] for row in json.loads(run.stdout)["rows"]}
    assert rows["logits"] == [2, 5, 64]


def test_a_number_that_has_a_letter_keeps_it_where_letters_are_used_up() -> None:
    shape = ", ".join(f"?{number}.n" for number in range(30))
    texts = _letter_unknowns((f"[{shape}]", "?0.n: a reason, ?29.n: another"), Counter(map(str, range(30))))
    assert texts[0].startswith("[?a.n, ?b.n, ")
    assert texts[0].endswith("?z.n, ?26.n, ?27.n, ?28.n, ?29.n]")
    assert texts[1] == "?a.n: a reason, ?29.n: another"
