// The kinds of operators, which have colours in drawings, and the key to them.
import { element } from "./elements.mjs";

const OPERATORS = {
  product: `MatMul Gemm Conv ConvTranspose Einsum Attention MultiHeadAttention GroupQueryAttention MatMulNBits MatMulInteger
    ConvInteger QLinearMatMul QLinearConv DynamicQuantizeMatMul LSTM GRU RNN`,
  activation: `Relu LeakyRelu PRelu Gelu FastGelu Sigmoid Tanh Erf Softmax LogSoftmax HardSigmoid HardSwish Swish Clip Elu
    LayerNormalization SimplifiedLayerNormalization SkipLayerNormalization RMSNormalization BatchNormalization
    InstanceNormalization GroupNormalization MaxPool AveragePool GlobalAveragePool`,
  movement: `Reshape Transpose Concat Slice Split Gather GatherElements GatherND ScatterND ScatterElements Expand Squeeze
    Unsqueeze Flatten Pad Tile Identity Resize TensorScatter DepthToSpace SpaceToDepth`,
  conversion: "Cast CastLike QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
  size: "Shape Size Range Constant ConstantOfShape",
  control: "If Loop Scan",
};
const NAMES = new Map([["product", "products"], ["activation", "activations and norms"], ["movement", "layout"],
  ["conversion", "types"], ["size", "shapes and constants"], ["control", "control flow"]]);
const KINDS = new Map(Object.entries(OPERATORS).flatMap(([kind, operators]) =>
  operators.split(/\s+/).map((op) => /** @type {[string, string]} */ ([op, kind]))));

/** The kind of an operator, which is a class in the style of the page; `op` for all others.
 * @param {string} op */
export function kindOf(op) {
  return KINDS.get(op) ?? "op";
}

/** The key to the colours of some operators.
 * @param {string[]} operators */
export function keyTo(operators) {
  const shown = new Set(operators.map(kindOf));
  const kinds = [...NAMES].filter(([kind]) => shown.has(kind));
  return element("p", { class: "kinds" }, ...kinds.map(([kind, name]) => element("span", { class: kind }, name)));
}
