"""Models of self-attention in plain operators, spelled in many ways."""

from __future__ import annotations

import re

import numpy as np
from rewriting import model_of

from graphkit.model import Model

__all__ = ["APART", "BACK", "HEAD", "MIXED", "PLAIN", "SCORES", "THREE", "TURNED", "attention"]

HEAD = "g (float[N, S, 6] x) => (y) "
WEIGHTS = {"wq": (6, 8), "wk": (6, 8), "wv": (6, 8)}
THREE = "q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv) "
APART = "qa = Reshape (q, heads) ka = Reshape (k, heads) va = Reshape (v, heads) "
TURNED = (
    "qt = Transpose <perm = [0, 2, 1, 3]> (qa) kt = Transpose <perm = [0, 2, 3, 1]> (ka) "
    "vt = Transpose <perm = [0, 2, 1, 3]> (va) "
)
MIXED = "p = Softmax <axis = -1> (t) m = MatMul (p, vt) "
BACK = "u = Transpose <perm = [0, 2, 1, 3]> (m) y = Reshape (u, flat) "
SCORES = "s = MatMul (qt, kt) t = Mul (s, c) "
PLAIN = THREE + APART + TURNED + SCORES + MIXED + BACK
SHAPES = {"heads": [0, 0, 2, 4], "flat": [0, 0, 8], "c": np.float32(0.07)}


def attention(
    body: str = PLAIN, opset: int = 17, ir: int = 8, head: str = HEAD, *, dtype: type = np.float32, **given: object
) -> Model:
    """Return the model of a graph; keywords become initializers: tuples are dims of random ones, others values."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, value in (WEIGHTS | SHAPES | given).items():
        array = np.asarray(rng.uniform(-1, 1, value) if isinstance(value, tuple) else value)
        arrays[name] = array.astype(np.int64 if isinstance(value, (list, int)) else dtype)
    read = set(re.findall(r"\w+", body)) - set(re.findall(r"\w+", head))
    used = {name: array for name, array in arrays.items() if name in read}
    return model_of(f"{head} {{ {body} }}", opset, ir, **used)
