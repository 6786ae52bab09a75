"""The two sides of a comparison: inputs that are legal for both, the tensors of a model, files of arrays."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import IO

import numpy as np
import onnx
from msgspec import Struct
from numpy.lib import format as npy
from onnx import TensorProto, helper

from graphkit.dtypes import HELD, dtype_name
from graphkit.errors import ModelError, UsageError
from graphkit.graph.dataflow import values_read
from graphkit.graph.declared_types import declared_type, shape_text
from graphkit.graph.names import group_pairs
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.matching.value_matching import Dims, GraphSide
from graphkit.model import Model
from graphkit.progress import DEFAULT_LIMITS, FEW_RUNS, Limits
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import DimSpec, Shapes, infer
from graphkit.shapes.constraints.dim_equalities import fed_inputs, fixed_by, solve_dims
from graphkit.shapes.constraints.legal_sizes import legal_sizes
from graphkit.shapes.graph_inputs import Inputs
from graphkit.verify.cause_search import make_part
from graphkit.verify.feeder import Feeder, lengths_of
from graphkit.verify.run_sizes import propose_assignments

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
Feed = Mapping[str, np.ndarray]
MAX_TRIED = 12  # sizes to choose from
TELLING = 24  # positions and sequences that are enough together
KINDS = "biufU"
LEAST_RANK = 4  # of arrays that have an axis of channels
FAR = 16  # times as many elements as another array
HINT = "write it with numpy.savez, as plain arrays of numbers"


@dataclass(frozen=True, eq=False)
class Side(GraphSide):
    """A model and its feed."""

    model: Model
    feed: Mapping[str, np.ndarray]  # an array for each input without a default
    provider: Provider = CPU
    # how many nodes ran on each provider, where that is not the CPU
    placed: Counter[str] = field(default_factory=Counter)

    @property
    def spec(self) -> DimSpec:
        """The shapes of these inputs."""
        return DimSpec.of(inputs={name: array.shape for name, array in self.feed.items()})

    @cached_property
    def shapes(self) -> Shapes:
        """The shapes for these inputs."""
        try:
            return infer(self.model, self.spec)
        except UsageError:  # the inputs contradict what is declared of them, which onnxruntime may take
            return infer(self.model)

    @property
    def inputs(self) -> Sequence[Value]:
        """The inputs that are fed."""
        return [value for value in self.model.graph.inputs if value.name in self.feed]

    @cached_property
    def reads(self) -> Mapping[Node, tuple[Value, ...]]:
        """The values of the main graph that each of its nodes reads, its bodies included."""
        main = self.model.graph
        return {node: tuple(value for value in values_read(node) if value.scope is main) for node in main.nodes}

    @cached_property
    def readers(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes of the main graph that read each value, or have a body that does."""
        readers = group_pairs((value, node) for node, values in self.reads.items() for value in values)
        return {value: tuple(nodes) for value, nodes in readers.items()}

    @cached_property
    def unholdable(self) -> frozenset[Value]:
        """The tensors that cannot be looked at: sequences, maps, dtypes that numpy lacks, and unknown ones."""
        return frozenset(value for value in self.place if self.dtype(value) not in HELD)

    def dtype(self, value: Value) -> int:
        """Return the dtype of a tensor, 0 where it is not known."""
        declared = declared_type(value)
        return self.shapes[value].dtype or (0 if declared is None else declared.dtype)

    def dims(self, value: Value) -> Dims:
        """Return the dims of a tensor, as far as they are known."""
        dims = self.shapes[value].dims
        return None if dims is None else tuple(dim.constant for dim in dims)

    @cached_property
    def hidden(self) -> int:
        """The nodes in bodies, which cannot be looked at."""
        return sum(len(scope.nodes) for scope in self.model.graph.walk()) - len(self.model.graph.nodes)


class Pair(Struct, frozen=True, eq=False):
    """A tensor of A and its match: a tensor of B, or the name of a dump."""

    a: Value
    b: Value | str
    how: str  # what they were matched by

    @property
    def theirs(self) -> str:
        """The name in B."""
        return self.b if isinstance(self.b, str) else self.b.name


