from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from properties import examples
from sessions import run, session_of

from graphkit.model import Model, load
from graphkit.options import FoldingOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.declare_shapes import FreezeDims
from graphkit.passes.shapes.simplify_scatter import MORE_NODES, MaskedScatterToWhere, SimplifyScatter
from graphkit.save import save_models
from graphkit.verify import InputGenerator, Sizes

HEADER = '<ir_version: 8, opset_import: ["" : 18]>'
SIZES = [(2, 5, 3), (1, 1, 0), (3, 2, 2), (2, 3, 4), (2, 0, 0), (1, 0, 3)]  # N, L or past_L, past


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


# Assignments as torch exports them: x[range, range, range] = 100, 101, ...


class Builder:
    """Writes one assignment to x float[N, L, 4]; p float[past] gives a number that is not a dim of x."""

    def __init__(self, length: str) -> None:
        self.dims = ("N", length, 4)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, value: object) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def size(self, source: str, axis: int) -> str:
        return self.add("Gather", self.add("Shape", source), self.constant(axis))

    def whole(self, axis: int) -> str:
        return self.add("Range", self.constant(0), self.size("x", axis), self.constant(1))

    def sliced(self, axis: int, start: str, end: str) -> str:
        return self.add("Slice", self.whole(axis), start, end, self.constant([0]))

    def past(self) -> str:
        return self.add("Unsqueeze", self.size("p", 0), self.constant([0]))

    def model(self, ranges: list[str], transposed: bool = False) -> Model:
        """Return the model that assigns 100, 101, ... to where these ranges meet."""
        rank = len(ranges)
        grid = self.add("Concat", *(self.add("Shape", one) for one in ranges), axis=0)
        parts = []
        for axis, one in enumerate(ranges):
            column = self.add("Reshape", one, self.constant([-1, *[1] * (rank - 1 - axis)]))
            parts.append(self.add("Unsqueeze", self.add("Expand", column, grid), self.constant([-1])))
        at = self.add("Concat", *(reversed(parts) if transposed else parts), axis=-1)
        rest = self.add("Slice", self.add("Shape", "x"), self.constant([rank]), self.constant([9]))
        sizes = self.add("Concat", grid, rest, axis=0)
        count = self.add("ReduceProd", sizes, keepdims=0)
        numbers = self.add("Range", self.constant(0), count, self.constant(1))
        updates = self.add("Reshape", self.add("Cast", numbers, to=TensorProto.FLOAT), sizes, allowzero=1)
        self.nodes.append(helper.make_node("ScatterND", ["x", at, updates], ["y"], name="assign"))
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.dims)]
        inputs += [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["past"])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, self.dims)]
        graph = helper.make_graph(self.nodes, "assignment", inputs, outputs, self.tensors)
        return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


Kind = Callable[[Builder, int], str]
KINDS: dict[str, Kind] = {
    "all": Builder.whole,
    "first two": lambda b, _: b.constant([0, 1]),
    "second": lambda b, _: b.constant([1]),
    "last": lambda b, _: b.constant([-1]),
    "last two": lambda b, _: b.constant([-2, -1]),
    "not the last": lambda b, axis: b.sliced(axis, b.constant([0]), b.constant([-1])),
    "from the second": lambda b, axis: b.sliced(axis, b.constant([1]), b.constant([2**31 - 1])),
    "last two sliced": lambda b, axis: b.sliced(axis, b.constant([-2]), b.constant([2**63 - 1])),
    "from past": lambda b, axis: b.sliced(axis, b.past(), b.constant([2**63 - 1])),
    "up to past": lambda b, axis: b.sliced(axis, b.constant([0]), b.past()),
    "past and next": lambda b, _: b.add("Add", b.constant([0, 1]), b.past()),
    "backwards": lambda b, _: b.constant([1, 0]),
    "every other": lambda b, _: b.constant([0, 2]),
    "twice": lambda b, _: b.constant([1, 1]),
    "around the end": lambda b, _: b.constant([-1, 0]),
}


def assignment(*kinds: str, transposed: bool = False, length: str = "L") -> Model:
    builder = Builder(length)
    return builder.model([KINDS[kind](builder, axis) for axis, kind in enumerate(kinds)], transposed)


