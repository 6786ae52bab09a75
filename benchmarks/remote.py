"""How a model on a server is read: requests, bytes and seconds, beside fsspec's defaults and a whole download.

    python benchmarks/remote.py [--latency 50] [--bandwidth 50] [--download] [--rounds 3] [MODEL...]

Without a MODEL it makes one: 24 layers, 170 tensors, 1.62 GB of weights, of which none takes room on disk, and about
170 kB of structure. A server of this machine answers each request after so many milliseconds, and sends so many
megabytes a second over all connections; it counts requests and bytes. Each reader is a process of its own; the time is
that of the reading alone, without the imports. "fsspec as it comes" is graphkit's reader over the file that
`fsspec.open` gives, with the blocks that it fetches by default; "whole download" fetches the data files too. Readers
take turns; of several rounds the medians are shown, and the time of graphkit over that of each reader.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import onnx
from measure import environment
from onnx import TensorProto, helper

from graphkit import load
from graphkit.io.wire import BYTES, encode_varint

LAYERS, SIZE, WORDS = 24, 1024, 50_000
CHUNK = 64 << 10
READERS = {
    "graphkit": """
from graphkit import RemoteOptions, load
from graphkit.io.remote import http_file, remote_file
start = time.perf_counter()
load(URL, remote=RemoteOptions(cache=CACHE))
seconds = time.perf_counter() - start
""",
    "fsspec as it comes": """
import fsspec
from graphkit.io.wire import lighten_model
class Bytes:
    def __init__(self, file): self.file = file
    def __len__(self): return self.file.size
    def __getitem__(self, index):
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.file.size)
            self.file.seek(start)
            return self.file.read(max(stop - start, 0))
        self.file.seek(index)
        return self.file.read(1)[0]
start = time.perf_counter()
with fsspec.open(URL) as file:
    lighten_model(Bytes(file), "model.onnx", 1024)
seconds = time.perf_counter() - start
""",
    "whole download": """
import urllib.request
start = time.perf_counter()
for each in (URL, *BESIDE):
    with urllib.request.urlopen(each) as answer:
        while answer.read(1 << 20):
            pass
