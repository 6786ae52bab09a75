"""Write the example reports of this folder anew: `make reports`.

The models are those of the tests, unpacked into a temporary folder; `tests/test_reports.py` notices drift.
"""

from __future__ import annotations

import lzma
import tempfile
from collections.abc import Iterator
from pathlib import Path

from graphkit.analysis.report import Report, ReportOptions, report
from graphkit.model import load

FOLDER = Path(__file__).parent
MODELS = FOLDER.parent / "tests" / "models"
# Report -> model, and how to report on it.
REPORTS = {
    "detr-resnet-50-quantized": ("detr-resnet-50/model_quantized", ReportOptions(optimize=True)),
    "nllb-600m-merged": ("nllb-600m/decoder_model_merged", ReportOptions()),
    "marian-tiny-merged": ("marian-tiny/decoder_model_merged", ReportOptions()),
    "gemma-270m": ("gemma-270m/model", ReportOptions()),
}


def reports() -> Iterator[tuple[str, Report]]:
    """Yield the name and the report of each example."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, options) in REPORTS.items():
            path = Path(folder) / f"{model}.onnx"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(lzma.decompress((MODELS / f"{model}.onnx.xz").read_bytes()))
            made = report(load(path), options)
            yield name, Report(f"{model}.onnx", made.sections)


def main() -> None:
    """Write each report as Markdown and HTML."""
    for name, made in reports():
        (FOLDER / f"{name}.md").write_text(made.to_markdown(), encoding="utf-8")
        (FOLDER / f"{name}.html").write_text(made.to_html(), encoding="utf-8")


if __name__ == "__main__":
    main()
