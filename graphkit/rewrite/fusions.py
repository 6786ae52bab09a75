"""Find the nodes that onnxruntime's own fusions look for, so that folding leaves them as the exporter wrote them.

onnxruntime puts one node in the place of many where it finds an exporter's pattern to the letter: a
LayerNormalization with its scale and bias (though they are all 1 and all 0, as before training), the mask of an
Attention in two steps, the positions of an EmbedLayerNormalization computed from the shape of the tokens. A rewrite
that is right but changes such a pattern costs the fusion, which is worth more. `onnxruntime.transformers.optimizer`
looks for the same and for some more.

Source: onnxruntime/core/optimizer: layer_norm_fusion.cc, bias_gelu_fusion.cc, gemm_activation_fusion.cc,
attention_fusion_helper.h, embed_layer_norm_fusion.cc, matmul_transpose_fusion.cc; onnxruntime/python/tools/
transformers: fusion_attention.py, fusion_embedlayer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphkit.graph.view import Node, Scope, Value
from graphkit.io.tensors import inline_array

__all__ = ["fused_nodes", "spoils_product", "transposes_into_product"]

Rank = Callable[[Value], int | None]

SHAPE_BOUNDS_SINCE = 15  # of Shape; onnxruntime finds the positions of older operator sets only
ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh")
MAX_CONE = 40  # nodes that compute positions
MASKS: tuple[tuple[tuple[int | str | None, ...], ...], ...] = (  # from a Softmax up to the mask's Unsqueezes
    ((0, "Add"), (None, "Mul"), (0, "Sub"), (1, "Cast")),
    ((0, "Add"), (None, "Mul"), (0, "Sub")),
    ((0, "Where"), (0, "Equal")),
    ((0, "Where"), (0, "Cast"), (0, "Equal")),
    ((0, "Add"), (0, "Where"), (0, "Equal")),
    ((0, "Add"), (0, "Where"), (0, "Cast"), (0, "Equal")),
)
EXPANDED_MASKS: tuple[tuple[tuple[int | str | None, ...], ...], ...] = (
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Sub")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Sub"), (1, "Cast")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Cast"), (0, "Sub")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Cast"), (0, "Sub"), (1, "Cast")),
)


def fused_nodes(scope: Scope, rank: Rank) -> dict[Node, str]:
    """Return the nodes of a graph that a fusion of onnxruntime needs as they are, and the operator that it makes.

    Args:
        scope: The graph, without the bodies in it.
        rank: Gives the rank of a value, None where that is not known.
    """
    found: dict[Node, str] = {}
    for node in scope.nodes:
        for operator, finder in FINDERS.get(node.op_type, ()) if not node.domain else ():
            for kept in finder(node, rank):
                found.setdefault(kept, operator)
    return found


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


def _normalization(root: Node, _: Rank) -> Iterator[Node]:
    """A tensor / Sqrt(ReduceMean(its squares) + epsilon) * scale + bias: the scale and the bias."""
    if climb(root, (0, "Add"), (None, "ReduceMean"), (0, "Pow", "Mul")) is None:
        return
    divided = follow(root, "Div") or follow(root, "Reciprocal")
    if divided is not None and _is_inverse(divided):
        divided = follow(divided, "Mul")
    if divided is None:
        return
    scaled = follow(follow(divided, "Cast") or divided, "Mul")
    if scaled is None:
        return
    yield scaled
    shifted = follow(scaled, "Add")
    if shifted is not None:
        yield shifted


def _is_inverse(node: Node) -> bool:
    """Whether it is 1 / x, written one way or the other."""
    return node.is_op("Reciprocal") or ((one := node.input(0)) is not None and one.is_constant)


def _biased_gelu(erf: Node, _: Rank) -> Iterator[Node]:
    """Erf((x + bias) / sqrt(2)): the bias."""
    yield from _biases(climb(erf, (0, "Div", "Mul"), (None, "Add")))


def _biased_fast_gelu(tanh: Node, _: Rank) -> Iterator[Node]:
    """Tanh(c * (v + d * v^3)), v = x + bias: the bias."""
    for product in ((0, "Mul"), (None, "Add"), (None, "Add")), ((0, "Mul"), (None, "Mul"), (None, "Add")):
        yield from _biases(climb(tanh, *product))


def _biased_operator(gelu: Node, _: Rank) -> Iterator[Node]:
    yield from _biases(climb(gelu, (0, "Add")))


def _biased_product(activation: Node, rank: Rank) -> Iterator[Node]:
    """Relu(x w + bias) of matrices: the bias."""
    path = climb(activation, (0, "Add"), (None, "MatMul"))
    if path is not None and (left := path[1].input(0)) is not None and rank(left) == 2:
        yield from _biases(path[:1])


def _biases(path: Sequence[Node] | None) -> Iterator[Node]:
    """Give the last node of a path where it adds a constant vector."""
    if path and any(value is not None and is_vector(value) for value in path[-1].inputs):
        yield path[-1]


def _attention(softmax: Node, _: Rank) -> Iterator[Node]:
    """Softmax(q k / sqrt(d) + (1 - mask) * -10000): the mask's two Unsqueezes, and the biases."""
    found = (climb(softmax, *path, (None, "Unsqueeze"), (0, "Unsqueeze")) for path in MASKS)
    mask = next((path for path in found if path is not None), None)
    if mask is None:
        return
    yield from mask[-2:]
    scores = climb(mask[0], (None, "Div", "Mul"), (0, "MatMul")) or climb(mask[0], (None, "MatMul"))
    for product, index in ((scores and scores[-1], 0), (scores and scores[-1], 1), (follow(softmax, "MatMul"), 1)):
        path_up = climb(product, (index, "Transpose"), (0, "Reshape"), (0, "Add")) if product else None
        yield from _biases(path_up)
    yield from _biases(follow_all(softmax, "MatMul", "Transpose", "Reshape", "MatMul", "Add"))


