"""Find the nodes that onnxruntime's own fusions look for, so that folding leaves them as the exporter wrote them.

onnxruntime puts one node in the place of many where it finds an exporter's pattern to the letter: a
LayerNormalization with its scale and bias (though they are all 1 and all 0, as before training), the mask of an
Attention in two steps, the positions of an EmbedLayerNormalization computed from the shape of the tokens. A rewrite
that is right but changes such a pattern costs the fusion, which is worth more. `onnxruntime.transformers.optimizer`
looks for the same and for some more. What onnxruntime computes itself as it loads a model, for it is the same at all
sizes, no fusion needs.

Source: onnxruntime/core/optimizer: layer_norm_fusion.cc, bias_gelu_fusion.cc, gemm_activation_fusion.cc,
attention_fusion.cc, attention_fusion_helper.h, embed_layer_norm_fusion.cc, matmul_transpose_fusion.cc;
onnxruntime/python/tools/transformers: fusion_embedlayer.py, fusion_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from graphkit.dtypes import inline_array
from graphkit.graph.view import Node, Scope, Value, chain_end, walk_breadth_first
from graphkit.ops.tensor import Dims

DimsOf = Callable[[Value], Dims | None]  # the dims of a value, None where its rank is not known
Finder = Callable[[Node, DimsOf], Iterator[Node]]
Step = tuple[int | str | None, ...]  # which input, None for whichever it is; then the operators that may give it
COMPUTED_RANK_SINCE = 14  # of Reshape; onnxruntime knows the rank of newer ones though nodes compute the shape
SHAPE_BOUNDS_SINCE = 15  # of Shape; onnxruntime finds the positions of older operator sets only
ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh")
RANK_KEPT = ("Add", "Conv", "Div", "Mul", "Relu")
MAX_CONE = 40  # nodes that compute positions or shapes, as MAX_NODES
AXES_AS_INPUT_SINCE = 13  # of Unsqueeze; onnxruntime looks for a causal attention of older operator sets only
# Limits of patterns, not of walks: what is larger is no such pattern, and no Softmax costs a walk of the whole graph.
MAX_NODES = 200  # of an attention, with those that compute its shapes
MASKS: tuple[tuple[Step, ...], ...] = (  # from a Softmax up to the mask's Unsqueezes
    ((0, "Add"), (None, "Mul"), (0, "Sub"), (1, "Cast")),
    ((0, "Add"), (None, "Mul"), (0, "Sub")),
    ((0, "Where"), (0, "Equal")),
    ((0, "Where"), (0, "Cast"), (0, "Equal")),
    ((0, "Add"), (0, "Where"), (0, "Equal")),
    ((0, "Add"), (0, "Where"), (0, "Cast"), (0, "Equal")),
)
EXPANDED_MASKS: tuple[tuple[Step, ...], ...] = (
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Sub")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Sub"), (1, "Cast")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Cast"), (0, "Sub")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Cast"), (0, "Sub"), (1, "Cast")),
)
ADDED_MASKS: tuple[tuple[Step, ...], ...] = (
    ((1, "Mul"), (0, "Sub"), (1, "Cast")),
    ((1, "Slice"), (0, "Mul"), (0, "Sub"), (1, "Cast")),
    ((1, "Slice"), (0, "Mul"), (0, "Sub")),
)
VALUES: tuple[tuple[Step, ...], ...] = (  # of heads, or of a cache
    ((1, "Transpose"), (0, "Reshape")),
    ((1, "Concat"), (1, "Transpose"), (0, "Reshape")),
)
DISTANCES: tuple[Step, ...] = ((0, "Slice"), (0, "Unsqueeze"), (0, "Transpose"), (0, "Gather"))
SIGNED: tuple[Step, ...] = ((1, "Add"), (1, "Where"))
LIMIT: tuple[Step, ...] = ((2, "Min"), (1, "ConstantOfShape"), (0, "Shape"))
PLUMBING = ("ConstantOfShape", "Min", "Shape", "Slice", "Unsqueeze")
LAST_DIM: tuple[Step, ...] = ((1, "Concat"), (1, "Unsqueeze"), (0, "Squeeze"), (0, "Slice"), (0, "Shape"))
FIRST_ROW: tuple[Step, ...] = ((1, "Unsqueeze"), (0, "Sub"), (0, "Squeeze"), (0, "Slice"), (0, "Shape"))
SPLIT: tuple[Step, ...] = (  # from the choice of scores up to the Split into q, k and v
    *((1, "Div"), (0, "MatMul")),
    *((0, "Transpose"), (0, "Reshape"), (0, "Split")),
)
PROJECTED: tuple[Step, ...] = ((0, "Reshape"), (0, "Gemm"), (0, "Reshape"))


def climb_inputs(node: Node, *path: Step) -> list[Node] | None:
    """Follow inputs to their producers: (index, operators...) for each step, None for whichever input it is."""
    producers: list[Node] = []
    for index, *operators in path:
        for value in node.inputs if index is None else node.inputs[int(index) : int(index) + 1]:
            maker = value.producer if value is not None else None
            if maker is not None and maker.operator in operators:
                producers.append(node := maker)
                break
        else:
            return None
    return producers


def climb_first(node: Node, paths: Sequence[Sequence[Step]], *ends: Step) -> list[Node] | None:
    """Follow the first of several paths that the inputs have, and these steps after it."""
    found = (climb_inputs(node, *path, *ends) for path in paths)
    return next((producers for producers in found if producers is not None), None)


def computed_from(node: Node, is_end: Callable[[Node, Value], bool], most: int) -> list[Node] | None:
    """Return a node and all that it is computed from, up to some inputs and constants.

    None where there are more nodes than `most`, one with a body, or one that reads anything else of another scope, or
    that no node gives.
    """

    def read(reader: Node) -> list[Value]:
        values = (value for value in reader.operands if not value.is_constant)
        return [value for value in values if not is_end(reader, value)]

    cone = walk_breadth_first([node], lambda reader: [value.producer for value in read(reader)])
    nodes = list(islice(cone, most + 1))
    outer = [value for node in nodes for value in read(node) if value.producer is None or value.scope is not node.scope]
    return nodes if not outer and len(nodes) <= most and not any(each.bodies for each in nodes) else None


def first_output_readers(node: Node) -> list[Node]:
    """Return the nodes that read a node's first output."""
    out = node.outputs[0] if node.outputs else None
    return [consumer for consumer, _ in out.consumers] if out is not None else []


