"""The options of commands and of the functions behind them, each said once: a field with its default and its help.

`graphkit.cli.flags` makes the command line of that, and `Options` the docstrings. Nothing heavy is imported here,
because a shell waits for completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from graphkit.progress import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from graphkit.save import Placement
    from graphkit.shapes import DimSpec

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


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option of the command line that sets a field, or a part of one."""

    help: str  # the help text
    name: str = ""  # its spelling; by default that of the field, behind `--no-` where this is true by default
    # the type of a value, as an annotation; by default that of the field; a tuple may be given several times
    kind: str = ""
    short: str = ""  # a spelling of one letter
    metavar: str | None = None  # the value in the help text
    choices: tuple[str, ...] = ()  # the values that it may have, empty for any
    least: float | None = None  # bounds of a number; an integer is at least 1 by default
    most: float | None = None
    is_positive: bool = False  # whether a number has to be larger than `least`
    is_rare: bool = False  # whether few need it, so that --help leaves it to --help-all


def option(default: T, *flags: Flag | str, **details: Any) -> T:
    """Return a field of a dataclass, with its default and the flags that set it, or the help and details of one."""
    made = tuple(Flag(help=flag, **details) if isinstance(flag, str) else flag for flag in flags)
    declared: T = field(default=default, metadata={"flags": made})
    return declared


def flags_of(name: str, declared: Field[Any]) -> dict[str, Flag]:
    """Return the flags of a field by their spelling."""
    spelling = f"--{'no-' if declared.default is True else ''}{name.replace('_', '-')}"
    return {flag.name or spelling: flag for flag in declared.metadata.get("flags", ())}


class Options:
    """A dataclass of options, whose docstring ends with the help of each field."""

    def __init_subclass__(cls) -> None:
        declared = {name: each for name in cls.__annotations__ if isinstance(each := vars(cls).get(name), Field)}
        texts = {
            name: " ".join(f"`{spelling}`: {flag.help}" for spelling, flag in flags_of(name, each).items())
            for name, each in declared.items()
        }
        rows = [f"        {name}: {text}" for name, text in texts.items() if text]
        text = (cls.__doc__ or "").rstrip()
        if rows:
            cls.__doc__ = "\n".join([text, *([] if "Attributes:" in text else ["", "    Attributes:"]), *rows, ""])


def as_declared() -> DimSpec:
    """Return the specification of a user who says nothing about dims."""
    from graphkit.shapes import AS_DECLARED

    return AS_DECLARED


def _repeatable_option(name: str, text: str, metavar: str, *, is_rare: bool = False) -> Flag:
    return Flag(name=name, help=text, metavar=metavar, kind="tuple", is_rare=is_rare)


