"""Write the example reports of this folder anew: `make reports`; and the notebooks with their outputs.

The models of reports are those of the tests, unpacked into a temporary folder; `tests/test_reports.py` notices drift,
`tests/test_notebooks.py` that of the notebooks, which run on the models that ship with graphkit.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rendered_notebooks import NOTEBOOKS, rendered, run

from graphkit.analysis.report import ReportOptions, report
from graphkit.deploy.lower import LowerOptions, LowerReport, lower_folder
from graphkit.deploy.make_bundle import BundleOptions, BundleReport, bundle_folder
from graphkit.model import Model, load
from graphkit.render.result import Result
from graphkit.targets import load_target
from graphkit.workflows.fold_file import fold_file
from graphkit.workflows.split_decoder_file import SplitReport, split_file

FOLDER = Path(__file__).parent
MODELS = FOLDER.parent / "tests" / "models"
# Report -> model, and how to report on it.
REPORTS = {
    "detr-resnet-50-quantized": (
        "detr-resnet-50/model_quantized",
        ReportOptions(optimize=True, target=load_target("ethos-u85")),
    ),
    "nllb-600m-merged": ("nllb-600m/decoder_model_merged", ReportOptions()),
    "marian-tiny-merged": ("marian-tiny/decoder_model_merged", ReportOptions()),
    "gemma-270m": ("gemma-270m/model", ReportOptions()),
    "opus-mt-en-fr-mt8371": (
        "opus-mt-en-fr/decoder_with_past_model",
        ReportOptions(only=("verdict", "summary", "blockers"), target=load_target("mt8371")),
    ),
}
SPLITS = {"nllb-tiny-split": "nllb-tiny/decoder_model_merged_quantized"}
FOLDS = {"marian-tiny-fold": "marian-tiny/decoder_model_merged"}
BUNDLES = {
    "opus-mt-en-fr-bundle": (
        "opus-mt-en-fr",
        BundleOptions(max_cache=128, max_source=64, batch=4, dry_run=True),
    ),  # there are no weights to prove
    "marian-tiny-bundle": ("marian-tiny", BundleOptions(max_cache=16, max_source=12, batch=2)),
}
LOWERED = {"marian-tiny-mt8371": ("marian-tiny", LowerOptions(target="mt8371", src_len=16, max_cache_len=16))}


NAMES = (*REPORTS, *SPLITS, *FOLDS, *LOWERED, *BUNDLES)


def made(name: str) -> Result:
    """Return the report of an example."""
    with tempfile.TemporaryDirectory() as temporary, _inside(temporary) as folder:
        if name in REPORTS:
            model, options = REPORTS[name]
            return report(_load(model, folder), options)
        if name in SPLITS:
            (folder / name).mkdir()
            return _split(SPLITS[name], folder, folder / name)
        if name in FOLDS:
            return fold_file(_load(FOLDS[name], folder), folder / f"{name}.onnx")
        if name in LOWERED:
            return _lower(*LOWERED[name], folder)
        return _bundle(*BUNDLES[name], folder, folder / name)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[Path]:
    """Work in a folder, so that the commands of a verdict name its files as a reader's would be named."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield Path()
    finally:
        os.chdir(before)


def _load(model: str, folder: Path) -> Model:
    path = folder / f"{model}.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.decompress((MODELS / f"{model}.onnx.xz").read_bytes()))
    return load(path)


def _split(model: str, folder: Path, target: Path) -> SplitReport:
    return split_file(_load(model, folder), target)


def _lower(export: str, options: LowerOptions, folder: Path) -> LowerReport:
    for packed in (MODELS / export).glob("*.onnx.xz"):
        _load(f"{export}/{packed.name.removesuffix('.onnx.xz')}", folder)
    return lower_folder(folder / export, folder / "lowered", options)


def _bundle(export: str, options: BundleOptions, folder: Path, target: Path) -> BundleReport:
    for packed in (MODELS / export).glob("*.onnx.xz"):
        _load(f"{export}/{packed.name.removesuffix('.onnx.xz')}", folder)
    return bundle_folder(folder / export, target, options)


def main() -> None:
    """Write each report as Markdown and HTML, and each notebook with its outputs as Markdown."""
    for name in NAMES:
        result = made(name)
        (FOLDER / f"{name}.md").write_text(result.to_markdown(), encoding="utf-8")
        (FOLDER / f"{name}.html").write_text(result.to_html(), encoding="utf-8")
    (FOLDER / "notebooks").mkdir(exist_ok=True)
    for path in NOTEBOOKS:
        notebook = rendered(path, run(path))
        for file, text in {f"{path.stem}.md": notebook.markdown, **notebook.figures}.items():
            (FOLDER / "notebooks" / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
