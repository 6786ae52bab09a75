from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx.parser
import pytest
from builders import model_of

from graphkit.analysis.blockers import Blockers, blockers
from graphkit.analysis.report import ReportOptions, report
from graphkit.analysis.target_lint import CAUSES, REMEDIES
from graphkit.analysis.verdict import Verdict
from graphkit.errors import UsageError
from graphkit.graph.operator_traits import NORMALIZATIONS, SKIP_NORMALIZATIONS
from graphkit.model import Model
from graphkit.passes import PASSES
from graphkit.passes.npu.change_dtypes import FUSED
from graphkit.passes.npu.decompose_operators import ReciprocalToDiv
from graphkit.passes.npu.reduce_rank import MergeMeanAxes
from graphkit.shapes import DimSpec
from graphkit.targets import Target, load_target

PLAIN = load_target(Path(__file__).parents[1] / "targets" / "plain-npu.toml")
RealModel = Callable[[str], Model]


def own(folder: Path, text: str) -> Target:
    path = folder / "own.toml"
    head = 'name = "own"\ndescription = "Mine."\n[sources.manual]\ntitle = "Manual"\ndate = 2026-01-02\n'
    path.write_text(head + text)
    return load_target(path)


def rows(found: Blockers) -> list[tuple[str, str, str, str | None]]:
    return [(one.path, one.cause, one.what, one.pass_name) for one in found.blockers]


def open_rows(found: Blockers) -> list[tuple[str, str, str]]:
    return [(one.path, one.cause, one.what) for one in found.unknown]


STEP = model_of("""(int64[1, 4] ids, float[1, 4, 2] x) => (float[2, 2, 1, 1, 4] y, float[1, 4, 4] s)
<float[3, 2] table = {1, 2, 3, 4, 5, 6}, float floor = {-1000}, int64[5] shape = {2, 2, 1, 1, 4}> {
    [look] e = Gather (table, ids)
    [sum] h = Add (e, x)
    [turn] t = Transpose <perm = [0, 2, 1]> (x)
    [scores] a = MatMul (h, t)
    [compare] c = Greater (a, floor)
    [fill] s = Where (c, a, floor)
    [five] y = Reshape (a, shape)
}""")
STEP_TEXT = """\
Blockers for plain-npu

Warning: plain-npu does not take 3 of 7 nodes.

Stays on the CPU  Nodes  Of all  MACs  Of all
──────────────────────────────────────────────
as it is              3  42.9 %     0     0 %

What it does not take
Cause     What    Nodes  Pass that removes it
──────────────────────────────────────────────
operator  Gather      1  extract-embedding
            no lookups in data (graphkit)
operator  Where       1  masked-fill-to-add
            no selection (graphkit)
rank      rank 5      1  reduce-rank
            at most 4 (graphkit)
dtype     int64       1  extract-embedding
            no int64 data (graphkit)

operator: Gather, extract-embedding
Node  Op      Rank  Dtype
────────────────────────────
look  Gather     3  float32
  [1, 4, 2]

operator: Where, masked-fill-to-add
Node  Op     Rank  Dtype
───────────────────────────
fill  Where     3  float32
  [1, 4, 4]

rank: rank 5, reduce-rank
Node  Op       Rank  Dtype
─────────────────────────────
five  Reshape     5  float32
  [2, 2, 1, 1, 4]

dtype: int64, extract-embedding
Node  Op      Rank  Dtype
──────────────────────────
look  Gather     2  int64
  [1, 4]

"""


def test_blockers_by_cause_with_the_pass_that_removes_each() -> None:
    found = blockers(STEP, PLAIN)
    assert found.to_text() == STEP_TEXT
    assert found.macs == "32"  # 4 x 4 scores of 2
    refused = ("Gather", "Where", "rank 5", "int64")
    assert found.findings() == tuple(f"plain-npu refuses 1 node: {what}" for what in refused)


def test_blockers_as_json() -> None:
    plain = json.loads(blockers(STEP, PLAIN).to_json())
    assert plain["blockers"][0] == {
        "scope": "",
        "node": "look",
        "op": "Gather",
        "cause": "operator",
        "what": "Gather",
        "reason": "no lookups in data (graphkit)",
        "tensor": "e",
        "rank": 3,
        "dtype": "float32",
        "dims": [1, 4, 2],
        "pass_name": "extract-embedding",
    }
    assert plain["as_is"] == {"nodes": 3, "macs": "0", "part": 0.0}


def test_markdown_and_html_escape_names_of_a_model() -> None:
    hostile = model_of("(float[2] x) => (float[2] y) { y = Trilu (x) }")
    hostile.proto.graph.node[0].name = "<b>|`x`\x1b[31m"
    found = blockers(Model.from_proto(hostile.proto), PLAIN)
    assert "<b>" not in found.to_html()
    assert "\x1b" not in found.to_text() + found.to_markdown() + found.to_html()
    assert "operator: Trilu" in found.to_markdown()


