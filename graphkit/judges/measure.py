"""Measure a target: ask its compiler about thousands of models of one operator, and write what it takes as facts."""

from __future__ import annotations

import json
import tempfile
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from graphkit.analysis.node_placement import number_nodes
from graphkit.analysis.target_lint import observe_node
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError, count_things, did_you_mean
from graphkit.graph.names import group_pairs
from graphkit.judges import Answer, Judge, ask_judge, find_judge
from graphkit.judges.cases import (
    DTYPES,
    NAME,
    OPSETS,
    Case,
    distinct_cases,
    kind_of,
    library_cases,
    model_cases,
    varied_cases,
)
from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import SmallModel, run_small_models
from graphkit.shapes import infer
from graphkit.targets import Atom, Observation

MOST_CONDITIONS = 4  # conditions of an operator, any of which is enough
PLANES = (8, 16, 32)  # elements by which devices lay out tensors
LOSSES = (2, 0)  # how many models that are taken a condition may lose for one that is refused; others take up the rest
Where = Mapping[str, Any]  # a condition as a target file has it


class Measured(NamedTuple):
    """How a target is measured: its judge, what the target is, and which device of the judge, "" for the only one."""

    judge: str
    description: str
    device: str = ""


MEASURED: Mapping[str, Measured] = {
    "qnn-htp": Measured("qnn", "Qualcomm HTP, by way of ONNX Runtime's QNN execution provider."),
    "webgpu": Measured("webgpu", "WebGPU, by way of ONNX Runtime's execution provider."),
    "rk3588": Measured("rknn", "Rockchip RK3588 in float16, by way of RKNN-Toolkit2."),
    "openvino": Measured("openvino", "OpenVINO's CPU, by way of ONNX Runtime's execution provider."),
    "ethos-u65": Measured("vela", "Arm Ethos-U65, by way of int8 TFLite and Vela.", "ethos-u65-256"),
    "ethos-u85": Measured("vela", "Arm Ethos-U85, by way of int8 TFLite and Vela.", "ethos-u85-256"),
}
NO_DEVICE = "CreateProvider"  # in what onnxruntime says where a device is not there any more
INVALID = ("INVALID_GRAPH", "INVALID_ARGUMENT", "INVALID_PROTOBUF", "Type Error", "Load model from", NO_DEVICE)
SECONDS, SECONDS_OF_MODEL = 60.0, 600.0  # for a model of one operator, and for an export
MOVERS = ("Reshape", "Transpose")  # no tensor of many axes is of use where they do not take it
MOST = 0.9  # of the models with symbols that a compiler of fixed shapes refuses


def measure_target(name: str, models: Sequence[Model] = (), *, progress: Callable[[str], None] = lambda _: None) -> str:
    """Ask the judge of a target, one of `MEASURED`, and return the text of the target's file.

    Nodes of the models are asked about too, where their shapes are numbers. Refuse a target that nobody can be asked
    about, and a judge that is not installed or finds no device.
    """
    if name not in MEASURED:
        hint = did_you_mean(name, list(MEASURED), f"there are judges for {', '.join(MEASURED)}")
        raise UsageError(f"no judge answers for '{name:.40}' - {hint}")
    judge, device = find_judge(MEASURED[name].judge), MEASURED[name].device
    progress("making models of one operator")
    cases, varied = list[Case](), set[str]()
    for case in library_cases():
        if not varied:
            cases += [replace(case, opset=opset) for opset in OPSETS if opset > case.opset]
        cases += varied_cases(case, is_first=case.node.op_type not in varied)
        if case.model() is not None:
            varied.add(case.node.op_type)
    cases += {kind_of(case): case for model in models for _, case in model_cases(infer(model))}.values()
    progress(f"asking {judge.name} about {count_things(len(cases), 'node(s)')}")
    observations = list(observe_cases(judge, cases, device))
    if models:
        progress(f"asking {judge.name} about {count_things(len(models), 'model(s)')}")
        observations = strongest(observations, list(observe_models(judge, models, device)))
    return target_text(name, judge, observations)


def strongest(alone: Sequence[Observation], placed: Sequence[Observation]) -> list[Observation]:
    """Return what is said of nodes in their places, and of nodes alone of which no equal one is in a place."""

    def kind(of: Observation) -> str:
        return str((of.op, of.opset, of.dtypes, of.constant, of.rank, of.attributes, of.values))

    known = {kind(each) for each in placed}
    return [*placed, *(each for each in alone if kind(each) not in known)]


