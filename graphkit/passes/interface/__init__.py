"""Passes that change the interface of a model: its inputs and outputs, and their names."""
