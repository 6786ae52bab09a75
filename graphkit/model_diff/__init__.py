"""The differences between two files: what a diff lists, section by section."""
