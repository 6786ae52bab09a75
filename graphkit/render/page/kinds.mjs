// The kinds of operators, which have colours in drawings, and the key to them.
import { element } from "./elements.mjs";

const [MOST, LONGEST] = [10, 60]; // colours in a key, and characters of each
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

/** The kinds of some operators, each a style with its meaning.
 * @param {string[]} operators */
export function kindsOf(operators) {
  const shown = new Set(operators.map(kindOf));
  return [...NAMES].filter(([kind]) => shown.has(kind)).map(([style, meaning]) => ({ style, meaning }));
}

/** The key to the colours of one drawing or more.
 * @param {{style: string, meaning: string}[]} every */
export function keyOf(every) {
  const kinds = [...new Map(every.map((each) => [`${each.style} ${each.meaning}`, each])).values()];
  const shown = kinds.slice(0, MOST).map(({ style, meaning }) =>
    element("span", { class: style }, meaning.length > LONGEST ? `${meaning.slice(0, LONGEST)}…` : meaning));
  return element("p", { class: "kinds" }, ...shown, kinds.length > MOST ? `and ${kinds.length - MOST} more` : "");
}
