"""Passes that make shapes constant, or compute a shape once where it stays dynamic."""
