"""Compare two models layer by layer, and say where and why they part."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from msgspec import Struct
from onnx import TensorProto
from onnx.helper import make_tensor

from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import family_labels, module_of
from graphkit.graph.new_nodes import make_gather
from graphkit.graph.view import Value, as_text
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import CompareOptions
from graphkit.progress import Progress
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import MAX_TIMEOUTS, RunError, as_provider, check_files
from graphkit.shapes import AS_DECLARED, DimSpec, declarations
from graphkit.shapes.constraints.dim_equalities import fed_inputs
from graphkit.verify.comparator import FLOAT16_TOLERANCE, has_float16, level_tolerance
from graphkit.verify.layers.compared_model import (
    ArrayFile,
    Pair,
    Reader,
    Side,
    check_given,
    legal_feeds,
    rename_feed,
    widen_integers,
)
from graphkit.verify.layers.comparison import ComparedTensor, Divergence, ModelComparison, NextDump
from graphkit.verify.layers.measuring import (
    Measured,
    bisect_pairs,
    find_next_dumps,
    first_differing,
    match_dumps,
    match_models,
    sweep_pairs,
)
from graphkit.verify.layers.tensor_causes import find_tensor_cause
from graphkit.verify.proof_engine import run_isolated
from graphkit.verify.rewrite_proof import placed_text, placement_fault

TOLERANCE = 1e-4
MOST_CAUSES = 4  # places where a difference begins that are looked into


def compare_models(
    a: ModelLike,
    b: ModelLike,
    spec: DimSpec = AS_DECLARED,
    options: CompareOptions = CompareOptions(),
    *,
    inputs: Mapping[str, np.ndarray] | str | os.PathLike[str] | None = None,
    progress: Progress = lambda _: None,
) -> ModelComparison:
    """Run two models on the same inputs, and compare them tensor by tensor.

    A few tensors are looked at at a time: each model runs in steps, each node once, and only what later steps read is
    held. Tensors match as told, by name, by normal form (see `shared_values`), then by structure (one operator,
    the same attributes and inputs); what is ambiguous is unmatched. Where a difference begins, its cause is looked for.
    With a provider for a side, each of its steps runs there: the layer at which a device's numbers part is found.

    Args:
        a: The model that is right.
        b: The other one; or an .npz file of its tensors by name, from a device or a run in PyTorch.
        spec: Sizes for generated inputs.
        options: How to compare.
        inputs: Arrays for inputs by name, or an .npz file of them; what is missing is generated. Where B is a file of
            tensors, it has the inputs too, or they are given.
        progress: Called with the name of each step before it starts.

    Returns:
        Where the models part, and why; `passed` says whether nothing differs.

    Raises:
        UsageError: B has other inputs, a name does not exist, or B is a file of tensors and no inputs are given.
        ModelError: A file cannot be read, or a model does not run.

    Example:
        >>> graphkit.compare_models("example:causal-attention", "example:causal-attention").passed
        True
    """
    with run_isolated(options.limits):
        if isinstance(b, str | os.PathLike) and Path(b).suffix.lower() == ".npz":
            other: Model | ArrayFile = ArrayFile(b, options.limits)
        else:
            other = _load_model(b)
        return _Comparison(_load_model(a), other, spec, options, inputs, progress).run()


def _load_model(source: ModelLike) -> Model:
    model = as_model(source)
    model.check_soundness()
    check_files(model)
    return declarations(model).model


class _Comparison(Struct, eq=False, dict=True):
    model: Model
    other: Model | ArrayFile
    spec: DimSpec
    options: CompareOptions
    inputs: Mapping[str, np.ndarray] | str | os.PathLike[str] | None
    progress: Progress

    def run(self) -> ModelComparison:
        names = dict(self.options.names)
        b = self.other if isinstance(self.other, Model) else None
        arrays = self._given_arrays(b)
        arrays_of_a = {name: array for name, array in arrays.items() if name in self.model.graph.values}
        failure: RunError | None = None
        given_up, providers = 0, self._providers
        told = {value.name: names[value.name] for value in self.model.graph.inputs if value.name in names}
        for feed in legal_feeds(self.model, b, self.spec, arrays_of_a, told, self.options.seed):
            side = Side(self.model, feed, providers["A"])
            theirs = None if b is None else Side(b, rename_feed(self.model, b, feed, arrays, names), providers["B"])
            try:
                return self._compare_pair(side, theirs, names)
            except RunError as error:
                failure = failure or error
                given_up += error.timed_out or bool(error.signal)
                if given_up == MAX_TIMEOUTS:
                    break
        raise failure or ModelError(
            "no sizes were found at which it may run", file=self.model.label, hint="give some with --dim or --input"
        )

    def _given_arrays(self, b: Model | None) -> dict[str, np.ndarray]:
        """Return the arrays for inputs; those of a file are checked before they are read."""
        if self.inputs is None and not isinstance(self.other, ArrayFile):
            return {}
        if isinstance(self.inputs, Mapping):
            arrays = {name: np.asarray(array) for name, array in self.inputs.items()}
            check_given(arrays, self.model, b)
            return {name: widen_integers(array, self.model.graph.values.get(name)) for name, array in arrays.items()}
        file = self._dumped_arrays if self.inputs is None else ArrayFile(self.inputs, self.options.limits)
        names = tuple(fed_inputs(self.model)) if self.inputs is None else file.names
        if missing := [name for name in names if name not in file.names]:
            problem = f"it has no '{missing[0]}', an input that its tensors were made with"
            hint = "give the inputs with --inputs FILE.npz, or put them into that file"
            raise UsageError(f"{file.label}: {problem} - {hint}")
        values = self.model.graph.values
        known = {name: declared_type(values[name]) for name in names if name in values}
        file.find_layouts({name: known_type.dims for name, known_type in known.items() if known_type is not None})
        check_given({name: file.claimed_array(name) for name in names}, self.model, b)
        return {name: widen_integers(file.read(name), values.get(name)) for name in names}

    def _compare_pair(self, a: Side, b: Side | None, names: Mapping[str, str]) -> ModelComparison:
        rows = dict[str, str]()
        if b is None:
            a, pairs, rows = self._match_dumps(a, names)
        else:
            matched = match_models(a, b, names, by_order=self.options.by_order)
            pairs = [pair for pair in matched if pair.a.producer or (isinstance(pair.b, Value) and pair.b.producer)]
        tolerance = self._default_tolerance()
        reader = Reader(pairs, a, b or self._dumped_arrays, all_asked=not self.options.bisect)
        if self.options.bisect:
            measured = bisect_pairs(pairs, a, reader, tolerance, self.progress)
        else:
            measured = sweep_pairs(pairs, a, reader, tolerance, self.options.limits, self.progress)
        for side in (a, b):
            if side is not None and (fault := placement_fault(side.placed, side.provider)):
                raise ModelError(fault, file=side.model.label)
        divergences = list[Divergence]()
        for place, each in enumerate(first_differing(measured, a)):
            self.progress(f"looking into '{each.pair.a.name}'")
            arrays = b or self._dumped_arrays
            causes = (find_tensor_cause(each.pair, a, arrays, tolerance),) if place < MOST_CAUSES else ()
            node = each.pair.a.producer
            label, operator = (node.label, node.operator) if node is not None else ("", "")
            divergences.append(Divergence(each.pair.a.name, each.pair.theirs, label, operator, causes))
        unmatched_a, unmatched_b = self._unmatched_names(pairs, a, b)
        compared = {rows.get(pair.a.name, pair.a.name) for pair in pairs}
        return ModelComparison(
            a=self._side_label("A", self.model.label),
            b=self._side_label("B", self.other.label),
            tolerance=tolerance,
            inputs={name: array.shape for name, array in a.feed.items()},
            bisected=self.options.bisect,
            steps=reader.steps,
            tensors=tuple(_compare_tensor(each, a) for each in measured),
            divergences=tuple(divergences),
            matched=len(pairs),
            unmatched_a=tuple(name for name in unmatched_a if name not in rows.values()),
            unmatched_b=unmatched_b,
            unmatched_outputs=tuple(
                each.name
                for each in self.model.graph.outputs
                if each.producer is not None and each.name not in compared
            ),
            next_dumps=self._find_next_dumps(measured, divergences, a),
            exporter=as_text(self.model.proto.producer_name),
            notes=tuple(self._pair_notes(pairs, a, b, rows)),
            models=(a.model, *([self.other] if isinstance(self.other, Model) else [])),
        )

    def _match_dumps(self, a: Side, names: Mapping[str, str]) -> tuple[Side, list[Pair], dict[str, str]]:
        """Return A with its pairs; dumps of the last token alone are paired with the last rows of its tensors.

        The tensors that these are rows of come by the names of the rows. Raises UsageError where no array is one of a
        tensor that A computes.
        """
        dumps = self._dumped_arrays
        pairs = match_dumps(a, dumps, names)
        if not any(pair.a.producer for pair in pairs):
            arrays = [name for name in dumps.names if name not in fed_inputs(a.model)]
            outputs = [value for value in a.model.graph.outputs if value not in a.unholdable]
            if not (arrays and outputs):
                return a, pairs, {}
            sizes = {name: dumps.claimed_array(name).shape for name in arrays}
            alike = ((value, name) for value in outputs for name in arrays if known_dims(a, value) == sizes[name])
            value, name = next(alike, (outputs[0], arrays[0]))
            hint = f"tell which is which with --map A_NAME=B_NAME, such as --map {shlex.quote(f'{value.name}={name}')}"
            have = family_labels(arrays)
            raise UsageError(f"{dumps.label}: none of its arrays has the name of a tensor of A: {have} - {hint}")
        proto, rows, told = onnx.ModelProto(), dict[str, str](), dict[str, str]()
        for pair in pairs:
            dims, shape = known_dims(a, pair.a), dumps.claimed_array(pair.theirs).shape
            if pair.a.producer is None or len(dims) != 3 or shape not in ((dims[0], dims[2]), (dims[0], 1, dims[2])):
                continue
            if dims[1] < 1 or shape == dims:
                continue
            if not rows:
                proto.CopyFrom(a.model.proto)
            name = f"{pair.a.name}[:, -1{':' * (len(shape) == 3)}]"
            last = [1] if len(shape) == 3 else []
            proto.graph.initializer.append(make_tensor(f"{name} index", TensorProto.INT64, last, [dims[1] - 1]))
            proto.graph.node.append(make_gather(pair.a.name, f"{name} index", 1, name, name=name).to_proto())
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
            rows[name], told[name] = pair.a.name, pair.theirs
        if not rows:
            return a, pairs, rows
        rest = {name: name_in_b for name, name_in_b in names.items() if name not in rows.values()}
        a = Side(a.model.with_proto(proto), a.feed, a.provider, a.placed)
        return a, match_dumps(a, dumps, {**rest, **told}), rows

    def _side_label(self, side: str, label: str) -> str:
        provider = self._providers[side]
        return label if provider.is_cpu else f"{label} on {provider}"

    @property
    def _dumped_arrays(self) -> ArrayFile:
        assert isinstance(self.other, ArrayFile)
        return self.other

    def _default_tolerance(self) -> float:
        if self.options.tolerance is not None:
            return self.options.tolerance
        models = [model for model in (self.model, self.other) if isinstance(model, Model)]
        devices = [provider for provider in self._providers.values() if not provider.is_cpu]
        least = FLOAT16_TOLERANCE if any(map(has_float16, models)) else TOLERANCE
        return max(least, least, *(level_tolerance(model, device) for device in devices for model in models))

    @cached_property
    def _providers(self) -> dict[str, Provider]:
        found = {"A": CPU, "B": CPU}
        for text in self.options.providers:
            side, name = (text[0], text[2:]) if text[:2] in ("A=", "B=") else ("B", text)
            found[side] = as_provider(name)
        if not (found["B"].is_cpu or isinstance(self.other, Model)):
            raise UsageError(f"--provider: {self.other.label} holds arrays, which do not run - take A=, or a model")
        return found

    def _find_next_dumps(
        self, measured: Sequence[Measured], begins: Sequence[Divergence], a: Side
    ) -> tuple[NextDump, ...]:
        """Return what to dump next where B is a file of arrays, and the cause of the first difference is unknown."""
        if isinstance(self.other, Model) or not begins or any(each.kind != "unknown" for each in begins[0].causes):
            return ()
        known = [each.pair.a for each in measured if each.agrees]
        dumps = find_next_dumps(a, a.model.graph.values[begins[0].tensor], known)
        return tuple(NextDump(name, value.name, known_dims(a, value)) for name, value in dumps.items())

    def _unmatched_names(
        self, pairs: Sequence[Pair], a: Side, b: Side | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        mine, theirs = {pair.a for pair in pairs}, {pair.b for pair in pairs}
        unmatched_a = tuple(value.name for value in a.place if value.producer is not None and value not in mine)
        if b is None:
            known = {*theirs, *fed_inputs(a.model)}
            return unmatched_a, tuple(name for name in self._dumped_arrays.names if name not in known)
        return unmatched_a, tuple(value.name for value in b.place if value.producer is not None and value not in theirs)

    def _pair_notes(self, pairs: Sequence[Pair], a: Side, b: Side | None, rows: Mapping[str, str]) -> Iterator[str]:
        if rows:
            yield (
                f"B has one row of {family_labels([*rows.values()])}, which is compared with that of the last token, "
                "padding or not."
            )
        for name, side in (("A", a), ("B", b)):
            if side is not None and side.placed:
                yield f"Nodes of {name} that ran, in all steps: {placed_text(side.placed)}."
            if side is not None and side.hidden:
                yield (
                    f"{side.hidden:,} nodes of {name} stand in branches or loops, and are seen by what comes out of "
                    "these only; split-merged and fold make one graph of them."
                )
        if b is None and (last := [pair.theirs for pair in pairs if pair.theirs in self._dumped_arrays.channels_last]):
            yield f"These arrays have their channels last (NHWC), and are compared as NCHW: {family_labels(last)}."


def known_dims(side: Side, value: Value) -> tuple[int, ...]:
    """Return the dims of a tensor, -1 for one that is not known."""
    return tuple(dim if dim is not None else -1 for dim in side.dims(value) or ())


def _compare_tensor(measured: Measured, side: Side) -> ComparedTensor:
    node, difference = measured.pair.a.producer, measured.difference
    return ComparedTensor(
        a=measured.pair.a.name,
        b=measured.pair.theirs,
        how=measured.pair.how,
        node=node.label if node is not None else "",
        operator=node.operator if node is not None else "",
        module=module_of(node) if node is not None else "",
        dims=known_dims(side, measured.pair.a),
        absolute=difference.absolute if difference is not None and not difference.problem else None,
        relative=difference.of_magnitude if difference is not None and not difference.problem else None,
        cosine=measured.cosine,
        problem=difference.problem if difference is not None else "",
        agrees=measured.agrees,
    )
