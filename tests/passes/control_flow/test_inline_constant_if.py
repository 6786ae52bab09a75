from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.checker
import pytest
import sessions
from onnx import parser

from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.passes.control_flow import inline_constant_if
from graphkit.passes.control_flow.inline_constant_if import InlineConstantIf
from graphkit.rewrite.base import Outcome

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
X = {"x": np.array([[1.5, -2.0, 3.0]], np.float32)}


def model_of(text: str) -> Model:
    return Model.from_proto(parser.parse_model(f"{HEADER}\n{text}"))


def run(model: Model, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    onnx.checker.check_model(model.proto, full_check=True)
    return sessions.run(model, feed, sessions.ALL)


def check(text: str, feed: Mapping[str, np.ndarray] = X) -> Outcome:
    """Inline; the result must give what the original gives, under the same names."""
    model = model_of(text)
    outcome = InlineConstantIf().run(model)
    for one, two in zip(run(model, feed), run(outcome.model, feed), strict=True):
        np.testing.assert_array_equal(one, two)
    assert [value.name for value in outcome.model.graph.outputs] == [value.name for value in model.graph.outputs]
    return outcome


def operators(outcome: Outcome) -> list[str]:
    return [node.op_type for node in all_nodes(outcome.model.scopes)]


def choice(condition: str, inits: str = "", then: str = "t = Neg (x)", otherwise: str = "e = Abs (x)") -> str:
    return f"""
        agraph (float[N, 3] x) => (float[N, 3] y)
        <int64 zero = {{0}}, int64[1] one = {{1}}, int64 three = {{3}}{inits}> {{
            s = Shape (x)
            {condition}
            y = If (c) <
                then_branch = g1 () => (float[N, 3] t) {{ {then} }},
                else_branch = g2 () => (float[N, 3] e) {{ {otherwise} }}
            >
        }}"""


@pytest.mark.parametrize(
    ("condition", "inits", "expected"),
    [
        ("", ", bool c = {1}", "Neg"),
        ("", ", bool[1] c = {0}", "Abs"),
        ("c = Constant <value = bool {1}> ()", "", "Neg"),
        ("d = Gather (s, one)  c = Equal (d, three)", "", "Neg"),
        ("d = Gather (s, one)  c = Less (d, three)", "", "Abs"),
        ("d = Gather (s, zero)  c = Greater (d, zero)", "", "Neg"),
        ("d = Size (s)  c = Cast <to = 9> (d)", "", "Neg"),
    ],
)
def test_a_known_condition_chooses(condition: str, inits: str, expected: str) -> None:
    outcome = check(choice(condition, inits))
    assert operators(outcome) == [expected]
    branch = "then_branch" if expected == "Neg" else "else_branch"
    assert outcome.changes == (f"'If#{1 + condition.count('=') - condition.count('<')}' always runs {branch}",)


@pytest.mark.parametrize(
    "condition", ["d = Gather (s, zero)  c = Equal (d, three)", "d = ReduceSum (x)  c = Cast <to = 9> (d)"]
)
def test_a_condition_that_depends_on_the_input_is_left(condition: str) -> None:
    outcome = check(choice(condition))
    assert outcome.changes == ()
    assert [str(declined) for declined in outcome.declined] == ["If#3: its condition is only known at run time"]


def test_an_if_whose_branch_lacks_an_output_is_left() -> None:
    proto = model_of(choice("", ", bool c = {1}")).proto
    next(node for node in proto.graph.node if node.op_type == "If").output.append("lost")
    outcome = InlineConstantIf().run(Model.from_proto(proto))
    assert outcome.changes == ()
    assert [str(declined) for declined in outcome.declined] == ["If#1: its then_branch gives fewer outputs than it has"]


def test_an_if_whose_branch_has_an_input_is_left() -> None:
    proto = model_of(choice("", ", bool c = {1}")).proto
    branch = next(node for node in proto.graph.node if node.op_type == "If").attribute[0].g
    branch.input.add().CopyFrom(proto.graph.input[0])
    outcome = InlineConstantIf().run(Model.from_proto(proto))
    assert outcome.changes == ()
    reason = "If#1: its then_branch has inputs, which a branch cannot be given"
    assert [str(declined) for declined in outcome.declined] == [reason]


def test_a_range_of_a_dim_decides() -> None:
    model = model_of(choice("d = Gather (s, zero)  c = Greater (d, three)"))
    assert InlineConstantIf().run(model).changes == ()
    assert operators(InlineConstantIf(ranges=(("N", 4, None),)).run(model)) == ["Neg"]


def test_a_model_without_ifs_is_not_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_constant_if, "infer", None)
    model = model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }")
    assert InlineConstantIf().run(model).model is model