def test_no_blockers() -> None:
    found = blockers(model_of("(float[1, 2] x) => (float[1, 2] y) { y = Relu (x) }"), PLAIN)
    assert found.to_text() == (
        "Blockers for plain-npu\n\n0 blockers: nothing is known that keeps plain-npu from any of 1 node.\n\n"
        "Stays on the CPU  Nodes  Of all  MACs  Of all\n──────────────────────────────────────────────\n"
        "as it is              0     0 %     0\n\n"
    )
    assert found.findings() == ()


DYNAMIC = model_of("""(float[b, n, 8] x, float[8, 4] w) => (float[A, B, C] y, int64[one] left) {
    s = Shape (x)
    i = Constant <value_ints = [0]> ()
    batch = Gather (s, i)
    m = Constant <value_ints = [-1]> ()
    t = Concat <axis = 0> (batch, m)
    flat = Reshape (x, t)
    back = Reshape (flat, s)
    same = Identity (back)
    still = Cast <to = 1> (same)
    [product] y = MatMul (still, w)
    left = Cast <to = 7> (t)
}""")


def test_shape_arithmetic_that_folding_removes_is_told_apart() -> None:
    found = blockers(DYNAMIC, PLAIN)
    assert (found.nodes, found.folded) == (3, 6)  # Shape, Gather, Concat, Identity and two Casts that change nothing
    assert rows(found) == [
        ("Reshape#5", "dynamic shape", "dims of the inputs", "freeze-dims"),
        ("Reshape#6", "dynamic shape", "dims of the inputs", "freeze-dims"),
        ("product", "dynamic shape", "dims of the inputs", "freeze-dims"),
    ]
    assert (found.as_is.nodes, found.frozen.nodes) == (3, 0)
    assert (found.as_is.macs, found.as_is.part, found.frozen.part) == ("32*b*n", 1.0, 0.0)
    text = found.to_text()
    assert "6 more nodes compute from constants and shapes alone, or nothing: folding\nremoves" in text
    assert "dims frozen, shapes folded      0     0 %                0     0 %" in text


def test_dims_that_are_given_count_as_frozen() -> None:
    found = blockers(DYNAMIC, PLAIN, DimSpec.of(dims={"b": 2, "n": 5}))
    assert rows(found) == []
    assert found.heading() == "Blockers for plain-npu at b=2, n=5"
    assert (found.macs, found.as_is) == ("320", found.frozen)
    by_input = blockers(DYNAMIC, PLAIN, DimSpec.of(inputs={"x": (2, 5, 8)}))
    assert (by_input.macs, by_input.dims) == ("320", "x=2x5x8")
    with pytest.raises(UsageError, match="no input has a dim 'c'"):
        blockers(DYNAMIC, PLAIN, DimSpec.of(dims={"c": 1}))


def test_dims_that_depend_on_data_have_no_pass() -> None:
    found = blockers(
        model_of("""(float[1, 4] x) => (float[N] y) {
            [where] n = NonZero (x)
            s = Shape (n)
            i = Constant <value_ints = [1]> ()
            k = Gather (s, i)
            [made] y = ConstantOfShape (k)
        }"""),
        PLAIN,
    )
    assert rows(found) == [
        ("where", "operator", "NonZero", None),
        ("where", "dynamic shape", "dims not known", None),
        ("where", "dtype", "int64", "cast-int64-away"),
        ("Shape#1", "dynamic shape", "dims not known", None),
        ("Shape#1", "dtype", "int64", "cast-int64-away"),
        ("Gather#3", "operator", "Gather", "gather-to-slice"),
        ("Gather#3", "dtype", "int64", "cast-int64-away"),
        ("made", "dynamic shape", "dims not known", None),
    ]
    assert found.folded == 0  # what is computed from the extent of data is data
    assert (found.as_is.nodes, found.frozen.nodes) == (4, 4)


def test_what_no_source_says_is_told_apart(tmp_path: Path) -> None:
    found = blockers(
        STEP, own(tmp_path, '[operators]\nfacts = [{ is = "allowed", names = ["Add"], source = "manual" }]')
    )
    assert rows(found) == []
    assert [row for row in open_rows(found) if row[0] in ("sum", "five")] == [
        ("sum", "dtype", "float32"),
        ("five", "operator", "Reshape"),
        ("five", "dtype", "float32"),
    ]
    assert "No source says whether own takes these: " in found.to_text()
    assert "operator Reshape (1)" in found.to_text()
    assert "; of 7 nodes it is not known." in found.to_text().replace("\n", " ")