def observe_models(judge: Judge, models: Sequence[Model], device: str = "") -> Iterator[Observation]:
    """Yield what a judge says of the nodes of models in their place; of equal ones in equal places once, with a count.

    A compiler may take a node as part of a pattern alone, and refuse one by itself that it takes beside others. Models
    are folded first, as compilers refuse whatever is behind shape arithmetic.
    """
    counts, first = Counter[object](), dict[object, Observation]()
    with tempfile.TemporaryDirectory(prefix="graphkit-") as folder:
        paths = [Path(folder, f"{index}.onnx") for index in range(len(models))]
        folded = [number_nodes(fold(model).model) for model in models]
        for path, model in zip(paths, folded, strict=True):
            model.save(path)
        answers = ask_judge(judge, paths, seconds=SECONDS_OF_MODEL, as_it_is=True, device=device)
        for model, answer in zip(folded, answers, strict=True):
            places = answer.places
            shapes = infer(model)
            for node, _ in model_cases(shapes) if not answer.error else ():
                if node.proto.name in places:
                    seen = replace(observe_node(node, shapes), taken=places[node.proto.name] == "device")
                    counts[str(seen)] += 1
                    first.setdefault(str(seen), seen)
    yield from (replace(seen, count=counts[key]) for key, seen in first.items())


def observe_cases(judge: Judge, cases: Iterable[Case], device: str = "") -> Iterator[Observation]:
    """Yield what a judge says of each valid case; UsageError where it fails at the first, as without its device."""
    with tempfile.TemporaryDirectory(prefix="graphkit-") as folder:
        paths, observations, small = list[Path](), list[Observation](), list[SmallModel]()
        for case, model in distinct_cases(cases):
            path = Path(folder, f"{len(paths)}.onnx")
            path.write_bytes(content := model.SerializeToString())
            loaded = Model.from_proto(model)
            paths.append(path)
            observations.append(observe_node(loaded.graph.nodes[0], infer(loaded)))
            small.append((content, [case.feed()]))
        answers = list[Answer]()
        for answer in ask_judge(judge, paths, seconds=SECONDS, as_it_is=True, device=device):
            if not answers and answer.error:
                why = f"takes not even {observations[0].op}: {answer.fault}"
                raise UsageError(f"the judge '{judge.name}' {why} - see whether its device is there")
            answers.append(answer)
        failing = [index for index, answer in enumerate(answers) if is_taken(answer) is False]
        with shared_isolation():
            runs = dict(zip(failing, run_small_models([small[index] for index in failing]), strict=True))
        wrong = {index for index, run in runs.items() if isinstance(run, list) and isinstance(run[0], str)}  # it loads
        for index, (observation, answer) in enumerate(zip(observations, answers, strict=True)):
            yield replace(observation, taken=None if index in wrong else is_taken(answer))


def is_taken(answer: Answer) -> bool | None:
    """Return whether the device takes the node that was asked about, None where it is not valid or nobody says."""
    if answer.error:
        return False if answer.is_answered and not any(word in answer.error for word in INVALID) else None
    places = [node.on for node in answer.nodes if node.name == NAME]
    if places:
        return all(on == "device" for on in places)
    return not answer.on("cpu") if answer.nodes else None  # the device has another name for it, or none


