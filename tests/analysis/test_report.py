from __future__ import annotations

import json
from collections.abc import Callable

import onnx
import pytest
from msgspec.structs import replace
from real_models import UNLIKE, params
from rich.cells import cell_len

from graphkit import __version__
from graphkit.analysis.comparison import ComparisonRow, compare
from graphkit.analysis.hazards import Check, Hazards
from graphkit.analysis.model_interface import interface
from graphkit.analysis.report import EXTRAS, SECTION_NAMES, Report, ReportOptions, Section, in_brief, report
from graphkit.analysis.verdict import COMMANDS
from graphkit.errors import UsageError
from graphkit.model import Model, load
from graphkit.render.document_blocks import ROWS
from graphkit.shapes import Shapes

RealModel = Callable[[str], Model]

OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
ARCHITECTURE = ReportOptions(only=("architecture",))


def test_a_report_has_all_sections_in_order(real_model: RealModel) -> None:
    assert tuple(report(real_model("search/loop-greedy")).sections) == SECTION_NAMES


def test_what_a_brief_report_says_in_a_fixed_line_is_not_worked_out(real_model: RealModel) -> None:
    model = real_model("search/loop-greedy")
    made, whole = (report(model, ReportOptions(brief=brief)) for brief in (True, False))
    assert [*whole.sections.keys() - made.sections.keys()] in (["origins", "what-if"], ["what-if", "origins"])
    assert in_brief(made).to_text() == in_brief(whole).to_text()


def test_chosen_sections_keep_the_order_of_the_report(real_model: RealModel) -> None:
    made = report(real_model("search/loop-greedy"), ReportOptions(only=("control-flow", "interface")))
    assert tuple(made.sections) == ("interface", "control-flow")


def test_a_section_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    section = Section("dims", lambda given: interface(given.shapes.model), needs_shapes=True)
    monkeypatch.setattr("graphkit.analysis.report.SECTIONS", (section,))
    made = report(load("example:merged-decoder"), progress=(told := []).append)
    assert (tuple(made.sections), told) == (("dims",), ["shapes", "dims"])


def test_sections_have_names_of_their_own() -> None:
    assert len(set(SECTION_NAMES)) == len(SECTION_NAMES)


def test_an_unknown_section_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        ReportOptions(only=("interface", "weather"))
    assert str(caught.value) == (
        "no section 'weather' - there are "
        "verdict, summary, architecture, interface, kv-cache, costs, shape-ops, origins, what-if, hazards, "
        f"unknown-shapes, control-flow, {', '.join(each.name for each in EXTRAS)}"
    )


def test_a_report_is_headed_by_its_model() -> None:
    assert report(load("example:merged-decoder"), ARCHITECTURE).heading() == "example:merged-decoder"


def test_a_report_as_text() -> None:
    assert report(load("example:merged-decoder"), ARCHITECTURE).to_text() == (
        """\
example:merged-decoder

Architecture

Role: merged decoder (it has an If on a boolean input, and one branch reads the
past).

Size             Value
───────────────────────
layers               1
attention heads      2
KV heads             2
head dim             8
vocabulary          64

"""
    )


def test_a_report_as_markdown() -> None:
    assert report(load("example:merged-decoder"), ARCHITECTURE).to_markdown() == (
        """\
# example:merged-decoder

## Architecture

Role: merged decoder (it has an If on a boolean input, and one branch reads the past).

| Size | Value |
|---|---:|
| layers | 1 |
| attention heads | 2 |
| KV heads | 2 |
| head dim | 8 |
| vocabulary | 64 |
"""
    )


def test_a_report_as_json() -> None:
    sizes = {
        "role": "merged decoder",
        "reason": "it has an If on a boolean input, and one branch reads the past",
        "reads_encoder": True,
        "layers": 1,
        "heads": 2,
        "kv_heads": 2,
        "head_dim": 8,
        "vocabulary": 64,
    }
    made = report(load("example:merged-decoder"), ARCHITECTURE)
    assert json.loads(made.to_json()) == {
        "graphkit": __version__,
        "schema": "report/1",
        "findings": [],
        "comparison": [],
        "fit": None,
        "commands": [],
        "failures": [],
        "models": [{"model": "example:merged-decoder", "sections": {"architecture": sizes}}],
    }