def _scaled_attention(softmax: Node, _: Rank) -> Iterator[Node]:
    """Softmax(q sqrt(c) * k sqrt(c) + mask), as PyTorch's fused attention is exported: the roots, the mask's nodes."""
    scores = climb(softmax, (0, "Add"), (None, "MatMul"))
    scales = [scores and climb(scores[-1], (index, "Mul"), (1, "Sqrt")) for index in (0, 1)]
    found = (climb(softmax, *path, (None, "Expand"), (0, "Unsqueeze"), (0, "Unsqueeze")) for path in EXPANDED_MASKS)
    mask = next((path for path in found if path is not None), None)
    if mask is None or not all(scales):
        return
    yield from (path[-1] for path in scales if path)
    yield from mask[-3:]


def _embedding(gather: Node, _: Rank) -> Iterator[Node]:
    """Gather(table, positions), added to others and normalized: how the positions are computed."""
    if not any(_is_normalized(reader) for reader in readers(gather) if reader.is_op("Add")):
        return
    sliced = climb(gather, (1, "Slice"), (2, "Unsqueeze"), (0, "Gather"), (0, "Shape"))
    if sliced is not None:
        yield from sliced
        return
    counted = climb(gather, (1, "Expand"), (0, "Unsqueeze"), (0, "Range", "Cast", "Squeeze"))
    if counted is None or gather.scope.opset() >= SHAPE_BOUNDS_SINCE:
        return
    if not counted[-1].is_op("Range"):
        squeezed = climb(counted[-1], (0, "Squeeze")) if counted[-1].is_op("Cast") else [counted[-1]]
        if squeezed is None or climb(squeezed[-1], (0, "Transpose"), (0, "NonZero"), (0, "ConstantOfShape")) is None:
            return
    yield from _up_to_shapes(counted[0]) or ()


def _is_normalized(add: Node) -> bool:
    """Whether a sum, or one of it and one tensor more, is normalized."""
    after = [*readers(add), *(reader for one in readers(add) if one.is_op("Add") for reader in readers(one))]
    return any(reader.is_op("ReduceMean", "LayerNormalization") for reader in after)


