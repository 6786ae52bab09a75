"""`python -m graphkit` is the command line."""

from graphkit.cli import run

run()