def test_findings_are_those_of_the_sections(real_model: RealModel) -> None:
    made = report(real_model("nllb-600m/decoder_model_merged"))
    sections = ("summary", "control-flow", "kv-cache", "unknown-shapes")  # the worst first
    assert made.findings() == tuple(text for name in sections for text in made.sections[name].findings())
    assert len(made.findings()) == 4


def test_a_finding_of_a_section_that_is_not_shown_does_not_count(real_model: RealModel) -> None:
    assert report(real_model("nllb-600m/decoder_model_merged"), ARCHITECTURE).findings() == ()


def test_a_finding_of_two_sections_is_told_once(real_model: RealModel) -> None:
    section = report(real_model("gemma-270m/model"), ReportOptions(only=("summary",))).sections["summary"]
    assert Report("twice", {"one": section, "other": section}).findings() == section.findings()


def test_context_reaches_the_kv_cache(real_model: RealModel) -> None:
    made = report(real_model("llama-int4/model"), ReportOptions(only=("kv-cache",), context=10))
    assert "; 10 tokens = " in " ".join(made.to_text().split())


def test_full_reaches_the_origins(real_model: RealModel) -> None:
    model = real_model("marian-tiny/decoder_model_merged")
    short, full = (report(model, ReportOptions(only=("origins",), full=full)).to_text() for full in (False, True))
    assert ("CONST, ...])" in short, "CONST, ...])" in full) == (True, False)


def test_hash_reaches_the_summary(real_model: RealModel) -> None:
    made = report(real_model("vit-qdq/model"), ReportOptions(only=("summary",), hash_weights=True))
    assert "No two large tensors have the same bytes." in made.to_text()


def test_optimize_compares_shape_operators_and_takes_origins_after(real_model: RealModel) -> None:
    text = report(real_model("search/loop-greedy"), ReportOptions(optimize=True)).to_text()
    assert "Before and after onnxoptimizer (default passes)" in text
    assert "Shape origins after onnxoptimizer" in text


def steps(make: Callable[[Callable[[str], None]], object]) -> list[str]:
    told: list[str] = []
    make(told.append)
    return told


def test_each_step_is_told_before_it_starts(real_model: RealModel) -> None:
    model = real_model("search/loop-greedy")
    told = steps(lambda tell: report(model, progress=tell))
    assert told == [*SECTION_NAMES[1:5], "shapes", *SECTION_NAMES[5:]]  # the verdict needs no step


def test_shapes_are_inferred_only_for_sections_that_need_it(real_model: RealModel) -> None:
    options = ReportOptions(only=("interface", "what-if", "hazards"))
    told = steps(lambda tell: report(real_model("search/loop-greedy"), options, progress=tell))
    assert told == ["interface", "shapes", "what-if", "hazards"]


def test_hazards_are_checked_by_what_is_given(real_model: RealModel) -> None:
    def check(model: Model, found: Hazards, shapes: Shapes) -> Hazards:
        assert shapes.model is model
        return Hazards(tuple(replace(one, check=Check(True, "so it is")) for one in found.hazards))

    made = report(real_model("bert-fill-mask/model"), ReportOptions(only=("hazards",), check=check))
    assert "confirmed: so it is" in made.to_text()


def test_the_optimizer_is_a_step(real_model: RealModel) -> None:
    options = ReportOptions(only=("shape-ops",), optimize=True)
    model = real_model("search/loop-greedy")
    assert steps(lambda tell: report(model, options, progress=tell)) == ["onnxoptimizer", "shape-ops"]


def test_the_optimizer_runs_only_for_sections_that_need_it(real_model: RealModel) -> None:
    options = ReportOptions(only=("interface",), optimize=True)
    model = real_model("search/loop-greedy")
    assert steps(lambda tell: report(model, options, progress=tell)) == ["interface"]


DETR = "detr-resnet-50/model_quantized"
QUICK = {
    "bert-fill-mask/model",
    "cache-styles/anonymous",
    "gemma-270m/model",
    "gpt2-tiny/decoder_model_merged",
    "llama-int4/model",
    "merged-decoder/decoder_with_past_model",
    "patchtst/model",
    "search/beamsearch-gpt2",
    "search/loop-greedy",
    "table-transformer/model",
    "vit-qdq/model",
}