def _up_to_shapes(node: Node) -> list[Node] | None:
    """Return a node and all that it is computed from, up to Shapes of tokens; None where that is something else."""
    found: dict[Node, None] = {}
    pending = [node]
    while pending:
        node = pending.pop()
        if node in found or node.is_op("Constant"):
            continue
        found[node] = None
        if node.is_op("Shape"):
            continue
        if node.bodies or len(found) > MAX_CONE:
            return None
        for value in node.inputs:
            if value is not None and not value.is_constant:
                if value.producer is None or value.scope is not node.scope:
                    return None
                pending.append(value.producer)
    return list(found)


def _named_transpose(identity: Node, _: Rank) -> Iterator[Node]:
    """An Identity that gives a Transpose, which a MatMul reads, as an output: the Transpose must not be one."""
    path = climb(identity, (0, "Transpose"))
    if path is not None and any(reader.is_op("MatMul") for reader in readers(path[0])):
        yield identity


def _between_transposes(reshape: Node, _: Rank) -> Iterator[Node]:
    """MatMul(q, Transpose(Reshape(Transpose(k)))), the Reshape copying all dims: onnxruntime merges the two without."""
    before, after = climb(reshape, (0, "Transpose")), follow(reshape, "Transpose")
    shape = reshape.input(1)
    if before is None or after is None or shape is None or not all(reader.is_op("MatMul") for reader in readers(after)):
        return
    if spoils_product(before[0].attr("perm", tuple), after.attr("perm", tuple)) and _is_zero(shape):
        yield reshape


def _is_zero(value: Value) -> bool:
    """Whether a value is a constant of zeros."""
    array = inline_array(value.constant)
    return array is not None and not array.any()


Finder = Callable[[Node, Rank], Iterator[Node]]
FINDERS: dict[str, tuple[tuple[str, Finder], ...]] = {
    "Sqrt": (("LayerNormalization", _normalization),),
    "Erf": (("BiasGelu", _biased_gelu),),
    "Gelu": (("BiasGelu", _biased_operator),),
    "Tanh": (("FastGelu", _biased_fast_gelu), ("FusedGemm", _biased_product)),
    "Softmax": (("Attention", _attention), ("Attention", _scaled_attention)),
    "Gather": (("EmbedLayerNormalization", _embedding),),
    "Identity": (("FusedMatMul", _named_transpose),),
    "Reshape": (("FusedMatMul", _between_transposes),),
    **{name: (("FusedGemm", _biased_product),) for name in ACTIVATIONS if name != "Tanh"},
}


# How patterns are read


def climb(node: Node, *path: tuple[int | str | None, ...]) -> list[Node] | None:
    """Follow inputs to what computes them: (index, operators...) for each step, None for whichever input it is."""
    found: list[Node] = []
    for index, *operators in path:
        candidates = node.inputs if index is None else [node.input(int(index))]
        makers = [value.producer for value in candidates if value is not None]
        here = [maker for maker in makers if maker is not None and maker.is_op(*map(str, operators))]
        if not here:
            return None
        node = here[0]
        found.append(node)
    return found


def readers(node: Node) -> list[Node]:
    """Return the nodes that read a node's first output."""
    out = node.outputs[0] if node.outputs else None
    return [consumer for consumer, _ in out.consumers] if out is not None else []


def follow(node: Node, operator: str) -> Node | None:
    """Return the only reader of a node where it is of this operator."""
    found = readers(node)
    return found[0] if len(found) == 1 and found[0].is_op(operator) else None


def follow_all(node: Node, *operators: str) -> list[Node] | None:
    """Follow only readers of these operators, one after the other."""
    found = [node]
    for operator in operators:
        after = follow(found[-1], operator)
        if after is None:
            return None
        found.append(after)
    return found[1:]


def is_vector(value: Value) -> bool:
    """Whether a value is a constant of rank 1."""
    tensor = value.constant
    return tensor is not None and len(tensor.dims) == 1
