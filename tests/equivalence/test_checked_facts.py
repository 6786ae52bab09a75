"""A proof believes no word of the shape engine that onnxruntime does not confirm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pytest
from onnx import TensorProto
from small_models import model

from graphkit import fold
from graphkit.equivalence import check_equivalence, checked_facts
from graphkit.equivalence.result import LEAST_SIZES
from graphkit.model import Model
from graphkit.ops.registry import RULES
from graphkit.ops.rule_context import InferenceContext, Rule
from graphkit.ops.tensor import Tensor, array_of
from graphkit.runtime.session import SmallModel
from graphkit.shapes import Expr, infer
from graphkit.shapes.constraints.node_constraints import Values, size_column
from graphkit.symbolic.expr import Symbol

CASES = {
    "Add": "t = Add (s, k) y = Slice (x, z, t)",
    "Cast": "c = Cast <to = 6> (s) t = Cast <to = 7> (c) y = Slice (x, z, t)",
    "Concat": "c = Concat <axis = 0> (s, k) t = ReduceMax <keepdims = 1> (c) y = Slice (x, z, t)",
    "Conv": "u = Unsqueeze (x, k01) c = Conv (u, w) t = Shape <start = 2> (c) y = Slice (x, z, t)",
    "Div": "t = Div (s, k) y = Slice (x, z, t)",
    "Gather": "t = Gather (s, z) y = Slice (x, z, t)",
    "MatMul": "a = MatMul (col, row) t = Shape <start = 1> (a) y = Slice (x, z, t)",
    "Max": "t = Max (s, k) y = Slice (x, z, t)",
    "MaxPool": "u = Unsqueeze (x, k01) c = MaxPool <kernel_shape = [2], ceil_mode = 1, strides = [2]> (u) "
    "t = Shape <start = 2> (c) y = Slice (x, z, t)",
    "Mul": "t = Mul (s, k) y = Slice (x, z, t)",
    "Range": "q = Squeeze (s) c = Range (n0, q, n3) t = Shape (c) y = Slice (x, z, t)",
    "ReduceSum": "c = Concat <axis = 0> (s, k) t = ReduceSum <keepdims = 1> (c) y = Slice (x, z, t)",
    "Resize": "u = Unsqueeze (x, k01) c = Resize (u, , scales) t = Shape <start = 2> (c) y = Slice (x, z, t)",
    "Shape": "t = Identity (s) y = Slice (x, z, t)",
    "Size": "c = Size (x) t = Unsqueeze (c, z) y = Slice (x, z, t)",
    "Slice": "c = Slice (x, k, e) t = Shape (c) y = Slice (x, z, t)",
    "Where": "t = Where (yes, s, k) y = Slice (x, z, t)",
}
CONSTANTS = {
    "k": [5], "z": [0], "k01": [0, 1], "w": np.ones((2, 1, 3)), "n0": np.array(0), "n3": np.array(3), "e": [2**31],
    "scales": [1.0, 1.0, 1.5], "yes": [True], "col": np.ones((2, 3)), "row": np.ones((3, 1)),
}  # fmt: skip


def of(body: str) -> Model:
    """Return a model whose output depends on a size that nodes compute."""
    words = body.translate(str.maketrans("(),", "   ")).split()
    found = {name: array for name, array in CONSTANTS.items() if name in words}
    return model(f"g (float[n] x) => (float[k0] y) {{ s = Shape (x) {body} }}", **found)


def enlarged(expr: Expr) -> Expr:
    return expr + 1 if expr.constant != 1 else expr


def wrong(rule: Rule) -> Rule:
    """Return a rule of which each size and each number is one too large, but for 1."""

    def changed(tensor: Tensor) -> Tensor:
        if tensor.data is None:
            return tensor.with_contents(None if tensor.dims is None else tuple(map(enlarged, tensor.dims)), None)
        elements = [each if isinstance(each, float) else each + 1 for each in tensor.data.ravel().tolist()]
        return tensor.with_contents(tensor.dims, array_of(elements, tensor.data.shape))

    def faulty(ctx: InferenceContext) -> Tensor | list[Tensor]:
        found = rule(ctx)
        return [*map(changed, found)] if isinstance(found, list) else changed(found)

    return faulty


def forget() -> None:
    """Forget what was confirmed before, and shapes that were inferred."""
    checked_facts._HELD.clear()
    engine = sys.modules["graphkit.shapes.infer"]
    for forget_known in (
        engine.KNOWN_RESULTS.clear,
        engine._infer_spec.cache_clear,
        engine._inferences_at.cache_clear,
        engine._CONSTANTS.clear,
    ):
        forget_known()


@pytest.fixture
def with_faulty_rule(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Rule], None]]:
    """Let the engine have a wrong rule."""

    def put(name: str, rule: Rule) -> None:
        monkeypatch.setitem(RULES, name, rule)
        forget()

    yield put
    monkeypatch.undo()
    forget()


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", CASES)
def test_a_fold_by_a_wrong_rule_is_not_proven(name: str, with_faulty_rule: Callable[[str, Rule], None]) -> None:
    original = of(CASES[name])
    right = check_equivalence(original, fold(original).model)
    assert right.is_proven, right
    with_faulty_rule(name, wrong(RULES[name]))
    found = check_equivalence(original, fold(original).model)
    assert not found.proven
    assert f"({name}) are" in str(found)


def test_a_rule_that_is_wrong_of_what_the_rewrite_alone_has_is_found(
    with_faulty_rule: Callable[[str, Rule], None],
) -> None:
    """Both outputs are equal, whatever is known of a size that is taken from itself."""
    original = model("g (float[n] x) => (float[n] y) { y = Neg (x) }")
    body = "s = Size (x) o = Sub (s, s) k = Reshape (o, one) a = Neg (x) y = Reshape (a, k)"
    rewritten = model(f"g (float[n] x) => (float[n] y) {{ {body} }}", one=[1])
    right = check_equivalence(original, rewritten)
    assert right.is_proven, right
    with_faulty_rule("Size", wrong(RULES["Size"]))
    assert "(Size) are" in str(check_equivalence(original, rewritten))


def test_a_rule_that_is_wrong_of_the_second_of_two_like_nodes_is_found(
    with_faulty_rule: Callable[[str, Rule], None],
) -> None:
    body = "s = Shape (x) a = Max (s, k) b = Max (s, k) y = Add (a, b)"
    original = model(f"g (float[n] x) => (int64[1] y) {{ {body} }}", k=[5])
    right = RULES["Max"]

    def faulty(ctx: InferenceContext) -> Tensor | list[Tensor]:
        return ctx.tensor(0) if ctx.node.result().name == "b" else right(ctx)

    with_faulty_rule("Max", faulty)
    assert "(Max) are" in str(check_equivalence(original, original.with_proto(original.proto)))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("number", [5, 300, 70_000])
def test_a_rule_that_is_wrong_below_a_number_is_found(
    seed: int, number: int, with_faulty_rule: Callable[[str, Rule], None]
) -> None:
    original = model("g (float[n] x) => (int64[1] y) { s = Shape (x) y = Max (s, most) }", most=[number])
    assert check_equivalence(original, original.with_proto(original.proto), seed=seed).is_proven
    with_faulty_rule("Max", lambda ctx: ctx.tensor(0))
    assert "(Max) are" in str(check_equivalence(original, original.with_proto(original.proto), seed=seed))


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("a = Gather (table, i) s = Shape (a) y = Reshape (a, s)", {"table": np.zeros((9, 4))}),
        ("a = MatMul (x, w) s = Shape (a) b = Neg (a) y = Reshape (b, s)", {"w": np.zeros((4, 4))}),
        ("c = ConstantOfShape (large) s = Shape (c) t = Slice (s, z, o) u = Slice (x, z, t) y = Neg (u)",
         {"large": np.array([70000, 70000]), "z": [0], "o": [1]}),
    ],
)  # fmt: skip
def test_what_nodes_give_of_large_tensors_is_compared_too(body: str, constants: dict[str, object]) -> None:
    inputs = "int64[n] i" if "(table, i)" in body else "float[n, 4] x"
    made = model(f"g ({inputs}) => (float[k0, k1] y) {{ {body} }}", **constants)
    found = check_equivalence(made, fold(made).model)
    assert found.is_proven, found
    assert found.compared >= 3


def test_a_node_that_could_run_at_a_few_sizes_alone_is_compared_by_the_dims_that_are_inferred() -> None:
    """As the products of a Swin, of 1.2e8 steps at a batch of 1."""
    made = model(
        """g (float[n, 3136, 96] x) => (float[k0, k1] y) {
            a = MatMul (x, w) s = Shape <end = 1> (a) n = Mul (s, r) t = Concat <axis = 0> (n, k) y = Reshape (a, t)
        }""",
        w=np.zeros((96, 384)),
        r=[3136],
        k=[384],
    )
    found = check_equivalence(made, fold(made).model)
    assert found.is_proven, found


@pytest.fixture
def is_large(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Return of which operators the nodes are only loaded, as it is found out."""
    found, make = dict[str, bool](), checked_facts._small_models

    def watch(claim: checked_facts._Claim, tried: Sequence[checked_facts.Sizes]) -> list[SmallModel]:
        found[claim.node.op_type] = claim.is_large
        return make(claim, tried)

    monkeypatch.setattr(checked_facts, "_small_models", watch)
    return found


