"""The machinery of passes: the editor, rewrites run to a fixpoint, and what passes share."""