def test_a_condition_that_is_an_input_is_left_without_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_constant_if, "infer", None)
    model = model_of(choice("").replace("float[N, 3] x)", "float[N, 3] x, bool c)"))
    outcome = InlineConstantIf().run(model)
    assert outcome.model is model
    assert [str(declined) for declined in outcome.declined] == ["If#1: its condition is only known at run time"]


def test_nested_ifs_are_decided_where_they_run() -> None:
    inner = """u = If (c) <
            then_branch = g3 () => (float[N, 3] p) { p = Exp (x) },
            else_branch = g4 () => (float[N, 3] q) { q = Sin (x) }
        >
        t = Neg (u)"""
    outcome = check(choice("d = Gather (s, one)  c = Equal (d, three)", then=inner))
    assert operators(outcome) == ["Exp", "Neg"]
    dead = check(choice("d = Gather (s, one)  c = Less (d, three)", then=inner))
    assert operators(dead) == ["Abs"]
    assert len(dead.changes) == 1


def test_a_known_if_in_the_branch_of_an_unknown_one_is_inlined_there() -> None:
    inner = """u = If (known) <
            then_branch = g3 () => (float[N, 3] p) { p = Exp (x) },
            else_branch = g4 () => (float[N, 3] q) { q = Sin (x) }
        >
        t = Neg (u)"""
    outcome = check(choice("d = ReduceSum (x)  c = Cast <to = 9> (d)", ", bool known = {1}", then=inner))
    assert operators(outcome) == ["ReduceSum", "Cast", "If", "Exp", "Neg", "Abs"]
    assert len(outcome.declined) == 1


def test_an_output_that_is_an_initializer_keeps_its_name() -> None:
    outcome = check("""
        agraph (float[N, 3] x) => (float[2] y) <bool c = {1}> {
            y = If (c) <
                then_branch = g1 () => (float[2] w) <float[2] w = {1.0, 2.0}> {},
                else_branch = g2 () => (float[2] v) <float[2] v = {3.0, 4.0}> {}
            >
        }""")
    assert operators(outcome) == ["Identity"]


def test_an_output_that_is_captured_keeps_its_name() -> None:
    """The checker does not allow such a branch; onnxruntime neither."""
    model = model_of("""
        agraph (float[N, 3] x) => (float[N, 3] y) <bool c = {1}> {
            before = Neg (x)
            y = If (c) <
                then_branch = g1 () => (float[N, 3] before) { unused = Exp (x) },
                else_branch = g2 () => (float[N, 3] e) { e = Abs (x) }
            >
        }""")
    outcome = InlineConstantIf().run(model)
    assert operators(outcome) == ["Neg", "Identity"]
    np.testing.assert_array_equal(run(outcome.model, X)[0], -X["x"])


def test_names_that_clash_are_changed() -> None:
    outcome = check("""
        agraph (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) <bool c = {1}, float[1] w = {2.0}> {
            a = Mul (x, w)
            y = If (c) <
                then_branch = g1 () => (float[N, 3] t) <float[1] v = {5.0}> { h = Mul (a, v)  t = Neg (h) },
                else_branch = g2 () => (float[N, 3] e) { e = Abs (x) }
            >
            z = If (c) <
                then_branch = g3 () => (float[N, 3] t) <float[1] v = {7.0}> { h = Mul (y, v)  t = Exp (h) },
                else_branch = g4 () => (float[N, 3] e) { e = Abs (x) }
            >
        }""")
    assert operators(outcome) == ["Mul", "Mul", "Neg", "Mul", "Exp"]
    names = [value.name for value in outcome.model.graph.initializers]
    assert len(names) == len(set(names)) == 3


