"""A read-only view of a graph: scopes, nodes and values, and the facts that follow from them."""
