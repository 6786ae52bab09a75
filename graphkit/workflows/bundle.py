"""Make a bundle of an export: methods over one state, laid out once and updated in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphkit.contract.bundle import BundleContract, BundleMethod
from graphkit.io.transaction import made_folder
from graphkit.passes.state.slots import Update
from graphkit.runtime.isolation import isolation
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.save import save_models
from graphkit.workflows.bundle_generated import init_method, reorder_method
from graphkit.workflows.bundle_methods import derive_methods
from graphkit.workflows.bundle_state import BundleSizes, build_bundle
from graphkit.workflows.originals import find_pipeline

__all__ = ["BundleOptions", "bundle_folder"]

CONTRACT, DATA = "bundle.json", "bundle.data"


@dataclass(frozen=True)
class BundleOptions:
    """How to make a bundle.

    Attributes:
        max_cache: Slots of the cache.
        max_source: The longest source, as the encoder's input counts it.
        batch: The most rows.
        update: What writes into slots: `tensor-scatter` (opset 24) or `scatter-nd`, for older runtimes.
        dims: The largest numbers of other symbols.
        verify: Whether to run the proof.
        overwrite: Replace files that exist.
        limits: What a model may take of time and memory.
    """

    max_cache: int = 256
    max_source: int = 256
    batch: int = 1
    update: Update = "tensor-scatter"
    dims: tuple[tuple[str, int], ...] = ()
    verify: bool = True
    overwrite: bool = False
    limits: Limits = DEFAULT_LIMITS


def bundle_folder(
    path: str | Path,
    output: str | Path,
    options: BundleOptions = BundleOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> BundleContract:
    """Make a bundle."""
    path, output = Path(path), Path(output)
    progress("reading")
    pipeline = find_pipeline(path)
    progress("making the methods")
    with isolation(options.limits):
        methods = derive_methods(pipeline, options.max_cache, options.update)
    sizes = BundleSizes(options.batch, options.max_cache, options.max_source, dict(options.dims))
    opset = max(method.model.graph.opset() for method in methods)
    contract = build_bundle(methods, sizes, pipeline.tokens, DATA, opset)
    generated = [init_method(contract), reorder_method(contract)]
    models = {output / method.file: method.model for method in methods}
    models |= {output / method.file: model for method, model in generated}
    contract = _with_methods(contract, [method for method, _ in generated])
    progress("writing")
    with made_folder(output):
        others = {output / CONTRACT: contract.to_json().encode()}
        save_models(models, weights="shared", data_name=DATA, others=others, overwrite=options.overwrite)
    return contract


def _with_methods(contract: BundleContract, made: Sequence[BundleMethod]) -> BundleContract:
    from dataclasses import replace

    return replace(contract, methods=(*contract.methods, *made))
