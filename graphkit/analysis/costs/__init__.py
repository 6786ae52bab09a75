"""Costs: parameters, operations, bytes moved, peak memory; docs/reference/costs.md defines them."""