DIM = _repeatable_option("--dim", "Set a symbol, or one dim, such as x.0=1; repeatable.", "NAME=N")
INPUT = _repeatable_option("--input", "Set the shape of an input; repeatable.", "NAME=AxBxC")
RANGE = _repeatable_option(
    "--range", "Set bounds of a symbol; either may be left out; repeatable.", "NAME=LO:HI", is_rare=True
)
SIZES = (DIM, INPUT, RANGE)
LIMITS = (
    Flag(
        name="--timeout",
        kind="float",
        help="Time limit for each load and each run of a model, for folding or rewriting it, and for reading the graph "
        "of one on a server. The search for the sizes of a proof has four times as long. Default: 60 for reading, 60 "
        "plus 30 for each GB of weights for loads and runs; none for folding, rewriting and the search.",
        metavar="SECONDS",
        is_rare=True,
    ),
    Flag(
        name="--memory",
        kind="str",
        help="Memory limit of a running model, without its weights, such as 2GB; Linux only. Default: a quarter of the "
        "machine's memory.",
        metavar="SIZE",
        is_rare=True,
    ),
)
TIMEOUT = LIMITS[0]
WEIGHTS = Flag(
    help="Where weights go. kept: inside the model where they are inside now, and it has up to 2 GB; else shared. "
    "shared: one data file that holds each tensor once. in-place: copies no weights, so the source must stay. inline: "
    "inside the models.",
    choices=("kept", "shared", "in-place", "inline"),
)
NO_VERIFY = Flag(help="Skip the proof.")
OVERWRITE = Flag(help="Replace existing files.")
TIME = Flag(help="Time onnxruntime before and after, in turns.")
TIMED_ON = Flag(
    help="Where --time runs both models: an execution provider of onnxruntime; see graphkit providers.",
    metavar="NAME[:KEY=VALUE...]",
    is_rare=True,
)
STEPS = Flag(help="Number of greedy decoding steps in the proof of a split.", is_rare=True)
SEED = Flag(help="Seed of the generated inputs.", least=0, is_rare=True)
BLOCKED_BY = Flag(help="Show what keeps the model from a target; see graphkit targets.", metavar="NAME|FILE")
MAP = _repeatable_option("--map", "A tensor of A and its name in B, if that differs; repeatable.", "NAME=NAME")
PROVIDER = Flag(
    help="Run the result on an execution provider of onnxruntime too, such as webgpu; see graphkit providers. The "
    "original runs on the CPU. Outputs may differ by the tolerance of the device: that is a test, and no proof.",
    metavar="NAME[:KEY=VALUE...]",
    is_rare=True,
)
LARGEST = "Largest difference that still counts as equal."
TOLERANCE = Flag(
    help=f"{LARGEST} Default: 0, or 0.01 for a model with float16 tensors; more where passes change results, as --fuse "
    "does, and for files that other tools made: by as much as the original moves when its numbers are rounded anew.",
    least=0.0,
    is_rare=True,
)


def sizes_option() -> DimSpec:
    """Return a field for the known facts about the input dims, as declared by default."""
    declared: DimSpec = field(default_factory=as_declared, metadata={"flags": SIZES})
    return declared


@dataclass(frozen=True, kw_only=True)
class RewriteOptions(Options):
    """How to write a rewritten model, and how to prove it."""

    spec: DimSpec = sizes_option()
    weights: Placement = option("kept", WEIGHTS)
    verify: bool = option(True, NO_VERIFY)
    overwrite: bool = option(False, OVERWRITE)
    tolerance: float | None = option(None, TOLERANCE)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)
    time: bool = option(False, TIME)
    provider: str = option("cpu", TIMED_ON)


@dataclass(frozen=True, kw_only=True)
class FoldingOptions(Options):
    """How to fold a model in memory; `fuse` gives up what onnxruntime's own fusions look for, too."""

    limit: int = option(
        FOLD_LIMIT,
        "Size limit in bytes of a new constant; all of them together may take 64 times as much.",
        least=0,
        is_rare=True,
    )
    keep_fusions: bool = option(True, "Remove even what onnxruntime's own fusions look for.", name="--no-fusions")
    fuse: bool = option(
        False,
        "Fuse nodes, which changes the last digits: put constants into the weights of Conv, Gemm and MatMul, those of "
        "one input into one, and a layer normalization, or attention without a mask, into one node. Implies "
        "--no-fusions; the default tolerance is 1e-5 of the largest magnitude then.",
    )


@dataclass(frozen=True, kw_only=True)
class FoldOptions(RewriteOptions, FoldingOptions):
    """How to fold a model, to write it and to prove it; sizes and shapes of the `spec` are frozen."""


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Options):
    """How to split."""

    weights: Placement = option("shared", WEIGHTS)
    verify: bool = option(True, NO_VERIFY)
    keep_names: bool = option(False, "Keep the suffix _merged_0 in the names of shared weights.", is_rare=True)
    condition: str | None = option(
        None, "The boolean input to split on, if there are several.", metavar="NAME", is_rare=True
    )
    overwrite: bool = option(False, OVERWRITE)
    steps: int = option(SPLIT_STEPS, STEPS)
    tolerance: float = option(0.0, LARGEST, least=0.0, is_rare=True)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)
    time: bool = option(False, TIME)
    provider: str = option("cpu", TIMED_ON)


