"""Lower a pipeline to what an NPU compiler takes: models, tables, the contract for the host program, and the proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from graphkit.analysis.blockers import Blockers
from graphkit.constraints.symbol_sizes import symbol_roles
from graphkit.contract import Contract
from graphkit.contract.guide import guide
from graphkit.errors import UsageError
from graphkit.graph.view import all_scopes
from graphkit.io.transaction import made_folder
from graphkit.model import Model
from graphkit.passes.control_flow.split_merged import split_merged
from graphkit.passes.fold import fold
from graphkit.passes.npu.mask_floors import floor_of, mask_floor
from graphkit.passes.npu.split_cross_kv import split_cross_kv
from graphkit.render.blocks import Block, Column, Heading, Prose
from graphkit.render.blocks import Table as Rows
from graphkit.render.result import Result
from graphkit.runtime.isolation import isolation
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.save import save_models
from graphkit.targets import load_target
from graphkit.verify.lowering import LoweringProof, verify_lowering
from graphkit.verify.original_pipeline import Originals
from graphkit.workflows.host_contract import build_contract, collect_tables, linked
from graphkit.workflows.judge import SECONDS, Judgement, Judgements, judge, judge_words
from graphkit.workflows.kv_layout import stack_caches
from graphkit.workflows.lower_sizes import LowerSizes
from graphkit.workflows.lowering import Lowered, lower_model
from graphkit.workflows.originals import Pipeline, find_pipeline

__all__ = ["LowerOptions", "LowerReport", "LoweredFile", "lower_folder"]

KvLayout = Literal["per-layer", "stacked"]
CONTRACT, GUIDE = "contract.json", "HOST.md"
MAX_POSITIONS = 1 << 16


@dataclass(frozen=True)
class LowerOptions:
    """How to lower.

    Attributes:
        target: The name of a target, or the path of its file.
        src_len: Positions of a padded source.
        max_cache_len: Slots of the cache.
        batch: Sequences at a time; 1 is all that host and proof can run.
        mask_floor: What is added to scores that do not count; None for what the target takes.
        dims: Numbers for other symbols, such as `(("height", 224),)`.
        pad: The token that pads; None for what the export says, else 0.
        verify: Whether to run the proof.
        overwrite: Replace files that exist.
        limits: What a model may take of time and memory.
        judges: Commands that are run on each lowered model, with `{model}` for its path; exit status 0 passes.
        judge_seconds: How long a judge may take for a model.
        kv_layout: `per-layer`: a state for the keys and one for the values of each layer, as the export has them;
            `stacked`: one for the keys and one for the values of all, `[layers, batch, slots, heads * head_dim]`.
    """

    target: str = "generic-npu"
    src_len: int = 64
    max_cache_len: int = 64
    batch: int = 1
    mask_floor: float | None = None
    dims: tuple[tuple[str, int], ...] = ()
    pad: int | None = None
    verify: bool = True
    overwrite: bool = False
    limits: Limits = DEFAULT_LIMITS
    judges: tuple[str, ...] = ()
    judge_seconds: float = SECONDS
    kv_layout: KvLayout = "per-layer"


@dataclass(frozen=True)
class LoweredFile:
    """A lowered model.

    Attributes:
        name: The file.
        nodes: Its nodes.
        rank: The highest rank of its tensors.
        inputs, outputs: How many.
        blockers: What the target still refuses.
        changes: What was done, a sentence each.
    """

    name: str
    nodes: int
    rank: int
    inputs: int
    outputs: int
    blockers: Blockers
    changes: tuple[str, ...]


@dataclass(frozen=True)
class LowerReport(Result):
    """What lowering made.

    Attributes:
        source: What was lowered.
        target: For which target.
        files: The models.
        tables: The files that the host looks rows up in, with their bytes.
        state_bytes: Bytes of the state that the host keeps.
        proof: None where it was not run.
        judged: What the judges of the user say, None where there are none.
    """

    title: ClassVar[str] = "Lowering"
    source: str
    target: str
    files: tuple[LoweredFile, ...]
    tables: Mapping[str, int]
    state_bytes: int
    proof: LoweringProof | None
    judged: Judgements | None = None

    def heading(self) -> str:
        return f"Lowering of {self.source} for {self.target}"

    def findings(self) -> tuple[str, ...]:
        left = [
            f"{file.name}: {self.target} refuses {len(file.blockers.blockers):,} nodes"
            for file in self.files
            if file.blockers.blockers
        ]
        proven = self.proof.findings() if self.proof is not None else ()
        return (*left, *proven, *(self.judged.findings() if self.judged is not None else ()))

    def blocks(self) -> Iterator[Block]:
        names = [file.name for file in self.files]
        yield Prose(f"Wrote {', '.join([*names, *self.tables, CONTRACT, GUIDE])}. {GUIDE} says what the host does.")
        yield Rows(
            (
                Column("Model", "code"),
                Column("Nodes", "number"),
                Column("Highest rank", "number"),
                Column("Inputs", "number"),
                Column("Outputs", "number"),
                Column("Blockers", "number"),
            ),
            [(f.name, f.nodes, f.rank, f.inputs, f.outputs, len(f.blockers.blockers)) for f in self.files],
        )
        if self.state_bytes:
            yield Prose(f"The host keeps {self.state_bytes:,} bytes of state.")
        for file in self.files:
            if file.blockers.blockers:
                yield Heading(f"What {self.target} refuses of {file.name}")
                yield from file.blockers.blocks()
        yield Heading("What was done")
        yield Rows(
            (Column("Model", "code"), Column("Change")),
            [(file.name, change) for file in self.files for change in file.changes],
        )
        yield Heading("Proof")
        if self.proof is None:
            yield Prose("Not run: the models are unverified.", "warning")
        else:
            yield from self.proof.blocks()
        if self.judged is not None:
            yield Heading(self.judged.heading())
            yield from self.judged.blocks()


def lower_folder(
    path: str | Path,
    output: str | Path,
    options: LowerOptions = LowerOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> LowerReport:
    """Lower the models of a folder, or one model; write models, tables, `contract.json` and `HOST.md`; prove them.

    An encoder-decoder becomes three models: the encoder, the projection of its output to the cross-attention cache, and
    the step of the decoder. A merged decoder is split first. A decoder-only model becomes a step, any other model one
    that runs once.

    Args:
        path: The folder of an export, or a model file.
        output: The folder to write to.
        options: How.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The files stay in any case.

    Raises:
        UsageError: Something cannot be lowered, with the reason; or a judge is no command, or a size is out of range.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    path, output = Path(path), Path(output)
    for command in options.judges:
        judge_words(command)  # before anything is written
    _check_options(path, output, options)
    progress("reading")
    pipeline = find_pipeline(path)
    sizes = _sizes(pipeline, options)
    with isolation(options.limits):
        parts = _lowered(pipeline, sizes, progress)
    tables, arrays = collect_tables(parts)
    contract = build_contract(parts, pipeline, tables, sizes, options.pad)
    _check_pad(contract, sizes.pad)
    if options.kv_layout == "stacked" and pipeline.step is not None:
        parts, contract = stack_caches(parts, contract, pipeline.step, sizes.target)
    progress("writing")
    _write(output, parts, contract, arrays, options)
    proof = None
    if options.verify:
        originals = Originals(pipeline.encoder, pipeline.first, pipeline.step)
        proof = verify_lowering(originals, output, limits=options.limits, progress=progress)
    return LowerReport(
        path.resolve().name,  # of "." too
        options.target,
        tuple(_file(part) for part in parts),
        {table.file: arrays[table.name].nbytes for table in tables},
        sum(state.bytes for state in contract.states),
        proof,
        _judged([output / part.method.file for part in parts], options, progress),
    )


