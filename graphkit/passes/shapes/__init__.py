"""Passes that make shapes constant, or compute them once where they stay dynamic."""
