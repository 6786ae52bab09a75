"""Results and how they show themselves: terminal, Markdown, JSON, HTML, notebook."""
