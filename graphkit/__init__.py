"""graphkit: read, explain, rewrite and prove ONNX graphs, without touching their weights.

    import graphkit
    model = graphkit.load("model.onnx")  # or "example:merged-decoder", which ships with graphkit
    print(graphkit.kv_cache(model))
    graphkit.fold(model, dims={"batch_size": 1}).model.save("folded.onnx")

Every function takes a model, its path, or one in memory (of onnx, onnx_ir or torch.onnx). Results print themselves,
show themselves in notebooks, and have `to_text()`, `to_markdown()`, `to_json()` and `to_html()`. What to call:

Read
    load                    a model; `model.graph` is its view, `model.array(tensor)` the values of a weight
    Model.save              write one; `to_proto` and `to_ir` give one to onnx and onnx_ir
    to_networkx             its graph for networkx; `cone` is what a value depends on
    to_graphsurgeon         its graph for onnx-graphsurgeon; `from_graphsurgeon` takes it back

Explain
    report                  all sections by name, a verdict first; `compare` for several models
    summary, architecture   what it is: size, opset, role, layers, heads
    interface, kv_cache     what a runtime has to feed, and to carry from step to step
    shape_ops, origins      operators that compute shapes, and the expressions behind them
    tensor_shapes           the shape of every tensor as an expression; `why_shape` says where one comes from
    node_list, weight_list  rows of nodes, and of initializers and constants
    costs                   parameters, MACs, bytes moved and peak memory, by layer, as expressions and numbers
    unknown_shapes          tensors whose shapes are not known before a run
    what_if, hazards        what each dim decides, and the dims that break the model; `check_hazards` runs it there
    control_flow, fit       branches of If, Loop and Scan; which models of a folder feed each other
    blockers                what keeps it from an NPU, such as "ethos-u65"
    placement               which nodes run on a device, such as "webgpu"; `list_providers` has those that are here
    float16_losses          constants that float16 cannot hold

Rewrite
    fold                    shape computations, with or without frozen dims; `fold_file` writes and proves,
                            `fold_folder` does so with all models of a folder
    split_merged            a merged decoder in two; `split_file` writes and proves
    merge_decoders          such a pair in one; `edit_file` with `MergeDecoders` writes and proves
    edit_file               a part of it, other names, sizes for dims, another opset; writes and proves
    run_passes              the passes of `parse_pipeline`, and your own; `rewrite_file` writes and proves
    NodeRewrite, Rewrite    base classes for a pass of your own, as is `Pass`; it works with an `Editor`, each
                            `NewNode`, and a `MatchFailure` for what stays
    save_models             several models over one file of weights

Prove
    verify_rewrite          that any two models give the same, at sizes that matter
    verify_extract          that a part of a model gives what the whole gives
    verify_split            that a pair gives what the merged decoder gives; `verify_bundle` for a bundle
    verify_folder           that a lowered folder or a bundle, as it is now, gives what its export gives
    compare_models          where two models part, layer by layer, and why
    diff                    what differs between the files of two models

Lower, bundle and run
    lower_folder            an export for an NPU, with a contract; `Host` runs it
    bundle_folder           an export as methods over one state; `Bundle` runs it
    genai_folder            an export for onnxruntime-genai
    transformers_js_folder  an export as the folder that transformers.js loads
    Specializer             sessions folded for the shapes that come

`graphkit.shapes`, `passes`, `rewrite`, `deploy` and `verify` have more. Errors are `GraphkitError`s.
"""

# `__init__.pyi` has the names, each of which is imported when it is first used, so that `import graphkit` is quick.
from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in _names if name not in {"deploy", "passes", "rewrite", "shapes", "verify"}]
