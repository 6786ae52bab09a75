"""Passes that remove what is unused, merge what is equal and fold what is constant."""
