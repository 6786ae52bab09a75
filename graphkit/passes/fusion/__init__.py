"""Passes that put several operators into one, which changes the last digits of results."""
