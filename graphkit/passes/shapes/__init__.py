"""Passes that make shapes constant, and compute dynamic shapes once."""
