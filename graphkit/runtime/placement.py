"""Where onnxruntime places each node of a model, by its own record; the model is loaded, and does not run.

    python graphkit/runtime/placement.py MODEL --provider webgpu

prints a line of JSON, also in an environment without graphkit: besides its neighbours `providers` and
`onnxruntime_loader` this module imports only onnxruntime, and onnx where it is there. It exits with 0 where every node
is on the device, with 1 where some are not, or where the model does not load.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if __package__:
    from graphkit.runtime import providers
    from graphkit.runtime.onnxruntime_loader import open_model
    from graphkit.runtime.providers import Provider, ProviderError
else:  # run by its path
    import providers  # type: ignore[import-not-found, no-redef]
    from onnxruntime_loader import open_model  # type: ignore[import-not-found, no-redef]
    from providers import Provider, ProviderError  # type: ignore[no-redef]

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

RECORD = {"session.record_ep_graph_assignment_info": "1"}
WEIGHTS_APART = {  # so that the file that tells the copies is small
    "session.optimized_model_external_initializers_file_name": "weights",
    "session.optimized_model_external_initializers_min_size_in_bytes": "64",
}
NO_DIMS: Mapping[str, int] = MappingProxyType({})
COPIES = {"cpu": "MemcpyToHost", "device": "MemcpyFromHost"}


def read_record(session: InferenceSession) -> list[list[dict[str, str]]]:
    """Return the parts of a model as a session made with `RECORD` placed them, each with its nodes.

    A device that compiles parts takes each whole; one with a kernel for each operator has a part for each node. Of a
    node there are name, operator and provider. Raises ProviderError where this onnxruntime keeps no record.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        raise ProviderError("this onnxruntime keeps no record of where nodes run - install onnxruntime 1.24 or newer")
    placed = []
    for part in session.get_provider_graph_assignment_info():
        provider, nodes = providers.short_name(part.ep_name), []
        for node in part.get_nodes():
            operator = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
            nodes.append({"name": node.name, "operator": operator, "provider": provider})
        placed.append(nodes)
    return placed


def count_nodes(session: InferenceSession) -> dict[str, int]:
    """Return how many nodes are on each provider; see `read_record`."""
    return Counter(node["provider"] for part in read_record(session) for node in part)


def place_nodes(
    path_or_bytes: str | bytes, provider: Provider, *, folder: str | None = None, dims: Mapping[str, int] = NO_DIMS
) -> dict[str, Any]:
    """Load a model on a provider, and return where its nodes are: those after onnxruntime's own first clean-ups.

    `dims` are sizes of symbols in the dims of inputs.

    Returns:
        `provider`, `runtime` and `package` (versions), `seconds` that it took to load, `nodes` (name, operator,
        provider), `counts` (nodes of each provider), `parts` (of each provider, see `read_record`), `on_cpu` (nodes
        that the device refused, by operator), and `copies`: tensors that are copied to the `cpu` and to the `device`,
        None where the device compiles what it takes, so that onnxruntime does not say.

    Raises:
        ProviderError: The provider is not here, or onnxruntime keeps no record.
        Exception: Whatever onnxruntime raises; its errors have no common base.
    """
    from tempfile import TemporaryDirectory  # which few processes need

    import onnxruntime

    began, copies = time.perf_counter(), None
    options = {"folder": folder, "optimize": True, "threads": 0, "prepack": False, "provider": provider, "dims": dims}
    open_here: Callable[..., InferenceSession] = partial(open_model, path_or_bytes, **options)  # type: ignore[arg-type]
    with TemporaryDirectory() as place:
        saved = Path(place) / "placed.onnx"
        try:
            session = open_here(entries=RECORD | WEIGHTS_APART, saved=str(saved))
        except ProviderError:
            raise
        except Exception:  # it cannot be saved where parts are compiled
            session = open_here(entries=RECORD)
        else:
            copies = _count_copies(saved)
    parts = read_record(session)
    nodes = [node for part in parts for node in part]
    return {
        "provider": str(provider),
        "runtime": onnxruntime.__version__,
        "package": providers.is_here(providers.find_provider(provider.name)),
        "seconds": round(time.perf_counter() - began, 3),
        "nodes": nodes,
        "counts": Counter(node["provider"] for node in nodes),
        "parts": Counter(part[0]["provider"] for part in parts if part),
        "on_cpu": Counter(node["operator"] for node in nodes if node["provider"] != provider.name),
        "copies": copies,
    }


def _count_copies(saved: Path) -> dict[str, int]:
    try:
        import onnx
    except ImportError:  # by the field of a node's operator, which a text may have too
        content = saved.read_bytes()
        return {to: content.count(b'"%c%b' % (len(name), name.encode())) for to, name in COPIES.items()}

    def operators(graph: onnx.GraphProto) -> Iterator[str]:
        for node in graph.node:
            yield node.op_type
            for attribute in node.attribute:
                for body in (attribute.g, *attribute.graphs):
                    yield from operators(body)

    counts = Counter(operators(onnx.load(saved, load_external_data=False).graph))
    return {to: counts[name] for to, name in COPIES.items()}


def main() -> None:
    """Print the placement of a model, with `error` where it does not load."""
    import argparse

    parser = argparse.ArgumentParser(description="Where onnxruntime places each node of a model, as JSON.")
    parser.add_argument("model")
    parser.add_argument("--provider", default=str(providers.CPU), help="NAME[:KEY=VALUE…]")
    arguments = parser.parse_args()
    answer, stdout = {"model": arguments.model, "error": ""}, os.dup(1)
    os.dup2(2, 1)  # libraries of vendors print
    try:
        answer |= place_nodes(arguments.model, providers.parse_provider(arguments.provider))
    except Exception as error:  # onnxruntime's errors have no common base
        answer["error"] = str(error) or type(error).__name__
    os.write(stdout, json.dumps(answer).encode() + b"\n")
    os._exit(bool(answer["error"] or answer["on_cpu"]))  # libraries of vendors crash when they are unloaded


if __name__ == "__main__":
    main()