def check(model: Model, length: str = "L") -> tuple[Model, int]:
    """Compare a model with its rewriting wherever it runs; return the result, and at how many sizes it ran."""
    result = SimplifyScatter().run(model).model
    onnx.checker.check_model(result.proto, full_check=True)
    ran = 0
    for batch, size, past in SIZES:
        if not size and length == "L":  # a dim that is not of a past is at least 1
            continue
        feeds = {
            "x": -np.arange(1, batch * size * 4 + 1, dtype=np.float32).reshape(batch, size, 4),
            "p": np.zeros(past, np.float32),
        }
        try:
            (expected,) = run(model, feeds)
        except Exception as error:
            if "onnxruntime" not in type(error).__module__:
                raise
            continue  # an index out of bounds
        ran += 1
        np.testing.assert_array_equal(run(result, feeds)[0], expected)
    return result, ran


@examples(12, 60)
@given(
    st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3), st.booleans(), st.sampled_from(["L", "past_L"])
)
def test_any_assignment_gives_the_same_wherever_it_is_legal(kinds, transposed, length):
    check(assignment(*kinds, transposed=transposed, length=length), length)


def bounds(model: Model) -> list[tuple[object, ...]]:
    """Return axis, start and end of each Slice of the data, bounds that are no constants by name."""
    slices = [node for node in model.graph.nodes if node.is_op("Slice") and node.proto.output[0].startswith("y_")]
    found = []
    for node in slices:
        start, end, axis = (
            int(numpy_helper.to_array(value.tensor)[0]) if value is not None and value.tensor is not None else "tensor"
            for value in node.inputs[1:]
        )
        found.append((axis, start, "end" if end == 2**63 - 1 else end))
    return found


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("all",), []),
        (("all", "all", "all"), []),
        (("all", "second"), [(1, 0, 1), (1, 2, "end")]),
        (("all", "all", "first two"), [(2, 2, "end")]),
        (("all", "last"), [(1, 0, -1)]),
        (("last two",), [(0, 0, -2)]),
        (("last two sliced",), [(0, 0, -2)]),
        (("all", "not the last"), [(1, -1, "end")]),
        (("all", "from past"), [(1, 0, "tensor")]),
        (("up to past",), [(0, "tensor", "end")]),
        (("all", "from the second", "not the last"), [(1, 0, 1), (1, 1, "end"), (2, 3, "end")]),
    ],
    ids=str,
)
def test_an_assignment_is_made_of_slices(kinds: tuple[str, ...], expected: list[tuple[object, ...]]) -> None:
    result, ran = check(assignment(*kinds))
    assert ran >= 3
    assert "ScatterND" not in operators(result)
    assert bounds(result) == expected


def test_what_the_indices_were_made_of_is_gone() -> None:
    result, _ = check(assignment("all", "not the last"))
    assert operators(assignment("all", "not the last")).count("Expand") == 2
    assert "Expand" not in operators(result)


@pytest.mark.parametrize(
    ("kinds", "length", "reason"),
    [
        (("backwards",), "L", "its indices do not go up by one along one axis"),
        (("every other",), "L", "its indices do not go up by one along one axis"),
        (("twice",), "L", "its indices may name an element more than once"),
        (("around the end",), "L", "its indices may be negative"),
        (("last",), "past_L", "its indices may be negative"),
        (("first two",), "past_L", "its box may be empty, past the end of its data"),
        (
            ("past and next",),
            "L",
            "no tensor that its indices are made of holds past + 2, where its box starts or ends",
        ),
    ],
    ids=str,
)
def test_what_is_no_range_stays(kinds: tuple[str, ...], length: str, reason: str) -> None:
    outcome = SimplifyScatter().run(assignment(*kinds, length=length))
    assert [str(declined) for declined in outcome.declined] == [f"assign: {reason}"]


def test_indices_in_another_order_than_the_updates_stay() -> None:
    (declined,) = SimplifyScatter().run(assignment("first two", "all", transposed=True)).declined
    assert declined.reason == "its indices are in another order than the axes"


# Indices that are constants


def text(scatter: str, x: str = "float[N, 4]", u: str = "float[N, 2]", y: str = "float[N, 4]") -> str:
    return f"{HEADER} agraph ({x} x, {u} u) => ({y} y) {{ [assign] y = {scatter} }}"


