"""Passes that decide branches, and put functions and branches where they are called."""
