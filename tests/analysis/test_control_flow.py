from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.parser
import pytest

from graphkit.analysis.architecture import Branch, ControlFlow, ControlNode, Merged, control_flow
from graphkit.model import Model

RealModel = Callable[[str], Model]

THEN = "then_branch = t () => (float[N] a) { a = Mul(x, w) }"
ELSE = "else_branch = e () => (float[N] b) { c = Neg(x)  b = Add(c, x) }"


def described(graph: str) -> ControlFlow:
    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
    return control_flow(Model.from_proto(onnx.parser.parse_model(f"{header} {graph}")))


def branching(before: str, condition: str) -> ControlFlow:
    return described(
        f"""g (bool c, float[N] x) => (float[N] y) <float[1] w = {{2}}> {{
            {before}  y = If ({condition}) <{THEN}, {ELSE}>
        }}"""
    )


def test_a_model_without_bodies_has_no_control_flow() -> None:
    assert described("g (float[N] x) => (float[N] y) { y = Relu(x) }") == ControlFlow((), ())


def test_no_control_flow_as_text() -> None:
    text = described("g (float[N] x) => (float[N] y) { y = Relu(x) }").to_text()
    assert text == "Control flow\n\nNone: no node of this model has a body.\n\n"


def test_an_if_is_described_with_its_branches() -> None:
    assert branching("", "c").nodes == (
        ControlNode(
            "If#0",
            "If",
            0,
            "on input c",
            (Branch("then_branch", 1, ("x",), 1, 0, 0), Branch("else_branch", 2, ("x",), 0, 0, 0)),
            "",
        ),
    )


@pytest.mark.parametrize(
    ("before", "condition", "words"),
    [
        ("", "c", "on input c"),
        ("n = Not(c)", "n", "on not input c"),
        ("s = ReduceSum(x)  p = Greater(s, w)", "p", "on Greater (p)"),
        ("p = com.microsoft.Odd(x)", "p", "on com.microsoft.Odd (p)"),
        ("", "w", "on w"),
        ("", '""', "without a condition"),
    ],
)
def test_the_condition_in_words(before: str, condition: str, words: str) -> None:
    assert branching(before, condition).nodes[0].condition == words


def test_an_if_as_text() -> None:
    assert branching("", "c").to_text() == (
        """\
Control flow

Node  Branch       Nodes  Captures  Past  Constants
────────────────────────────────────────────────────
If#0  then_branch      1         1     0          1
  If, on input c
      else_branch      2         1     0          0

"""
    )


def test_bodies_in_bodies_are_counted_and_listed() -> None:
    inner = f"[inner] a = If (c) <{THEN}, {ELSE}>"
    found = described(
        f"""g (bool c, float[N] x) => (float[N] y) <float[1] w = {{2}}> {{
            [outer] y = If (c) <then_branch = t () => (float[N] a) {{ {inner} }}, {ELSE}>
        }}"""
    )
    assert [(node.path, node.depth, node.branches[0].nodes) for node in found.nodes] == [
        ("outer", 0, 4),
        ("outer/then_branch/inner", 1, 1),
    ]


def test_a_loop_has_no_condition_in_words(real_model: RealModel) -> None:
    (node,) = control_flow(real_model("search/loop-greedy")).nodes
    assert (node.path, node.op, node.condition, node.role) == ("/Loop", "Loop", "", "")
    assert node.branches == (Branch("body", 10, (), 6, 0, 0),)


def test_a_search_is_recognised(real_model: RealModel) -> None:
    (node,) = control_flow(real_model("search/beamsearch-gpt2")).nodes
    assert (node.op, node.role, [branch.name for branch in node.branches]) == (
        "com.microsoft.BeamSearch",
        "search with a decoder inside",
        ["decoder"],
    )


def test_a_search_is_not_a_merged_decoder(real_model: RealModel) -> None:
    assert control_flow(real_model("search/beamsearch-gpt2")).merged == ()