def constant_array(model: Model, tensor: TensorProto) -> np.ndarray:
    """Return a constant's array, a view of its file where it is external."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(model.payload(tensor), dtype).reshape(tuple(tensor.dims))


class Reader:
    """Gives the arrays of pairs of A and B; `all_asked` says whether all of them will be asked for."""

    def __init__(self, pairs: Sequence[Pair], a: Side, b: Side | ArrayFile, *, all_asked: bool = True) -> None:
        self.steps = 0  # how often it was asked
        self.one = Steps(a, a.feed, [pair.a for pair in pairs], all_asked=all_asked)
        theirs = [pair.b for pair in pairs if isinstance(pair.b, Value)]
        self.two = b if isinstance(b, ArrayFile) else Steps(b, b.feed, theirs, all_asked=all_asked)
        self._models = [steps for steps in (self.one, self.two) if isinstance(steps, Steps)]

    def read(self, some: Sequence[Pair]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Return the arrays of some pairs."""
        self.steps += 1
        mine = self.one.values([pair.a for pair in some])
        if isinstance(self.two, ArrayFile):
            return zip(mine, map(self.two.beside, [pair.theirs for pair in some], mine), strict=True)
        return zip(mine, self.two.values([pair.b for pair in some if isinstance(pair.b, Value)]), strict=True)

    def keep(self) -> None:
        """Remember the tensors computed for them, to go on from there."""
        for steps in self._models:
            steps.keep()

    def back(self) -> None:
        """Go on from the tensors remembered last."""
        for steps in self._models:
            steps.back()


class Steps:
    """The tensors of a model's main graph, for one feed; arrays that are `given` take the place of tensors.

    Those `pending` may be asked for, in any order; others need more time. With `all_asked` all of them will be, so that
    one that is computed is held until then. Whatever reads a tensor that cannot be held, such as a sequence, runs in
    the same step.
    """

    def __init__(
        self,
        side: Side,
        feed: Mapping[str, np.ndarray],
        pending: Sequence[Value],
        *,
        all_asked: bool = True,
        given: Mapping[Value, np.ndarray] = MappingProxyType({}),
    ) -> None:
        self.model, self.graph, self.unholdable = side.model, side.model.graph, side.unholdable
        self.provider, self.placed = side.provider, side.placed
        self.order, self.reads, self.readers = side.order, side.reads, side.readers
        self.fed = {value: feed[value.name] for value in self.graph.inputs if value.name in feed} | dict(given)
        self.held = dict(self.fed)
        self.relevant = self._needed_nodes(pending, frozenset())
        self.pending = set(pending) if all_asked else set()
        self.done: set[Node] = set()
        self.keep()

    def keep(self) -> None:
        """Remember the tensors that are held, and the nodes that are done."""
        self._kept = dict(self.held), set(self.done)

    def back(self) -> None:
        """Return to the state remembered last."""
        self.held, self.done = dict(self._kept[0]), set(self._kept[1])

    def values(self, tensors: Sequence[Value]) -> list[np.ndarray]:
        """Return the arrays of some tensors. Raises ModelError where the nodes that they need do not load, or fail."""
        fresh = [value for value in tensors if value not in self.held]
        constants = {value: self.model.array(value.tensor) for value in fresh if value.tensor is not None}
        needed = self._needed_nodes([value for value in fresh if value not in constants], self.held)
        nodes = self._nodes_together(needed)
        arrays = {**constants, **(self._run(nodes, tensors) if nodes else {})}
        result = [self.held[value] if value in self.held else arrays[value] for value in tensors]
        self.done |= nodes
        self.pending -= set(tensors)
        self.held.update((value, array) for value, array in arrays.items() if value not in constants)
        self.held = {**self.fed, **{value: array for value, array in self.held.items() if self._is_needed(value)}}
        return result

    def _is_needed(self, value: Value) -> bool:
        later = self.readers.get(value, ())
        return value in self.pending or any(node in self.relevant and node not in self.done for node in later)

    def _needed_nodes(self, ends: Iterable[Value], known: Iterable[Value]) -> set[Node]:
        stop = set(known)

        def makers(values: Iterable[Value]) -> list[Node]:
            produced = (value.producer for value in values if value not in stop)
            return [node for node in produced if node is not None and node.scope is self.graph]

        return set(walk_breadth_first(makers(ends), lambda node: makers(self.reads[node])))

    def _nodes_together(self, nodes: set[Node]) -> set[Node]:
        """Return these nodes, and those that must run with them: the readers of tensors that cannot be held."""
        while True:
            loose = {
                reader
                for node in nodes
                for value in node.outputs
                if value in self.unholdable and value is not None
                for reader in self.readers.get(value, ())
                if reader in self.relevant and reader not in nodes
            }
            if not loose:
                return nodes
            read = [value for node in loose for value in self.reads[node] if value not in self.held]
            nodes = nodes | loose | self._needed_nodes(read, self.held)

    def _run(self, nodes: set[Node], tensors: Sequence[Value]) -> dict[Value, np.ndarray]:
        computed = [value for node in nodes for value in node.outputs if value is not None]
        before, requested = self.done, set(tensors)
        self.done = before | nodes  # what only these nodes read is not held
        outputs = [v for v in computed if v not in self.unholdable and (v in requested or self._is_needed(v))]
        self.done = before
        part, inputs = self._make_part(nodes, outputs)
        with IsolatedSession(part, prepack=False, provider=self.provider, held_runs=FEW_RUNS) as session:
            self.placed.update(session.placed)
            arrays = session.run(inputs)
        return {value: arrays[value.name] for value in outputs}

    @contextlib.contextmanager
    def load_part(self, value: Value) -> Iterator[Callable[[Mapping[Value, np.ndarray]], np.ndarray]]:
        """Load what gives a value, once, and give a function that runs it with other arrays for what is held."""
        part, inputs = self._make_part(self.relevant & self._needed_nodes([value], self.held), [value])
        with IsolatedSession(part, prepack=False, provider=self.provider, held_runs=FEW_RUNS) as session:
            yield lambda arrays: session.run({**inputs, **{v.name: a for v, a in arrays.items()}})[value.name]

    def _make_part(self, nodes: set[Node], outputs: Sequence[Value]) -> tuple[Model, dict[str, np.ndarray]]:
        computed = {value for node in nodes for value in node.outputs}
        read = {value for node in nodes for value in self.reads[node]} - computed
        inputs = {value.name: self.held[value] for value in read if value in self.held}
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ]
        weights = [value for value in read if value.name not in inputs]
        ordered = sorted(nodes, key=self.order.__getitem__)
        return make_part(self.model, ordered, weights, infos, outputs), inputs