def follow_only_reader(node: Node, operator: str) -> Node | None:
    """Return the only reader of a node, Shapes apart, where it is of this operator."""
    consumers = [reader for reader in first_output_readers(node) if not reader.is_op("Shape")]
    return consumers[0] if len(consumers) == 1 and consumers[0].is_op(operator) else None


def follow_all(node: Node, *operators: str) -> list[Node] | None:
    """Follow only readers of these operators, one after the other."""
    nodes = [node]
    for operator in operators:
        after = follow_only_reader(nodes[-1], operator)
        if after is None:
            return None
        nodes.append(after)
    return nodes[1:]


def readers_onwards(nodes: Sequence[Node], *operators: str) -> list[Node]:
    """Return the readers of nodes that are of these operators, and their readers likewise."""

    def after(node: Node) -> list[Node]:
        return [reader for reader in first_output_readers(node) if reader.is_op(*operators)]

    return list(walk_breadth_first((reader for node in nodes for reader in after(node)), after))


def find_biases(path: Sequence[Node] | None) -> Iterator[Node]:
    """Give the last node of a path where it adds a constant vector."""
    tensors = [value.constant for value in path[-1].operands] if path else []
    if path and any(tensor is not None and len(tensor.dims) == 1 for tensor in tensors):
        yield path[-1]


def bias_finder(*paths: Sequence[Step]) -> Finder:
    """Return the finder of the biases at the ends of paths."""

    def find(node: Node, _: DimsOf) -> Iterator[Node]:
        for path in paths:
            yield from find_biases(climb_inputs(node, *path))

    return find


def is_static(nodes: Sequence[Node], dims_of: DimsOf) -> bool:
    """Whether all Shapes among nodes are of tensors whose dims are numbers."""
    taken = [dims_of(value) for node in nodes if node.is_op("Shape") and (value := node.input(0)) is not None]
    return all(dims is not None and all(dim.constant is not None for dim in dims) for dims in taken)