def model_of(proto_text: str, **constants: object) -> Model:
    proto = parser.parse_model(proto_text)
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(v), name) for name, v in constants.items())
    return Model.from_proto(proto)


def same(model: Model, **feeds: np.ndarray) -> Model:
    result = SimplifyScatter().run(model).model
    onnx.checker.check_model(result.proto, full_check=True)
    for one, two in zip(run(model, feeds), run(result, feeds), strict=True):
        np.testing.assert_array_equal(one, two)
    return result


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def pairs(*ranges: list[int]) -> np.ndarray:
    return np.stack(np.meshgrid(*ranges, indexing="ij"), -1)


def test_a_row_and_rows_are_written() -> None:
    rows = text("ScatterND (x, at, u)", "float[5, 4]", "float[2, 4]", "float[5, 4]")
    result = same(model_of(rows, at=[[1], [2]]), x=floats(5, 4), u=-floats(2, 4))
    assert operators(result) == ["Slice", "Slice", "Concat"]
    row = text("ScatterND (x, at, u)", "float[5, 4]", "float[4]", "float[5, 4]")
    result = same(model_of(row, at=[4]), x=floats(5, 4), u=-floats(4))
    assert operators(result) == ["Reshape", "Slice", "Concat"]


def test_a_large_constant_of_indices_is_read() -> None:
    block = text("ScatterND (x, at, u)", "float[30, 30]", "float[25, 30]", "float[30, 30]")
    at = pairs(list(range(5, 30)), list(range(30)))
    result = same(model_of(block, at=at), x=floats(30, 30), u=-floats(25, 30))
    assert operators(result) == ["Slice", "Concat"]


def test_two_axes_are_written_one_in_the_other() -> None:
    block = text("ScatterND (x, at, u)", "float[5, 6]", "float[2, 3]", "float[5, 6]")
    result = same(model_of(block, at=pairs([1, 2], [0, 1, 2])), x=floats(5, 6), u=-floats(2, 3))
    assert operators(result) == ["Slice", "Slice", "Slice", "Concat", "Slice", "Concat"]


@pytest.mark.parametrize(("axis", "start"), [(1, 0), (1, 2), (-1, 1), (1, -2)])
def test_elements_along_an_axis_are_written(axis: int, start: int) -> None:
    elements = text(f"ScatterElements <axis = {axis}> (x, at, u)", "float[3, 4]", "float[3, 2]", "float[3, 4]")
    at = np.broadcast_to([start, start + 1], (3, 2))
    for dtype in (np.int64, np.int32):
        result = same(model_of(elements, at=at.astype(dtype)), x=floats(3, 4), u=-floats(3, 2))
        assert set(operators(result)) == {"Slice", "Concat"}


def test_elements_of_fewer_rows_than_there_are_are_written() -> None:
    elements = text("ScatterElements <axis = 0> (x, at, u)", "float[3, 4]", "float[3, 2]", "float[3, 4]")
    at = np.broadcast_to(np.arange(3)[:, None], (3, 2))
    result = same(model_of(elements, at=at), x=floats(3, 4), u=-floats(3, 2))
    assert operators(result) == ["Slice", "Concat"]


def test_a_scalar_that_holds_a_bound_becomes_a_vector() -> None:
    model = model_of(f"""{HEADER} agraph (float[past] p, float[N] u) => (float[T] y)
        <int64 one = {{1}}, int64[1] last = {{-1}}> {{
            x = Concat <axis = 0> (p, u)  s = Size (p)  n = Size (x)  r = Range (s, n, one)  at = Unsqueeze (r, last)
            y = ScatterND (x, at, u) }}""")
    for past in (0, 3):
        result = same(model, p=floats(past), u=-floats(2))
    assert operators(result) == ["Concat", "Size", "Reshape", "Slice", "Concat"]


def test_an_intermediate_result_is_its_updates() -> None:
    proto = parser.parse_model(
        f"{HEADER} agraph (float[2] x, float[2] u) => (float[2] y) {{ s = ScatterND (x, at, u)  y = Neg (s) }}"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array([[0], [1]]), "at"))
    result = same(Model.from_proto(proto), x=floats(2), u=-floats(2))
    assert [(node.op_type, list(node.proto.input)) for node in result.graph.nodes] == [("Neg", ["u"])]


