"""Statistics of paired measurements: which method is best, and by how much it can be wrong."""
