"""Arrays of a comparison: inputs of two models, generated at sizes that are legal for both, and files of arrays."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO

import numpy as np
from numpy.lib import format as npy

from graphkit.dtypes import dtype_name
from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import declared_type, shape_text
from graphkit.model import Model
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.shapes import DimSpec
from graphkit.shapes.constraints.dim_equalities import fed_inputs, fixed_by, solve_dims
from graphkit.shapes.constraints.legal_sizes import LegalSizes, legal_sizes
from graphkit.shapes.graph_inputs import Inputs
from graphkit.verify.critical_sizes import lengths_of
from graphkit.verify.original_runs import Feeder
from graphkit.verify.run_sizes import propose_assignments

__all__ = ["ArrayFile", "Feed", "check_given", "legal_feeds", "rename_feed"]

Feed = Mapping[str, np.ndarray]
MAX_TRIED = 12  # sizes to choose from
TELLING = 24  # positions and sequences that are enough together


def legal_feeds(
    a: Model, b: Model | None, spec: DimSpec, arrays: Feed, names_in_b: Mapping[str, str], seed: int
) -> Iterator[Feed]:
    """Yield inputs for A, those at the most telling sizes first: a batch, several tokens, a past.

    Args:
        a: The model that is right.
        b: The other one; None for dumps.
        spec: Sizes that are wanted.
        arrays: Arrays to take as they are.
        names_in_b: Names of inputs of A, and what they are in B.
        seed: Of the generator.

    Raises:
        UsageError: B has inputs that A has not, or the sizes contradict each other.
        ModelError: No input can be made.
    """
    spec = DimSpec.of(inputs={name: array.shape for name, array in arrays.items() if name in fed_inputs(a)}) | spec
    same = b is not None and not names_in_b and set(fed_inputs(b)) <= set(fed_inputs(a))
    fixed, spec = fixed_by(a, b, spec) if b is not None and same else ([], spec)
    numbers, relations = solve_dims(fixed, Inputs(a, spec).numbers)
    feeder = Feeder(a, legal_sizes(a, spec | DimSpec.of(numbers), relations), arrays, seed)
    flags = feeder.flags()[0]
    legal = feeder.legal(flags)
    for dims in _telling_sizes(legal, a) if legal.variables else [{}]:
        yield feeder.feed(dims, flags, 0)


def _telling_sizes(legal: LegalSizes, model: Model) -> list[dict[str, int]]:
    """Return legal sizes, those first that tell most."""
    legal_dims = [
        proposal.dims
        for proposal in itertools.islice(propose_assignments(legal, [], lengths=lengths_of(model)), MAX_TRIED)
    ]
    names = [variable.name for variable in legal.variables]

    def telling(dims: dict[str, int]) -> tuple[int, int]:
        sizes = [dims[name] for name in names if name in dims]
        return sum(size > 1 for size in sizes), min(sum(sizes), TELLING)

    return sorted(legal_dims, key=telling, reverse=True)


def rename_feed(a: Model, b: Model, feed: Feed, arrays: Feed, names_in_b: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the feed of B for a feed of A.

    Raises:
        UsageError: B has an input that A has not, and none was given for it.
    """
    feed_of_b = {names_in_b.get(name, name): array for name, array in {**arrays, **feed}.items()}
    inputs = fed_inputs(b)
    for name in inputs:
        if name not in feed_of_b:
            raise UsageError(
                f"{b.label}: its input '{name}' is not one of {a.label} - name the one with --map NAME={name}, or give "
                "an array with --inputs"
            )
    known = {value.name for value in b.graph.inputs}
    return {name: array for name, array in feed_of_b.items() if name in known}