def test_the_concat_takes_over_the_name_of_the_scatter() -> None:
    model = model_of(text("ScatterND (x, at, u)", "float[3]", "float[1]", "float[3]"), at=[[0]])
    entry = model.proto.graph.node[0].metadata_props.add()
    entry.key, entry.value = "namespace", "decoder"
    concat = SimplifyScatter().run(model).model.graph.nodes[-1]
    assert (concat.op_type, concat.label, concat.proto.metadata_props[0].value) == ("Concat", "assign", "decoder")


def test_a_body_is_rewritten_too() -> None:
    proto = f"""{HEADER} agraph (float[3] x, float[1] u, bool c) => (float[3] y) {{
        y = If (c) <
            then_branch = g1 () => (float[3] a) {{ a = ScatterND (x, at, u) }},
            else_branch = g2 () => (float[3] b) {{ b = Neg (x) }}
        > }}"""
    result = same(model_of(proto, at=[[2]]), x=floats(3), u=-floats(1) - 1, c=np.array(True))
    assert [node.op_type for node in result.graph.nodes[0].bodies["then_branch"].nodes] == ["Slice", "Concat"]


@pytest.mark.parametrize(
    ("scatter", "updates", "at", "reason"),
    [
        ('ScatterND <reduction = "add"> (x, at, u)', "2, 4", [[0], [1]], "its reduction is 'add'"),
        ("ScatterND (x, at, u)", "K, 4", [[0]], "its elements are [K, 4], its indices are for [1, 4]"),
        ("ScatterND (x, at, u)", "N, 2", [[0, 0, 0]], "its indices are not known to be consecutive"),
        ("ScatterElements (x, where, u)", "N, 1", [0], "its indices are not known to be consecutive"),
        ("ScatterND (x, where, u)", "N, 4", [0], "its indices are not known to be consecutive"),
    ],
)
def test_it_says_why_a_scatter_stays(scatter: str, updates: str, at: object, reason: str) -> None:
    proto = text(scatter, u=f"float[{updates}]").replace(" u) =>", " u, int64[N, 1] where) =>")
    outcome = SimplifyScatter().run(model_of(proto, at=at))
    assert outcome.changes == ()
    assert [str(declined) for declined in outcome.declined] == [f"assign: {reason}"]


def test_a_diagonal_stays() -> None:
    diagonal = text("ScatterND (x, at, u)", "float[2, 2]", "float[2]", "float[2, 2]")
    (declined,) = SimplifyScatter().run(model_of(diagonal, at=[[0, 0], [1, 1]])).declined
    assert declined.reason == "its indices are in another order than the axes"


def test_data_of_unknown_rank_stays() -> None:
    proto = f"{HEADER} agraph (float[2] x, float[2] u) => (float[N] y) {{ t = custom.T (x)  y = ScatterND (t, at, u) }}"
    proto = proto.replace('"" : 18', '"" : 18, "custom" : 1')
    (declined,) = SimplifyScatter().run(model_of(proto, at=[[0], [1]])).declined
    assert declined.reason.startswith("the rank of 't' is not known: ")


def test_updates_that_no_constant_reshape_makes_the_box_stay() -> None:
    """Here [past_A, past_B] would have to become [past_A, 1, past_B]."""
    proto = f"""{HEADER} agraph (float[past_A, 3, past_B] x, float[past_A, past_B] u) => (float[A, B, C] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{-1}}, int64[1] middle = {{2}}> {{
            s = Shape (x)  n = Gather (s, zero)  r = Range (zero, n, one)
            i = Unsqueeze (r, last)  j = Mul (i, zero)  k = Add (j, middle)  at = Concat <axis = -1> (i, k)
            row = Gather <axis = 1> (x, zero)  both = Add (row, u)  y = ScatterND (x, at, u) }}"""
    (declined,) = SimplifyScatter().run(model_of(proto)).declined
    assert declined.reason == "its updates are [past_A, past_B], which no constant Reshape makes the box"


