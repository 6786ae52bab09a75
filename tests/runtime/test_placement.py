from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest

from graphkit.runtime import placement
from graphkit.runtime.placement import count_nodes, place_nodes, read_record
from graphkit.runtime.providers import Provider, ProviderError
from graphkit.runtime.session import load_error

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
    { product = MatMul (x, w)  y = Relu (product) }
"""


def model() -> onnx.ModelProto:
    """Return a model whose nodes have names."""
    proto = onnx.parser.parse_model(MODEL)
    for node in proto.graph.node:
        node.name = f"the {node.op_type}"
    return proto


def test_the_record_of_a_session_on_the_cpu_has_all_its_nodes() -> None:
    placed = place_nodes(model().SerializeToString(), Provider())
    assert placed["nodes"] == [
        {"name": "the MatMul", "operator": "MatMul", "provider": "cpu"},
        {"name": "the Relu", "operator": "Relu", "provider": "cpu"},
    ]
    assert (placed["counts"], placed["on_cpu"], placed["copies"]) == ({"cpu": 2}, {}, {"cpu": 0, "device": 0})


def test_the_parts_of_a_record_keep_the_providers_and_domains_of_their_nodes() -> None:
    def part(provider: str, *nodes: tuple[str, str, str]) -> SimpleNamespace:
        members = [SimpleNamespace(name=name, domain=domain, op_type=kind) for name, domain, kind in nodes]
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: members)

    parts = [
        part("QNNExecutionProvider", ("a", "", "MatMul"), ("b", "com.microsoft", "Gelu")),
        part("CPUExecutionProvider", ("c", "", "Shape")),
    ]
    session = cast(Any, SimpleNamespace(get_provider_graph_assignment_info=lambda: parts))
    assert read_record(session) == [
        [
            {"name": "a", "operator": "MatMul", "provider": "qnn"},
            {"name": "b", "operator": "com.microsoft.Gelu", "provider": "qnn"},
        ],
        [{"name": "c", "operator": "Shape", "provider": "cpu"}],
    ]


def test_an_onnxruntime_without_a_record_is_named() -> None:
    with pytest.raises(ProviderError, match=r"install onnxruntime 1\.24 or newer"):
        count_nodes(cast(Any, object()))


def test_the_error_of_a_device_says_what_to_do_where_there_is_no_record() -> None:
    with pytest.raises(ProviderError) as caught:
        read_record(cast(Any, object()))
    assert str(load_error(str(caught.value), "a.onnx")) == f"a.onnx: {caught.value}"


@pytest.mark.parametrize("has_onnx", [True, False])
def test_copies_are_the_nodes_of_a_saved_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_onnx: bool) -> None:
    proto, file = model(), tmp_path / "saved.onnx"
    proto.graph.node[1].op_type = "MemcpyToHost"
    proto.doc_string = '"\x0eMemcpyFromHost' if has_onnx else ""
    onnx.save(proto, file)
    if not has_onnx:
        monkeypatch.setitem(sys.modules, "onnx", None)
    assert placement._count_copies(file) == {"cpu": 1, "device": 0}


@pytest.mark.parametrize(("provider", "code"), [("cpu", 0), ("nothing", 1)])
def test_the_module_is_a_script_that_needs_nothing_of_graphkit(tmp_path: Path, provider: str, code: int) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(model(), file)
    folder = str(Path(placement.__file__).parent)
    script = (
        f"import sys; sys.modules['graphkit'] = None; sys.path.insert(0, {folder!r})\nimport placement as p; p.main()"
    )
    command = [sys.executable, "-c", script]
    ran = subprocess.run([*command, str(file), "--provider", provider], capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["error"].startswith("there is no provider 'nothing'") if code else answer["counts"] == {"cpu": 2}