def check_given(arrays: Feed, a: Model, b: Model | None) -> None:
    """Check that arrays fit the inputs of the models.

    Raises:
        UsageError: One is no input of either, or has another dtype or other dims.
    """
    for name, array in arrays.items():
        values = [model.graph.values.get(name) for model in (a, b) if model is not None]
        inputs = [value for value in values if value is not None and value.kind in ("input", "initializer")]
        inputs = [value for value in inputs if value in value.scope.inputs]
        if not inputs:
            raise UsageError(f"--inputs: '{name}' is not an input of the models - leave it out")
        for value in inputs:
            declared = declared_type(value)
            if declared is None:
                continue
            if declared.dtype and declared.numpy_dtype != array.dtype:
                want = dtype_name(declared.dtype)
                raise UsageError(f"--inputs: '{name}' is {array.dtype}, and the model takes {want} - convert it")
            if declared.dims is None:
                continue
            have = list(array.shape)
            if len(declared.dims) != array.ndim:
                raise UsageError(f"--inputs: '{name}' has dims {have}, and the model takes {len(declared.dims)} dims")
            if any(isinstance(dim, int) and dim != size for dim, size in zip(declared.dims, have, strict=True)):
                raise UsageError(f"--inputs: '{name}' has dims {have}, and the model takes {shape_text(declared.dims)}")


KINDS = "biufU"
FAR = 16  # times as many elements as another array
HINT = "write it with numpy.savez, as plain arrays of numbers"


class ArrayFile:
    """An .npz file.

    Args:
        path: Of the file.
        limits: Whose memory for the outputs of a run is the most that one array may take.

    Attributes:
        label: What to call it.
        names: The names of its arrays, in the order of the file.

    Raises:
        ModelError: It is missing, or no .npz file.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> None:
        self.label, self.most = str(path), limits.outputs()
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise ModelError(f"no .npz file can be read: {error}", file=self.label, hint=HINT) from error
        members = [name for name in self._zip.namelist() if name.endswith(".npy")]
        self._members = {name.removesuffix(".npy"): name for name in members}
        self.names = tuple(self._members)

    def claimed(self, name: str) -> np.ndarray:
        """Return zeros of the dims and the dtype that an array has by its header, which take no memory.

        Raises:
            ModelError: It holds no plain numbers, or is larger than it may be.
        """
        with self._opened(name) as (_, shape, _, dtype):
            return np.broadcast_to(np.zeros((), object if dtype.kind == "U" else dtype.newbyteorder("=")), shape)

    def beside(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return an array to compare with another one; only its dims and dtype where it is far larger.

        Raises:
            ModelError: See `read`.
        """
        claimed = self.claimed(name)
        return claimed if claimed.size > FAR * (array.size + 1) else self.read(name)

    def read(self, name: str) -> np.ndarray:
        """Return an array by name; strings as objects, as onnxruntime takes them.

        Raises:
            ModelError: It holds no plain numbers, is larger than it may be, or is cut.
        """
        with self._opened(name) as (file, shape, is_fortran, dtype):
            size = math.prod(shape) * dtype.itemsize
            content = file.read(size)
        if len(content) != size:
            raise self._broken_error(name, f"it ends after {len(content):,} of {size:,} bytes")
        array = np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")
        return array.astype(object) if dtype.kind == "U" else array.astype(dtype.newbyteorder("="), copy=False)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[tuple[IO[bytes], tuple[int, ...], bool, np.dtype]]:
        """Open an array, and yield its file, dims, whether it is stored column by column, and its dtype."""
        try:
            with self._zip.open(self._members[name]) as file:
                version = npy.read_magic(file)
                if version not in ((1, 0), (2, 0)):
                    raise ValueError(f"version {version} of the format")
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, is_fortran, dtype = read(file)
                if dtype.hasobject or dtype.kind not in KINDS:
                    raise self._broken_error(name, f"an array of {dtype} holds no plain numbers")
                if any(dim < 0 for dim in shape) or math.prod(shape) * dtype.itemsize > self.most:
                    dims = f"dims {list(shape)[:8]} are not to be held in the {self.most:,} bytes that --memory leaves"
                    raise self._broken_error(name, dims)
                yield file, shape, is_fortran, dtype
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, SyntaxError) as error:
            raise self._broken_error(name, f"it cannot be read: {error}") from error

    def _broken_error(self, name: str, problem: str) -> ModelError:
        return ModelError(problem, file=self.label, tensor=name, hint=HINT)
