"""Lower one model: embeddings, masks and positions to the host, the cache to fixed slots, all dims to numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec.structs import replace
from onnx import helper

from graphkit.analysis.blockers import blockers
from graphkit.contract import By, Source
from graphkit.deploy.deploy_sizes import LowerSizes, Setting, setting_of
from graphkit.deploy.host_tables import HostTable, NotAddedError, host_tables, kept_inputs, sound_mask, with_sound
from graphkit.deploy.lowered_contract import Interface, Lowered
from graphkit.deploy.lowering_checks import check_ranges, check_texts, is_step
from graphkit.deploy.source_pooling import pool_by_product
from graphkit.dtypes import dtype_name
from graphkit.equivalence.stages import Stage
from graphkit.errors import UsageError, count_things
from graphkit.graph.names import free_name, names_in
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.options import FoldingOptions
from graphkit.passes.attention.decompose_attention import DecomposeAttention
from graphkit.passes.attention.mask_arithmetic import WhereToArithmetic
from graphkit.passes.attention.masks import FLOOR, DropNanGuard, MaskedFillToAdd
from graphkit.passes.clean_up.eliminate_identity import DropZeroAdds
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.npu.cache_interface import Growth, ReduceCacheRank, StaticKvCache
from graphkit.passes.npu.host_inputs import (
    DequantizeAfterGather,
    ExtractEmbedding,
    ExtractHostValues,
    HostInput,
    InsertAttentionMask,
    PoolRowByOneHot,
)
from graphkit.passes.npu.reduce_rank import ReduceInterfaceRank, ReduceRank
from graphkit.passes.registry import NPU_PASSES, PASSES
from graphkit.passes.shapes.declare_shapes import FreezeDims
from graphkit.passes.shapes.simplify_scatter import MaskedScatterToWhere
from graphkit.passes.state.static_cache import CountSlotsInUse, find_slot_axes, find_unequal_addend, join_new_rows
from graphkit.passes.state.update_cache_in_place import LENGTH
from graphkit.rewrite.base import Matched, Outcome, PassChange
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite, run_to_fixpoint
from graphkit.rewrite.new_interface import (
    drop_dead_inputs,
    with_constants,
    with_first_output,
    with_interface,
    with_names,
)
from graphkit.shapes import AS_DECLARED, DimSpec, infer

MAX_ROUNDS = 8
AXES = 4  # which every target takes
ERROR = 1e-4  # the largest that a pass may make unasked
PLAIN_PASSES: Mapping[str, type[Rewrite]] = {
    kind.name(): kind for kind in PASSES if issubclass(kind, Rewrite) and kind.largest_error <= ERROR
}


def lower_model(name: str, model: Model, sizes: LowerSizes) -> Lowered:
    """Lower one model: a decoder with a cache, which runs at each step, or any other, which runs once.

    Its name is its purpose, such as `encoder`. Refuse a dim without a number, or a cache that cannot be fixed.
    """
    check_texts(model)
    lowering = _Lowering(name, model, sizes)
    lowering.count_slots()
    lowering.normalize()
    lowering.fix_sizes()
    lowering.join_new_rows()
    lowering.extract_embeddings()
    lowering.insert_masks()
    lowering.pool()
    lowering.extract_host_values()
    if lowering.is_decoder:
        lowering.fix_state()
    lowering.freeze()
    return lowering.result()


class _Lowering:
    """A model in work, with the facts about the inputs that it got."""

    setting: Setting  # the sizes of its symbols, from `fix_sizes` on

    def __init__(self, name: str, model: Model, sizes: LowerSizes) -> None:
        self.name, self.original, self.sizes, self.model = name, model, sizes, model
        self.staged = model  # as the last stage left it
        self.passes, self.changes = set[str](), list[str]()
        self.interface = Interface(model)
        self.tables: dict[str, np.ndarray] = {}
        self.tokens: dict[str, int] = {}
        self.stages: list[Stage] = []
        self.counted: dict[str, list[str]] = {}  # inputs of the original that follow from one of the model

    @property
    def is_decoder(self) -> bool:
        return bool(self.original.roles.pasts) or is_step(self.original)

    def count_slots(self) -> None:
        """Let positions and masks of a static cache follow from how many slots are in use."""
        if not self.original.roles.has_slots:
            return
        outcome = CountSlotsInUse().run(self.model)
        if outcome.declined:
            raise UsageError(f"{self.original.name}: {outcome.declined[0]} - lower an export whose cache grows")
        self._adopt_outcome(outcome, CountSlotsInUse.name())
        position = free_name("position", names_in(self.model.scopes))
        self.model, kept = with_names(self.model, {LENGTH: position}), self.model.graph.values
        self.counted[position] = [value.name for value in self.original.roles.inputs if value.name not in kept]
        self._add_stage("slots in use counted", tested="positions and masks follow from their number")

    def normalize(self) -> None:
        """Inline functions, fold, and compute attentions by plain operators."""
        inlined = InlineFunctions().run(self.model)
        self.model = fold(inlined.model, options=FoldingOptions(keep_fusions=False)).model
        self._add_stage("functions inlined, folded")
        self.passes.add(InlineFunctions.name())
        self.changes += [PassChange(change, InlineFunctions.name()) for change in inlined.changes]
        # With a finite floor, each query of an Attention has a key. It is far below all that is added to a mask:
        # `host_tables` tells what is masked, and `freeze` raises what is left.
        deep = min(FLOOR, self.sizes.floor)
        self._run_rewrites(MaskedFillToAdd(deep), DropNanGuard(), DequantizeAfterGather())
        self._add_stage("masks that are added", is_masking=True)
        outcome = self._run_rewrites(DecomposeAttention(unpadded=True))
        if self.is_decoder and outcome.declined:
            problem = f"{DecomposeAttention.name()}: {outcome.declined[0]}"
            raise UsageError(f"{self.original.name}: {problem} - export attention in plain operators")
        self.changes += [PassChange(f"kept: {node}", DecomposeAttention.name()) for node in outcome.declined]
        if self.model is self.staged:
            return
        # Lengths that each layer takes from its own cache are computed once.
        self.model = fold(self.model, options=FoldingOptions(keep_fusions=False)).model
        self._add_stage("attention in plain operators")
        self._run_rewrites(MaskedFillToAdd(deep))
        self._add_stage("causal masks that are added", is_masking=True)

    def fix_sizes(self) -> None:
        """Choose the number of each symbol, and check that padding changes no results."""
        self.setting = setting_of(self.model, self.original, self.sizes, is_decoder=self.is_decoder)
        if self.setting.is_padded:
            check_ranges(self.original)
        self._run_rewrites(MaskedScatterToWhere(), spec=DimSpec.of(dims=self.setting.dims))
        self._add_stage("assignments behind masks as choices")

    def extract_embeddings(self) -> None:
        """Let the host look up rows of tables."""
        if not self.is_decoder:
            shapes, positions = infer(self.model), dict[str, np.ndarray]()
            for value in self.model.roles.all("positions"):
                dims = [dim.substitute(self.setting.dims) for dim in shapes[value].dims or ()]
                sizes = [dim.constant for dim in dims if dim.constant is not None]
                if not dims or len(sizes) < len(dims):
                    problem = f"'{value.name}' has no fixed shape: {shapes[value]}"
                    raise UsageError(f"{self.original.name}: {problem} - give its dims with --dim")
                counted = np.broadcast_to(np.arange(sizes[-1]), sizes)
                positions[value.name] = counted.astype(dtype_name(shapes[value].dtype))
            self.model = with_constants(self.model, positions)
            self._add_stage("positions that count from 0", values=positions)
        outcome = ExtractEmbedding(known_only=True).run(self.model)
        known = [lookup for lookup in outcome.matches if lookup.role != "other"]  # callers give the others
        for lookup in known:
            table = f"{self.name}.{lookup.name}"
            assert lookup.table.constant is not None
            self.tables[table] = self.model.array(lookup.table.constant)
            by: By = "type" if lookup.role == "token types" else "token" if self.is_decoder else "source"
            is_position = self.is_decoder and lookup.role == "positions"
            source = Source("rows", table, "position") if is_position else Source("embedding", table, by)
            self.interface.becomes(lookup.ids.name, lookup.name)
            self.interface.make(lookup.name, source, f"the rows of '{lookup.table.name}' at '{lookup.ids.name}'")
        self._adopt_outcome(outcome)
        if len(known) == len(outcome.matches):  # else it is what removes the others
            self.passes.add(ExtractEmbedding.name())
        rows = {lookup.name: lookup.node.result().name for lookup in known}
        self._add_stage("rows of tables as inputs", stands_for=rows)

    def insert_masks(self) -> None:
        """Insert the masks that the export lacks; of a sound it reads all that the encoder gives without one."""
        outcome = InsertAttentionMask(per_sequence=self.sizes.batch > 1).run(self.model)
        for attention in outcome.matches:
            self.interface.make_mask(attention.name, attention.over)
        self._adopt_outcome(outcome, InsertAttentionMask.name())
        self._add_stage("masks that the export lacks", zeros=sorted({each.name for each in outcome.matches}))
        over_source = {attention.name for attention in outcome.matches if attention.over == "source"}
        if self.setting.sound is None or not over_source:
            return
        shapes, zeros = infer(self.model), dict[str, np.ndarray]()
        for value in self.model.graph.inputs:
            dims = [dim.substitute(self.setting.dims).constant for dim in shapes[value].dims or ()]
            if value.name in over_source and None not in dims:
                zeros[value.name] = np.zeros([dim or 0 for dim in dims], dtype_name(shapes[value].dtype))
        self.model = with_constants(self.model, zeros)
        self._add_stage("masks that hide nothing", tested="the sound behind its end is zeros")

    def pool(self) -> None:
        """Take rows that stand for a source, such as that of its end-of-text token, by products with one-hot rows."""
        rows = {name: len(table) for name, table in self.tables.items()}
        of = {source.of for source, _ in self.interface.sources.values() if source.by == "source"}
        outcome, pooled = pool_by_product(self.model, self.setting, min((rows[name] for name in of), default=0))
        self._adopt_outcome(outcome, PoolRowByOneHot.name())
        self._add_stage("rows taken by products", tested="the host makes the one-hot rows")
        for pooling in pooled:
            rule, name = pooling.rule, f"{self.name}.{pooling.name}"
            self.tables[name] = np.eye(self.setting.source, dtype=helper.tensor_dtype_to_np_dtype(pooling.dtype))
            self.interface.make(pooling.name, Source("rows", name, rule.by), f"1 at {rule.words}, 0 elsewhere")
            if rule.token is not None:
                self.tokens["pooled"] = rule.token

    def extract_host_values(self) -> None:
        """Let the host make the values that depend on positions, lengths and masks alone."""
        if WhereToArithmetic.name() in self._removing_passes():  # its condition becomes a number, which the host makes
            self._run_rewrites(WhereToArithmetic(of_data=True))
            self._add_stage("choices as products")
        has_text = any(source.by == "source" for source, _ in self.interface.sources.values())
        kept = frozenset[str]() if self.is_decoder else kept_inputs(self.model, self.original, has_text=has_text)
        try:
            outcome, tables = self._host_values(kept)
        except NotAddedError as error:
            if not (left := MaskedFillToAdd(self.sizes.floor).run(self.model).declined):
                raise
            why = f"for {MaskedFillToAdd.name()} leaves {left[0]}"
            raise UsageError(f"{self.original.name}: {error.problem}, {why} - {error.hint}") from error
        self._adopt_outcome(outcome, ExtractHostValues.name())
        made = {match.name: match.source.value.name for match in outcome.matches}
        self._add_stage("values of the host as inputs", stands_for=made)
        looked_up = set(self.interface.became)  # ids, of whose number positions may be made, and which are rows now
        for table in tables:
            if table.kind == "constant":
                self.model = with_constants(self.model, {table.name: table.array})
                continue
            declared = replace(table.input.declared, dims=table.shape)  # its dims need not follow from others
            self.model = with_interface(self.model, {table.name: declared}, {})
            for read in table.input.source.dependence.inputs - looked_up:
                for name in self.counted.get(read, [read]):
                    self.interface.becomes(name, table.name)
            if table.kind == "mask":
                self.interface.make_mask(table.name, "slots" if table.by == "position" else "source", table.window)
                if table.bias is not None:
                    editor = Editor(self.model)
                    total = editor.unique_name(f"{table.name}_sum")
                    addends = [editor.constant(table.bias, f"{table.name}_constant"), table.name]
                    editor.insert_first(self.model.graph, NewNode("Add", addends, [total], name=total))
                    editor.replace_all_uses(self.model.graph.values[table.name], total)
                    self.model = editor.result()
                    what = "to which the model adds what it adds to all scores"
                    self.changes.append(f"'{table.name}' is a mask of the length, {what}")
                continue
            rows, original = f"{self.name}.{table.name}", table.input.source.value.name
            self.tables[rows] = table.array
            self.interface.make(table.name, Source("rows", rows, table.by), f"'{original}' at this {table.by}")
        self._add_stage("values of the host by rows", tested="the host makes them by rows or by a rule")

    def _host_values(self, kept: frozenset[str]) -> tuple[Matched[HostInput], list[HostTable]]:
        """Return the values that the host makes, with their tables; a sound's mask that it cannot make is kept too."""
        outcome = ExtractHostValues(kept).run(self.model)
        mask = None if self.is_decoder else sound_mask(self.model)
        if mask is None or mask.name in kept or self.setting.sound is not None:
            return outcome, host_tables(self.model, outcome.matches, self.setting)
        setting = with_sound(self.model, outcome.matches, self.setting)
        with suppress(UsageError):  # values differ between sounds that the rule takes to be alike
            if setting is not None:
                self.setting = setting
                return outcome, host_tables(self.model, outcome.matches, setting)
        return self._host_values(kept | {mask.name})

    def join_new_rows(self) -> None:
        if self.original.roles.has_slots:
            axes = {past.name: axis for past, axis in find_slot_axes(self.original).items()}
            self._adopt_cache(join_new_rows(self.model, axes, self.setting.dims), "static-kv-cache")

    def _adopt_cache(self, outcome: Matched[Growth], name: str) -> None:
        if outcome.declined:
            hint = "export a decoder that joins each cache and what is new along one axis"
            raise UsageError(f"{self.original.name}: {name}: {outcome.declined[0]} - {hint}")
        for growth in outcome.matches:
            self.interface.axes[growth.past.name] = growth.axis
            self.interface.writes[growth.given] = growth.past.name
        self._adopt_outcome(outcome)
        self._add_stage("a cache of slots", tested="unused slots are masked by the host")

    def fix_state(self) -> None:
        """Give a cache that grows its slots, and let each step replace recurrent state, which the host keeps."""
        if self.original.roles.pasts and not self.original.roles.has_slots:
            self._adopt_cache(StaticKvCache(self.sizes.slots).run(self.model), StaticKvCache.name())
        states = [entry for entry in self.original.roles.states if entry.past.name in self.model.graph.values]
        self.interface.writes |= {entry.next.name: entry.past.name for entry in states}
        if states:
            self.changes.append(f"{count_things(len(states), 'recurrent state(s)')} are kept by the host")

    def freeze(self) -> None:
        shapes, inputs = infer(self.model), self.model.graph.inputs
        symbols = {name for value in inputs for dim in shapes[value].dims or () for name in dim.symbols}
        growing = dict.fromkeys(self.setting.total, self.setting.capacity + 1)
        numbers = {name: size for name, size in {**self.setting.dims, **growing}.items() if name in symbols}
        frozen = FreezeDims(tuple(numbers.items())).run(self.model).model  # first: `fold` questions what is declared
        self.model = drop_dead_inputs(fold(frozen, options=FoldingOptions(keep_fusions=False)).model)
        read = {value.name for value in self.model.graph.inputs}
        if idle := [past for past in self.interface.writes.values() if past not in read]:
            problem = f"no logits follow from '{idle[0]}': a layer is cut off"
            hint = "export it anew, or leave its cache out with graphkit extract"
            raise UsageError(f"{self.original.name}: {problem} - {hint}")
        self._add_stage("sizes fixed, folded", is_narrower=True)
        addend = find_unequal_addend(self.model, self.sizes.slots + 1) if self.original.roles.has_slots else None
        if addend is not None:
            raise UsageError(
                f"{self.original.name}: '{addend.name}' adds something else to the scores of each slot, whatever the "
                "position, and the new token takes the last place - bundle it, or lower an export whose cache grows"
            )
        self._run_rewrites(MaskedFillToAdd(self.sizes.floor), DropNanGuard())  # masks of floats are the host's by now
        self._add_stage("the floor of masks", is_masking=True)
        self._reduce_interface()
        self._run_rewrites(DropZeroAdds(), *self._spellings())
        remedies = set[str | None]()
        for _ in range(MAX_ROUNDS):
            before = self.model
            remedies |= self._removing_passes()  # of which those that were of use in a round before stay
            plain = [kind() for name, kind in PLAIN_PASSES.items() if name in remedies]
            self._run_rewrites(*plain, *self._spellings())
            if self.model is before:
                break
        self.model = drop_dead_inputs(self.model)
        self._add_stage("operators that the target takes")

    def _reduce_interface(self) -> None:
        """Give stacked caches, and inputs that the host makes, as few axes as the target takes."""
        if (limit := self.sizes.target.max_rank) is None:
            return
        axes, writes = self.interface.axes, self.interface.writes
        outcome = ReduceCacheRank(limit.value, tuple(axes.items()), tuple(writes.items())).run(self.model)
        for cache in outcome.matches:
            axes[cache.past] = cache.axis
            writes |= {name: writes.pop(output) for output, name in cache.outputs.items()}
        self._adopt_outcome(outcome, ReduceCacheRank.name())
        sources = ((name, source.kind) for name, (source, _) in self.interface.sources.items())
        if made := tuple(name for name, kind in sources if kind in ("rows", "slots_mask", "source_mask")):
            self._adopt_outcome(ReduceInterfaceRank(limit.value, made).run(self.model), ReduceInterfaceRank.name())
        self._add_stage("inputs of fewer axes", tested="the host reshapes them")

    def _removing_passes(self) -> set[str | None]:
        """Return the names of passes that remove blockers, and have not run yet, and of those that judges ask for."""
        remaining = blockers(self.model, self.sizes.target, passed=self.passes)
        return {obstacle.pass_name for obstacle in remaining.blockers} | self.sizes.passes

    def _spellings(self) -> Iterator[Rewrite]:
        """Yield the passes for any target, without that for fewer axes where the target is known to take them all."""
        shapes = infer(self.model)
        wide = {
            node.path
            for node in all_nodes(self.model.scopes)
            for value in (*node.operands, *node.results)
            if (dims := shapes[value].dims) is None or len(dims) > AXES
        }
        found = blockers(self.model, self.sizes.target) if wide else None
        is_open = found and not wide.isdisjoint(each.path for each in (*found.blockers, *found.unknown))
        yield from (kind() for kind in NPU_PASSES if kind is not ReduceRank or is_open)

    def result(self) -> Lowered:
        """Return the model with its place in the contract; the logits are its first output."""
        if self.is_decoder and (logits := self.original.roles.logits) is not None:
            self.model = with_first_output(self.model, logits.name)
            self._add_stage("logits first", tested="its outputs come in another order")
        if self.setting.sound is not None and not self.is_decoder:
            self.interface.sounds = {value.name for value in self.original.roles.all("audio")}
        method = self.interface.method(self.name, self.model, "step" if self.is_decoder else "once")
        return Lowered(
            method=method,
            model=self.model,
            tables=self.tables,
            states=self.interface.states(method),
            changes=tuple(self.changes),
            blockers=blockers(self.model, self.sizes.target, passed=self.passes),
            tokens=self.tokens,
            passes=frozenset(self.passes),
            stages=tuple(replace(stage, sizes=self.setting.dims) for stage in self.stages),
            sound=self.setting.sound,
        )

    def _add_stage(self, name: str, **details: Any) -> None:
        if self.model is not self.staged:
            self.stages.append(Stage(self.name, name, self.staged, self.model, **details))
        self.staged = self.model

    def _run_rewrites(self, *rewrites: Rewrite, spec: DimSpec = AS_DECLARED) -> Outcome:
        outcome = run_to_fixpoint(self.model, rewrites, spec)
        self._adopt_outcome(outcome, *(rewrite.name() for rewrite in rewrites))
        return outcome

    def _adopt_outcome(self, outcome: Outcome, *passes: str) -> None:
        self.passes.update(passes)
        self.model = outcome.model
        self.changes += outcome.changes
