"""Rounding: how far an original moves when its numbers are rounded anew, as far as a rewrite of it may be off.

A rewrite that adds and multiplies in another order, or with weights that it computed beforehand, differs in the last
digits. How far these reach grows with the depth of a model and with its magnitudes, and no constant is right for all.
So the original is measured: copies of it run on the same inputs, whose weights and inputs are off by up to half a unit
in their last place. A few times as much is rounding, whatever is more is not.

Float16 may lose more than that, by a Softmax of large scores, or by the sine of a position of a thousand. There the
digits of the original tell nothing of a rewrite, and it is judged twice, row by row of the first axis: in float32,
where both round next to nothing, it may differ by what is said above; and as it is, it may be twice as far from the
original in float32 as the original is. A wrong rewrite is wrong in float32 too, however much float16 loses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx
from msgspec import Struct, field
from onnx import TensorProto, helper, numpy_helper

from graphkit.dtypes import HALVES, inline_array
from graphkit.errors import ModelError, count_things
from graphkit.graph.names import free_name, names_in
from graphkit.graph.view import all_nodes
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.progress import Progress
from graphkit.rewrite.base import copy_proto, keep_members
from graphkit.rewrite.new_interface import with_value_names
from graphkit.runtime.session import IsolatedSession, RunError, Runner
from graphkit.verify.comparator import (
    FLOAT32_TOLERANCE,
    IN_8_BITS,
    Difference,
    Output,
    compare_output,
    elementwise_difference,
    largest_magnitude,
)
from graphkit.verify.feeder import Run
from graphkit.verify.proof_engine import Called
from graphkit.verify.proof_runs import TwoModels

HALF_UNITS: Mapping[int, float] = {  # of the last place, relative to a number of that dtype
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
    TensorProto.FLOAT: 2.0**-24,
}
LIKE_INFINITY = 1e30  # numbers that stand for infinity in masks do not move
DTYPES = ("to", "dtype", "output_dtype", "output_datatype")  # attributes that say which dtype an operator gives
SINGLE = TensorProto.FLOAT
FACTORS = {True: 2.0, False: 4.0}  # times as far as an original in float16, or in float32, moves; measured: at most 1.6
COPIES = 3  # times that the weights move
UNIT = 2.0**-24  # half a unit in the last place of float32, which outputs are rounded to in any case
DECIDED = "extreme values, NaN and infinities, where rounding decides"
IN_FLOATS = "Products with 4-bit weights are compared in floats: in 8 bits, as it asks for, activations flip."
Outputs = Mapping[str, Output]


def bfloat16_in_float32(model: Model) -> Model | None:
    """Return a model of bfloat16 in float32, with its inputs as they are; None for one that is not converted."""
    try:
        copy, names = in_float32(model, half=TensorProto.BFLOAT16)
    except ModelError:
        return None
    values = copy.graph.values
    pairs = [pair for now, was in names.items() for pair in ((values[now], was), (values[was], now))]
    return with_value_names(copy, dict(pairs))


def in_float32(
    model: Model, shaken: int | None = None, *, wide_inputs: bool = False, half: int = TensorProto.FLOAT16
) -> tuple[Model, dict[str, str]]:
    """Return a model of float16 in float32, and the names of its inputs by the names that they have now.

    Inputs stay float16, and weights too: a Cast follows each, so that data outside the file stays where it is. With
    `wide_inputs` inputs are float32 too, under their own names, so that models of a chain round nothing between them.

    `shaken` is a seed: weights move by up to half a unit in the last place of a float16, as when they are rounded anew;
    those that share a place on the last axis move together. Where `half` is float32 itself, the copy only moves. Raises
    ModelError for functions that cannot be inlined, and for both 16-bit dtypes.
    """
    model = InlineFunctions().run(model).model
    dtypes = {tensor.data_type for tensor, _ in walk_tensors(model.proto)}
    dtypes |= {info.type.tensor_type.elem_type for info in model.proto.graph.input}
    if model.proto.functions or (dtypes & {*HALVES} - {half}):
        raise ModelError("it has functions or bfloat16, and is not converted", file=model.label)
    proto = copy_proto(model)
    maker = _Converter(model, None if shaken is None else np.random.default_rng(shaken), half)
    names = maker.convert(proto.graph, wide_inputs=wide_inputs)
    return model.with_proto(proto), names


def without_rounding(model: Model) -> Model:
    """Return a model whose products with packed weights read activations as they are, not in 8 bits; itself if so."""
    if not any(node.attr("accuracy_level", 0) == IN_8_BITS for node in all_nodes(model.scopes)):
        return model
    exact = model.with_proto(copy_proto(model))
    for node in all_nodes(exact.scopes):
        if (level := node.attributes.get("accuracy_level")) is not None:
            level.i = 0  # which leaves it to the runtime, whose kernels for the CPU take float32
    return exact


class _Converter:
    """Converts graphs in place; `rng` moves the weights."""

    def __init__(self, model: Model, rng: np.random.Generator | None, half: int) -> None:
        self.model, self.taken, self.rng, self.half = model, names_in(model.scopes), rng, half

    def convert(self, graph: onnx.GraphProto, *, wide_inputs: bool) -> dict[str, str]:
        """Convert a graph, and return the names of its inputs before by those after."""
        casts, names = list[onnx.NodeProto](), dict[str, str]()
        initializers = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == self.half}
        inputs = {info.name: info for info in graph.input if self._is_half(info)} if not wide_inputs else {}
        for name in dict.fromkeys((*initializers, *inputs)):
            fresh = self._fresh(f"{name}_float16")
            if name in inputs:
                inputs[name].name, names[fresh] = fresh, name
            if name in initializers:
                initializers[name].name = fresh
            tensor = initializers.get(name)
            size = tensor.dims[-1] if tensor is not None and tensor.dims else 0  # of the axis along which it moves
            array = inline_array(tensor) if tensor is not None else None
            if array is not None and (np.abs(array.astype(np.float32)) >= LIKE_INFINITY).any():
                size = 0  # what stands for infinity does not move
            if self.rng is None or size < 1:
                casts.append(helper.make_node("Cast", [fresh], [name], to=SINGLE))
                continue
            cast, factors = self._fresh(f"{name}_float32"), self._fresh(f"{name}_factors")
            shaking = numpy_helper.from_array(self._shaking_factors((size,)))
            casts.append(helper.make_node("Cast", [fresh], [cast], to=SINGLE))
            casts.append(helper.make_node("Constant", [], [factors], value=shaking))
            casts.append(helper.make_node("Mul", [cast, factors], [name]))
        for info in (*graph.input, *graph.output) if wide_inputs else graph.output:
            if self._is_half(info):
                info.type.tensor_type.elem_type = SINGLE
        keep_members(graph.value_info, [not self._is_half(info) for info in graph.value_info])
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    self.convert(attribute.g, wide_inputs=True)
                elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == self.half:
                    array = self.model.array(attribute.t).astype(np.float32)
                    if self.rng is not None and array.ndim and node.op_type == "Constant":
                        moved = array * self._shaking_factors(array.shape)
                        array = np.where(np.abs(array) < LIKE_INFINITY, moved, array)
                    attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
                elif attribute.name in DTYPES and attribute.i == self.half:
                    attribute.i = SINGLE
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend((*casts, *nodes))
        return names

    def _shaking_factors(self, shape: tuple[int, ...]) -> np.ndarray:
        assert self.rng is not None
        return (1 + self.rng.uniform(-HALF_UNITS[self.half], HALF_UNITS[self.half], shape)).astype(np.float32)

    def _is_half(self, info: onnx.ValueInfoProto) -> bool:
        return info.type.tensor_type.elem_type == self.half

    def _fresh(self, base: str) -> str:
        name = free_name(base, self.taken)
        self.taken.add(name)
        return name


class RoundingJudge(Struct, eq=False, dict=True):
    """The judge of differences above the tolerance: whether they are rounding."""

    two: TwoModels
    is_half: bool  # whether the original has float16 tensors, so that both are compared in float32
    proven: Collection[str] = ()  # the outputs that are equal in exact arithmetic, as normal forms show
    progress: Progress = lambda _: None
    # what is rounding: by run and output how far the original itself is off, and the difference, both relative to the
    # largest magnitude
    explained: dict[tuple[Run, str], tuple[float, float]] = field(default_factory=dict)
    excuses: bool = False  # whether runs of extremes count as explained: overflow depends on the order of sums too
    has_excused: bool = False  # whether any such run differs
    _known: dict[Run, tuple[Outputs, ...]] = field(default_factory=dict)

    def explains(self, run: Run, difference: Difference, actual: Output, tolerance: float) -> bool:
        """Whether the difference of an output is rounding."""
        if not self.is_half and run.draw.kind in ("extremes", "not finite"):
            self.has_excused |= self.excuses
            return self.excuses
        if difference.problem or not math.isfinite(difference.scaled):
            return False
        name = difference.output
        if self.is_half:
            found = self._explain_half(run, name, actual, tolerance)
        else:
            moved = [compare_output(run.expected[name], given[name]) for given in self._outputs(run) if name in given]
            scaled = (each.scaled for each in moved if not each.problem and math.isfinite(each.scaled))
            moves = max(scaled, default=0.0)
            limit = max if name in self.proven else min  # where a choice flips, outputs move by any amount
            within = limit(FACTORS[False] * max(moves, UNIT), FLOAT32_TOLERANCE)
            found = (moves, difference.scaled) if difference.scaled <= max(tolerance, within) else None
        if found is None:
            return False
        known = self.explained.get((run, name), (0.0, 0.0))
        self.explained[run, name] = max(known[0], found[0]), max(known[1], found[1])
        return True

    def _explain_half(self, run: Run, name: str, actual: Output, tolerance: float) -> tuple[float, float] | None:
        """Return how far both models are from the original in float32; None where it is no rounding."""
        expected = run.expected[name]
        if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f" or not (outputs := self._outputs(run)):
            return None
        exact, rewritten, *moved = (each[name] for each in outputs)
        if not _is_finite_with(exact, expected) or not _is_finite_with(rewritten, exact):
            return None
        of_original, of_candidate, of_rewritten = (_by_row(exact, array) for array in (expected, actual, rewritten))
        sensitivity = np.max([_by_row(exact, array) for array in moved], axis=0)
        within = np.maximum(tolerance, FACTORS[True] * sensitivity)
        is_more = of_candidate > np.maximum(within, FACTORS[True] * of_original)
        if is_more.any() or (of_rewritten > within).any():
            return None
        return float(of_original.max()), float(of_rewritten.max())

    def caveats(self) -> tuple[str, ...]:
        """Return what is not compared as it is, a clause each."""
        if not self.is_half:
            return (DECIDED,) if self.has_excused else ()
        runs = list(dict.fromkeys(run for run, _ in self.explained))
        kinds = ", ".join(dict.fromkeys(run.elements for run in runs if run.elements))
        where = count_things(len(runs), "run(s)") + (f" ({kinds})" if kinds else "")
        return (f"the digits of float16 in {where}, compared in float32",)

    def note(self) -> str:
        """Return how far off the original itself is, and how far apart both models are, a sentence."""
        of_original, difference = (max(values) for values in zip(*self.explained.values(), strict=True))
        if self.is_half:
            return (
                f"Where outputs are compared in float32, float16 puts the original itself {of_original:.2g} of the "
                f"largest magnitude off; in float32 both differ by at most {difference:.2g}."
            )
        return (
            f"Differences are rounding, of up to {difference:.2g} of the largest magnitude in an output; the original "
            f"itself moves by up to {of_original:.2g} where its weights and inputs are rounded anew."
        )

    @property
    def tolerance(self) -> float:
        """The largest difference, rounded up to two digits."""
        return float(f"{1.05 * max(difference for _, difference in self.explained.values()):.1e}")

    def _outputs(self, run: Run) -> tuple[Outputs, ...]:
        """Return what the copies give in a run; none where one in float32 fails, and without those that fail else."""
        if run not in self._known:
            results = list[Outputs]()
            for number, (session, reads_all) in enumerate(self._sessions):
                feed = self.two.feed(run) if reads_all else self.two.known(run)
                rng = np.random.default_rng(number)
                for name, array in feed.items() if not self.is_half else ():
                    if array.dtype == np.float32:
                        feed[name] = array * (1 + rng.uniform(-UNIT, UNIT, array.shape)).astype(np.float32)
                try:
                    results.append(session.run(feed))
                except RunError:
                    if self.is_half:
                        results = []
                        break
            self._known[run] = tuple(results)
        return self._known[run]

    @cached_property
    def _sessions(self) -> Sequence[tuple[Runner, bool]]:
        """The copies, and whether each reads all inputs of the original; none where onnxruntime does not load them.

        Of a model in float16: it and its rewrite in float32, and copies of it there whose weights move. Of another
        one: copies whose weights move.
        """
        before, after = self.two.models
        try:
            if self.is_half:
                self.progress("proving: both models in float32")
                both = (_float32_session(before), True), (_float32_session(after, self.two.names), False)
                return [*both, *((_float32_session(before, shaken=seed), True) for seed in range(COPIES))]
            self.progress("proving: the original, rounded anew")
            source = self.two.sources[0]
            original = source if isinstance(source, Model) else before
            copies = [in_float32(original, seed, wide_inputs=True, half=TensorProto.FLOAT) for seed in range(COPIES)]
            return [(IsolatedSession(copy, prepack=False), True) for copy, _ in copies]
        except ModelError:
            return []


def _float32_session(model: Model, names: Mapping[str, str] | None = None, shaken: int | None = None) -> Runner:
    converted, renamed = in_float32(model, shaken)
    called = {now: (names or {}).get(was, was) for now, was in renamed.items()}
    return Called(IsolatedSession(converted), {**(names or {}), **called})


def _is_finite_with(output: Output, reference: Output) -> bool:
    if not isinstance(output, np.ndarray) or not isinstance(reference, np.ndarray) or output.shape != reference.shape:
        return False
    return bool(np.isfinite(output[np.isfinite(reference)]).all())


def _by_row(exact: Output, array: Output) -> np.ndarray:
    assert isinstance(exact, np.ndarray)
    assert isinstance(array, np.ndarray)
    finite = np.isfinite(exact) & np.isfinite(array)
    apart = np.where(finite, elementwise_difference(exact, array), 0.0) / (largest_magnitude(exact[finite]) or 1.0)
    rows: np.ndarray = apart.reshape(len(apart) if apart.ndim else 1, -1).max(axis=1)
    return rows