@dataclass(frozen=True, kw_only=True)
class DeployOptions(Options):
    """Options that `lower` and `bundle` share."""

    batch: int = option(1, "Sequences, images or sounds at a time. For a bundle, the most rows: sequences or beams.")
    dims: tuple[tuple[str, int], ...] = option((), DIM)
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = option((), INPUT)
    encode_apart: bool | None = option(
        None,
        "Whether the encoder is a model and a method of its own, whose states the first step reads. Default: for lower "
        "it is, a bundle runs both at once.",
        is_rare=True,
    )
    verify: bool = option(True, NO_VERIFY)
    provider: str = option("cpu", PROVIDER)
    overwrite: bool = option(False, OVERWRITE)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)
    time: bool = option(False, TIME)


@dataclass(frozen=True, kw_only=True)
class LowerOptions(DeployOptions):
    """How to lower; hosts run text and decoders one sequence at a time unless `batch` says otherwise.

    Judges are run on each lowered model; exit status 0 passes. `gelu_to_tanh` and `dequantize` come first.
    """

    target: str = option(
        "generic-npu", "The name of a target, or its TOML file; see graphkit targets.", metavar="NAME|FILE"
    )
    src_len: int = option(LOWERED, "Positions of the padded source.")
    max_cache_len: int | None = option(
        None, f"Slots of the KV cache. Default: {LOWERED}, at most the positions of the model."
    )
    kv_layout: KvLayout = option(
        "per-layer",
        "stacked: one cache for the keys of all layers, one for values: [layers, batch, slots, heads * head_dim].",
        choices=get_args(KvLayout),
        is_rare=True,
    )
    gelu_to_tanh: bool = option(
        False,
        "Compute Gelus by tanh, for targets without Erf. This changes results; the report says by how much.",
        is_rare=True,
    )
    dequantize: bool = option(
        False,
        "Compute quantised products with floats, as a model that was quantised dynamically needs. This changes "
        "results; the report says by how much.",
        is_rare=True,
    )
    mask_floor: float | None = option(
        None,
        "Added to scores that do not count. Default: -1e9; for a target that takes 8 bits, -100, or minus twice "
        "the largest score and 20 more where that is lower.",
        is_rare=True,
    )
    pad: int | None = option(None, "Token that pads. Default: what the export says, else 0.", least=0, is_rare=True)
    opset: int | None = option(
        None,
        "The opset of the lowered models. Default: that of the export, or the newest that the target takes.",
        metavar="N",
        is_rare=True,
    )
    judges: tuple[str, ...] = option(
        (),
        "A compiler to ask about each lowered model: one that `graphkit judges` lists, which must place all nodes on "
        "the device, or a command such as 'mycc --check {model}', whose exit status must be 0. Repeatable.",
        name="--judge",
        metavar="NAME|COMMAND",
    )
    judge_seconds: float = option(
        JUDGE_SECONDS,
        "Time limit of a judge for one model.",
        name="--judge-timeout",
        metavar="SECONDS",
        least=0.0,
        is_positive=True,
        is_rare=True,
    )


@dataclass(frozen=True, kw_only=True)
class BundleOptions(DeployOptions):
    """How to make a bundle; for a dry run the weights need not be there."""

    max_cache: int | None = option(
        None,
        f"Slots of the KV cache: the most tokens that the decoder sees. Default: {BUNDLED}, at most the positions of "
        "the model.",
    )
    max_source: int = option(SOURCE, "The longest source, as the encoder's input counts it.")
    update: Update = option(
        "scatter-nd",
        "The operator that writes into the state. scatter-nd (opset 16): slots come first, a step takes those in use. "
        "tensor-scatter (opset 24): a step takes all slots, and copies those in use.",
        choices=get_args(Update),
        is_rare=True,
    )
    dry_run: bool = option(False, "Describe the bundle. Nothing is written or run.")
    copy_host: bool = option(False, "Put the host in JavaScript, bundle.mjs, into OUT.", is_rare=True)


