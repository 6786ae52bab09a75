"""What is known of operators, a family in each file: the rules of shapes and elements, and what a node needs to run."""

from __future__ import annotations
