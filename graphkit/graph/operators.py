"""Traits of operators: what a graph can be told to do by the names of its nodes alone."""

from __future__ import annotations

__all__ = ["BROADCASTING", "BROADCASTS_SINCE"]

BROADCASTING = {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min"}
BROADCASTING |= {"Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"}
BROADCASTS_SINCE = 8