CONDITIONS = """
[operators]
otherwise = "allowed"
source = "manual"
[[operators.facts]]
is = "allowed"
names = ["Gather"]
source = "manual"
where = { constant = ["indices"], attributes = { axis = 1 } }
[[operators.facts]]
is = "allowed"
names = ["Relu"]
source = "manual"
note = "floats"
where = { dtypes = ["float32"], max_rank = 2 }
[dtypes]
otherwise = "allowed"
source = "manual"
"""


def test_conditions_of_an_operator(tmp_path: Path) -> None:
    text = model_of(
        """(float[2, 2] x, float[1, 2, 2] z, double[2] d, int64[1] j, custom) => (float[2] y) <int64[1] i = {0}> {
        [right] a = Gather <axis = 1> (x, i)
        [axis] b = Gather (x, i)
        [computed] c = Gather <axis = 1> (x, j)
        [flat] e = Relu (x)
        [deep] f = Relu (z)
        [wide] k = Relu (d)
    }""".replace(", custom", "")
    )
    found = blockers(text, own(tmp_path, CONDITIONS))
    assert [(path, what) for path, _, what, _ in rows(found)] == [
        ("axis", "Gather"),
        ("computed", "Gather"),
        ("deep", "Relu"),
        ("wide", "Relu"),
    ]
    reasons = {one.node: one.reason for one in found.blockers}
    assert reasons["axis"] == "taken with constant indices, axis = 1 only (manual)"
    assert reasons["deep"] == "taken with dtype float32, rank at most 2 only (manual)"


WITHIN = """
[operators]
otherwise = "allowed"
source = "manual"
[[operators.facts]]
is = "allowed"
names = ["Cast"]
source = "manual"
where = { output_dtypes = ["float32"] }
[[operators.facts]]
is = "allowed"
names = ["Reshape"]
source = "manual"
where = { planes_of = 8 }
[[operators.facts]]
is = "allowed"
names = ["Slice"]
source = "manual"
where = { values = { steps = 1 } }
[dtypes]
otherwise = "allowed"
source = "manual"
"""


WINDOWS = """(float[{batch}, 8, 8, 8] x) => (float[n, 16, 8] y, float[a, b, c, d, e, f] z)
    <int64[6] grid = {{{batch}, 2, 4, 2, 4, 8}}, int64[3] rows = {{-1, 16, 8}}> {{
        [apart] r = Reshape (x, grid) [turn] t = Transpose <perm = {perm}> (r)
        [join] y = Reshape (t, rows) z = {other} }}"""
PERM, MOVED = "[0, 1, 3, 2, 4, 5]", "[1, 0, 3, 2, 4, 5]"


@pytest.mark.parametrize(
    ("batch", "perm", "other", "refused"),
    [
        (1, PERM, "Relu (x)", []),
        (2, PERM, "Relu (x)", ["apart", "turn", "join"]),
        (1, MOVED, "Relu (x)", ["apart", "turn", "join"]),
        (1, PERM, "Identity (t)", ["apart", "turn", "join"]),  # another reads it, too
        (1, PERM, "Identity (r)", ["apart", "turn", "join"]),
    ],
)
def test_hexagon_takes_windows_of_six_axes_where_one_is_1_and_stays(  # as Qualcomm's compiler answered
    batch: int, perm: str, other: str, refused: list[str]
) -> None:
    found = blockers(model_of(WINDOWS.format(batch=batch, perm=perm, other=other)), load_target("qnn-htp"))
    assert list(dict.fromkeys(row[0] for row in rows(found) if row[0] in ("apart", "turn", "join"))) == refused


def test_places_of_the_best_are_moved_in_int32() -> None:
    text = """(float[2, 5] x) => (float[a, b] v, int64[c, d, e] y) <int64[1] two = {2}> {
        v, p = TopK <axis = 1> (x, two) y = Unsqueeze (p, two) }"""
    found = rows(blockers(model_of(text), load_target("webgpu")))
    assert [row[-1] for row in found if row[2] == "Unsqueeze"] == ["cast-int64-away"]


@pytest.mark.parametrize(
    ("equation", "is_taken"),
    [("bhwc,hkc->bhwk", True), ("bhwc,wkc->bhwk", True), ("bhwc,khc->bhwk", False), ("bhwc,hwc->bhwc", False)],
)
def test_hexagon_takes_products_of_matrices_in_some_orders(equation: str, is_taken: bool) -> None:
    text = f"""(float[1, 4, 4, 8] x, float[4, 4, 8] w) => (float[a, b, c, d] y) {{
        y = Einsum <equation = "{equation}"> (x, w) }}"""
    assert [row[2] for row in rows(blockers(model_of(text), load_target("qnn-htp")))] == ["Einsum"] * (not is_taken)