def test_names_of_nodes_that_clash_are_changed() -> None:
    outcome = check("""
        agraph (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) <bool c = {1}> {
            [n] a = Exp (x)
            [first] y = If (c) <
                then_branch = g1 () => (float[N, 3] t) { [n] h = Neg (a)  [m] t = Neg (h) },
                else_branch = g2 () => (float[N, 3] e) { [n] e = Abs (x) }
            >
            [second] z = If (c) <
                then_branch = g3 () => (float[N, 3] t) { [n] h = Sin (a)  [m] t = Neg (h) },
                else_branch = g4 () => (float[N, 3] e) { [n] e = Abs (x) }
            >
        }""")
    assert [node.proto.name for node in outcome.model.graph.nodes] == ["n", "n__1", "m", "n__2", "m__1"]


def test_an_if_in_the_body_of_a_loop_is_inlined_there() -> None:
    outcome = check("""
        agraph (float[N, 3] x) => (float[N, 3] y)
        <int64 times = {3}, bool go = {1}, int64[1] one = {1}, int64 three = {3}> {
            y = Loop (times, go, x) <body = b (int64 i, bool g, float[N, 3] v) => (bool h, float[N, 3] w) {
                h = Identity (g)
                s = Shape (v)
                d = Gather (s, one)
                c = Equal (d, three)
                w = If (c) <
                    then_branch = g1 () => (float[N, 3] t) { t = Add (v, v) },
                    else_branch = g2 () => (float[N, 3] e) { e = Abs (v) }
                >
            }>
        }""")
    assert operators(outcome) == ["Loop", "Identity", "Add"]


def test_a_dim_that_a_loop_changes_decides_nothing() -> None:
    outcome = check("""
        agraph (float[N, 3] x) => (float[N, M] y)
        <int64 times = {3}, bool go = {1}, int64[1] one = {1}, int64 three = {3}> {
            y = Loop (times, go, x) <body = b (int64 i, bool g, float[N, K] v) => (bool h, float[N, J] w) {
                h = Identity (g)
                s = Shape (v)
                d = Gather (s, one)
                c = Equal (d, three)
                w = If (c) <
                    then_branch = g1 () => (float[N, J] t) { t = Concat <axis = 1> (v, v) },
                    else_branch = g2 () => (float[N, J] e) { e = Concat <axis = 1> (v, v, v) }
                >
            }>
        }""")
    assert outcome.changes == ()


def test_in_a_function_only_a_constant_decides() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        agraph (float[1, 3] x, float[2, 3] z) => (float[A, 3] y, float[B, 3] v) { y = local.f (x)  v = local.f (z) }
        <domain: "local", opset_import: ["" : 17]>
        f (a) => (r) {
            always = Constant <value = bool {1}> ()
            one = Constant <value_int = 1> ()
            first = Constant <value_ints = [0]> ()
            s = Shape (a)
            n = Gather (s, first)
            c = Equal (n, one)
            p = If (c) <then_branch = g1 () => (t) { t = Neg (a) }, else_branch = g2 () => (e) { e = Abs (a) }>
            r = If (always) <then_branch = g3 () => (t) { t = Add (p, p) }, else_branch = g4 () => (e) { e = Abs (p) }>
        }""")
    outcome = InlineConstantIf().run(Model.from_proto(proto))
    assert outcome.changes == ("'function f/If#7' always runs then_branch",)
    assert [str(declined) for declined in outcome.declined] == [
        "function f/If#6: its condition is only known at run time"
    ]
    feeds = {"x": X["x"], "z": -np.ones((2, 3), np.float32)}
    for one, two in zip(run(Model.from_proto(proto), feeds), run(outcome.model, feeds), strict=True):
        np.testing.assert_array_equal(one, two)
