"""Commands that need no model start without the libraries that models need."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.__main__ import start
from tests import ROOT


def test_the_version_is_that_of_the_project() -> None:
    """What --version prints is what pyproject.toml says."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--version"], capture_output=True, text=True, check=True
    )
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert done.stdout.strip() == told["project"]["version"]


def test_the_current_directory_is_no_source_of_code_or_settings(many: Path, tmp_path: Path) -> None:
    """No numpy.py that lies there is run, and no matplotlibrc is read, not even a broken one."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('run')")
    (tmp_path / "matplotlibrc").write_bytes(b"\xff")
    words = ["report", str(many), "--report", "curves", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_dev_null(closed: str) -> None:
    """Where nobody reads or writes, the command does its work, and nothing is said of it."""
    line = f"{sys.executable} -m harness list {closed}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupt_before_the_program_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the command line is imported is exit status 130, and no traceback."""

    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "harness.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "harness.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 130