def masked_attention(softmax: Node, _: DimsOf) -> Iterator[Node]:
    """Softmax(q k / sqrt(d) + (1 - mask) * -10000): the mask's two Unsqueezes, and the biases."""
    mask = climb_first(softmax, MASKS, (None, "Unsqueeze"), (0, "Unsqueeze"))
    context = follow_only_reader(softmax, "MatMul")
    if mask is None or context is None or climb_first(context, VALUES) is None:
        return
    yield from mask[-2:]
    scores = climb_inputs(mask[0], (None, "Div", "Mul"), (0, "MatMul")) or climb_inputs(mask[0], (None, "MatMul"))
    product = scores[-1] if scores else None
    for node, index in ((product, 0), (product, 1), (context, 1)):
        path_up = climb_inputs(node, (index, "Transpose"), (0, "Reshape"), (0, "Add")) if node is not None else None
        yield from find_biases(path_up)
    yield from find_biases(follow_all(softmax, "MatMul", "Transpose", "Reshape", "MatMul", "Add"))


def scaled_attention(softmax: Node, _: DimsOf) -> Iterator[Node]:
    """Softmax(q sqrt(c) * k sqrt(c) + mask), as PyTorch's fused attention is exported: the roots, the mask's nodes."""
    scores = climb_inputs(softmax, (0, "Add"), (None, "MatMul"))
    scales = [scores and climb_inputs(scores[-1], (index, "Mul"), (1, "Sqrt")) for index in (0, 1)]
    mask = climb_first(softmax, EXPANDED_MASKS, (None, "Expand"), (0, "Unsqueeze"), (0, "Unsqueeze"))
    if mask is None or not all(scales):
        return
    yield from (path[-1] for path in scales if path)
    yield from mask[-3:]


def causal_attention(softmax: Node, dims_of: DimsOf) -> Iterator[Node]:
    """GPT-2's attention as PyTorch 1.5 exported it: all from the normalized tensor to the projected result.

    Softmax(Where(table[:, :, n - l : n, :n], q k / sqrt(d), -10000) + mask), the shapes computed each time anew.
    """
    product = follow_only_reader(softmax, "MatMul")
    masked = climb_inputs(softmax, (0, "Add"))
    where = climb_inputs(masked[0] if masked else softmax, (0, "Where"))
    if where is None or product is None or softmax.scope.opset() >= AXES_AS_INPUT_SINCE:
        return
    table = climb_inputs(where[0], (0, "Cast"), (0, "Slice"), (0, "Slice"))
    split = climb_inputs(where[0], *SPLIT, *PROJECTED)
    joined = follow_all(product, "Transpose", "Reshape", "Reshape", "Gemm", "Reshape")
    triangle = table[-1].input(0) if table is not None else None
    if table is None or split is None or joined is None or triangle is None or not triangle.is_constant:
        return
    if not (climb_inputs(table[-1], *FIRST_ROW) and climb_inputs(split[-1], *LAST_DIM)):
        return
    if not climb_inputs(joined[2], *LAST_DIM):
        return
    keys, values = climb_inputs(split[1], (1, "Concat")), climb_inputs(product, (1, "Concat"), (0, "Gather"))
    caches = [*(keys or ()), *(values or ())]
    ends = {split[-1].input(0), masked[0].input(1) if masked else None, caches[-1].input(0) if caches else None}
    nodes = computed_from(joined[-1], lambda _, value: value in ends, MAX_NODES)
    if nodes is None or is_static(nodes, dims_of):
        return
    yield from nodes
    yield from readers_onwards(caches[:2], "Transpose", "Unsqueeze", "Concat")


