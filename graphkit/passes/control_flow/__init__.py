"""Passes that decide branches, and inline branches and functions."""
