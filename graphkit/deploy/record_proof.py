"""Write the record of a folder of models: its contract, with its files and how their proof ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from graphkit import __version__
from graphkit.deploy.contract.bundle_contract import BundleContract
from graphkit.deploy.contract.host_contract import Contract
from graphkit.deploy.contract.proof_record import NOT_RUN, ProofRecord, record_files
from graphkit.io.transaction import write_text

__all__ = ["AnyContract", "Outcome", "proof_record", "record", "record_stage"]

AnyContract = TypeVar("AnyContract", Contract, BundleContract)


class Outcome(Protocol):
    """The facts of a proof that a record needs."""

    @property
    def passed(self) -> bool:
        """Whether it holds."""

    @property
    def tolerance(self) -> float:
        """The largest difference that counts as equal."""

    def findings(self) -> tuple[str, ...]:
        """Return why it failed, a sentence each."""


def proof_record(proof: Outcome | None, *, tokens_rate: float = 1.0, changes: tuple[str, ...] = ()) -> ProofRecord:
    """Return the record of a proof against an export, or against one with changes that the user asked for."""
    if proof is None:
        return replace(NOT_RUN, changes=changes)
    reason = "" if proof.passed else proof.findings()[0]
    return ProofRecord(
        "passed" if proof.passed else "failed", reason, proof.tolerance, tokens_rate, __version__, changes
    )


def record(folder: Path, name: str, contract: AnyContract, names: Iterable[str], proof: ProofRecord) -> AnyContract:
    """Write a contract with the record of the files beside it and of their proof, and return it.

    Raises:
        ModelError: A file cannot be read.
        OutputError: It cannot be written.
    """
    made = replace(contract, files=record_files(folder, names), proof=proof)
    write_text(folder / name, made.to_json())
    return made


def record_stage(
    stage: Path, name: str, contract: AnyContract, proof: Outcome | None, changes: tuple[str, ...] = ()
) -> AnyContract:
    """Record all files that are about to get their places; see `record` and `proof_record`."""
    names = (path.name for path in stage.iterdir() if path.name != name)
    return record(stage, name, contract, names, proof_record(proof, changes=changes))