def legal_feeds(
    a: Model, b: Model | None, spec: DimSpec, arrays: Feed, names_in_b: Mapping[str, str], seed: int
) -> Iterator[Feed]:
    """Yield inputs for A, those at the most telling sizes first: a batch, several tokens, a past.

    B is None for dumps; `arrays` are taken as they are; `names_in_b` are names of inputs of A, and what they are in B.
    Raises UsageError where B has inputs that A has not, or the sizes contradict each other.
    """
    spec = DimSpec.of(inputs={name: array.shape for name, array in arrays.items() if name in fed_inputs(a)}) | spec
    same = b is not None and not names_in_b and set(fed_inputs(b)) <= set(fed_inputs(a))
    fixed, spec = fixed_by(a, b, spec) if b is not None and same else ([], spec)
    numbers, relations = solve_dims(fixed, Inputs(a, spec).numbers)
    feeder = Feeder(a, legal_sizes(a, spec | DimSpec.of(numbers), relations), arrays, seed)
    flags = feeder.flags()[0]
    legal = feeder.legal(flags)
    names = {variable.name for variable in legal.variables}
    proposals = itertools.islice(propose_assignments(legal, [], lengths=lengths_of(a)), MAX_TRIED)
    sized = [(each.dims, [size for name, size in each.dims.items() if name in names]) for each in proposals]
    sized.sort(key=lambda item: (sum(size > 1 for size in item[1]), min(sum(item[1]), TELLING)), reverse=True)
    for dims in [dims for dims, _ in sized] if legal.variables else [{}]:
        yield feeder.feed(dims, flags, 0)


