"""Lower a pipeline for an NPU compiler: models, tables, the contract for the host program, and the proof."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct, structs

from graphkit.analysis.architecture import architecture
from graphkit.analysis.blockers import NO_REWRITE, blockers
from graphkit.analysis.node_placement import REMEDIED
from graphkit.analysis.target_lint import Cause, Lint
from graphkit.contract import Contract, LoweredWith
from graphkit.contract.contract_files import record_files
from graphkit.contract.contract_writers import write_guide
from graphkit.deploy.deploy_sizes import LowerSizes, check_dtypes, check_request, resolve_sizes, with_input_sizes
from graphkit.deploy.export_pipeline import Pipeline, changed_by, find_pipeline, has_shorter_output
from graphkit.deploy.lower_model import AXES, PLAIN_PASSES, lower_model
from graphkit.deploy.lower_report import DATA, GUIDE, Judgement, LowerReport, all_judgements, judge_words, lowered_file
from graphkit.deploy.lowered_contract import Lowered, build_contract, collect_tables, link_cross_cache, stack_caches
from graphkit.deploy.lowering_checks import check_padding, check_prompt, check_scales, check_vectors, largest_score
from graphkit.deploy.write_proven import DeployFolder, lowering_costs, write_proven
from graphkit.dtypes import dtype_name
from graphkit.equivalence.originals import Originals
from graphkit.equivalence.stages import Stage, StageProof, prove_stages
from graphkit.errors import GraphkitError, OutputError, UsageError, count_things
from graphkit.graph.names import join_words, name_of
from graphkit.graph.view import Node, all_nodes, all_scopes
from graphkit.judges import JUDGES, Answer, Trial, ask_judge, find_judge
from graphkit.model import Model
from graphkit.options import DeploymentProofOptions, FoldingOptions, LowerOptions
from graphkit.passes.attention.masks import LEAST_QUANTIZED, floor_of, floor_under, mask_floor, told_floor
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.npu.cache_interface import SplitCrossKv
from graphkit.passes.npu.change_dtypes import Dequantize
from graphkit.passes.npu.decompose_operators import GeluToTanh
from graphkit.passes.opset.convert_opset import ConvertOpset
from graphkit.progress import DEFAULT_LIMITS, Limits, Progress, portion_of, with_share
from graphkit.rewrite.base import PassChange, group_reasons
from graphkit.rewrite.fixpoint import Rewrite, run_to_fixpoint
from graphkit.runtime.session import as_provider
from graphkit.save import Placement, fits_inline, save_models, unused_text
from graphkit.shapes import infer
from graphkit.shapes.constraints.legal_sizes import symbol_roles
from graphkit.targets import Target, load_target
from graphkit.verify.deployment_proofs import LoweringProof, with_device
from graphkit.verify.lowering_case import zeros_change_results
from graphkit.verify.lowering_verifier import measure_deviation, verify_lowering
from graphkit.verify.proof_engine import run_isolated

GELU_TO_TANH, DEQUANTIZE = "--gelu-to-tanh", "--dequantize"
DRAFTED = 0.3  # the share of the work that is done before the files are written
ROUNDS = 4
Models = tuple[Sequence[Lowered], Placement]  # those of one, and where their weights go


class _Change(Struct, frozen=True):
    """A rewrite that changes results, which the user asks for before a pipeline is lowered, and how to tell of it."""

    rewrite: Rewrite
    option: str
    done: str
    nothing: str
    progress: str


TANH = _Change(
    GeluToTanh(),
    GELU_TO_TANH,
    f"Gelus are computed by tanh, which changes each by at most {GeluToTanh.largest_error:g}.",
    "No Gelu is computed by erf",
    "what tanh changes",
)
FLOATS = _Change(
    Dequantize(qdq=True),
    DEQUANTIZE,
    "Products of quantised numbers are computed with floats, which no longer rounds their data.",
    "Nothing is quantised that could be computed with floats",
    "what floats change",
)


class AskedChanges(Struct, frozen=True, eq=False):
    """An export, the same with the changes that were asked for, and these; some may have changed nothing."""

    export: Pipeline
    pipeline: Pipeline
    done: tuple[_Change, ...]
    idle: tuple[_Change, ...]

    @property
    def originals(self) -> Originals:
        return structs.replace(self.pipeline.originals, is_changed=bool(self.done))

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(change.option for change in self.done)

    def notes(self, output: Path, options: LowerOptions, progress: Progress) -> Iterator[str]:
        """Yield how far results are from those of the export, measured where a proof was asked for."""
        yield from (f"{change.nothing}: {change.option} changed nothing." for change in self.idle)
        if not self.done:
            return
        said = " ".join(change.done for change in self.done)
        if not options.verify:
            yield said
            return
        progress(f"measuring {' and '.join(change.progress for change in self.done)}")
        measured = measure_deviation(self.export.originals, output, limits=options.limits, progress=progress)
        which = "that change" if len(self.done) == 1 else "these changes"
        without = "it" if len(self.done) == 1 else "them"
        yield f"{said} The proof is against the export with {which}. Without {without}, {measured}."


def asked_changes(export: Pipeline, options: LowerOptions | LoweredWith) -> AskedChanges:
    """Make the changes that the options ask for."""
    asked = [change for change, is_asked in ((FLOATS, options.dequantize), (TANH, options.gelu_to_tanh)) if is_asked]
    pipeline, done, idle = export, list[_Change](), list[_Change]()
    for change in asked:
        changed = changed_by(pipeline, change.rewrite)
        (done if changed is not pipeline else idle).append(change)
        pipeline = changed
    return AskedChanges(export, pipeline, tuple(done), tuple(idle))


def lower_folder(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: LowerOptions = LowerOptions(),
    *,
    progress: Progress = lambda _: None,
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
    if options.encode_apart is False:
        raise UsageError(
            "lower makes the encoder a model of its own - leave out --no-encode-apart, or bundle the export"
        )
    for command in options.judges:
        judge_words(command)
    check_request(path, output, options, [Contract.FILE, GUIDE])
    progress("reading")
    export = find_pipeline(path)
    step = export.step if options.verify else None
    rows = step.roles.first("embeddings") if step is not None and not step.roles.all("tokens") else None
    if step is not None and rows is not None:
        problem = f"each step reads '{rows.name}', rows of embeddings, and no tokens, which proofs are made of"
        raise UsageError(f"{step.label}: {problem} - export it with its table, or give --no-verify")
    export.check_static_cache(path)
    options = with_input_sizes(options, export.models)
    changes = asked_changes(export.from_steps(), options)
    with run_isolated(options.limits):
        if options.verify:
            check_prompt(asked_changes(export, options).originals)
        make = partial(_draft_files, changes, options, progress)
        judges = [command for command in options.judges if command in JUDGES]
        draft, judgements, told = settle_with_judges(
            make(), make, lambda made: (made.parts, made.folder.weights), judges, options.judge_seconds, progress
        )
        progress(with_share(DRAFTED, "writing"))
        draft, proof = _write_proven(output, draft, options, portion_of(progress, DRAFTED, 1.0))
    notes = (*_told_parts(changes.pipeline), *draft.notes, *told, *changes.notes(output, options, progress))
    return LowerReport(
        source=name_of(path),
        target=options.target,
        files=tuple(lowered_file(part) for part in draft.parts),
        tables={table.file: draft.arrays[table.name].nbytes for table in draft.contract.tables},
        state_bytes=sum(state.bytes for state in draft.contract.states),
        proof=proof,
        judged=all_judgements([output / part.method.file for part in draft.parts], judgements, options, progress),
        notes=(*notes, *filter(None, [draft.contract.generation.caveat()])),
        settings=tuple(_told_settings(draft.contract)),
        data=draft.data,
        costs=tuple(lowering_costs(draft.parts, draft.contract, output, options)),
    )


def _told_parts(pipeline: Pipeline) -> Iterator[str]:
    if pipeline.parts:
        names, image = ", ".join(model.name for model in pipeline.parts), pipeline.settings.tokens.get("image")
        rows = f" A row of a picture takes the place of that of token {image}." if image is not None else ""
        yield f"Not lowered: {names}. Lower each by itself.{rows}"
    nodes = pipeline.step.graph.nodes if pipeline.step is not None else ()
    ranges = {node.result() for node in nodes if node.is_op("Range")}
    gathers = (node for node in nodes if node.is_op("Gather") and node.input(1) in ranges)
    if any(reader.is_op("MatMul") for gather in gathers for reader, _ in gather.result().consumers):
        way = "call model.set_experts_implementation('batched_mm') before the export"
        yield f"Its experts read as many rows as data sends to each, which is no fixed shape - {way}."


def _told_settings(contract: Contract) -> Iterator[str]:
    """Yield the sizes that options may change, and the tokens that nothing beside the models says."""
    options = contract.options
    named = {"--batch": options.batch, "--src-len": options.src_len, "--max-cache-len": options.max_cache_len}
    sizes = [f"{option} {size}" for option, size in named.items() if size is not None]
    yield f"The sizes are {join_words([*sizes, *(f'--dim {name}={size}' for name, size in options.dims.items())])}."
    has_steps, has_encoder = (any(m.when == when for m in contract.methods) for when in ("step", "once"))
    unknown = {}  # the key of a configuration that would say each
    if contract.takes_text and contract.tokens.get("pad") is None:
        unknown["pad (0 is taken)"] = "pad_token_id"
    if has_steps and has_encoder and contract.tokens.get("start") is None:
        unknown["start"] = "decoder_start_token_id"
    if has_steps and not contract.ends:
        unknown["end"] = "eos_token_id"
    if unknown:
        keys = join_words([*unknown.values()])
        files = "config.json or generation_config.json"
        yield f"Tokens that the export does not say: {join_words([*unknown])}; {keys} in {files} would."


class Draft(Struct, frozen=True, eq=False):
    """The files to write: models, their contract, the tables by name and a file of weights, with notes."""

    changes: AskedChanges
    parts: Sequence[Lowered]
    contract: Contract
    arrays: Mapping[str, np.ndarray]
    notes: tuple[str, ...] = ()
    data: str = ""

    @property
    def stages(self) -> list[Stage]:
        return [stage for part in self.parts for stage in part.stages]

    @property
    def folder(self) -> DeployFolder:
        """The folder to write; the weights go into a file of their own where a model is too large for one."""
        models = {part.method.file: part.model for part in self.parts}
        weights: Placement = "inline" if all(map(fits_inline, models.values())) else "shared"
        contents = {GUIDE: write_guide(self.contract).encode(), **_table_files(self)}
        return DeployFolder(self.contract, models, contents, weights, DATA, self.changes.options)


def _draft_files(
    changes: AskedChanges, options: LowerOptions, progress: Progress, passes: frozenset[str] = frozenset()
) -> Draft:
    pipeline = changes.pipeline
    check_dtypes(pipeline.models)
    resolved = resolve_sizes(options, pipeline.models, encoder=pipeline.encoder, step=pipeline.step)
    target = load_target(options.target)
    pad = options.pad if options.pad is not None else pipeline.settings.tokens["pad"] or 0
    floor = _mask_floor(pipeline, target, options.mask_floor)
    sizes = LowerSizes(**structs.asdict(resolved), floor=floor, pad=pad, target=target, passes=passes)
    draft = _draft_parts(changes, sizes, options, portion_of(progress, 0.0, DRAFTED / 2))
    if sizes.floor >= LEAST_QUANTIZED:  # it may not be far below all scores, and becomes one that they stay above
        progress(with_share(DRAFTED / 2, "measuring scores"))
        with _host_files(draft) as folder:
            largest = largest_score(draft.parts, folder)
        below = sizes.floor if largest is None else floor_under(largest, sizes.floor)
        if below < sizes.floor and options.mask_floor is None:
            again = portion_of(progress, DRAFTED * 0.6, DRAFTED * 0.9)
            draft = _draft_parts(changes, structs.replace(sizes, floor=below), options, again)
        floor = draft.contract.floor
        if largest is not None and (sizes.target.is_quantized or floor != sizes.floor or below < sizes.floor):
            draft = structs.replace(draft, notes=(told_floor(largest, floor),))
    encoder = pipeline.encoder
    if encoder is not None and draft.parts[0].method.takes_text and options.mask_floor is None:
        progress(with_share(DRAFTED * 0.9, "looking for leaks of padding"))
        with _host_files(draft) as folder:
            check_padding(draft.parts[0], encoder, folder)
    newest = sizes.target.max_opset
    if options.opset is None and newest is None:
        return draft
    progress("converting the opset")
    limit = newest.value if newest is not None else 0
    return structs.replace(draft, parts=[_at_opset(part, options.opset, limit, sizes.target) for part in draft.parts])


@contextmanager
def _host_files(draft: Draft) -> Iterator[Path]:
    """Write what a host needs of models that are not written yet, into a folder that goes."""
    with tempfile.TemporaryDirectory(prefix="graphkit-") as name:
        try:
            for file, content in {Contract.FILE: draft.contract.to_json().encode(), **_table_files(draft)}.items():
                (Path(name) / file).write_bytes(content)
        except OSError as error:
            raise OutputError(
                f"{name}: tables cannot be kept there: {error.strerror} - name a folder with more space in TMPDIR"
            ) from error
        yield Path(name)


def _draft_parts(changes: AskedChanges, sizes: LowerSizes, options: LowerOptions, progress: Progress) -> Draft:
    pipeline = changes.pipeline
    parts = _lower_parts(pipeline, sizes, progress)
    tables, arrays = collect_tables(parts)
    contract = build_contract(parts, pipeline, tables, sizes, options.pad)
    padded = {port.of for method in contract.methods for port in method.inputs if port.by == "source"}
    if short := next((table for table in tables if table.name in padded and sizes.pad >= table.rows), None):
        rows = f"table '{short.name}' has {short.rows:,} rows"
        raise UsageError(f"token {sizes.pad} pads, but {rows} - give another with --pad")
    if contract.sizes.get("sound"):
        models = {part.method.name: part.model for part in parts}
        with _host_files(Draft(changes, parts, contract, arrays)) as folder:
            needs_whole = zeros_change_results(changes.originals, models, folder)
        if needs_whole:
            parts = [part.with_whole_sound() for part in parts]
            contract = build_contract(parts, pipeline, tables, sizes, options.pad)
    encoder, step = changes.pipeline.encoder, changes.pipeline.step
    counted = {*symbol_roles(encoder).values()} & {"encoder", "sequence", "total"} if encoder is not None else ()
    has_length = bool(counted) or (encoder is not None and encoder.roles.first("tokens") is not None)
    is_default = sizes.floor < LEAST_QUANTIZED and sizes.floor == _mask_floor(changes.pipeline, sizes.target, None)
    used = LoweredWith(
        target=options.target,
        batch=sizes.batch,
        src_len=sizes.source if has_length else None,
        max_cache_len=sizes.slots if step is not None and step.roles.pasts else None,
        mask_floor=None if is_default else options.mask_floor,
        pad=None if options.pad == changes.pipeline.settings.tokens["pad"] else options.pad,
        gelu_to_tanh=GELU_TO_TANH in changes.options,
        dequantize=DEQUANTIZE in changes.options,
        opset=options.opset,
        dims=dict(sizes.dims),
        passes=tuple(sorted(sizes.passes)),
    )
    if options.kv_layout == "stacked" and pipeline.step is not None:
        states = contract.states
        parts, contract = stack_caches(parts, contract, pipeline.step, sizes.target)
        if contract.states != states:
            used = replace(used, kv_layout="stacked")
    return Draft(changes, parts, replace(contract, options=used), arrays)


def _at_opset(part: Lowered, asked: int | None, newest: int, target: Target) -> Lowered:
    """Return a lowered model in the opset that was asked for, or else in the newest that the target takes."""
    opset = newest if asked is None else asked
    if asked is None and part.model.graph.opset() <= newest:
        return part
    outcome = ConvertOpset(opset).run(part.model)
    if outcome.declined and asked is None:
        return part
    if outcome.declined:
        reasons = "; ".join(group_reasons(outcome.declined))
        raise UsageError(f"{part.method.file}: {ConvertOpset.name()}: {reasons} - give another --opset")
    if outcome.model is part.model:
        return part
    stages = [Stage(part.method.name, f"opset {opset}", part.model, outcome.model)]
    remedies = {each.pass_name for each in blockers(outcome.model, target, passed=part.passes).blockers}
    spelled = run_to_fixpoint(outcome.model, [kind() for name, kind in PLAIN_PASSES.items() if name in remedies])
    if spelled.model is not outcome.model:
        stages.append(Stage(part.method.name, "operators of that opset", outcome.model, spelled.model))
    return structs.replace(
        part,
        model=spelled.model,
        changes=(*part.changes, *(PassChange(each, ConvertOpset.name()) for each in outcome.changes), *spelled.changes),
        blockers=blockers(spelled.model, target, passed=part.passes | PLAIN_PASSES.keys() & remedies),
        stages=(*part.stages, *stages),
    )


def _mask_floor(pipeline: Pipeline, target: Target, asked: float | None) -> float:
    scopes = [scope for model in pipeline.models for scope in all_scopes(model.scopes)]
    constants = [value.constant for scope in scopes for value in scope.values.values()]
    dtypes = {constant.data_type for constant in constants if constant is not None}
    floor = mask_floor(target, asked)
    return max((floor_of(floor, dtype) for dtype in dtypes), default=floor)


def _lower_parts(pipeline: Pipeline, sizes: LowerSizes, progress: Progress) -> list[Lowered]:
    parts = []
    merged = pipeline.step if pipeline.merged else None
    pipeline = pipeline.with_decoders()
    if pipeline.encoder is not None:
        progress(with_share(0.0, "lowering the encoder"))
        names = {"vision": "vision", "other": "model", "decoder-only": "model"} if pipeline.step is None else {}
        name = names.get(architecture(pipeline.encoder).role, "encoder")
        parts.append(lower_model(name, pipeline.encoder, sizes))
        if pipeline.step is not None and pipeline.encoder.roles.first("tokens") is None:
            # its source is no text: decoders see as much as it gives
            port = parts[0].method.outputs[0] if parts[0].method.outputs else None
            if port is None or len(port.shape) < 2:
                raise UsageError(
                    f"the encoder's first output is {list(port.shape) if port is not None else 'missing'}, and a "
                    "decoder reads states [batch, length, size] - export an encoder that gives these first"
                )
            of_encoder = symbol_roles(pipeline.encoder)
            dims = {name: size for name, size in sizes.dims.items() if name not in of_encoder}
            sizes = structs.replace(sizes, source=port.shape[1], dims=dims, sound=parts[0].sound)
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
    progress(with_share(0.3, "lowering the step"))
    lowered = lower_model("step", step, sizes)
    before = [*_splitting_stages("step", merged, step)]
    if pipeline.sliding is not None:
        before.append(Stage("step", "caches that grow", pipeline.sliding, step, tested=pipeline.changes[0]))
    changed = (*pipeline.changes, *lowered.changes)
    lowered = structs.replace(lowered, stages=(*before, *lowered.stages), changes=changed)
    if first is not None and first is not step and parts:
        progress(with_share(0.8, "lowering the cross-attention cache"))
        projection = SplitCrossKv().run(fold(first, options=FoldingOptions(keep_fusions=False)).model)
        kv = lower_model("cross_kv", projection.model, sizes)
        cut = Stage("cross_kv", "cut out of the first step", first, projection.model, is_part=True)
        stages = (*_splitting_stages("cross_kv", merged, first), cut, *kv.stages)
        kv = structs.replace(kv, method=link_cross_cache(kv.method, parts[0], projection.matches, step), stages=stages)
        parts.append(kv)
    return [*parts, lowered]


def _splitting_stages(name: str, merged: Model | None, branch: Model) -> Iterator[Stage]:
    decoder = None if merged is None else merged.roles.decoder
    if merged is None or decoder is None:
        return
    flag = decoder.cache_when if name == "step" else not decoder.cache_when
    values = {decoder.condition.input.name: np.array([flag])}
    yield Stage(name, "one step of the merged decoder", merged, branch, values=values, is_narrower=True, is_part=True)


def _table_files(draft: Draft) -> dict[str, bytes | memoryview]:
    """Return the content of each file of a table, which may be an embedding of many words: it is not copied."""
    contents: dict[str, bytes | memoryview] = {}
    for table in draft.contract.tables:
        array = draft.arrays[table.name]
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        contents.setdefault(table.file, stored.reshape(-1).view(np.uint8).data)
    return contents


def _write_proven(
    output: Path, draft: Draft, options: LowerOptions, progress: Progress
) -> tuple[Draft, LoweringProof | None]:
    folder = draft.folder

    def prove(stage: Path) -> LoweringProof:
        asked = DeploymentProofOptions(limits=options.limits)
        proof = verify_lowering(draft.changes.originals, stage, asked, progress=portion_of(progress, 0.0, 0.85))
        progress(with_share(0.85, "comparing normal forms"))
        proof = replace(proof, stages=prove_stages(draft.stages, progress=progress))
        if as_provider(options.provider).is_cpu or not proof.passed:
            return proof
        asked = DeploymentProofOptions(limits=options.limits, provider=options.provider)
        return with_device(proof, verify_lowering(draft.changes.originals, stage, asked, progress=progress))

    proof, saved = write_proven(output, folder, prove if options.verify else None, overwrite=options.overwrite)
    unused = (unused_text([path.name for path in saved.unused]),) if saved.unused else ()
    return structs.replace(draft, data=DATA if folder.weights == "shared" else "", notes=(*unused, *draft.notes)), proof


def lower_again(
    export: Pipeline, used: LoweredWith, *, limits: Limits = DEFAULT_LIMITS, progress: Progress = lambda _: None
) -> Draft:
    """Lower an export once more, with the options that a contract records; nothing is written or proven."""
    given = {name: value for name, value in vars(used).items() if value is not None and name != "passes"}
    options = LowerOptions(**{**given, "dims": tuple(used.dims.items())}, limits=limits)
    if unknown := next((name for name in used.passes if name not in PLAIN_PASSES), ""):
        raise UsageError(f"'{unknown:.40}' is no pass that a judge asks for")
    changes = asked_changes(export, options)
    with run_isolated(limits):
        return _draft_files(changes, options, progress, frozenset(used.passes))


def prove_stages_again(draft: Draft, folder: Path, *, progress: Progress = lambda _: None) -> tuple[StageProof, ...]:
    """Prove the stages of a lowering that was written, from its export to the files as they are now.

    A folder has no models of the stages. Only where its export, lowered again, gives each model and each table byte by
    byte do the stages end in the files of the folder; else it is refused.
    """
    made = draft.folder
    with tempfile.TemporaryDirectory(prefix="graphkit-") as name:
        models = {Path(name) / file: model for file, model in made.models.items()}
        others = {Path(name) / file: content for file, content in _table_files(draft).items()}
        files = [path.name for path in save_models(models, weights=made.weights, data_name=DATA, others=others)]
        expected, actual = record_files(Path(name), files), record_files(folder, files)
    if other := next((file for file in files if expected[file] != actual[file]), ""):
        raise UsageError(f"lowered again, the export gives another {other}")
    return prove_stages(draft.stages, progress=progress)


class _Round(Struct, frozen=True):
    """What judges say of the models of one lowering; what stays on the CPU by judge, operator and remedy."""

    judgements: tuple[Judgement, ...]
    left: Counter[tuple[str, str, str]]

    @property
    def passes(self) -> set[str]:
        """The passes that remove nodes and do not change results."""
        return {name for _, _, name in self.left if name in PLAIN_PASSES}

    @property
    def faults(self) -> tuple[int, int]:
        """How many models do not compile, and how many nodes stay on the CPU."""
        return sum(each.device_nodes is None for each in self.judgements), self.left.total()

    def words(self, number: int) -> str:
        texts = []
        for judge in dict.fromkeys(judgement.command for judgement in self.judgements):
            errors = [each.model for each in self.judgements if each.command == judge and each.device_nodes is None]
            rows = {(op, name): count for (by, op, name), count in self.left.items() if by == judge}
            nodes = ", ".join(f"{op} {count} ({name or NO_REWRITE})" for (op, name), count in rows.items())
            left = f"leaves {count_things(sum(rows.values()), 'node(s)')} on the CPU: {nodes}" if rows else ""
            refused = f"does not compile {', '.join(errors)}" if errors else ""
            said = " and ".join(filter(None, [refused, left])) or "leaves no node on the CPU"
            texts.append(f"{judge} {said}")
        return f"Round {number}: {'; '.join(texts)}."


def settle_with_judges(
    draft: Draft,
    again: Callable[[frozenset[str]], Draft],
    models_of: Callable[[Draft], Models],
    judges: Sequence[str],
    seconds: float,
    progress: Progress,
) -> tuple[Draft, tuple[Judgement, ...], tuple[str, ...]]:
    """Lower again with the passes that remove what judges leave on the CPU, until no pass does, for some rounds.

    `again` lowers once more, with passes of these names; `models_of` gives the models of a lowering. Return the
    lowering that leaves least, the answers about it, and a sentence about each round, where the first one found
    anything.
    """
    if not judges:
        return draft, (), ()
    found, asked = _ask_round(models_of(draft), judges, seconds, progress), frozenset[str]()
    notes = [found.words(1)]
    for number in range(2, ROUNDS + 1):
        more = found.passes - asked
        if not more:
            break
        names = ", ".join(sorted(more))
        progress(f"lowering again with {names}")
        try:
            other = again(asked | more)
        except GraphkitError as error:
            notes.append(f"With {names} it cannot be lowered: {error}.")
            break
        if _model_contents(models_of(other)) == _model_contents(models_of(draft)):
            notes.append(f"{names} changed nothing.")
            break
        answers = _ask_round(models_of(other), judges, seconds, progress)
        notes.append(answers.words(number))
        if answers.faults >= found.faults:
            notes.append(f"That is no less, so that the models of round {number - 1} were kept.")
            break
        draft, found, asked = other, answers, asked | more
    return draft, found.judgements, tuple(notes) if len(notes) > 1 or found.left else ()


def _model_contents(models: Models) -> list[bytes]:
    return [part.model.proto.SerializeToString(deterministic=True) for part in models[0]]


def _ask_round(models: Models, judges: Sequence[str], seconds: float, progress: Progress) -> _Round:
    judgements, left, (parts, weights) = [], Counter[tuple[str, str, str]](), models
    with tempfile.TemporaryDirectory(prefix="graphkit-") as name:
        paths = [Path(name) / part.method.file for part in parts]
        save_models(dict(zip(paths, (part.model for part in parts), strict=True)), weights=weights, data_name=DATA)
        for judge in judges:
            progress(f"asking {judge}")
            answers = ask_judge(find_judge(judge), paths, seconds=seconds, trials=[Trial()] * len(paths))
            for part, answer in zip(parts, answers, strict=True):
                judgements.append(Judgement.of(part.method.file, judge, answer))
                left.update((judge, op, remedy) for op, remedy in _left_nodes(part, answer))
    return _Round(tuple(judgements), left)


def _left_nodes(part: Lowered, answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield the operator of each node that stays on the CPU, and the pass that removes it, "" for none."""
    lint, nodes = Lint(load_target(REMEDIED), infer(part.model), part.passes), [*all_nodes(part.model.scopes)]

    def remedy_of(node: Node) -> str:  # by its operator, or else by the ranks and dtypes of its tensors
        tensors = [lint.shapes[value] for value in (*node.operands, *node.results)]
        causes: list[tuple[Cause, str]] = [("operator", node.operator)]
        if any(tensor.dims is not None and len(tensor.dims) > AXES for tensor in tensors):
            causes.append(("rank", ""))
        causes += [("dtype", dtype_name(tensor.dtype)) for tensor in tensors if tensor.dtype]
        return next(filter(None, (lint.remedy(node, cause, what) for cause, what in causes)), "")

    for placed in answer.on("cpu"):
        named = [node for node in nodes if placed.name and node.proto.name == placed.name]
        alike = named or [node for node in nodes if node.op_type == placed.op]
        yield placed.op, next(filter(None, map(remedy_of, alike)), "")
