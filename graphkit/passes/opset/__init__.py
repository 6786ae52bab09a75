"""Passes that change the operator set of a model."""