@pytest.mark.parametrize(
    ("dims", "is_taken"),
    [("1, 1, 8, 16", True), ("1, 8, 1, 16", True), ("1, 8, 8, 16", False), ("2, 1, 8, 16", False),
     ("4, 1, 1, 16", False), ("1, 8, 16", True), ("2, 8, 16", False), ("8, 16", True), ("1, 1, 2, 1, 16", True)],
)  # fmt: skip
def test_ethos_u_takes_a_mean_of_rows_along_one_axis(dims: str, is_taken: bool) -> None:  # as Vela 5.2.0 answered
    text = f"""(float[{dims}] x) => (float[{dims}] y) {{
        axes = Constant <value_ints = [-1]> () mean = ReduceMean (x, axes) y = Sub (x, mean) }}"""
    for target in ("ethos-u65", "ethos-u85"):
        found = rows(blockers(model_of(text, opset=18), load_target(target)))
        assert [row[2] for row in found] == ["ReduceMean"] * (not is_taken)


@pytest.mark.parametrize(
    ("node", "is_taken"),
    [
        ("ReduceMean <axes = [1]> (x)", True),
        ("ReduceMean <axes = [3]> (x)", False),  # no left out input that has its default
        ("Slice (x, zero, far, one, two)", True),
        ("Slice (x, zero, far, last, two)", False),
        ("Slice (x, zero, far, last, one)", True),
    ],
)
def test_ethos_u_takes_what_depends_on_an_axis(node: str, is_taken: bool) -> None:  # as Vela 5.2.0 answered
    text = f"""(float[1, 8, 8, 16] x) => (float[A, B, C, D] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] last = {{3}}, int64[1] far = {{9}}>
        {{ y = {node} }}"""
    for target in ("ethos-u65", "ethos-u85"):
        found = blockers(model_of(text, opset=13), load_target(target))
        assert ([row[2] for row in rows(found)], found.unknown) == (node.split()[:1] * (not is_taken), ())


@pytest.mark.parametrize(
    ("inputs", "where", "is_taken"),
    [
        ("x, x, c", 'computed = ["data_0"]', False),
        ("x, x", 'computed = ["data_0"]', True),
        ("x, x, c", 'constant = ["data_0"]', True),
        ("x, x", 'constant = ["data_0"]', False),
        ("x, c", 'producers = { data_0 = "Abs" }', False),
    ],
)
def test_a_condition_is_about_all_inputs_of_a_name(tmp_path: Path, inputs: str, where: str, is_taken: bool) -> None:
    path = tmp_path / "target.toml"
    path.write_text(f"""name = "one"
        description = "One."
        [sources.manual]
        title = "Manual"
        date = 2026-11-30
        [[operators.facts]]
        is = "allowed"
        names = ["Max"]
        source = "manual"
        where = {{ {where} }}""")
    text = f"(float[2] x) => (float[2] y) <float[2] c = {{0, 1}}> {{ y = Max ({inputs}) }}"
    assert (not rows(blockers(model_of(text), load_target(path)))) is is_taken


def test_a_dtype_that_the_caller_may_not_get_is_free_within_the_model(tmp_path: Path) -> None:
    text = model_of("""(float[2] x) => (int64[2] given, float[2] back) {
        [given] given = Cast <to = 7> (x)
        [within] k = Cast <to = 7> (x)
        [back] back = Cast <to = 1> (k)
    }""")
    found = blockers(text, own(tmp_path, WITHIN))
    assert [(one.node, one.reason) for one in found.blockers] == [
        ("given", "taken with an output of the model in float32 only (manual)")
    ]


@pytest.mark.parametrize(
    ("before", "after", "is_taken"),
    [
        ((1, 1, 64), (1, 4, 1, 16), True),
        ((1, 1, 48), (1, 4, 1, 12), False),
        ((1, 4, 1, 12), (1, 1, 48), False),
        ((1, 2, 68, 12), (1, 8, 17, 12), True),  # the last axis stays
        ((1, 8, 6), (1, 8, 1, 6), False),
        ((1, 5, 7), (1, 35), True),  # no planes
        ((1, 60, 1, 1), (1, 60), False),
        ((1, 60), (1, 60, 1, 1), True),
        ((1, 64, 1, 1), (1, 64), True),
        ((0, 4, 1, 12), (0, 48), False),
    ],
)
def test_a_reshape_of_planes(before: Sequence[int], after: Sequence[int], is_taken: bool, tmp_path: Path) -> None:
    shape = f"<int64[{len(after)}] s = {{{', '.join(map(str, after))}}}>"
    text = model_of(
        f"(float[{', '.join(map(str, before))}] x) => (float y) {shape} {{ y = Reshape <allowzero = 1> (x, s) }}"
    )
    found = blockers(text, own(tmp_path, WITHIN))
    assert [one.what for one in found.blockers] == ([] if is_taken else ["Reshape"])


