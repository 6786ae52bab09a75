"""Target: facts about a compiler, each with its source; a fact that no source states is unknown.

The fields are those of a target's TOML file, in which facts name a source by its key.

target = load_target("ethos-u65")  # or the path of a file of your own
target.operators["Gather"]         # a Fact, or None where no source says
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import cache, cached_property
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError, did_you_mean
from graphkit.io.toml import convert_toml, read_toml, toml_error

__all__ = [
    "ANYTHING", "NAMES", "Atom", "Condition", "Fact", "Facts", "Limit", "Observation", "Source", "Spelling", "Target",
    "Verdict", "joint_verdict", "load_target", "tflite_spellings",
]  # fmt: skip

NAMES = (
    "mt8371", "mediatek-litert", "ethos-u65", "ethos-u85", "rk3588", "qnn-htp", "webgpu", "openvino", "webnn", "coreml",
    "generic-npu",
)  # fmt: skip
FOLDER = Path(__file__).parent
Text = Annotated[str, Meta(max_length=2000)]
Number = Annotated[int, Meta(ge=0, lt=1000)]
Verdict = Literal["allowed", "refused", "unknown"]


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """A document, a file of a repository, or the output of a tool."""

    key: Text  # what facts call it
    title: Text  # what it is, with its version
    url: Text  # where it is, "" where it is not on the web
    date: date  # when it was written, or read where it does not say

    def __str__(self) -> str:
        return f"{self.title}, {self.date}"


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    """A number, or a yes or no, such as the highest rank."""

    value: Number
    source: Source
    note: Text = ""


class YesOrNo(Limit, frozen=True, forbid_unknown_fields=True):
    """A yes or no, such as whether every dim must be a number."""

    value: bool


class Condition(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A condition on a node; `WORDS` says what each field asks, and `HOLDS` when it holds.

    Inputs and outputs go by their names in the ONNX specification; an empty field asks nothing.
    """

    constant: tuple[Text, ...] = ()
    dtypes: tuple[Text, ...] = ()
    max_rank: Number | None = None
    attributes: Mapping[str, Text | int | float | tuple[Text, ...]] = {}
    values: Mapping[str, int | float] = {}
    producers: Mapping[str, Text] = {}
    readers: Text = ""
    output_dtypes: tuple[Text, ...] = ()
    planes_of: Number | None = None
    dtypes_of: Mapping[str, tuple[Text, ...]] = {}
    computed: tuple[Text, ...] = ()
    absent: tuple[Text, ...] = ()
    min_rank: Number | None = None
    min_version: Number | None = None
    max_version: Number | None = None
    static: bool = False
    unit_axis: bool = False
    unit_stays: bool = False

    def __str__(self) -> str:
        return ", ".join(WORDS[key].format(name=name, value=_in_words(value)) for key, name, value in self.atoms)

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """The parts of the condition, all of which must hold."""
        atoms: list[Atom] = []
        for key in WORDS:
            said = getattr(self, key)
            if isinstance(said, Mapping):
                atoms += [Atom(key, name, value) for name, value in said.items()]
            elif key in ("constant", "computed", "absent"):
                atoms += [Atom(key, name) for name in said]
            elif said not in (None, (), "", False):
                atoms.append(Atom(key, value=said))
        return tuple(atoms)

    def holds(self, of: Observation) -> bool | None:
        """Return whether it holds of a node, None where that is not known."""
        return _all_hold(atom.holds(of) for atom in self.atoms)