@pytest.mark.parametrize(
    ("model", "first", "cache"),
    [
        # branch, nodes, captures, constants, past inputs, outputs without elements
        ("nllb-600m/decoder_model_merged", (2642, 2, 126, 0, 0), (2225, 49, 102, 48, 24)),
        ("opus-mt-en-fr/decoder_model_merged", (1343, 2, 67, 0, 0), (1111, 25, 55, 24, 12)),
        ("marian-tiny/decoder_model_merged", (1191, 3, 67, 0, 0), (1070, 26, 55, 24, 12)),
        ("nllb-tiny/decoder_model_merged_quantized", (3080, 4, 372, 0, 0), (2591, 49, 300, 48, 24)),
        ("whisper-tiny/decoder_model_merged", (366, 2, 52, 0, 0), (341, 9, 46, 8, 4)),
        ("gpt2-tiny/decoder_model_merged", (530, 3, 29, 0, 0), (539, 7, 29, 4, 0)),
    ],
)
def test_the_branches_of_a_merged_decoder(
    model: str, first: tuple[int, ...], cache: tuple[int, ...], real_model: RealModel
) -> None:
    (node,) = control_flow(real_model(model)).nodes
    assert (node.role, node.condition) == ("merged decoder", "on input use_cache_branch")
    assert [
        (b.name, b.nodes, len(b.captures), b.captured_constants, b.past_captures, b.zero_length) for b in node.branches
    ] == [("else_branch", *first), ("then_branch", *cache)]


def test_a_merged_decoder_is_explained(real_model: RealModel) -> None:
    assert control_flow(real_model("whisper-tiny/decoder_model_merged")).merged == (
        Merged(
            "optimum::if",
            "use_cache_branch",
            "else_branch",
            "then_branch",
            True,
            (
                "present.0.encoder.key",
                "present.0.encoder.value",
                "present.1.encoder.key",
                "present.1.encoder.value",
            ),
        ),
    )


MERGED = """
g (bool first, float[B,2,P,4] past_key_0, float[B,2,T,4] fresh) => (float[B,2,T,4] present_key_0) {
    BEFORE
    present_key_0 = If (CONDITION) <
        then_branch = t () => (float[B,2,T,4] a) { a = Relu(fresh) },
        else_branch = e () => (float[B,2,T,4] b) { b = Concat <axis = 2> (past_key_0, fresh) }
    >
}
"""


@pytest.mark.parametrize(
    ("before", "condition", "cache_when"), [("", "first", False), ("later = Not(first)", "later", True)]
)
def test_the_value_that_runs_the_cache_branch_counts_negations(before: str, condition: str, cache_when: bool) -> None:
    (merged,) = described(MERGED.replace("BEFORE", before).replace("CONDITION", condition)).merged
    assert (merged.cache_branch, merged.cache_when) == ("else_branch", cache_when)


def test_a_merged_decoder_without_empty_outputs_as_text() -> None:
    assert described(MERGED.replace("BEFORE", "").replace("CONDITION", "first")).to_text() == (
        """\
Control flow

Node  Branch       Nodes  Captures  Past  Constants
────────────────────────────────────────────────────
If#0  then_branch      1         1     0          0
  If, merged decoder, on input first
      else_branch      1         2     1          0

Merged decoder: 'If#0' runs the first step in then_branch (first = true) and
later steps, with the cache, in else_branch (first = false).

Running a merged decoder can cost speed, because an If hides its branches from
the runtime's optimizers, and some runtimes refuse it: `graphkit split-merged`
makes two plain models of it.

"""
    )


def test_a_merged_decoder_with_empty_outputs_warns_of_them(real_model: RealModel) -> None:
    text = control_flow(real_model("whisper-tiny/decoder_model_merged")).to_text()
    assert (
        "\nWarning: then_branch gives present.{0-1}.encoder.{key|value} as zero-length\n"
        "constants: carry the encoder KV from step 1; do not feed these back.\n"
    ) in text
