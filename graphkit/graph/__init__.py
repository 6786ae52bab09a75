"""Read-only questions to a graph: scopes, nodes, values, producers, consumers, constants, networkx."""
