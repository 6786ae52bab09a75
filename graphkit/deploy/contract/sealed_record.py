"""The record of a folder of models: how its proof ended, the bytes of each file, and a checksum of the record.

`contract.json` and `bundle.json` end with the checksum of all that stands before it, white space between its parts
left out, so that a change by hand is noticed, and another indentation is none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from graphkit.errors import ModelError

__all__ = [
    "NOT_RUN",
    "TEXT",
    "FileRecord",
    "ProofRecord",
    "check_files",
    "is_file_name",
    "is_unsealed",
    "record_files",
    "record_problems",
    "seal_record",
]

Outcome = Literal["passed", "failed", "not run"]
HEX = re.compile(r"[0-9a-f]{64}")
SEAL = re.compile(r'(.*),"checksum":"([0-9a-f]{64})"\}', re.DOTALL)
SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+', re.DOTALL)  # strings, which keep theirs, and white space outside of them
CHANGES = ("--dequantize", "--gelu-to-tanh")  # options of `graphkit lower` that change results
TEXT = {"text": True}  # metadata of a field that tells people something, and hosts nothing
FOR_PEOPLE = (".md", ".mjs")  # suffixes of files that no host reads
BLOCK = 1 << 20


@dataclass(frozen=True)
class ProofRecord:
    """How the proof of a folder ended.

    Attributes:
        outcome: `passed`, `failed` or `not run`.
        reason: The first reason why it failed, or why it was not run; "" where it passed.
        tolerance: The largest difference of outputs that counted as equal; None where none did, or nothing was run.
        tokens_rate: The share of greedy tokens that had to be equal.
        graphkit: The version of graphkit that ran it; "" where it was not run.
        changes: Options that the user gave to change results; it compares with the export with these changes.
        proven: How exactly each output is equal that is so at every legal size and for every input, by method; just
            "not compared" where there was no time to find out.
    """

    outcome: Outcome
    reason: str = field(default="", metadata=TEXT)
    tolerance: float | None = None
    tokens_rate: float = 1.0
    graphkit: str = field(default="", metadata=TEXT)
    changes: tuple[str, ...] = ()
    proven: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether it was run, and holds."""
        return self.outcome == "passed"

    def sentence(self) -> str:
        """Return its fault, as the end of a sentence about the folder; "" where it passed."""
        if self.passed:
            return ""
        return f"its proof failed: {self.reason}" if self.outcome == "failed" else f"it is not proven: {self.reason}"


NOT_RUN = ProofRecord("not run", "the proof was not run")


@dataclass(frozen=True)
class FileRecord:
    """A file as it was when the record was made.

    Attributes:
        bytes: Its size.
        sha256: Its SHA-256, in hexadecimal digits.
    """

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Return the record of a file as it is.

        Raises:
            OSError: It cannot be read.
        """
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
        return cls(size, digest.hexdigest())


def record_files(folder: Path, names: Iterable[str]) -> dict[str, FileRecord]:
    """Return the records of files, in the order of their names.

    Raises:
        ModelError: One cannot be read.
    """
    records = {}
    for name in sorted(names):
        try:
            records[name] = FileRecord.of(folder / name)
        except OSError as error:
            raise ModelError(f"it cannot be read: {error.strerror}", file=str(folder / name), hint=AGAIN) from error
    return records


AGAIN = "make the folder again, or copy it again from where it was made"


def check_files(folder: Path, files: Mapping[str, FileRecord], record: str, *, checksums: bool = False) -> None:
    """Check that files are those that were recorded: by size those that hosts read, or all by their checksums too.

    Args:
        folder: Where they are.
        files: Their records, by name.
        record: The name of the file that holds these.
        checksums: Whether to read the files.

    Raises:
        ModelError: A file is missing, or another one.
    """
    hint = f"{AGAIN}; what was changed on purpose is proven by `graphkit verify EXPORT {folder} --record`"
    for name, expected in files.items():
        path = folder / name
        if not checksums and path.suffix in FOR_PEOPLE:
            continue
        try:
            size = path.stat().st_size
            is_same = not checksums or FileRecord.of(path).sha256 == expected.sha256
        except OSError as error:
            raise ModelError(f"it cannot be read: {error.strerror}", file=str(path), hint=AGAIN) from error
        if size != expected.bytes:
            problem = f"it has {size:,} bytes, and {record} records {expected.bytes:,}"
            raise ModelError(problem, file=str(path), hint=hint)
        if not is_same:
            raise ModelError(f"its SHA-256 is not the one that {record} records", file=str(path), hint=hint)


def is_file_name(name: str) -> bool:
    """Whether text names a file beside the record, and no other place."""
    return name not in ("", ".", "..") and not any(char in name for char in "/\\\0")


def record_problems(proof: ProofRecord, files: Mapping[str, FileRecord], read: Iterable[str]) -> Iterator[str]:
    """Yield the contradictions in a record, a clause each; `read` has the files that hosts read."""
    if proof.passed == bool(proof.reason):
        yield "its proof passed for a reason, or did not for none"
    if proof.proven and not proof.passed:
        yield "its proof did not pass, and outputs are proven"
    if proof.outcome == "not run" and (proof.tolerance, proof.tokens_rate) != (None, 1):
        yield "its proof was not run, and has a tolerance or a rate of tokens"
    if unknown := [change for change in proof.changes if change not in CHANGES]:
        yield f"its proof is of an export that was changed by '{unknown[0]}', which is no such option"
    if not 0 <= proof.tokens_rate <= 1 or (proof.tolerance is not None and not proof.tolerance >= 0):
        yield "its proof has no tolerance, or a rate of tokens that is none"
    for name, file in files.items():
        if not is_file_name(name):
            yield f"'{name}' is not the name of a file beside it"
        if file.bytes < 0 or not HEX.fullmatch(file.sha256):
            yield f"file '{name}' has no size, or no SHA-256"
    missing = [name for name in read if name not in files]
    if missing and (files or proof.passed):
        yield f"it records no file '{missing[0]}'"


def seal_record(record: Any) -> str:
    """Return a contract, a dataclass, as JSON that ends with its checksum."""
    plain = dataclasses.asdict(record)
    unfinished = json.dumps(plain, indent=2)
    digest = hashlib.sha256(_without_spaces(unfinished)[:-1].encode()).hexdigest()
    return json.dumps({**plain, "checksum": digest}, indent=2) + "\n"


def is_unsealed(text: str) -> bool:
    """Whether JSON no longer has its checksum."""
    match = SEAL.fullmatch(_without_spaces(text))
    return match is None or hashlib.sha256(match[1].encode()).hexdigest() != match[2]


def _without_spaces(text: str) -> str:
    return SPACE.sub(r"\1", text)
