"""The options of commands and of the functions behind them: one table of flags, and dataclasses whose fields they set.

A field has the type and the default, its flags have the spelling and the help; `graphkit.cli.flags` makes the command
line of both. Nothing heavy is imported here, because a shell waits for completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from graphkit.runtime.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from graphkit.save import Placement
    from graphkit.shapes import DimSpec

__all__ = [
    "BLOCKED_BY", "BUNDLED", "FOLD_LIMIT", "JUDGE_SECONDS", "LIMITS", "LOWERED", "MAP", "NO_VERIFY", "OVERWRITE",
    "RANGE", "SIZES", "SOURCE", "SPLIT_STEPS", "STEPS", "TIME", "WEIGHTS", "BundleOptions", "By", "CompareOptions",
    "DeployOptions", "DeploymentProofOptions", "DiffOptions", "Flag", "FoldOptions", "FolderOptions",
    "FoldingOptions", "KvLayout", "LowerOptions", "ProofOptions", "RewriteOptions", "RewriteProofOptions",
    "SplitOptions", "SplitProofOptions", "Update", "as_declared", "count", "many", "option", "switch",
]  # fmt: skip

T = TypeVar("T")
KvLayout = Literal["per-layer", "stacked"]
Update = Literal["tensor-scatter", "scatter-nd"]
By = Literal["layer", "module", "op", "node"]
BUNDLED = 2048  # slots of a bundle, whose step reads those in use alone; a model of fewer positions has fewer slots
SOURCE = 256  # positions of its source, which cost nothing either
LOWERED = 64  # slots, and positions of the source, of a lowering, whose step computes all of them each time
FOLD_LIMIT = 1 << 20
SPLIT_STEPS = 8
JUDGE_SECONDS = 600.0


@dataclass(frozen=True)
class Flag:
    """An option of the command line that sets a field.

    Attributes:
        name: Its spelling, such as `--dim`; one that begins with `--no-` sets a field to false.
        help: The help text.
        kind: The type of a value; a `bool` needs none.
        short: A spelling of one letter.
        metavar: The value in the help text.
        choices: The values that it may have, empty for any.
        least, most: Bounds of a number.
        is_positive: Whether a number has to be larger than `least`.
        is_repeatable: Whether it may be given several times.
    """

    name: str
    help: str
    kind: type[bool] | type[int] | type[float] | type[str] | type[Path] = str
    short: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    is_positive: bool = False
    is_repeatable: bool = False


def option(default: T, *flags: Flag) -> T:
    """Return a field of a dataclass, with its default and the flags that set it."""
    made: T = field(default=default, metadata={"flags": flags})
    return made


def as_declared() -> DimSpec:
    """Return the specification of a user who says nothing about dims."""
    from graphkit.shapes import AS_DECLARED

    return AS_DECLARED


def switch(name: str, text: str, short: str = "") -> Flag:
    """Return a flag without a value."""
    return Flag(name, text, bool, short=short)


def count(name: str, text: str) -> Flag:
    """Return a flag that takes a number of at least 1."""
    return Flag(name, text, int, least=1)


def many(name: str, text: str, metavar: str) -> Flag:
    """Return a flag that may be given several times."""
    return Flag(name, text, metavar=metavar, is_repeatable=True)


DIM = many("--dim", "Set the size of a symbol, or of one dim, such as x.0=1; repeatable.", "NAME=N")
INPUT = many("--input", "Set the shape of an input; repeatable.", "NAME=AxBxC")
RANGE = many("--range", "Set bounds of a symbol; either may be left out; repeatable.", "NAME=LO:HI")
SIZES = (DIM, INPUT, RANGE)
TIMEOUT = Flag(
    "--timeout",
    "Time limit for each load and each run of a model, for folding or rewriting it, and for reading the graph of one "
    "on a server. The search for the sizes of a proof has four times as long. Default: 60 for reading, 60 plus 30 for "
    "each GB of weights for loads and runs; none for folding, rewriting and the search.",
    float,
    metavar="SECONDS",
)
MEMORY = Flag(
    "--memory",
    "Memory limit of a running model, without its weights, such as 2GB; Linux only. Default: a quarter of the "
    "machine's memory.",
    metavar="SIZE",
)
LIMITS = (TIMEOUT, MEMORY)
WEIGHTS = Flag(
    "--weights",
    "kept: inside the model where they are inside now, and it has up to 2 GB; else shared. shared: one data file that "
    "holds each tensor once. in-place: copies no weights, so the source must stay. inline: inside the models.",
    choices=("kept", "shared", "in-place", "inline"),
)
NO_VERIFY = switch("--no-verify", "Skip the proof.")
OVERWRITE = switch("--overwrite", "Replace existing files.")
TIME = switch("--time", "Measure the latency before and after in onnxruntime, in turns.")
STEPS = count("--steps", "Number of greedy decoding steps in the proof of a split.")
SEED = Flag("--seed", "Seed of the generated inputs.", int, least=0)
BLOCKED_BY = Flag("--target", "Show what keeps the model from a target; see graphkit targets.", metavar="NAME|FILE")
MAP = many("--map", "A tensor of the first model and its name in the second, if that differs; repeatable.", "NAME=NAME")


def _tolerance_flag(text: str) -> Flag:
    return Flag("--tolerance", f"Largest difference that still counts as equal.{text}", float, least=0.0)


TOLERANCE = _tolerance_flag(
    " Default: 0, or 0.01 for a model with float16 tensors; more where passes change results, as --fuse does, and for "
    "files that other tools made: by as much as the original moves when its numbers are rounded anew."
)


@dataclass(frozen=True, kw_only=True)
class RewriteOptions:
    """How to write a rewritten model, and how to prove it.

    Attributes:
        spec: The known facts about the input dims.
        weights: Where the weights go: see `graphkit.save.save_models`.
        verify: Whether to run the proof.
        overwrite: Replace existing files.
        tolerance: Largest difference that still counts as equal. Default: 0, or 0.01 for a model with float16 tensors;
            where passes change results, their `largest_error`, relative to the largest magnitude in an output.
        limits: Time and memory that a model may take in the proof.
        time: Whether to measure the latency before and after.
    """

    spec: DimSpec = field(default_factory=as_declared, metadata={"flags": SIZES})
    weights: Placement = option("kept", WEIGHTS)
    verify: bool = option(True, NO_VERIFY)
    overwrite: bool = option(False, OVERWRITE)
    tolerance: float | None = option(None, TOLERANCE)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)
    time: bool = option(False, TIME)


@dataclass(frozen=True, kw_only=True)
class FoldingOptions:
    """How to fold a model in memory.

    Attributes:
        limit: Size limit in bytes of a new constant; all of them together may add 64 times as much.
        keep_fusions: Whether to keep the nodes that onnxruntime's own fusions look for.
        fuse: Whether constants go into weights, and attention into one node, which changes the last digits, and
            onnxruntime's fusions are given up.
    """

    limit: int = option(
        FOLD_LIMIT,
        Flag(
            "--limit",
            "Size limit in bytes of a new constant; all of them together may take 64 times as much.",
            int,
            least=0,
        ),
    )
    keep_fusions: bool = option(
        True, switch("--no-fusions", "Remove more nodes, even those that onnxruntime's own fusions look for.")
    )
    fuse: bool = option(
        False,
        switch(
            "--fuse",
            "Put constants into the weights of Conv, Gemm and MatMul, those of one input into one, and a layer "
            "normalization, or attention without a mask, into one node; implies --no-fusions. Changes the last digits: "
            "the default tolerance is 1e-5 of the largest magnitude then.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class FoldOptions(RewriteOptions, FoldingOptions):
    """How to fold a model, to write it and to prove it; sizes and shapes of the `spec` are frozen."""


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How to split.

    Attributes:
        weights: Where the weights go: see `graphkit.save.save_models`.
        verify: Whether to run the proof.
        keep_names: Keep the suffix `_merged_0` in the names of shared weights.
        condition: The boolean input to split on, if there are several merged decoders.
        overwrite: Replace existing files.
        steps: Greedy steps of the proof.
        tolerance: Largest difference that still counts as equal.
        limits: Time and memory that a model may take in the proof.
        time: Whether to measure the latency before and after.
    """

    weights: Placement = option("shared", WEIGHTS)
    verify: bool = option(True, NO_VERIFY)
    keep_names: bool = option(
        False, switch("--keep-names", "Keep the suffix _merged_0 in the names of shared weights.")
    )
    condition: str | None = option(
        None, Flag("--condition", "The boolean input to split on, if there are several.", metavar="NAME")
    )
    overwrite: bool = option(False, OVERWRITE)
    steps: int = option(SPLIT_STEPS, STEPS)
    tolerance: float = option(0.0, _tolerance_flag(""))
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)
    time: bool = option(False, TIME)


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """Options that `lower` and `bundle` share.

    Attributes:
        batch: Sequences, images or sounds at a time; of a bundle the most rows: sequences, or beams.
        dims: Numbers for other symbols, the largest ones of a bundle, such as `(("height", 224),)`.
        verify: Whether to run the proof.
        overwrite: Replace files that exist.
        limits: Time and memory that a model may take.
        time: Whether to measure the latency before and after.
    """

    batch: int = option(
        1,
        count(
            "--batch",
            "Number of sequences, images or sounds at a time. For a bundle, the most rows: sequences or beams.",
        ),
    )
    dims: tuple[tuple[str, int], ...] = option((), DIM)
    verify: bool = option(True, NO_VERIFY)
    overwrite: bool = option(False, OVERWRITE)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)
    time: bool = option(False, TIME)


