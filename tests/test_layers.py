"""Imports point downwards only, and each heavy dependency has its few homes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

import graphkit

PACKAGE = Path(graphkit.__file__).parent
# From the bottom up; rooms of one layer do not import each other. What proves that models are equal is below all that
# rewrites models, and below the other proofs.
LAYERS = (
    ("errors",),
    ("dtypes", "progress"),
    ("examples", "graph", "io", "render"),
    ("glance", "save", "symbolic"),
    ("contract", "targets", "model"),
    ("ops",),
    ("runtime", "shapes"),
    ("matching", "options"),
    ("hosts",),
    ("equivalence",),
    ("analysis", "rewrite", "surgeon"),
    ("model_diff", "passes"),
    ("judges",),
    ("verify",),
    ("deploy",),
    ("fleet",),
    ("workflows",),
    ("cli",),
    ("__main__",),
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
HOMES = {
    "aiohttp": {"io/remote/http_file.py"},
    "distributed": {"fleet/dask_pool.py"},
    "fsspec": {"fleet/storage.py", "io/remote/fsspec_file.py", "io/remote/http_file.py"},
    "huggingface_hub": {"io/remote/fsspec_file.py"},
    "onnx_ir": {"io/memory.py", "model.py"},
    "networkx": {"deploy/export_pipeline.py", "render/html.py", "surgeon.py"},
    "pyarrow": {f"fleet/{name}.py" for name in ("storage", "survey", "survey_table")},
    "onnxoptimizer": {"runtime/external_tools.py"},
    "onnxruntime": {
        *(f"runtime/{name}.py" for name in ("onnxruntime_loader", "placement", "providers")),
        "judges/adapters/ask_provider.py",
    },
    "rich": {"cli/output.py", "render/terminal.py"},
    "click": {
        f"cli/{name}.py"
        for name in (
            *(
                "commands",
                "deploy_commands",
                "flags",
                "list_commands",
                "output",
                "proof_commands",
                "read_commands",
                "report_command",
                "rewrite_commands",
                "shell_completion",
            ),
        )
    },
}


class Import(NamedTuple):
    """An import, wherever in a file it stands."""

    file: str
    module: str


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each file of the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the statements in it."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.expr):
            yield from statements(inner)


@cache
def imports() -> tuple[Import, ...]:
    found: list[Import] = []
    for file, tree in trees().items():
        for node in statements(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}: write imports in full"
                found.append(Import(file, str(node.module)))
            elif isinstance(node, ast.Import):
                found += [Import(file, alias.name) for alias in node.names]
    return tuple(found)


def room(path: str) -> str:
    """Return the room of a file of the package, or of a module."""
    parts = path.removesuffix(".py").replace("/", ".").split(".")
    inner = ".".join(parts[:2])
    return inner if inner in RANK else parts[0]


def inside() -> Iterator[tuple[str, str, str]]:
    """Yield (file, its room, the room that it imports) for each import from another room."""
    for file, module in imports():
        package, _, inner = module.partition(".")
        if package == "graphkit" and inner and room(inner) != room(file) and file != "__init__.py":
            yield file, room(file), room(inner)


def test_every_room_has_a_layer() -> None:
    rooms = {room(file) for file in trees()}
    assert rooms - {"__init__"} <= set(RANK)


def test_imports_point_downwards() -> None:
    assert [(file, target) for file, own, target in inside() if RANK[target] >= RANK[own]] == []


@cache
def network() -> nx.DiGraph:
    """Return which module imports which, in functions and for types alone too."""
    modules = {
        f"graphkit.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__"): tree
        for file, tree in trees().items()
    }
    found = nx.DiGraph()
    for module, tree in modules.items():
        for node in statements(tree):
            named = [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            plain = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            targets = [name if name in modules else name.rpartition(".")[0] for name in named] + plain
            found.add_edges_from((module, target) for target in targets if target in modules)
    return found


def test_no_circle_of_imports() -> None:
    """An import inside a function, or for type checkers alone, would only hide a circle."""
    edges = network().copy()
    assert edges.has_edge("graphkit.symbolic.algebra", "graphkit.symbolic.expr")
    # The one recursion: nodes tell which dims of one name are equal, by shapes that are inferred with the names apart.
    edges.remove_edge("graphkit.shapes.input_dims", "graphkit.shapes.infer")
    assert [sorted(found) for found in nx.strongly_connected_components(edges) if len(found) > 1] == []


REWRITING = {"deploy", "contract", "hosts", "targets", "passes", "rewrite", "workflows"}
ORACLE = "graphkit.verify.oracle"


def test_the_oracle_shares_no_code_with_what_rewrites() -> None:
    """What runs the original in a proof is told nothing by what it checks, and tells it nothing."""
    reached = {room(module.removeprefix("graphkit.")) for module in nx.descendants(network(), ORACLE)}
    assert "runtime" in reached
    assert reached & REWRITING == set()
    readers = {room(module.removeprefix("graphkit.")) for module in network().predecessors(ORACLE)}
    assert readers == {"verify"}


def test_results_are_rendered_without_knowing_them() -> None:
    assert {target for _, own, target in inside() if own == "render"} <= {"errors"}


def test_files_are_read_without_knowing_graphs() -> None:
    assert {target for _, own, target in inside() if own == "io"} == {"dtypes", "errors", "progress"}


@pytest.mark.parametrize("dependency", HOMES)
def test_a_dependency_has_its_homes(dependency: str) -> None:
    assert {file for file, module in imports() if module.split(".")[0] == dependency} == HOMES[dependency]


def test_only_the_command_line_prints() -> None:
    printing = {
        file
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing == set()


def test_options_and_results_are_made_by_keyword() -> None:
    """Nobody counts to the seventh argument of a constructor."""
    found = [
        f"{file}: {node.func.id}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) >= 7
        if node.func.id.lstrip("_")[:1].isupper() and node.func.id != "TypeVar"
    ]
    assert found == []
