"""A temporary file for weights that rewrites make, so that no more of them than a part is ever in memory.

A weight that takes the place of another one is as large as that, and there may be gigabytes of them. Their bytes wait
here until the model is written; the file goes with the last model that refers to it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path

from graphkit.errors import OutputError

__all__ = ["Scratch"]


class Scratch:
    """The file, which is made when the first weight comes.

    Attributes:
        location: What tensors call it as external data. Nobody can guess it, so that no model file can claim it.
    """

    def __init__(self) -> None:
        self.location = f"graphkit-{secrets.token_hex(16)}"
        self._folder: Path | None = None

    @property
    def path(self) -> Path:
        """Where it is.

        Raises:
            OutputError: There is no folder for temporary files.
        """
        if self._folder is None:
            try:
                self._folder = Path(tempfile.mkdtemp(prefix="graphkit-"))
            except OSError as error:
                raise _full_disk_error(error) from error
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / "weights"

    def append(self, parts: Iterable[bytes]) -> tuple[int, int]:
        """Write bytes behind those that are there, part by part; return where they start, and how many they are.

        Raises:
            OutputError: There is no room for them.
        """
        try:
            with self.path.open("ab") as file:
                start = file.tell()
                for part in parts:
                    file.write(part)
                return start, file.tell() - start
        except OSError as error:
            raise _full_disk_error(error) from error


def _full_disk_error(error: OSError) -> OutputError:
    return OutputError(
        f"{tempfile.gettempdir()}: weights that change are kept there until they are written, and it takes none: "
        f"{error.strerror} - name a folder with more space in TMPDIR"
    )