@pytest.fixture(scope="module", params=params(sorted({*UNLIKE, *QUICK, DETR}), slow={*UNLIKE, DETR} - QUICK))
def made(request: pytest.FixtureRequest, real_model: RealModel) -> Report:
    return report(real_model(request.param))


@pytest.mark.cases("loop-greedy", "patchtst", "llama-int4")
def test_every_real_model_has_a_report_in_json(made: Report) -> None:
    (one,) = json.loads(made.to_json())["models"]
    assert list(one["sections"]) == list(SECTION_NAMES)


def test_a_verdict_takes_eight_lines_of_80_columns_at_most(made: Report) -> None:
    lines = made.sections["verdict"].to_text(80).rstrip("\n").splitlines()[2:]
    assert 1 <= len(lines) <= ROWS
    assert all(cell_len(line) <= 80 for line in lines if not line.startswith("$ "))
    assert sum(line.startswith("$ ") for line in lines) <= COMMANDS


def test_no_line_of_a_report_is_wider_than_80_columns_but_for_one_long_name_and_commands(made: Report) -> None:
    lines = [line for line in made.to_text(width=80).splitlines() if cell_len(line) > 80]
    assert [line for line in lines if " " in line.strip() and not line.startswith("$ ")] == []


EXAMPLES = ("example:merged-decoder", "example:causal-attention")


def examples() -> list[Model]:
    return [load(name) for name in EXAMPLES]


def test_a_comparison_has_a_row_for_each_model() -> None:
    assert compare(examples(), ARCHITECTURE).rows == (
        ComparisonRow("example:merged-decoder", "merged decoder", 720, 294, 196, 8, 5, 21928),
        ComparisonRow("example:causal-attention", "decoder-only", 213, 79, 64, 1, 1, 37096),
    )


def test_a_comparison_tells_the_costs_of_each_model_where_they_are_counted() -> None:
    found = compare(examples(), ReportOptions(only=("costs",)))
    costs = [made.sections["costs"] for made in found.reports]
    assert [(row.macs, row.peak_bytes) for row in found.rows] == [(each.macs, each.peak.bytes) for each in costs]  # type: ignore[attr-defined]
    (table, *_) = found.csv_tables()
    assert [column.name for column in table.columns][-2:] == ["MACs", "Peak"]


def test_a_comparison_has_the_report_of_each_model() -> None:
    found = compare(examples(), ARCHITECTURE).reports
    assert [(made.model, tuple(made.sections)) for made in found] == [(name, ("architecture",)) for name in EXAMPLES]


def test_a_comparison_as_text_starts_with_its_table() -> None:
    assert (
        compare(examples(), ARCHITECTURE)
        .to_text()
        .startswith(
            """\
Comparison

Model                     Nodes  Shape ops  On shapes  In  Out  Weights MiB
────────────────────────────────────────────────────────────────────────────
example:merged-decoder      720        294        196   8    5          0.0
  merged decoder
example:causal-attention    213         79         64   1    1          0.0
  decoder-only

"""
        )
    )


def test_a_comparison_in_json_has_the_reports_of_each_model() -> None:
    models = examples()
    made = json.loads(compare(models, ARCHITECTURE).to_json())
    assert made["models"] == [report(model, ARCHITECTURE).to_dict() for model in models]


def test_findings_of_a_comparison_name_the_model(real_model: RealModel) -> None:
    options = ReportOptions(only=("kv-cache",))
    models = [real_model("whisper-tiny/decoder_model_merged"), load(EXAMPLES[1])]
    found = compare(models, options).findings()
    assert [finding.partition(": 4 zero-length outputs")[0] for finding in found] == [models[0].label]


def test_a_report_without_sections_is_its_heading() -> None:
    assert Report("m.onnx", {}).to_markdown() == "# m.onnx\n"


@pytest.mark.cases("Slice", "Sub", "Softmax", "Reshape", "If")
@pytest.mark.parametrize("op_type", OPERATORS)
def test_a_node_without_its_inputs_breaks_no_report(op_type: str) -> None:
    node = onnx.helper.make_node(op_type, [], ["y"])
    given, result = (onnx.helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy")
    proto = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [given], [result]))
    assert op_type in str(report(Model.from_proto(proto)))