def test_a_real_decoder_gives_the_same_without_its_index_chains(
    model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    path, rewritten = model_file("merged-decoder/decoder_with_past_model"), tmp_path / "rewritten.onnx"
    model = load(path)
    outcome = SimplifyScatter().run(model)
    assert outcome.changes == ("1 Scatter of a whole tensor replaced by the updates",)
    assert len(model.graph.nodes) - len(outcome.model.graph.nodes) == 38
    save_models({rewritten: outcome.model}, weights="inline")
    sessions = [session_of(file) for file in (path, rewritten)]
    for past in (0, 4):
        feeds = InputGenerator(model).make(Sizes(batch=2, sequence=3, past=past, encoder=5))
        for one, two in zip(*(session.run(None, feeds) for session in sessions), strict=True):
            np.testing.assert_array_equal(one, two)


# Fewer nodes alone


SPARING = SimplifyScatter(sparing=True)
BLOCK = text("ScatterND (x, at, u)", "float[5, 6]", "float[2, 3]", "float[5, 6]")


def test_a_scatter_of_constant_indices_stays_where_slices_would_be_more_nodes() -> None:
    model = model_of(BLOCK, at=pairs([1, 2], [0, 1, 2]))
    outcome = SPARING.run(model)
    assert (outcome.model, [each.reason for each in outcome.declined]) == (model, [MORE_NODES])
    for options in (FoldingOptions(), FoldingOptions(fuse=True)):
        assert operators(fold(model, options=options).model) == ["ScatterND"]
    assert "ScatterND" not in operators(fold(model, options=FoldingOptions(keep_fusions=False)).model)


def test_scatters_that_cover_their_data_together_become_one_concat_though_each_alone_would_be_more_nodes() -> None:
    three = "a = ScatterND (x, first, u)  b = ScatterND (a, second, v)  y = ScatterND (b, third, u)"
    proto = f"{HEADER} agraph (float[6, 4] x, float[2, 4] u, float[2, 4] v) => (float[6, 4] y) {{ {three} }}"
    model = model_of(proto, first=[[0], [1]], second=[[2], [3]], third=[[4], [5]])
    assert SPARING.run(model).model is model
    for options in (FoldingOptions(), FoldingOptions(fuse=True)):
        (concat,) = fold(model, options=options).model.graph.nodes
        assert (concat.op_type, [value.name for value in concat.operands]) == ("Concat", ["u", "v", "u"])


def test_one_of_a_whole_tensor_goes_all_the_same() -> None:
    model = model_of(BLOCK.replace("float[2, 3] u", "float[5, 6] u"), at=pairs(list(range(5)), list(range(6))))
    assert operators(SPARING.run(model).model) == ["Identity"]


def test_slices_take_the_place_of_what_computes_the_indices() -> None:
    model = assignment("all", "from the second", "not the last")
    assert operators(SPARING.run(model).model) == operators(SimplifyScatter().run(model).model)


def test_what_is_computed_from_known_dims_does_not_count() -> None:
    model = FreezeDims((("N", 2), ("L", 5))).run(assignment("all", "from the second", "not the last")).model
    assert SPARING.run(model).model is model


def test_two_that_share_what_computes_their_indices_count_together() -> None:
    """Neither alone would free the nodes of the indices."""
    twice = f"""{HEADER} agraph (float[N, 5] x, float[N, 2] v, float[N, 2] w) => (float[N, 5] y, float[N, 5] z)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{-1}}, int64[2] columns = {{1, 2}}> {{
            s = Shape (x)  n = Gather (s, zero)  range = Range (zero, n, one)  rows = Unsqueeze (range, last)
            grid = Shape (v)  i = Expand (rows, grid)  j = Expand (columns, grid)
            a = Unsqueeze (i, last)  b = Unsqueeze (j, last)  at = Concat <axis = -1> (a, b)
            y = ScatterND (x, at, v)  z = ScatterND (x, at, w) }}"""
    model = model_of(twice)
    assert operators(SPARING.run(model).model) == ["Slice", "Slice", "Concat"] * 2
    read = twice.replace("[N, 5] z)", "[N, 5] z, int64[N, 2, 2] o)").replace("at, w)", "at, w)  o = Neg (at)")
    assert SPARING.run(model := model_of(read)).model is model


# Assignments behind a mask, as torch exports `x[mask] = 7`


SMALL = {"[N, L]": "Less (x, zero)", "[N]": "Less (row, zero)", "[L]": "Less (column, zero)", "[1]": "Less (one, zero)"}


def masked(dims: str, updates: str = "Expand (seven, dims)", reduction: str = "none") -> Model:
    last = "" if dims == "[N, L]" else ", last"
    return model_of(
        f"""{HEADER} agraph (float[N, L] x) => (float[N, L] y)
        <float seven = {{7}}, float[1] one = {{-1}}, float zero = {{0}},
         int64[1] first_axis = {{0}}, int64[1] second = {{1}}> {{
            row = ReduceSum <keepdims = 0> (x, second)  column = ReduceSum <keepdims = 0> (x, first_axis)
            mask = {SMALL[dims]}  by_axis = NonZero (mask)  at = Transpose <perm = [1, 0]> (by_axis)
            places = Shape <start = 0, end = 1> (at)  last = Shape <start = 1, end = 2> (x)
            dims = Concat <axis = 0> (places{last})  updates = {updates}
            y = ScatterND <reduction = "{reduction}"> (x, at, updates) }}"""
    )


@pytest.mark.parametrize("dims", ["[N]", "[N, L]"])
@pytest.mark.parametrize("size", [(3, 2), (1, 1), (0, 2), (2, 0)])
def test_an_assignment_behind_a_mask_is_a_choice(dims: str, size: tuple[int, int]) -> None:
    model = masked(dims)
    outcome = MaskedScatterToWhere().run(model)
    assert outcome.changes == ("1 assignment behind a mask written as Where",)
    assert {"NonZero", "ScatterND"}.isdisjoint(operators(outcome.model))
    feeds = {"x": np.random.default_rng(1).normal(size=size).astype(np.float32)}
    np.testing.assert_array_equal(*(run(each.proto, feeds)[0] for each in (model, outcome.model)))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (masked("[L]"), "its mask is [L], its data [N, L]"),
        (masked("[1]"), "its mask is [1], its data [N, L]"),
        (masked("[N]", reduction="add"), "it reduces, or its indices are not those of a boolean mask"),
        (masked("[N]", updates="Expand (one, dims)"), "its updates are not one number, expanded"),
    ],
)
def test_an_assignment_that_is_no_choice_stays(model: Model, reason: str) -> None:
    (declined,) = MaskedScatterToWhere().run(model).declined
    assert declined.reason == reason


