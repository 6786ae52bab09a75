"""Analyses: plain functions from a Model to a Result; one a file. They never change a graph."""
