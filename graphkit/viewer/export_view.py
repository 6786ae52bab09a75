"""Write a view to files, for those who serve Model Explorer elsewhere: one with the graphs, one for each overlay."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from graphkit.errors import OutputError
from graphkit.io.transaction import write_all_or_none
from graphkit.model import Model
from graphkit.render.document_blocks import Block, Lines, Prose, table
from graphkit.render.result import Result
from graphkit.save import check_targets
from graphkit.viewer.make_view import View

__all__ = ["ExportedOverlay", "ShownModel", "ViewExport", "export_view"]

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
        yield table(
            "Overlay | Model:code | Nodes:number | File:code",
            [(each.name, each.model, each.nodes, each.file) for each in self.overlays],
            title="Node data",
        )
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
    files = {
        path.with_name(f"{path.stem}.{sides[number]}{_file_slug(overlay.name)}.json"): (number, overlay)
        for number, overlay in overlays
    }
    targets = [path, *files]
    check_targets(targets, models, overwrite=overwrite)
    for target in targets:
        if any(target.exists() and target.samefile(file) for file in read):
            raise OutputError(f"{target}: is an input, which is never overwritten - {HINT}")
    with write_all_or_none(targets, key=path, overwrite=overwrite, hint=HINT) as place:
        place(path).write_text(view.to_json(), encoding="utf-8")
        for file, (_, overlay) in files.items():
            place(file).write_text(overlay.to_json(), encoding="utf-8")
    return ViewExport(
        path.name,
        tuple(
            ShownModel(
                model.label,
                len(model.graphs),
                sum(len(graph.nodes) for graph in model.graphs),
                {
                    space: lines["repeated layers"]
                    for graph in model.graphs
                    for space, lines in graph.groupNodeAttributes.items()
                    if "repeated layers" in lines
                },
            )
            for model in view.models
        ),
        tuple(
            ExportedOverlay(view.models[number].label, overlay.name, overlay.nodes, file.name)
            for file, (number, overlay) in files.items()
        ),
        view.synchronised,
    )


def _file_slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
