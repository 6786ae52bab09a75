"""The constants of a contract as code for host programs: one language a file."""

from __future__ import annotations

from graphkit.contract.constants.c import c_header
from graphkit.contract.constants.rust import rust_module
from graphkit.contract.constants.typescript import typescript_module

__all__ = ["SUFFIXES", "WRITERS"]

WRITERS = {"c": c_header, "rust": rust_module, "typescript": typescript_module}
SUFFIXES = {".h": "c", ".hpp": "c", ".rs": "rust", ".ts": "typescript", ".mts": "typescript"}  # of files
