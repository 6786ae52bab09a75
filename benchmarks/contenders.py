"""The tools that fold shapes, each as a command: what the scripts beside this file share, no script.

Every tool runs with its own command line and default options, or where it has none with the smallest program that
calls it. A setting that a tool has no option for is written into the inputs of its model beforehand, untimed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

__all__ = ["TOOLS", "VARIANTS", "Case", "Job", "prepare", "versions"]

Shape = tuple[int | str, ...]

ONNXSCRIPT = """
import sys, onnx, onnxscript.optimizer
onnx.save(onnxscript.optimizer.optimize(onnx.load(sys.argv[1])), sys.argv[2])
"""
VERSIONS = """
from importlib.metadata import distributions
found = {each.metadata["Name"].lower(): each.version for each in distributions()}
print(*(f"{name} {found[name]}" for name in %r if name in found), sep=", ")
"""
PEERS = ("onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "polygraphy")


@dataclass(frozen=True)
class Case:
    """A model and what is known of its inputs.

    Attributes:
        model: The file.
        dims: Numbers for symbols.
        inputs: Shapes of inputs.
    """

    model: Path
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read `MODEL`, `MODEL@batch_size=1` or `MODEL@pixel_values=1x3x800x800`; commas between settings."""
        model, _, settings = text.partition("@")
        pairs = [setting.split("=") for setting in settings.split(",") if setting]
        shapes = {name: tuple(map(int, value.split("x"))) for name, value in pairs}
        dims = {name: shape[0] for name, shape in shapes.items() if len(shape) == 1}
        return cls(Path(model).absolute(), dims, {name: shape for name, shape in shapes.items() if len(shape) > 1})

    @property
    def name(self) -> str:
        """Return a name for the model: its folder's and its own."""
        return f"{self.model.parent.name}-{self.model.name.split('.')[0]}"

    def result(self, folder: Path, tool: str) -> Path:
        """Return where the result of a tool is kept."""
        return folder / tool / f"{self.name}-{self.mode}.onnx".replace("=", "-").replace(",", "-")

    @property
    def mode(self) -> str:
        """Return the settings as a name."""
        shapes = (f"{name}={'x'.join(map(str, shape))}" for name, shape in self.inputs.items())
        return ",".join([*(f"{name}={size}" for name, size in self.dims.items()), *shapes]) or "dynamic"


@dataclass(frozen=True)
class Job:
    """A case made ready.

    Attributes:
        case: The case.
        model: The complete model, in one file.
        frozen: The same with the settings written into its inputs; the model itself without settings.
        shapes: The shapes of the inputs that the settings change.
        peers: The interpreter that has the peers.
    """

    case: Case
    model: Path
    frozen: Path
    shapes: Mapping[str, Shape]
    peers: str

    @property
    def is_static(self) -> bool:
        """Whether the settings leave no symbol in the inputs that they change."""
        return all(isinstance(dim, int) for shape in self.shapes.values() for dim in shape)

    def arguments(self, option: str, form: Callable[[str, Shape], str]) -> list[str]:
        """Return an option of a tool that takes all shapes."""
        return [option, *(form(name, shape) for name, shape in self.shapes.items())] if self.shapes else []


def prepare(case: Case, model: Path, folder: Path, peers: str) -> Job:
    """Write the settings of a case into a copy of its model."""
    proto = onnx.load(model, load_external_data=False)
    before = {value.name: _shape(value) for value in proto.graph.input}
    dims = dict(case.dims)
    for name, shape in case.inputs.items():
        dims.update((was, now) for was, now in zip(before[name], shape, strict=True) if isinstance(was, str))
    if not dims:
        return Job(case, model, model, {}, peers)
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
    frozen = folder / "frozen.onnx"
    frozen.write_bytes(proto.SerializeToString())
    after = {value.name: _shape(value) for value in proto.graph.input}
    return Job(case, model, frozen, {name: shape for name, shape in after.items() if shape != before[name]}, peers)


def _shape(value: onnx.ValueInfoProto) -> Shape:
    return tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _graphkit(job: Job, out: Path, weights: str = "inline") -> list[str]:
    settings = [f"--dim={name}={size}" for name, size in job.case.dims.items()]
    settings += [f"--input={name}={'x'.join(map(str, shape))}" for name, shape in job.case.inputs.items()]
    options = ["--no-verify", "--overwrite", "--weights", weights, *settings]
    return [sys.executable, "-m", "graphkit", "fold", str(job.model), "-o", str(out), *options]


def _graphkit_in_place(job: Job, out: Path) -> list[str]:
    """Fold without copying a weight: the result has to lie beside the model, so a copy of that goes there.

    A link will not do: onnxruntime refuses some data files that have more than one.
    """
    source = out.with_name(f"source-{out.name}")
    source.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(job.model, source)
    return _graphkit(replace(job, model=source), out, "in-place")


def _onnxsim(job: Job, out: Path, *options: str) -> list[str]:
    shapes = job.arguments("--overwrite-input-shape", lambda name, shape: f"{name}:{_numbers(shape)}")
    return [_script(job, "onnxsim"), str(job.model), str(out), *options, *shapes]


def _onnxsim_bodies(job: Job, out: Path) -> list[str]:
    return _onnxsim(job, out, "--include-subgraph")


def _onnxslim(job: Job, out: Path) -> list[str]:
    command = [_script(job, "onnxslim"), str(job.model if job.is_static else job.frozen), str(out)]
    return command + (
        job.arguments("--input-shapes", lambda name, shape: f"{name}:{_numbers(shape)}") if job.is_static else []
    )


def _onnxscript(job: Job, out: Path) -> list[str]:
    return [job.peers, "-c", ONNXSCRIPT, str(job.frozen), str(out)]


def _onnxoptimizer(job: Job, out: Path) -> list[str]:
    return [_script(job, "onnxoptimizer"), str(job.frozen), str(out)]


def _polygraphy(job: Job, out: Path) -> list[str]:
    command = [_script(job, "polygraphy"), "surgeon", "sanitize", "--fold-constants", "-o", str(out)]
    if not job.is_static:
        return [*command, str(job.frozen)]
    shapes = job.arguments("--override-input-shapes", lambda name, shape: f"{name}:[{_numbers(shape)}]")
    return [*command, str(job.model), *shapes]


def _script(job: Job, name: str) -> str:
    return str(Path(job.peers).parent / name)


def _numbers(shape: Shape) -> str:
    """Write a shape as onnxsim and OnnxSlim read it; 0 leaves a dim as it is (onnxsim only)."""
    return ",".join(str(dim if isinstance(dim, int) else 0) for dim in shape)


TOOLS: dict[str, Callable[[Job, Path], list[str]]] = {
    "graphkit": _graphkit,
    "graphkit-in-place": _graphkit_in_place,
    "onnxsim": _onnxsim,
    "onnxsim-bodies": _onnxsim_bodies,
    "OnnxSlim": _onnxslim,
    "onnxscript": _onnxscript,
    "onnxoptimizer": _onnxoptimizer,
    "Polygraphy": _polygraphy,
}


VARIANTS = ("graphkit-in-place", "onnxsim-bodies")  # the same tool with another option


def versions(peers: str) -> str:
    """Name the versions of those peers that are installed."""
    command: Sequence[str] = [peers, "-c", VERSIONS % (PEERS,)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
