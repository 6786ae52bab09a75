"""The report of a lowering, and the answers of compilers, known ones or the user's own, that judge each model."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from graphkit.analysis.blockers import Blockers, count_nodes
from graphkit.analysis.cost_changes import CostChange, cost_change_blocks
from graphkit.analysis.verdict import asked_options
from graphkit.contract import Contract
from graphkit.deploy.lowered_contract import Lowered
from graphkit.errors import UsageError, count_things
from graphkit.judges import JUDGES, Answer, Trial, ask_judge, find_judge
from graphkit.options import JUDGE_SECONDS, LowerOptions
from graphkit.progress import Progress
from graphkit.render.document_blocks import Block, Heading, Prose, table
from graphkit.render.result import Result
from graphkit.runtime.isolation import describe_ending
from graphkit.shapes import infer
from graphkit.verify.deployment_proofs import LoweringProof
from graphkit.verify.rewrite_proof import ProvenReport, proof_outcome

GUIDE, DATA = "HOST.md", "weights.onnx_data"
MODEL = "{model}"
KEPT = 16384  # bytes of what a judge said last
LINES = 20  # of these, in a text
ALIKE = 0.99  # the least cosine of outputs that are the same but for float16


class LoweredFile(Struct, frozen=True):
    """A lowered model."""

    name: str  # the file
    nodes: int
    rank: int  # the highest rank of its tensors
    inputs: int  # how many
    outputs: int
    blockers: Blockers  # what the target still refuses
    changes: tuple[str, ...]  # what was done, a sentence each


@dataclass(frozen=True)
class LowerReport(ProvenReport):
    """The result of a lowering.

    Attributes:
        source: What was lowered.
        target: For which target.
        files: The models.
        tables: The files that the host looks rows up in, with their bytes.
        state_bytes: Bytes of the state that the host keeps.
        proof: None where it was not run.
        judged: What the judges of the user say, None where there are none.
        notes: What else to know, a sentence each.
        settings: The sizes that it is for, and the tokens that the export does not say, a sentence each.
        data: The file of weights that do not fit into the models, "" for none.
        costs: Costs of each model, before and after.
    """

    title: ClassVar[str] = "Lowering"
    source: str
    target: str
    files: tuple[LoweredFile, ...]
    tables: Mapping[str, int]
    state_bytes: int
    proof: LoweringProof | None
    judged: Judgements | None = None
    notes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    data: str = ""
    costs: tuple[CostChange, ...] = ()

    def heading(self) -> str:
        return f"{super().heading()} for {self.target}"

    def findings(self) -> tuple[str, ...]:
        return (*self._refused_texts(), *super().findings(), *self._judge_findings())

    def _refused_texts(self) -> Iterator[str]:
        for file in self.files:
            if refused := file.blockers.blockers:
                options = asked_options(file.blockers).items()
                by_pass = ((count_nodes(each for each in refused if each.pass_name == name), o) for name, o in options)
                hints = [f"{count} of which {option} removes" for count, option in by_pass if count]
                nodes = f"{file.name}: {self.target} refuses {count_things(count_nodes(refused), 'node(s)')}"
                yield ", ".join([nodes, *hints])

    def _judge_findings(self) -> tuple[str, ...]:
        return self.judged.findings() if self.judged is not None else ()

    def _target_verdict(self) -> str:
        files = [file.blockers for file in self.files]
        refused, unknown = sum(count_nodes(each.blockers) for each in files), sum(each.open_nodes for each in files)
        said = f"of {unknown:,} of {count_things(sum(each.nodes for each in files), 'node(s)')} no source says"
        if refused:
            return f"refuses {count_things(refused, 'node(s)')}" + (f"; {said}" if unknown else "")
        return f"is not known to refuse anything: {said} whether it takes them" if unknown else "refuses nothing"

    def blocks(self) -> Iterator[Block]:
        models = count_things(len(self.files), "model(s)")
        done = f"Lowered to {models} for {self.target}, which {self._target_verdict()}."
        yield proof_outcome(done, self.proof, faults=(*self._refused_texts(), *self._judge_findings()))
        names = [*(file.name for file in self.files), *([self.data] if self.data else [])]
        written = ", ".join([*names, *self.tables, Contract.FILE, GUIDE])
        yield Prose(f"Wrote {written}. {GUIDE} says what the host does.")
        yield table(
            "Model:code | Nodes:number | Highest rank:number | Inputs:number | Outputs:number | Blockers:number | "
            "Unknown:number",
            [
                (f.name, f.nodes, f.rank, f.inputs, f.outputs, len(f.blockers.blockers), f.blockers.open_nodes)
                for f in self.files
            ],
        )
        if self.state_bytes:
            yield Prose(f"The host keeps {self.state_bytes:,} bytes of state.")
        yield from map(Prose, (*self.settings, *self.notes))
        yield from (Prose(text, "warning") for text in (self.judged.other_numbers() if self.judged is not None else ()))
        for file in self.files:
            if file.blockers.blockers or file.blockers.unknown:
                refused = "refuses" if file.blockers.blockers else "may refuse"
                yield Heading(f"What {self.target} {refused} of {file.name}")
                yield from file.blockers.blocks()
        yield Heading("What was done")
        yield table("Model:code | Change", [(file.name, change) for file in self.files for change in file.changes])
        yield Heading("Proof")
        if self.proof is None:
            yield Prose("Not run: the models are unverified.", "warning")
        else:
            yield from self.proof.blocks()
        if self.judged is not None:
            yield Heading(self.judged.heading())
            yield from self.judged.blocks()
        yield from cost_change_blocks(self.costs)


def lowered_file(part: Lowered) -> LoweredFile:
    """Return the report's entry of a lowered model."""
    shapes, graph = infer(part.model), part.model.graph
    rank = max((len(dims) for value in shapes if (dims := shapes[value].dims) is not None), default=0)
    nodes, inputs, outputs = len(graph.nodes), len(graph.inputs), len(graph.outputs)
    return LoweredFile(part.method.file, nodes, rank, inputs, outputs, blockers=part.blockers, changes=part.changes)


