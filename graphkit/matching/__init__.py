"""Two models side by side: which values of one are which of the other."""
