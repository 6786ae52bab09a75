"""Split a merged decoder into two models, prove them, and generate tokens with the pair.

python examples/split_and_generate.py decoder_model_merged.onnx FOLDER 5 7 2
"""

import sys
from pathlib import Path

import numpy as np

import graphkit
from graphkit.verify import Decoder, decode


def main(merged: str, folder: str, *prompt: str) -> None:
    """Print the tokens that follow a prompt; an encoder's output is made up."""
    report = graphkit.split_file(merged, folder)
    if report.findings():
        sys.exit(str(report.proof))
    print("wrote", *(file.name for file in report.after))
    decoder = Decoder.open(Path(folder, "decoder_model.onnx"), Path(folder, "decoder_with_past_model.onnx"))
    tokens = np.array([[int(token) for token in prompt]])
    print(decode(decoder, given={"input_ids": tokens}, steps=8).tokens)


if __name__ == "__main__":
    main(*sys.argv[1:])
