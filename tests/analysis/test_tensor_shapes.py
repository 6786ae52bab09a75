from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from onnx import parser

from graphkit.analysis.tensor_shapes import tensor_shapes, why_shape
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


def test_shapes_as_text() -> None:
    assert (
        tensor_shapes(SMALL).to_text()
        == """\
Tensor shapes

2 of 3 tensors have known shapes (66.67 %).

main graph
Tensor  Dtype
────────────────
t       float32
  [4, M]
y       float32
  [N, M]
z       int64
  [2, ?0.NonZero#2]
  ?0.NonZero#2: it is how many elements of 'x' are not zero

"""
    )


def test_a_declaration_is_shown_where_no_rule_knows() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "custom" : 1]>
    g (float[N, 4] x) => (float[N, 9] y) <float[7, K] z> { z = custom.Nothing (x)  y = Neg (z) }"""
    found = tensor_shapes(Model.from_proto(parser.parse_model(text)))
    assert [(row.shape, row.dtype, row.unknown) for row in found.rows] == [
        ("?", "?", "Nothing#0: there is no rule for custom.Nothing (declared as float32 [7, K])"),
        ("?", "?", "Nothing#0: there is no rule for custom.Nothing (declared as float32 [N, 9])"),
    ]
    assert found.known == 0


def test_dims_and_inputs_specialize() -> None:
    def shape(**given: object) -> str:
        return tensor_shapes(SMALL, **given).rows[1].shape  # type: ignore[arg-type]

    assert shape(dims={"N": 2}) == "[2, M]"
    assert shape(inputs={"x": (3, 4), "w": (5, 4)}) == "[3, 5]"


def test_why_tells_the_chain_from_the_inputs() -> None:
    found = why_shape(SMALL, "y")
    assert found.shape == "[N, M]"
    assert found.steps[-1].startswith("y: [N, M], MatMul of x, t")
    assert any(step.startswith("w: [M, 4], an input") for step in found.steps)


def test_a_tensor_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="there is no tensor 'nope' in the main graph"):
        why_shape(SMALL, "nope")


def test_a_merged_decoder_tells_that_its_outputs_depend_on_the_branch() -> None:
    rows = {row.name: row for row in tensor_shapes(load("example:merged-decoder")).rows}
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
    assert rows["logits"] == "[2, 5, 64]"