def test_an_input_that_is_left_out_has_its_default(tmp_path: Path) -> None:
    text = model_of("""(float[8] x) => (float[4] a, float[2] b)
    <int64[1] i0 = {0}, int64[1] i2 = {2}, int64[1] i4 = {4}> {
        [plain] a = Slice (x, i0, i4)
        [steps] b = Slice (x, i0, i4, i0, i2)
    }""")
    assert [one.node for one in blockers(text, own(tmp_path, WITHIN)).blockers] == ["steps"]


def test_a_condition_that_cannot_be_decided_is_unknown(tmp_path: Path) -> None:
    text = model_of("(float[2] x) => (float y) { u = custom.Odd (x) [relu] y = Relu (u) }", domains=("custom",))
    found = blockers(text, own(tmp_path, CONDITIONS))
    assert rows(found) == []
    assert open_rows(found) == [("relu", "operator", "Relu")]
    assert found.unknown[0].reason == (
        "taken with dtype float32, rank at most 2 only, which is not known here (manual)"
    )


def test_an_unknown_rank_is_unknown_where_shapes_need_not_be_static(tmp_path: Path) -> None:
    text = model_of("(float[2] x) => (float y) { u = custom.Odd (x) [relu] y = Relu (u) }", domains=("custom",))
    rank = '[max_rank]\nvalue = 4\nsource = "manual"\n'
    loose = blockers(text, own(tmp_path, rank))
    assert ("relu", "rank", "unknown rank") in open_rows(loose)
    strict = blockers(text, own(tmp_path, rank + '[static_shapes]\nvalue = true\nsource = "manual"'))
    assert ("relu", "dynamic shape", "dims not known", None) in rows(strict)


@pytest.mark.parametrize(("has_static_shapes", "causes"), [(False, ["operator"]), (True, ["dynamic shape"])])
def test_dims_that_are_no_numbers_yet_are_told_once(has_static_shapes: bool, causes: list[str], tmp_path: Path) -> None:
    facts = """[[operators.facts]]
        is = "allowed"
        names = ["Relu"]
        source = "manual"
        where = { static = true }
        """
    needs = '[static_shapes]\nvalue = true\nsource = "manual"\n' if has_static_shapes else ""
    found = blockers(model_of("(float[n] x) => (float[n] y) { [relu] y = Relu (x) }"), own(tmp_path, needs + facts))
    assert [cause for _, cause, _, _ in rows(found)] == causes


BRANCHES = model_of("""(bool go, float[2, 2] x, float[2, 2] w) => (float[2, 2] y, float[2, 2] z) {
    [choose] y = If (go) <
        then_branch = one () => (float[2, 2] a) { [inner] a = MatMul (x, w) },
        else_branch = two () => (float[2, 2] b) { [lower] b = Trilu <upper = 0> (x) }
    >
    [outer] z = MatMul (x, w)
}""")


def test_what_is_in_a_branch_stays_with_its_if() -> None:
    found = blockers(BRANCHES, PLAIN)
    assert rows(found) == [
        ("choose", "control flow", "If", "specialize-input"),
        ("choose/else_branch/lower", "operator", "Trilu", "tril-to-constant"),
    ]
    assert (found.nodes, found.as_is.nodes, found.as_is.macs, found.as_is.part) == (4, 3, "8", 0.5)


def test_a_loop_has_no_pass() -> None:
    text = model_of("""(float[2] x) => (float[2] y) {
        n = Constant <value_int = 3> ()
        yes = Constant <value = bool {1}> ()
        [again] y = Loop (n, yes, x) <body = b (int64 i, bool go, float[2] a) => (bool on, float[2] c) {
            on = Identity (go)
            c = Neg (a)
        }>
    }""")
    assert rows(blockers(text, PLAIN)) == [("again", "control flow", "Loop", None)]


