"""Show a view in Model Explorer, which serves it to a browser until it is stopped."""

from __future__ import annotations

import json
from urllib.parse import quote

from graphkit.errors import UsageError
from graphkit.viewer.make_view import NodeData, View

__all__ = ["LOCAL", "serve_view", "url_data"]

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
            "Model Explorer is not installed - `pip install 'graphkit[view]'`, or write its files with --export"
        ) from error
    shown = config()
    shown.graphs_list = [model_json(view, number) for number in range(len(view.models))]
    shown.node_data_list = [data.to_json() for model in view.models for data in model.overlays]
    shown.model_sources = url_data(view)["models"]  # which it puts into the address
    shown.to_url_param_value = lambda: quote(json.dumps(url_data(view)))
    visualize_from_config(shown, host=LOCAL, port=port, no_open_in_browser=not opens_browser)


def model_json(view: View, number: int) -> str:
    """Return the JSON that the server gives for one of the models."""
    return View((view.models[number],)).to_json()


def url_data(view: View) -> dict[str, object]:
    """Return what the page is told in its address: models, overlays, which graphs are shown, and whether together."""
    data: dict[str, object] = {
        "models": [{"url": f"graphs://{model.label}/{number}"} for number, model in enumerate(view.models)],
        "nodeData": [f"node_data://{overlay.name}/{number}" for number, (_, overlay) in enumerate(_all_overlays(view))],
        "nodeDataTargets": [label for label, _ in _all_overlays(view)],
    }
    if len(view.models) > 1:
        data["uiState"] = {"paneStates": [_pane_state(model.label, model.graphs[0].id) for model in view.models]}
        data["sync"] = SYNCHRONISED
    return data


def _all_overlays(view: View) -> list[tuple[str, NodeData]]:
    return [(model.label, overlay) for model in view.models for overlay in model.overlays]


def _pane_state(label: str, graph: str) -> dict[str, object]:
    return {
        "deepestExpandedGroupNodeIds": [],
        "selectedNodeId": "",
        "selectedGraphId": graph,
        "selectedCollectionLabel": label,
        "widthFraction": 0.5,
    }
