"""Surveys of many models: units of work, each in a process that may die, and one table of their rows."""