def target_text(name: str, judge: Judge, observations: Sequence[Observation]) -> str:
    """Return the file of a target, which has nothing but what was asked."""
    known = [each for each in observations if each.taken is not None]
    dynamic = [each for each in known if _reads_symbols(each)]
    is_static = sum(not each.taken for each in dynamic) >= MOST * len(dynamic)
    opset = max((each.opset for each in known if each.taken), default=0)
    is_opset = any(each.opset > opset for each in known)
    fixed = [each for each in known if not (is_static and _reads_symbols(each)) and each.opset <= opset]
    movers = [each for each in fixed if each.op in MOVERS and not each.unit_stays] or fixed  # tensors of other ranks
    rank = max((each.rank for each in movers if each.taken), default=0)
    is_rank = any(each.rank > rank for each in movers)
    what = f"{count_things(len(known), 'model(s)')} of one operator and nodes of exports"
    title = f"{judge.compiler} {judge.version}, asked about {what}"
    lines = [
        f"# Written by `graphkit targets measure {name}`: change that command, or measure again, rather than edit it.",
        f'name = "{name}"',
        f'description = "{MEASURED[name].description}"',
        "",
        "[sources.measured]",
        f'title = "{title}"',
        f'url = "https://pypi.org/project/{judge.compiler}/{judge.version}/"',
        f"date = {date.today().isoformat()}",
        "",
        "[static_shapes]",
        f"value = {'true' if is_static else 'false'}",
        'source = "measured"',
        *(["", "[max_opset]", f"value = {opset}", 'source = "measured"'] if is_opset else []),
        *(["", "[max_rank]", f"value = {rank}", 'source = "measured"'] if is_rank else []),
        *_operator_lines(fixed),
        *_dtype_lines(fixed),
    ]
    return "\n".join([*lines, ""])


def _reads_symbols(of: Observation) -> bool:
    """Whether dims of what it reads are symbols, and not only those of what it makes."""
    return of.is_dynamic and None in ((of.dims and of.dims[0]) or (None,))


def _operator_lines(observations: Sequence[Observation]) -> Iterator[str]:
    by_op = group_pairs((each.op, each) for each in observations)
    groups: dict[str, list[str]] = defaultdict(list)
    for op in sorted(by_op, key=str.lower):
        if (fact := fit_fact(by_op[op])) is not None:
            lines = [f'is = "{fact.verdict}"']
            if fact.verdict == "unknown":
                shares = f"taken in {fact.taken} of {fact.taken + fact.refused} models"
                lines.append(f'note = "{shares}, by no rule that was found"')
            first, *others = [inline_table(each) for each in fact.conditions] or [""]
            lines += [f"where = {first}"] if first else []
            lines += [f"or = [{', '.join(others)}]"] if others else []
            groups["\n".join(lines)].append(op)
    yield from ("", "[operators]")
    for text, names in sorted(groups.items(), key=lambda group: (-len(group[1]), group[1])):
        verdict, *rest = text.splitlines()
        yield from ("", "[[operators.facts]]", verdict, *_name_lines(names), 'source = "measured"', *rest)


def inline_table(value: Any) -> str:
    """Return a value as TOML, tables in one line."""
    if isinstance(value, Mapping):
        named = {key if key.isidentifier() else json.dumps(key): each for key, each in value.items()}
        return f"{{ {', '.join(f'{key} = {inline_table(each)}' for key, each in named.items())} }}"
    return f"[{', '.join(map(inline_table, value))}]" if isinstance(value, list | tuple) else json.dumps(value)


def _dtype_lines(observations: Sequence[Observation]) -> Iterator[str]:
    taken, asked = Counter[str](), Counter[str]()
    for each in observations:
        asked.update(set(each.dtypes.values()))
        taken.update(set(each.dtypes.values()) if each.taken else ())
    names = [name for name in map(dtype_name, DTYPES) if asked[name]]
    yield from ("", "[dtypes]")
    for verdict, some in (("allowed", [n for n in names if taken[n]]), ("refused", [n for n in names if not taken[n]])):
        if some:
            yield from ("", "[[dtypes.facts]]", f'is = "{verdict}"', *_name_lines(some), 'source = "measured"')


