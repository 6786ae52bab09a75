"""The numbers of a table of costs with their expressions, so that a page can compute them at other sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from graphkit.analysis.costs.cost_rows import AliveTensor, Quantity, amount_text, number_text
from graphkit.render.document_blocks import PEAK, Formula

__all__ = [
    "alive_formula",
    "curve_formula",
    "fixed",
    "formula",
    "intensity_formula",
    "on_page",
    "ratio_formula",
    "share_formula",
]

LONG = 2000  # characters of an expression that the shares of a whole do not repeat


def formula(quantity: Quantity, unit: Literal["", "B"] = "") -> Formula:
    """Return a number in short, with its expression."""
    return Formula(amount_text(quantity, unit), quantity.value, quantity.expression, unit)


def on_page(peak: Quantity, *runs: str) -> Quantity:
    """Return peak memory by the runs that a page does, of which it finds the largest peak at other sizes too.

    Args:
        peak: The peak at the first sizes.
        runs: The number of a model on the page, and after a point that of a run of it; "0" for its first model.
    """
    return replace(peak, expression=f"{PEAK}{','.join(runs or ('0',))}")


def curve_formula(
    value: int | None, expression: str, over: tuple[str, int], unit: Literal["", "B"] = ""
) -> Formula | str:
    """Return a number at another size of a symbol, "?" where there is none."""
    return "?" if value is None else Formula(number_text(value, unit), value, expression, unit, over=over)


def fixed(text: str) -> Formula:
    """Return a number that depends on the sizes in a way that no expression tells: a page says so at others."""
    return Formula(text, None, "", "ratio")


def ratio_formula(now: Quantity, was: Quantity) -> Formula | str:
    """Return a number after a rewrite over that before, "" where one of them is not known, or not whole."""
    if not was.value or now.value is None or was.uncounted or now.uncounted:
        return ""
    return Formula(f"{now.value / was.value:.2f}", now.value, now.expression, "ratio", was.expression)


def alive_formula(tensor: AliveTensor) -> Formula:
    """Return the bytes of a tensor."""
    return Formula(f"{tensor.bytes:,}", tensor.bytes, tensor.expression, ",")


def share_formula(part: Quantity, times: int, whole: Quantity) -> Formula | str:
    """Return the share of so many equal parts in a whole, "" in nothing."""
    if not whole.value:
        return ""
    value = times * (part.value or 0)
    text = f"{100 * value / whole.value:.1f} %"
    if not part.expression or not 0 < len(whole.expression) <= LONG:
        return Formula(text, value, "", "%")
    return Formula(text, value, f"{times}*({part.expression})", "%", whole.expression)


def intensity_formula(intensity: float, macs: Quantity, operations: Quantity, moved: Quantity) -> Formula:
    """Return the operations for each byte moved."""
    text = f"{intensity:,.1f}"
    if not (macs.expression and operations.expression and moved.expression):
        return Formula(text, None, "", "/")
    value = 2 * (macs.value or 0) + (operations.value or 0)
    return Formula(text, value, f"2*({macs.expression}) + {operations.expression}", "/", moved.expression)
