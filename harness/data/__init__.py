"""Documents, and their tokens."""
