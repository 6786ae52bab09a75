"""Passes that remove unused nodes, merge equal ones and fold constants."""
