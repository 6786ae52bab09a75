"""Costs: parameters, multiply-accumulates, other operations, bytes moved, peak memory; docs/costs.md defines them."""