class Observation(Struct, frozen=True):
    """What a condition asks of a node; inputs go by their names in the specification."""

    op: str  # the operator
    since: int  # the version of the operator set in which it last changed
    dtypes: dict[str, str]  # of the inputs, by name, and of the outputs; "" for an unknown one
    constant: tuple[str, ...]  # the inputs that are constant, once folded
    rank: int  # the highest rank of its tensors that is known
    # those with one number or text, and defaults; an equation has the letters a, b, ... in their order
    attributes: dict[str, int | float | str]
    is_dynamic: bool  # whether dims are symbols, or not known
    opset: int = 0  # that of the model
    # of the first input and the first output: sizes, None for a symbol; None for an unknown rank
    dims: tuple[tuple[int | None, ...] | None, ...] = ()
    # the number that all elements of an input are, by its name; None where they differ or are not known
    values: dict[str, int | float | None] = {}
    # the operator of all that read its outputs, "" where there are several, or an output is the model's
    readers: str = ""
    producers: dict[str, str] = {}  # the operators that inputs come from, by their names
    given: tuple[str, ...] = ()  # the dtypes of the outputs that are the model's
    has_every_rank: bool = True  # whether no rank of a tensor is unknown
    # whether it is in a chain of a node, a Transpose and one that reshapes, where an axis of 1 stays
    unit_stays: bool = False
    taken: bool | None = None  # whether the device runs it, None where no runtime takes the model
    count: int = 1  # how many nodes it stands for


class Atom(NamedTuple):
    """A part of a condition: a key of a target file, the name of what it is about, and the value."""

    key: str
    name: str = ""
    value: Any = True

    def holds(self, of: Observation) -> bool | None:
        """Return whether it holds of a node, None where that is not known."""
        return HOLDS[self.key](of, self.name, self.value)


WORDS: Mapping[str, str] = {
    "constant": "constant {name}",
    "dtypes": "dtype {value}",
    "max_rank": "rank at most {value}",
    "attributes": "{name} = {value}",
    "values": "{name} = {value}",
    "producers": "{name} from {value}",
    "readers": "read by {value} alone",
    "output_dtypes": "an output of the model in {value}",
    "planes_of": "multiples of {value} elements in the last two of four axes",
    "dtypes_of": "{name} in {value}",
    "computed": "computed {name}",
    "absent": "no {name}",
    "min_rank": "rank at least {value}",
    "min_version": "opset {value} or newer",
    "max_version": "as of opset {value} or older",
    "static": "dims that are numbers",
    "unit_axis": "a 1 among the last three dims, and only 1 before them",
    "unit_stays": "an axis of 1 that stays in the Transpose between a node and one that reshapes",
}
HOLDS: Mapping[str, Callable[[Observation, str, Any], bool | None]] = {
    "constant": lambda of, name, _: name not in of.dtypes or name in of.constant,
    "dtypes": lambda of, _, value: _is_among(next(iter(of.dtypes.values()), ""), value),  # of the first input
    "max_rank": lambda of, _, value: False if of.rank > value else of.has_every_rank or None,
    "attributes": lambda of, name, value: of.attributes.get(name) in (value if isinstance(value, tuple) else (value,)),
    "values": lambda of, name, value: _has_value(of, name, value),
    "producers": lambda of, name, value: of.producers.get(name) == value,
    "readers": lambda of, _, value: of.readers == value,
    "output_dtypes": lambda of, _, value: _all_hold(_is_among(dtype, value) for dtype in of.given),
    "planes_of": lambda of, _, value: _has_planes(of.dims, value),
    "dtypes_of": lambda of, name, value: name not in of.dtypes or _is_among(of.dtypes[name], value),
    "computed": lambda of, name, _: name not in of.constant,
    "absent": lambda of, name, _: name not in of.dtypes,
    "min_rank": lambda of, _, value: of.rank >= value or (False if of.has_every_rank else None),
    "min_version": lambda of, _, value: of.since >= value,
    "max_version": lambda of, _, value: of.since <= value,
    "static": lambda of, *_: not of.is_dynamic,
    "unit_axis": lambda of, *_: _has_unit_axis(of.dims[0] if of.dims else None),
    "unit_stays": lambda of, *_: of.unit_stays,
}
PLANES = 4  # axes of a tensor that lies in planes: of channels, and of heights and widths


def _in_words(value: Any) -> str:
    return " or ".join(value) if isinstance(value, tuple) else str(value)


def _is_among(dtype: str, dtypes: Collection[str]) -> bool | None:
    return dtype in dtypes if dtype else None


def _all_hold(parts: Iterable[bool | None]) -> bool | None:
    known = set(parts)
    return False if False in known else None if None in known else True


