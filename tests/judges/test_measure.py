"""Targets are measured: what a compiler takes of models of one operator becomes facts in a file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from builders import model_of
from msgspec import convert
from msgspec.structs import replace

import graphkit.judges
from graphkit import blockers
from graphkit.analysis.target_lint import observe_node
from graphkit.errors import UsageError
from graphkit.judges import Answer, Judge, PlacedNode, measure
from graphkit.judges.cases import Case, distinct_cases, library_cases, model_cases, varied_cases
from graphkit.judges.measure import fit_fact, measure_target, target_text
from graphkit.model import Model
from graphkit.shapes import infer
from graphkit.targets import HOLDS, WORDS, Condition, Observation, load_target

Run = Callable[..., tuple[object, str, str]]
COMPILER = '''
"""Take all but int64 where it adds, more than four axes, Erf where no Add reads it, opset 20; crash on Sinh."""
import json, os, sys
import onnx

for line in sys.stdin:
    question = json.loads(line)
    model = onnx.load(question["path"])
    graph, opset = model.graph, model.opset_import[0].version
    values = {value.name: value.type.tensor_type for value in (*graph.input, *graph.output, *graph.value_info)}
    nodes = []
    for node in graph.node:
        if node.op_type == "Sinh":
            os.abort()
        known = [values[name] for name in (*node.input, *node.output) if name in values]
        readers = {other.op_type for other in graph.node if node.output[0] in other.input}
        taken = all(len(each.shape.dim) <= 4 for each in known)
        taken &= node.op_type != "Add" or all(each.elem_type != 7 for each in known)
        taken &= node.op_type != "Erf" or readers == {"Add"}
        taken &= opset < 20
        nodes.append({"name": node.name, "op": node.op_type, "on": "device" if taken else "cpu"})
    print(json.dumps({"number": question["number"], "nodes": nodes, "partitions": 1}), flush=True)
'''


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """A judge that is a compiler of ours; `qnn-htp` is the target that it answers for."""
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "fake.py").write_text(COMPILER)
    monkeypatch.setattr(graphkit.judges, "ADAPTERS", tmp_path / "adapters")
    judge = Judge(
        name="fake", about="A compiler.", packages=("fake==1",), licence="MIT", megabytes=1, says="", adapter="fake.py"
    )
    monkeypatch.setattr(Judge, "python", Path(__import__("sys").executable))
    monkeypatch.setattr(measure, "find_judge", lambda _: judge)
    return judge


def seeds() -> list[Case]:
    """Return cases of a few operators."""
    texts = ("y = Add (a, b)", "y = Erf (a)", "y = Sinh (a)", "y = Softmax <axis = -1> (a)")
    array = np.ones((2, 3), np.float32)
    cases = []
    for text in texts:
        proto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 18]> g (float[2, 3] a, float[2, 3] b) => (float[2, 3] y) {{ {text} }}'
        )
        cases.append(graphkit.judges.cases._make_case(proto.graph.node[0], 18, {"a": array, "b": array}))
    return cases


def test_a_case_is_varied_by_dtype_rank_opset_constants_and_symbols() -> None:
    add = seeds()[0]
    made = [observed(model) for _, model in distinct_cases(varied_cases(add))]
    assert {seen.dtypes["A"] for seen in made} >= {"float32", "float16", "int64", "int32", "float64", "bfloat16"}
    assert {seen.rank for seen in made} == {2, 3, 4, 5}
    assert {seen.since for seen in made} >= {7, 13, 14} - {7}
    assert {seen.constant for seen in made} == {(), ("A",), ("B",)}
    assert {seen.is_dynamic for seen in made} == {False, True}
    for _, model in distinct_cases(varied_cases(add)):
        onnx.checker.check_model(model, full_check=True)


SHAPED = {"X": "float32", "S": "int64"}


def observed(proto: onnx.ModelProto) -> Observation:
    model = Model.from_proto(proto)
    return observe_node(model.graph.nodes[0], infer(model))


def seen(op: str = "Op", taken: bool = True, **fields: object) -> Observation:
    known: dict[str, object] = {"dtypes": {"X": "float32"}, "constant": (), "rank": 2, "attributes": {}, "since": 13}
    return Observation(op=op, is_dynamic=False, taken=taken, **(known | fields))


@pytest.mark.parametrize(
    ("observations", "conditions"),
    [
        ([seen(), seen(dtypes={"X": "int64"}, taken=False)], ({"dtypes": ("float32",)},)),
        ([seen(rank=4), seen(rank=5, taken=False)], ({"max_rank": 4},)),
        ([seen(since=21), seen(since=25, taken=False)], ({"max_version": 21},)),
        (
            [
                seen(constant=("S",), dtypes={"X": "float32", "S": "int64"}),
                seen(dtypes={"X": "float32", "S": "int64"}, taken=False),
            ],
            ({"constant": ["S"]},),
        ),
        ([seen(attributes={"axis": 1}), seen(attributes={"axis": 0}, taken=False)], ({"attributes": {"axis": 1}},)),
        ([seen(readers="Add"), seen(taken=False)], ({"readers": "Add"},)),
        ([seen(producers={"X": "Div"}), seen(producers={"X": "Mul"}, taken=False)], ({"producers": {"X": "Div"}},)),
        (
            [seen(dtypes=SHAPED, values={"S": 1.0}), seen(dtypes=SHAPED, values={"S": 2.0}, taken=False)],
            ({"values": {"S": 1.0}},),
        ),
        (
            [seen(dims=((1, 64), (1, 2, 1, 8))), seen(dims=((1, 64), (1, 4, 1, 4)), taken=False)],
            ({"planes_of": 8},),
        ),
        ([seen(rank=6, unit_stays=True), seen(rank=6, taken=False)], ({"unit_stays": True},)),
        (
            [seen(attributes={"equation": eq}, taken=eq != "ab->a") for eq in ("ab,bc->ac", "ab,cb->ac", "ab->a")],
            ({"attributes": {"equation": ("ab,bc->ac", "ab,cb->ac")}},),
        ),
    ],
)
def test_the_condition_is_what_tells_the_taken_ones_apart(
    observations: Sequence[Observation], conditions: tuple[dict[str, object], ...]
) -> None:
    fact = fit_fact(observations)
    assert fact is not None
    assert (fact.verdict, fact.conditions, fact.wrong) == ("allowed", conditions, 0)


def test_axes_that_are_an_attribute_are_told_apart_as_those_that_are_an_input() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]> g (float[2, 3] x) => (float[n, m] y) {{
        y = ReduceMean <axes = [{axes}]> (x) }}"""
    nodes = [observed(onnx.parser.parse_model(text.format(axes=axes))) for axes in ("1", "0", "0, 1")]
    fact = fit_fact([replace(each, taken=not index) for index, each in enumerate(nodes)])
    assert fact is not None
    assert (fact.conditions, fact.wrong) == (({"values": {"axes": 1}},), 0)
    held = [convert(fact.conditions[0], Condition).holds(each) for each in nodes]  # as a report reads it
    assert held == [True, False, False]


