"""The differences between two files, section by section."""