def _judged(models: Sequence[Path], options: LowerOptions, progress: Callable[[str], None]) -> Judgements | None:
    if not options.judges:
        return None
    found: list[Judgement] = []
    for command in options.judges:
        progress(f"asking {command}")
        found.extend(judge(command, models, options.judge_seconds))
    return Judgements(tuple(found))


def _check_options(path: Path, output: Path, options: LowerOptions) -> None:
    if options.batch != 1:
        raise UsageError(f"a batch of {options.batch}: host and proof run one sequence at a time - lower with batch 1")
    for what, size in (("source positions", options.src_len), ("slots", options.max_cache_len)):
        if not 0 < size <= MAX_POSITIONS:
            raise UsageError(f"{size:,} {what}: what the host feeds is computed for each - give 1 to {MAX_POSITIONS:,}")
    if path.is_dir() and output.resolve() == path.resolve():
        raise UsageError(
            f"{output} is the folder of the export, whose models it would be mixed with - name another one"
        )


def _check_pad(contract: Contract, pad: int) -> None:
    """Raise UsageError for a token that pads and has no row."""
    padded = {
        port.source.of for m in contract.methods for port in m.inputs if port.source and port.source.by == "source"
    }
    for table in contract.tables:
        if table.name in padded and pad >= table.rows:
            raise UsageError(
                f"token {pad} pads, and table '{table.name}' has {table.rows:,} rows - give one with --pad"
            )


