"""Models in Google's Model Explorer: their graphs, findings about their nodes, and two models side by side."""
