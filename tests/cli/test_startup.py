"""Commands that need no model start without the libraries that models need."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import ROOT

COMMAND = str(Path(sys.executable).with_name("ropewalk"))


def test_every_file_names_the_same_version():
    """The changelog's last one, the citation, and what is built where git has no tags."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    fallback = project["tool"]["hatch"]["version"]["fallback-version"]
    assert f"\nversion: {fallback}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changes.partition("\n## [")[2].startswith(f"{fallback}] - ")


@pytest.mark.slow
def test_the_current_directory_is_no_source_of_code(many, tmp_path):
    """No numpy.py that lies there is run.

    A report imports neither torch nor transformers, which would take longer than it.
    """
    (tmp_path / "numpy.py").write_text("raise SystemExit('run')")
    words = ["report", str(many), "--report", "retrieval", "--out"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", COMMAND, *words, "out"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    told = done.stderr.splitlines()
    assert [line for line in told if not line.startswith("import time:")] == []
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in told}
    assert "pandas" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "datasets"})
    assert (tmp_path / "out" / "retrieval.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "status"),
    [(">&-", 0), ("<&- >&- 2>&-", 0), ("| (exec <&-); exit ${PIPESTATUS[0]}", 141)],
)
def test_a_closed_stream_is_as_dev_null_and_a_reader_may_go_away(after, status):
    line = f"{COMMAND} list {after}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (status, b"")