class Judgement(Struct, frozen=True):
    """The answer of one judge about one model."""

    model: str  # the file
    command: str  # as it was given: the name of a judge, or a command with `{model}` in it
    status: int | None  # the exit status; negative for a signal, None where its time was over, or for a named judge
    why: str  # why it does not pass, "" where it passes
    output: tuple[str, ...]  # the last lines that it printed; of a judge that has a name, why nodes stay on the CPU
    device_nodes: int | None = None  # how many run where, None where that is not said
    cpu_nodes: int | None = None
    partitions: int | None = None  # of the device
    copies: int | None = None  # between the two
    bytes: int | None = None  # of what the compiler wrote
    # how far outputs are from onnxruntime's CPU on random numbers, of a judge with a simulator: the least cosine, and
    # the largest difference, relative to the largest number of the output
    cosine: float | None = None
    error: float | None = None

    @property
    def counts(self) -> tuple[int | str | None, ...]:
        cosine = None if self.cosine is None else f"{self.cosine:.6f}"
        error = None if self.error is None else f"{self.error:.1e}"
        return self.device_nodes, self.cpu_nodes, self.partitions, self.copies, cosine, error

    @classmethod
    def of(cls, model: str, judge: str, answer: Answer) -> Judgement:
        left = answer.on("cpu")
        lines = tuple(f"{node.op} '{node.name}': {node.why or 'no reason given'}" for node in left)
        odd = [f"'{each.output}' is not finite" for each in answer.numbers if each.cosine is None]
        if why := answer.no_numbers or ", ".join(odd):
            lines = (*lines, f"no numbers: {why}")
        counts = (len(answer.on("device")), len(left), answer.partitions, answer.copies, sum(answer.files.values()))
        cosines, errors = ([getattr(each, key) for each in answer.numbers] for key in ("cosine", "error"))
        numbers = (min(cosines), max(errors)) if cosines and not odd else ()
        return cls(model, judge, None, answer.fault, lines, *((*counts, *numbers) if not answer.error else ()))