def _name_lines(names: Sequence[str]) -> list[str]:
    text = f"names = [{', '.join(map(json.dumps, names))}]"
    return textwrap.wrap(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


class FittedFact(Struct, frozen=True):
    """What is said of an operator."""

    verdict: str  # as in a target file
    conditions: tuple[Where, ...]  # one of them must hold; none where it is always so
    taken: int  # how many models were
    refused: int
    wrong: int  # of these, how many the conditions do not tell right


def fit_fact(observations: Sequence[Observation]) -> FittedFact | None:
    """Return what the observations of one operator say, None where no runtime takes any."""
    known = [each for each in observations if each.taken is not None]
    taken, refused = ([each for each in known if each.taken is verdict] for verdict in (True, False))
    if not known:
        return None
    fact = FittedFact("allowed", (), _count(taken), _count(refused), 0)
    fitted = list[tuple[list[list[Atom]], int]]()  # conditions, and how many observations they do not tell right
    for loss in LOSSES:
        fits, left = list[list[Atom]](), taken
        while left and len(fits) < MOST_CONDITIONS:
            atoms = _fit_condition(left, refused, loss)
            kept = [each for each in left if not all(atom.holds(each) for atom in atoms)]
            wrong = _count(each for each in refused if all(atom.holds(each) for atom in atoms))
            if len(kept) == len(left) or wrong > _count(left) - _count(kept):
                break
            fits.append(atoms)
            left = kept
        held = (each for each in refused if any(all(atom.holds(each) for atom in atoms) for atoms in fits))
        fitted.append((fits, _count(left) + _count(held)))
    conditions, wrong = min(fitted, key=lambda each: each[1] + sum(map(len, each[0])))
    if wrong * 2 > min(fact.taken, fact.refused) + (fact.taken + fact.refused) // 4:
        return replace(fact, verdict="unknown", wrong=_count(known))
    if not conditions:
        return replace(fact, verdict="refused", wrong=wrong)
    return replace(fact, conditions=tuple(_as_where(atoms) for atoms in conditions if all(conditions)), wrong=wrong)


def _count(observations: Iterable[Observation]) -> int:
    return sum(each.count for each in observations)


def _fit_condition(taken: Sequence[Observation], refused: Sequence[Observation], loss: float) -> list[Atom]:
    """Return a condition that as many of the taken ones have, and as few of the refused ones."""
    atoms: list[Atom] = []
    while refused:
        best, gain = None, 0.0
        for atom in _possible_atoms(taken, refused):
            excluded = _count(each for each in refused if not atom.holds(each))
            lost = _count(each for each in taken if not atom.holds(each))
            if lost < _count(taken) and excluded - loss * lost > 0 and excluded / (1 + lost) > gain:
                best, gain = atom, excluded / (1 + lost)
        if best is None:
            break
        atoms.append(best)
        taken = [each for each in taken if best.holds(each)]
        refused = [each for each in refused if best.holds(each)]
    return atoms


def _possible_atoms(taken: Sequence[Observation], refused: Sequence[Observation]) -> Iterator[Atom]:
    """Yield what may be said of the taken ones, the plainest first."""
    names = dict.fromkeys(name for each in taken for name in each.dtypes)
    firsts = sorted({next(iter(each.dtypes.values())) for each in taken})
    yield from (Atom("static"), Atom("unit_stays"))
    yield Atom("dtypes", value=tuple(firsts))
    yield from (Atom("dtypes", value=(dtype,)) for dtype in firsts)
    for name in names:
        dtypes = tuple(sorted({each.dtypes[name] for each in taken if name in each.dtypes}))
        yield Atom("dtypes_of", name, dtypes)
        yield from (Atom("dtypes_of", name, (dtype,)) for dtype in dtypes)
    for key, bounds in (("version", {each.since for each in taken}), ("rank", {each.rank for each in taken})):
        yield from (Atom(f"{bound}_{key}", value=number) for number in sorted(bounds) for bound in ("max", "min"))
    yield from (Atom("absent", name) for name in dict.fromkeys(name for each in refused for name in each.dtypes))
    yield from (Atom(key, name) for name in names for key in ("constant", "computed"))
    yield from dict.fromkeys(Atom("readers", value=each.readers) for each in taken if each.readers)
    yield from dict.fromkeys(Atom("producers", *pair) for each in taken for pair in each.producers.items())
    values = (pair for each in taken for pair in each.values.items() if pair[1] is not None)
    yield from dict.fromkeys(Atom("values", *pair) for pair in values)
    yield from (Atom("planes_of", value=number) for number in PLANES)
    yield from dict.fromkeys(Atom("attributes", *pair) for each in taken for pair in each.attributes.items())
    equations = sorted({str(each.attributes["equation"]) for each in taken if "equation" in each.attributes})
    yield from [Atom("attributes", "equation", tuple(equations))] if equations else []


def _as_where(atoms: Iterable[Atom]) -> Where:
    where: dict[str, Any] = {}
    for key, name, value in atoms:
        if key in ("dtypes_of", "attributes", "producers", "values"):
            where.setdefault(key, {})[name] = value
        elif key in ("constant", "computed", "absent"):
            where.setdefault(key, []).append(name)
        else:  # a later one says more: it is of what the earlier ones hold of
            where[key] = value
    return where
