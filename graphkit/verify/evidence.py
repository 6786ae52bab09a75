"""The findings of a proof besides its runs: the weights, and the default level of onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from graphkit.render.blocks import Block, Heading, Lines, Prose
from graphkit.render.lines import outcome
from graphkit.render.result import Result

__all__ = ["LevelProof", "WeightProof", "proof_blocks", "proof_outcome"]


class Proof(Protocol):
    """The interface of every proof."""

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        ...

    def proven(self) -> str:
        """Return the proven statement, a sentence."""
        ...

    def findings(self) -> tuple[str, ...]:
        """Return why it failed, a sentence each."""
        ...


def proof_outcome(done: str, proof: Proof | None, *, faults: Sequence[str] = (), unproven: str = "") -> Lines:
    """Return the first lines of a report of written files.

    Args:
        done: What was done, in a sentence.
        proof: What was proven, None for nothing.
        faults: What is wrong besides, a sentence each.
        unproven: Why there is no proof; "" where nobody asked for one.
    """
    if proof is None:
        return outcome([done], (*faults, f"not proven: {unproven or 'the proof was not run'}"))
    if proof.passed:
        return outcome([done, proof.proven()], faults)
    return outcome([f"{done} The proof failed."], (*faults, *(proof.findings() or ("nothing was run",))))


def proof_blocks(proof: Result | None, files: str, options: str = "") -> Iterator[Block]:
    """Yield the blocks of a proof of some files, or that there is none."""
    yield Heading("Proof")
    if proof is None:
        yield Prose(f"Not run: {files} unverified. `graphkit verify{options}` runs it.", "warning")
    else:
        yield from proof.blocks()


@dataclass(frozen=True)
class WeightProof:
    """Weights compared byte by byte.

    Attributes:
        made: Small constants that only the result has, which nothing was compared with.
        failures: Weights that differ, a sentence each.
    """

    equal: int = 0
    bytes: int = 0
    made: int = 0
    failures: tuple[str, ...] = ()

    def __add__(self, other: WeightProof) -> WeightProof:
        return WeightProof(
            self.equal + other.equal,
            self.bytes + other.bytes,
            self.made + other.made,
            (*self.failures, *other.failures),
        )

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks to show."""
        if self.equal:
            weights = "1 constant tensor is" if self.equal == 1 else f"{self.equal:,} constant tensors are"
            yield Prose(f"{weights} equal byte by byte, {self.bytes:,} bytes of weights.")
        if self.made:
            constants = "1 small constant is" if self.made == 1 else f"{self.made:,} small constants are"
            yield Prose(f"{constants} new; only the runs compare what is made of them.")


@dataclass(frozen=True)
class LevelProof:
    """A model at onnxruntime's default level, against its original without optimizations.

    Attributes:
        tolerance: Largest difference, relative to the largest magnitude in an output, that counts as equal.
        scaled: The largest such difference; None where nothing was compared, or what differs is no number.
        reference: The same of the original itself at the default level; None where nobody needed to know.
        failure: What differs, "" for nothing; it may be twice as far off as the original itself.
        note: What to know of it, "" for nothing.
    """

    runs: int = 0
    tolerance: float = 0.0
    scaled: float | None = None
    reference: float | None = None
    failure: str = ""
    note: str = ""

    @property
    def allowed(self) -> str:
        """The tolerance, in words."""
        return f"{self.tolerance:g} of the largest magnitude in each output"

    @property
    def result(self) -> str:
        """The largest difference, beside that of the original where it is known."""
        own = f", the original itself {self.reference:.3g}" if self.reference else ""
        return f"{self.scaled:.3g}{own}" if self.scaled is not None else "nothing was compared"
