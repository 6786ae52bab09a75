"""Spellings of decoders and encoders that exporters write: lowered and proven, or declined with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from small_decoders import decoder, saved

from graphkit.contract import read_contract
from graphkit.errors import UsageError
from graphkit.workflows.lower import LowerOptions, LowerReport, lower_folder

OPTIONS = LowerOptions(src_len=6, max_cache_len=5)

FILLED = """
    fill = Where (future, lowest, scores)
    p = Softmax <axis = -1> (fill)
"""
"""The mask is filled in; positions are looked up by `position_ids`."""


def lowered(model: onnx.ModelProto, folder: Path, options: LowerOptions = OPTIONS) -> LowerReport:
    return lower_folder(saved(model, folder / "model"), folder / "out", options)


def assert_done(report: LowerReport) -> None:
    assert report.findings() == ()
    assert report.proof is not None
    assert report.proof.passed
    assert max(file.rank for file in report.files) <= 4


def test_a_fixed_mask_beside_symbolic_tokens_is_no_contradiction(tmp_path: Path) -> None:
    assert_done(lowered(decoder(FILLED), tmp_path))
    (step,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert {port.name: port.shape for port in step.inputs if port.name.endswith("embeds")} == {
        "inputs_embeds": (1, 1, 8),
        "position_embeds": (1, 1, 8),
    }
