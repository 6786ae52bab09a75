"""Prove the result of `lower` or `bundle` against its export, at any time, and record how that ended."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from graphkit import __version__
from graphkit.contract.bundle_contract import BundleContract
from graphkit.contract.contract_files import first_difference, read_bundle, read_contract
from graphkit.contract.host_contract import Contract, FileRecord
from graphkit.deploy.bundle_description import BUNDLE_TOML
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.lower import Draft, asked_changes, lower_again, prove_stages_again
from graphkit.deploy.lower_report import GUIDE
from graphkit.deploy.lowering_checks import check_prompt
from graphkit.deploy.make_bundle import BundleExport, bundle_again
from graphkit.deploy.write_proven import DeployContract, DeployFolder, FolderProof, proof_record, record_contract
from graphkit.errors import ModelError, OutputError, UsageError
from graphkit.hosts.method_feeds import check_bundle
from graphkit.io.byte_source import shown_path
from graphkit.options import DeploymentProofOptions, FolderOptions
from graphkit.progress import Progress, portion_of
from graphkit.runtime.session import as_provider
from graphkit.verify.bundle_verifier import equal_tokens
from graphkit.verify.comparator import BUNDLE_TOLERANCE
from graphkit.verify.deployment_proofs import NOT_COMPARED, BundleProof, LoweringProof
from graphkit.verify.lowering_verifier import verify_lowering
from graphkit.verify.proof_engine import run_isolated


def verify_folder(
    export: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    options: FolderOptions = FolderOptions(),
    *,
    progress: Progress = lambda _: None,
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
        ModelError: A file is missing or broken, or the contract says something else than its export gives; or
            onnxruntime cannot run a model of the export.
        OutputError: The record cannot be written.
    """
    export, folder = Path(export), Path(folder)
    if options.record and not as_provider(options.provider).is_cpu:
        raise UsageError("--record is for a proof on the CPU - leave out --provider, or --record")
    progress("reading")
    if (folder / BundleContract.FILE).is_file():
        return _bundle_proof(export, folder, read_bundle(folder / BundleContract.FILE, altered=True), options, progress)
    if not (folder / Contract.FILE).is_file():
        names = f"neither {Contract.FILE} nor {BundleContract.FILE}"
        raise UsageError(f"{folder}: has {names} - name what graphkit lower or bundle wrote")
    contract = read_contract(folder / Contract.FILE, altered=True)
    rate = options.tokens_rate
    proving = _proof_options(options, options.tolerance if rate is None else math.inf)
    whole = find_pipeline(export)
    pipeline = whole.from_steps()
    with run_isolated(options.limits):
        check_prompt(asked_changes(whole, contract.options).originals)
    draft = lower_again(pipeline, contract.options, limits=options.limits, progress=progress)
    originals = draft.changes.originals if options.same_weights else pipeline.originals

    def prove() -> LoweringProof:
        proof = verify_lowering(originals, folder, proving, progress=portion_of(progress, 0.0, 0.7))
        if not options.same_weights:
            return proof if rate is None else _by_tokens(proof, rate, options.tolerance)
        if done := draft.changes.options:
            note = f"The proof is against the export with {' and '.join(done)}, as {Contract.FILE} records."
            proof = replace(proof, notes=(*proof.notes, note))
        return proof if proof.provider != "cpu" else _with_stages(proof, draft, folder, options, progress)

    return _prove_folder(folder, contract, draft.folder, options, prove)


def _prove_folder(
    folder: Path, contract: DeployContract, made: DeployFolder, options: FolderOptions, prove: Callable[[], FolderProof]
) -> FolderProof:
    """Return the proof of a folder whose contract says what its export gives, and record it where that is asked for.

    Where it is not, the record must be that of the files as they are and of this proof, unless another one is asked
    for, by a tolerance or a rate of tokens. `made` is the same folder, made again.
    """
    difference = first_difference(contract, made.contract, leave_out=("files", "proof"))
    if difference and contract.proof.graphkit not in ("", __version__):
        difference += f" with graphkit {__version__}, and it was proven with {contract.proof.graphkit}"
    _refuse_difference(folder, contract, difference)
    for name in contract.read_files:
        if not (folder / name).is_file():
            raise ModelError("it is missing", file=str(folder / name), hint="copy it from where the folder was made")
    proof = prove()
    if options.record:
        names = {file for file in contract.files if (folder / file).is_file()} | set(contract.read_files)
        rate = 1.0 if options.tokens_rate is None else options.tokens_rate
        changes = made.changes if options.same_weights else ()
        record_contract(folder, contract, names, proof_record(proof, tokens_rate=rate, changes=changes))
    elif options.same_weights and proof.passed and proof.provider == "cpu":
        more = "; --record records what is true now, --tolerance or --tokens-rate repeats a proof that had one"
        other = _other_file(folder, contract, made) or _other_proof(contract, proof, made)
        _refuse_difference(folder, contract, other, more)
    return proof


def _refuse_difference(folder: Path, contract: DeployContract, difference: str, more: str = "") -> None:
    if difference:
        hint = f"make the folder again with `graphkit {contract.COMMAND}`{more}"
        raise ModelError(difference, file=str(folder / contract.FILE), hint=hint)


