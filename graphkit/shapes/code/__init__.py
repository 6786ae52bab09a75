"""A shape program as text: JSON, or a function in Python or JavaScript made from the same plan."""
