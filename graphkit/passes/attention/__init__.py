"""Passes that recognise the attention of a transformer, and rewrite it and its masks."""
