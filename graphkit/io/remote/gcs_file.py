"""Objects of Google's storage: gcsfs gives their address and the login, and they are read as files of web servers are.

So the first answer has bytes, size and revision, and a small object takes one request.
"""

from __future__ import annotations

from graphkit.io.remote.bounded import call_within
from graphkit.io.remote.fsspec_file import FsspecFile
from graphkit.io.remote.http_file import HttpFile
from graphkit.io.remote.server import Served

__all__ = ["gcs_file"]


def gcs_file(url: str, seconds: float) -> Served:
    """Return an object, gs://BUCKET/OBJECT, for which gcsfs has to log in within some seconds.

    Where somebody else pays, or a certificate is the login, gcsfs alone knows how to ask.

    Raises:
        ModelError: It cannot log in.
    """
    library = GcsLibrary(url, seconds)
    return library if library.asks_alone else GcsFile(library)


class GcsLibrary(FsspecFile):
    """An object as gcsfs reads it."""

    @property
    def asks_alone(self) -> bool:
        """Whether requests have more than an address and a login."""
        return bool(self._system.requester_pays or getattr(self._system, "_use_client_cert", False))

    def address(self) -> tuple[str, dict[str, str]]:
        """Return the address of its bytes, and the headers of the login."""
        with self._asking("opened"):
            headers: dict[str, str] = call_within(lambda: self._system._get_headers(None), self._seconds)
            return str(self._system.url(self._path)), headers


class GcsFile(HttpFile):
    """An object as a file of a web server.

    Args:
        library: What knows its address.
    """

    def __init__(self, library: GcsLibrary) -> None:
        self._library = library
        address, headers = library.address()
        super().__init__(address, label=library.label, headers=headers)
        self.name = library.name

    def beside(self, location: str) -> GcsFile:
        """Return the object at a location relative to this one."""
        return GcsFile(self._library.beside(location))