def rename_feed(a: Model, b: Model, feed: Feed, arrays: Feed, names_in_b: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the feed of B for a feed of A. Raises UsageError for an input that A has not, and that was not given."""
    feed_of_b = {names_in_b.get(name, name): array for name, array in {**arrays, **feed}.items()}
    if name := next((name for name in fed_inputs(b) if name not in feed_of_b), ""):
        hint = f"name the one with --map NAME={name}, or give an array with --inputs"
        raise UsageError(f"{b.label}: its input '{name}' is not one of {a.label} - {hint}")
    return {value.name: feed_of_b[value.name] for value in b.graph.inputs if value.name in feed_of_b}


def check_given(arrays: Feed, a: Model, b: Model | None) -> None:
    """Raise UsageError for an array that is no input of either model, or has another dtype or other dims."""
    for name, array in arrays.items():
        models = [model for model in (a, b) if model is not None]
        inputs = [value for model in models for value in model.graph.inputs if value.name == name]
        if not inputs:
            raise UsageError(f"--inputs: '{name}' is not an input of the models - leave it out")
        for value in inputs:
            if (declared := declared_type(value)) is None:
                continue
            if declared.dtype and declared.numpy_dtype not in (array.dtype, _wider_integers(array.dtype, value)):
                want = dtype_name(declared.dtype)
                raise UsageError(f"--inputs: '{name}' is {array.dtype}, and the model takes {want} - convert it")
            if declared.dims is None:
                continue
            have = list(array.shape)
            if len(declared.dims) != array.ndim:
                raise UsageError(f"--inputs: '{name}' has dims {have}, and the model takes {len(declared.dims)} dims")
            if any(isinstance(dim, int) and dim != size for dim, size in zip(declared.dims, have, strict=True)):
                raise UsageError(f"--inputs: '{name}' has dims {have}, and the model takes {shape_text(declared.dims)}")


def widen_integers(array: np.ndarray, value: Value | None) -> np.ndarray:
    """Return an array in the integers that an input takes, where these hold more than its own: int32 ids as int64."""
    return array.astype(_wider_integers(array.dtype, value), copy=False)


def _wider_integers(dtype: np.dtype, value: Value | None) -> np.dtype:
    declared = declared_type(value) if value is not None else None
    kind = declared.numpy_dtype if declared is not None and declared.dtype else dtype
    return kind if {kind.kind, dtype.kind} <= {"i", "u"} and np.can_cast(dtype, kind, "safe") else dtype


class ArrayFile:
    """An .npz file, of which no array may take more memory than `limits` leave to the outputs of a run."""

    def __init__(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> None:
        self.label, self.most = str(path), limits.outputs()
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise ModelError(f"no .npz file can be read: {error}", file=self.label, hint=HINT) from error
        members = [name for name in self._zip.namelist() if name.endswith(".npy")]
        self._members = {name.removesuffix(".npy"): name for name in members}
        self.names = tuple(self._members)
        self.channels_last: frozenset[str] = frozenset()  # arrays whose last axis is that of channels; `read` moves it

    def find_layouts(self, expected: Mapping[str, Sequence[int | str | None] | None]) -> None:
        """Find the arrays that have their channels last, as the dims that are expected say, or else other arrays."""
        kinds: dict[str, tuple[bool, bool]] = {}
        for name, dims in expected.items():
            if name in self.channels_last:
                continue
            shape = self.claimed_array(name).shape
            if dims is not None and len(dims) == len(shape) >= LEAST_RANK:
                first, last = (
                    all(size == dim for size, dim in zip(each, dims, strict=True) if isinstance(dim, int))
                    for each in (shape, (shape[0], shape[-1], *shape[1:-1]))
                )
                kinds[name] = first, last
        last_alone = {name for name, kind in kinds.items() if kind == (False, True)} | self.channels_last
        is_file_last = last_alone and (True, False) not in kinds.values()
        self.channels_last = frozenset(last_alone | {name for name in kinds if is_file_last and all(kinds[name])})

    def claimed_array(self, name: str) -> np.ndarray:
        """Return zeros of the dims and dtype that the header of an array says, which take no memory; see `read`."""
        with self._open_array(name) as (_, shape, _, dtype):
            zero = np.zeros((), object if dtype.kind == "U" else dtype.newbyteorder("="))
            return self._with_channels(name, np.broadcast_to(zero, shape))

    def beside(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return an array to compare with another one; only its dims and dtype where it is far larger."""
        claimed = self.claimed_array(name)
        return claimed if claimed.size > FAR * (array.size + 1) else self.read(name)

    def read(self, name: str) -> np.ndarray:
        """Return an array by name, strings as objects; ModelError where it is no plain numbers, too large, or cut."""
        with self._open_array(name) as (file, shape, is_fortran, dtype):
            size = math.prod(shape) * dtype.itemsize
            content = file.read(size)
        if len(content) != size:
            raise self._broken_error(name, f"it ends after {len(content):,} of {size:,} bytes")
        array = np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")
        array = self._with_channels(name, array)
        return array.astype(object) if dtype.kind == "U" else array.astype(dtype.newbyteorder("="), copy=False)

    def _with_channels(self, name: str, array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, -1, 1) if name in self.channels_last else array

    @contextlib.contextmanager
    def _open_array(self, name: str) -> Iterator[tuple[IO[bytes], tuple[int, ...], bool, np.dtype]]:
        """Open an array, and yield its file, dims, whether it is stored column by column, and its dtype."""
        try:
            with self._zip.open(self._members[name]) as file:
                version = npy.read_magic(file)
                if version not in ((1, 0), (2, 0)):
                    raise ValueError(f"version {version} of the format")
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, is_fortran, dtype = read(file)
                if dtype.hasobject or dtype.kind not in KINDS:
                    raise self._broken_error(name, f"an array of {dtype} holds no plain numbers")
                if any(dim < 0 for dim in shape) or math.prod(shape) * dtype.itemsize > self.most:
                    dims = f"dims {list(shape)[:8]} are not to be held in the {self.most:,} bytes that --memory leaves"
                    raise self._broken_error(name, dims)
                yield file, shape, is_fortran, dtype
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, SyntaxError) as error:
            raise self._broken_error(name, f"it cannot be read: {error}") from error

    def _broken_error(self, name: str, problem: str) -> ModelError:
        return ModelError(problem, file=self.label, tensor=name, hint=HINT)
