"""Find, resolve and check methods."""