seconds = time.perf_counter() - start
""",
}


def write_synthetic(path: Path) -> None:
    """Write the model; its weights are holes of the file, zeros that take no room."""
    weights = {"model.embed_tokens.weight": [WORDS, SIZE]}
    nodes = [helper.make_node("Gather", ["model.embed_tokens.weight", "input_ids"], ["/model/hidden.0"])]
    for layer in range(LAYERS):
        nodes += _layer(layer, weights)
    weights["lm_head.weight"] = [SIZE, WORDS]
    nodes.append(helper.make_node("MatMul", [f"/model/hidden.{LAYERS}", "lm_head.weight"], ["logits"]))
    for node in nodes:
        node.name = node.output[0].replace("output", node.op_type)
        text = f"traced from {node.output[0]}, in forward(), modeling_synthetic.py, as long as those of exporters are, "
        node.doc_string = text * 2
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", WORDS])
    before = onnx.GraphProto(node=nodes, name="synthetic").SerializeToString()
    values = [
        helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, ["batch_size", "sequence_length", None])
        for node in nodes[:-1]
    ]
    after = onnx.GraphProto(input=[ids], output=[logits], value_info=values).SerializeToString()
    headers = [(_header(name, dims), 4 * dims[0] * (dims[1] if dims[1:] else 1)) for name, dims in weights.items()]
    size = len(before) + sum(len(header) + length for header, length in headers) + len(after)
    with path.open("wb") as file:
        file.write(onnx.ModelProto(ir_version=10).SerializeToString())
        file.write(encode_varint(7 << 3 | BYTES) + encode_varint(size) + before)
        for header, length in headers:
            file.write(header)
            file.seek(length, os.SEEK_CUR)
        file.write(after + onnx.ModelProto(opset_import=[helper.make_opsetid("", 17)]).SerializeToString())


def _layer(layer: int, weights: dict[str, list[int]]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a layer, and add its weights."""
    at, inside = f"model.layers.{layer}", f"/model/layers.{layer}"
    kinds = {"self_attn.q_proj": 1, "self_attn.k_proj": 1, "self_attn.v_proj": 1, "self_attn.o_proj": 1}
    for kind in kinds:
        weights[f"{at}.{kind}.weight"] = [SIZE, SIZE]
    weights[f"{at}.mlp.up_proj.weight"] = [SIZE, 4 * SIZE]
    weights[f"{at}.mlp.down_proj.weight"] = [4 * SIZE, SIZE]
    weights[f"{at}.input_layernorm.weight"] = [SIZE]

    def made(operator: str, name: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(operator, inputs, [f"{inside}/{name}/output"], **attributes)

    hidden, out = f"/model/hidden.{layer}", f"{inside}/{{}}/output"
    yield made("Mul", "norm", hidden, f"{at}.input_layernorm.weight")
    for kind in ("q_proj", "k_proj", "v_proj"):
        yield made("MatMul", kind, out.format("norm"), f"{at}.self_attn.{kind}.weight")
    yield made("Transpose", "turned", out.format("k_proj"), perm=[0, 2, 1])
    yield made("MatMul", "scores", out.format("q_proj"), out.format("turned"))
    yield made("Softmax", "softmax", out.format("scores"))
    yield made("MatMul", "context", out.format("softmax"), out.format("v_proj"))
    yield made("MatMul", "o_proj", out.format("context"), f"{at}.self_attn.o_proj.weight")
    yield made("Add", "residual", hidden, out.format("o_proj"))
    yield made("MatMul", "up_proj", out.format("residual"), f"{at}.mlp.up_proj.weight")
    yield made("Relu", "relu", out.format("up_proj"))
    yield made("MatMul", "down_proj", out.format("relu"), f"{at}.mlp.down_proj.weight")
    yield helper.make_node("Add", [out.format("residual"), out.format("down_proj")], [f"/model/hidden.{layer + 1}"])


def _header(name: str, dims: list[int]) -> bytes:
    """Return the bytes of an initializer up to its weights."""
    length = 4
    for dim in dims:
        length *= dim
    tensor = TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT).SerializeToString()
    head = tensor + encode_varint(9 << 3 | BYTES) + encode_varint(length)
    return encode_varint(5 << 3 | BYTES) + encode_varint(len(head) + length) + head


class Handler(BaseHTTPRequestHandler):
    """Files of a folder, in parts, late and slowly."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path
    latency: float
    bandwidth: float
    lock = threading.Lock()
    counts = {"requests": 0, "bytes": 0}
    free = 0.0  # when the line is free again

    def setup(self) -> None:
        """Let little wait in this process: what is counted is on its way when the reader hangs up."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK)

    def do_GET(self) -> None:
        """Send a file, or a part of it."""
        if self.path == "/counts":
            self._send(json.dumps(self.counts).encode())
            self.counts.update(requests=0, bytes=0)
            return
        time.sleep(self.latency)
        path = self.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        size, span = path.stat().st_size, self.headers.get("Range")
        start, stop = 0, size
        if span is not None:
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1 if last else size, size)
        tag = f'"{path.stat().st_mtime_ns:x}"'
        with self.lock:
            self.counts["requests"] += 1
        if self.headers.get("If-None-Match") == tag:
            self.send_response(304)
            self.end_headers()
            return
        self.send_response(200 if span is None else 206)
        self.send_header("ETag", tag)
        self.send_header("Accept-Ranges", "bytes")
        if span is not None:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET" and stop > start:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                for at in range(start, stop, CHUNK):
                    self._slowly(content[at : min(at + CHUNK, stop)])

    do_HEAD = do_GET

    def _slowly(self, data: bytes) -> None:
        with self.lock:
            now = time.monotonic()
            Handler.free = max(self.free, now - 0.1) + len(data) / self.bandwidth
            wait = self.free - now
            self.counts["bytes"] += len(data)
        if wait > 0.002:
            time.sleep(wait)
        try:
            self.wfile.write(data)
        except OSError:  # the reader has hung up
            self.close_connection = True
            raise ConnectionResetError from None

    def handle(self) -> None:
        """Answer requests until the reader hangs up."""
        with suppress(ConnectionResetError):
            super().handle()

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(folder: Path, latency: float, bandwidth: float) -> Iterator[str]:
    """Serve a folder from a process of its own, and give its URL."""
    words = ["--serve", str(folder), "--latency", str(latency), "--bandwidth", str(bandwidth)]
    with subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.terminate()