def relative_attention(softmax: Node, dims_of: DimsOf) -> Iterator[Node]:
    """T5's Softmax(q k + (bias of distances + mask)): the sources of the mask, the largest distance and the batch dim.

    Only `onnxruntime.transformers.optimizer` looks for it.
    """
    scores = climb_inputs(softmax, (0, "Add")) or climb_inputs(softmax, (0, "Cast"), (0, "Add"))
    query = scores and climb_inputs(scores[-1], (0, "MatMul"), (0, "Transpose"), (0, "Reshape"), (0, "MatMul"))
    added = scores and climb_inputs(scores[-1], (1, "Add"))
    joined = follow_all(softmax, "MatMul", "Transpose", "Reshape")
    sizes = joined and climb_inputs(joined[-1], (1, "Concat"), (0, "Unsqueeze"), (0, "Gather"), (0, "Shape"))
    if not query or not added or not joined or not sizes or sizes[-1].input(0) is not query[-1].input(0):
        return
    mask = climb_first(added[0], ADDED_MASKS, (0, "Unsqueeze"), (0, "Unsqueeze"))
    distances = climb_inputs(added[0], *DISTANCES, (1, "Where"), *LIMIT)
    buckets = distances or climb_inputs(added[0], *DISTANCES, *SIGNED, *LIMIT)
    if mask is None or buckets is None or is_static(sizes, dims_of):
        return
    yield from (node for node in (*mask, *buckets) if node.is_op(*PLUMBING))
    yield from (joined[-1], *sizes)


@lru_cache(maxsize=16)  # one editor after the other looks at a model that none has changed
def fused_nodes(scope: Scope, dims_of: DimsOf) -> Mapping[Node, str]:
    """Return the nodes of a graph, without its bodies, that fusions of onnxruntime need, and the fused operators."""
    operators: dict[Node, str] = {}
    for node in scope.nodes:
        for operator, finder in FINDERS.get(node.op_type, ()) if not node.domain else ():
            for kept in finder(node, dims_of):
                operators.setdefault(kept, operator)
    return operators


def transposes_into_product(perm: Sequence[int]) -> bool:
    """Whether a FusedMatMul can read a tensor without this Transpose: its batch dims keep their order."""
    rank = len(perm)
    if rank < 2 or rank - 1 not in perm[-2:]:
        return False
    return rank == 2 or (perm[0] in (0, 1) and all(perm[i] + 1 == perm[i + 1] for i in range(rank - 3)))


def spoils_product(first: Sequence[int] | None, second: Sequence[int] | None) -> bool:
    """Whether a FusedMatMul can read a tensor without the second of two Transposes, and without the two as one not."""
    if first is None or second is None or len(first) != len(second):
        return False
    return transposes_into_product(second) and not transposes_into_product([first[axis] for axis in second])


# One finder a pattern: the nodes that must stay, none where it is not the pattern.


def _keep_normalization(root: Node, _: DimsOf) -> Iterator[Node]:
    """A tensor / Sqrt(ReduceMean(its squares) + epsilon) * scale + bias: the scale and the bias."""
    if climb_inputs(root, (0, "Add"), (None, "ReduceMean"), (0, "Pow", "Mul")) is None:
        return
    divided = follow_only_reader(root, "Div") or follow_only_reader(root, "Reciprocal")
    dividend = divided.input(0) if divided is not None else None
    if divided is not None and (divided.is_op("Reciprocal") or (dividend is not None and dividend.is_constant)):
        divided = follow_only_reader(divided, "Mul")
    if divided is None:
        return
    scaled = follow_only_reader(follow_only_reader(divided, "Cast") or divided, "Mul")
    if scaled is None:
        return
    yield scaled
    shifted = follow_only_reader(scaled, "Add")
    if shifted is not None:
        yield shifted


def _normalized_transpose(root: Node, dims_of: DimsOf) -> Iterator[Node]:
    """The same behind a Transpose of a Reshape: the Reshape and its shape, which hide the rank from onnxruntime.

    Where it knows the rank, it first moves the Transpose into the normalization, and then finds none.
    """
    path = climb_inputs(root, (0, "Add"), (None, "ReduceMean"), (0, "Pow"), (0, "Sub"), (0, "Transpose"))
    if path is None or root.scope.opset() >= COMPUTED_RANK_SINCE:
        return

    def before(node: Node) -> Node | None:
        kept = climb_inputs(node, (0, *RANK_KEPT))
        return kept[0] if kept else None

    reshapes = climb_inputs(chain_end(path[-1], before), (0, "Reshape"))
    reshape = reshapes[0] if reshapes else None
    sizes = reshape.input(1) if reshape is not None else None
    computed = _up_to_shapes(sizes.producer) if sizes is not None and sizes.producer is not None else None
    if reshape is not None and computed is not None and not is_static(computed, dims_of):
        yield from (reshape, *computed)


