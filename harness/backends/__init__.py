"""Many processes and machines, on Ray."""
