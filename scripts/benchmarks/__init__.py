"""What the engine saves, against the usual way of doing the same, in one process and one run."""
