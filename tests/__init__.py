"""The tests, which find the repository by their own place: the packages may be installed apart."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