def test_a_function_of_the_model_is_to_be_inlined() -> None:
    parsed = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        g (float[2] x) => (float[2] y) { [call] y = local.twice (x) }
        <domain: "local", opset_import: ["" : 18]> twice (a) => (b) { b = Trilu (a) }""")
    assert rows(blockers(Model.from_proto(parsed), PLAIN)) == [("call", "function", "local.twice", "inline-functions")]


PARTS = """(float[1, 6] x) => (float[1, 2] y) <int64 two = {2}, int64 zero = {0}> {
    parts = SplitToSequence <axis = 1> (x, two)
    p = SequenceAt (parts, zero)
    y = Relu (p)MORE
}"""


def test_a_sequence_that_folding_takes_away() -> None:
    found = blockers(model_of(PARTS.replace("MORE", "")), load_target("rk3588"))
    assert rows(found) == [("SplitToSequence#0", "operator", "SplitToSequence", "sequence-to-split")]
    joined = blockers(
        model_of(PARTS.replace("MORE", " z = ConcatFromSequence <axis = 0> (parts)")), load_target("rk3588")
    )
    assert {pass_name for _, _, _, pass_name in rows(joined)} == {None}


@pytest.mark.parametrize(
    ("text", "opset", "command"),
    [
        (PARTS.replace("MORE", ""), 18, "graphkit fold m.onnx -o m.folded.onnx"),
        (
            "(float[1, 3, 4, 4] pixel_values) => (float[1, 3, 4, 4] y) { y = Relu (pixel_values) }",
            21,
            "graphkit lower m.onnx -o m.lowered --target rk3588 --opset 19",
        ),
    ],
)
def test_the_next_command_takes_the_blockers_away(
    text: str, opset: int, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model_of(text, opset).proto, "m.onnx")
    made = report("m.onnx", ReportOptions(target="rk3588")).sections["verdict"]
    assert isinstance(made, Verdict)
    assert command in made.commands


def test_an_opset_that_is_too_new() -> None:
    text = "(float[2] x) => (float[2] y) { y = Relu (x) }"
    assert rows(blockers(model_of(text, 19), load_target("rk3588"))) == []
    found = blockers(model_of(text, 20), load_target("rk3588"))
    assert rows(found) == [("", "opset", "opset 20", "convert-opset")]
    assert "opset  opset 20      1  convert-opset" in found.to_text()
    found = blockers(model_of("(float[2] x) => (float[2] y) { y = Gelu (x) }", 20), load_target("rk3588"))
    assert ("", "opset", "opset 20", None) in rows(found)  # no older opset has a Gelu


def by_tflite(target: str, body: str) -> list[str]:
    """Return the operators of a model that a target refuses."""
    words = "<float two = {2}, float four = {4}, int64[1] i = {1}, float[8, 1] w = {1, 2, 3, 4, 5, 6, 7, 8}>"
    text = model_of(f"(float[1, 4, 8] x, float[1, 4, 8] z) => (float[1, 4, 8] y) {words} {{ {body} }}")
    return [one.op for one in blockers(text, load_target(target)).blockers]


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ("y = Div (x, z)", ["Div"]),
        ("y = Div (x, two)", []),
        ("s = Sqrt (z) y = Div (x, s)", []),
        ("s = Sqrt (z) d = Div (x, s) y = Add (d, s)", ["Sqrt"]),
        ("y = Sqrt (x)", ["Sqrt"]),
        ("y = Pow (x, two)", []),
        ("y = Pow (x, four)", ["Pow"]),
        ("y = MatMul (x, w)", []),
        ("y = Gather <axis = 1> (x, i)", ["Gather"]),
        ("y = Softmax (x)", []),
        ("y = Erf (x)", ["Erf"]),
        ("y = Neg (x)", ["Neg"]),
        ("y = Exp (x)", []),
    ],
)
def test_operators_by_what_they_become_in_tflite(body: str, refused: list[str]) -> None:
    assert by_tflite("ethos-u65", body) == refused


@pytest.mark.parametrize(("dtype", "refused"), [("int64", ["Add", "Cast", "Gather"]), ("int32", [])])
def test_vela_for_the_u85_takes_no_arithmetic_of_int64(dtype: str, refused: list[str]) -> None:
    text = f"""({dtype}[3] i, float[8, 4] t) => (float[3, 4] y, bool[3] b) {{
        j = Add (i, i)
        y = Gather (t, j)
        b = Cast <to = 9> (j)
    }}"""
    found = blockers(model_of(text), load_target("ethos-u85"))
    assert sorted(one.op for one in found.blockers) == refused


def test_a_cast_of_a_quantised_product_goes_with_it() -> None:
    text = """(int8[3, 4] x) => (float[3, 2] y) <int8[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
        whole = MatMulInteger (x, w)
        y = Cast <to = 1> (whole)
    }"""
    found = blockers(model_of(text), load_target("ethos-u85"))
    assert [(one.op, one.pass_name) for one in found.blockers] == [("Cast", "dequantize")]


def test_targets_differ() -> None:
    assert by_tflite("ethos-u85", "y = Gather <axis = 1> (x, i)") == ["Gather"]
    assert by_tflite("ethos-u85", "y = Gather (x, i)") == []
    assert by_tflite("mediatek-litert", "y = Neg (x)") == ["Neg"]
    assert by_tflite("mediatek-litert", "y = Div (x, z)") == []
    assert by_tflite("qnn-htp", "y = Erf (x)") == ["Erf"]


def test_the_reason_names_what_an_operator_becomes() -> None:
    found = blockers(STEP, load_target("ethos-u65"))
    reasons = {one.node: one.reason for one in found.blockers if one.cause == "operator"}
    assert reasons["fill"] == "becomes SELECT_V2: not in its list: scheduled on the CPU (vela)"
    assert reasons["look"] == "becomes CAST, GATHER, LESS: not in its list: scheduled on the CPU (vela)"


def test_a_custom_operator_is_unknown() -> None:
    text = model_of("(float[2] x) => (float[2] y) { y = custom.Odd (x) }", domains=("custom",))
    found = blockers(text, load_target("ethos-u65"))
    assert [(one.what, one.reason) for one in found.unknown if one.cause == "operator"] == [
        ("custom.Odd", "no source says what it becomes in TFLite")
    ]


@pytest.mark.parametrize(
    ("io", "body", "pass_name"),
    [
        ("(int64[1, 4] ids) => (float y)", "i = Cast <to = 6> (ids) y = Gather (table, i)", "extract-embedding"),
        ("(int64[1, 4] mask) => (float y)", "i = CumSum (mask, zero) y = Gather (table, i)", "extract-host-values"),
        ("(float[1, 4, 2] x) => (float y)", "y = Gather <axis = 1> (x, one)", "gather-to-slice"),
        ("(float[4, 2] x, float[3] s) => (float y)", "k = ArgMax (s) y = Gather (table, k)", "extract-embedding"),
        ("(float[4, 2] x, float[3] s) => (float y)", "k = ArgMax (s) y = Gather (x, k)", None),
        ("(float[4] x, bool[4] c) => (float y)", "y = Where (c, x, floor)", "masked-fill-to-add"),
        ("(float[4] x, float[4] z) => (float y)", "c = Less (x, z) y = Where (c, x, z)", "where-to-arithmetic"),
        ("(int64[4] m) => (float y)", "c = Equal (m, one) y = Where (c, floor, floor)", "extract-host-values"),
        ("(float[4, 4] x) => (float y)", "y = Trilu (x)", "tril-to-constant"),
        ("(float[4, 4] x) => (int64 y)", "y = NonZero (x)", None),
        (
            "(float[4] x) => (float y)",
            "n = NonZero (x) t = Transpose (n) k = Shape <end = 1> (t) u = Expand (floor, k) y = ScatterND (x, t, u)",
            "masked-scatter-to-where",
        ),
        (
            "(float[4] f, bool on) => (bool y)",
            "x = Less (f, floor) n = NonZero (x) t = Transpose (n) k = Shape <end = 1> (t) u = Expand (on, k) "
            "y = ScatterND (x, t, u)",
            None,
        ),
    ],
)
def test_which_pass_removes_an_operator(io: str, body: str, pass_name: str | None) -> None:
    words = "<float[3, 2] table = {1, 2, 3, 4, 5, 6}, int64 one = {1}, int64 zero = {0}, float floor = {-9}>"
    found = blockers(model_of(f"{io} {words} {{ {body} }}"), PLAIN)
    assert [one.pass_name for one in found.blockers if one.cause == "operator"] == [pass_name]


def test_a_root_that_a_reciprocal_reads_goes_with_it() -> None:
    text = model_of("""(float[1, 4] x) => (float[1, 4] y) {
        s = Sqrt (x)
        r = Reciprocal (s)
        y = Mul (x, r)
    }""")
    found = [one for one in blockers(text, "ethos-u65").blockers if one.cause == "operator"]
    assert {(one.op, one.pass_name) for one in found} == {
        ("Sqrt", "reciprocal-to-div"),
        ("Reciprocal", "reciprocal-to-div"),
    }
    assert blockers(ReciprocalToDiv().run(text).model, "ethos-u65").blockers == ()


def test_the_next_pass_is_named_where_the_first_has_run() -> None:
    text = model_of("(float[4] x, bool[4] c) => (float y) <float zero = {0}> { y = Where (c, x, zero) }")
    ways = (), ("masked-fill-to-add",), ("masked-fill-to-add", "where-to-arithmetic")
    found = [[one.pass_name for one in blockers(text, PLAIN, passed=passed).blockers] for passed in ways]
    assert found == [["masked-fill-to-add"], ["where-to-arithmetic"], [None]]


def test_the_passes_that_the_table_names_exist() -> None:
    assert {row.pass_name for row in REMEDIES} <= {kind.name() for kind in PASSES}


def test_every_row_of_the_table_has_a_cause_and_an_operator() -> None:
    assert {row.cause for row in REMEDIES} <= set(CAUSES)
    operators = {schema.name for schema in onnx.defs.get_all_schemas()}
    named = {row.of for row in REMEDIES if row.cause in ("operator", "control flow") and row.of}
    assert named <= operators | {f"com.microsoft.{name}" for name in FUSED} | NORMALIZATIONS | SKIP_NORMALIZATIONS


def test_dims_of_length_0_are_dims() -> None:
    found = blockers(model_of("(float[0, 2] x, float[2, 3] w) => (float[0, 3] y) { y = MatMul (x, w) }"), PLAIN)
    assert (rows(found), found.macs, found.as_is.part) == ([], "0", None)


def test_a_model_without_nodes() -> None:
    found = blockers(model_of("(float[2] x) => (float[2] x) { }"), PLAIN)
    assert found.to_text() == (
        "Blockers for plain-npu\n\n0 blockers: nothing is known that keeps plain-npu from any of 0 nodes.\n\n"
    )


def test_real_models(real_model: RealModel) -> None:
    found = blockers(real_model("opus-mt-en-fr/decoder_with_past_model"), PLAIN)
    assert found.frozen.nodes < 10 < found.folded
    assert found.uncounted == ()
    assert {one.pass_name for one in found.blockers} <= {"extract-embedding", "extract-host-values", "freeze-dims"}
    quantized = blockers(real_model("detr-resnet-50/model_quantized"), load_target("ethos-u85"))
    of_batches = {"ReduceMean"}  # taken where the batch is 1
    assert {one.op for one in quantized.unknown} == {
        "ConvInteger",
        "DynamicQuantizeLinear",
        "MatMulInteger",
    } | of_batches


@pytest.mark.parametrize("opset", [0, -3, 1 << 40, (1 << 63) - 1])
def test_an_opset_that_cannot_be(opset: int, tmp_path: Path) -> None:
    broken = model_of("(float[2, 2] x, int64[1] i) => (float[1, 2] y) { y = Gather (x, i) }")
    broken.proto.opset_import[0].version = opset
    found = blockers(Model.from_proto(broken.proto), own(tmp_path, CONDITIONS))
    assert [one.what for one in found.blockers] == ["Gather"]


def test_an_attribute_that_cannot_be_read(tmp_path: Path) -> None:
    broken = model_of("(float[2, 2] x) => (float[1, 2] y) <int64[1] i = {0}> { y = Gather <axis = 1> (x, i) }")
    attribute = broken.proto.graph.node[0].attribute[0]
    assert rows(blockers(broken, own(tmp_path, CONDITIONS))) == []
    attribute.ref_attr_name = "nothing"
    found = blockers(Model.from_proto(broken.proto), own(tmp_path, CONDITIONS))
    assert [one.what for one in found.blockers] == ["Gather"]


def test_pixels_of_whole_numbers_are_data() -> None:
    text = "(uint8[4, 2] image, bool[4, 2] c) => (float y) <float floor = {-9}> {"
    found = blockers(model_of(f"{text} f = Cast <to = 1> (image) y = Where (c, f, floor) }}"), PLAIN)
    assert [one.pass_name for one in found.blockers] == ["masked-fill-to-add"]


@pytest.mark.parametrize(("weight", "remedy"), [("constant", "dequantize"), ("input", None)])
def test_a_product_of_blocks_is_taken_back_where_its_weight_is_constant(weight: str, remedy: str | None) -> None:
    inputs, weights = "float[1, 2] x, uint8[2, 1, 8] w, float[2] s", ""
    if weight == "constant":
        blocks = ", ".join(map(str, range(16)))
        inputs, weights = "float[1, 2] x", f"<uint8[2, 1, 8] w = {{{blocks}}}, float[2] s = {{1, 2}}>"
    text = f"""<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
        g ({inputs}) => (float[1, 2] y) {weights} {{
            y = com.microsoft.MatMulNBits <K = 2, N = 2, bits = 4, block_size = 16> (x, w, s)
        }}"""
    found = blockers(Model.from_proto(onnx.parser.parse_model(text)), load_target("mediatek-litert"))
    rows = [row for row in (*found.blockers, *found.unknown) if row.what == "com.microsoft.MatMulNBits"]
    assert [row.pass_name for row in rows] == [remedy]


@pytest.mark.parametrize(
    ("fact", "remedy"),
    [
        ('is = "allowed"\nwhere = { producers = { input = "Div" } }', "divide-before-erf"),
        ('is = "refused"', "gelu-to-tanh"),
    ],
)
def test_an_erf_of_a_product_becomes_one_of_a_quotient_where_that_is_taken(
    tmp_path: Path, fact: str, remedy: str
) -> None:
    target = own(tmp_path, f'[[operators.facts]]\n{fact}\nnames = ["Erf"]\nsource = "manual"\n')
    text = "g (float[4, 8] x) => (float[4, 8] y) <float c = {0.70710678}> { a = Mul (x, c) y = Erf (a) }"
    found = blockers(model_of(text, 17), target)
    assert [(one.op, one.pass_name) for one in found.blockers] == [("Erf", remedy)]


def test_vela_takes_the_mean_of_an_images_channels_once_it_is_one_of_rows() -> None:
    text = "g (float[1, 8, 6, 16] x) => (float[1, 8, 6, 1] y) { y = ReduceMean <axes = [-1], keepdims = 1> (x) }"
    model = model_of(text, 17)
    assert [(one.op, one.pass_name) for one in blockers(model, "ethos-u65").blockers] == [
        ("ReduceMean", "merge-mean-axes")
    ]
    assert blockers(MergeMeanAxes().run(model).model, "ethos-u65").blockers == ()
