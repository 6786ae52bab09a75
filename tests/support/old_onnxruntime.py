"""Tests that need a newer onnxruntime than 1.23, the last one for Python 3.10 and the oldest that is allowed."""

from __future__ import annotations

NEEDED = (1, 32)  # the release that they were written with

ATTENTION_TESTS = "tests/passes/attention/test_decompose_attention.py"
ATTENTION = "its Attention wants both caches as outputs or none, has other bounds, or gives other numbers"
EXPAND_DIMS = "it crashes on ExpandDims"
FLOAT16 = "its optimizer breaks a model in float16, which it then refuses"
IR_12 = "it loads no model of IR version 12"
NO_KERNEL = "it has no such operator, or no kernel of it for these dtypes"
NO_RECORD = "it keeps no record of where nodes run, and takes no plug-ins"
NO_ROWS = "it fails on a tensor of no rows, or gives other numbers"
SIGN = "its Sign, Max or Min of integers is wrong for extreme values"

# the beginnings of the names of tests, with what an old onnxruntime does
REASONS = {
    "tests/analysis/test_node_placement.py::test_no_node_is_refused_by_the_cpu": NO_RECORD,
    "tests/analysis/test_node_placement.py::test_nodes_of_functions_are": NO_RECORD,
    "tests/analysis/test_node_placement.py::test_the_section_is_for_a_device_alone": NO_RECORD,
    "tests/deploy/test_device_folders.py::": NO_RECORD,
    "tests/runtime/test_placement.py::": NO_RECORD,
    "tests/test_doc_blocks.py::test_quick_blocks_of_a_page_run_and_print_what_is_shown[docs/tasks/prov": NO_RECORD,
    "tests/verify/test_device_proofs.py::": NO_RECORD,
    "tests/deploy/test_lower_spellings.py::test_attention_that_is_one_node_is_computed_by_others": ATTENTION,
    "tests/deploy/test_lower_spellings.py::test_a_mask_with_a_floor_leaves_no_query_without_keys": ATTENTION,
    "tests/graph/test_operator_traits.py::test_each_operator_of_the_table_exists[UNARY]": NO_KERNEL,
    "tests/graph/test_operator_traits.py::test_each_operator_that_quantizes_has_a_style": NO_KERNEL,
    "tests/graph/test_operator_traits_run.py::": "it aborts on some of the operators",
    f"{ATTENTION_TESTS}::test_plain_operators_give_the_same[a cache]": ATTENTION,
    f"{ATTENTION_TESTS}::test_plain_operators_give_the_same[grouped, in a window]": ATTENTION,
    f"{ATTENTION_TESTS}::test_plain_operators_give_the_same[heads side by side, ": ATTENTION,
    f"{ATTENTION_TESTS}::test_plain_operators_give_the_same[keys as an output]": ATTENTION,
    f"{ATTENTION_TESTS}::test_rows_are_looked_at_where_a_mask_may_hide_all": ATTENTION,
    f"{ATTENTION_TESTS}::test_the_proof_tries_rows_without_keys": ATTENTION,
    "tests/passes/npu/test_decompose_operators.py::test_normalizations_are_spelled_out[opset 18]": NO_KERNEL,
    "tests/passes/npu/test_decompose_operators.py::test_normalizations_are_spelled_out[two axes]": NO_KERNEL,
    "tests/passes/npu/test_dequantize.py::test_blocks_are_products_of_floats[2 bits]": NO_KERNEL,
    "tests/passes/opset/test_convert_opset.py::test_real_models_give_the_same_to_the_last_bit": IR_12,
    "tests/passes/test_fold_in_bodies.py::test_folding_keeps_the_results[a dim that is added-": EXPAND_DIMS,
    "tests/shapes/test_contrib.py::test_a_rule_gives_what_onnxruntime_gives[expand dims]": EXPAND_DIMS,
    "tests/shapes/test_contrib.py::test_a_rule_gives_what_onnxruntime_gives[gated addition]": NO_KERNEL,
    "tests/shapes/test_contrib.py::test_a_rule_gives_what_onnxruntime_gives[grouped attention over a": NO_KERNEL,
    "tests/shapes/test_contrib.py::test_a_rule_gives_what_onnxruntime_gives[linear attention]": NO_KERNEL,
    "tests/equivalence/test_axioms.py::test_an_axiom_proves_what_runs_the_same[product: b = Shape": NO_ROWS,
    "tests/equivalence/test_axioms.py::test_an_axiom_proves_what_runs_the_same[row sums: ": NO_ROWS,
    "tests/verify/test_float16_bundles.py::": FLOAT16,
    "tests/verify/test_float16_rounding.py::": FLOAT16,
    "tests/verify/test_right_rewrites.py::test_a_right_rewrite_passes[a sign in steps]": SIGN,
    "tests/verify/test_wrong_rewrites.py::test_a_wrong_rewrite_is_caught[int8: cut at 100]": NO_KERNEL,
    "tests/verify/test_wrong_rewrites.py::test_a_wrong_rewrite_is_caught[uint8: cut at 100]": NO_KERNEL,
}
