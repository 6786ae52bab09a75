"""The machinery of passes: the editor, running rewrites to a fixpoint, and matchers that several passes share."""
