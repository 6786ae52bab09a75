"""Write a folder of models with its contract, once all is proven, and the record of that; costs before and after."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct

from graphkit import __version__
from graphkit.analysis.cost_changes import BeforeAndAfter, CostChange
from graphkit.analysis.typical_sizes import TYPICAL
from graphkit.contract import Contract
from graphkit.contract.bundle_contract import BundleContract
from graphkit.contract.contract_files import record_files
from graphkit.contract.host_contract import NOT_RUN, ProofRecord
from graphkit.deploy.bundle_methods import MethodModel
from graphkit.deploy.deploy_sizes import DeploySizes
from graphkit.deploy.export_pipeline import Pipeline
from graphkit.deploy.lowered_contract import Lowered
from graphkit.graph.roles import Axis
from graphkit.io.transaction import made_folder, write_text
from graphkit.model import Model, load
from graphkit.options import BundleOptions, LowerOptions
from graphkit.passes.state.update_cache_in_place import SLOTS
from graphkit.save import Placement, Saved, save_models
from graphkit.shapes import DimSpec, Expr, const, infer, minimum, symbol
from graphkit.shapes.constraints.legal_sizes import symbol_roles
from graphkit.verify.deployment_proofs import BundleProof, LoweringProof
from graphkit.verify.described_bundle_verifier import Chain
from graphkit.verify.latency import costs_before_and_after

DeployContract = Contract | BundleContract
LARGEST = sys.float_info.max  # JSON has no infinity, and no NaN
FolderProof = TypeVar("FolderProof", LoweringProof, BundleProof)


class DeployFolder(Struct, frozen=True, eq=False):
    """The files of a folder to write."""

    contract: DeployContract  # its contract, whose record is not made yet
    models: Mapping[str, Model]  # the models by their files
    contents: Mapping[str, bytes | memoryview]  # the contents of other files, by name, without the contract
    weights: Placement  # where the weights go
    data: str  # the name of their file, where they have one
    changes: tuple[str, ...] = ()  # options that the user gave to change results


def write_proven(
    output: Path, folder: DeployFolder, prove: Callable[[Path], FolderProof] | None, *, overwrite: bool
) -> tuple[FolderProof | None, Saved]:
    """Write a folder, and return its proof and the files; they get their names when the proof has ended.

    `prove` gets a folder that has all of them; None is for no proof. Where a file exists, nothing is left behind.
    """
    contract, name, proofs = folder.contract, folder.contract.FILE, list[FolderProof]()
    contents = {name: contract.to_json().encode(), **folder.contents}

    def finish(stage: Path) -> None:
        if prove is not None:
            proofs.append(prove(stage))
        files = (path.name for path in stage.iterdir() if path.name != name)
        record_contract(stage, contract, files, proof_record(proofs[0] if proofs else None, changes=folder.changes))

    with made_folder(output):
        saved = save_models(
            {output / file: model for file, model in folder.models.items()},
            weights=folder.weights,
            data_name=folder.data,
            others={output / file: content for file, content in contents.items()},
            overwrite=overwrite,
            before=finish,
        )
    return proofs[0] if proofs else None, saved


def proof_record(
    proof: LoweringProof | BundleProof | None, *, tokens_rate: float = 1.0, changes: tuple[str, ...] = ()
) -> ProofRecord:
    """Return the record of a proof against an export, or against one with changes that the user asked for."""
    if proof is None:
        return replace(NOT_RUN, changes=changes)
    return ProofRecord(
        outcome="passed" if proof.passed else "failed",
        reason="" if proof.passed else proof.findings()[0],
        tolerance=proof.tolerance if proof.tolerance <= LARGEST else LARGEST,
        tokens_rate=tokens_rate,
        graphkit=__version__,
        changes=changes,
        proven=proof.proven_outputs() if proof.passed else {},
    )


def record_contract(folder: Path, contract: DeployContract, names: Iterable[str], proof: ProofRecord) -> None:
    """Write a contract with the record of the files beside it and of their proof."""
    write_text(folder / contract.FILE, replace(contract, files=record_files(folder, names), proof=proof).to_json())


def lowering_costs(
    parts: Sequence[Lowered], contract: Contract, folder: Path, options: LowerOptions
) -> Iterator[CostChange]:
    """Yield the costs of each lowered model, and of the model that it was made of at the sizes that were fixed."""
    sizes = contract.sizes
    for part in parts:
        original = next((stage.before for stage in part.stages if not stage.is_part), part.model)
        wish: dict[Axis, int] = {"batch": max(sizes["batch"], 1)}
        if sizes["source"]:
            wish["encoder"] = sizes["source"]
        if part.method.when == "step":
            wish |= {"sequence": 1, "past": sizes["capacity"]}
        elif source := sizes.get("sound") or sizes["source"]:
            wish["sequence"] = source
        spec = _spec_of_sizes(original, dict(options.dims))
        compared = BeforeAndAfter([original], load(folder / part.method.file), spec, wish=wish)
        yield costs_before_and_after(
            compared, what=part.method.file, timed=options.time, limits=options.limits, provider=options.provider
        )


def bundling_costs(
    methods: Sequence[MethodModel],
    sources: Pipeline | Sequence[Chain],
    sizes: DeploySizes,
    folder: Path,
    options: BundleOptions,
) -> Iterator[CostChange]:
    """Yield the costs of each method, and of the models of the export that it was made of.

    A step has the last slot for the new token; the slots in use are as many as are typical, or all where these are
    fewer. Where nothing is written, nothing is timed.
    """
    slots, source = min(TYPICAL["past"] + 1, sizes.slots), min(TYPICAL["encoder"], sizes.source)
    for method in methods:
        originals = _original_models(method, sources)
        is_prompt = method.when == "once" and len(originals) == 1
        wish: dict[Axis, int] = {"encoder": source, "sequence": 1, "past": slots - 1}
        if method.when == "once":
            wish |= {"past": 0, "sequence": slots - 1 if is_prompt else 1}
        dims = {name: size for model in originals for name, size in _spec_of_sizes(model, sizes.dims).dims}
        past = const(0) if method.when == "once" else _dim_of(originals, "past", slots - 1)
        new = _dim_of(originals, "sequence", slots - 1 if is_prompt else 1)
        # a ring has as many slots as its window at most, which its symbol names
        rings = [name for name in symbol_roles(method.model) if name.startswith(f"{SLOTS}_")]
        windows = {name: minimum(const(int(name.removeprefix(f"{SLOTS}_"))), past + new) for name in rings}
        model = method.model if options.dry_run else load(folder / method.file)
        in_use, shapes = {SLOTS: past + new, **windows}, infer(method.model)
        # inputs that say how many slots are in use, and of how many tokens logits are kept
        numbers = {"length": past, "kept": const(1)}
        values = {
            value.name: np.full([int(dim) for dim in shapes.dims(value) or ()], numbers[kind], object)
            for value in method.model.graph.inputs
            if (kind := method.kinds.get(value.name)) in numbers
        }
        compared = BeforeAndAfter(originals, model, DimSpec.of(dims), wish=wish, sizes=in_use, values=values)
        is_timed = options.time and not options.dry_run
        yield costs_before_and_after(
            compared, what=method.file, timed=is_timed, limits=options.limits, provider=options.provider
        )


def _dim_of(originals: Sequence[Model], role: Axis, size: int) -> Expr:
    names = [name for name, found in symbol_roles(originals[-1]).items() if found == role] if originals else []
    return symbol(names[0], int(role != "past")) if len(names) == 1 else const(size)


def _original_models(method: MethodModel, sources: Pipeline | Sequence[Chain]) -> list[Model]:
    if not isinstance(sources, Pipeline):
        return [model for chain in sources if chain.name == method.name for model in chain.models]
    originals = sources.originals
    if method.part is not None:
        return [method.part]
    if method.when == "step":
        return [originals.step] if originals.step is not None else []
    return [model for model in (originals.encoder, originals.first) if model is not None]


def _spec_of_sizes(model: Model, dims: Mapping[str, int]) -> DimSpec:
    known = symbol_roles(model)
    return DimSpec.of({name: size for name, size in dims.items() if name in known})
