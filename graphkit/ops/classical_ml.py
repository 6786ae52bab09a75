"""Operators of ai.onnx.ml of which onnx infers no dims: scalers, linear models, support vectors, trees."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import AttributeProto, TensorProto

from graphkit.graph.operator_traits import operator_set
from graphkit.ops.rule_context import InferenceContext, Rule
from graphkit.ops.tensor import Dims, Tensor, dims_product
from graphkit.symbolic.expr import Expr, const


def _rows(ctx: InferenceContext) -> Expr:
    """Return how many rows of features there are: a list is one row."""
    dims = ctx.dims()
    return const(1) if len(dims) < 2 else dims[0]


def _of_floats(ctx: InferenceContext) -> Tensor:
    return ctx.tensor().of_dtype(TensorProto.FLOAT)


def _regress(ctx: InferenceContext) -> Tensor:
    targets = 1 if ctx.node.op_type == "SVMRegressor" else ctx.attr("n_targets", 0) or ctx.attr("targets", 1)
    return Tensor(TensorProto.FLOAT, (_rows(ctx), targets))


def _classify(ctx: InferenceContext) -> list[Tensor]:
    """Return a label for each row, and scores, of which support vectors without probabilities have their own number."""
    lists = [ctx.attributes.get(f"classlabels_{kind}", AttributeProto()) for kind in ("strings", "int64s", "ints")]
    texts, count = lists[0].strings, sum(len(each.strings) + len(each.ints) for each in lists)
    rows, votes = _rows(ctx), ctx.node.op_type == "SVMClassifier" and "prob_a" not in ctx.attributes
    classes = ctx.new_symbol("it is how many scores a class takes", 1) if votes or count < 2 else const(count)
    return [
        Tensor(TensorProto.STRING if texts else TensorProto.INT64, (rows,)),
        Tensor(TensorProto.FLOAT, (rows, classes)),
    ]


def _extract_features(ctx: InferenceContext) -> Tensor:
    """Take the last axis at some places."""
    return ctx.like((*(ctx.dims()[:-1] or (const(1),)), dims_product(ctx.dims(1))))


def _join_features(ctx: InferenceContext) -> Tensor:
    dims: Dims = tuple(const(size) for size in ctx.attr("inputdimensions", ()))
    return Tensor(TensorProto.FLOAT, (_rows(ctx), sum(dims, const(0))))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(operator_set("Normalizer Scaler", "ai.onnx.ml"), _of_floats),
    **dict.fromkeys(operator_set("Imputer", "ai.onnx.ml"), lambda ctx: ctx.like(ctx.dims())),
    **dict.fromkeys(operator_set("LinearRegressor SVMRegressor TreeEnsembleRegressor", "ai.onnx.ml"), _regress),
    **dict.fromkeys(operator_set("LinearClassifier SVMClassifier TreeEnsembleClassifier", "ai.onnx.ml"), _classify),
    "ai.onnx.ml.ArrayFeatureExtractor": _extract_features,
    "ai.onnx.ml.FeatureVectorizer": _join_features,
}