def _has_value(of: Observation, name: str, value: float) -> bool:
    """Whether all elements of an input are a number; one that is left out is an attribute, or has its default."""
    if name in of.values or name in of.dtypes:
        return of.values.get(name) == value
    return of.attributes.get(name, value) == value


def _has_unit_axis(dims: Sequence[int | None] | None) -> bool | None:
    sizes = [None] if dims is None else dims
    if dims is not None and all(size == 1 for size in sizes[:-3]) and (len(sizes) < 3 or 1 in sizes[-3:]):
        return True
    return None if None in sizes else False


def _has_planes(dims: Sequence[Sequence[int | None] | None], number: int) -> bool | None:
    """Return whether the elements of the last two of four axes are a multiple of a number where a node reshapes them.

    Planes of one element are a list of as many as there are, which may be of any length behind the node.
    """
    known = [[size for size in each if size is not None] for each in dims if each is not None and None not in each]
    if len(known) != 2:
        return None
    before, after = known
    if len(before) == len(after) == PLANES and before[-1] == after[-1]:
        return True
    planes = [prod(each[2:]) for each in known if len(each) == PLANES]
    if len(before) == PLANES and planes[0] == 1:
        planes[0] = prod(before)
    return all(plane % number == 0 for plane in planes if plane != 1)


ANYTHING = Condition()


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the joint verdict of several targets.

    What any refuses is refused. What more of them say nothing of than take is unknown.
    """
    if "refused" in verdicts:
        return "refused"
    return "allowed" if verdicts.count("allowed") >= max(1, verdicts.count("unknown")) else "unknown"


class Fact(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"verdict": "is", "condition": "where", "alternatives": "or"},
):
    """A statement of a source about some operators or dtypes."""

    verdict: Verdict  # whether they are allowed
    names: tuple[Text, ...]  # of operators as `Node.operator` names them, or of dtypes
    source: Source  # who says so
    note: Text = ""  # what else it says, "" for nothing
    condition: Condition = ANYTHING  # under which an operator is allowed; else it is refused
    alternatives: tuple[Condition, ...] = ()  # other conditions, any of which is enough

    @property
    def conditions(self) -> str:
        """The conditions in words, "" for none."""
        return "; or ".join(str(each) for each in (self.condition, *self.alternatives) if each != ANYTHING)


class Facts(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Facts about operators of ONNX or of TFLite, or about dtypes."""

    facts: tuple[Fact, ...] = ()  # in the order of the file; no name is in two
    otherwise: Verdict = "unknown"  # what is true of a name that no fact has
    source: Source | None = None  # who says that, None where nobody does
    note: Text = ""  # what else it says

    @cached_property
    def _by_name(self) -> Mapping[str, Fact]:
        return {name: fact for fact in self.facts for name in fact.names}

    def __getitem__(self, name: str) -> Fact | None:
        """Return the fact about a name, None where no source states any."""
        fact = self._by_name.get(name)
        if fact is None and self.source is not None:
            return Fact(self.otherwise, (name,), self.source, self.note or "not in its list")
        return fact

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def names(self, verdict: Verdict) -> tuple[str, ...]:
        """Return the names with this verdict."""
        return tuple(name for fact in self.facts if fact.verdict == verdict for name in fact.names)


