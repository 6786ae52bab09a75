"""The contract of a bundle: which state its methods share, how large it can be, and where it lies in the arena.

Each has two methods besides: `init` gives all state its initial value, `reorder` chooses its rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphkit import __version__
from graphkit.contract import BundleContract, BundleMethod, BundlePort, Feed, Length, LengthChange, StateTensor
from graphkit.contract.bundle_contract import LARGEST_ARENA, Access, FeedKind, Update
from graphkit.contract.contract_files import BYTES
from graphkit.contract.host_contract import Generation
from graphkit.deploy.bundle_methods import MethodModel
from graphkit.deploy.deploy_sizes import DeploySizes, missing_sizes
from graphkit.deploy.export_pipeline import MASK_LENGTH, TokenSettings
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.dataflow import readers_beside
from graphkit.graph.declared_types import Dim, declared_dims
from graphkit.graph.new_nodes import make_gather
from graphkit.graph.roles import Axis
from graphkit.graph.view import Value, walk_breadth_first
from graphkit.model import Model
from graphkit.ops.tensor import element_numbers
from graphkit.passes.state.update_cache_in_place import SLOTS
from graphkit.shapes import DimSpec, Expr, Shapes, is_known
from graphkit.shapes.constraints.dim_equalities import forced_sizes
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from
from graphkit.shapes.input_dims import named_inputs

Arrays = Mapping[str, np.ndarray]
INDICES = "rows"
OPSET = 16  # what older runtimes have too
SIZE_NAMES: Mapping[Axis, str] = {"batch": "batch", "encoder": "source", "sequence": "tokens"}
MEANINGS: Mapping[FeedKind, str] = {
    "tokens": "the new tokens for the decoder",
    "mask": "1 for each new token that counts, 0 for padding",
    "length": "how many slots are in use",
    "kept": "for how many of the last tokens to give logits; 0 for all of them",
    "indices": "the row that each row of the state becomes",
    "user": "what the model computes on",
    "state": "the state",
}
_KINDS: Mapping[str, FeedKind] = {kind: kind for kind in ("tokens", "mask", "length", "kept", "user")}


def build_bundle(
    methods: Sequence[MethodModel], sizes: DeploySizes, settings: TokenSettings, data: str, opset: int
) -> BundleContract:
    """Return the contract of these methods.

    Refuse a state whose size is not known, that two methods have in different shapes, or that one reads before it is
    written, in no certain order.
    """
    parts = [_Part(method, sizes) for method in methods]
    written, states, end = _written_states(parts), list[StateTensor](), 0
    kinds = list(dict.fromkeys((state.dtype, state.shape, state.update) for state in written))
    for state in sorted(written, key=lambda state: kinds.index((state.dtype, state.shape, state.update))):
        states.append(replace(state, offset=end))  # one behind the other, those that are alike as neighbours
        end += state.places * state.stride
    if end > LARGEST_ARENA:
        hint = "give a smaller --batch, or fewer slots with --max-cache"
        raise UsageError(f"the state takes {end:,} bytes, and a bundle has {LARGEST_ARENA:,} at most - {hint}")
    by_name = {state.name: state for state in states}
    for part in parts:
        part.check(by_name)
    lengths = dict.fromkeys(part.method.length for part in parts if "length" in part.method.kinds.values())
    made = tuple(part.made(by_name, lengths) for part in parts)
    lengths |= dict.fromkeys(state.length for state in states if state.length)
    takes_tokens = any("tokens" in part.method.kinds.values() for part in parts)  # which a host chooses from logits
    seen = "slots in use: the tokens that the decoder has seen"
    beside = " and from the mask" if any("mask" in part.method.kinds.values() for part in parts) else ""
    positions = f"the models count positions, from the slots in use{beside}" if lengths else "there are none"
    named = ((part.symbols.get(symbol), size) for part in parts for symbol, size in part.largest.items())
    return BundleContract(
        data=data,
        opset=opset,
        sizes={"batch": sizes.batch, **{name: size for name, size in named if name is not None}},
        tokens=dict(settings.tokens),
        ends=settings.ends,
        generation=settings.generation if takes_tokens else Generation(),
        arena=end,
        lengths=tuple(Length(name, sizes.slots, seen) for name in lengths),
        states=tuple(states),
        methods=made,
        positions=positions,
        loop=tuple(_loop_steps(parts, states, takes_tokens=takes_tokens)),
    )


def _written_states(parts: Sequence[_Part]) -> list[StateTensor]:
    states: dict[str, StateTensor] = {}
    for part in parts:
        for state in part.states():
            former = states.setdefault(state.name, state)
            if (former.dtype, former.shape) != (state.dtype, state.shape):
                raise UsageError(
                    f"state '{state.name}' is {former.dtype}{list(former.shape)}, and {state.dtype}{list(state.shape)} "
                    f"in {part.method.name}: all methods must have it in one layout"
                )
            if state.update == "swap" or former.update == "whole":
                states[state.name] = state
    for part in parts:
        for name in part.method.reads.values():
            if name not in states:
                raise UsageError(f"{part.method.name} reads state '{name}', which no method writes")
    return list(states.values())


class _Part:
    """A method, and the known facts of its shapes."""

    def __init__(self, method: MethodModel, sizes: DeploySizes) -> None:
        self.method, self.sizes = method, sizes
        self.model = method.model
        self.named = named_inputs(self.model)  # a method has the names that it got: those of one name are one size
        self.shapes = infer_from(self.model, Inputs(self.model, declared=self.named))
        self.values = {value.name: value for value in (*self.model.graph.inputs, *self.model.graph.outputs)}

    @cached_property
    def symbols(self) -> Mapping[str, str]:
        """The name of each symbol of the inputs in the contract: `batch`, `source`, `tokens`, `slots`, or its own."""
        roles = self.model.roles
        names = {symbol: symbol if window else SLOTS for symbol, window in self._slot_axes.items()}
        inputs = self.model.graph.inputs
        has_own = any(dim.name == MASK_LENGTH for value in inputs for dim in self.shapes[value].dims or ())
        for value in sorted(inputs, key=lambda value: self.method.kinds.get(value.name) != "tokens"):
            for axis, dim in enumerate(self.shapes[value].dims or ()):
                own = dim.declared
                if dim.constant is None and dim.atom is not None and own not in names:
                    kind = self.method.kinds.get(value.name)
                    of_encoder = kind == "source" or (self.method.when == "once" and kind is None)
                    name = SIZE_NAMES.get(roles.axis(value, axis), own)
                    if name == "source" and not of_encoder and has_own and own != MASK_LENGTH:
                        name = own  # the output of the encoder, which is shorter than its mask
                    is_source = of_encoder and axis > 0 and name in ("source", "tokens", "other")
                    names[own] = "source" if is_source or name == "source" else name
        return names

    @cached_property
    def largest(self) -> Mapping[str, int]:
        """The largest number of each symbol that has one."""
        slots = self.sizes.slots
        known = {"batch": self.sizes.batch, "source": self.sizes.source, "tokens": slots, SLOTS: slots}
        known |= {symbol: window for symbol, window in self._slot_axes.items() if window}
        named = {symbol: known[name] for symbol, name in self.symbols.items() if name in known}
        forced = {name: int(size) for name, size in forced_sizes(self.model, {}).items() if size >= 1}
        return {**forced, **named, **self.sizes.dims}

    @cached_property
    def _free(self) -> tuple[str, ...]:
        dims = (dim for value in self.model.graph.inputs for dim in self.shapes[value].dims or ())
        return tuple(dict.fromkeys(dim.declared for dim in dims if dim.constant is None and dim.atom is not None))

    @cached_property
    def _shapes_at_largest(self) -> Shapes:
        """The shapes at the largest sizes, at which more is known: that no dim is 1, and which number is less."""
        sizes = DimSpec.of({name: size for name, size in self.largest.items() if name in self._free})
        return infer_from(self.model, Inputs(self.model, sizes, declared=self.named))

    @cached_property
    def _slot_axes(self) -> Mapping[str, int]:
        """The symbols of axes along which new tokens are written, each with the length of its ring, 0 for no ring."""
        windows: dict[str, int] = {}
        for name, state in self.method.writes.items():
            dims = self.shapes[self.values[name]].dims or ()
            axis = self._growing_axis_of(state, self.values[name], len(dims))
            if axis is not None and dims[axis].atom is not None:
                windows[dims[axis].declared] = self._window_of_state(self.values[name])
        return windows

    def _window_of_state(self, value: Value) -> int:
        """Return after how many tokens the slots that ScatterND writes begin anew, 0 for never."""
        node = value.producer
        indices = node.input(1) if node is not None and node.is_op("ScatterND") else None
        for source in walk_breadth_first([indices] if indices is not None else [], lambda each: each.sources):
            made = source.producer
            length = made.input(1) if made is not None and made.is_op("Mod") else None
            data = element_numbers(self.shapes[length]) if length is not None else None
            if data is not None and data.size == 1:
                return int(data.reshape(-1)[0])
        return 0

    def states(self) -> Iterator[StateTensor]:
        read = set(self.method.reads.values())
        for name, state in self.method.writes.items():
            value = self.values[name]
            dims, dtype = self.shapes[value].dims, dtype_name(self.shapes[value].dtype)
            if dtype not in BYTES:
                problem = f"state '{state}' is {dtype}, of which hosts have no arrays"
                raise UsageError(f"{self.model.label}: {problem} - export it with state in float16 or float32")
            if dims is None:
                raise UsageError(f"the rank of state '{state}' is not known: {self.shapes.reason(value)}")
            shape = tuple(self._size(state, value, axis) for axis in range(len(dims)))
            batch = next((axis for axis, dim in enumerate(dims) if self.symbols.get(dim.declared) == "batch"), None)
            axis = self._growing_axis_of(state, value, len(dims))
            update: Update = "slots" if axis is not None else "swap" if state in read else "whole"
            if axis is not None and shape[axis] < self.sizes.slots:
                update = "ring"
            length = self.method.length if axis is not None else ""
            prefix = axis == 0 and dims[0].constant is None
            size = math.prod(shape) * np.dtype(dtype).itemsize
            yield StateTensor(
                state, dtype, shape, axis, size, batch=batch, offset=0, update=update, length=length, prefix=prefix
            )

    def _size(self, state: str, value: Value, axis: int) -> int:
        dim = (self.shapes[value].dims or ())[axis]
        size = dim.substitute(self.largest).constant
        if size is None and (there := self._shapes_at_largest[value].dims) is not None and axis < len(there):
            size = there[axis].constant
        if size is None:
            open_sizes = [name for name in self._free if name not in self.largest]
            if missing := sorted(dim.symbols.intersection(open_sizes)) or open_sizes:
                raise missing_sizes(self.model, missing)
            reason = self._shapes_at_largest.reason(value)
            raise UsageError(f"{self.model.label}: how large state '{state}' can be is not known: {reason}")
        if size < 1:
            problem = f"state '{state}' is {dim} long, which is {size} at these sizes"
            raise UsageError(f"{problem} - give larger ones with --max-source or --dim")
        if any(self.symbols.get(name) == "batch" for name in dim.symbols) and dim.atom is None:
            raise UsageError(f"state '{state}' has {dim} rows, and a state has one for each of the batch")
        return size

    def _growing_axis_of(self, state: str, value: Value, rank: int) -> int | None:
        """Return the axis along which new tokens are written; None for state that is replaced as a whole."""
        if state in self.method.whole:
            return None
        if (node := value.producer) is not None and node.is_op("TensorScatter"):
            return (node.attr("axis", -2) or 0) % rank
        indices = node.input(1) if node is not None and node.is_op("ScatterND") else None
        dims = self.shapes[indices].dims if indices is not None else None
        if not dims or dims[-1].constant is None:
            raise UsageError(f"{self.method.name}: no node is known to write what is new into the slots of '{state}'")
        return dims[-1].constant - 1

    def check(self, states: Mapping[str, StateTensor]) -> None:
        """Refuse a reader of state that is written in place, beside the write: the order of the two is not certain."""
        outputs = {state: name for name, state in self.method.writes.items()}
        for name, state in self.method.reads.items():
            if states[state].update not in ("slots", "ring") or state not in outputs:
                continue
            for node in readers_beside(self.values[name], self.values[outputs[state]]):
                raise UsageError(
                    f"{self.method.name}: '{node.label}' ({node.operator}) reads state '{state}' beside the node "
                    "that writes it, in no certain order - let it read what the write gives"
                )

    def made(self, states: Mapping[str, StateTensor], counted: Collection[str]) -> BundleMethod:
        method = self.method
        tokens = next((name for name, kind in method.kinds.items() if kind == "tokens"), "")
        lengths = {*counted, *(states[name].length for name in method.writes.values())}
        is_counted = bool(tokens) and bool(method.writes) and method.length in lengths
        inputs, outputs = list[BundlePort](), list[BundlePort]()
        for value in (value for value in self.model.graph.inputs if value.tensor is None):
            name, dtype = value.name, dtype_name(self.shapes[value].dtype)
            kind: FeedKind = "state" if name in method.reads else _KINDS.get(method.kinds.get(name, ""), "user")
            of = method.reads.get(name, method.length if kind == "length" else "")
            meaning = f"state '{of}'" if kind == "state" else MEANINGS[kind]
            inputs.append(BundlePort(name, dtype, self._port_shape(value), meaning, Feed(kind, of)))
        for value in self.model.graph.outputs:
            state = method.writes.get(value.name, "")
            meaning = f"state '{state}'" if state else f"'{value.name}' of the export"
            shape = self._port_shape(value, is_whole=state in method.whole)
            outputs.append(BundlePort(value.name, dtype_name(self.shapes[value].dtype), shape, meaning, writes=state))
        return BundleMethod(
            name=method.name,
            file=method.file,
            when="once" if method.when == "once" else "step",
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            access={name: self._access_text(name) for name in states},
            changes=(LengthChange(method.length, tokens, 1),) if is_counted else (),
        )

    def _access_text(self, state: str) -> Access:
        inputs = [self.values[name] for name, read in self.method.reads.items() if read == state]
        outputs = [self.values[name] for name, written in self.method.writes.items() if written == state]
        if not outputs:
            return "read" if inputs else "none"
        is_read = any(node is not outputs[0].producer for value in inputs for node, _ in value.consumers)
        is_read = is_read or (bool(inputs) and bool(outputs[0].consumers))
        return "read and write" if is_read else "write"

    def _port_shape(self, value: Value, *, is_whole: bool = False) -> tuple[int | str, ...]:
        dims = self.shapes[value].dims or ()
        if self.method.kinds.get(value.name) == "mask" and len(dims) == 2:
            # an exporter's name is that of past and new tokens together
            tokens = next(name for name, kind in self.method.kinds.items() if kind == "tokens")
            return self._port_shape(self.values[tokens])[:2]
        claims = declared_dims(value) or ()
        claims = claims if len(claims) == len(dims) else (None,) * len(dims)  # a rank that is declared may be wrong
        named = (self._name_dim(dim, claim) for dim, claim in zip(dims, claims, strict=True))
        if not is_whole:
            return tuple(named)
        # a state that is replaced is as long as it is declared, at the prompts that later steps can follow
        return tuple(
            claim if isinstance(claim, int) and dim.atom is None else name
            for name, dim, claim in zip(named, dims, claims, strict=True)
        )

    def _name_dim(self, dim: Expr, claim: Dim) -> int | str:
        """Return a dim as the contract has it; where the nodes do not tell it, the declared one, as a pass left it."""
        if dim.constant is not None:
            return dim.constant
        if not is_known(dim) and claim is not None:
            return self.symbols.get(claim, claim) if isinstance(claim, str) else claim
        return self.symbols.get(dim.declared, dim.declared)


def _loop_steps(parts: Sequence[_Part], states: Sequence[StateTensor], *, takes_tokens: bool) -> Iterator[str]:
    once = next((part.method.name for part in parts if part.method.when == "once"), "")
    step = next((part.method.name for part in parts if part.method.when == "step"), "")
    yield "Allocate the arena, and let each state be a view of it; set the lengths to 0. init fills it."
    if any(state.prefix for state in states):
        first = "Where a state has prefix, give a method its first slots alone"
        yield f"{first}: as many as are in use after the run, of a ring no more than it has."
    if once:
        yield f"Set the lengths to 0. Run {once}, which writes the state and gives the first logits."
    if step and takes_tokens:
        yield f"Choose a token from the logits; run {step} on it; repeat until it ends or the slots are full."
    elif step:
        yield f"Run {step} on each input in turn."
    yield "After each run, let each length grow by what the method says."


def init_method(contract: BundleContract, arrays: Mapping[str, np.ndarray] = {}) -> tuple[BundleMethod, Model]:
    """Return the method that sets all state to its initial value, for all rows: one number, or an array of a row."""
    nodes, tensors, outputs = [], [], []
    for number, state in enumerate(contract.states):
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(state.dtype))
        shape, out = f"shape_{number}", f"{state.name}_initial"
        tensors.append(helper.make_tensor(shape, onnx.TensorProto.INT64, [len(state.shape)], state.shape))
        if state.initial is None:
            tensors.append(numpy_helper.from_array(arrays[state.name], f"row_{number}"))
            nodes.append(helper.make_node("Expand", [f"row_{number}", shape], [out]))
        else:
            first = state.initial if "float" in state.dtype else int(state.initial)
            value = helper.make_tensor("value", dtype, [1], [first])
            nodes.append(helper.make_node("ConstantOfShape", [shape], [out], value=value))
        outputs.append(BundlePort(out, state.dtype, state.shape, "its initial value", writes=state.name))
    access: dict[str, Access] = dict.fromkeys((state.name for state in contract.states), "write")
    method = BundleMethod("init", "init.onnx", "init", (), tuple(outputs), access)
    return method, _make_model(nodes, tensors, method, contract)


def reorder_method(contract: BundleContract) -> tuple[BundleMethod, Model]:
    """Return the method that makes each row of the state a copy of another one, and its model."""
    indices = BundlePort(INDICES, "int64", ("batch",), "the row that each row becomes", Feed("indices"))
    inputs, outputs, nodes = [indices], [], []
    access: dict[str, Access] = dict.fromkeys((state.name for state in contract.states), "none")
    for state in contract.states:
        if state.batch is None:
            continue
        out = f"{state.name}_after"
        free = (state.batch, state.axis if state.prefix else None) if state.length else range(len(state.shape))
        dims = [f"{state.name}_{axis}" if axis in free else size for axis, size in enumerate(state.shape)]
        after = ["batch" if axis == state.batch else dim for axis, dim in enumerate(dims)]
        nodes.append(make_gather(state.name, INDICES, state.batch, out).to_proto())
        inputs.append(BundlePort(state.name, state.dtype, tuple(dims), "before", Feed("state", state.name)))
        outputs.append(BundlePort(out, state.dtype, tuple(after), "after", writes=state.name))
        access[state.name] = "read and write"
    method = BundleMethod("reorder", "reorder.onnx", "reorder", tuple(inputs), tuple(outputs), access)
    return method, _make_model(nodes, [], method, contract)


def with_initial(contract: BundleContract, initial: Arrays) -> tuple[BundleContract, Arrays]:
    """Return a contract whose states have their initial values, and the arrays of those that have more than one."""
    if unknown := sorted(set(initial) - {state.name for state in contract.states}):
        raise UsageError(f"state '{unknown[0]}' has an initial value, and no method writes it")
    states, arrays = [], {}
    for state in contract.states:
        if state.name not in initial:
            states.append(state)
            continue
        if problem := next(_initial_problems(state, initial[state.name]), ""):
            raise UsageError(f"the initial value of state '{state.name}' {problem}")
        array = initial[state.name].astype(state.dtype)
        is_number = array.size > 0 and _is_number(array.flat[0]) and bool((array == array.flat[0]).all())
        if not is_number:
            arrays[state.name] = array
        number = initial[state.name].flat[0] if is_number else None  # as it was written, such as -1e38
        states.append(replace(state, initial=None if number is None else float(number)))
    return replace(contract, states=tuple(states)), arrays


def _is_number(element: np.generic) -> bool:
    """Whether a number of JSON is an element, as it is neither infinite nor an integer that needs more bits."""
    return bool(np.isfinite(element)) and (element.dtype.kind == "f" or int(float(element)) == int(element))


def _initial_problems(state: StateTensor, initial: np.ndarray) -> Iterator[str]:
    dtype = np.dtype(state.dtype)
    row = tuple(1 if axis == state.batch else size for axis, size in enumerate(state.shape))
    if state.axis is not None:
        yield "means nothing: it is a cache, of which no slot is in use at first - leave it out"
    elif initial.ndim == 0 and initial.dtype.kind in "iuf":
        with np.errstate(over="ignore", invalid="ignore"):
            cast = initial.astype(dtype)
        is_whole = dtype.kind == "f" or bool(cast == initial)
        if not np.isfinite(initial) or not np.isfinite(cast.astype(np.float64)) or not is_whole:
            yield f"is {initial.item()!r}, which {dtype} does not hold - give another one, or an array in a .npy file"
    elif initial.dtype != dtype:
        yield f"is an array of {initial.dtype}, and the state is {dtype} - write it with that dtype"
    elif initial.shape != row:
        yield f"is {list(initial.shape)}, and a row of the state is {list(row)} - give that"


def _make_model(
    nodes: Sequence[onnx.NodeProto], tensors: Sequence[onnx.TensorProto], method: BundleMethod, contract: BundleContract
) -> Model:
    def info(port: BundlePort) -> onnx.ValueInfoProto:
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype))
        return helper.make_tensor_value_info(port.name, dtype, port.shape)

    inputs, outputs = ([*map(info, ports)] for ports in (method.inputs, method.outputs))
    graph = helper.make_graph(nodes, method.name, inputs, outputs, tensors)
    opset = helper.make_opsetid("", min(OPSET, contract.opset))
    made_by = {"producer_name": "graphkit", "producer_version": __version__}
    return Model.from_proto(helper.make_model(graph, opset_imports=[opset], ir_version=8, **made_by))
