"""Wrong models are never proven: those that runs nearly miss, and those whose interface differs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from small_models import model
from wrong_rewrites import PAIRS, Pair, proven_from_1

from graphkit import equivalence
from graphkit.equivalence import check_equivalence
from graphkit.errors import ModelError
from graphkit.model import Model, load
from graphkit.runtime.session import Session

FROM_1 = {pair.name for pair in proven_from_1()}  # normal forms begin at 1; dims of 0 are left to runs
OVERFLOWING = {"float: overflow of a product", "float: underflow of a product"}  # which exact arithmetic has not


@pytest.mark.cases(53)
@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
def test_a_wrong_rewrite_is_not_proven(pair: Pair) -> None:
    before, after = (model(text, **pair.constants) for text in (pair.before, pair.after))
    found = check_equivalence(before, after)
    is_left = pair.name in OVERFLOWING and {output.exactness for output in found.outputs} == {"in exact arithmetic"}
    assert not found.is_proven or is_left or pair.name in FROM_1
    assert check_equivalence(before, model(pair.before, **pair.constants)).is_proven


ONE = "g (float[b, s] x) => (float[b, s] y) {{ {} }}"
BRANCHES = """g (bool c, float[2] x) => (float[n] y, float[n] z, float[n] w) {{
    w = Neg (x)
    y, z = If (c) <
        then_branch = t () => (float[2] a, float[1] b) {{ {} }},
        else_branch = e () => (float[2] d, float[1] f) {{ d = Abs (x) f = Slice (x, i1, two) }}
    >
}}"""
FAULTS = {
    "a dtype of an input": (ONE.format("y = Neg (x)"), ONE.format("y = Neg (x)").replace("float[", "double["), "dtype"),
    "a node that fails and is not read": (
        ONE.format("y = Neg (x)"), ONE.format("z = Reshape (x, seven) y = Neg (x)"), "may fail"),
    "a -1 beside a dim of 0": (
        ONE.format("a = Shape (x) y = Reshape (x, a)"),
        "g (float[b, s] x) => (float[b, s] y) { a = Slice (x, i0, i0, i1) c = Reshape (a, minus) y = Identity (x) }",
        "may fail"),
    "an index that may not be there": (
        ONE.format("y = Neg (x)"), ONE.format("z = Gather <axis = 1> (x, seven) y = Neg (x)"), "may fail"),
    "an operator of another domain": (
        ONE.format("y = Neg (x)"), ONE.format("y = com.microsoft.Gelu (x)"), "differ"),
    "a condition with a float": (
        "g (float[n] x, bool[n] c) => (float[n] y) { y = Neg (x) }",
        "g (float[n] x, bool[n] c) => (float[n] y) { f = Cast <to = 1> (c) z = Where (f, x, x) y = Neg (x) }",
        "may fail"),
    "an integer division by what may be 0": (
        "g (int64[n, m] x) => (int64[n, m] y) { y = Neg (x) }",
        "g (int64[n, m] x) => (int64[n, m] y) { z = Div (x, x) y = Neg (x) }", "may fail"),
    "an operator without a kernel for integers": (
        "g (int64[n, m] x) => (int64[n, m] y) { y = Neg (x) }",
        "g (int64[n, m] x) => (int64[n, m] y) { z = Relu (x) y = Neg (x) }", "may fail"),
    "a node before one that it reads": (
        "g (bool c, float[n] x) => (float[n] y) { y = If (c) <then_branch = t () => (float[n] a) { b = Neg (x) "
        "a = Neg (b) }, else_branch = e () => (float[n] a) { a = Abs (x) }> }",
        "g (bool c, float[n] x) => (float[n] y) { y = If (c) <then_branch = t () => (float[n] a) { a = Neg (b) "
        "b = Neg (x) }, else_branch = e () => (float[n] a) { a = Abs (x) }> }", "stands before"),
    "an overflow of few elements": (
        "g (int64[2] x) => (int64[2] y) { y = Identity (x) }",
        "g (int64[2] x) => (int64[2] y) { t = Add (x, x) s = Add (t, t) u = Sub (s, t) y = Div (u, two) }", "differ"),
    "a shape that is no list": (
        ONE.format("y = Neg (x)"), ONE.format("s = Size (x) z = ConstantOfShape (s) y = Neg (x)"), "may fail"),
    "an Expand to other dims": (
        ONE.format("y = Neg (x)"), ONE.format("z = Expand (x, seven) y = Neg (x)"), "may fail"),
    "axes that are no list": (
        ONE.format("y = Neg (x)"), ONE.format("a = Squeeze (i1) z = Slice (x, i0, two, a) y = Neg (x)"), "may fail"),
    "axes of an Unsqueeze that are no list": (
        ONE.format("y = Neg (x)"), ONE.format("a = Flatten (i1) z = Unsqueeze (x, a) y = Neg (x)"), "may fail"),
    "an output of a branch that is declared otherwise": (
        BRANCHES.format("a = Neg (x) b = Slice (x, i0, i1)"), BRANCHES.format("b = Neg (x) a = Slice (x, i0, i1)"),
        "is declared [2]"),
    "the largest of nothing": (
        "g (float[n, past_m] x) => (float[n, past_m] y) { y = Neg (x) }",
        "g (float[n, past_m] x) => (float[n, past_m] y) { z = ArgMax <axis = 1> (x) y = Neg (x) }", "may fail"),
    "an axis that is not there": (
        ONE.format("y = Neg (x)"), ONE.format("z = Softmax <axis = 2> (x) y = Neg (x)"), "cannot run"),
    "a Flatten past the end": (
        ONE.format("y = Neg (x)"), ONE.format("z = Flatten <axis = 3> (x) y = Neg (x)"), "cannot run"),
    "a symbol that stands for two dims": (
        "g (float[b, s] x) => (float[b, s] y) { z = Neg (x) y = Neg (z) }",
        "g (float[b, s] x) => (float[b, s] y) <float[s, s] z> { z = Neg (x) y = Neg (z) }", "declared for dims"),
    "more axes than starts": (
        ONE.format("y = Neg (x)"), ONE.format("z = Slice (x, i0, two, both) y = Neg (x)"), "may fail"),
    "an axis twice": (
        ONE.format("y = Neg (x)"), ONE.format("z = Slice (x, two2, two2, twice) y = Neg (x)"), "may fail"),
    "a dim that is -1 at one size": (
        ONE.format("a = Shape (x) y = Reshape (x, a)"),
        ONE.format("b = Shape <end = 1> (x) s = Shape <start = 1> (x) n = Neg (s) a = Concat <axis = 0> (b, n) "
                   "y = Reshape <allowzero = 1> (x, a)"), "may fail"),
    "a branch that never runs, and does not load": (
        "g (float[n] x) => (float[n] y) { y = If (yes) <then_branch = t () => (float[n] a) { a = Neg (x) }, "
        "else_branch = e () => (float[n] a) { a = Abs (x) }> }",
        "g (float[n] x) => (float[n] y) { y = If (yes) <then_branch = t () => (float[n] a) { a = Neg (x) }, "
        "else_branch = e () => (float[n] a) { a = Not (x) }> }", "declared float32"),
    "an inner declaration of another dtype": (
        ONE.format("z = Neg (x) y = Neg (z)"),
        "g (float[b, s] x) => (float[b, s] y) <int64[b, s] z> { z = Neg (x) y = Neg (z) }", "declared int64"),
    "random numbers": (
        ONE.format("r = RandomNormalLike (x) y = Add (x, r)"), ONE.format("q = RandomNormalLike (x) y = Add (x, q)"),
        "differ"),
    "an inner declaration": (
        "g (float[b, s] x) => (float[b, s] y) { z = Neg (x) y = Neg (z) }",
        "g (float[b, s] x) => (float[b, s] y) <float[1, 7] z> { z = Neg (x) y = Neg (z) }", "declared [1, 7]"),
    "a branch": (
        "g (bool c, float[n] x) => (float[n] y) { y = If (c) <then_branch = t () => (float[n] a) { a = Neg (x) }, "
        "else_branch = e () => (float[n] a) { a = Abs (x) }> }",
        "g (bool c, float[n] x) => (float[n] y) { y = If (c) <then_branch = t () => (float[n] a) { a = Abs (x) }, "
        "else_branch = e () => (float[n] a) { a = Neg (x) }> }", "differ"),
}  # fmt: skip
NUMBERS = {"seven": [7], "i0": [0], "i1": [1], "minus": [-1, 0], "two": [2], "both": [0, 1], "two2": [2, 2],
           "twice": [1, 1], "yes": True}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    before, after, words = FAULTS[name]
    constants = {key: np.array(numbers) for key, numbers in NUMBERS.items()}
    found = check_equivalence(*(model(text, **constants) for text in (before, after)))
    assert not found.proven
    assert words in str(found)


@pytest.mark.parametrize(
    ("declared", "is_proven"), [("[b, 7]", True), ("[?, 7]", True), ("[7, 7]", False), ("[7]", False)]
)
def test_an_inner_declaration_that_is_wrong_in_the_original_may_say_less(declared: str, *, is_proven: bool) -> None:
    text = "g (float[b, s] x) => (float[b, s] y) <float{} z> {{ z = Neg (x) y = Neg (z) }}"
    models = (model(text.format(each)) for each in ("[b, 7]", declared))
    assert check_equivalence(*models).is_proven == is_proven


UNREAD = "g (float[n] x) => (float[n] y) {{ y = If (yes) <then_branch = t () => (float[n] a) {{ a = Neg (x) }}, "
UNREAD += "else_branch = e () => (float{} a) {} {{ b = Abs (x) a = Relu (b) }}> }}"


@pytest.mark.parametrize(
    ("output", "inner", "is_proven"),
    [("[n]", "<float[n] b>", True), ("[k]", "", True), ("[n]", "<float[3] b>", False), ("[n]", "<int64[n] b>", False)],
)
def test_a_branch_that_never_runs_may_declare_what_its_nodes_give(output: str, inner: str, *, is_proven: bool) -> None:
    before, after = (model(UNREAD.format(*each), yes=np.array(True)) for each in (("[n]", ""), (output, inner)))
    assert check_equivalence(before, after).is_proven == is_proven


@pytest.mark.parametrize(("declared", "is_proven"), [("[1, 7]", True), ("[b, 7]", True), ("[2, 7]", False)])
def test_a_declaration_that_is_wrong_in_the_original_may_have_dims_that_are_fixed(
    declared: str, *, is_proven: bool
) -> None:
    text = "g (float[{}, s] x) => (float[b, s] y) <float{} z> {{ z = Neg (x) y = Neg (z) }}"
    before, after = model(text.format("b", "[b, 7]")), model(text.format("1", declared))
    assert check_equivalence(before, after, narrower=True).is_proven == is_proven


@pytest.mark.parametrize(
    ("grid", "is_proven"),
    [
        ([[1, 2], [3, 4]], True),
        ([[1, 3], [2, 4]], False),
        ([[2, 3], [4, 5]], False),
        ([[1, 2], [3, 3]], False),
        ([[4, 3], [2, 1]], False),
    ],
)
def test_a_grid_of_indices_is_a_slice_where_they_count_up_in_order(
    grid: Sequence[Sequence[int]], *, is_proven: bool
) -> None:
    head = "g (float[n, 6] x) => (float[n, 4] y)"
    before = model(f"{head} {{ a = Gather <axis = 1> (x, grid) y = Flatten (a) }}", grid=np.array(grid))
    numbers = {name: np.array([number]) for name, number in (("one", 1), ("five", 5))}
    after = model(f"{head} {{ y = Slice (x, one, five, one) }}", **numbers)
    assert check_equivalence(before, after).is_proven == is_proven


@pytest.mark.parametrize(("first", "second", "is_proven"), [
    ("k", "k", False), ("k", "l", True), ("k", "?", True), ("v", "v", True),
])  # fmt: skip
def test_unknown_dims_that_may_differ_have_no_symbol_in_common(first: str, second: str, *, is_proven: bool) -> None:
    text = "g (bool[n] p, bool[m] q) => (int64[a, b] y, int64[c, d] z) {} {{ i = NonZero (p) j = NonZero (q) "
    text += "y = Neg (i) z = Neg (j) }}"
    before = model(
        text.format("<int64[1, v] i, int64[1, v] j>" if first == "v" else "").replace("{ i", "{ r = Not (p) i")
    )
    after = model(text.format(f"<int64[1, {first}] i, int64[1, {second}] j>"))
    found = check_equivalence(before, after)
    assert found.is_proven is is_proven
    assert is_proven or "'k' is declared for dims that may differ: an unknown size" in str(found)


@pytest.mark.parametrize(("declared", "is_proven"), [("[c, 7]", True), ("[?, 7]", True), ("[c, 5]", False)])
def test_a_declaration_that_is_wrong_in_the_original_may_have_symbols_of_other_names(
    declared: str, *, is_proven: bool
) -> None:
    text = "g (float[{0}, s] x) => (float[{0}, s] y) <float{1} z> {{ z = Neg (x) y = Neg (z) }}"
    before, after = model(text.format("b", "[b, 7]")), model(text.format("c", declared))
    assert check_equivalence(before, after, narrower=True).is_proven == is_proven


@pytest.mark.parametrize(("first", "second", "is_proven"), [("n", "w", True), ("m", "w", False), ("k", "w", False)])
def test_a_symbol_of_dims_that_may_differ_has_another_name_where_the_original_has_one_for_them(
    first: str, second: str, *, is_proven: bool
) -> None:
    text = "g (float[{0}] x, float[{1}] u) => (float[{0}] y, float[l] v) <float[{2}] a> "
    text += "{{ a = Neg (u) y = Neg (x) v = Neg (a) }}"
    before, after = model(text.format("n", "m", first)), model(text.format("w", "e", second))
    assert check_equivalence(before, after, narrower=True).is_proven == is_proven


def test_an_output_whose_declaration_is_wrong_may_have_another_name() -> None:
    before, after = (model(f"g (float[b, s] x) => (float[b, 7] {name}) {{ {name} = Neg (x) }}") for name in "yv")
    assert check_equivalence(before, after, renamed={"v": "y"}).is_proven


def _newer(proto: onnx.ModelProto) -> None:
    proto.ir_version = 99


def _twice(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        node.name = "same"


def _declared_as_a_list(proto: onnx.ModelProto) -> None:
    info = proto.graph.value_info.add(name="z")
    info.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT


def _of_no_dtype(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unread"))
    proto.graph.initializer[0].data_type = 99


def _sparse(proto: onnx.ModelProto) -> None:
    sparse = proto.graph.sparse_initializer.add(dims=[3])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "unread"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([9])))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_newer, "Unsupported model IR version: 99"),
        (_twice, "with same node name (same)"),
        (_declared_as_a_list, "z is declared as no tensor, and its node gives one"),
        (_of_no_dtype, "does not have valid data type"),
        (_sparse, "expected to be in [0, 3)"),
    ],
)
def test_a_model_that_onnxruntime_does_not_load_is_not_proven(
    edit: Callable[[onnx.ModelProto], None], words: str, tmp_path: Path
) -> None:
    before = model(ONE.format("z = Neg (x) y = Neg (z)"))
    proto = onnx.ModelProto.FromString(before.proto.SerializeToString())
    edit(proto)
    (tmp_path / "edited.onnx").write_bytes(proto.SerializeToString())
    after = load(tmp_path / "edited.onnx")
    with pytest.raises(ModelError, match="onnxruntime does not load it"):
        Session(tmp_path / "edited.onnx")
    found = check_equivalence(before, after)
    assert not found.proven
    assert words in str(found)


def test_a_version_that_onnx_cannot_be_asked_for_is_as_the_newest() -> None:
    plain = model(ONE.format("y = Neg (x)"))
    plain.proto.opset_import[0].version = 1 << 62
    assert check_equivalence(plain, plain.with_proto(plain.proto)).is_proven


def test_a_dim_that_is_fixed_has_to_be_allowed() -> None:
    before, after = model(ONE.format("y = Neg (x)")), model(ONE.format("y = Neg (x)").replace("[b, s]", "[2, s]"))
    assert not check_equivalence(before, after).is_proven
    narrower = check_equivalence(before, after, narrower=True)
    assert narrower.is_proven
    assert narrower.conditions == ("s >= 1",)
    assert not check_equivalence(after, before, narrower=True).is_proven


WINDOWS = "g (float[1, 1, n] x) => (float[1, 1, m] y) {{ p = Conv (x, five) s = Slice (x, four, far, two) {} }}"


def windowed(text: str) -> Model:
    numbers = {"five": np.ones((1, 1, 5), np.float32), "seven": np.ones((1, 1, 7), np.float32), "four": np.array([4])}
    numbers |= {"far": np.array([2**40]), "two": np.array([2])}
    return model(text, **numbers)


def test_a_proof_is_about_the_sizes_at_which_the_original_runs() -> None:
    before, after = (windowed(WINDOWS.format(body)) for body in ("y = Mul (p, s)", "y = Mul (s, p)"))
    found = check_equivalence(before, after)
    assert found.is_proven
    assert found.conditions == ("n >= 5",)


LEFT = """s = Shape <start = 1> (x) b = Sub (five, s) f = ConstantOfShape (b) u = Unsqueeze (f, axes)
    p = Conv (u, two) q = NonZero (p) d = Cast <to = 1> (q) y = ReduceSum (d)"""


@pytest.mark.cases("m = MatMul (x, four) y = ReduceSum (m)-n = 4")
@pytest.mark.parametrize(
    ("node", "condition"), [("m = MatMul (x, four) y = ReduceSum (m)", "n = 4"), (LEFT, "1 <= n <= 3")]
)
def test_the_largest_size_at_which_the_original_runs_is_told(node: str, condition: str) -> None:
    numbers = {"five": np.array([5]), "axes": np.array([0, 1]), "two": np.ones((1, 1, 2)), "four": np.ones((4, 2))}
    made = model(
        f"g (float[2, n] x) => (float[a, b] y) {{ {node} }}", **{k: v for k, v in numbers.items() if k in node}
    )
    found = check_equivalence(made, made)
    assert found.is_proven, found
    assert found.conditions == (condition,)


def test_what_the_rewritten_model_requires_is_no_condition() -> None:
    before = windowed(WINDOWS.format("y = Mul (p, s)"))
    narrower = windowed(WINDOWS.format("q = Conv (x, seven) y = Mul (p, s)"))
    assert "may fail" in str(check_equivalence(before, narrower))
    assert check_equivalence(narrower, before).conditions == ("n >= 7",)


@pytest.mark.parametrize(
    ("dtype", "condition"),
    [(1, "n <= 16,777,216"), (6, "n <= 2,147,483,647"), (12, "n <= 4,294,967,295")],
)
def test_a_dtype_that_does_not_hold_every_size_is_a_condition(dtype: int, condition: str) -> None:
    text = "g (float[n] x) => (int64[1] y) { s = Shape (x) t = Cast <to = %d> (s) y = Cast <to = 7> (t) }"
    before, after = model(text % dtype), model("g (float[n] x) => (int64[1] y) { y = Shape (x) }")
    assert check_equivalence(before, after).conditions == ("n >= 1", condition)
    assert check_equivalence(after, after).conditions == ("n >= 1",)


def test_what_is_renamed_has_to_be_said() -> None:
    before, after = model(ONE.format("y = Neg (x)")), model("g (float[b, s] u) => (float[b, s] v) { v = Neg (u) }")
    assert not check_equivalence(before, after).is_proven
    assert check_equivalence(before, after, renamed={"u": "x", "v": "y"}).is_proven


def test_a_known_condition_chooses_its_branch() -> None:
    before = model(str(FAULTS["a branch"][0]))
    then, otherwise = (model(f"g (float[n] x) => (float[n] y) {{ y = {op} (x) }}") for op in ("Neg", "Abs"))
    assert check_equivalence(before, then, values={"c": True}, narrower=True).is_proven
    assert not check_equivalence(before, otherwise, values={"c": True}, narrower=True).is_proven
    assert check_equivalence(before, otherwise, values={"c": False}, narrower=True).is_proven


def test_it_shares_nothing_with_what_it_checks() -> None:
    for path in Path(equivalence.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules += [f"{node.module}.{alias.name}" for alias in node.names]
            assert not [name for name in modules if name.startswith(("graphkit.passes", "graphkit.rewrite"))]


def test_two_inputs_are_not_one_under_another_name() -> None:
    before = model("g (float[n] x) => (float[n] y) { y = Add (x, x) }")
    after = model("g (float[n] x, float[n] z) => (float[n] y) { y = Add (x, z) }")
    found = check_equivalence(before, after, renamed={"z": "x"})
    assert "two inputs are input x of the original" in found.outputs[0].reason
    found = check_equivalence(after, after, unread=["z"], free=["z"])
    assert "input z of the original is free" in found.outputs[0].reason


def test_a_number_for_a_dim_tells_nothing_of_another_one_of_its_name() -> None:
    text = "g (float[{}] a, float[N, 4] b) => (float[k, l] y, float[o, p] z) {{ y = Neg (a) z = Neg (b) }}"
    found = check_equivalence(model(text.format("N, 4")), model(text.format("3, 4")), narrower=True)
    assert found.is_proven
    assert found.conditions == ("N >= 1",)