class Spelling(Struct, frozen=True, forbid_unknown_fields=True, rename={"condition": "where"}):
    """The operators of TFLite that operators of ONNX become, where a condition holds of the node."""

    names: tuple[Text, ...]
    becomes: tuple[Text, ...]
    source: Source
    condition: Condition = ANYTHING


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    """The facts that sources state about a compiler.

    Attributes:
        name: Such as `ethos-u65`.
        description: In one sentence.
        sources: In the order of the file.
        max_rank: The highest rank of a tensor.
        static_shapes: Whether every dim must be a number.
        max_opset: The newest opset of the default domain.
        quantized: Whether it takes quantised models only.
        operators: Of ONNX; they come before what is said of TFLite.
        dtypes: Of data that is not constant.
        tflite: Operators of TFLite, None for a compiler that does not take TFLite.
        others: The targets of which it refuses what any refuses; empty for one that has facts of its own.

    A limit is None where no source says it.
    """

    name: Text
    description: Text
    sources: Annotated[tuple[Source, ...], Meta(min_length=1)]
    max_rank: Limit | None = None
    static_shapes: YesOrNo | None = None
    max_opset: Limit | None = None
    quantized: YesOrNo | None = None
    operators: Facts = Facts()
    dtypes: Facts = Facts()
    tflite: Facts | None = None
    others: tuple[Target, ...] = ()

    def dtype(self, name: str) -> Fact | None:
        """Return the fact about a dtype of data, None where no source states any."""
        if not self.others:
            return self.dtypes[name]
        facts = [(member, member.dtype(name)) for member in self.others]
        verdict = joint_verdict(["unknown" if fact is None else fact.verdict for _, fact in facts])
        said = [(member.name, fact) for member, fact in facts if fact is not None and fact.verdict == verdict]
        if not said:
            return None
        return Fact(verdict, (name,), replace(said[0][1].source, key=", ".join(member for member, _ in said)))

    @property
    def needs_static_shapes(self) -> bool:
        """Whether a source says that every dim must be a number."""
        return self.static_shapes is not None and bool(self.static_shapes.value)

    @property
    def is_quantized(self) -> bool:
        """Whether a source says that it takes quantised models only."""
        return self.quantized is not None and bool(self.quantized.value)

    @property
    def takes_8_bits(self) -> bool:
        """Whether a source says that it, or one of the targets that it stands for, takes data of 8 bits."""
        if self.others:
            return any(member.takes_8_bits for member in self.others)
        return self.is_quantized or not {"int8", "uint8"}.isdisjoint(self.dtypes.names("allowed"))


class _Together(Struct, frozen=True, forbid_unknown_fields=True):
    name: Text
    description: Text
    together: Annotated[tuple[Text, ...], Meta(min_length=1)]


def load_target(name: str | os.PathLike[str]) -> Target:
    """Return a target.

    Args:
        name: One of `NAMES`, or the path of a TOML file.

    Raises:
        UsageError: There is no target of that name.
        TargetError: The file cannot be read, or says what no target can; it names the file and the key.

    Example:
        >>> graphkit.load_target("ethos-u85").needs_static_shapes
        True
    """
    if name in NAMES:
        return _built_in(str(name))
    if isinstance(name, str) and not (name.endswith(".toml") or set(name) & set("/\\")):
        hint = did_you_mean(name, NAMES, f"there are {', '.join(NAMES)}, or name a .toml file")
        raise UsageError(f"no target '{name}' - {hint}")
    return _read_target(Path(name))


@cache
def _built_in(name: str) -> Target:
    return _read_target(FOLDER / f"{name}.toml")


@cache
def tflite_spellings() -> Mapping[str, tuple[Spelling, ...]]:
    """Return the TFLite operators that each ONNX operator becomes; the first whose condition holds counts."""
    path = FOLDER / "tflite_operators.toml"
    plain = read_toml(path)
    _name_sources(path, plain, {"operators": plain["operators"]})
    spellings: dict[str, tuple[Spelling, ...]] = {}
    for number, spelling in enumerate(convert_toml(path, plain["operators"], tuple[Spelling, ...])):
        _check_names(path, f"operators[{number}].names", spelling.names, "operators")
        spellings |= {name: (*spellings.get(name, ()), spelling) for name in spelling.names}
    return spellings


def _read_target(path: Path) -> Target:
    plain = read_toml(path)
    if "together" in plain:
        return _join_targets(path, convert_toml(path, plain, _Together))
    tables = {key: [table, *_rows_of(table, "facts")] for key, table in plain.items() if isinstance(table, dict)}
    _name_sources(path, plain, {key: rows for key, rows in tables.items() if key != "sources"})
    target = convert_toml(path, plain, Target)
    for kind, facts in (("operators", target.operators), ("dtypes", target.dtypes), ("tflite", target.tflite)):
        if facts is not None:
            _check_facts(path, kind, facts)
    return target


def _rows_of(table: Mapping[str, Any], name: str) -> list[Any]:
    rows = table.get(name)
    return rows if isinstance(rows, list) else []


