"""What a bundle of a real export is made of, and what its step does not do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from graphkit.contract.reading import read_bundle

BundleOf = Callable[[str], Path]


def test_an_encoder_decoder_is_two_methods_over_one_state(bundle_of: BundleOf) -> None:
    folder = bundle_of("marian-tiny")
    contract = read_bundle(folder / "bundle.json")
    assert [method.name for method in contract.methods] == ["encode", "step", "init", "reorder"]
    named = {
        port.name
        for method in contract.methods[:2]
        for port in (*method.inputs, *method.outputs)
        if not port.writes and (port.source is None or port.source.kind not in ("state", "length"))
    }
    assert named == {"input_ids", "attention_mask", "decoder_input_ids", "logits"}
    cross, own = (
        {method.name: method.access[f"past_key_values.0.{which}.key"] for method in contract.methods}
        for which in ("encoder", "decoder")
    )
    assert cross == {"encode": "write", "step": "read", "init": "write", "reorder": "read and write"}
    assert own == {"encode": "write", "step": "read and write", "init": "write", "reorder": "read and write"}
    assert all(state.offset % 64 == 0 for state in contract.states)
    assert contract.arena == sum(-(-state.bytes // 64) * 64 for state in contract.states)
    assert contract.data == "bundle.data"
    assert (folder / "bundle.data").stat().st_size < 900_000  # every distinct tensor once: both methods have most


@pytest.mark.parametrize("name", ["marian-tiny", "causal", "window"])
def test_a_step_neither_joins_nor_repeats_state(name: str, bundle_of: BundleOf, tmp_path: Path) -> None:
    """Neither in the graph nor in what onnxruntime makes of it."""
    contract = read_bundle(bundle_of(name) / "bundle.json")
    step = contract.method("step")
    assert step is not None
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "step")
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    path = bundle_of(name) / step.file
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    sizes = {**contract.sizes, "batch": 2, "tokens": 1, "source": 3}
    feed = {}
    for port in step.inputs:
        shape = [dim if isinstance(dim, int) else sizes.get(dim, 3) for dim in port.shape]
        feed[port.name] = np.full(
            shape, 5 if port.source is not None and port.source.kind == "length" else 1, port.dtype
        )
    session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"] for event in events if event.get("cat") == "Node" and "output_type_shape" in event["args"]]
    least = min(
        math.prod(state.shape) // contract.sizes["batch"] for state in contract.states if state.axis not in (None, 1)
    )
    copied = [
        args["op_name"]
        for args in ran
        if args["op_name"] in ("Concat", "Expand", "Tile", "Identity")
        for output in args["output_type_shape"]
        for shape in output.values()
        if math.prod(shape) >= least // 2
    ]
    assert copied == []
    assert any(args["op_name"] == "TensorScatter" for args in ran)
    scatters = [
        node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "TensorScatter"
    ]
    assert len(scatters) == sum(state.axis is not None for state in contract.states)