@dataclass(frozen=True, kw_only=True)
class LowerOptions(DeployOptions):
    """How to lower; hosts run text and decoders one sequence at a time unless `batch` says otherwise.

    Attributes:
        target: The name of a target, or the path of its file.
        src_len: Positions of a padded source.
        max_cache_len: Slots of the cache; None for 64, or as many as the model has positions where these are fewer.
        mask_floor: The number added to masked scores; None for one that the target takes, and for a target that takes
            8 bits at least twice the largest score.
        pad: The token that pads; None for that of the export, else 0.
        opset: The opset of the lowered models; None for that of the export.
        judges: Commands that are run on each lowered model, with `{model}` for its path; exit status 0 passes.
        judge_seconds: How long a judge may take for a model.
        kv_layout: `per-layer`: a state for the keys and one for the values of each layer, as the export has them;
            `stacked`: one for the keys and one for the values of all, `[layers, batch, slots, heads * head_dim]`.
        gelu_to_tanh: Whether to compute Gelus by tanh first, which changes results.
        dequantize: Whether to compute products of quantised numbers with floats first, which changes results.
    """

    target: str = option(
        "generic-npu",
        Flag("--target", "The name of a target, or its TOML file; see graphkit targets.", metavar="NAME|FILE"),
    )
    src_len: int = option(LOWERED, count("--src-len", "Positions of the padded source."))
    max_cache_len: int | None = option(
        None,
        count("--max-cache-len", f"Slots of the KV cache. Default: {LOWERED}, at most the positions of the model."),
    )
    kv_layout: KvLayout = option(
        "per-layer",
        Flag(
            "--kv-layout",
            "stacked: one cache for the keys of all layers, one for values: [layers, batch, slots, heads * head_dim].",
            choices=("per-layer", "stacked"),
        ),
    )
    gelu_to_tanh: bool = option(
        False,
        switch(
            "--gelu-to-tanh",
            "Compute Gelus by tanh, for targets without Erf. This changes results; the report says by how much.",
        ),
    )
    dequantize: bool = option(
        False,
        switch(
            "--dequantize",
            "Compute quantised products with floats, as a model that was quantised dynamically needs. This changes "
            "results; the report says by how much.",
        ),
    )
    mask_floor: float | None = option(
        None,
        Flag(
            "--mask-floor",
            "Added to scores that do not count. Default: -1e9; for a target that takes 8 bits, -100, or twice the "
            "largest score where that is lower.",
            float,
        ),
    )
    pad: int | None = option(
        None, Flag("--pad", "Token that pads. Default: what the export says, else 0.", int, least=0)
    )
    opset: int | None = option(
        None,
        Flag("--opset", "The opset of the lowered models. Default: that of the export.", int, metavar="N", least=1),
    )
    judges: tuple[str, ...] = option(
        (),
        many(
            "--judge",
            "A compiler to run on each lowered model, such as 'mycc --check {model}'; any exit status but 0 is a "
            "failure. Repeatable.",
            "COMMAND",
        ),
    )
    judge_seconds: float = option(
        JUDGE_SECONDS,
        Flag(
            "--judge-timeout",
            "Time limit of a judge for one model.",
            float,
            metavar="SECONDS",
            least=0.0,
            is_positive=True,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class BundleOptions(DeployOptions):
    """How to make a bundle.

    Attributes:
        max_cache: Slots of the cache: the most tokens that the decoder sees; None for 2,048, or as many as the model
            has positions where these are fewer.
        max_source: The longest source, as the encoder's input counts it.
        update: The operator that writes into slots: `scatter-nd` (opset 16), into slots that come first, of which a
            host gives those in use alone, or `tensor-scatter` (opset 24), into all slots, of which attention reads a
            copy of those in use.
        dry_run: Whether to report the plan only: nothing is written or run, and the weights need not be there.
        copy_host: Whether to put `bundle.mjs`, the host in JavaScript, beside the models.
    """

    max_cache: int | None = option(
        None,
        count(
            "--max-cache",
            "Slots of the KV cache: the most tokens that the decoder sees. "
            f"Default: {BUNDLED}, at most the positions of the model.",
        ),
    )
    max_source: int = option(SOURCE, count("--max-source", "The longest source, as the encoder's input counts it."))
    update: Update = option(
        "scatter-nd",
        Flag(
            "--update",
            "The operator that writes into the state. scatter-nd (opset 16): slots come first, a step takes those in "
            "use. tensor-scatter (opset 24): a step takes all slots, and copies those in use.",
            choices=("tensor-scatter", "scatter-nd"),
        ),
    )
    dry_run: bool = option(False, switch("--dry-run", "Describe the bundle. Nothing is written or run."))
    copy_host: bool = option(False, switch("--copy-host", "Put bundle.mjs, the host in JavaScript, into OUT."))


@dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """How to prove.

    Attributes:
        tolerance: Largest difference that counts as equal; None for what the proof has for the dtypes of a model.
        seed: Of the generated inputs.
        limits: Time and memory that a model may take.
    """

    tolerance: float | None = option(None, TOLERANCE)
    seed: int = option(0, SEED)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)


@dataclass(frozen=True, kw_only=True)
class RewriteProofOptions(ProofOptions):
    """How to prove a rewrite, or a part of a model.

    Attributes:
        tolerance: Largest difference, absolute or relative, that counts as equal; above 0, changed weights are a note.
            Default: 0; of a model that has float16 tensors `float16_tolerance`, relative to the largest magnitude.
        of_magnitude: Whether the tolerance is relative to the largest magnitude in an output, the measure of rounding.
        exact: Whether the rewrite claims equal bits. Else, where no tolerance is given, differences that are rounding
            count as none: how far that goes is measured on the original.
        names: Names of values in the original and in the rewritten model, where they differ.
        symbols: The same of symbols of dims that are renamed on purpose.
        values: Arrays for inputs by name, instead of generated ones.
        is_unpadded: Whether the masks of all runs hide nothing.
        runs: Assignments of usual sizes to run at, where there are as many; runs at edges come on top.
            Where all outputs are proven bit for bit, one is enough.
    """

    of_magnitude: bool = False
    exact: bool = False
    names: tuple[tuple[str, str], ...] = option((), MAP)
    symbols: tuple[tuple[str, str], ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    is_unpadded: bool = False
    runs: int = option(7, count("--runs", "Number of sets of dims at which two models are run."))


@dataclass(frozen=True, kw_only=True)
class SplitProofOptions(ProofOptions):
    """How to prove a split.

    Attributes:
        steps: Greedy steps, from a prompt that is as long as lets them pass a length at which the model may change.
    """

    steps: int = option(SPLIT_STEPS, STEPS)


@dataclass(frozen=True, kw_only=True)
class DeploymentProofOptions(ProofOptions):
    """How to prove a lowered folder or a bundle.

    Attributes:
        same_weights: Whether tables and weights must be those of the export; not where they were quantised since.
        same_tokens: Whether searches must find the tokens of the export; not where a share of them is enough.
    """

    same_weights: bool = True
    same_tokens: bool = True


@dataclass(frozen=True, kw_only=True)
class FolderOptions(ProofOptions):
    """How to prove a folder.

    Attributes:
        tolerance: Largest difference that counts as equal; by default that of a first proof, whatever the folder
            records. What the user asked `lower` to change, such as `--dequantize`, is changed in the export too, unless
            a tolerance or a rate of tokens is given. With a rate any difference is one where no tolerance is.
        tokens_rate: The share of the export's next tokens that must be the folder's too, such as 0.95 for models that
            were quantised since; None for all, up to ties.
        record: Whether to write how the proof ended, and the checksums of the files as they are.
    """

    tokens_rate: float | None = option(
        None,
        Flag(
            "--tokens-rate",
            "For OUT: the share of greedy tokens that must be those of the export, such as 0.95 for models that were "
            "quantised since; outputs are compared only where --tolerance is given.",
            float,
            metavar="SHARE",
            least=0.0,
            most=1.0,
        ),
    )
    record: bool = option(
        False, switch("--record", "For OUT: record the result of the proof, and the checksums of the files.")
    )

    @property
    def same_weights(self) -> bool:
        """Whether weights must be those of the export: where neither a tolerance nor a rate of tokens decides."""
        return self.tolerance is None and self.tokens_rate is None


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How to compare.

    Attributes:
        names: Names of tensors in A and in B, (name, name).
        by_order: Whether the remaining tensors of a module match by order.
        bisect: Whether to find the first difference in about log2 of the tensors' number of runs, instead of measuring
            all of them.
        tolerance: Largest difference that counts as equal, times the largest magnitude where that is above 1.
            Default: 1e-4, and 0.01 where a model has float16 tensors.
        seed: Of the generated inputs.
        limits: Time and memory that a model may take.
    """

    names: tuple[tuple[str, str], ...] = option((), MAP)
    by_order: bool = option(
        False,
        switch("--by-order", "Match the remaining tensors of a module by order, if both models have equally many."),
    )
    bisect: bool = option(False, switch("--bisect", "Measure only what a bisection for the first difference needs."))
    tolerance: float | None = option(
        None,
        Flag(
            "--tolerance",
            "Largest difference that counts as equal, times the largest magnitude where that is above 1. Default: "
            "0.0001; 0.01 where a model has float16 tensors.",
            float,
            least=0.0,
        ),
    )
    seed: int = option(0, SEED)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """The parts that a diff compares and lists.

    Attributes:
        target: The name of a target whose blockers are compared, or the path of its file; None for none.
        renames: Whether its text lists values and weights of which only the names differ.
    """

    target: str | None = option(None, BLOCKED_BY)
    renames: bool = option(False, switch("--renames", "List the values and weights of which only the names differ."))