def _sizes(pipeline: Pipeline, options: LowerOptions) -> LowerSizes:
    pad = options.pad if options.pad is not None else pipeline.tokens["pad"] or 0
    target = load_target(options.target)
    models = [model for model in (pipeline.encoder, pipeline.first, pipeline.step) if model is not None]
    values = [value for model in models for scope in all_scopes(model.scopes) for value in scope.values.values()]
    dtypes = {value.constant.data_type for value in values if value.constant is not None}
    wanted = mask_floor(target, options.mask_floor)
    floor = max((floor_of(wanted, dtype) for dtype in dtypes), default=wanted)
    return LowerSizes(options.batch, options.src_len, options.max_cache_len, dict(options.dims), floor, pad, target)


def _lowered(pipeline: Pipeline, sizes: LowerSizes, progress: Callable[[str], None]) -> list[Lowered]:
    parts = []
    if pipeline.encoder is not None:
        progress("lowering the encoder")
        parts.append(lower_model("encoder", pipeline.encoder, sizes))
        if pipeline.encoder.roles.first("tokens") is None:  # its source is no text: decoders see as much as it gives
            own = symbol_roles(pipeline.encoder)
            dims = {name: size for name, size in sizes.dims.items() if name not in own}
            sizes = replace(sizes, source=parts[0].method.outputs[0].shape[1], dims=dims)
    first, step = _decoders(pipeline)
    if step is None:
        return parts
    progress("lowering the step")
    lowered = lower_model("step", step, sizes)
    if first is not None and first is not step and parts:
        progress("lowering the cross-attention cache")
        kv = lower_model("cross_kv", split_cross_kv(fold(first, keep_fusions=False).model), sizes)
        parts.append(replace(kv, method=linked(kv.method, parts[0], first, step)))
    return [*parts, lowered]


def _decoders(pipeline: Pipeline) -> tuple[Model | None, Model | None]:
    if pipeline.merged and pipeline.step is not None:
        made = split_merged(pipeline.step)
        return made.first, made.with_past
    return pipeline.first, pipeline.step


def _write(
    output: Path,
    parts: Sequence[Lowered],
    contract: Contract,
    arrays: Mapping[str, np.ndarray],
    options: LowerOptions,
) -> None:
    others = {output / CONTRACT: contract.to_json().encode(), output / GUIDE: guide(contract).encode()}
    for table in contract.tables:
        array = arrays[table.name]
        others.setdefault(output / table.file, array.astype(array.dtype.newbyteorder("<")).tobytes())
    models = {output / part.method.file: part.model for part in parts}
    with made_folder(output):
        save_models(models, weights="inline", others=others, overwrite=options.overwrite)


def _file(part: Lowered) -> LoweredFile:
    from graphkit.shapes import infer

    shapes = infer(part.model)
    ranks = [len(dims) for value in shapes if (dims := shapes[value].dims) is not None]
    graph = part.model.graph
    return LoweredFile(
        part.method.file,
        len(graph.nodes),
        max(ranks, default=0),
        len(graph.inputs),
        len(graph.outputs),
        part.blockers,
        part.changes,
    )