def serve(folder: Path, latency: float, bandwidth: float) -> None:
    """Serve a folder until the process is ended."""
    Handler.folder, Handler.latency, Handler.bandwidth = folder, latency / 1000, bandwidth * 1e6
    ThreadingHTTPServer.request_queue_size = 128  # or connections wait for a second
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def measured(reader: str, base: str, names: list[str], *, cache: str = "") -> tuple[float, float, float]:
    """Return requests, megabytes and seconds of a reader of a model, the first of some files."""
    url, *beside = (f"{base}/{name}" for name in names)
    code = f"import time\nURL, BESIDE, CACHE = {url!r}, {beside!r}, {bool(cache)}\n{READERS[reader]}\nprint(seconds)"
    environment = {**os.environ, **({"XDG_CACHE_HOME": cache} if cache else {})}
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, text=True, stdout=subprocess.PIPE, env=environment
    )
    with urllib.request.urlopen(f"{base}/counts") as answer:
        counts = json.load(answer)
    return counts["requests"], counts["bytes"] / 1e6, float(result.stdout)


def compare(model: Path, base: str, readers: list[str], rounds: int, cache: str) -> None:
    """Print the medians of some rounds, in which readers take turns."""
    data = [each.location for each in load(model).source.data_files]
    names = [model.name, *data]
    size = sum((model.parent / name).stat().st_size for name in names)
    print(f"\n{model.parent.name}/{model.name}, {size:,} bytes, {1 + len(data)} file(s)")
    print(f"{'':22}{'requests':>9} {'MB':>10} {'s':>8} {'graphkit over it':>17}")
    measured("graphkit", base, names, cache=cache)
    runs: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(rounds):
        for reader in readers:
            runs.setdefault(reader, []).append(measured(reader, base, names))
        runs.setdefault("graphkit, once more", []).append(measured("graphkit", base, names, cache=cache))
    for reader, rows in runs.items():
        requests, megabytes, seconds = (statistics.median(column) for column in zip(*rows, strict=True))
        ratio = statistics.median(ours[2] / row[2] for ours, row in zip(runs["graphkit"], rows, strict=True))
        print(f"{reader:22}{requests:9,.0f} {megabytes:10,.2f} {seconds:8.2f} {ratio:17.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--latency", type=float, default=50, help="milliseconds before an answer")
    parser.add_argument("--bandwidth", type=float, default=50, help="megabytes a second")
    parser.add_argument("--download", action="store_true", help="measure a whole download too")
    parser.add_argument("--rounds", type=int, default=1, help="how often each reader is measured")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, asked.latency, asked.bandwidth)
        return
    print(environment(), f"{asked.latency:g} ms, {asked.bandwidth:g} MB/s", sep="\n")
    readers = [reader for reader in READERS if reader != "whole download" or asked.download]
    with tempfile.TemporaryDirectory() as folder:
        models = asked.models or [Path(folder) / "synthetic.onnx"]
        if not asked.models:
            write_synthetic(models[0])
        for number, model in enumerate(models):
            with serving(model.parent.resolve(), asked.latency, asked.bandwidth) as base:
                compare(model, base, readers, asked.rounds, f"{folder}/cache{number}")


if __name__ == "__main__":
    main()
