"""Models that do no good to the process that runs them."""

from __future__ import annotations

import numpy as np

DIVIDES = "divides (int64[n] x, int64[n] z) => (int64[n] y) { y = Div (x, z) }"
# the outputs are as large as the input says
GROWS = "grows (int64[n] x) => (float[m] y) { y = ConstantOfShape (x) }"
NEVER_ENDS = """
never_ends (int64[n] x) => (int64[n] y) {
    trips = Constant <value_int = 4611686018427387904> ()
    yes = Constant <value = bool {1}> ()
    y = Loop (trips, yes, x) <body = again (int64 number, bool go, int64[n] a) => (bool on, int64[n] b) {
        on = Identity (go)
        b = Neg (a)
    }>
}
"""
ADDS = "adds (float[n] x) => (float[n] y) { y = Add (x, x) }"
OF_EVERY_KIND = """
kinds (float[n] x, int64[n] i, string[n] s)
  => (float[n] y, seq(float[n]) l, optional(float[n]) o, string[n] t, bool b) {
    y = Identity (x)
    l = SequenceConstruct (x, y)
    o = Optional <type = float[n]> ()
    t = Identity (s)
    n = Size (i)
    c = Constant <value_int = 3> ()
    b = Equal (n, c)
}
"""
FATAL = np.array([np.iinfo(np.int64).min]), np.array([-1])
