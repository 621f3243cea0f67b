"""Commands that need no model start without the libraries that models need."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.plugins import ROOT

HEAVY = ("torch", "transformers", "datasets")
PROGRAM = """
import sys
from harness.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code, ended.code
print(*(name for name in {heavy} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["list"],
        ["report", str(ROOT / "results" / "reference"), "--out", "{folder}"],
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_no_heavy_library_is_imported(words: list[str], tmp_path: Path) -> None:
    """Help, list and report of a recorded run never import torch, transformers or datasets."""
    given = [word.format(folder=tmp_path) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(heavy=HEAVY), *given],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == ""


def test_the_version_is_that_of_the_project() -> None:
    """What --version prints is what pyproject.toml says."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--version"], capture_output=True, text=True, check=True
    )
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert done.stdout.strip() == told["project"]["version"]
