"""Passes that remove what nothing needs, and compute equal or constant things once."""
