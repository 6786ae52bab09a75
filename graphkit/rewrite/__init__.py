"""The machinery of passes: the editor, running rewrites to a fixpoint, and what passes share."""
