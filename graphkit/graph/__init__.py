"""A read-only view of a graph: scopes, nodes and values, and what can be told from them."""