@pytest.mark.parametrize("name", ["bool", "int16", "uint16", "uint64", "int8", "uint32", "float16"])
def test_an_assignment_is_a_choice_where_onnxruntime_has_one_of_its_dtype(name: str) -> None:
    model = model_of(
        f"""{HEADER} agraph ({name}[3, 2] x, bool[3, 2] mask) => ({name}[3, 2] y) <{name} one = {{1}}> {{
            by_axis = NonZero (mask)  at = Transpose <perm = [1, 0]> (by_axis)  places = Shape <start = 0, end = 1> (at)
            updates = Expand (one, places)  y = ScatterND (x, at, updates) }}"""
    )
    outcome = MaskedScatterToWhere().run(model)
    assert [each.reason for each in outcome.declined] in ([], [f"onnxruntime has no Where of {name}"])
    feeds = {"x": np.eye(3, 2, dtype=name), "mask": np.eye(3, 2, 1, dtype=bool)}
    np.testing.assert_array_equal(*(run(each.proto, feeds)[0] for each in (model, outcome.model)))


@pytest.mark.parametrize(("kind", "perm"), [("int32", "1, 0"), ("bool", "0, 1")])
def test_an_assignment_by_other_indices_than_those_of_a_mask_stays(kind: str, perm: str) -> None:
    model = model_of(
        f"""{HEADER} agraph (float[3, 2] x, {kind}[3, 2] mask) => (float[3, 2] y) <float one = {{1}}> {{
            by_axis = NonZero (mask)  at = Transpose <perm = [{perm}]> (by_axis)  places = Shape <end = 1> (at)
            updates = Expand (one, places)  y = ScatterND (x, at, updates) }}"""
    )
    assert MaskedScatterToWhere().run(model).model is model
