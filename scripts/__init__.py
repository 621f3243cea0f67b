"""The tools of the project: ``python -m scripts.NAME``."""