@dataclass(frozen=True, kw_only=True)
class GenaiOptions(Options):
    """How to write a folder for onnxruntime-genai."""

    max_length: int | None = option(
        None, "The longest text in tokens, with its prompt. Default: what config.json says.", metavar="N", least=1
    )
    verify: bool = option(True, NO_VERIFY)
    overwrite: bool = option(False, OVERWRITE)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)


@dataclass(frozen=True, kw_only=True)
class TransformersJsOptions(Options):
    """How to prove a folder for transformers.js."""

    verify: bool = option(True, NO_VERIFY)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)


@dataclass(frozen=True, kw_only=True)
class ProofOptions(Options):
    """How to prove."""

    tolerance: float | None = option(None, TOLERANCE)
    provider: str = option("cpu", PROVIDER)
    seed: int = option(0, SEED)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)


@dataclass(frozen=True, kw_only=True)
class RewriteProofOptions(ProofOptions):
    """How to prove a rewrite, or a part of a model.

    Above a tolerance of 0, changed weights are a note. Runs at edges come on top of `runs`; where all outputs are
    proven bit for bit, one is enough.

    Attributes:
        of_magnitude: Whether the tolerance is relative to the largest magnitude in an output, the measure of rounding.
        exact: Whether the rewrite claims equal bits. Else, where no tolerance is given, differences that are rounding
            count as none: how far that goes is measured on the original.
        symbols: As `names`, of symbols of dims that are renamed on purpose.
        values: Arrays for inputs by name, instead of generated ones.
        is_unpadded: Whether the masks of all runs hide nothing.
    """

    of_magnitude: bool = False
    exact: bool = False
    names: tuple[tuple[str, str], ...] = option((), MAP)
    symbols: tuple[tuple[str, str], ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    is_unpadded: bool = False
    runs: int = option(7, "Number of sets of dims at which two models are run.", is_rare=True)


@dataclass(frozen=True, kw_only=True)
class SplitProofOptions(ProofOptions):
    """How to prove a split: in steps from a prompt that lets them pass a length at which the model may change."""

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

    The tolerance is that of a first proof, whatever the folder records. What the user asked `lower` to change, such as
    `--dequantize`, is changed in the export too, unless a tolerance or a rate of tokens is given. With a rate any
    difference is one where no tolerance is.
    """

    tokens_rate: float | None = option(
        None,
        "For OUT: the share of greedy tokens that must be those of the export, such as 0.95 for models that were "
        "quantised since; outputs are compared only where --tolerance is given.",
        metavar="SHARE",
        least=0.0,
        most=1.0,
    )
    record: bool = option(False, "For OUT: record the result of the proof, and the checksums of the files.")

    @property
    def same_weights(self) -> bool:
        """Whether weights must be those of the export: where neither a tolerance nor a rate of tokens decides."""
        return self.tolerance is None and self.tokens_rate is None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """How to compare; a bisection runs about log2 of the tensors' number of times."""

    names: tuple[tuple[str, str], ...] = option((), MAP)
    by_order: bool = option(False, "Match the rest of a module by order: where both models have equally many tensors.")
    bisect: bool = option(False, "Look for the first difference alone, by bisection.")
    tolerance: float | None = option(
        None,
        "Largest difference that counts as equal, times the largest magnitude where that is above 1. Default: 0.0001; "
        "0.01 where a model has float16 tensors.",
        least=0.0,
        is_rare=True,
    )
    providers: tuple[str, ...] = option(
        (),
        "Run A or B on an execution provider of onnxruntime, such as B=webgpu; B where no side is named. See graphkit "
        "providers. The tolerance is at least that of the device. Repeatable.",
        name="--provider",
        metavar="[A=|B=]NAME[:KEY=VALUE...]",
        is_rare=True,
    )
    seed: int = option(0, SEED)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)


@dataclass(frozen=True, kw_only=True)
class DiffOptions(Options):
    """The parts that a diff compares and lists."""

    target: str | None = option(None, BLOCKED_BY)
    renames: bool = option(False, "List the values and weights of which only the names differ.")
    brief: bool = option(False, "List findings and costs, and count the rest: as much as a comment on GitHub takes.")