def _name_sources(path: Path, plain: dict[str, Any], tables: Mapping[str, list[Any]]) -> None:
    """Let rows have the source that they name by its key, in place of the key; each source has its key."""
    named = plain.get("sources")
    sources = {
        key: {"url": "", **row, "key": key} if isinstance(row, dict) else row
        for key, row in (named.items() if isinstance(named, dict) else ())
    }
    plain["sources"] = list(sources.values())
    for table, rows in tables.items():
        for row in rows:
            key = row.get("source") if isinstance(row, dict) else None
            if isinstance(key, str) and key not in sources:
                hint = f"write one of {', '.join(sources)}"
                raise toml_error(path, f"{table}.source", f"'{key:.40}' is no source", hint)
            if isinstance(key, str):
                row["source"] = sources[key]


def _join_targets(path: Path, file: _Together) -> Target:
    """Return the target that refuses what any of others refuses; its numbers are the strictest of theirs."""
    for name in file.together:
        if name not in NAMES or name == file.name:
            hint = f"write some of {', '.join(NAMES)}"
            raise toml_error(path, "together", f"'{name:.40}' is no other target", hint)
    others = tuple(map(_built_in, file.together))
    if joint := [member.name for member in others if member.others]:
        raise toml_error(path, "together", f"'{joint[0]}' is made of others itself", "name these")

    def name_source(target: Target, source: Source) -> Source:
        return replace(source, key=f"{target.name}: {source.key}")

    limits: dict[str, Any] = {}
    for name, strictest in (("max_rank", min), ("max_opset", min), ("static_shapes", max)):
        known = [(member, limit) for member in others if (limit := getattr(member, name)) is not None]
        own = [replace(limit, source=name_source(member, limit.source)) for member, limit in known]
        limits[name] = strictest(own, key=attrgetter("value"), default=None)
    sources = tuple(name_source(member, source) for member in others for source in member.sources)
    return Target(file.name, file.description, sources, others=others, **limits)


def _check_facts(path: Path, kind: str, facts: Facts) -> None:
    """Check that facts name what there is, each name once, and have conditions where these mean something."""
    met = Counter[str]()
    for number, fact in enumerate(facts.facts):
        at = f"{kind}.facts[{number}]"
        met.update(fact.names)
        if twice := [name for name in fact.names if met[name] > 1]:
            problem = f"'{twice[0]:.40}' has a fact already"
            raise toml_error(path, f"{at}.names", problem, "say one thing of each name")
        _check_names(path, f"{at}.names", fact.names, kind)
        for each in (fact.condition, *fact.alternatives):
            dtypes = [dtype for some in each.dtypes_of.values() for dtype in some]
            _check_names(path, f"{at}.where", (*each.dtypes, *each.output_dtypes, *dtypes), "dtypes")
        if fact.condition != ANYTHING and (kind != "operators" or fact.verdict != "allowed"):
            problem, hint = "only an operator that is allowed has a condition", 'take it out, or write is = "allowed"'
            raise toml_error(path, f"{at}.where", problem, hint)
    if facts.otherwise != "unknown" and facts.source is None:
        raise toml_error(path, f"{kind}.source", "it is missing", "name who says the rest")


def _check_names(path: Path, key: str, names: Collection[str], kind: str) -> None:
    """Check that operators without a domain, and dtypes, are of ONNX."""
    for name in names:
        if kind == "operators" and "." not in name and name not in _onnx_operators():
            problem, hint = f"'{name:.40}' is no operator of ONNX", "check its spelling, or write DOMAIN.NAME"
        elif kind == "dtypes" and name not in _onnx_dtypes():
            problem, hint = f"'{name:.40}' is no dtype of ONNX", "write such as float32 or int64"
        else:
            continue
        raise toml_error(path, key, problem, hint)


@cache
def _onnx_operators() -> frozenset[str]:
    from onnx.defs import get_all_schemas

    names = (schema.name for schema in get_all_schemas() if schema.domain == "")
    return frozenset([*names, "SimplifiedLayerNormalization"])  # which is onnxruntime's own, in the same domain


@cache
def _onnx_dtypes() -> frozenset[str]:
    from onnx import TensorProto

    return frozenset(map(dtype_name, TensorProto.DataType.values()))