def _biased_product(activation: Node, dims_of: DimsOf) -> Iterator[Node]:
    """Relu(x w + bias) of matrices: the bias."""
    path = climb_inputs(activation, (0, "Add"), (None, "MatMul"))
    if path is not None and (data := path[1].input(0)) is not None and len(dims_of(data) or ()) == 2:
        yield from find_biases(path[:1])


def _keep_embedding(gather: Node, _: DimsOf) -> Iterator[Node]:
    """Gather(table, positions), added to others and normalized: how the positions are computed."""
    sums = [reader for reader in first_output_readers(gather) if reader.is_op("Add")]
    after = [each for total in sums for each in first_output_readers(total)]  # of it, or of it and one tensor more
    after += [each for total in after if total.is_op("Add") for each in first_output_readers(total)]
    if not any(reader.is_op("ReduceMean", "LayerNormalization") for reader in after):
        return
    sliced = climb_inputs(gather, (1, "Slice"), (2, "Unsqueeze"), (0, "Gather"), (0, "Shape"))
    if sliced is not None:
        yield from sliced
        return
    counted = climb_inputs(gather, (1, "Expand"), (0, "Unsqueeze"), (0, "Range", "Cast", "Squeeze"))
    if counted is None or gather.scope.opset() >= SHAPE_BOUNDS_SINCE:
        return
    if not counted[-1].is_op("Range"):
        ends: tuple[Step, ...] = ((0, "Transpose"), (0, "NonZero"), (0, "ConstantOfShape"))
        if climb_inputs(counted[-1], *(((0, "Squeeze"),) if counted[-1].is_op("Cast") else ()), *ends) is None:
            return
    yield from _up_to_shapes(counted[0]) or ()


def _up_to_shapes(node: Node) -> list[Node] | None:
    """Return a node and all that it is computed from, up to Shapes of tokens; None where that is something else."""
    return computed_from(node, lambda reader, _: reader.is_op("Shape"), MAX_CONE)


def _named_transpose(identity: Node, _: DimsOf) -> Iterator[Node]:
    """An Identity that gives a Transpose, which a MatMul reads, as an output: the Transpose must not be one."""
    path = climb_inputs(identity, (0, "Transpose"))
    if path is not None and any(reader.is_op("MatMul") for reader in first_output_readers(path[0])):
        yield identity


def _between_transposes(reshape: Node, _: DimsOf) -> Iterator[Node]:
    """MatMul(q, Transpose(Reshape(Transpose(k)))), the Reshape copying all dims: onnxruntime merges the two without."""
    before, after = climb_inputs(reshape, (0, "Transpose")), follow_only_reader(reshape, "Transpose")
    shape = reshape.input(1)
    if before is None or after is None or shape is None:
        return
    if not all(reader.is_op("MatMul") for reader in first_output_readers(after)):
        return
    array = inline_array(shape.constant)  # of zeros, which copy
    if spoils_product(before[0].attr("perm", tuple), after.attr("perm", tuple)) and array is not None:
        yield from () if array.any() else (reshape,)


FAST_GELU = bias_finder(  # Tanh(c * (v + d * v^3)), v = x + bias
    ((0, "Mul"), (None, "Add"), (None, "Add")), ((0, "Mul"), (None, "Mul"), (None, "Add"))
)
ATTENTIONS = (masked_attention, scaled_attention, causal_attention, relative_attention)
FINDERS: dict[str, tuple[tuple[str, Finder], ...]] = {
    "Sqrt": (("LayerNormalization", _keep_normalization), ("LayerNormalization", _normalized_transpose)),
    "Erf": (("BiasGelu", bias_finder(((0, "Div", "Mul"), (None, "Add")))),),  # Erf((x + bias) / sqrt(2))
    "Gelu": (("BiasGelu", bias_finder(((0, "Add"),))),),
    "Tanh": (("FastGelu", FAST_GELU), ("FusedGemm", _biased_product)),
    "Softmax": tuple(("Attention", finder) for finder in ATTENTIONS),
    "Gather": (("EmbedLayerNormalization", _keep_embedding),),
    "Identity": (("FusedMatMul", _named_transpose),),
    "Reshape": (("FusedMatMul", _between_transposes),),
    **{name: (("FusedGemm", _biased_product),) for name in ACTIVATIONS if name != "Tanh"},
}
