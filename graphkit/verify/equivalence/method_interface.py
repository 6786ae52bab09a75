"""What a method of a bundle declares, and what its contract says of lengths: both as the induction over calls needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from graphkit.deploy.contract.bundle_contract import BundleContract, BundleMethod, BundlePort, StateTensor
from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import Dim, declared_dims, declared_type
from graphkit.graph.roles import Role
from graphkit.graph.view import Value, all_scopes
from graphkit.model import Model
from graphkit.ops.tensor import Tensor
from graphkit.shapes import Expr, Shapes, is_known, lower
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from
from graphkit.shapes.input_dims import named_inputs
from graphkit.verify.equivalence.method_originals import MethodOriginal
from graphkit.verify.equivalence.required_products import RequiredProducts, required_equalities

__all__ = ["declaration_faults", "dim_faults", "port_faults", "state_faults"]

TOKENS = 1  # the axis of tokens
OF_TOKENS: tuple[Role, ...] = ("tokens", "embeddings", "mask", "positions", "token types")  # inputs that go with them


def dim_faults(original: MethodOriginal) -> Iterator[str]:
    """Yield dims of an original that have one name and need not be equal: those of its past, its tokens and its source.

    A proof is about sizes at which dims of one name are equal, and no runtime checks that they are. A past is empty at
    first, so its dim must be a name of its own.
    """
    whole = original.whole
    dims = {name: each or () for name, each in Inputs(whole, declared=named_inputs(whole)).symbolic.items()}
    tokens, grown = dims.get(original.role("tokens"), ()), original.grown_pasts
    with_tokens = {original.role(role) for role in OF_TOKENS}
    others = [dim for name, each in dims.items() if name not in with_tokens and name not in grown for dim in each]
    others += [dim for name, axis in grown.items() for at, dim in enumerate(dims[name]) if at != axis]
    others += tokens[:TOKENS]
    past, new = _symbols_of(dims[name][axis] for name, axis in grown.items()), _symbols_of(tokens[TOKENS:])
    shared = past & new | (past | new) & _symbols_of(others)
    yield from (
        f"dim '{name}' is declared for what need not be as long: past, tokens or source" for name in sorted(shared)
    )
    for name, axis in grown.items():
        if dims[name][axis].name is None or lower(dims[name][axis]) != 0:
            yield f"the past {name} is declared {dims[name][axis]} along axis {axis}, which is no dim that may be 0"


def _symbols_of(dims: Iterable[Expr]) -> set[str]:
    return {name for dim in dims for name in dim.symbols}


def state_faults(contract: BundleContract, method: BundleMethod) -> Iterator[str]:
    """Yield why the state is not the past after a call, as it was before it.

    A method with tokens makes the length larger by as many, and writes them into each state that is kept in slots. A
    start writes all state that steps read.
    """
    slots = [state for state in contract.states if state.update == "slots"]
    lengths, tokens = {state.length for state in slots}, method.sources.get("tokens", ())
    if len(lengths) > 1 or len(tokens) > 1:
        yield "it has several lengths, or several inputs of tokens"
        return
    wanted = [(length, port.name, TOKENS) for length in lengths for port in tokens]
    if wanted != [(change.length, change.input, change.axis) for change in method.changes]:
        yield "it does not make its length larger by its number of tokens"
    if others := {port.of for port in method.sources.get("length", ())} - lengths:
        yield f"it reads length '{min(others)}', which counts no slots"
    written = {port.writes for port in method.outputs}
    needed = [*slots, *_left_to(contract, method)]
    yield from (f"it does not write state '{state.name}'" for state in needed if state.name not in written)


def _left_to(contract: BundleContract, method: BundleMethod) -> Iterator[StateTensor]:
    """Yield the states without slots that a method has to write: a start what steps read, a step what it swaps."""
    steps = [method] if method.when == "step" else [each for each in contract.methods if each.when == "step"]
    read = {port.of for each in steps for port in each.inputs if port.kind == "state"}
    updates = ("swap",) if method.when == "step" else ("swap", "whole")
    yield from (state for state in contract.states if state.name in read and state.update in updates)


def port_faults(
    contract: BundleContract, method: BundleMethod, model: Model, adapted: Model, original: Shapes
) -> Iterator[str]:
    """Yield what a method declares of its inputs and outputs, and they are not.

    Args:
        contract: The bundle.
        method: The method.
        model: Its model, as it is.
        adapted: The same with the interface of its original, which computes all inputs.
        original: The shapes of the original.
    """
    states = {state.name: state for state in contract.states}
    ports = {port.name: port for port in (*method.inputs, *method.outputs)}

    def is_all_slots(name: str, axis: int, claim: int) -> bool:
        return _is_slots(claim, axis, states.get(ports[name].state))

    for ends, theirs in ((model.graph.inputs, method.inputs), (model.graph.outputs, method.outputs)):
        names = {value.name for value in ends}, {port.name for port in theirs}
        yield from (f"{name} is no port of its contract, or none of its model" for name in sorted(names[0] ^ names[1]))
    values = [value for value in (*model.graph.inputs, *model.graph.outputs) if value.name in ports]
    for value in values:
        declared, port = declared_type(value), ports[value.name]
        if declared is not None and dtype_name(declared.dtype) != port.dtype:
            yield f"{value.name} is {port.dtype} to a host, and {dtype_name(declared.dtype)} in its model"
        if declared is not None and declared.dims is not None and len(declared.dims) != len(port.shape):
            yield f"{value.name} has {len(port.shape)} dims to a host, and {len(declared.dims)} in its model"
    shapes = infer_from(adapted, Inputs(adapted, declared=named_inputs(adapted)))  # a host feeds them so
    yield from declaration_faults(values, shapes, original, is_all_slots)
    yield from _shape_faults(values, ports, shapes)


def _shape_faults(values: Collection[Value], ports: Mapping[str, BundlePort], shapes: Shapes) -> Iterator[str]:
    """Yield dims that a host is told otherwise than the model has them: numbers, and names that have another one there.

    Names of the model may be others, each for one of the host's, and for what is a number there.
    """
    known: dict[Dim, set[int | str]] = {}
    told: dict[int | str, set[Dim]] = {}
    for value in values:
        declared, shape = declared_type(value), ports[value.name].shape
        if declared is None or declared.dims is None or len(declared.dims) != len(shape):
            continue
        given = _given_tensor(shapes, value)
        computed = given.dims if given is not None and given.dims is not None else (None,) * len(shape)
        for axis, (dim, size) in enumerate(zip(declared.dims, shape, strict=True)):
            if isinstance(size, int) and dim != size and not _is_number(size, computed[axis]):
                yield f"{value.name} has {size} along axis {axis} to a host, and {dim or 'any size'} in its model"
            elif isinstance(dim, str):
                known.setdefault(dim, set()).add(size)
            if isinstance(size, str):
                told.setdefault(size, set()).add(dim)
    for dim, sizes in known.items():
        if len(sizes) > 1:
            yield f"'{dim}' of its model is {' and '.join(sorted(map(str, sizes)))} to a host"
    for size, dims in told.items():
        if size in known and size not in dims:
            yield f"'{size}' to a host is {' and '.join(sorted(map(str, dims)))} in its model"


def declaration_faults(
    values: Collection[Value],
    fed: Shapes,
    original: Shapes,
    is_allowed: Callable[[str, int, int], bool] = lambda *_: False,
) -> Iterator[str]:
    """Yield what a model declares of inputs and outputs, and they are not.

    Args:
        values: Its inputs and outputs, which the model that is fed computes under their names.
        fed: The shapes of the model with nodes that compute these from the inputs of its original.
        original: The shapes of the original.
        is_allowed: Whether a number may be declared along an axis of an input or output, whatever it is there.
    """
    required = RequiredProducts(required_equalities(original))
    meanings: dict[str, set[str]] = {}
    for value in values:
        declared, given = declared_type(value), _given_tensor(fed, value)
        if declared is None or given is None:
            continue
        if given.dtype and declared.dtype != given.dtype:
            yield f"{value.name} is declared {dtype_name(declared.dtype)}, and is {dtype_name(given.dtype)}"
        if declared.dims is None:
            continue
        if given.dims is not None and len(given.dims) != len(declared.dims):
            yield f"{value.name} is declared with another rank"
            continue
        dims = given.dims or [None] * len(declared.dims)
        for axis, (claim, dim) in enumerate(zip(declared.dims, dims, strict=True)):
            if isinstance(claim, str):
                meanings.setdefault(claim, set()).add(_dim_meaning(dim, required))
            elif claim is not None and not _is_number(claim, dim) and not is_allowed(value.name, axis, claim):
                meaning = _dim_meaning(dim, required)
                yield f"{value.name} is declared to have {claim} along axis {axis}, and has {meaning}"
    theirs = {*_names_inside(original, set(), required)}  # which it declares wherever it runs
    outside = {name: next(iter(found)) for name, found in meanings.items()}
    for name, meaning in {*_names_inside(fed, {value.name for value in values}, required)} - theirs:
        if name in outside and (outside[name], meaning) not in theirs:
            meanings[name].add(meaning)
    for name, found in meanings.items():
        if len(found) > 1:
            yield f"'{name}' is declared for dims that may differ: {', '.join(sorted(found))}"


def _names_inside(shapes: Shapes, ends: set[str], required: RequiredProducts) -> Iterator[tuple[str, str]]:
    """Yield the names of the dims of values inside a model, with what each of these dims is."""
    main = shapes.model.graph
    ends = {*ends, *(value.name for value in main.inputs)}
    for scope in all_scopes(shapes.model.scopes):
        for name in scope.infos:
            value = scope.values.get(name)
            if value is None or (scope is main and name in ends):
                continue
            claims = declared_dims(value) or ()
            for claim, dim in zip(claims, shapes[value].dims or (None,) * len(claims), strict=False):
                if isinstance(claim, str):
                    yield claim, _dim_meaning(dim, required)


def _given_tensor(shapes: Shapes, value: Value) -> Tensor | None:
    """Return what is known of an input or output of a method where it has the interface of its original."""
    found = shapes.model.graph.values.get(value.name)
    return None if found is None else shapes[found]


def _dim_meaning(dim: Expr | None, required: RequiredProducts) -> str:
    return str(required.expr(dim)) if dim is not None and is_known(dim) else "an unknown size"


def _is_number(claim: Dim, dim: Expr | None) -> bool:
    return dim is not None and dim.constant == claim


def _is_slots(claim: int, axis: int, state: StateTensor | None) -> bool:
    """Whether a number is that of all slots, which a method gets where they are no prefix."""
    if state is None or state.update != "slots" or state.prefix:
        return False
    return axis == state.axis and state.shape[axis] == claim
