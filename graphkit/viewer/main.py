"""The extension of Model Explorer that opens ONNX files: `model-explorer --extensions graphkit.viewer model.onnx`.

Model Explorer imports the module `main` of an extension. Overlays are for `graphkit view` and `--node_data_paths`.
"""

from __future__ import annotations

from typing import ClassVar

from model_explorer import Adapter, AdapterMetadata

from graphkit.viewer.explorer_format import Graph
from graphkit.viewer.make_view import view

__all__ = ["GraphkitAdapter"]


class GraphkitAdapter(Adapter):  # type: ignore[misc] # Model Explorer is not typed
    """Reads ONNX files without their weights."""

    metadata: ClassVar[object] = AdapterMetadata(
        id="graphkit",
        name="graphkit",
        description="ONNX without weights: modules, repeated layers, bodies, shapes as expressions.",
        fileExts=["onnx"],
    )

    def convert(self, model_path: str, settings: dict[str, object]) -> dict[str, list[Graph]]:  # noqa: ARG002
        """Return the graphs of a model file."""
        return {"graphs": list(view(model_path).models[0].graphs)}
