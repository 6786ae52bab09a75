"""Architecture: a model's role in a pipeline and its sizes, derived from names and shapes; and its control flow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from msgspec import Struct

from graphkit.analysis.findings import Finding, Judged
from graphkit.analysis.kv_cache import KVCache, kv_cache
from graphkit.dtypes import inline_array
from graphkit.graph.cache_entries import split_name as words
from graphkit.graph.names import family_labels, module_path
from graphkit.graph.operator_traits import PRESERVING, joined_parts, requested_shape
from graphkit.graph.roles import count_captured_values, trace_condition, zero_length_outputs
from graphkit.graph.view import Node, Value, all_nodes, find_nodes, follow_chain, unwrap_value
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, NodeMark, Prose, table
from graphkit.render.result import Result

QUERY = re.compile(r"(^|[./_])(q_proj|q_lin|query|to_q|wq|q)([./]|$)", re.IGNORECASE)
FUSED = re.compile(r"(^|[./_])(c_attn|qkv|qkv_proj|wqkv|query_key_value|in_proj|in_proj_weight)([./]|$)", re.IGNORECASE)
LAYER = re.compile(r"^(.*?)(?:^|[./])(layers?|blocks?|h|encoder_layers|decoder_layers)[./](\d{1,9})[./]")
WEIGHTED = {"MatMul", "Gemm", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
WEIGHTED |= {"QLinearMatMul", "MatMulNBits", "MatMulBnb4", "FusedMatMul", "QGemm"}
# operators that may stand between a projection and what splits it into heads
AFTER_PROJECTION = {"Add", "Split", "Mul", "Div", "Cast", "Identity", "QuantizeLinear", "DequantizeLinear"}
WRAPPING = {"Cast", "com.microsoft.DequantizeLinear", "DequantizeLinear", "Identity", "Transpose"}  # of a weight
OFFSETTING = PRESERVING | {"Add", "Sub", "Cast"}  # of positions
MASK_COMPARISONS = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
DESCRIBED = {
    "vision": "vision model",
    "decoder-only": "decoder-only model",
    "recurrent decoder": "step of a recurrent decoder",
    "recurrent": "step of a recurrent model",
}
DECODERS = ("first-step decoder", "decoder with past", "merged decoder", "decoder-only")
ENCODERS = ("encoder", "vision")
JOINED = {"decoder", "dec", "predictor", "prediction", "prednet"}  # words in the inputs of a transducer's joiner
# Operators of ONNX Runtime that run whole decoders as attributes.
SEARCHES = {"BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}


@dataclass(frozen=True)
class Architecture(Result):
    """The role and sizes of a model.

    Attributes:
        role: "encoder", "first-step decoder", "decoder with past", "merged decoder", "decoder-only",
            "recurrent decoder", "recurrent", "vision" or "other".
        reason: The evidence for the role.
        reads_encoder: Whether it is a decoder that reads the output of an encoder.
        layers: Layers; of the decoder where there is a KV cache.

    A size is None if names and shapes do not reveal it.
    """

    title: ClassVar[str] = "Architecture"
    role: str
    reason: str
    reads_encoder: bool
    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    vocabulary: int | None

    @property
    def described(self) -> str:
        """The role as a stranger understands it: `merged decoder of an encoder-decoder`."""
        if self.role == "other":
            return f"model of no usual role ({self.reason})"
        words = DESCRIBED.get(self.role, self.role)
        return f"{words} of an encoder-decoder" if self.reads_encoder else words

    def blocks(self) -> Iterator[Block]:
        yield Prose(f"Role: {self.role} ({self.reason}).")
        names = ("layers", "attention heads", "KV heads", "head dim", "vocabulary")
        sizes = (self.layers, self.heads, self.kv_heads, self.head_dim, self.vocabulary)
        if known := [row for row in zip(names, sizes, strict=True) if row[1] is not None]:
            yield table("Size | Value:number", known)


def architecture(model: ModelLike) -> Architecture:
    """Return a model's role with its evidence, and its sizes, None for each that names and shapes do not reveal.

    Example:
        >>> graphkit.architecture(graphkit.load("example:merged-decoder")).role
        'merged decoder'
    """
    model = as_model(model)
    cache = kv_cache(model)
    role, reason = _model_role(model, cache)
    heads, kv_heads, head_dim = _count_heads(model, cache)
    return Architecture(
        role=role,
        reason=reason,
        reads_encoder="decoder" in role and role not in ("decoder-only", "recurrent decoder") and _reads_encoder(model),
        layers=cache.layers if cache.layers is not None else _count_layers(model),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=model.roles.vocabulary,
    )


def _model_role(model: Model, cache: KVCache) -> tuple[str, str]:
    search = next((node for node in model.graph.nodes if node.domain and "decoder" in node.bodies), None)
    if search is not None:
        return "other", f"it runs a whole search: {search.operator} with a decoder inside"
    roles, crosses = model.roles, _reads_encoder(model)
    tokens, logits = bool(roles.all("tokens", "embeddings", "encoder tokens")), roles.logits is not None
    if roles.merged:
        return "merged decoder", "it has an If on a boolean input, and one branch reads the past"
    if roles.pasts:
        if crosses:
            return "decoder with past", "it takes a KV cache and what an encoder made"
        state = ", recurrent state," if roles.states else ","
        return "decoder-only", f"it takes a KV cache{state} and nothing from an encoder"
    if roles.states and not roles.all("image") and not (tokens and cache.feeds):  # a static cache counts its tokens
        if tokens:
            return "recurrent decoder", "it takes tokens and recurrent state, and no KV cache"
        return "recurrent", "it takes recurrent state, which each step replaces"
    if cache.feeds or (crosses and tokens and logits):
        return "first-step decoder", "it gives a KV cache and takes none" if cache.feeds else "it reads an encoder"
    images = roles.all("image")
    if images and not tokens:
        return "vision", f"its input {images[0].name} is an image"
    if images:
        return "other", "it takes an image and tokens"
    if tokens and logits and _is_causal(model):
        return "decoder-only", "it maps tokens to logits under a causal mask, without a KV cache"
    if any(find_nodes(model.scopes, "LSTM", "GRU", "RNN")):
        return "other", "it is recurrent"
    joined = [value.name for value in model.graph.outputs if JOINED.intersection(words(value.name))]
    if tokens and joined:  # which the joiner of a transducer reads
        return "other", f"it takes tokens and gives '{joined[0]}', as the decoder of a transducer does"
    if tokens or roles.all("audio"):
        return "encoder", "it takes tokens or features, and has no KV cache and no causal mask"
    return "other", "its inputs and outputs are not tokens, images or a KV cache"


def _reads_encoder(model: Model) -> bool:
    roles = model.roles
    if roles.all("encoder state") or any(map(roles.is_cross, roles.cache)):
        return True
    return bool(roles.all("encoder mask")) and not roles.all("encoder tokens")


def _is_causal(model: Model) -> bool:
    """Whether a graph has a triangle or a comparison of positions, which a causal mask is made with."""
    for node in all_nodes(model.scopes):
        if node.is_op("Trilu") or node.op_type in ("GroupQueryAttention", "SparseAttention"):
            return True
        if any(node.attr(name, 0) for name in ("is_causal", "unidirectional")):
            return True
        if node.is_op(*MASK_COMPARISONS) and len(node.operands) == 2:  # of two Ranges, perhaps reshaped and offset
            makers = [unwrap_value(value, OFFSETTING).producer for value in node.operands]
            if all(maker is not None and maker.is_op("Range") for maker in makers):
                return True
    return False


def _count_layers(model: Model) -> int | None:
    """Return the longest run of numbered layers among the modules, those with attention before all others."""
    layers: dict[bool, dict[str, set[int]]] = {True: {}, False: {}}
    parts = (module_path(node).rpartition("/") for node in all_nodes(model.scopes))
    for path in dict.fromkeys(module + slash if slash else name for module, slash, name in parts):
        if (match := LAYER.match(path)) is not None:
            has_attention = QUERY.search(path) or FUSED.search(path) or "attn" in path or "attention" in path.lower()
            layers[bool(has_attention)].setdefault(match[1] + match[2], set()).add(int(match[3]))
    return max((len(numbers) for numbers in (layers[True] or layers[False]).values()), default=None)


def _count_heads(model: Model, cache: KVCache) -> tuple[int | None, int | None, int | None]:
    kv_heads, head_dim = cache.kv_heads, cache.head_dim
    votes: Counter[tuple[int | None, int | None]] = Counter()
    for node in all_nodes(model.scopes):
        for attribute in ("num_heads", "q_num_heads") if node.attributes else ():
            if attribute in node.attributes and (heads := node.attr(attribute, 0)) is not None and heads > 0:
                votes[heads, None] += 1
        if node.op_type in WEIGHTED and (vote := _projection_heads(node, kv_heads, head_dim)) is not None:
            votes[vote] += 1
    if not votes:
        return None, kv_heads, head_dim
    (most, size), _ = votes.most_common(1)[0]
    return most, kv_heads, head_dim if head_dim is not None else size


def _projection_heads(node: Node, kv_heads: int | None, head_dim: int | None) -> tuple[int | None, int | None] | None:
    """Return (query heads, head dim) as one projection shows them."""
    direct = node.input(1)
    weight = unwrap_value(direct, WRAPPING) if direct is not None else None
    parts = module_path(node), weight.name if weight is not None else ""
    query = any(QUERY.search(part) for part in parts)
    fused = any(FUSED.search(part) for part in parts)
    if not (query or fused):
        return None
    tensor, width = weight.constant if weight is not None else None, None
    if node.op_type in ("MatMulNBits", "MatMulBnb4"):
        width = node.attr("N", int)
    elif tensor is not None and len(tensor.dims) == 2:
        is_turned = direct is not None and direct.producer is not None and direct.producer.is_op("Transpose")
        is_transposed = bool(node.is_op("Gemm") and node.attr("transB", 0)) != is_turned
        width = int(tensor.dims[0 if is_transposed else 1])
    if head_dim and width and not width % head_dim:
        heads = width // head_dim - (2 * (kv_heads or 0) if fused and not query else 0)
        if fused and not query and kv_heads is None:
            return None
        return (heads, head_dim) if heads > 0 else None

    def after_bias(value: Value) -> Value | None:
        user = next((user for user, _ in value.consumers if user.op_type in AFTER_PROJECTION), None)
        return next(iter(user.outputs), None) if user is not None else None

    for value in follow_chain(next(iter(node.results), None), after_bias):
        shapes = (requested_shape(user) for user, index in value.consumers if index == 0)
        if (shape := next(filter(None, shapes), None)) is not None:
            return _last_two(_shape_elements(shape), width if query or width is None else width // 3)
    return None


def _last_two(elements: list[int | None], width: int | None) -> tuple[int | None, int | None] | None:
    if len(elements) < 3:
        return None
    heads, size = elements[-2:]
    if heads in (None, -1, 0) and size and size > 0 and width:
        heads = width // size
    if size in (None, -1, 0) and heads and heads > 0 and width:
        size = width // heads
    if not heads or not size or heads <= 0 or size <= 0:
        return None
    return (heads, size) if width is None or heads * size == width else None


def _shape_elements(value: Value | None, depth: int = 2) -> list[int | None]:
    """Return the elements of a shape as far as constants show them; an empty list for another producer."""
    if value is None:
        return []
    if (tensor := value.constant) is not None:
        array = inline_array(tensor) if len(tensor.dims) < 2 and tensor.data_type in (6, 7) else None
        return [] if array is None else [int(number) for number in array.reshape(-1)]
    producer = value.producer
    if producer is not None and depth:
        parts = [_shape_elements(part, depth - 1) or [None] for part in joined_parts(producer)]
        return [element for part in parts for element in part]
    return []


# Control flow: If, Loop, Scan and search operators, the values they capture, and the conditions of Ifs.


class Branch(Struct, frozen=True):
    """A body of a control-flow node."""

    name: str  # the attribute: `then_branch`, `body`, `decoder`
    nodes: int  # nodes in it, those of nested bodies included
    captures: tuple[str, ...]  # names of the outer values that it reads: activations and inputs
    captured_constants: int  # how many outer initializers and constants it reads
    past_captures: int  # how many of `captures` are past inputs of a KV cache
    zero_length: int  # how many of its outputs are constants without elements


class ControlNode(Struct, frozen=True):
    """A node with bodies."""

    path: str  # the node, with the scopes around it
    op: str  # the operator, with its domain where that is not the default
    depth: int  # how many bodies it is nested in
    condition: str  # the condition of an If, in words; "" for other operators
    branches: tuple[Branch, ...]
    role: str  # "merged decoder", "search with a decoder inside", or ""


class Merged(Struct, frozen=True):
    """A merged decoder."""

    path: str  # the If
    condition: str  # the boolean input that decides
    first_branch: str  # the branch of the first step, and the one that reads the past
    cache_branch: str
    cache_when: bool  # the value of `condition` that runs the cache branch
    zero_length: tuple[str, ...]  # outputs that the cache branch gives without elements


@dataclass(frozen=True)
class ControlFlow(Judged):
    """The control flow of a model, in all scopes."""

    title: ClassVar[str] = "Control flow"
    nodes: tuple[ControlNode, ...]
    merged: tuple[Merged, ...]

    def found(self) -> tuple[Finding, ...]:
        return tuple(Finding("merged-if", f"'{each.path}'", _both_steps(each), each.condition) for each in self.merged)

    def marks(self) -> Iterator[NodeMark]:
        return (NodeMark("Findings", "fault", "fault", merged.path, _both_steps(merged)) for merged in self.merged)

    def in_short(self) -> str:
        return ", ".join(f"{count} {op}" for op, count in Counter(node.op for node in self.nodes).items())

    def blocks(self) -> Iterator[Block]:
        if not self.nodes:
            yield Prose("None: no node of this model has a body.")
            return
        rows: list[tuple[str | int | None, ...]] = []
        for node in self.nodes:
            about: tuple[str | None, ...] = node.path, ", ".join(filter(None, (node.op, node.role, node.condition)))
            for each in node.branches:
                counts = each.nodes, len(each.captures), each.past_captures, each.captured_constants
                rows.append((*about, each.name, *counts))
                about = None, None  # which the first row of a node tells
        headings = "Node:code | What:note | Branch | Nodes:number | Captures:number | Past:number | Constants:number"
        yield table(headings, rows)
        for merged in self.merged:
            yield from _explain_merged(merged)


def _explain_merged(merged: Merged) -> Iterator[Block]:
    yield Prose(_both_steps(merged))
    if merged.zero_length:
        label = family_labels(merged.zero_length)
        yield Prose(
            f"{merged.cache_branch} gives {label} as zero-length constants: carry the encoder KV from step 1; "
            "do not feed these back.",
            "warning",
        )
    yield Prose(
        "Running a merged decoder can cost speed, because an If hides its branches from the runtime's optimizers, and "
        f"{'keeps this trap open' if merged.zero_length else 'some runtimes refuse it'}: "
        "`graphkit split-merged` makes two plain models of it."
    )


def _both_steps(merged: Merged) -> str:
    when, first = str(merged.cache_when).lower(), str(not merged.cache_when).lower()
    return (
        f"Merged decoder: '{merged.path}' runs the first step in {merged.first_branch} ({merged.condition} = {first}) "
        f"and later steps, with the cache, in {merged.cache_branch} ({merged.condition} = {when})."
    )


def control_flow(model: ModelLike) -> ControlFlow:
    """Return the nodes with bodies of a model, and the merged decoders among them.

    Example:
        >>> graphkit.control_flow(graphkit.load("example:merged-decoder")).merged[0].condition
        'use_cache_branch'
    """
    model = as_model(model)
    merged = {decoder.node: decoder for decoder in model.roles.merged}
    past = model.roles.pasts
    nodes = []
    for node in (node for node in all_nodes(model.scopes) if node.bodies):
        is_search = node.domain == "com.microsoft" and (node.op_type in SEARCHES or "decoder" in node.bodies)
        role = "merged decoder" if node in merged else "search with a decoder inside" if is_search else ""
        branches = []
        for name, body in node.bodies.items():
            outer = count_captured_values(body)
            live = tuple(value for value in outer if not value.is_constant)
            size, names = sum(len(scope.nodes) for scope in body.walk()), tuple(value.name for value in live)
            pasts, empty = len(past.keys() & live), sum(1 for _ in zero_length_outputs(body))
            branches.append(Branch(name, size, names, len(outer) - len(live), pasts, empty))
        about = node.path, node.operator, node.scope.depth, _condition_text(node)
        nodes.append(ControlNode(*about, tuple(branches), role))
    decoders = (
        Merged(
            *(node.path, decoder.condition.input.name, decoder.first_branch, decoder.cache_branch, decoder.cache_when),
            tuple(value.name for value in decoder.zero_length),
        )
        for node, decoder in merged.items()
    )
    return ControlFlow(tuple(nodes), tuple(decoders))


def _condition_text(node: Node) -> str:
    if not node.is_op("If"):
        return ""
    condition = trace_condition(node)
    if condition is not None:
        return f"on {'not ' if condition.negated else ''}input {condition.input.name}"
    value = node.input(0)
    if value is None:
        return "without a condition"
    return f"on {value.producer.operator} ({value.name})" if value.producer else f"on {value.name}"
