"""Objects of S3 stores, through s3fs, whose answers say what others of fsspec do not: the revision and the size.

So the first request fetches bytes too, and each of the others is on condition of the revision: none asks for it alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from graphkit.io.remote.fsspec_file import FsspecFile
from graphkit.io.remote.http_session import hang_up
from graphkit.io.remote.server import Head, Revision, Sink, Span

__all__ = ["S3File"]

RANGE = re.compile(r"bytes 0-(\d{1,19})/(\d{1,19})", re.ASCII)


class S3File(FsspecFile):
    """An object of an S3 store."""

    _revision = Revision()

    def open(self, first: int, whole: int, known: Revision, sink: Sink, seconds: float) -> Head | None:
        """Fetch the first bytes, in one request where the object is small."""
        self._seconds = seconds
        condition = {"IfNoneMatch": known.etag} if known.etag else {}
        with self._asking("read"):
            try:
                answer, data = self._within(seconds, self._beginning, first, whole, **condition)
            except FileNotFoundError:
                return None
            except OSError as error:
                if known.etag and _answer_status(error) == 304:
                    return Head(0, known, is_known=True)
                if _answer_status(error) == 412:
                    raise self.changed() from error
                if _answer_status(error) != 416:  # which an empty object has no bytes for
                    raise
                return self._head(seconds)
        revision, size = _revision_of(answer), _size_of(answer, data)
        if not revision.etag or size is None:
            return super().open(first, whole, known, sink, seconds)
        sink(0, data)
        return Head(size, revision, fetched=len(data))

    def fetch(self, spans: Sequence[Span], head: Head, sink: Sink, *, total: float | None, idle: float) -> None:
        """Fetch parts of one revision."""
        self._revision = head.revision
        super().fetch(spans, head, sink, total=total, idle=idle)

    def check(self, head: Head) -> None:
        """Ask for size and revision only where answers have none."""
        if not head.revision.etag:
            super().check(head)

    def _ranges(self, spans: Sequence[Span], seconds: float) -> list[bytes]:
        if not self._revision.etag:
            return super()._ranges(spans, seconds)

        async def every() -> list[tuple[dict[str, Any], bytes]]:
            return await asyncio.gather(*(self._answer(span, None, IfMatch=self._revision.etag) for span in spans))

        with self._asking("read"):
            try:
                answers = self._within(seconds, every)
            except OSError as error:
                if isinstance(error, FileNotFoundError) or _answer_status(error) in (412, 416):
                    raise self.changed() from error
                raise
        if any(answer.get("ETag") != self._revision.etag for answer, _ in answers):
            raise self.changed()
        return [data for _, data in answers]

    async def _beginning(self, first: int, whole: int, **condition: str) -> tuple[dict[str, Any], bytes]:
        """Return an answer and its bytes: all of a small object; of a long one the first bytes, asked for alone."""
        if whole <= first:
            return await self._answer((0, first), None, **condition)
        answer, data = await self._answer((0, whole), whole, **condition)
        if data or not answer.get("ETag"):
            return answer, data
        return await self._answer((0, first), None, IfMatch=answer["ETag"])

    async def _answer(self, span: Span, most: int | None, **condition: str) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a request for a part, and its bytes; none of an object of more than so many bytes."""
        bucket, key, version = self._system.split_path(self._path)
        words = {"Range": f"bytes={span[0]}-{span[1] - 1}", **condition, **({"VersionId": version} if version else {})}
        answer = await self._system._call_s3("get_object", Bucket=bucket, Key=key, **words)
        async with answer["Body"] as body:
            size = RANGE.fullmatch(str(answer.get("ContentRange", "")))
            if size is not None and most is not None and most < int(size[2]):
                hang_up(getattr(body, "raw_stream", body))
                return answer, b""
            return answer, await body.read()


def _answer_status(error: OSError) -> int:
    """Return the status of the answer that an error of s3fs stands for, 0 where there is none."""
    response = getattr(error.__cause__, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def _revision_of(answer: dict[str, Any]) -> Revision:
    return Revision(str(answer.get("ETag", "")), str(answer.get("LastModified", "")))


def _size_of(answer: dict[str, Any], data: bytes) -> int | None:
    """Return how long the object is, None where its answer does not say it as it should."""
    match = RANGE.fullmatch(str(answer.get("ContentRange", "")))
    return int(match[2]) if match and int(match[1]) == len(data) - 1 else None
