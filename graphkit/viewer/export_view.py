"""Write a view to files, for those who serve Model Explorer elsewhere: one with the graphs, one for each overlay."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from graphkit.errors import OutputError, UsageError
from graphkit.io.transaction import write_all_or_none
from graphkit.model import Model
from graphkit.render.document_blocks import Block, Lines, Prose, table, table_of
from graphkit.render.result import Result
from graphkit.save import check_targets
from graphkit.viewer.make_view import View

__all__ = ["LOCAL", "ExportedOverlay", "ShownModel", "ViewExport", "export_view", "serve_view", "url_data"]


HINT = "name another file with --export"


@dataclass(frozen=True)
class ShownModel:
    """A model in the file of graphs.

    Attributes:
        label: Its name in Model Explorer.
        graphs: How many graphs: the main graph, and one for each function.
        nodes: How many nodes they have, inputs and outputs too, constants aside.
        repeated: Groups of repeated layers, and what they hold.
    """

    label: str
    graphs: int
    nodes: int
    repeated: dict[str, str]


@dataclass(frozen=True)
class ExportedOverlay:
    """A file of node data.

    Attributes:
        model: The model that it is for.
        name: What Model Explorer calls it.
        nodes: How many nodes it tells of.
        file: The name of the file.
    """

    model: str
    name: str
    nodes: int
    file: str


@dataclass(frozen=True)
class ViewExport(Result):
    """The files of a view.

    Attributes:
        file: The name of the file with the graphs.
        synchronised: How many nodes of the second model have the id of a node of the first one.
    """

    title: ClassVar[str] = "Model Explorer"
    file: str
    models: tuple[ShownModel, ...]
    overlays: tuple[ExportedOverlay, ...]
    synchronised: int

    def blocks(self) -> Iterator[Block]:
        yield table(
            "Model:code | Graphs:number | Nodes:number | Repeated layers:note",
            [(each.label, each.graphs, each.nodes, "; ".join(each.repeated.values())) for each in self.models],
            title=f"Graphs in {self.file}",
        )
        if len(self.models) > 1:
            yield Prose(f"{self.synchronised:,} nodes match: Sync navigation by node id shows both together.")
        headings = "Overlay=name | Model:code | Nodes:number | File:code"
        yield table_of(headings, self.overlays, title="Node data")
        yield Lines(((self.command(), "command"),))

    def command(self) -> str:
        """Return the command that opens the files of a single model, or the graphs of two."""
        command = f"model-explorer {shlex.quote(self.file)}"
        if len(self.models) > 1:
            return command
        return f"{command} --node_data_paths {shlex.quote(','.join(each.file for each in self.overlays))}"


def export_view(
    view: View, models: Sequence[Model], path: Path, *, read: Sequence[Path] = (), overwrite: bool = False
) -> ViewExport:
    """Write a view: the graphs to a file, and each overlay to one beside it, all of them or none.

    Args:
        view: The view.
        models: Its models, whose files are never replaced.
        path: The file of the graphs, `FILE.json`; overlays get names such as `FILE.macs.json`.
        read: Other files that are never replaced.
        overwrite: Whether to replace files that exist.

    Raises:
        OutputError: A file exists, or cannot be written.
    """
    overlays = [(number, overlay) for number, model in enumerate(view.models) for overlay in model.overlays]
    sides = ("a-", "b-") if len(view.models) > 1 else ("",)
    files = {}
    for number, overlay in overlays:
        slug = re.sub(r"[^a-z0-9]+", "-", overlay.name.lower()).strip("-")
        files[path.with_name(f"{path.stem}.{sides[number]}{slug}.json")] = number, overlay
    targets = [path, *files]
    check_targets(targets, models, overwrite=overwrite)
    for target in targets:
        if any(target.exists() and target.samefile(file) for file in read):
            raise OutputError(f"{target}: is an input, which is never overwritten - {HINT}")
    with write_all_or_none(targets, key=path, overwrite=overwrite, hint=HINT) as place:
        place(path).write_text(view.to_json(), encoding="utf-8")
        for file, (_, overlay) in files.items():
            place(file).write_text(overlay.to_json(), encoding="utf-8")
    models_shown = []
    for model in view.models:
        groups = [each for graph in model.graphs for each in graph.groupNodeAttributes.items()]
        repeated = {space: lines["repeated layers"] for space, lines in groups if "repeated layers" in lines}
        count = sum(len(graph.nodes) for graph in model.graphs)
        models_shown.append(ShownModel(model.label, len(model.graphs), count, repeated))
    overlays_shown = (
        ExportedOverlay(view.models[number].label, overlay.name, overlay.nodes, file.name)
        for file, (number, overlay) in files.items()
    )
    return ViewExport(path.name, tuple(models_shown), tuple(overlays_shown), view.synchronised)


LOCAL = "localhost"
ANY_PORT = 8080  # for which Model Explorer takes another one where it is in use
SYNCHRONISED = {"mode": "match_node_id"}


def serve_view(view: View, *, port: int = ANY_PORT, opens_browser: bool = True) -> None:
    """Serve a view to this machine until Ctrl+C stops it.

    Raises:
        UsageError: Model Explorer is not installed.
    """
    try:
        from model_explorer import config, visualize_from_config
    except ImportError as error:
        raise UsageError(
            "Model Explorer is not installed - `pip install 'onnx-graphkit[view]'`, or write its files with --export"
        ) from error
    shown = config()
    shown.graphs_list = [View((model,)).to_json() for model in view.models]
    shown.node_data_list = [data.to_json() for model in view.models for data in model.overlays]
    shown.model_sources = url_data(view)["models"]  # which it puts into the address
    shown.to_url_param_value = lambda: quote(json.dumps(url_data(view)))
    visualize_from_config(shown, host=LOCAL, port=port, no_open_in_browser=not opens_browser)


def url_data(view: View) -> dict[str, object]:
    """Return what the page is told in its address: models, overlays, which graphs are shown, and whether together."""
    overlays = [(model.label, overlay) for model in view.models for overlay in model.overlays]
    data: dict[str, object] = {
        "models": [{"url": f"graphs://{model.label}/{number}"} for number, model in enumerate(view.models)],
        "nodeData": [f"node_data://{overlay.name}/{number}" for number, (_, overlay) in enumerate(overlays)],
        "nodeDataTargets": [label for label, _ in overlays],
    }
    if len(view.models) > 1:
        pane: dict[str, object] = {"deepestExpandedGroupNodeIds": [], "selectedNodeId": ""}
        data["uiState"] = {
            "paneStates": [
                {
                    **pane,
                    "selectedGraphId": model.graphs[0].id,
                    "selectedCollectionLabel": model.label,
                    "widthFraction": 0.5,
                }
                for model in view.models
            ]
        }
        data["sync"] = SYNCHRONISED
    return data
