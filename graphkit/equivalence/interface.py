"""The interfaces of two models, which must not differ: inputs, outputs, their order, dtypes, dims and defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from copy import deepcopy

from onnx import ValueInfoProto

from graphkit.dtypes import dtype_name
from graphkit.equivalence.application import Names
from graphkit.equivalence.sizes import RequiredProducts, required_equalities
from graphkit.equivalence.terms import Constants, Term
from graphkit.errors import ModelError
from graphkit.graph.declared_types import declared_dims, declared_type, shape_text
from graphkit.graph.operator_traits import operator_set as listed
from graphkit.graph.view import Value, all_nodes, all_scopes
from graphkit.model import Model
from graphkit.ops.tensor import Dims
from graphkit.shapes import Expr, Shapes, infer, is_known, parse, symbol
from graphkit.shapes.input_dims import DeclaredInputs, declare_dim

FLAGS = listed("allowzero ceil_mode exclusive keepdims noop_with_empty_axes reverse transA transB upper")


def _callable_inputs(model: Model) -> list[Value]:
    """Return the inputs that a caller may give; before IR version 4 an initializer is none."""
    return [value for value in model.graph.inputs if value.tensor is None or model.proto.ir_version >= 4]


def input_faults(
    original: Model,
    rewritten: Model,
    names: Names,
    fixed: Container[str],
    constants: Constants,
    *,
    narrower: bool,
    free: Container[str] = (),
) -> Iterator[str]:
    """Yield the differences of the inputs; `fixed` ones may be gone, and with `narrower`, the rewritten may take less.

    `free` ones are the rewritten model's own.
    """
    theirs = {value.name: value for value in _callable_inputs(original)}
    given = [(names.get(each.name, each.name), each) for each in _callable_inputs(rewritten) if each.name not in free]
    mine, counts = dict(given), Counter(name for name, _ in given)
    yield from (f"two inputs are input {name} of the original" for name, count in counts.items() if count > 1)
    yield from (f"input {name} of the original is free" for name in theirs if name in free)
    yield from _list_faults("input", [name for name in theirs if name in mine or name not in fixed], [*mine])
    for name in (name for name in theirs if name in mine):
        yield from _input_fault(original, theirs[name], rewritten, mine[name], constants, narrower=narrower)


def output_faults(original: Model, rewritten: Model, names: Names, unwritten: Container[str]) -> Iterator[str]:
    """Yield the differences of the list of outputs; `unwritten` ones may be gone."""
    mine = [names.get(value.name, value.name) for value in rewritten.graph.outputs]
    theirs = [value.name for value in original.graph.outputs if value.name in mine or value.name not in unwritten]
    yield from _list_faults("output", theirs, mine)


def _list_faults(kind: str, theirs: Sequence[str], mine: Sequence[str]) -> Iterator[str]:
    if missing := [name for name in theirs if name not in mine]:
        yield f"{kind} {missing[0]} is missing"
    elif new := [name for name in mine if name not in theirs]:
        yield f"{kind} {new[0]} is none of the original's"
    elif theirs != mine:
        yield f"the {kind}s come in another order"


def _input_fault(
    original: Model, value: Value, rewritten: Model, other: Value, constants: Constants, *, narrower: bool
) -> Iterator[str]:
    types = [each.scope.infos[each.name].type.SerializeToString(deterministic=True) for each in (value, other)]
    dims = declared_dims(value), declared_dims(other)
    kinds = declared_type(value), declared_type(other)
    if kinds[0] is None or kinds[1] is None:
        if types[0] != types[1]:
            yield f"input {value.name} has another type"
    elif kinds[0].dtype != kinds[1].dtype:
        yield f"input {value.name} has another dtype"
    elif narrower and not _is_narrower(*dims):
        yield f"input {value.name} is declared {shape_text(dims[1])}, {shape_text(dims[0])} in the original"
    tensors = value.tensor, other.tensor
    if tensors == (None, None) and value.sparse is None and other.sparse is None:
        return
    if tensors[0] is None or tensors[1] is None:
        yield f"the default of input {value.name} is gone, or new"
    elif constants.of_tensor(original, tensors[0]) is not constants.of_tensor(rewritten, tensors[1]):
        yield f"the default of input {value.name} differs"


def _is_narrower(wide: tuple[object, ...] | None, narrow: tuple[object, ...] | None) -> bool:
    if wide is None or narrow is None or len(wide) != len(narrow):
        return wide is None
    return all(not isinstance(each, int) or each == other for each, other in zip(wide, narrow, strict=True))


def new_symbols(original: Model, rewritten: Model, names: Names) -> Mapping[str, Expr]:
    """Return what the rewritten model's inputs call each symbol that the original's declare, without ambiguous ones."""
    theirs = {value.name: value for value in original.graph.inputs}
    found: dict[str, set[str]] = {}
    for value in rewritten.graph.inputs:
        other = theirs.get(names.get(value.name, value.name))
        both = (declared_dims(other) if other is not None else ()) or (), declared_dims(value) or ()
        for before, after in zip(*both, strict=False):
            if isinstance(before, str):
                found.setdefault(before, set()).add(after if isinstance(after, str) else "")
    return {before: symbol(after) for before, (after, *others) in found.items() if after and not others}


def narrowed_dims(names: Names, declared: tuple[DeclaredInputs, DeclaredInputs]) -> Iterator[str]:
    """Yield the equalities of dims that the inputs of the rewritten model need, and those of the original do not."""
    theirs, mine = (read.dims for read in declared)
    meanings: dict[str, Expr] = {}
    pairs = [(name, dims) for name, dims in mine.items() if theirs.get(names.get(name, name)) is not None]
    both = [pair for name, dims in pairs for pair in zip(theirs[names.get(name, name)] or (), dims or (), strict=False)]
    for before, after in both:
        if after.name is not None:
            meanings.setdefault(after.name, before)
    for name, dims in mine.items():
        other = names.get(name, name)
        if dims is not None and theirs.get(other, ()) is None:
            yield f"the rank of {other} = {len(dims)}"
    needed = [(before, after.substitute(meanings)) for before, after in both if after.constant is None]
    told = (f"{before} = {meant}" for before, meant in needed if meant != before)
    yield from dict.fromkeys(told)


def _is_declared_alike(before: object, after: object, symbols: Mapping[str, Expr]) -> bool:
    if not (isinstance(before, str) and isinstance(after, str)):
        return before == after
    meant = symbols.get(before) or parse(before).substitute(symbols)
    return meant == (symbol(after) if symbol(after) in symbols.values() else parse(after))


def output_fault(value: Value, other: Value, computed: Sequence[Dims | None], symbols: Mapping[str, Expr]) -> str:
    """Return the difference between the declarations of an output, "" for none.

    The rewritten model may declare what the nodes of either model compute, or what the original declares; `symbols` are
    the names that it has for symbols.
    """
    types = [each.scope.infos.get(each.name) for each in (value, other)]
    if types[0] is None or types[1] is None:
        return "it is not declared"
    kinds = [declared_type(each) for each in (value, other)]
    if None in kinds and types[0].type == types[1].type:
        return ""
    if kinds[0] is None or kinds[1] is None or kinds[0].dtype != kinds[1].dtype:
        return "it has another dtype"
    before, after = kinds[0].dims, kinds[1].dims
    if after is None:
        return ""
    known = [dims for dims in computed if dims is not None]
    for axis, dim in enumerate(after):
        is_same = before is not None and len(before) == len(after) and _is_declared_alike(before[axis], dim, symbols)
        is_right = any(len(dims) == len(after) and dims[axis].declared == str(dim) for dims in known)
        if dim is not None and not is_same and not is_right:
            return f"it is declared {shape_text(after)}, {shape_text(before)} in the original"
    return "" if all(len(dims) == len(after) for dims in known) else "it is declared with another rank"


def odd_flags(model: Model) -> Iterator[str]:
    """Yield attributes that are flags and neither 0 nor 1: no specification says how runtimes take them."""
    for node in all_nodes(model.scopes):
        for name in FLAGS & node.attributes.keys():
            if node.attributes[name].i not in (0, 1):
                yield f"{name} of {node.path} is neither 0 nor 1"


def declared_faults(
    models: tuple[Model, Model],
    shapes: tuple[Shapes, Shapes],
    names: Names,
    required: RequiredProducts,
    read: tuple[Mapping[Value, Term], Mapping[Value, Term]],
) -> Iterator[str]:
    """Yield values inside the rewritten model whose declared dtypes or numbers are not those that its nodes compute.

    onnxruntime does not load the one, and plans its memory by the other. A wrong number that the original has too is
    its own, also where less is declared, or what the node computes. `read` are the terms of the values that were read
    of both models, whose dims are in words of the original.
    """
    (original, rewritten), (before, after) = models, shapes
    for value in _declared_values(rewritten):
        kind, dtype, proto = declared_type(value), after[value].dtype, value.scope.infos[value.name].type
        if kind is None and dtype and proto.WhichOneof("value") not in (None, "tensor_type"):
            yield f"{value.name} is declared as no tensor, and its node gives one"
        elif kind is not None and dtype not in (0, kind.dtype):
            yield f"{value.name} is declared {dtype_name(kind.dtype)}, and its node gives {dtype_name(dtype)}"
    odd = _wrongly_declared(original, before, read[0])
    known = {(name, _computed_text(dims)): declared for name, declared, dims in odd}
    symbols = new_symbols(original, rewritten, names)
    for name, declared, dims in _wrongly_declared(rewritten, after, read[1]):
        theirs = known.get((names.get(name, name), _computed_text(dims)), ())
        is_told = dims is not None and len(dims) == len(declared)
        right = [dim.declared for dim in dims or ()] if is_told else [""] * len(declared)
        if len(theirs) != len(declared) or any(
            mine is not None and not _is_declared_alike(other, mine, symbols) and str(mine) != text
            for mine, other, text in zip(declared, theirs, right, strict=True)
        ):
            yield f"{name} is declared {shape_text(declared)}, and its node computes {_computed_text(dims)}"
    places_before = _symbol_places(original, before, required)
    meanings: dict[str, set[str]] = {}
    for text, meaning in places_before.values():
        meanings.setdefault(text, set()).add(meaning)
    by_symbol: dict[str, dict[Place, str]] = {}
    for place, (text, meaning) in _symbol_places(rewritten, after, required).items():
        by_symbol.setdefault(text, {})[place] = meaning
    for text, places in by_symbol.items():
        found = {*places.values()}
        if len(found) < 2 or found <= meanings.get(text, set()) or _is_renamed(places, places_before, names):
            continue
        shown = sorted({"an unknown size" if each[:1] == UNKNOWN else each for each in found})
        yield f"'{text}' is declared for dims that may differ: {', '.join(shown)}"


Place = tuple[str, str, int]  # a scope, a name in it, and an axis
UNKNOWN = "?"  # before an unknown dim


def _is_renamed(places: Mapping[Place, str], theirs: Mapping[Place, tuple[str, str]], names: Names) -> bool:
    """Whether the original declares one symbol for all of these dims, and computes the same of each."""
    symbols = set[str]()
    for (scope, name, axis), meaning in places.items():
        text, other = theirs.get((scope, names.get(name, name), axis), ("", ""))
        if meaning != other and not (meaning[:1] == other[:1] == UNKNOWN):  # whose names are those of one model
            return False
        symbols.add(text)
    return len(symbols) == 1


def _symbol_places(model: Model, shapes: Shapes, required: RequiredProducts) -> dict[Place, tuple[str, str]]:
    """Return each declared symbol, which onnxruntime takes for one size, and its dim where the original runs.

    What is unknown has a name of its own, and differs from what else is unknown.
    """
    found: dict[Place, tuple[str, str]] = {}
    for value in _declared_values(model):
        for axis, (text, dim) in enumerate(zip(declared_dims(value) or (), shapes[value].dims or (), strict=False)):
            if isinstance(text, str):
                meaning = str(required.expr(dim)) if is_known(dim) else f"{UNKNOWN}{dim}"
                found[value.scope.path, value.name, axis] = text, meaning
    return found


def _declared_values(model: Model) -> Iterator[Value]:
    for scope in all_scopes(model.scopes):
        yield from (value for name in scope.infos if (value := scope.values.get(name)) is not None)


def _computed_text(dims: Dims | None) -> str:
    return "unknown dims" if dims is None or any(not is_known(dim) for dim in dims) else shape_text(dims)


def _wrongly_declared(
    model: Model, shapes: Shapes, read: Mapping[Value, Term]
) -> Iterator[tuple[str, Sequence[object], Dims | None]]:
    """Yield the name of each such value, its declared dims, and those that are computed."""
    for value in _declared_values(model):
        is_inner = value.kind == "node" or value.scope.parent is not None
        declared = declared_dims(value)
        if declared is None or not is_inner or not value.scope.infos[value.name].type.HasField("tensor_type"):
            continue
        known = read[value].dims if value in read else None
        dims = shapes[value].dims if known is None else known
        pairs = zip(declared, dims or [None] * len(declared), strict=False)
        is_odd = any(isinstance(dim, int) and dim != other for dim, other in pairs)
        if is_odd or (dims is not None and len(dims) != len(declared)):
            yield value.name, declared, dims


Allowed = Callable[[str, int, int], bool]  # whether a number may be declared along an axis, whatever it is there


def declaration_faults(
    values: Collection[Value], fed: Shapes, original: Shapes, is_allowed: Allowed = lambda *_: False
) -> Iterator[str]:
    """Yield what a model declares of inputs and outputs, and they are not.

    The model that is `fed` computes these under their names, by nodes in front of it, from the inputs of its original.
    """
    required = RequiredProducts(required_equalities(original))
    meanings: dict[str, set[str]] = {}
    for value in values:
        declared, there = declared_type(value), fed.model.graph.values.get(value.name)
        if declared is None or there is None:
            continue
        given = fed[there]
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
            elif claim is not None and dim != claim and not is_allowed(value.name, axis, claim):
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
    ends = {*ends, *(value.name for value in shapes.model.graph.inputs)}
    for value in _declared_values(shapes.model):
        if value.scope is shapes.model.graph and value.name in ends:
            continue
        claims = declared_dims(value) or ()
        for claim, dim in zip(claims, shapes[value].dims or (None,) * len(claims), strict=False):
            if isinstance(claim, str):
                yield claim, _dim_meaning(dim, required)


def _dim_meaning(dim: Expr | None, required: RequiredProducts) -> str:
    return str(required.expr(dim)) if dim is not None and is_known(dim) else "an unknown size"


# A model cut open where a part of it begins, to be compared with that part.

UNREAD = "proof/uncut/"  # before the names of what the whole computes for a value that is an input here


def cut_open(whole: Model, part: Model, computed: Mapping[str, Sequence[Expr] | None]) -> Model:
    """Return a model with the inputs and outputs of a part of it, by the names that both have, and its other inputs.

    Values at which the part begins have the dims that the whole computes for them, which are `computed`, in its own
    symbols; inputs have those that it declares: what the part calls a dim may be another dim there. Outputs have the
    dims that the model declares for them, or none, so that the part may declare these, or those that nodes compute. A
    ModelError says that the model computes no value of a name that the part has, or one of another dtype.
    """
    proto = deepcopy(whole.proto)
    given = {info.name for info in part.proto.graph.input}
    cuts = given - {info.name for info in whole.proto.graph.input}
    for node in proto.graph.node:
        cuts -= {*node.output}
        node.output[:] = [UNREAD + name if name in given else name for name in node.output]
    if cuts:
        raise ModelError(f"it computes no '{min(cuts)}', at which the subgraph begins", file=whole.label)
    shapes = infer(whole)
    for info in part.proto.graph.input:
        begun_at = whole.graph.values.get(info.name)
        dtype = shapes[begun_at].dtype if begun_at is not None else 0
        if dtype and info.type.tensor_type.elem_type != dtype:
            told = f"'{info.name}' is {dtype_name(dtype)}, and the subgraph declares another dtype"
            raise ModelError(told, file=whole.label)
    declared = {info.name: info for info in proto.graph.output if info.type.HasField("tensor_type")}
    outputs = [declared.get(info.name) or _without_dims(info) for info in part.proto.graph.output]
    own = {info.name: info for info in proto.graph.input}
    inputs = []
    for info in part.proto.graph.input:
        made, dims = _without_dims(info), computed.get(info.name)
        if dims is not None and made.type.HasField("tensor_type"):
            shape = made.type.tensor_type.shape
            shape.SetInParent()  # also of no dims
            for dim in dims:
                added = shape.dim.add()
                if is_known(dim):  # others have no name
                    declare_dim(added, dim)
        inputs.append(own.get(info.name, made))
    inputs += [info for info in proto.graph.input if info.name not in given]
    kept = [info for info in proto.graph.value_info if info.name not in given]
    for name, infos in (("input", inputs), ("output", outputs), ("value_info", kept)):
        infos = deepcopy(infos)
        proto.graph.ClearField(name)
        getattr(proto.graph, name).extend(infos)
    return whole.with_proto(proto)


def _without_dims(info: ValueInfoProto) -> ValueInfoProto:
    made = deepcopy(info)
    if made.type.HasField("tensor_type"):
        made.type.tensor_type.ClearField("shape")
    return made
