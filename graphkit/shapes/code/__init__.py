"""A shape program as text: JSON, and functions in other languages, all made of the same plan."""
