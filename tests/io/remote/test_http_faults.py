"""Servers that are broken, slow or hostile: one clear error each, soon, and with little in memory."""

from __future__ import annotations

import re
import time
import tracemalloc

import pytest
from layers import layered
from msgspec.structs import replace
from range_server import Site

from graphkit.errors import ModelError, OutputError
from graphkit.io.remote import remote_file
from graphkit.io.urls import RemoteOptions, remote_options
from graphkit.model import load

SMALL = (6, 64)  # layers, and how wide they are
CONTENT = layered(*SMALL).SerializeToString()  # 200 kB
OPTIONS = RemoteOptions(timeout=300)
HURRIED = RemoteOptions(timeout=0.4)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model of 200 kilobytes be a large one."""
    monkeypatch.setattr(remote_file, "FIRST", 4096)
    monkeypatch.setattr(remote_file, "SMALL_FILE", 4096)
    monkeypatch.setattr(remote_file, "STEP", 4096)


def refused(site: Site, problem: str, *, options: RemoteOptions = OPTIONS, url: str = "") -> None:
    """Load the model of a site, which has to fail in time, and with an error that names the URL."""
    url = url or site.put("/model.onnx", CONTENT)
    begin = time.monotonic()
    tracemalloc.start()
    try:
        with remote_options(options), pytest.raises(ModelError) as caught:
            load(url)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert re.match(f"{re.escape(url)}[:,] ", text)
    assert " - " in text
    assert re.search(problem, text)
    assert "\n" not in text
    assert "\x1b" not in text
    assert time.monotonic() - begin < 150


@pytest.mark.cases(11)
@pytest.mark.parametrize("after", [0, 1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("drop", "the connection (breaks off|ends before the data do); graphkit tried 4 times"),
        ("drop before", "the connection breaks off; graphkit tried 4 times"),
        ("too short", r"the server says that [\d,]+ bytes follow, and that they are [\d,]+ to [\d,]+ - fetch all"),
        ("too long", r"the server says that [\d,]+ bytes follow, and that they are [\d,]+ to [\d,]+ - fetch all"),
        ("endless", "the server sends more bytes than it was asked for"),
        ("other range", r"the server sends bytes [\d,]+ to [\d,]+ where [\d,]+ to [\d,]+ were asked for"),
        ("garbage range", "the server sends a range that it describes as|does not speak HTTP"),
        ("gzip", "the server compresses what it sends"),
        ("slow", r"the server does not send what was asked for in 0\.4 s - raise --timeout"),
        ("drip", r"the server does not send what was asked for in 0\.4 s - raise --timeout"),
        ("no ranges", r"no parts of files, only all of 20\d,\d\d\d bytes - fetch all of it with --download"),
        ("no length", "no parts of files, only all - fetch all of it with --download"),
        (
            "length too long",
            r"the server says that [\d,]+ bytes follow, and that they are [\d,]+ to [\d,]+ - fetch all",
        ),
        ("length too short", r"the server says that [\d,]+ bytes follow, and that|the server does not speak HTTP"),
        ("length is no number", "the server does not speak HTTP as it should"),
        ("half", ""),
    ],
)
def test_a_fault_is_one_clear_error(site: Site, fault: str, problem: str, after: int) -> None:
    site.fault, site.after = fault, after
    if not problem:
        problem = "the server sends less than it was asked for; graphkit tried 4 times"
    refused(site, problem, options=HURRIED if fault in ("slow", "drip") else OPTIONS)
    assert site.sent < 16 << 20
    assert len(site.asked) < 60


def test_bytes_that_all_came_before_the_connection_broke_are_taken(site: Site) -> None:
    site.fault, site.after = "no end", 1
    assert load(site.put("/model.onnx", CONTENT)).restore() == layered(*SMALL)


@pytest.mark.parametrize("fault", ["changed", "changed size", "no ranges"])
def test_a_file_that_changes_is_never_mixed(site: Site, fault: str) -> None:
    site.after, site.fault = 2, fault
    refused(site, "it has changed while it was read" if fault != "no ranges" else "no parts of files")


def test_weights_of_another_revision_are_not_taken(site: Site) -> None:
    url = site.put("/model.onnx", CONTENT)
    model = load(url)
    site.put("/model.onnx", CONTENT)
    with pytest.raises(ModelError, match="it has changed while it was read - run the command again"):
        model.array(model.proto.graph.initializer[0])


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (401, r"the server answers 401 \(Unauthorized\) - log in as its library wants it"),
        (403, r"the server answers 403 \(Forbidden\) - ask for access"),
        (404, "is not there - check the URL"),
        (418, "the server answers 418"),
        (
            503,
            r"the server answers 503 \(Service Unavailable\); graphkit tried 4 times - check the URL and the network",
        ),
        (599, "the server answers 599 - check the URL"),
    ],
)
def test_a_status_is_one_clear_error(site: Site, status: int, problem: str) -> None:
    site.fault, site.status = "status", status
    refused(site, problem)
    assert len(site.asked) == (4 if status == 503 else 1)


@pytest.mark.cases(2)
@pytest.mark.parametrize("fault", ["drop", "drop before", "status", "half"])
def test_what_passes_is_tried_again(site: Site, fault: str) -> None:
    url = site.put("/model.onnx", CONTENT)
    right = load(url).proto
    for after in (0, 1, 5):
        site.asked.clear()
        site.fault, site.after, site.times, site.status = fault, after, 2, 503
        with remote_options(RemoteOptions(cache=False)):
            assert load(url).proto == right


def test_a_loop_of_redirects_ends(site: Site) -> None:
    site.fault = "loop"
    refused(site, "the server redirects more than 5 times")
    assert len(site.asked) < 10


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("ftp://elsewhere/model.onnx", "redirects to something that is not on a web server - check the URL"),
        ("file:///etc/passwd", "redirects to something that is not"),
        ("http://a:99999999/m.onnx", "redirects to something that is not a URL"),
        ("http://[bad/m.onnx", "redirects to something that is not a URL"),
        ("", r"the server answers 302"),
    ],
)
def test_a_redirect_to_nowhere_is_one_clear_error(site: Site, location: str, problem: str) -> None:
    site.redirects["/model.onnx"] = location
    refused(site, problem, url=f"{site.base}/model.onnx")


def test_a_redirect_that_leads_nowhere_is_one_clear_error(site: Site) -> None:
    site.fault, site.status = "status", 302
    refused(site, r"the server answers 302 \(Found\) - check the URL")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/model.onnx", "https://[bad/model.onnx", "http://a:99999/m.onnx"])
@pytest.mark.usefixtures("site")
def test_a_server_that_is_not_there(url: str) -> None:
    shown = url if "[" not in url else "https://..."
    with pytest.raises(
        ModelError, match=f"^{re.escape(shown)}: (the server cannot be reached; graphkit tried 4 times|is not a URL)"
    ):
        load(url)


def test_an_empty_file(site: Site) -> None:
    refused(site, "is empty", url=site.put("/model.onnx", b""))


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><p>Log in", b"\r\n  <!doctype HTML>\n<p>", b"<html lang=en>"])
def test_a_page_is_no_model(site: Site, page: bytes) -> None:
    refused(site, "is an HTML page, not an ONNX model", url=site.put("/model.onnx", page))


def test_a_size_that_no_file_can_have(site: Site) -> None:
    site.fault = "huge"
    with pytest.raises(OutputError, match=f"^{site.base}/model.onnx: "):
        load(site.put("/model.onnx", CONTENT))


def test_a_graph_has_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "MAX_GRAPH", 100_000)
    url = site.put("/model.onnx", layered(2, 16, nodes=1000).SerializeToString())
    refused(site, "its graph has more than 100,000 bytes beside the weights - fetch all of it with --download", url=url)
    assert site.sent < 300_000


def test_a_broken_file_is_an_error_of_its_bytes(site: Site) -> None:
    url = site.put("/model.onnx", CONTENT[:-1000])
    refused(site, "byte .*runs .* past its end|the data ends inside", url=url)


@pytest.mark.parametrize("fault", ["no ranges", ""])
def test_download_fetches_all_of_it(site: Site, fault: str) -> None:
    site.fault = fault
    url = site.put("/model.onnx", CONTENT)
    with remote_options(replace(OPTIONS, download=True)):
        model = load(url)
    assert model.restore() == layered(*SMALL)
    assert len(site.asked) == 1
    assert remote_file.read_entry(url) is None


def test_a_download_without_a_length_is_refused(site: Site) -> None:
    site.fault = "no length"
    refused(site, "does not say how long the file is", options=replace(OPTIONS, download=True))
    assert site.sent < 16 << 20


def test_a_small_file_needs_no_ranges(site: Site) -> None:
    site.fault = "no ranges"
    load(site.put("/model.onnx", layered(1, 8).SerializeToString()))
    assert len(site.asked) == 1
