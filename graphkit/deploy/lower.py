"""Lower a pipeline for an NPU compiler: models, tables, the contract for the host program, and the proof."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from graphkit.analysis.architecture import architecture
from graphkit.deploy.asked_changes import AskedChanges, asked_changes
from graphkit.deploy.compiler_judges import Judgement, Judgements, judge, judge_words
from graphkit.deploy.contract import Contract
from graphkit.deploy.contract.host_guide import guide
from graphkit.deploy.contract.sealed_record import record_files
from graphkit.deploy.deploy_costs import lowering_costs
from graphkit.deploy.deploy_sizes import LowerSizes, SizeRequest, check_dtypes, checked_request, size_request
from graphkit.deploy.export_pipeline import Pipeline, find_pipeline, has_shorter_output
from graphkit.deploy.largest_score import largest_score
from graphkit.deploy.lower_model import lower_model
from graphkit.deploy.lower_report import DATA, GUIDE, LoweredFile, LowerReport, lowered_file
from graphkit.deploy.lowered_contract import Lowered, build_contract, collect_tables, linked
from graphkit.deploy.padding_checks import check_scales, check_vectors
from graphkit.deploy.stacked_caches import stack_caches
from graphkit.deploy.targets import load_target
from graphkit.deploy.write_proven import DeployFolder, write_proven
from graphkit.errors import OutputError, UsageError
from graphkit.graph.names import name_of
from graphkit.graph.view import all_scopes
from graphkit.model import Model
from graphkit.options import DeploymentProofOptions, FoldingOptions, LowerOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.npu.cache_interface import SplitCrossKv
from graphkit.passes.npu.mask_floors import floor_of, floor_under, mask_floor, told_floor
from graphkit.progress import portion, with_share
from graphkit.runtime.isolation import isolation
from graphkit.save import Placement, fits_inline, save_models, unused_text
from graphkit.shapes.constraints.symbol_sizes import symbol_roles
from graphkit.verify.deployment_proofs import LoweringProof
from graphkit.verify.equivalence.stages import Stage, StageProof, prove_stages
from graphkit.verify.lowering_verifier import verify_lowering

__all__ = ["LowerOptions", "LowerReport", "LoweredFile", "lower_folder", "prove_stages_again"]

DRAFTED = 0.3  # the share of the work that is done before the files are written


def lower_folder(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
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
        options: Target, sizes, proof and files.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The files get their names when the proof has
        ended, whether it holds or not, and `contract.json` says which.

    Raises:
        UsageError: Something cannot be lowered, with the reason; or a judge is no command, or a size is out of range.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    path, output = Path(path), Path(output)
    for command in options.judges:
        judge_words(command)
    request = checked_request(path, output, options, [Contract.FILE, GUIDE])
    progress("reading")
    changes = asked_changes(find_pipeline(path), options)
    with isolation(options.limits):
        draft = _proven_floor(changes.pipeline, _sizes(changes.pipeline, request, options), options, progress)
        progress(with_share(DRAFTED, "writing"))
        draft, proof = _write(changes, output, draft, options, portion(progress, DRAFTED, 1.0))
    return LowerReport(
        source=name_of(path),
        target=options.target,
        files=tuple(lowered_file(part) for part in draft.parts),
        tables={table.file: draft.arrays[table.name].nbytes for table in draft.contract.tables},
        state_bytes=sum(state.bytes for state in draft.contract.states),
        proof=proof,
        judged=_judged([output / part.method.file for part in draft.parts], options, progress),
        notes=(*draft.notes, *changes.notes(output, options, progress)),
        data=draft.data,
        costs=lowering_costs(draft.parts, draft.contract, output, options),
    )


@dataclass(frozen=True, eq=False)
class _Draft:
    """The files to write: models, their contract, the tables by name and a file of weights, with notes."""

    parts: Sequence[Lowered]
    contract: Contract
    arrays: Mapping[str, np.ndarray]
    notes: tuple[str, ...] = ()
    data: str = ""

    @property
    def stages(self) -> list[Stage]:
        """The stages of all models."""
        return [stage for part in self.parts for stage in part.stages]


def _proven_floor(
    pipeline: Pipeline, sizes: LowerSizes, options: LowerOptions, progress: Callable[[str], None]
) -> _Draft:
    """Return the files; for a target that takes quantised models, with a floor that the scores stay above."""
    draft = _drafted(pipeline, sizes, options, progress)
    if not sizes.target.is_quantized:
        return draft
    progress("measuring scores")
    largest = _largest_score(draft)
    if largest is None:
        return draft
    below = floor_under(largest, sizes.floor)
    if below < sizes.floor and options.mask_floor is None:
        draft = _drafted(pipeline, replace(sizes, floor=below), options, progress)
    return replace(draft, notes=(told_floor(largest, draft.contract.floor),))


def _largest_score(draft: _Draft) -> float | None:
    """Return the largest score of models that are not written yet, None where no mask is added to any."""
    with tempfile.TemporaryDirectory(prefix="graphkit-") as name:
        try:
            for file, content in {Contract.FILE: draft.contract.to_json().encode(), **_tables(draft)}.items():
                (Path(name) / file).write_bytes(content)
        except OSError as error:
            raise OutputError(
                f"{name}: tables cannot be kept there: {error.strerror} - name a folder with more space in TMPDIR"
            ) from error
        return largest_score(draft.parts, Path(name))


def _drafted(pipeline: Pipeline, sizes: LowerSizes, options: LowerOptions, progress: Callable[[str], None]) -> _Draft:
    parts = _lowered(pipeline, sizes, progress)
    tables, arrays = collect_tables(parts)
    contract = build_contract(parts, pipeline, tables, sizes, options.pad)
    _check_pad(contract, sizes.pad)
    if options.kv_layout == "stacked" and pipeline.step is not None:
        stacked, contract = stack_caches(parts, contract, pipeline.step, sizes.target)
        parts = [_stacked(part, made) for part, made in zip(parts, stacked, strict=True)]
    return _Draft(parts, contract, arrays)


def _stacked(part: Lowered, made: Lowered) -> Lowered:
    stage = Stage(part.method.name, "stacked caches", part.model, made.model, tested="the host slices them by layer")
    return made if made.model is part.model else replace(made, stages=(*part.stages, stage))


def _judged(models: Sequence[Path], options: LowerOptions, progress: Callable[[str], None]) -> Judgements | None:
    if not options.judges:
        return None
    judgements: list[Judgement] = []
    for command in options.judges:
        progress(f"asking {command}")
        judgements.extend(judge(command, models, options.judge_seconds))
    return Judgements(tuple(judgements))


def _check_pad(contract: Contract, pad: int) -> None:
    """Raise UsageError for a token that pads and has no row."""
    padded = {port.of for method in contract.methods for port in method.inputs if port.by == "source"}
    for table in contract.tables:
        if table.name in padded and pad >= table.rows:
            raise UsageError(
                f"token {pad} pads, but table '{table.name}' has {table.rows:,} rows - give another with --pad"
            )


def _sizes(pipeline: Pipeline, request: SizeRequest, options: LowerOptions) -> LowerSizes:
    check_dtypes(pipeline.models)
    sizes = request.resolve(pipeline.models, encoder=pipeline.encoder, step=pipeline.step)
    target = load_target(options.target)
    scopes = [scope for model in pipeline.models for scope in all_scopes(model.scopes)]
    constants = [value.constant for scope in scopes for value in scope.values.values()]
    dtypes = {constant.data_type for constant in constants if constant is not None}
    asked = mask_floor(target, options.mask_floor)
    floor = max((floor_of(asked, dtype) for dtype in dtypes), default=asked)
    pad = options.pad if options.pad is not None else pipeline.tokens["pad"] or 0
    return LowerSizes(**vars(sizes), floor=floor, pad=pad, target=target)


def _lowered(pipeline: Pipeline, sizes: LowerSizes, progress: Callable[[str], None]) -> list[Lowered]:
    parts = []
    merged = pipeline.step if pipeline.merged else None
    pipeline = pipeline.with_decoders()
    if pipeline.encoder is not None:
        progress("lowering the encoder")
        parts.append(lower_model(_once_name(pipeline), pipeline.encoder, sizes))
        if (
            pipeline.step is not None and pipeline.encoder.roles.first("tokens") is None
        ):  # its source is no text: decoders see as much as it gives
            of_encoder = symbol_roles(pipeline.encoder)
            dims = {name: size for name, size in sizes.dims.items() if name not in of_encoder}
            sizes = replace(sizes, source=_states(parts[0]), dims=dims, sound=parts[0].sound)
    first, step, encoder = pipeline.first, pipeline.step, pipeline.encoder
    if step is None:
        return parts
    masks = [model for model in (first, step) if model is not None and model.roles.first("encoder mask") is not None]
    if encoder is not None and sizes.sound is None and masks and has_shorter_output(encoder):
        raise UsageError(
            f"{encoder.name}: its mask changes nothing in it that a host could make, so that nothing says how many of "
            "its positions are valid - export it with a mask that does, or without one"
        )
    if first is not None and first is not step:
        check_scales(first, step)
        check_vectors(first, step)
    progress("lowering the step")
    lowered = lower_model("step", step, sizes)
    lowered = replace(lowered, stages=(*_splitting("step", merged, step), *lowered.stages))
    if first is not None and first is not step and parts:
        progress("lowering the cross-attention cache")
        projection = SplitCrossKv().run(fold(first, options=FoldingOptions(keep_fusions=False)).model)
        kv = lower_model("cross_kv", projection.model, sizes)
        cut = Stage("cross_kv", "cut out of the first step", first, projection.model, is_part=True)
        stages = (*_splitting("cross_kv", merged, first), cut, *kv.stages)
        kv = replace(kv, method=linked(kv.method, parts[0], projection.matches, step), stages=stages)
        parts.append(kv)
    return [*parts, lowered]


def _splitting(name: str, merged: Model | None, branch: Model) -> Iterator[Stage]:
    """Yield the stage that makes a decoder of the first or of later steps of a merged one."""
    decoder = None if merged is None else merged.roles.decoder
    if merged is None or decoder is None:
        return
    flag = decoder.cache_when if name == "step" else not decoder.cache_when
    values = {decoder.condition.input.name: np.array([flag])}
    about = "one step of the merged decoder"
    yield Stage(name, about, merged, branch, values=values, is_narrower=True, is_part=True)


def _once_name(pipeline: Pipeline) -> str:
    """Return the name of the model that runs once, by its kind."""
    assert pipeline.encoder is not None
    role = architecture(pipeline.encoder).role
    return {"vision": "vision", "other": "model"}.get(role, "encoder") if pipeline.step is None else "encoder"


def _states(encoder: Lowered) -> int:
    """Return how many states an encoder gives to the decoder.

    Raises:
        UsageError: Its first output has no axis for them.
    """
    port = encoder.method.outputs[0] if encoder.method.outputs else None
    if port is None or len(port.shape) < 2:
        raise UsageError(
            f"the encoder's first output is {list(port.shape) if port is not None else 'missing'}, and a decoder reads "
            "states [batch, length, size] - export an encoder that gives these first"
        )
    return port.shape[1]


def _tables(draft: _Draft) -> dict[str, bytes]:
    """Return the content of each file of a table."""
    contents: dict[str, bytes] = {}
    for table in draft.contract.tables:
        array = draft.arrays[table.name]
        contents.setdefault(table.file, array.astype(array.dtype.newbyteorder("<")).tobytes())
    return contents


def _write(
    changes: AskedChanges, output: Path, draft: _Draft, options: LowerOptions, progress: Callable[[str], None]
) -> tuple[_Draft, LoweringProof | None]:
    """Write all of it, proven."""
    folder = _folder(draft, changes.options)

    def prove(stage: Path) -> LoweringProof:
        asked = DeploymentProofOptions(limits=options.limits)
        proof = verify_lowering(changes.originals, stage, asked, progress=portion(progress, 0.0, 0.85))
        progress(with_share(0.85, "comparing normal forms"))
        return replace(proof, stages=prove_stages(draft.stages, progress=progress))

    proof, saved = write_proven(output, folder, prove if options.verify else None, overwrite=options.overwrite)
    unused = (unused_text([path.name for path in saved.unused]),) if saved.unused else ()
    return replace(draft, data=DATA if folder.weights == "shared" else "", notes=(*unused, *draft.notes)), proof


def _folder(draft: _Draft, changes: tuple[str, ...] = ()) -> DeployFolder:
    """Return the folder to write; the weights go into a file of their own where a model is too large for one."""
    models = {part.method.file: part.model for part in draft.parts}
    weights: Placement = "inline" if all(map(fits_inline, models.values())) else "shared"
    contents = {GUIDE: guide(draft.contract).encode(), **_tables(draft)}
    return DeployFolder(draft.contract, models, contents, weights, DATA, changes)


def prove_stages_again(
    changes: AskedChanges, folder: Path, contract: Contract, *, progress: Callable[[str], None] = lambda _: None
) -> tuple[StageProof, ...]:
    """Prove the stages of a lowering that was written, from its export to the files as they are now.

    A folder has no models of the stages. So the export is lowered again at the sizes of the contract, and only where
    that gives each model and each table byte by byte do the stages end in the files of the folder.

    Args:
        changes: The export, with the changes of results that the user asked for.
        folder: The folder.
        contract: Its contract.
        progress: Called with the name of each step before it starts.

    Raises:
        UsageError: The export does not give these files at these sizes.
        ModelError: A file is missing.
    """
    step = changes.pipeline.with_decoders().step
    inputs = {value.name for value in step.graph.inputs} if step is not None else set[str]()
    options = LowerOptions(
        target=contract.target,
        batch=max(contract.sizes["batch"], 1),
        src_len=contract.sizes.get("sound") or contract.sizes["source"] or LowerOptions().src_len,
        max_cache_len=contract.sizes["capacity"] or None,
        pad=contract.tokens["pad"],
        kv_layout="per-layer" if {state.name for state in contract.states} <= inputs else "stacked",
    )
    request = size_request(options)
    request.check()
    sizes = replace(_sizes(changes.pipeline, request, options), floor=contract.floor)
    draft = _drafted(changes.pipeline, sizes, options, progress)
    parts = ("methods", "tables", "states", "sizes")
    if other := next((name for name in parts if getattr(draft.contract, name) != getattr(contract, name)), ""):
        raise UsageError(f"lowered again, the export gives other {other}")
    made = _folder(draft)
    with tempfile.TemporaryDirectory(prefix="graphkit-") as name:
        models = {Path(name) / file: model for file, model in made.models.items()}
        others = {Path(name) / file: content for file, content in _tables(draft).items()}
        files = [path.name for path in save_models(models, weights=made.weights, data_name=DATA, others=others)]
        expected, actual = record_files(Path(name), files), record_files(folder, files)
    if other := next((file for file in files if expected[file] != actual[file]), ""):
        raise UsageError(f"lowered again, the export gives another {other}")
    return prove_stages(draft.stages, progress=progress)
