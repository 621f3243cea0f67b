"""How tables and sentences are written."""