def test_a_node_beside_a_large_weight_is_run_where_its_sizes_are_small(is_large: dict[str, bool]) -> None:
    made = model(
        "g (int64[n, m] i) => (float[k0, k1, 64] y) { a = Gather (table, i) s = Shape (a) y = Reshape (a, s) }",
        table=np.zeros((30_000, 64)),
    )
    forget()
    assert check_equivalence(made, fold(made).model).is_proven
    assert is_large["Gather"] is False


@pytest.mark.parametrize("inferred", [[-1] * 3, []])
@pytest.mark.parametrize(("side", "is_proven"), [(1024, True), (8192, False)])
def test_what_onnxruntime_does_not_infer_is_run_unless_it_is_too_large(
    side: int, inferred: list[int], is_proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(
        f"g (float[n, {side}, {side}] x) => (float[k0, k1, k2] y) {{ a = Neg (x) s = Shape (a) y = Reshape (a, s) }}"
    )

    def infer_nothing(models: Iterable[SmallModel]) -> Iterator[object]:
        found = zip(listed := [*models], run(listed), strict=True)
        return ([[np.array(inferred)]] if feeds == [None] else outcome for (_, feeds), outcome in found)

    run = checked_facts.run_small_models
    monkeypatch.setattr(checked_facts, "run_small_models", infer_nothing)
    forget()
    found = check_equivalence(made, fold(made).model)
    forget()
    assert found.is_proven is is_proven, found


@pytest.mark.parametrize("has_rule", [True, False])
def test_what_onnx_infers_of_a_node_is_not_confirmed_by_onnx(
    has_rule: bool, is_large: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model("g (float[n, 1024, 1024] x) => (float[k0, k1, k2] y) { a = Neg (x) s = Shape (a) y = Reshape (a, s) }")
    if not has_rule:
        monkeypatch.delitem(RULES, "Neg")
    forget()
    found = check_equivalence(made, fold(made).model)
    forget()
    assert found.is_proven, found
    assert is_large["Neg"] is has_rule


def test_a_node_is_run_with_other_dims_at_each_size_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cheapest sizes all give it one row."""
    made = model(
        "g (float[n, 256] x) => (float[k, 2048] y) { part = Slice (x, k0, k300999, k0, k32) y = MatMul (part, w) }",
        k0=[0],
        k300999=[9999],
        k32=[32],
        w=np.zeros((256, 2048)),
    )
    rows = dict[str, list[int]]()

    def watch(claim: checked_facts._Claim, tried: Sequence[checked_facts.Sizes]) -> list[SmallModel]:
        found = make(claim, tried)
        rows[claim.node.op_type] = [feed["0/0"][1][0] for _, feeds in found for feed in feeds if feed]
        return found

    make = checked_facts._small_models
    monkeypatch.setattr(checked_facts, "_small_models", watch)
    forget()
    assert check_equivalence(made, made.with_proto(made.proto)).is_proven
    assert len({*rows["MatMul"]}) == LEAST_SIZES


def test_a_node_that_cannot_be_compared_proves_nothing_of_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = of(CASES["Add"])
    monkeypatch.setattr(checked_facts, "run_small_models", lambda models: iter(["it does not load" for _ in models]))
    forget()
    found = check_equivalence(made, fold(made).model)
    assert not found.proven
    assert "was not compared: it ran at 0 of 8 sizes: it does not load" in str(found)


def test_what_the_rewrite_alone_needs_must_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have the node, and only the rewrite has numbers that rest on it."""
    before = model("g (float[n] x) => (float[n] y) { y = Neg (x) }")
    after = model("g (float[n] x) => (float[n] y) { a = Neg (x) s = Shape (a) y = Reshape (a, s) }")
    run = checked_facts.run_small_models

    def load_no_neg(models: Iterable[SmallModel]) -> Iterator[object]:
        found = zip(listed := [*models], run(listed), strict=True)
        return ("it does not load" if b"Neg" in content else outcome for (content, _), outcome in found)

    monkeypatch.setattr(checked_facts, "run_small_models", load_no_neg)
    forget()
    found = check_equivalence(before, after)
    forget()
    assert "(Neg) was not compared" in str(found)


def test_dims_that_must_be_equal_unless_something_is_empty_are_made_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Concat has them; none of the sizes that are drawn are."""
    made = model(
        """g (float[1, c, p, 5] x, float[1, 2, 1, 5] z) => (float[k] y) {
            r = Slice (x, one, end, two) a = Concat <axis = 2> (r, z) s = Shape (a)
            m = ReduceProd <keepdims = 1> (s) y = Reshape (a, m)
        }""",
        one=[1],
        two=[2],
        end=[1 << 40],
    )

    def drawn(symbols: Sequence[Symbol], *_: object) -> Values:
        return Values({each.name: size_column([*range(3, 83)]) for each in symbols})

    monkeypatch.setattr(checked_facts, "_draw_sizes", drawn)
    forget()
    found = check_equivalence(made, fold(made).model)
    assert found.is_proven, found


def test_a_node_that_needs_many_elements_is_run_at_the_sizes_that_have_them() -> None:
    text = """g (float[batch, 1, height, width] x) => (int64[batch, k] y) {
        p = AveragePool <kernel_shape = [8, 8], strides = [8, 8], pads = [3, 3, 4, 4]> (x)
        d = Shape <start = 0, end = 1> (x) to = Concat <axis = 0> (d, rest) r = Reshape (p, to)
        v, i = TopK (r, k300) t = Shape (v) y = Reshape (i, t)
    }"""
    made = model(text, rest=[-1], k300=[300])
    found = check_equivalence(made, fold(made).model)
    assert len(found.proven) == 1, str(found)


def test_what_is_known_of_few_sizes_is_compared_at_all_of_them() -> None:
    text = "g (bool[1] c, float[2] x) => (float[k] y) { i = Cast <to = 7> (c) t = Add (i, one) y = Slice (x, zero, t) }"
    made = model(text, one=[1], zero=[0])
    assert check_equivalence(made, made.with_proto(made.proto)).is_proven


def test_sizes_follow_the_seed_and_nothing_else() -> None:
    shapes = infer(of(CASES["Add"]))
    symbols = [each for dim in shapes["x"].dims or () for each in dim.walk_symbols()]
    drawn = [checked_facts._draw_sizes(symbols, {5}, True, seed).columns["n"].tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({*drawn[0]}) > LEAST_SIZES
    assert {1, 2, 3, 4, 5, 6} <= {*drawn[0]}
    assert max(drawn[0]) > 1 << 20
    assert len({*drawn[0]} - {*checked_facts.NUMBERS}) > LEAST_SIZES  # that nobody listed


def test_what_was_confirmed_once_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = of(CASES["Mul"])
    first = check_equivalence(made, fold(made).model)
    monkeypatch.setattr(checked_facts, "run_small_models", lambda models: iter(["it does not load" for _ in models]))
    assert check_equivalence(made, fold(made).model) == first


def test_a_number_that_is_read_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a reader of tensors takes 256 for false."""
    made = model(
        "g (float[n] x, float[n] z) => (float[n] y) { s = Shape (x) a = Where (c, s, k) y = Expand (z, a) }", k=[1]
    )
    tensor = made.proto.graph.initializer.add(name="c", data_type=TensorProto.BOOL, dims=[1])
    tensor.int32_data.append(256)
    made = Model.from_proto(made.proto)
    assert check_equivalence(made, fold(made).model).is_proven
    with monkeypatch.context() as context:
        context.setattr(Model, "array", lambda *_: np.array([False]))
        forget()
        found = check_equivalence(made, fold(made).model)
    forget()
    assert "(Where) are" in str(found)
