"""Published tables and the sweeps that reproduce them."""
