"""Passes that change the interface of a model: what it takes and gives, and what that is called."""
