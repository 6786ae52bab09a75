"""Work on files from start to end: read, rewrite, write, prove, report."""