@dataclass(frozen=True)
class Judgements(Result):
    """The answers of the judges about all models."""

    title: ClassVar[str] = "Judges"
    judgements: tuple[Judgement, ...]

    def findings(self) -> tuple[str, ...]:
        return tuple(f"{answer.model}: `{answer.command}`: {answer.why}" for answer in self.judgements if answer.why)

    def other_numbers(self) -> Iterator[str]:
        """Yield where a device computes other numbers than the CPU, of which float16 alone is no cause."""
        for each in self.judgements:
            if each.cosine is not None and each.cosine < ALIKE:
                apart = f"a cosine of {each.cosine:.3f}, an error of {each.error:.0%} of the largest number"
                yield f"{each.model}: `{each.command}` computes other numbers than the CPU: {apart}."

    def blocks(self) -> Iterator[Block]:
        yield table(
            "Model:code | Judge:code | Result | On it:number | On the CPU:number | Partitions:number | Copies:number | "
            "Cosine:number | Error:number",
            [(each.model, each.command, each.why or "passes", *each.counts) for each in self.judgements],
        )
        for answer in self.judgements:
            if answer.output:
                yield Prose(f"`{answer.command}` said of {answer.model}, last:")
                yield table("Output:code", [(line,) for line in answer.output[-LINES:]])


def judge_words(command: str) -> tuple[str, ...]:
    """Return the words of a command, none of a judge that has a name; no shell sees them. Refuse what cannot run."""
    if command in JUDGES:
        find_judge(command)
        return ()
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--judge '{command}': {error} - close the quotes") from None
    if not any(MODEL in word for word in words):
        hint = f"name one of {', '.join(JUDGES)}, or write {MODEL} where the model's path belongs"
        raise UsageError(f"--judge '{command}': is no judge, and does not name the model - {hint}")
    if shutil.which(words[0]) is None:
        raise UsageError(f"--judge '{command}': there is no program '{words[0]}' - give its path, or install it")
    return words


def judge_models(command: str, models: Sequence[Path], seconds: float = JUDGE_SECONDS) -> Iterator[Judgement]:
    """Yield the answer of a judge about each model; exit status 0 passes, or a model that the device runs alone.

    A judge is known by its name, or is a program with its arguments and `{model}` for the path of the model. After so
    many seconds for a model it is ended, with what it has started.
    """
    if not (words := judge_words(command)):
        answers = ask_judge(find_judge(command), models, seconds=seconds, trials=[Trial()] * len(models))
        yield from (Judgement.of(model.name, command, answer) for model, answer in zip(models, answers, strict=True))
        return
    for model in models:
        status, said = _run_command([word.replace(MODEL, str(model.absolute())) for word in words], command, seconds)
        why = f"exit status {status}" if status else ""
        if status is None:
            why = f"it does not end in {seconds:g} s"
        elif status < 0:
            why = describe_ending(status)
        lines = tuple(line for line in said.decode("utf-8", "replace").splitlines() if line.strip())
        yield Judgement(model.name, command, status, why, lines)


def all_judgements(
    models: Sequence[Path], answers: Sequence[Judgement], options: LowerOptions, progress: Progress
) -> Judgements | None:
    """Return the answers of judges that have a name, and those of the user's own commands; None without a judge."""
    judgements = [*answers]
    for command in options.judges:
        if command not in JUDGES:
            progress(f"asking {command}")
            judgements.extend(judge_models(command, models, options.judge_seconds))
    return Judgements(tuple(judgements)) if options.judges else None


def _run_command(words: Sequence[str], command: str, seconds: float) -> tuple[int | None, bytes]:
    """Return the exit status, None where time was over, and the end of the output."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(  # in a session of its own, so that what it starts can be ended with it
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise UsageError(f"--judge '{command}': does not start: {error} - see whether it runs by itself") from None
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            try:
                status = process.wait(seconds)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
                process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - KEPT))
        return status, output.read()
