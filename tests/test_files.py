"""Files are written whole, over nobody else's."""

import errno

import pytest

from ropewalk.harness.errors import UserError
from ropewalk.harness.files import new_folder, replacing


def test_no_link_is_followed_and_writers_do_not_meet(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "table").symlink_to(tmp_path / "theirs")
    with replacing(tmp_path / "table") as first, replacing(tmp_path / "table") as second:
        first.write(b"first")
        second.write(b"second")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "table").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "theirs"]


def test_a_folder_is_whole_or_not_there(tmp_path):
    full = pytest.raises(UserError, match="out cannot be written: No space left on device")
    with full, new_folder(tmp_path / "out") as new:
        (new / "half").touch()
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())
    (tmp_path / ".out.new").mkdir()  # as a kill leaves it
    with new_folder(tmp_path / "out") as new:
        (new / "whole").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [
        "out", "out/whole"
    ]  # fmt: skip
