from __future__ import annotations

import pytest
from rewriting import check, lines, model_of

from graphkit.model import Model
from graphkit.passes.shapes.simplify_slice import MAX_PARTS, MergeConcats

PASS = MergeConcats()
HEAD = "(float[N, 2] x, float[N, 3] z) => (float[N, M] y)"


def graph(nodes: str, head: str = HEAD, opset: int = 17) -> Model:
    return model_of(f"g {head} {{ {nodes} }}", opset)


def test_nested_concats_are_one_at_any_place_and_depth() -> None:
    outcome = check(
        PASS,
        graph("""a = Concat <axis = 1> (x, z) b = Concat <axis = -1> (z, a) c = Neg (z) d = Concat <axis = 1> (c, x)
        y = Concat <axis = 1> (b, x, d, d)"""),
    )
    assert lines(outcome.model) == ["c = Neg (z)", "y = Concat <axis: int = 1> (z, x, z, x, c, x, c, x)"]


def test_each_reader_takes_the_parts() -> None:
    model = graph(
        "a = Concat <axis = 1> (x, z) y = Concat <axis = 1> (a, x) w = Concat <axis = 1> (z, a)",
        "(float[N, 2] x, float[N, 3] z) => (float[N, M] y, float[N, K] w)",
    )
    outcome = check(PASS, model)
    assert lines(outcome.model) == [
        "y = Concat <axis: int = 1> (x, z, x)",
        "w = Concat <axis: int = 1> (z, x, z)",
    ]
    assert outcome.changes == ("1 Concat merged into the next one",)


KEPT = {
    "another axis": graph("a = Concat <axis = 0> (x, x) b = Concat <axis = 0> (z, z) y = Concat <axis = 1> (a, b)"),
    "another reader": graph(
        "a = Concat <axis = 1> (x, z) b = ReduceMax (a) c = Concat <axis = 1> (a, z) y = Mul (b, c)"
    ),
    "an output": graph(
        "w = Concat <axis = 1> (x, z) y = Concat <axis = 1> (w, z)",
        "(float[N, 2] x, float[N, 3] z) => (float[N, M] y, float[N, K] w)",
    ),
    "an unknown rank": graph(
        "r = Reshape (x, s) a = Concat <axis = 1> (r, r) y = Concat <axis = -1> (a, a)",
        "(float[N, 2] x, int64[K] s) => (float[A, B] y)",
    ),
    "a body reads it": graph(
        """a = Concat <axis = 1> (x, z)
        y = If (p) <then_branch = t () => (float[N, M] u) { u = Concat <axis = 1> (a, x) },
                    else_branch = e () => (float[N, M] v) { v = Concat <axis = 1> (z, a) }>""",
        "(float[N, 2] x, float[N, 3] z, bool p) => (float[N, M] y)",
    ),
}


@pytest.mark.parametrize("model", KEPT.values(), ids=KEPT)
def test_they_stay(model: Model) -> None:
    assert PASS.run(model).model is model


def test_parts_do_not_double_without_end() -> None:
    levels = "".join(f"a{level + 1} = Concat <axis = 1> (a{level}, a{level}) " for level in range(16))
    outcome = PASS.run(graph(f"a0 = Concat <axis = 1> (x, z) {levels} y = Neg (a16)"))
    assert max(len(node.input) for node in outcome.model.proto.graph.node) <= MAX_PARTS
    assert len(outcome.model.proto.graph.node) < 10


def test_a_concat_that_nothing_reads_stays() -> None:
    model = graph("a = Concat <axis = 1> (x, z) b = Concat <axis = 1> (a, z) y = Concat <axis = 1> (x, z)")
    model.proto.graph.node[1].output[0] = ""
    assert [node.op_type for node in PASS.run(Model.from_proto(model.proto)).model.proto.graph.node] == ["Concat"] * 3
