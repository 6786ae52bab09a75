"""Results as data frames of pandas or polars."""

from __future__ import annotations

import pytest
from builders import model_of

import graphkit

pytest.importorskip("polars")


def test_a_result_is_a_data_frame_of_its_first_table() -> None:
    shapes = graphkit.tensor_shapes("example:encoder")
    frame = shapes.to_dataframe()
    assert frame.shape[0] == len(shapes.rows)
    assert frame["Tensor"].to_list() == [row.name for row in shapes.rows]


def test_a_tensor_is_found_by_its_name() -> None:
    shapes = graphkit.tensor_shapes("example:encoder")
    assert shapes["input_ids"].shape == ("batch_size", "encoder_sequence_length")
    with pytest.raises(KeyError, match=r"no tensor 'input_idz' - did you mean 'input_ids'"):
        shapes["input_idz"]


def test_a_result_without_a_table_is_no_data_frame() -> None:
    with pytest.raises(graphkit.UsageError, match="it has no table"):
        graphkit.control_flow("example:encoder").to_dataframe()


def test_names_of_digits_stay_text() -> None:
    nodes = "".join(f'["{name}"] y{number} = Relu (x) ' for number, name in enumerate(("000", "001", "NA", "1e5")))
    model = model_of(f"(float[N] x) => (float[N] y0, float[N] y1, float[N] y2, float[N] y3) {{ {nodes} }}")
    frame = graphkit.node_list(model).to_dataframe()
    assert frame["Node"].to_list() == ["000", "001", "NA", "1e5"]
    assert frame["Readers"].to_list() == [0, 0, 0, 0]
