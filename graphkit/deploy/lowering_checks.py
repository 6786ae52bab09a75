"""Checks before and after a lowering: texts, ranges of quantised data, leaks of padding, how large scores become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto

from graphkit.contract import Method
from graphkit.deploy.export_inputs import drop_idle_inputs, share_dim_names
from graphkit.deploy.export_pipeline import SOURCES, has_fixed_prompt
from graphkit.deploy.lowered_contract import Lowered
from graphkit.dtypes import FLOATS
from graphkit.equivalence.originals import Originals
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_dims
from graphkit.graph.operator_traits import QUANTIZED
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.hosts import Host
from graphkit.model import Model
from graphkit.passes.npu.change_dtypes import Dequantize
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import Shapes, infer
from graphkit.shapes.constraints.legal_sizes import symbol_roles
from graphkit.verify.comparator import FLOAT16_TOLERANCE, LOWERING_TOLERANCE, elementwise_difference, has_float16
from graphkit.verify.input_generator import ExportInputs, InputSpec
from graphkit.verify.lowering_case import measure_prompt
from graphkit.verify.lowering_verifier import vocabulary_size

WAY_OUT = "compute quantised products with floats: --dequantize"
APART = 1e-3  # relative to the largest element: of which rounding makes no difference
Arrays = dict[str, np.ndarray]
Places = tuple[int | None, ...]  # of the axes of a value
MASKS = ("slots_mask", "source_mask", "rows")  # kinds of inputs that carry no activations
SEED = 0
MOST_STEPS = 256


def is_step(model: Model) -> bool:
    """Whether a model runs token by token on recurrent state, which the host can keep."""
    return bool(model.roles.states and model.roles.all("tokens"))


def check_prompt(originals: Originals) -> None:
    """Refuse steps that do not read a prompt as the export's first step does, whose place they take.

    Its tokens may see those behind them, or it starts from another state. In float16 a difference counts from its
    tolerance on.
    """
    first, step = originals.first, originals.step
    if originals.encoder is not None or first is None or step is None or first is step or first.roles.all(*SOURCES):
        return  # where there is an encoder, also in the first step, later ones read no prompt
    made = drop_idle_inputs(share_dim_names(step, first))
    apart = measure_prompt(originals, Originals(None, made, made))
    if not apart <= (FLOAT16_TOLERANCE if any(map(has_float16, originals.models)) else LOWERING_TOLERANCE):
        rounds = any(node.is_op(*QUANTIZED["QDQ"]) for model in (first, step) for node in all_nodes(model.scopes))
        runs_both = step.roles.states and not has_fixed_prompt(first)  # else a bundle reads prompts by steps too
        way = "bundle it, which runs both" if runs_both else "export one decoder that reads prompts and steps"
        raise UsageError(
            f"{step.name}: after a prompt that it reads token by token its logits differ by {apart:.1e} from those of "
            f"{first.name} - {'try --dequantize, or ' if rounds else ''}{way}"
        )


def check_texts(model: Model) -> None:
    """Refuse several texts, and steps on recurrent state that give no logits."""
    roles = model.roles
    if is_step(model):
        if roles.logits is None:
            raise UsageError(
                f"{model.name}: it runs on recurrent state, '{roles.states[0].past.name}', and no output is known to "
                "be its logits - name it 'logits', or make a bundle of it: graphkit bundle"
            )
        return
    source, text = roles.first("encoder tokens"), roles.first("tokens")
    if source is not None and text is not None and not roles.pasts:
        raise UsageError(
            f"{model.name}: encoder and decoder are one graph without a cache, which takes the texts '{source.name}' "
            f"and '{text.name}' - export encoder and decoder as models of their own, with a cache"
        )


def check_ranges(model: Model) -> None:
    """Refuse a range that is taken from all positions of a run."""
    if (node := next(_dynamic_nodes(model), None)) is None:
        return
    outcome, hint = Dequantize().run(model), WAY_OUT
    if next(_dynamic_nodes(outcome.model), None) is not None:
        reason = f", for dequantize leaves {outcome.declined[0]}" if outcome.declined else ""
        hint = f"lower the export as it was before it was quantised{reason}"
    raise UsageError(
        f"{model.name}: '{node.label}' ({node.op_type}) takes its range from all positions of a run: padding and "
        f"the number of tokens in a run change results - {hint}"
    )


def check_scales(first: Model, step: Model) -> None:
    """Refuse two decoders that were calibrated one by one: the lowered step runs the first token too."""
    known = _constant_scales(first)
    for name, scale in _constant_scales(step).items():
        if known.get(name, scale) != scale:
            raise UsageError(
                f"{step.name}: '{name}', the scale of a QuantizeLinear, is {scale:g}, and {known[name]:g} in "
                f"{first.name}: the lowered step, which runs the first token too, would round it otherwise - {WAY_OUT}"
            )


def _constant_scales(model: Model) -> dict[str, float]:
    nodes = (node for node in all_nodes(model.scopes) if node.op_type == "QuantizeLinear")
    scales = {value.name: value.constant for node in nodes if (value := node.input(1)) is not None}
    arrays = {name: model.array(tensor) for name, tensor in scales.items() if tensor is not None}
    return {name: float(array.item()) for name, array in arrays.items() if array.size == 1}


def check_vectors(first: Model, step: Model) -> None:
    """Refuse two decoders that do not add and multiply the same vectors: the step runs the first token too.

    Where all operators are quantised, the scale of a bias follows from the range that its data had in a calibration, so
    that two decoders which were calibrated one by one hold the bias with other roundings. What is less off than logits
    may be is left to the proof.
    """
    known, off = _constant_vectors(first), dict[str, float]()
    for key, tensor in _constant_vectors(step).items():
        other = known.get(key)
        if other is not None and (other.dims, other.data_type) == (tensor.dims, tensor.data_type):
            distance = elementwise_difference(first.array(other), step.array(tensor)).max(initial=0.0)
            off |= {key[0]: float(distance)} if distance > LOWERING_TOLERANCE else {}
    if not off:
        return
    name, distance = max(off.items(), key=lambda item: item[1])
    more = f" (and {len(off) - 1} more)" if len(off) > 1 else ""
    raise UsageError(
        f"{step.name}: '{name}' is up to {distance:.1e} off what it is in {first.name}{more}: the lowered "
        "step, which runs the first token too, would compute with other numbers - lower the export as it was before it "
        "was quantised"
    )


def _constant_vectors(model: Model) -> dict[tuple[str, str], TensorProto]:
    """Return the constant vectors of floats, by their name and the output of a node that reads them."""
    return {
        (value.name, out.name): value.tensor
        for node in all_nodes(model.scopes)
        for value in node.inputs
        for out in node.outputs[:1]
        if value is not None and value.tensor is not None and out is not None
        if len(value.tensor.dims) == 1 and value.tensor.data_type in FLOATS
    }


def _dynamic_nodes(model: Model) -> Iterator[Node]:
    return (node for node in all_nodes(model.scopes) if node.op_type in QUANTIZED["dynamic"])


def check_padding(part: Lowered, original: Model, folder: Path) -> None:
    """Refuse a text, half as long as may be, whose results change with what its padding holds.

    The part runs once for it. A model of a fixed length is padded by everybody, if the token is known. The folder has
    `contract.json` and the tables.
    """
    rng, fed = np.random.default_rng(0), list[Arrays]()

    def run(method: Method, feed: Mapping[str, np.ndarray]) -> Arrays:
        fed.append(dict(feed))
        return {port.name: np.zeros(port.shape, port.dtype) for port in method.outputs}

    host = Host(folder, run, unchecked=True)
    length, tokens = host.contract.sizes["source"], original.roles.first("tokens")
    is_fixed = tokens is not None and isinstance((declared_dims(tokens) or (0,))[-1], int)
    is_padded = is_fixed and host.contract.tokens["pad"] is not None
    if not host.contract.takes_text or length < 2 or is_padded:
        return
    inputs = ExportInputs([original], rng)
    users = [port for port in part.method.inputs if port.kind == "user"]
    user = {port.name: inputs.array(InputSpec(port.name, port.dtype), port.shape) for port in users}
    host.start([[1] * (length // 2)] * host.batch if host.batch > 1 else [1] * (length // 2), user)
    texts = [port for port in part.method.inputs if (port.kind, port.by) == ("embedding", "source")]
    tables = {port.name: host.tables[port.source.of] for port in texts if port.source is not None}

    def with_noise() -> Arrays:
        """Return what was fed, with the rows of other tokens for padding."""
        feed = dict(fed[0])
        for name, table in tables.items():
            noisy = feed[name].reshape(host.batch, length, -1).copy()
            places = noisy[:, length // 2 :].shape
            noisy[:, length // 2 :] = table[rng.integers(0, len(table), places[:2])].reshape(places)
            feed[name] = noisy.reshape(feed[name].shape)
        return feed

    pair = [with_noise(), with_noise()]
    if not _find_leaks(part.model, list(part.model.graph.outputs), pair, length, _valid_dims(original, length // 2)):
        return
    if is_fixed:
        problem = f"it takes {length} tokens, no mask hides those that pad, and nothing says which token does"
        raise UsageError(f"{original.name}: {problem} - give it with --pad")
    values = [value for node in part.model.graph.nodes for value in node.results]
    leaks = _find_leaks(part.model, values, pair, length, {})
    of_all = [value for value in leaks if length in (infer(part.model)[value].sizes() or ())]  # not of a part of them
    if (leak := next(iter(of_all or leaks), None)) is not None and leak.producer is not None:
        given = [f"'{port.name}'" for port in users if length in port.shape]
        mask = f"no mask that is known ({' and '.join(given)} comes from the caller)" if given else "no mask"
        raise UsageError(
            f"{original.name}: '{leak.producer.label}' ({leak.producer.op_type}) mixes positions: what padding holds "
            f"reaches tokens that count, and {mask} keeps it out. Texts shorter than the fixed length would be wrong - "
            "fold the model for each length of its own instead: graphkit fold --dim"
        )


def _valid_dims(original: Model, valid: int) -> dict[str, Places]:
    """Return the dims of outputs that follow from the length of a text, for one of so many tokens; None for others."""
    shapes, lengths = infer(original), ("encoder", "sequence", "total")
    sizes = {name: valid for name, role in symbol_roles(original).items() if role in lengths}
    return {
        value.name: tuple(
            int(dim.evaluate(sizes)) if dim.symbols and dim.symbols <= sizes.keys() else None
            for dim in shapes[value].dims or ()
        )
        for value in original.graph.outputs
    }


def _find_leaks(
    model: Model, values: Sequence[Value], pair: Sequence[Arrays], length: int, valid: Mapping[str, Places]
) -> list[Value]:
    """Return the values of which a part at tokens that count differs, in topological order."""
    shapes = infer(model)
    known = {value: sizes for value in values if (sizes := shapes[value].sizes()) is not None and not value.is_constant}
    outputs = [(value.name, NewInput(value.name, shapes[value].dtype, sizes)) for value, sizes in known.items()]
    with IsolatedSession(with_outputs(model, outputs)) as session:
        first, second = (session.run(feed) for feed in pair)
    halves = {name: tuple(length // 2 if size == length else None for size in first[name].shape) for name in first}
    return [v for v in known if _differs_beyond(first[v.name], second[v.name], valid.get(v.name) or halves[v.name])]


def _differs_beyond(first: np.ndarray, second: np.ndarray, valid: Sequence[int | None]) -> bool:
    if first.dtype.kind != "f":
        return False
    part = tuple(map(slice, valid))
    wide, other = first[part].astype(np.float64), second[part].astype(np.float64)
    is_same = (wide == other) | (np.isnan(wide) & np.isnan(other))
    with np.errstate(invalid="ignore"):  # infinities, and NaN, are not near anything else
        distance = np.nan_to_num(np.where(is_same, 0.0, np.abs(wide - other)), nan=np.inf)
    return bool(distance.max(initial=0.0) > APART * np.abs(wide[np.isfinite(wide)]).max(initial=1.0))


def largest_score(parts: Sequence[Lowered], folder: Path) -> float | None:
    """Return the largest magnitude of a score that a mask is added to, None where no mask is.

    A source of the fixed length and a prompt, both of random tokens, run through host and lowered models, to a full
    cache or for `MOST_STEPS`. The folder has `contract.json` and the tables.
    """
    opened, has_scores, largest = dict[str, IsolatedSession](), False, 0.0
    for part in parts:
        shapes = infer(part.model)
        scores = masked_scores(part.model, part.method, shapes)
        has_scores |= bool(scores)
        values = dict.fromkeys((*part.model.graph.outputs, *scores))
        ports = [(v.name, NewInput(v.name, shapes[v].dtype, shapes[v].sizes() or ())) for v in values]
        opened[part.method.name] = IsolatedSession(with_outputs(part.model, ports))
    if not has_scores:
        return None

    def run(method: Method, feed: Mapping[str, np.ndarray]) -> Arrays:
        nonlocal largest
        outputs = dict(opened[method.name].run(feed))
        for name in outputs.keys() - {port.name for port in method.outputs}:
            finite = np.abs(outputs[name][np.isfinite(outputs[name])].astype(np.float64))
            largest = max(largest, float(finite.max(initial=0.0)))
        return outputs

    host = Host(folder, run, unchecked=True)
    rng = np.random.default_rng(SEED)
    contract = host.contract
    steps = min(contract.sizes["positions"], MOST_STEPS)
    tokens = rng.integers(0, vocabulary_size(contract), max(contract.sizes["source"], steps)).tolist()
    given = [port for method in contract.methods for port in method.inputs if port.kind == "user"]
    user = {port.name: rng.normal(0, 1, port.shape).astype(port.dtype) for port in given}
    host.start([tokens[: contract.sizes["source"]]] * host.batch if contract.takes_text else (), user)
    for token in tokens[:steps]:
        host.step([token] * host.batch)
    return largest


def masked_scores(model: Model, method: Method, shapes: Shapes) -> tuple[Value, ...]:
    """Return the scores that masks are added to before a Softmax."""
    masks = {port.name for port in method.inputs if port.kind in MASKS}
    data = {value for value in model.graph.inputs if value.name not in masks}  # and what depends on these activations
    for node in model.graph.nodes:
        if any(value in data for value in node.inputs):
            data.update(node.results)
    masked = []
    for node in model.graph.nodes:
        weighed = node.input(0)
        added = weighed.producer if weighed is not None and node.is_op("Softmax") else None
        if added is None or not added.is_op("Add"):
            continue
        scores = [value for value in added.operands if value in data]
        if len(scores) == 1 and shapes[scores[0]].sizes() is not None:
            masked.append(scores[0])
    return tuple(dict.fromkeys(masked))
