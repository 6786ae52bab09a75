"""Write a folder of models with its contract, once all is proven, and the record of that: its files, and the proof."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from graphkit import __version__
from graphkit.contract.bundle_contract import BundleContract
from graphkit.contract.contract_files import record_files
from graphkit.contract.contract_parts import NOT_RUN, ProofRecord
from graphkit.contract.host_contract import Contract
from graphkit.io.transaction import made_folder, write_text
from graphkit.model import Model
from graphkit.save import Placement, Saved, save_models
from graphkit.verify.deployment_proofs import BundleProof, LoweringProof

DeployContract = Contract | BundleContract
FolderProof = TypeVar("FolderProof", LoweringProof, BundleProof)


@dataclass(frozen=True, eq=False)
class DeployFolder:
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
        tolerance=proof.tolerance,
        tokens_rate=tokens_rate,
        graphkit=__version__,
        changes=changes,
        proven=proof.proven_outputs() if proof.passed else {},
    )


def record_contract(folder: Path, contract: DeployContract, names: Iterable[str], proof: ProofRecord) -> None:
    """Write a contract with the record of the files beside it and of their proof."""
    made = replace(contract, files=record_files(folder, names), proof=proof)
    write_text(folder / contract.FILE, made.to_json())
