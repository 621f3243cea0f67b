"""Tables and figures made from samples. A public module here is a report."""

from contextlib import chdir
from pathlib import Path

with chdir(Path(__file__).parent):  # it reads a matplotlibrc of the directory where it is imported
    import matplotlib as matplotlib
