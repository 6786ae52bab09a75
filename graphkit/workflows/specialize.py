"""Sessions of one model folded for the shapes that it is run at, each made once.

The memory of a session depends on the place of its weights. These have none of their own: a folded model refers to the
places of its weights in the files of the original, which onnxruntime maps, so that all sessions read the same pages.
Kernels would keep copies in a layout of their own (prepacking), as large as the weights, in each session; that is off
by default, and makes floating-point MatMuls of several rows slower.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field

from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.model import Model, ModelLike, as_model
from graphkit.passes.fold_pipeline import fold
from graphkit.runtime.session import Session
from graphkit.shapes import Bounds, DimSpec, declarations
from graphkit.shapes.constraints.dim_equalities import fed_inputs
from graphkit.shapes.constraints.legal_sizes import symbol_roles, with_empty_past
from graphkit.shapes.graph_inputs import Inputs

if TYPE_CHECKING:
    from graphkit.runtime.onnxruntime_loader import InferenceSession

MAX_SESSIONS = 8
MAX_REASONS = 100
MAX_WISHES = 1024  # shapes whose session is known at once
Shapes = Mapping[str, Sequence[int]]
_FOLDING = Lock()  # the shape engine's tables of known expressions belong to one thread at a time


class _Entry(Struct, eq=False):
    """A session, or the place of one that a thread is making."""

    lock: Lock = field(default_factory=Lock)
    session: Session | None = None

    def open_session(self, make: Callable[[], Session]) -> Session:
        with self.lock:
            if self.session is None:
                self.session = make()
            return self.session


class Specializer:
    """Gives sessions of a model folded for given shapes.

        specializer = graphkit.Specializer("model.onnx")
        session = specializer.session(pixel_values=(1, 3, 800, 800))
        outputs = specializer.run({"pixel_values": image})

    A new shape costs a fold and the opening of a session; the weights are neither read nor copied. The sessions that
    were asked for last are kept. All methods may be called from several threads.

    Args:
        model: A model, or its file.
        max_sessions: Sessions to keep.
        dynamic: Symbols that stay open whatever shapes are given, such as the past that grows with each token.
        ranges: Least and largest size of symbols; None for an open end. A past may be empty unless these say otherwise.
        optimize: Whether onnxruntime may fuse operators.
        prepack: Whether kernels may keep copies of weights: faster MatMuls of several rows, but each session then
            takes about as much memory as the weights, and the time to copy them.
        threads: Threads inside an operator; 0 for onnxruntime's choice.

    Attributes:
        fallbacks: Why the model itself was run instead of one that is folded, and how often; up to 100 reasons.

    Raises:
        UsageError: A symbol does not exist, or no session may be kept.
        ModelError: The model cannot be read.
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        max_sessions: int = MAX_SESSIONS,
        dynamic: Collection[str] = (),
        ranges: Mapping[str, Bounds] | None = None,
        optimize: bool = True,
        prepack: bool = False,
        threads: int = 0,
    ) -> None:
        self._model = declarations(as_model(model)).model
        if max_sessions < 1:
            raise UsageError(f"{max_sessions} sessions to keep - keep at least 1")
        self._max_sessions, self._dynamic = max_sessions, frozenset(dynamic)
        self._optimize, self._prepack, self._threads = optimize, prepack, threads
        self._spec = with_empty_past(DimSpec.of(ranges=ranges), self._model, symbol_roles(self._model))
        every = DimSpec.of(ranges=dict.fromkeys(sorted(self._dynamic), (None, None))) | self._spec
        Inputs(self._model, every)  # raises where a name is none
        self._entries: OrderedDict[DimSpec, _Entry] = OrderedDict()
        self._lock = Lock()
        self._key = lru_cache(MAX_WISHES)(self._known)
        self._folded: Model | None = None
        self._original = _Entry()
        self.fallbacks: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def session(
        self, inputs: Shapes | None = None, /, *, dims: Mapping[str, int] | None = None, **more: Sequence[int]
    ) -> InferenceSession:
        """Return the session for shapes; dims that they leave open stay dynamic.

        The model may lack inputs of the original, of which only the shape was read.

        Args:
            inputs: Shapes of inputs by name, for names that are no Python names.
            dims: Sizes of symbols.
            **more: Shapes of inputs by name.

        Raises:
            UsageError: An input or a symbol does not exist, a rank is wrong, or the numbers contradict each other.
            ModelError: A data file is missing, or onnxruntime does not load the model.
        """
        return self._session(DimSpec.of(dims, {**(inputs or {}), **more})).onnx

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the session for the shapes of some arrays, and return its outputs by name.

        Arrays that the model runs with give its outputs, whatever its inputs declare: where no session can be made for
        their shapes, such as those of two inputs that declare the same symbol and differ, the model itself is run. A
        RuntimeWarning says why, once for each reason; `fallbacks` counts them.

        Raises:
            UsageError: An input is missing or does not exist, or its rank is wrong.
            ModelError: See `session`; or onnxruntime fails on these inputs.
        """
        try:
            session = self._session(DimSpec.of(inputs={name: np.shape(array) for name, array in feed.items()}))
            if missing := [name for name in session.inputs if name not in feed]:
                raise UsageError(f"no array for input {', '.join(missing)} - feed all inputs")
            taken = {*session.inputs, *(port.name for port in session.onnx.get_overridable_initializers())}
            return session.run({name: array for name, array in feed.items() if name in taken})
        except GraphkitError as error:
            names = {value.name for value in self._model.graph.inputs}
            if not fed_inputs(self._model).keys() <= feed.keys() <= names:
                raise
            return self._fall_back(feed, error)

    def _fall_back(self, feed: Mapping[str, np.ndarray], error: GraphkitError) -> dict[str, np.ndarray]:
        """Run the model that nothing is folded of, and tell why; an error where it does not run either."""
        try:
            outputs = self._original.open_session(partial(self._open_model, self._model)).run(feed)
        except ModelError:
            raise error from None
        reason = str(error)
        with self._lock:
            is_new = reason not in self.fallbacks
            if not is_new or len(self.fallbacks) < MAX_REASONS:
                self.fallbacks[reason] += 1
        if is_new:
            warnings.warn(f"the model itself is run: {reason}", RuntimeWarning, stacklevel=3)
        return outputs

    def clear(self) -> None:
        """Forget all sessions; those that are in use stay as they are."""
        with self._lock:
            self._entries.clear()
            self._original = _Entry()

    def _session(self, wish: DimSpec) -> Session:
        key = self._key(DimSpec(tuple(sorted(wish.dims)), tuple(sorted(wish.inputs))))
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._max_sessions:
                self._entries.popitem(last=False)
        try:
            return entry.open_session(partial(self._make_session, key))
        finally:
            with self._lock:
                if entry.session is None and self._entries.get(key) is entry:  # it could not be made
                    del self._entries[key]

    def _known(self, wish: DimSpec) -> DimSpec:
        """Return the dims that a wish fixes: sizes of symbols, and shapes of inputs that are declared without rank."""
        with _FOLDING:
            inputs = Inputs(self._model, self._spec | wish)
            numbers = {name: size for name, size in sorted(inputs.numbers.items()) if name not in self._dynamic}
        kinds = ((name, shape, inputs.declared[name]) for name, shape in wish.inputs)
        unranked = {name: shape for name, shape, kind in kinds if kind and kind.dims is None}
        return self._spec | DimSpec.of(numbers, unranked)

    def _make_session(self, key: DimSpec) -> Session:
        with _FOLDING:
            if self._folded is None:
                self._folded = fold(self._model, self._spec).model  # every shape starts from here
            model = fold(self._folded, key).model
        return self._open_model(model)

    def _open_model(self, model: Model) -> Session:
        return Session(model, optimize=self._optimize, threads=self._threads, prepack=self._prepack)
