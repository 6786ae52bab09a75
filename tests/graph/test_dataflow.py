"""Forward analyses: facts on demand, and bounded whatever the graph."""

from __future__ import annotations

import onnx

import graphkit
from graphkit.graph.dataflow import MAX_DEPTH, ForwardAnalysis
from graphkit.graph.view import Value


class Depth(ForwardAnalysis[int]):
    """Counts the nodes on the longest path to a value; -1 where that is not known."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.looked_at: list[str] = []

    def transfer(self, value: Value) -> int:
        self.looked_at.append(value.name)
        if value.producer is None:
            return 0
        before = [self.of(source) for source in value.producer.inputs]
        return -1 if -1 in before else 1 + max(before)


def values(text: str) -> dict[str, Value]:
    head = '<ir_version: 8, opset_import: ["" : 17]> agraph (float[N] x) => (float[N] y)'
    return dict(graphkit.Model.from_proto(onnx.parser.parse_model(f"{head} {{ {text} }}")).graph.values)


def test_each_value_is_looked_at_once_and_others_not_at_all() -> None:
    found, depth = values("a = Neg(x) b = Add(a, a) c = Add(b, a) y = Neg(x)"), Depth()
    assert depth.of(found["c"]) == 3
    assert depth.of(found["b"]) == 2
    assert depth.looked_at == ["c", "b", "a", "x"]
    assert depth.of(None) == -1


def test_a_value_that_is_computed_from_itself_is_unknown() -> None:
    found = values("a = Add(x, b) b = Neg(a) y = Neg(b)")
    assert Depth().of(found["y"]) == -1


def test_a_value_behind_more_nodes_than_the_stack_takes_is_unknown() -> None:
    text = "v0 = Neg(x) " + " ".join(f"v{at + 1} = Neg(v{at})" for at in range(5_000)) + " y = Neg(v5000)"
    found, depth = values(text), Depth()
    assert depth.of(found["y"]) == -1
    assert depth.of(found[f"v{MAX_DEPTH - 3}"]) == MAX_DEPTH - 2
