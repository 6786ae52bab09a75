"""Graphs with one hazard each: what is foretold of them, in full. `test_check_hazards.py` runs them all."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CASES", "Case"]


class Case(NamedTuple):
    """Inputs and outputs of a graph, its nodes, and (kind, text) of each hazard."""

    io: str
    body: str
    told: tuple[tuple[str, str], ...]
    opset: int = 18


CASES = {
    "initial states of another batch": Case(
        "(float[n, b, 5] x, float[1, 12, 5] w, float[1, 12, 3] r, float[1, m, 3] h, float[1, b, 3] c)"
        " => (float[A, B, C, D] y)",
        "y = LSTM <hidden_size = 3> (x, w, r, , , h, c)",
        (
            (
                "fit",
                "at b=3, m=2, LSTM 'LSTM#0' fails: a dim of initial_h and what the input needs differ: "
                "m is 2 and b is 3",
            ),
        ),
    ),
    "initial cells of another batch": Case(
        "(float[n, b, 5] x, float[1, 12, 5] w, float[1, 12, 3] r, float[1, b, 3] h, float[1, m, 3] c)"
        " => (float[A, B, C, D] y)",
        "y = LSTM <hidden_size = 3> (x, w, r, , , h, c)",
        (
            (
                "fit",
                "at b=3, m=2, LSTM 'LSTM#0' fails: a dim of initial_c and what the input needs differ: "
                "m is 2 and b is 3",
            ),
        ),
    ),
    "as many lengths as rows": Case(
        "(float[n, b, 5] x, float[1, 9, 5] w, float[1, 9, 3] r, int32[m] k) => (float[A, B, C, D] y)",
        "y = GRU <hidden_size = 3> (x, w, r, , k)",
        (
            (
                "fit",
                "at b=3, m=2, GRU 'GRU#0' fails: a dim of sequence_lens and what the input needs differ: "
                "m is 2 and b is 3",
            ),
        ),
    ),
    "-1 beside a 0": Case(
        "(float[b, past_n, 8] x) => (float[A, B, C, D] y)",
        """s = Shape(x)  b = Gather(s, i0)  n = Gather(s, i1)  t = Concat <axis = 0> (b, n, i2, m1)
        y = Reshape(x, t)""",
        (
            (
                "empty",
                "at past_n=0, Reshape 'Reshape#4' fails: [3, 0, 8] to [b, past_n, 2, -1] = [3, 0, 2, -1]: -1 "
                "beside 0 cannot be inferred",
            ),
        ),
    ),
    "0 copies another dim": Case(
        "(float[b, 4, past_n, 8] x) => (float[A, B, C] y)",
        """s = Shape(x)  b = Gather(s, i0)  n = Gather(s, i2)  h = Mul(b, i4)
        t = Concat <axis = 0> (h, n, i8)  y = Reshape(x, t)""",
        (
            (
                "empty",
                "at past_n=0, Reshape 'Reshape#5' fails: [3, 4, 0, 8] to [4*b, past_n, 8] = [12, 0, 8]: 0 copies "
                "4; 0 elements do not fit",
            ),
        ),
    ),
    "0 copies another dim, and it fits": Case(
        "(float[past_n, 4, past_n] x) => (float[A, B] y)",
        """s = Shape(x)  n = Gather(s, i0)  m = Mul(n, i4)  t = Concat <axis = 0> (n, m)
        y = Reshape(x, t)""",
        (
            (
                "wrong shape",
                "at past_n=0, Reshape 'Reshape#4' gives a wrong shape: [0, 4, 0] to [past_n, 4*past_n] "
                "= [0, 0]: 0 copies 4",
            ),
        ),
    ),
    "0 has nothing to copy": Case(
        "(float[past_n, 8] x) => (float[A, B, C] y)",
        "s = Shape(x)  n = Gather(s, i0)  t = Concat <axis = 0> (i2, i4, n)  y = Reshape(x, t)",
        (
            (
                "empty",
                "at past_n=0, Reshape 'Reshape#3' fails: [0, 8] to [2, 4, past_n] = [2, 4, 0]: 0 has nothing to copy",
            ),
        ),
    ),
    "a target below -1": Case(
        "(float[n] x) => (float[A, B] y)",
        """s = Shape(x)  n = Sub(s, i3)  z1 = Slice(x, i3, s)  t = Concat <axis = 0> (n, i1)
        y = Reshape(z1, t)""",
        (
            (
                "sizes",
                "at n=1, Reshape 'Reshape#4' fails: [0] to [n - 3, 1] = [-2, 1]: below -1",
            ),
        ),
    ),
    "a rest that is not whole": Case(
        "(float[n, 3] x) => (float[A, B] y)",
        "t = Concat <axis = 0> (m1, i4)  y = Reshape(x, t)",
        (
            (
                "sizes",
                "at n=3 or n=5, Reshape 'Reshape#1' fails: [3, 3] to [-1, 4] = [-1, 4]: 9 elements do not fit",
            ),
        ),
    ),
    "two -1": Case(
        "(float[n] x) => (float[A, B] y)",
        """s = Shape(x)  n = Sub(s, i2)  w = Slice(x, i2, s)  t = Concat <axis = 0> (n, m1)
        y = Reshape(w, t)""",
        (
            (
                "sizes",
                "at n=2, Reshape 'Reshape#4' fails: [0] to [n - 2, -1] = [0, -1]: -1 beside 0 cannot be inferred",
            ),
        ),
    ),
    "Expand": Case(
        "(float[past_n, 4] w, float[2, 1] x) => (float[A, B] y)",
        "s = Shape(w)  y = Expand(x, s)",
        (
            (
                "empty",
                "at past_n=0 or past_n=3, Expand 'Expand#1' fails: dims that do not broadcast: past_n is 0 and 2",
            ),
        ),
    ),
    "Expand below 0": Case(
        "(float[n] w, float[1] x) => (float[A] y)",
        "s = Shape(w)  n = Sub(s, i2)  y = Expand(x, n)",
        (
            (
                "sizes",
                "at n=1, Expand 'Expand#2' fails: a target dim below 0: n - 2 is -1, less than 0",
            ),
        ),
    ),
    "Tile": Case(
        "(float[n] x) => (float[A] y)",
        "s = Shape(x)  n = Sub(s, i2)  y = Tile(x, n)",
        (
            (
                "sizes",
                "at n=1, Tile 'Tile#2' fails: repeats below 0: n - 2 is -1, less than 0",
            ),
        ),
    ),
    "ConstantOfShape": Case(
        "(float[n] x) => (float[A] y)",
        "s = Shape(x)  n = Sub(s, i2)  y = ConstantOfShape(n)",
        (
            (
                "sizes",
                "at n=1, ConstantOfShape 'ConstantOfShape#2' fails: a dim below 0: n - 2 is -1, less than 0",
            ),
        ),
    ),
    "Range": Case(
        "(float[past_n] x) => (int64[A] y)",
        "s = Shape(x)  n = Squeeze(s, i0)  w = Constant <value_int = 9> ()  y = Range(z, w, n)",
        (
            (
                "empty",
                "at past_n=0, Range 'Range#3' fails: a step of 0: past_n is 0",
            ),
        ),
    ),
    "Slice counts from the end": Case(
        "(float[n] x) => (float[A] y)",
        """t = Constant <value_floats = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]> ()  s = Shape(x)  w = Shape(t)
        n = Sub(w, s)  y = Slice(t, n, w)""",
        (
            (
                "wrong shape",
                "at n=7, Slice 'Slice#4' gives a wrong shape: start 6 - n is -1: it counts from the "
                "end, 1 of 6 are left",
            ),
        ),
    ),
    "Gather of nothing": Case(
        "(float[past_n, 4] x) => (float[A] y)",
        "y = Gather(x, z)",
        (
            (
                "empty",
                "at past_n=0, Gather 'Gather#0' fails: index 0 into an axis of 0 (past_n)",
            ),
        ),
    ),
    "a table of positions": Case(
        "(int64[b, n] input_ids, float[b, 4, past_n, 8] past) => (float[A, B] y)",
        """t = ConstantOfShape <value = float[1] {0.5}> (ts)  ts = Constant <value_ints = [16, 4]> ()
        s = Shape(input_ids)  n1 = Gather(s, o)  p = Shape(past)  two = Constant <value_int = 2> ()
        n2 = Gather(p, two)  e = Add(n1, n2)  r = Range(n2, e, o)  y = Gather(t, r)""",
        (
            (
                "limit",
                "at n=17, past_n=0 or n=3, past_n=14, Gather 'Gather#9' fails: index 16 (n + past_n - 1) into an "
                "axis of 16",
            ),
        ),
    ),
    "a table of positions by mask": Case(
        "(int64[b, n] attention_mask) => (float[A, B, C] y)",
        """ts = Constant <value_ints = [16, 4]> ()  t = ConstantOfShape(ts)
        c = CumSum(attention_mask, o)  m = Mul(c, attention_mask)  p = Add(m, o)  y = Gather(t, p)""",
        (
            (
                "limit",
                "at n=15, Gather 'Gather#5' fails: index 16 (n + 1) into an axis of 16",
            ),
        ),
    ),
    "a mask of fixed length": Case(
        "(float[b, n, n] x) => (float[A, B, C] y)",
        """ms = Constant <value_ints = [1, 16, 16]> ()  m = ConstantOfShape(ms)  s = Shape(x)
        n = Gather(s, i1)  r = Slice(m, i0, n, i1)  c = Slice(r, i0, n, i2)  y = Add(x, c)""",
        (
            (
                "limit",
                "at n=17, Add 'Add#6' fails: dims that do not broadcast: n is 17 and min(16, n) is 16",
            ),
        ),
    ),
    "GatherND": Case(
        "(float[b, n] mask, float[m] x) => (float[A] y)",
        """s = Shape(x)  m = Squeeze(s, i0)  r = Range(z, m, o)  k = Unsqueeze(r, m1)  e = Mul(r, i0)
        f = Unsqueeze(e, m1)  j = Concat <axis = -1> (f, k)  y = GatherND(mask, j)""",
        (
            (
                "fit",
                "at n=2, m=3 or n=3, m=4, GatherND 'GatherND#7' fails: index 2 (m - 1) into an axis of 2 (n)",
            ),
        ),
    ),
    "GatherElements": Case(
        "(float[b, n] x, int64[c, m] i) => (float[A, B] y)",
        "y = GatherElements <axis = 1> (x, i)",
        (
            (
                "fit",
                "at b=2, c=3 or b=3, c=4, GatherElements 'GatherElements#0' fails: indices of a larger dim than "
                "the data: c is 3, more than 2 (b)",
            ),
        ),
    ),
    "GatherElements by positions": Case(
        "(float[b, n] x) => (float[A] y)",
        """s = Shape(x)  n = Gather(s, o)  last = Add(n, o)  k = Unsqueeze(last, z)
        t = Reshape(x, m1)  y = GatherElements(t, k)""",
        (
            (
                "sizes",
                "at b=1, n=3, GatherElements 'GatherElements#5' fails: index 4 (n + 1) into an axis of 3 (b*n)",
            ),
        ),
    ),
    "ScatterElements": Case(
        "(float[b, n] x, int64[c, m] i, float[c, m] u) => (float[A, B] y)",
        "y = ScatterElements <axis = 1> (x, i, u)",
        (
            (
                "fit",
                "at b=2, c=3 or b=3, c=4, ScatterElements 'ScatterElements#0' fails: indices of a larger dim than "
                "the data: c is 3, more than 2 (b)",
            ),
        ),
    ),
    "ScatterND": Case(
        "(float[b, n] x, int64[c, 1] i, float[c, m] u) => (float[A, B] y)",
        "y = ScatterND(x, i, u)",
        (
            (
                "fit",
                "at n=3, m=2, ScatterND 'ScatterND#0' fails: the dims of updates and of what they replace differ: "
                "m is 2 and n is 3",
            ),
        ),
    ),
    "TopK": Case(
        "(float[n] x) => (float[A] y, int64[B] j)",
        "y, j = TopK(x, i4)",
        (
            (
                "sizes",
                "at n=3, TopK 'TopK#0' fails: k is larger than the axis: 4, more than 3 (n)",
            ),
        ),
    ),
    "TopK below 0": Case(
        "(float[n] x) => (float[A] y, int64[B] j)",
        "s = Shape(x)  k = Sub(s, i2)  y, j = TopK(x, k)",
        (
            (
                "sizes",
                "at n=1, TopK 'TopK#2' fails: k below 0: n - 2 is -1, less than 0",
            ),
        ),
    ),
    "Concat": Case(
        "(float[b, n] x, float[b, m] w) => (float[A, B] y)",
        "y = Concat <axis = 0> (x, w)",
        (
            (
                "fit",
                "at n=2, m=3, Concat 'Concat#0' fails: shapes that cannot be joined at axis 0: [3, 2] and [3, 3]",
            ),
        ),
    ),
    "MatMul": Case(
        "(float[b, n] x, float[m, 4] w) => (float[A, B] y)",
        "y = MatMul(x, w)",
        (
            (
                "fit",
                "at n=2, m=3, MatMul 'MatMul#0' fails: the inner dims of a product differ: n is 2 and m is 3",
            ),
        ),
    ),
    "MatMul batches": Case(
        "(float[b, n, 4] x, float[c, 4, n] w) => (float[A, B, C] y)",
        "y = MatMul(x, w)",
        (
            (
                "fit",
                "at b=2, c=3, MatMul 'MatMul#0' fails: dims that do not broadcast: b is 2 and c is 3",
            ),
        ),
    ),
    "Gemm": Case(
        "(float[n, b] x, float[4, m] w) => (float[A, B] y)",
        "y = Gemm <transA = 1, transB = 1> (x, w)",
        (
            (
                "fit",
                "at n=2, m=3, Gemm 'Gemm#0' fails: the inner dims of a product differ: n is 2 and m is 3",
            ),
        ),
    ),
    "Add": Case(
        "(float[b, n] x, float[m] w) => (float[A, B] y)",
        "y = Add(x, w)",
        (
            (
                "fit",
                "at n=2, m=3, Add 'Add#0' fails: dims that do not broadcast: n is 2 and m is 3",
            ),
        ),
    ),
    "Where": Case(
        "(bool[b, n] c, float[m] w) => (float[A, B] y)",
        "y = Where(c, w, w)",
        (
            (
                "fit",
                "at n=2, m=3, Where 'Where#0' fails: dims that do not broadcast: n is 2 and m is 3",
            ),
        ),
    ),
    "QLinearAdd": Case(
        "(uint8[n] x, uint8[m] w) => (uint8[A] y)",
        """f = Constant <value_float = 1.0> ()  q = Cast <to = 2> (z)
        y = com.microsoft.QLinearAdd(x, f, q, w, f, q, f, q)""",
        (
            (
                "fit",
                "at n=2, m=3, com.microsoft.QLinearAdd 'QLinearAdd#2' fails: dims that do not broadcast: n is 2 "
                "and m is 3",
            ),
        ),
    ),
    "an integer divided by 0": Case(
        "(int64[past_n] x, float[past_n] w) => (int64[A] y)",
        "s = Shape(w)  y = Div(i8, s)",
        (
            (
                "empty",
                "at past_n=0, Div 'Div#1' fails: a divisor of 0: past_n is 0",
            ),
        ),
    ),
    "an even Split": Case(
        "(float[n] x) => (float[A] y, float[B] w)",
        "y, w = Split(x)",
        (
            (
                "sizes",
                "at n=1 or n=3, Split 'Split#0' fails: a dim to be split evenly: n is 1, not a multiple of 2",
            ),
        ),
        17,
    ),
    "a Split in more than there are": Case(
        "(float[n] x) => (float[A] y, float[A] w, float[A] u, float[A] v, float[B] t)",
        "y, w, u, v, t = Split <num_outputs = 5> (x)",
        (
            (
                "sizes",
                "at n=3 or n=6, Split 'Split#0' fails: the last of 5 parts: n - 4*((n + 4) // 5) is -1, less than 0",
            ),
        ),
    ),
    "a Split in given sizes": Case(
        "(float[n] x) => (float[A] y, float[B] w)",
        "p = Concat <axis = 0> (i2, i4)  y, w = Split(x, p)",
        (
            (
                "sizes",
                "at n=5 or n=7, Split 'Split#1' fails: the sum of the parts and the whole differ: n is 5 and 6",
            ),
        ),
    ),
    "Squeeze": Case(
        "(float[n, b] x) => (float[A] y)",
        "y = Squeeze(x, i0)",
        (
            (
                "limit",
                "at n=2, Squeeze 'Squeeze#0' fails: a dim that is squeezed and 1 differ: n is 2, not 1",
            ),
        ),
    ),
    "ArgMax": Case(
        "(float[b, past_n] x) => (int64[A, B] y)",
        "y = ArgMax <axis = 1> (x)",
        (
            (
                "empty",
                "at past_n=0, ArgMax 'ArgMax#0' fails: an axis without elements: past_n is 0",
            ),
        ),
    ),
    "LayerNormalization": Case(
        "(float[b, past_n] x, float[1] w) => (float[A, B] y)",
        "y = LayerNormalization <axis = 1> (x, w)",
        (
            (
                "empty",
                "at past_n=0, LayerNormalization 'LayerNormalization#0' fails: nothing to normalise: past_n is 0, "
                "less than 1",
            ),
        ),
    ),
    "Conv": Case(
        "(float[b, c, n] x) => (float[A, B, C] y)",
        "ws = Constant <value_ints = [1, 2, 4]> ()  w = ConstantOfShape(ws)  y = Conv(x, w)",
        (
            (
                "sizes",
                "at c=1 or c=3, Conv 'Conv#2' fails: channels of input and weight differ: c is 1, not 2",
            ),
            (
                "sizes",
                "at n=3, Conv 'Conv#2' fails: the window does not fit: n - 4 is -1, less than 0",
            ),
        ),
    ),
    "ConvInteger": Case(
        "(uint8[b, 2, n] x) => (int32[A, B, C] y)",
        """ws = Constant <value_ints = [1, 2, 4]> ()  w = ConstantOfShape <value = uint8[1] {1}> (ws)
        y = ConvInteger(x, w)""",
        (
            (
                "sizes",
                "at n=3, ConvInteger 'ConvInteger#2' fails: the window does not fit: n - 4 is -1, less than 0",
            ),
        ),
    ),
    "MaxPool": Case(
        "(float[b, 2, n] x) => (float[A, B, C] y)",
        "y = MaxPool <kernel_shape = [6]> (x)",
        (
            (
                "sizes",
                "at n=4, MaxPool 'MaxPool#0' fails: the window does not fit: n - 6 is -2, less than 0",
            ),
            (
                "sizes",
                "at n=5, MaxPool 'MaxPool#0' fails: the window does not fit: n - 6 is -1, less than 0, and "
                "onnxruntime counts 0",
            ),
        ),
    ),
    "MaxPool in steps": Case(
        "(float[b, 2, n] x) => (float[A, B, C] y)",
        "y = MaxPool <kernel_shape = [6], strides = [3]> (x)",
        (
            (
                "sizes",
                "at n=5, MaxPool 'MaxPool#0' fails: the window does not fit: n - 6 is -1, less than 0, and "
                "onnxruntime counts 1",
            ),
        ),
    ),
    "GlobalAveragePool": Case(
        "(float[b, 2, past_n] x) => (float[A, B, C] y)",
        "y = GlobalAveragePool(x)",
        (
            (
                "empty",
                "at past_n=0, GlobalAveragePool 'GlobalAveragePool#0' fails: a dim without elements: past_n is 0, "
                "less than 1",
            ),
        ),
    ),
    "Resize to nothing": Case(
        "(float[1, 1, n, 4] x) => (float[A, B, C, D] y)",
        """s = Shape(x)  n = Gather(s, i2)  h = Div(n, i4)  t = Concat <axis = 0> (i1, i1, h, i4)
        y = Resize(x, , , t)""",
        (
            (
                "sizes",
                "at n=3, Resize 'Resize#4' fails: a dim is resized to 0: n // 4 is 0",
            ),
        ),
    ),
    "Resize of nothing": Case(
        "(float[1, 1, past_n, 4] x) => (float[A, B, C, D] y)",
        "t = Concat <axis = 0> (i1, i1, i8, i4)  y = Resize(x, , , t)",
        (
            (
                "empty",
                "at past_n=0, Resize 'Resize#1' fails: nothing is resized: past_n is 0",
            ),
        ),
    ),
    "Pad": Case(
        "(float[n] x) => (float[A] y)",
        "p = Constant <value_ints = [-2, -1]> ()  y = Pad(x, p)",
        (
            (
                "sizes",
                "at n=2, Pad 'Pad#1' fails: a dim that is cut: n - 3 is -1, less than 0",
            ),
        ),
    ),
    "Pad that reflects": Case(
        "(float[n] x) => (float[A] y)",
        'p = Concat <axis = 0> (i2, i0)  y = Pad <mode = "reflect"> (x, p)',
        (
            (
                "sizes",
                "at n=2, Pad 'Pad#1' fails: padding that reflects more than the axis has: 2, more than 1 (n - 1)",
            ),
        ),
    ),
    "Pad by the edge": Case(
        "(float[past_n] x) => (float[A] y)",
        'p = Concat <axis = 0> (i2, i0)  y = Pad <mode = "edge"> (x, p)',
        (
            (
                "empty",
                "at past_n=0, Pad 'Pad#1' fails: no edge to pad with: past_n is 0, less than 1",
            ),
        ),
    ),
    "Einsum": Case(
        "(float[b, n] x, float[m, 4] w) => (float[A, B] y)",
        'y = Einsum <equation = "ij,jk->ik"> (x, w)',
        (
            (
                "fit",
                "at n=2, m=3, Einsum 'Einsum#0' fails: dims that do not broadcast: n is 2 and m is 3",
            ),
        ),
    ),
    "DepthToSpace": Case(
        "(float[b, c, 4, 4] x) => (float[A, B, C, D] y)",
        "y = DepthToSpace <blocksize = 2> (x)",
        (
            (
                "sizes",
                "at c=3 or c=5, DepthToSpace 'DepthToSpace#0' fails: a dim: c is 3, not a multiple of 4",
            ),
        ),
    ),
    "SpaceToDepth": Case(
        "(float[b, 2, n, 4] x) => (float[A, B, C, D] y)",
        "y = SpaceToDepth <blocksize = 2> (x)",
        (
            (
                "sizes",
                "at n=1 or n=3, SpaceToDepth 'SpaceToDepth#0' fails: a dim: n is 1, not a multiple of 2",
            ),
        ),
    ),
    "EmbedLayerNormalization": Case(
        "(int32[b, n] input_ids) => (float[A, B, C] y, int32[D] m)",
        """ts = Constant <value_ints = [16, 4]> ()  t = ConstantOfShape(ts)
        gs = Constant <value_ints = [4]> ()  g = ConstantOfShape(gs)
        y, m = com.microsoft.EmbedLayerNormalization(input_ids, , t, t, , g, g)""",
        (
            (
                "limit",
                "at n=17, com.microsoft.EmbedLayerNormalization 'EmbedLayerNormalization#4' fails: more positions "
                "than the table has: n is 17, more than 16",
            ),
        ),
    ),
    "RotaryEmbedding": Case(
        "(float[b, n, 8] x) => (float[A, B, C] y)",
        """ts = Constant <value_ints = [16, 4]> ()  t = ConstantOfShape(ts)
        y = com.microsoft.RotaryEmbedding(x, i0, t, t)""",
        (
            (
                "limit",
                "at n=17, com.microsoft.RotaryEmbedding 'RotaryEmbedding#2' fails: more positions than the table "
                "has: n is 17, more than 16",
            ),
        ),
    ),
    "Attention with a mask": Case(
        "(float[b, n, 8] x, int32[b, m] attention_mask) => (float[A, B, C] y)",
        """ws = Constant <value_ints = [8, 24]> ()  w = ConstantOfShape(ws)
        bs = Constant <value_ints = [24]> ()  k = ConstantOfShape(bs)
        y = com.microsoft.Attention <num_heads = 2> (x, w, k, attention_mask)""",
        (
            (
                "fit",
                "at n=3, m=2, com.microsoft.Attention 'Attention#4' fails: the lengths of the mask, and of past "
                "and new together, differ: m is 2 and n is 3",
            ),
        ),
    ),
    "Attention": Case(
        "(float[b, 2, n, 4] q, float[b, 2, m, 4] k, float[b, 2, l, 4] v) => (float[A, B, C, D] y)",
        "y = Attention(q, k, v)",
        (
            (
                "fit",
                "at m=2, l=3, Attention 'Attention#0' fails: the lengths of keys and values differ: m is 2 and l is 3",
            ),
        ),
        23,
    ),
}
