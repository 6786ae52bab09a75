"""Options and sizes that `lower` and `bundle` share, and the errors about sizes that do not fit a pipeline."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx import TensorProto

from graphkit.analysis.positions import table_positions
from graphkit.errors import UsageError
from graphkit.graph.types import declared_type
from graphkit.model import Model
from graphkit.options import BUNDLED, LOWERED, SOURCE, BundleOptions, LowerOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.shapes.constraints.symbol_sizes import symbol_roles
from graphkit.suggest import did_you_mean

__all__ = [
    "DeploySizes",
    "SizeRequest",
    "check_dtypes",
    "check_output",
    "missing_sizes",
    "most_positions",
    "size_request",
]

MOST_POSITIONS = 1 << 16  # of a lowering: the host's inputs are computed for each


@dataclass(frozen=True, kw_only=True)
class DeploySizes:
    """The sizes to deploy a pipeline for: the only ones of a lowering, the largest ones of a bundle.

    Attributes:
        batch: Sequences at a time.
        slots: Slots of the cache.
        source: Positions of a source, as the encoder's input counts them.
        dims: Numbers for other symbols of the inputs.
    """

    batch: int
    slots: int
    source: int
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SizeRequest:
    """The sizes that a user asks for.

    Attributes:
        batch, slots, source, dims: The sizes; None for the default number of slots.
        slots_flag, source_flag: The options that ask for them.
        default_slots, default_source: The default numbers, where the model has as many positions.
        most: The most slots and positions of the source; None for any number.
    """

    batch: int
    slots: int | None
    source: int
    dims: tuple[tuple[str, int], ...]
    slots_flag: str
    source_flag: str
    default_slots: int
    default_source: int
    most: int | None = None

    def check(self) -> None:
        """Check that no size is below 1.

        Raises:
            UsageError: One is.
        """
        dims = [(f"--dim {name}=", size) for name, size in self.dims]
        lengths = ((f"{self.slots_flag} ", self.slots), (f"{self.source_flag} ", self.source))
        for flag, size in (*lengths, ("--batch ", self.batch), *dims):
            if size is not None and size < 1:
                raise UsageError(f"{flag}{size}: give at least 1")

    def resolve(self, models: Sequence[Model], *, encoder: Model | None, step: Model | None) -> DeploySizes:
        """Return the sizes for a pipeline.

        Args:
            models: All of its models.
            encoder: The encoder; None where there is none.
            step: The decoder of later steps; None where there is none, or where it is not known.

        Raises:
            UsageError: A model has fewer positions, another fixed length, or no such symbol.
        """
        self._check_dims(models)
        slots, source = self._slots(step), self._source(encoder)
        for flag, size in ((self.slots_flag, slots), (self.source_flag, source)):
            if self.most is not None and size > self.most:
                raise UsageError(
                    f"{flag} {size:,}: what the host feeds is computed for each - give at most {self.most:,}"
                )
        return DeploySizes(batch=self.batch, slots=slots, source=source, dims=dict(self.dims))

    def _check_dims(self, models: Sequence[Model]) -> None:
        """Check that symbols exist, and that none counts sequences or slots, which have options of their own."""
        roles = [(model, symbol_roles(model)) for model in models]
        known = sorted({name for _, symbols in roles for name in symbols})
        for name, size in self.dims:
            if name not in known:
                raise UsageError(f"no input has a dim '{name}' - {did_you_mean(name, known)}")
            for model, symbols in roles:
                if model.roles.pasts and symbols.get(name) in ("past", "total"):
                    raise UsageError(f"{model.name}: '{name}' grows with the cache - give {self.slots_flag}")
                if model.roles.pasts and symbols.get(name) == "batch" and size != self.batch:
                    raise UsageError(f"{model.name}: '{name}' is {self.batch}, not {size} - give --batch {size}")

    def _slots(self, step: Model | None) -> int:
        most = most_positions(step) if step is not None else None
        if step is not None and most is not None and self.slots is not None and self.slots > most:
            raise UsageError(
                f"{step.name}: the model has {most} positions, so its cache has at most {most} slots - "
                f"give {self.slots_flag} {most}"
            )
        return self.slots or min(self.default_slots, most or self.default_slots)

    def _source(self, encoder: Model | None) -> int:
        """Return the positions of the source, those that an export of a fixed length has."""
        fixed = _fixed_length(encoder) if encoder is not None else None
        if encoder is None or fixed is None or self.source == fixed:
            return self.source
        if self.source != self.default_source:
            raise UsageError(
                f"{encoder.name} takes {fixed} tokens, not {self.source} - leave out {self.source_flag}, or export it "
                "with a dynamic length"
            )
        return fixed


def size_request(options: LowerOptions | BundleOptions) -> SizeRequest:
    """Return the sizes that options ask for."""
    if isinstance(options, LowerOptions):
        return SizeRequest(
            batch=options.batch,
            slots=options.max_cache_len,
            source=options.src_len,
            dims=options.dims,
            slots_flag="--max-cache-len",
            source_flag="--src-len",
            default_slots=LOWERED,
            default_source=LOWERED,
            most=MOST_POSITIONS,
        )
    return SizeRequest(
        batch=options.batch,
        slots=options.max_cache,
        source=options.max_source,
        dims=options.dims,
        slots_flag="--max-cache",
        source_flag="--max-source",
        default_slots=BUNDLED,
        default_source=SOURCE,
    )


def most_positions(model: Model) -> int | None:
    """Return how many positions the tables of a decoder have, None where it has none or it is not known."""
    return table_positions(fold(model).model)


def missing_sizes(model: Model, names: Collection[str]) -> UsageError:
    """Return the error about symbols that have no number."""
    quoted = ", ".join(f"'{name}'" for name in names)
    flags = " ".join(f"--dim {shlex.quote(name)}=NUMBER" for name in names)
    have = "has no number - give it" if len(names) == 1 else "have no numbers - give them"
    return UsageError(f"{model.name}: {quoted} {have} with {flags}")


def check_output(path: Path, output: Path) -> None:
    """Check that the output is not the folder of the export.

    Raises:
        UsageError: It is.
    """
    if path.is_dir() and output.resolve() == path.resolve():
        raise UsageError(
            f"{output} is the folder of the export, whose models it would be mixed with - name another one"
        )


def _fixed_length(model: Model) -> int | None:
    """Return how many tokens a model takes where its export fixes that, else None."""
    ids = model.roles.first("tokens")
    declared = declared_type(ids) if ids is not None else None
    dims = declared.dims if declared is not None else None
    return dims[1] if dims is not None and len(dims) == 2 and isinstance(dims[1], int) and dims[1] > 0 else None


def check_dtypes(models: Iterable[Model]) -> None:
    """Check that onnxruntime can run models on a CPU.

    Raises:
        UsageError: One has inputs or weights in bfloat16.
    """
    for model in models:
        for value in (*model.graph.inputs, *model.graph.initializers):
            declared = declared_type(value)
            if declared is not None and declared.dtype == TensorProto.BFLOAT16:
                raise UsageError(
                    f"{model.name}: '{value.name}' is bfloat16, in which onnxruntime runs nothing on a CPU - export it "
                    "in float16 or float32"
                )
