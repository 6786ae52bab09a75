"""Prove the result of `lower` or `bundle` against its export, at any time, and record how that ended."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from graphkit.deploy.asked_changes import AskedChanges, changed_export
from graphkit.deploy.bundle_description import BUNDLE_TOML
from graphkit.deploy.contract.bundle_contract import BundleContract
from graphkit.deploy.contract.contract_reader import read_bundle, read_contract
from graphkit.deploy.contract.host_contract import Contract
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.hosts.open_folder import check_bundle
from graphkit.deploy.lower import prove_stages_again
from graphkit.deploy.make_bundle import BundleExport
from graphkit.deploy.write_proven import proof_record, record
from graphkit.errors import ModelError, OutputError, UsageError
from graphkit.io.stream_files import shown
from graphkit.options import DeploymentProofOptions, FolderOptions
from graphkit.progress import portion
from graphkit.runtime.isolation import isolation
from graphkit.verify.bundle_verifier import equal_tokens
from graphkit.verify.deployment_proofs import BundleProof, LoweringProof
from graphkit.verify.lowering_verifier import verify_lowering
from graphkit.verify.tolerances import BUNDLE_TOLERANCE, LOWERING_TOLERANCE

__all__ = ["FolderOptions", "verify_folder"]


def verify_folder(
    export: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    options: FolderOptions = FolderOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> LoweringProof | BundleProof:
    """Prove a lowered folder or a bundle, as it is now, against the export that it was made of.

        graphkit.verify_folder("opus-mt-en-fr", "opus.bundle").passed

    Args:
        export: The folder of the export, with or without a `bundle.toml`, or a model file.
        folder: The folder of `contract.json` or `bundle.json`.
        options: How.
        progress: Called with the name of each step before it starts.

    Returns:
        The proof; `proof.passed` says whether it holds. Nothing is written unless `options.record`.

    Raises:
        UsageError: The folder is neither, or the export is of another kind.
        ModelError: A file is missing or broken, or onnxruntime cannot run a model of the export.
        OutputError: The record cannot be written.
    """
    export, folder = Path(export), Path(folder)
    progress("reading")
    if (folder / BundleContract.FILE).is_file():
        bundle = read_bundle(folder / BundleContract.FILE, altered=True)
        _check_there(folder, bundle.read_files)
        check_bundle(folder, bundle)
        bundle_proof = _bundle_proof(export, folder, bundle, options, progress)
        if options.record:
            _record(folder, bundle, bundle_proof, options)
        return bundle_proof
    if not (folder / Contract.FILE).is_file():
        names = f"neither {Contract.FILE} nor {BundleContract.FILE}"
        raise UsageError(f"{folder}: has {names} - name what graphkit lower or bundle wrote")
    contract = read_contract(folder / Contract.FILE, altered=True)
    _check_there(folder, contract.read_files)
    proof = _lowering_proof(export, folder, contract, options, progress)
    if options.record:
        _record(folder, contract, proof, options)
    return proof


def _check_there(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise ModelError("it is missing", file=str(folder / name), hint="copy it from where the folder was made")


def _lowering_proof(
    export: Path, folder: Path, contract: Contract, options: FolderOptions, progress: Callable[[str], None]
) -> LoweringProof:
    changes = changed_export(find_pipeline(export), contract.proof.changes if options.same_weights else ())
    rate = options.tokens_rate
    asked = options.tolerance if options.tolerance is not None else contract.proof.tolerance
    tolerance = math.inf if rate is not None else LOWERING_TOLERANCE if asked is None else asked
    proving = DeploymentProofOptions(
        tolerance=tolerance, seed=options.seed, limits=options.limits, same_weights=options.same_weights
    )
    proof = verify_lowering(changes.originals, folder, proving, progress=portion(progress, 0.0, 0.7))
    if changes.done:
        note = f"The proof is against the export with {' and '.join(changes.options)}, as {Contract.FILE} records."
        proof = replace(proof, notes=(*proof.notes, note))
    if options.same_weights:
        proof = _with_stages(proof, changes, folder, contract, options, progress)
    return proof if rate is None else _by_tokens(proof, rate, options.tolerance)


def _with_stages(
    proof: LoweringProof,
    changes: AskedChanges,
    folder: Path,
    contract: Contract,
    options: FolderOptions,
    progress: Callable[[str], None],
) -> LoweringProof:
    """Return the proof with its stages, or with a note why these do not end in the files of the folder."""
    try:
        with isolation(options.limits):
            return replace(proof, stages=prove_stages_again(changes, folder, contract, progress=progress))
    except (UsageError, ModelError, OutputError) as error:
        return replace(proof, notes=(*proof.notes, f"The files are tested, and no stage is proven: {error}."))


def _by_tokens(proof: LoweringProof, rate: float, tolerance: float | None) -> LoweringProof:
    """Return the proof of models whose tokens decide, within any difference, or within one of a tolerance."""
    largest = [max(run.encoder or 0.0, run.logits or 0.0) for run in proof.runs]
    within = tolerance if tolerance is not None else max(largest, default=0.0)
    runs = tuple(
        run if run.failure or worst <= within else replace(run, failure=f"outputs differ by {worst:.1e}")
        for run, worst in zip(proof.runs, largest, strict=True)
    )
    tried = sum(run.greedy for run in runs)
    equal = tried - sum(run.others for run in runs)
    if fault := _rate_fault(equal, tried, rate):
        return replace(proof, tolerance=within, runs=runs, causes=(*proof.causes, fault))
    return replace(proof, tolerance=within, runs=runs, notes=(*proof.notes, f"{_share(equal, tried)}."))


def _share(equal: int, tried: int) -> str:
    return f"{equal} of {tried} greedy tokens are those of the export"


def _rate_fault(equal: int, tried: int, rate: float) -> str:
    """Return why a share of equal tokens is too small, "" where it is not."""
    if not tried:
        return "there are no tokens to compare"
    if equal >= rate * tried:
        return ""
    return f"{_share(equal, tried)}, a share of {equal / tried:.3f} instead of {rate:g}"


def _bundle_proof(
    export: Path, folder: Path, contract: BundleContract, options: FolderOptions, progress: Callable[[str], None]
) -> BundleProof:
    rate, source = options.tokens_rate, BundleExport.of(export)
    asked = options.tolerance if options.tolerance is not None else contract.proof.tolerance
    exact = asked == 0 and rate is None
    tolerance = asked or BUNDLE_TOLERANCE if rate is None else options.tolerance or math.inf
    if source.pipeline is None and rate is not None:
        file = export / BUNDLE_TOML if (export / BUNDLE_TOML).is_file() else export
        raise UsageError(f"{shown(file)}: its methods choose no tokens - give --tolerance alone")
    proving = DeploymentProofOptions(
        tolerance=tolerance,
        seed=options.seed,
        limits=options.limits,
        same_weights=options.same_weights,
        same_tokens=rate is None,
    )
    told = progress if rate is None else portion(progress, 0.0, 0.6)
    proof = source.prove(folder, proving, told, exact=exact)
    if source.pipeline is None or rate is None:
        return proof
    equal, tried = equal_tokens(
        source.pipeline.originals,
        folder,
        seed=options.seed,
        limits=options.limits,
        progress=portion(progress, 0.6, 1.0),
    )
    fault = _rate_fault(equal, tried, rate)
    name = "greedy tokens" if fault else _share(equal, tried)
    within = options.tolerance or max((run.logits for run in proof.runs), default=0.0)
    return replace(proof, tolerance=within, fused=within, checks={**proof.checks, name: fault})


def _record(
    folder: Path, contract: Contract | BundleContract, proof: LoweringProof | BundleProof, options: FolderOptions
) -> None:
    """Record the files as they are, of which some may be gone that no host reads, and how the proof ended."""
    names = {file for file in contract.files if (folder / file).is_file()} | set(contract.read_files)
    rate = 1.0 if options.tokens_rate is None else options.tokens_rate
    changes = contract.proof.changes if options.same_weights else ()
    record(folder, contract, names, proof_record(proof, tokens_rate=rate, changes=changes))
