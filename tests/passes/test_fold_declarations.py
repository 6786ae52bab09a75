"""Only the declarations of graph inputs are believed: those of all other values change nothing in what folding does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from real_models import params
from rewriting import SIZES, check, feeds_of, lines, model_of

from graphkit.analysis.shape_origins import what_if
from graphkit.graph.view import Scope, body_graphs
from graphkit.model import Model, load
from graphkit.passes.fold_pipeline import fold
from graphkit.shapes import infer
from graphkit.shapes.constraints.node_constraints import collect_preconditions
from graphkit.shapes.shape_program import program

SAMPLE = "com.microsoft.SampleOp"  # gives its input back; no rule of ours knows it

STALE = {
    "an operator without a rule": f"""g (float[N, L] x) => (int64[2] s) <float[7, 9] y> {{
        y = {SAMPLE}(x)
        s = Shape(y)
    }}""",
    "an operator with a rule": """g (float[N, 3] x, float[L, 3] z) => (int64[2] s) <float[7, 9] y> {
        y = com.microsoft.CDist<metric = "euclidean">(x, z)
        s = Shape(y)
    }""",
    "a dim that is added": """g (float[N, L] x) => (int64[3] s) <float[7, 9, 1] y> {
        a = Constant<value = int32 {1}>()
        y = com.microsoft.ExpandDims(x, a)
        s = Shape(y)
    }""",
    "what is behind it": f"""g (float[N, L] x) => (float[N, L] t) <float[7, 9] y> {{
        y = {SAMPLE}(x)
        s = Shape(y)
        z = Neg(y)
        t = Reshape(z, s)
    }}""",
    "a rank": """g (float[N, L] x, int64[k] to) => (float[?] y) { y = Reshape(x, to) }""",
    "a rank of a value": """g (float[N, L] x, int64[k] to) => (int64[1] s) <float[7] y> {
        y = Reshape(x, to)
        t = Shape(y)
        s = Shape(t)
    }""",
    "reduced axes": """g (float[N, L] x, int64[k] axes) => (int64[1] s) <float[5] y> {
        y = ReduceSum<keepdims = 0>(x, axes)
        s = Shape(y)
    }""",
    "a dtype": f"""g (float[N, L] x) => (float[N, L] z) <float16[N, L] y> {{
        y = {SAMPLE}(x)
        z = Cast<to = 10>(y)
    }}""",
    "a value of a branch": f"""g (float[N, L] x, bool c) => (int64[2] s) {{
        s = If (c) <
            then_branch = t () => (int64[2] p) <float[7, 9] r> {{ r = {SAMPLE}(x) p = Shape(r) }},
            else_branch = e () => (int64[2] q) <float[7, 9] r> {{ r = {SAMPLE}(x) v = Shape(r) q = Neg(v) }}
        >
    }}""",
    "the state of a loop": f"""g (float[N, L] x) => (int64[2] s) {{
        n = Constant<value_int = 2>()
        t = Constant<value = bool {{1}}>()
        y = Loop (n, t, x) <body = b (int64 i, bool c, float[7, 9] a) => (bool d, float[N, L] o) {{
            d = Identity(c)
            o = {SAMPLE}(a)
        }}>
        s = Shape(y)
    }}""",
    "a value of a function": f"""g (float[N, L] x) => (int64[2] s) <float[7, 9] y> {{
        y = local.f(x)
        s = Shape(y)
    }}
    <domain: "local", opset_import: ["" : 17, "com.microsoft" : 1]>
    f (a) => (b) <float[7, 9] c> {{ c = {SAMPLE}(a) b = Neg(c) }}""",
}
GIVEN: dict[str, dict[str, np.ndarray]] = {
    "a rank": {"to": np.array([-1, 1])},
    "a rank of a value": {"to": np.array([-1, 1])},
    "reduced axes": {"axes": np.array([1])},
}


@pytest.mark.parametrize("name", STALE)
def test_a_stale_declaration_is_not_believed(name: str) -> None:
    model = model_of(STALE[name])
    if name == "a dtype":  # a model that no runtime loads, which says that the Cast may go
        outcome = fold(model)
        assert any("Cast" in line for line in lines(outcome.model))
        return
    feeds = [feeds_of(model, {**sizes, "k": 1}, seed) | GIVEN.get(name, {}) for seed, sizes in enumerate(SIZES)]
    check(fold, model, feeds=feeds)


def test_nothing_else_relies_on_them() -> None:
    model = model_of(STALE["what is behind it"])
    shapes = infer(model)
    assert shapes["y"].dims is None
    assert shapes["y"].dtype == 0
    assert shapes.reason("y").endswith("there is no rule for com.microsoft.SampleOp (declared as float32 [7, 9])")
    assert all("7" not in str(precondition) for precondition in collect_preconditions(shapes))
    assert "7" not in program(model).to_json()
    bare = model_of(STALE["what is behind it"])
    del bare.proto.graph.value_info[:]
    bare = Model.from_proto(bare.proto)
    assert what_if(model).to_json() == what_if(bare).to_json()


def test_a_squeeze_of_an_empty_list_stays() -> None:
    model = model_of(
        """g (float[N, 1, L] x) => (int64[k] s) <float[N, 1, L] y> {
            axes = Constant<value = int64[0] {}>()
            y = Squeeze(x, axes)
            s = Shape(y)
        }"""
    )
    assert any("Squeeze" in line for line in lines(check(fold, model).model))


def test_the_declared_dims_of_an_input_are_the_contract() -> None:
    model = model_of("g (float[3, 4] x) => (int64[2] s) { s = Shape(x) }")
    assert lines(check(fold, model).model) == ["s = Identity (s_value)"]


# Wrong declarations of every value of real exports

SMALL = (
    "bert-fill-mask/model",
    "gpt2-tiny/decoder_model_merged",
    "llama-int4/model",
    "patchtst/model",
    "search/loop-greedy",
)


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for _, body in body_graphs(node):
            yield from graphs(body)


def without_declarations(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose values have no declared types but those of the main graph's inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in graphs(copy.graph):
        del graph.value_info[:]
        for info in (*(graph.input if graph is not copy.graph else ()), *graph.output):
            info.ClearField("type")
    for function in copy.functions:
        del function.value_info[:]
    return copy


def with_lies(model: Model, seed: int) -> onnx.ModelProto:
    """Return a copy in which each value has a declared type that is drawn at random, outputs too."""
    rng = np.random.default_rng(seed)
    proto = without_declarations(model.proto)
    scopes = model.graph.walk()
    for graph, scope in zip(graphs(proto.graph), scopes, strict=True):
        own = {info.name for info in (*graph.input, *graph.output)}
        for info in (*(graph.input if graph is not proto.graph else ()), *graph.output):
            info.CopyFrom(_lie(info.name, rng))
        graph.value_info.extend(_lie(name, rng) for name in _inner(scope) if name not in own)
    for function, scope in zip(proto.functions, model.scopes[1:], strict=True):
        function.value_info.extend(_lie(name, rng) for name in _inner(scope))
    return proto


def _inner(scope: Scope) -> list[str]:
    return [name for name, value in scope.values.items() if value.kind in ("node", "initializer")]


def _lie(name: str, rng: np.random.Generator) -> onnx.ValueInfoProto:
    dtype = rng.choice([TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16])
    dims = [rng.choice([0, 1, 2, 7, 64, "batch_size", "sequence_length", "N", None]) for _ in range(rng.integers(0, 5))]
    return helper.make_tensor_value_info(
        name, int(dtype), [int(d) if isinstance(d, (int, np.integer)) else d for d in dims]
    )


@pytest.mark.cases("search/loop-greedy", "llama-int4/model")
@pytest.mark.parametrize("name", params(SMALL, ["gpt2-tiny/decoder_model_merged"]))
def test_lies_about_every_value_change_no_fold(name: str, model_file: Callable[[str], Path]) -> None:
    model = load(model_file(name))
    honest, misled = (fold(model.with_proto(proto)) for proto in (model.proto, with_lies(model, 0)))
    assert misled.changes == honest.changes
    assert misled.declined == honest.declined
    assert without_declarations(misled.model.proto) == without_declarations(honest.model.proto)


@pytest.mark.parametrize("name", [name for name in STALE if name != "a dtype"])
def test_lies_about_every_value_change_no_small_fold(name: str) -> None:
    model = model_of(STALE[name])
    for seed in range(5):
        honest, misled = (fold(Model.from_proto(p)) for p in (model.proto, with_lies(model, seed)))
        assert misled.declined == honest.declined
        assert without_declarations(misled.model.proto) == without_declarations(honest.model.proto)
