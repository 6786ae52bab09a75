"""Passes that take quantised models back to floats."""
