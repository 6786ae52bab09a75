"""Hazards: legal input dims at which a model fails in onnxruntime, or silently gives a wrong shape."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from msgspec import Struct

from graphkit.analysis.findings import Finding, Judged, kind_of
from graphkit.errors import count_things
from graphkit.graph.names import family_labels, group_pairs
from graphkit.graph.operator_traits import GATHERING, value_inputs
from graphkit.graph.view import all_nodes
from graphkit.model import ModelLike, as_model
from graphkit.ops.spatial import WindowFits
from graphkit.render.document_blocks import Block, NodeMark, Prose, Shortened, table
from graphkit.render.result import Sizes
from graphkit.shapes import Shapes
from graphkit.shapes.constraints import Trigger, find_triggers
from graphkit.shapes.constraints.node_constraints import Guarded, Values
from graphkit.shapes.infer import infer_claimed

Kind = Literal["never", "wrong shape", "empty", "sizes", "limit", "fit"]
Dims = Sizes
KINDS: dict[Kind, tuple[str, str]] = {  # what happens, and the kind of finding
    "never": ("fails at all dims", "never-runs"),
    "wrong shape": ("gives a wrong shape without an error", "wrong-shape"),
    "empty": ("fails if a dim is 0", "empty-dim"),
    "sizes": ("fails at sizes that are not legal", "legal-sizes"),
    "limit": ("fails above some size", "size-limit"),
    "fit": ("fails if dims do not fit together", "dims-apart"),
}
SHOWN = 20  # hazards in a text
EXAMPLES = 3  # of dims, in a text
WIDTH = 300  # characters of a problem in a text


class Check(Struct, frozen=True):
    """The result of a run at the dims of a hazard."""

    confirmed: bool | None  # whether the run met the prediction; None if there was no run
    message: str  # the message of onnxruntime, or why there was no run

    def __str__(self) -> str:
        word = "not run" if self.confirmed is None else "confirmed" if self.confirmed else "not confirmed"
        return f"{word}: {self.message}"


class Hazard(Struct, frozen=True):
    """Dims that a caller may give, and the failure there.

    Attributes:
        kind: A key of `KINDS`, the worst first.
        input: The input at fault, "" for all of them.
        nodes: Paths of the nodes with this precondition; the first one fails first.
        problem: The fault, in words.
        says: Part of onnxruntime's message, "" if there is none or it is unknown.
        dims: The dims that trigger it, for each symbol of the inputs; empty for all dims.
        fine: Dims near them at which the model runs.
        examples: The dims that matter, here and in other cases of the same hazard.
        also: Paths of nodes that also fail there, or further on.
        check: The result of a run, None without a check.
    """

    kind: Kind
    op: str
    input: str
    nodes: tuple[str, ...]
    problem: str
    says: str
    shape: tuple[int, ...] | None
    dims: Dims
    fine: Dims
    examples: tuple[Dims, ...]
    also: tuple[str, ...] = ()
    check: Check | None = None

    def __str__(self) -> str:
        where = " or ".join(dims_text(dims) for dims in self.examples) or "any dims"
        does = "gives a wrong shape" if self.kind == "wrong shape" else "fails"
        return f"at {where}, {self.op} '{self.nodes[0]}' {does}: {self.problem}"


class LegalSizes(Struct, frozen=True):
    """The sizes of a dim at which every node runs, whatever the sizes of other dims with such a rule are."""

    dim: str
    text: str  # the rule in words: `multiples of 32 from 32`
    step: int  # the rule: these multiples from `least` to `most`, which is None without a bound
    least: int
    most: int | None
    less: int  # so much less, and so much more, than any of them is legal too
    more: int
    short: int  # every size up to this is legal too
    is_exact: bool  # whether no other size is; it may be together with another dim's, as 8 x 2 patches instead of 4 x 4

    def __str__(self) -> str:
        return f"{self.dim}: {self.text}"


@dataclass(frozen=True)
class Hazards(Judged):
    """The failures at dims that the inputs allow.

    Attributes:
        undecided: Why none were looked for, "" if they were.
        legal: The legal sizes of dims that are more than a bound from above.
        works: With such dims, a size for each symbol of the inputs at which every node runs.
        is_complete: Whether all shapes are known; else nodes whose shapes are not may fail at these sizes.
    """

    title: ClassVar[str] = "Hazards"
    hazards: tuple[Hazard, ...]
    undecided: str = ""
    legal: tuple[LegalSizes, ...] = ()
    works: Dims = field(default_factory=Sizes)
    is_complete: bool = True

    def found(self) -> tuple[Finding, ...]:
        findings = []
        for hazard in (hazard for hazard in self.hazards if hazard.kind != "sizes"):
            at = dims_text(hazard.examples[0]) if hazard.examples else f"'{hazard.nodes[0]}'"
            # the same one as long as the operator and the dims that matter are
            key = f"{hazard.op} {hazard.input}({', '.join(sorted(_names_of_hazard(hazard)))})"
            kind, where = KINDS[hazard.kind][1], f"{at} ({hazard.op})"
            findings.append(Finding(kind, where, str(hazard), key, len(hazard.nodes)))
        sized = [hazard for hazard in self.hazards if hazard.kind == "sizes"]
        known = "" if self.is_complete else "as far as shapes are known, "
        where = known and f", {known[:-2]}"
        for rule in self.legal:
            if hazards := [hazard for hazard in sized if rule.dim in _names_of_hazard(hazard)]:
                text, count = f"{known}legal sizes are {rule}; {hazards[0]}", sum(len(each.nodes) for each in hazards)
                findings.append(Finding(KINDS["sizes"][1], f"{rule}{where}", text, rule.dim, count))
                where = ""  # a line of the verdict names the first of them in any case
        return tuple(findings)

    def marks(self) -> Iterator[NodeMark]:
        for hazard in self.hazards:
            is_fault = kind_of(KINDS[hazard.kind][1]).is_fault
            for path in hazard.nodes:
                if is_fault:
                    yield NodeMark("Findings", "fault", "fault", path, str(hazard))
                else:
                    yield NodeMark("Findings", "limit of sizes", "doubt", path, str(hazard))
            yield from (NodeMark("Findings", "fails there too", "fine", path, str(hazard)) for path in hazard.also)

    def in_short(self) -> str:
        return f"{count_things(len(self.hazards), 'way(s)')} in which sizes fail" if self.hazards else self.undecided

    def blocks(self) -> Iterator[Block]:
        if self.undecided:
            yield Prose(self.undecided, "warning")
        elif not self.hazards:
            yield Prose("None found: at all dims that were tried, the preconditions of every node hold.")
        if not self.hazards:
            return
        if self.legal:
            known = "" if self.is_complete else ", as far as shapes are known"
            rules = "; ".join(map(str, self.legal))
            yield Prose(f"Legal sizes{known}: {rules}. Such sizes are {dims_text(self.works)}.")
        yield Prose("Dims that the inputs allow, the nodes that cannot handle them, and what onnxruntime does.")
        yield table(
            "#:number | Dims:code | Problem:note | Node:note | onnxruntime:note | Checked:note | Kind | Nodes:number",
            [_hazard_row(number, hazard) for number, hazard in enumerate(self.hazards[:SHOWN], start=1)],
        )
        if len(self.hazards) > SHOWN:
            yield Prose(f"{len(self.hazards) - SHOWN} more in the JSON report.")
        kinds = dict.fromkeys(hazard.kind for hazard in self.hazards)
        yield Prose("; ".join(f"{kind}: {KINDS[kind][0]}" for kind in kinds) + ".")


def _names_of_hazard(hazard: Hazard) -> set[str]:
    return {name for dims in hazard.examples for name, _ in dims}


def _hazard_row(number: int, hazard: Hazard) -> Sequence[str | int | None]:
    more = f" or {len(hazard.examples) - EXAMPLES} more" if len(hazard.examples) > EXAMPLES else ""
    dims = " or ".join(dims_text(dims) for dims in hazard.examples[:EXAMPLES]) + more
    fails = "fails" if len(hazard.also) == 1 else "fail"
    others = f"; {count_things(len(hazard.also), 'other node(s)')} {fails} there or further on" if hazard.also else ""
    foretold = f'an error with "{hazard.says}"' if hazard.says else "an error"
    if hazard.shape is not None:
        foretold = f"no error, and a shape of {list(hazard.shape)}"
    is_confirmed = hazard.check is not None and hazard.check.confirmed
    problem = f"{hazard.op}{f' ({hazard.input})' if hazard.input else ''}: {hazard.problem}"
    return (
        number,
        dims or "any",
        problem if len(problem) <= WIDTH else f"{problem[: WIDTH - 3].rpartition(' ')[0]} ...",
        Shortened.of(f"at {family_labels(hazard.nodes)}{others}", ", ".join(hazard.nodes)),
        None if is_confirmed else Shortened.of(f"onnxruntime: {foretold}", foretold),
        str(hazard.check) if hazard.check is not None else None,
        hazard.kind,
        len(hazard.nodes),
    )


def dims_text(dims: Dims) -> str:
    """Return `batch_size=2, past=0`."""
    return ", ".join(f"{name}={size}" for name, size in dims)


def hazards(model: ModelLike, *, shapes: Shapes | None = None) -> Hazards:
    """Return dims at which a model fails or gives a wrong shape, the worst first, or why none were looked for.

    A dim is legal if its range allows it: at least 1, or at least 0 for a symbol named `past...`.

    Example:
        >>> print(graphkit.hazards(graphkit.load("example:causal-attention")).hazards[0])
        at sequence_length=33, Gather '/Gather_2' fails: index 32 (sequence_length - 1) into an axis of 32
    """
    model = as_model(model)
    shapes = infer_claimed(model, shapes)
    operators = {node.path: node.operator for node in all_nodes(model.scopes)} if shapes.findings else {}
    nothing = {"input": "", "says": "", "shape": None, "dims": Sizes(), "fine": Sizes(), "examples": ()}
    never = [
        Hazard(kind="never", op=operators.get(each.node, ""), nodes=(each.node,), problem=each.message, **nothing)  # type: ignore[arg-type]
        for each in shapes.findings
    ]
    search = find_triggers(shapes)
    order = list(KINDS)
    ruled = {rule.name for rule in search.rules}
    # a hazard for each precondition, and for equal ones of several scopes
    keys = ((each.shared.nodes[0].operator, each.shared.precondition, each.is_wrong) for each in search.triggers)
    groups = group_pairs(zip(keys, search.triggers, strict=True))
    hazards_found = (_make_hazard(group, ruled) for group in groups.values())
    grouped = sorted(hazards_found, key=lambda hazard: order.index(hazard.kind))
    if search.base is None:
        unmet = ", ".join(f"{each.nodes[0].operator} {each.nodes[0].path}" for each in search.unmet[:EXAMPLES])
        no_dims = f"no dims were found at which the preconditions of these nodes hold: {unmet}"
        return Hazards((*never, *grouped), f"Not looked for: {search.obstacle or no_dims}.")
    known = [name for name in LegalSizes.__struct_fields__ if name not in ("dim", "text")]
    legal = tuple(
        LegalSizes(dim=rule.name, text=str(rule), **{name: getattr(rule, name) for name in known})
        for rule in search.rules
    )
    works = Sizes(search.base.items()) if legal else Sizes()
    return Hazards((*never, *grouped), "", legal, works, all(tensor.is_known for tensor in shapes.table.values()))


def _make_hazard(group: Sequence[Trigger], ruled: Collection[str]) -> Hazard:
    first = group[0]
    precondition, node = first.shared.precondition, first.shared.nodes[0]
    values = Values.at(first.dims)
    violation = precondition.violation([int(values.of(expr)[0]) for expr in precondition.exprs])
    places = {id(trigger.shared): trigger.shared for trigger in group}.values()
    also = {node_there.path: None for trigger in group for shared in trigger.also for node_there in shared.nodes}
    examples = (Sizes(each for each in trigger.dims.items() if each[0] in trigger.matters) for trigger in group)
    names = ["indices"] if node.operator in GATHERING else [*value_inputs(node).values()]
    return Hazard(
        kind=_hazard_kind(group, ruled),
        op=node.operator,
        input=", ".join(name for name in names if name not in ("axes", "axis", "steps", "roi", "scales")),
        nodes=tuple(trigger.path for shared in places for trigger in shared.nodes),
        problem=violation.problem,
        says=violation.says,
        shape=violation.shape,
        dims=Sizes(first.dims.items()),
        fine=Sizes(first.fine.items()),
        examples=tuple(dict.fromkeys(examples)),
        also=tuple(also),
    )


def _hazard_kind(group: Sequence[Trigger], ruled: Collection[str]) -> Kind:
    first = group[0]
    precondition = first.shared.precondition
    precondition = precondition.inner if isinstance(precondition, Guarded) else precondition
    if first.is_wrong and not isinstance(precondition, WindowFits):
        return "wrong shape"
    if any(first.dims[name] == 0 for name in first.changed):
        return "empty"
    if all(name in ruled for trigger in group for name in trigger.changed):
        return "sizes"
    return "limit" if all(trigger.is_limit for trigger in group) else "fit"