def _other_file(folder: Path, contract: DeployContract, made: DeployFolder) -> str:
    """Return which file is another than was recorded, "" for none; one for people may also be as it was made."""
    named, optional = {*made.models, *made.contents, made.data}, (GUIDE, made.data)  # people may take away a guide
    for name in sorted(named ^ set(contract.files)):
        if name in contract.files or name not in optional or (folder / name).is_file():
            return f"files.{name} is {'there, and the export gives none' if name in contract.files else 'missing'}"
    for name, recorded in contract.files.items():
        content = made.contents.get(name) if name not in contract.read_files else None
        known = [FileRecord.of(folder / name)] if (folder / name).is_file() else []
        known += [] if content is None else [FileRecord(len(content), hashlib.sha256(content).hexdigest())]
        if not known:
            return f"files.{name} is there, and there is no such file"
        if recorded not in known:
            return f"files.{name}.{first_difference(recorded, known[0], by='the file has')}"
    return ""


def _other_proof(contract: DeployContract, proof: LoweringProof | BundleProof, made: DeployFolder) -> str:
    """Return what the record of a proof says otherwise than this proof, which passed; "" for nothing."""
    recorded, found = contract.proof, proof_record(proof, changes=made.changes)
    measured = proof.tolerance if isinstance(proof, BundleProof) and proof.tolerance > BUNDLE_TOLERANCE else 0.0
    if not recorded.passed:
        found = replace(recorded, changes=made.changes)
    elif measured / 2 < (recorded.tolerance or 0.0) < measured * 2:  # another machine may round otherwise
        found = replace(found, tolerance=recorded.tolerance)
    if NOT_COMPARED in (recorded.proven, found.proven):  # on a machine that was too slow for it
        found = replace(found, proven=recorded.proven)
    difference = first_difference(recorded, found, by="this proof has")
    return f"proof.{difference}" if difference else ""


def _proof_options(options: FolderOptions, tolerance: float | None) -> DeploymentProofOptions:
    shared = {name: getattr(options, name) for name in ("seed", "limits", "same_weights", "provider")}
    return DeploymentProofOptions(tolerance=tolerance, **shared)


def _with_stages(
    proof: LoweringProof, draft: Draft, folder: Path, options: FolderOptions, progress: Progress
) -> LoweringProof:
    """Return the proof with its stages, or with a note why these do not end in the files of the folder."""
    try:
        with run_isolated(options.limits):
            return replace(proof, stages=prove_stages_again(draft, folder, progress=progress))
    except (UsageError, ModelError, OutputError) as error:
        return replace(proof, notes=(*proof.notes, f"The files are tested, and no stage is proven: {error}."))


def _by_tokens(proof: LoweringProof, rate: float, tolerance: float | None) -> LoweringProof:
    """Return the proof of models whose tokens decide, within any difference, or within one of a tolerance."""
    largest = [max(run.encoder or 0.0, run.logits or 0.0) for run in proof.runs]
    within = tolerance if tolerance is not None else max(largest, default=0.0)
    runs = tuple(
        run if run.failure or worst <= within else structs.replace(run, failure=f"outputs differ by {worst:.1e}")
        for run, worst in zip(proof.runs, largest, strict=True)
    )
    tried = sum(run.greedy for run in runs)
    equal = tried - sum(run.others for run in runs)
    if fault := _rate_fault(equal, tried, rate):
        return replace(proof, tolerance=within, runs=runs, causes=(*proof.causes, fault))
    return replace(proof, tolerance=within, runs=runs, notes=(*proof.notes, f"{_share_text(equal, tried)}."))


def _share_text(equal: int, tried: int) -> str:
    return f"{equal} of {tried} greedy tokens are those of the export"


def _rate_fault(equal: int, tried: int, rate: float) -> str:
    if not tried:
        return "there are no tokens to compare"
    if equal >= rate * tried:
        return ""
    return f"{_share_text(equal, tried)}, a share of {equal / tried:.3f} instead of {rate:g}"


def _bundle_proof(
    export: Path, folder: Path, contract: BundleContract, options: FolderOptions, progress: Progress
) -> BundleProof:
    rate, source = options.tokens_rate, BundleExport.of(export, apart=contract.options.encode_apart)
    if source.pipeline is None and rate is not None:
        file = export / BUNDLE_TOML if (export / BUNDLE_TOML).is_file() else export
        raise UsageError(f"{shown_path(file)}: its methods choose no tokens - give --tolerance alone")
    progress("making the methods")
    draft = bundle_again(source, contract.options, limits=options.limits)
    proving = _proof_options(options, options.tolerance or (None if rate is None else math.inf))
    proving = replace(proving, same_tokens=rate is None)
    is_exact = draft.is_exact if options.same_weights else options.tolerance == 0 and rate is None

    def prove() -> BundleProof:
        check_bundle(folder, contract)
        told = progress if rate is None else portion_of(progress, 0.0, 0.6)
        proof = source.prove(folder, proving, told, exact=is_exact)
        if source.pipeline is None or rate is None:
            return proof
        told, provider = portion_of(progress, 0.6, 1.0), as_provider(options.provider)
        originals, limits = source.pipeline.originals, options.limits
        equal, tried = equal_tokens(
            originals, folder, seed=options.seed, limits=limits, provider=provider, progress=told
        )
        fault = _rate_fault(equal, tried, rate)
        name = "greedy tokens" if fault else _share_text(equal, tried)
        within = options.tolerance or max((run.logits for run in proof.runs), default=0.0)
        return replace(proof, tolerance=within, fused=within, checks={**proof.checks, name: fault})

    return _prove_folder(folder, contract, draft.folder, options, prove)
