"""Open, place and load a checkpoint."""
