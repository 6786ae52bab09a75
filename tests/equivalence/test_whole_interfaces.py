"""Edits that leave what a model computes as it is are proven of models of each kind: parts, names, dims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx.parser
import pytest
from real_models import UNLIKE, params

import graphkit
from graphkit.equivalence import Equivalence, check_equivalence
from graphkit.equivalence.interface import cut_open
from graphkit.errors import ModelError
from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.shapes.declare_shapes import DeclareShapes, SetDims
from graphkit.rewrite.new_interface import with_exposed, with_names
from graphkit.shapes.input_dims import input_dims
from graphkit.verify import verify_extract
from graphkit.verify.interface_changes import computed_dims

QUICK = ("t5-tiny/encoder_model", "cache-styles/two-stacked")
EACH = pytest.mark.parametrize("name", params(UNLIKE, slow={*UNLIKE} - {*QUICK}))
ModelFile = Callable[[str], Path]


def assert_exact(found: Equivalence) -> None:
    assert found.is_proven, str(found)
    assert {output.exactness for output in found.outputs} == {"bit for bit"}


def middle(model: Model) -> str:
    """Return a tensor in the middle of a model, or an output of one whose main graph is a single If or Loop."""
    names = [
        value.name
        for node in model.graph.nodes
        if node.op_type in ("Add", "MatMul", "MatMulInteger", "Mul", "Gather")
        for value in node.outputs
        if value is not None and not value.is_constant and value.consumers
    ]
    return names[len(names) // 2] if names else model.graph.outputs[0].name


@pytest.mark.cases("t5-tiny/encoder_model")
@EACH
def test_a_part_is_proven_against_the_whole(name: str, model_file: ModelFile) -> None:
    model = graphkit.load(model_file(name))
    cut = middle(model)
    first = ExtractSubgraph(outputs=(cut,)).run(model).model
    unread = [value.name for value in model.graph.inputs]
    assert_exact(
        check_equivalence(cut_open(with_exposed(model, [cut]), first, {}), first, narrower=True, unread=unread)
    )


@EACH
def test_other_names_are_proven(name: str, model_file: ModelFile) -> None:
    model = graphkit.load(model_file(name))
    names = {value.name: f"new/{value.name}" for value in (*model.graph.inputs, *model.graph.outputs)}
    back = {new: old for old, new in names.items()}
    assert_exact(check_equivalence(model, with_names(with_names(model, names), back)))


@pytest.mark.cases("t5-tiny/encoder_model")
@EACH
def test_other_names_of_all_dims_are_proven(name: str, model_file: ModelFile) -> None:
    """Outputs whose dims nobody can compute, as those of merged decoders, declare them by the names of the inputs."""
    model = graphkit.load(model_file(name))
    texts = {dim for value in model.graph.inputs for dim in declared_dims(value) or () if isinstance(dim, str)}
    renamed = (
        Rename(dims=tuple((text, f"new_{text}") for text in sorted(texts) if text.isidentifier())).run(model).model
    )
    assert_exact(check_equivalence(model, renamed, narrower=True))


HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
UNKNOWN = """{} agraph (float[{}, {}] x, float[K] z, bool c) => (float[Y] y) {{
    y = If (c) <
        then_branch = b1 () => (float[T] u) {{ s = Constant <value_ints: ints = [-1]> () u = Reshape (x, s) }},
        else_branch = b2 () => (float[E] v) {{ v = Relu (z) }}
    >
}}"""


@pytest.mark.parametrize(
    ("before", "after", "is_proven"),
    [
        (("N", "M", "N + M"), ("B", "S", "S + B"), True),
        (("N", "M", "N"), ("B", "S", "B"), True),
        (("N", "M", "N"), ("B", "S", "S"), False),  # that of another input
        (("N", "M", "N + M"), ("B", "S", "B + B"), False),
        (("N", "M", "N"), ("B", "S", "N"), False),  # a name that no input has any more
        (("N", "M", "N"), ("M", "N", "N"), False),  # names that were swapped, but here
        (("N", "M", "O"), ("O", "M", "O"), False),  # a name of no input became that of one
        (("N", "M", "O"), ("B", "S", "O"), True),
        (("N", "M", "O"), ("B", "S", "P"), False),  # names of no input: nothing says that they are one
        (("N", "N", "N"), ("B", "S", "B"), False),  # one dim became two, of which either may be meant
        (("N", "N", "N"), ("B", "S", "S"), False),
    ],
)
def test_what_an_output_declares_of_unknown_dims(
    before: tuple[str, ...], after: tuple[str, ...], *, is_proven: bool
) -> None:
    models = []
    for first, second, declared in (before, after):
        proto = onnx.parser.parse_model(UNKNOWN.format(HEAD, first, second))
        proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = declared
        models.append(Model.from_proto(proto))
    found = check_equivalence(*models, narrower=True)
    assert found.is_proven == is_proven, str(found)


@EACH
def test_shapes_that_are_written_are_proven(name: str, model_file: ModelFile) -> None:
    model = graphkit.load(model_file(name))
    assert_exact(check_equivalence(model, DeclareShapes().run(model).model))


BODIES = ("search/beamsearch-gpt2", "search/loop-greedy")  # declare numbers in bodies whose dims nobody can infer
DIMS = [name for name in UNLIKE if name not in BODIES]


@pytest.mark.cases("t5-tiny/encoder_model")
@pytest.mark.parametrize("name", params(DIMS, slow={*DIMS} - {*QUICK}))
def test_dims_that_are_set_are_proven(name: str, model_file: ModelFile) -> None:
    model = graphkit.load(model_file(name))
    symbols = [dim.name for dims in input_dims(model).values() for dim in dims or () if dim.name is not None]
    if not symbols:
        pytest.skip("all dims of its inputs are numbers")
    made = SetDims(dims=((symbols[0], 2),)).run(model)
    assert_exact(check_equivalence(model, made.model, narrower=True))


CUT, END = "/norm/LayerNormalization", "logits"


def test_the_proof_of_a_part_has_its_headline() -> None:
    model = graphkit.load("example:causal-attention")
    part = ExtractSubgraph(outputs=(END,), inputs=(CUT,)).run(model).model
    found = verify_extract(model, part)
    assert found.passed
    assert found.proven() == "Proven bit for bit at every size (1 of 1 output), and run once."


def test_a_part_that_is_another_one_is_not_proven() -> None:
    model = graphkit.load("example:causal-attention")
    part = ExtractSubgraph(outputs=(END,), inputs=(CUT,)).run(model).model
    proto = part.restore()
    last = next(node for node in proto.graph.node if END in node.output)
    last.output[0] = "before"
    proto.graph.node.add(op_type="Neg", input=["before"], output=[END])
    wrong = Model.from_proto(proto)
    unread = [value.name for value in model.graph.inputs]
    assert not check_equivalence(
        cut_open(model, wrong, computed_dims(model, [CUT])), wrong, narrower=True, unread=unread
    ).proven
    found = verify_extract(model, wrong)
    assert not found.passed
    assert len(found.runs) >= 7


def test_a_part_begins_at_a_value_of_the_dtype_that_it_has() -> None:
    model = graphkit.load("example:causal-attention")
    proto = ExtractSubgraph(outputs=(END,), inputs=(CUT,)).run(model).model.restore()
    begun = proto.graph.input[0]
    begun.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(ModelError, match=f"'{begun.name}' is float32, and the subgraph declares another dtype"):
        cut_open(model, Model.from_proto(proto), computed_dims(model, [begun.name]))


@pytest.mark.parametrize(("declared", "is_proven"), [("found", True), ("N", False)])
def test_a_part_may_declare_what_the_whole_does_of_unknown_dims(declared: str, *, is_proven: bool) -> None:
    text = f"{HEAD} agraph (float[N] x) => (int64[1, R] y) <int64[1, found] n> {{ n = NonZero (x) y = Neg (n) }}"
    model = Model.from_proto(onnx.parser.parse_model(text))
    part = ExtractSubgraph(outputs=("n",)).run(model).model.proto
    part.graph.output[0].type.tensor_type.shape.dim[1].dim_param = declared
    rewritten = Model.from_proto(part)
    found = check_equivalence(
        cut_open(with_exposed(model, ["n"]), rewritten, {}), rewritten, narrower=True, unread=["x"]
    )
    assert found.is_proven == is_proven, str(found)


@pytest.mark.cases("batch-seq-1-True", "seq-batch-1-True")
@pytest.mark.parametrize(("first", "second", "axis", "is_proven"), [
    ("batch", "seq", 1, True), ("batch", "seq", 0, False), ("seq", "batch", 1, True), ("k", "k2", 1, True),
])  # fmt: skip
def test_what_a_part_calls_the_dims_of_a_cut_may_be_other_dims_in_the_whole(
    first: str, second: str, axis: int, *, is_proven: bool
) -> None:
    """The whole turns its input before the cut, and reads a dim of the input beside it."""
    head = f"{HEAD} agraph (float[batch, seq] x) => (float[a, b] y) <int64[1] two = {{2}}>"
    tail = "t = Min (s, two) f = Cast <to = 1> (t) y = Mul (v, f)"
    whole = f"{head} {{ v = Transpose <perm = [1, 0]> (x) s = Shape <start = 0, end = 1> (x) {tail} }}"
    part = f"{head} {{ s = Shape <start = {axis}, end = {axis + 1}> (v) {tail} }}"
    part = part.replace("float[batch, seq] x", f"float[{first}, {second}] v")
    models = [Model.from_proto(onnx.parser.parse_model(each)) for each in (whole, part)]
    found = verify_extract(*models)
    assert found.passed is is_proven, str(found)
    assert bool(found.equivalence.proven) is is_proven
