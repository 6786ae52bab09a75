"""The constants of a contract as code for host programs: one description, a template for each language."""

from __future__ import annotations

from graphkit.deploy.contract.constants.languages import C, Rust, TypeScript

__all__ = ["SUFFIXES", "WRITERS"]

WRITERS = {"c": C().write, "rust": Rust().write, "typescript": TypeScript().write}
SUFFIXES = {".h": "c", ".hpp": "c", ".rs": "rust", ".ts": "typescript", ".mts": "typescript"}  # of files