@pytest.mark.parametrize("nodes", ["t = Transpose () y = Reshape (t, rows)", "t = Reshape (x, rows) y = Transpose ()"])
def test_a_transpose_of_nothing_is_in_no_chain(nodes: str) -> None:
    shapes = infer(model_of(f"(float[1, 8, 8] x) => (float[a, b] y) <int64[2] rows = {{8, 8}}> {{ {nodes} }}"))
    assert not any(observe_node(node, shapes).unit_stays for node in shapes.model.graph.nodes)


def test_equations_of_other_letters_are_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 3, 4] x, float[2, 5, 4] w)
    => (float[a, b, c, d] y) {{ y = Einsum <equation = "{equation}"> (x, w) }}"""
    seen = [
        observed(onnx.parser.parse_model(text.format(equation=each)))
        for each in ("bhwc, hkc -> bhwk", "ABCD,BED->ABCE")
    ]
    assert [each.attributes["equation"] for each in seen] == ["abcd,bed->abce"] * 2


def test_each_condition_of_a_target_file_has_its_words_and_its_meaning() -> None:
    assert set(WORDS) == set(HOLDS) == set(Condition.__struct_fields__)


def test_a_condition_is_written_as_narrow_as_it_was_fitted() -> None:
    taken = [seen(dtypes={"X": "bool"})] * 10 + [seen(dtypes={"X": "float16"})]
    refused = [seen(dtypes={"X": dtype}, taken=False) for dtype in ("int64", "float16") for _ in range(5)]
    fact = fit_fact([*taken, *refused])
    assert fact is not None
    assert (fact.conditions, fact.wrong) == (({"dtypes": ("bool",)},), 1)


def test_what_no_condition_tells_apart_is_unknown_unless_nearly_all_are_refused() -> None:
    for refused, verdict in ((2, "unknown"), (6, "refused")):
        fact = fit_fact([seen(), *[seen(taken=False)] * refused])
        assert fact is not None
        assert fact.verdict == verdict
    assert fit_fact([seen(taken=None)]) is None  # type: ignore[arg-type]


def test_a_condition_may_lose_what_another_one_takes_up() -> None:
    planes, lines = ((1, 64), (1, 2, 4, 8)), ((1, 32), (1, 8, 1, 4))
    observations = [seen(dims=planes)] * 9 + [seen(dims=lines, readers="Mul")] * 9 + [seen(dims=lines, taken=False)] * 6
    fact = fit_fact(observations)
    assert fact is not None
    assert (fact.conditions, fact.wrong) == (({"readers": "Mul"}, {"planes_of": 8}), 0)


def test_what_folding_makes_constant_is_so_in_a_case_and_what_it_removes_is_none() -> None:
    model = model_of(
        """(float[2, 3] x) => (float[3, 2] y) <float[3] w = {1, 2, 3}> {
            same = Identity (w) sum = Add (x, same)
            size = Shape (x) axis = Constant <value_ints = [1, 0]> () dims = Gather (size, axis)
            y = Reshape (sum, dims) }"""
    )
    shapes = infer(model)
    nodes, cases = zip(*model_cases(shapes), strict=True)
    constant = {node.op_type: observe_node(node, shapes).constant for node in nodes}
    assert constant == {"Add": ("B",), "Reshape": ("shape",)}
    shape = cases[1].operands[1]
    assert shape is not None
    assert shape.elements().tolist() == [3, 2]


def test_outputs_that_a_test_of_the_library_leaves_out_are_there_as_in_exports() -> None:
    assert {len([*filter(None, case.node.output)]) for case in library_cases() if case.node.op_type == "LSTM"} >= {2}
    assert all(all(case.node.output) for case in library_cases() if case.node.op_type in ("GRU", "LSTM"))


@pytest.mark.slow
@pytest.mark.usefixtures("judge")
def test_a_measured_target_predicts_its_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(measure, "library_cases", seeds)
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[2, 3] x, int64[2] i) => (float[2, 3] z, int64[2] k) {
        [erf] a = Erf (x)
        [one] z = Add (a, x)
        [two] k = Add (i, i)
    }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)), path)
    file = tmp_path / "measured.toml"
    code, _, err = run("targets", "measure", "qnn-htp", path, "--facts", file)
    assert (code, err) == (0, "")
    target = load_target(file)
    verdicts = {op: fact.verdict for op in ("Add", "Erf", "Sinh", "Softmax") if (fact := target.operators[op])}
    assert verdicts == {"Add": "allowed", "Erf": "allowed", "Sinh": "refused", "Softmax": "allowed"}  # a crash counts
    assert target.operators["Relu"] is None
    assert target.max_rank is not None
    assert target.max_rank.value == 4
    assert not target.needs_static_shapes
    assert target.max_opset is not None
    assert target.max_opset.value == 19
    found = blockers(path, file)
    assert {obstacle.node for obstacle in found.blockers} == {"two"}
    assert not found.unknown


@pytest.mark.parametrize(
    ("error", "taken"),
    [({"error": "no such kernel"}, False), ({"error": "it does not end", "is_answered": False}, None), ({}, None)],
)
def test_an_error_that_is_not_about_the_model_is_no_answer(error: dict[str, Any], taken: bool | None) -> None:
    assert measure.is_taken(Answer(**error)) is taken


def test_a_model_that_no_runtime_runs_says_nothing_of_a_device(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[{dims}] x, int64[1] s) => (float[n] y) {{ {node} }}'
    nodes = [("2", "y = Relu (x)"), ("2, 3", "y = Reshape (x, s)"), ("2, 3", "y = Reshape (x, s)")]
    cases = []
    for (dims, node), size in zip(nodes, (0, 6, 5), strict=True):
        proto = onnx.parser.parse_model(text.format(dims=dims, node=node))
        arrays = {"x": np.ones([int(dim) for dim in dims.split(",")], np.float32), "s": np.array([size])}
        cases.append(graphkit.judges.cases._make_case(proto.graph.node[0], 18, arrays))
    for refused in ({"error": "refused"}, {"nodes": (PlacedNode("case", "Reshape", "cpu"),)}):
        said: list[dict[str, Any]] = [{"nodes": (PlacedNode("case", "Relu", "device"),)}, refused, refused]
        monkeypatch.setattr(measure, "ask_judge", lambda *_, said=said, **__: (Answer(**each) for each in said))
        assert [each.taken for each in measure.observe_cases(judge, cases)] == [True, False, None]


def test_models_are_folded_before_a_judge_is_asked_about_their_nodes(judge: Judge) -> None:
    model = model_of(
        """(float[2, 3] x) => (float[3, 2] y) {
            size = Shape (x) axis = Constant <value_ints = [1, 0]> () dims = Gather (size, axis)
            y = Reshape (x, dims) }"""
    )
    found = {each.op: each.constant for each in measure.observe_models(judge, [model])}
    assert found == {"Reshape": ("shape",)}


def test_a_computed_shape_is_refused_by_a_compiler_of_fixed_shapes_that_needs_it_constant(judge: Judge) -> None:
    fixed = seen("Reshape", dtypes=SHAPED, constant=("S",), dims=((2, 3), (6,)))
    computed = replace(fixed, constant=(), dims=((2, 3), (None,)), is_dynamic=True, taken=False)
    symbols = [replace(fixed, dims=((None, 3), (None,)), is_dynamic=True, taken=False)] * 9
    text = target_text("qnn-htp", judge, [fixed, computed, *symbols])
    assert "[static_shapes]\nvalue = true" in text
    assert 'where = { constant = ["S"] }' in text or "where = { static = true }" in text


@pytest.mark.usefixtures("judge")
def test_a_judge_without_a_device_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(measure, "library_cases", seeds)
    (tmp_path / "adapters" / "fake.py").write_text("raise SystemExit('no device')")
    code, _, err = run("targets", "measure", "qnn-htp", "--facts", tmp_path / "out.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("Error: the judge 'fake' takes not even Add: ")
    assert "no device" in err
    assert not (tmp_path / "out.toml").exists()


@pytest.mark.usefixtures("judge")
def test_the_weights_of_a_measured_model_are_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(measure, "library_cases", lambda: seeds()[:1])
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Add (x, w) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    weights = tmp_path / "model.onnx.data"
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location=weights.name, size_threshold=0)
    before = weights.read_bytes()
    code, _, err = run("targets", "measure", "qnn-htp", tmp_path / "model.onnx", "--facts", weights)
    assert code == 2, err
    assert "is an input, which is never overwritten" in err
    assert weights.read_bytes() == before


@pytest.mark.parametrize("name", ["", "[same]"])
def test_nodes_without_a_name_of_their_own_get_their_own_answers(judge: Judge, tmp_path: Path, name: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (float[2] x, int64[2] i) => (float[2] y, int64[2] k) {{
        {name} y = Relu (x)
        {name} k = Add (i, i)
    }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    observations = measure.observe_models(judge, [graphkit.load(tmp_path / "model.onnx")])
    assert {each.op: each.taken for each in observations} == {"Relu": True, "Add": False}


def test_a_node_in_its_place_is_seen_with_its_neighbours(judge: Judge, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) <float two = {2}> {
        a = Div (x, two)
        b = Erf (a)
        y = Add (b, x)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    found = {each.op: each for each in measure.observe_models(judge, [graphkit.load(tmp_path / "model.onnx")])}
    assert (found["Erf"].producers, found["Erf"].readers) == ({"input": "Div"}, "Add")
    assert found["Div"].values == {"B": 2.0}
    assert found["Add"].dims == ((2,), (2,))


def test_equal_nodes_in_equal_places_count_as_often_as_they_occur(judge: Judge, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {
        a = Relu (x)
        b = Relu (a)
        c = Relu (b)
        y = Erf (c)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    found = list(measure.observe_models(judge, [graphkit.load(tmp_path / "model.onnx")] * 2))
    assert [(each.op, each.readers, each.count) for each in found] == [
        ("Relu", "Relu", 2),
        ("Relu", "Relu", 2),
        ("Relu", "Erf", 2),
        ("Erf", "", 2),
    ]
    fact = fit_fact([seen(readers="Add", count=9), *[seen(taken=False)] * 3])
    assert fact is not None
    assert (fact.taken, fact.refused, fact.conditions) == (9, 3, ({"readers": "Add"},))


def test_a_node_in_its_place_says_more_than_an_equal_one_alone() -> None:
    placed = [seen(readers="Add")]
    alone = [seen(taken=False), seen(rank=3, taken=False), seen(values={"S": 2}, taken=False)]
    assert measure.strongest(alone, placed) == [placed[0], *alone[1:]]


def test_steps_of_one_are_varied() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[8] x, int64[1] from, int64[1] to, int64[1] axes, int64[1] steps) => (float[n] y) {
            y = Slice (x, from, to, axes, steps)
        }"""
    )
    numbers = [np.array([number], np.int64) for number in (0, 8, 0, 1)]
    arrays = dict(zip(("from", "to", "axes", "steps"), numbers, strict=True)) | {"x": np.ones(8, np.float32)}
    case = graphkit.judges.cases._make_case(proto.graph.node[0], 18, arrays)
    found = [observed(model).values.get("steps") for _, model in distinct_cases(varied_cases(case, is_first=False))]
    assert {1, 2} <= set(found)


def test_names_of_any_kind_are_written_as_toml(judge: Judge, tmp_path: Path) -> None:
    pairs = itertools.product(("Abs", "Relu", "com.acme.Thing"), (2, 4))
    observations = [
        seen(op, taken=rank < 4 or op == "Abs", rank=rank, dtypes={"X": "bool"}, attributes={'a "b"': rank})
        for op, rank in pairs
    ]
    file = tmp_path / "measured.toml"
    file.write_text(target_text("qnn-htp", judge, observations))
    target = load_target(file)
    assert [(fact.names, fact.conditions) for fact in target.operators.facts] == [
        (("com.acme.Thing", "Relu"), "rank at most 2"),
        (("Abs",), ""),
    ]


def test_nobody_is_asked_about_a_target_without_a_judge() -> None:
    with pytest.raises(UsageError, match="no judge answers for 'mt8371' - there are judges for qnn-htp"):
        measure_target("mt8371")


@pytest.mark.slow
def test_the_library_has_cases_of_nearly_every_operator() -> None:
    cases = list(library_cases())
    assert len({case.node.op_type for case in cases}) > 150
    assert sum(case.model() is not None for case in cases) > 0.9 * len(cases)
