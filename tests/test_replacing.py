"""Files are written whole, beside each other, and over nothing of anyone else's."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.files import make_folder, replacing


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_no_link_is_followed(link: object, tmp_path: Path) -> None:
    """A link in the place of the file is replaced, and what it points to stays."""
    (tmp_path / "theirs").write_text("theirs")
    for name in ("table", "table.new"):
        link(tmp_path / "theirs", tmp_path / name)  # type: ignore[operator]
    with replacing(tmp_path / "table") as new:
        new.write(b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "table").read_text() == "ours"
    assert not (tmp_path / "table").is_symlink()


def test_two_writers_of_one_file_both_succeed(tmp_path: Path) -> None:
    """What a reader finds is whole at any moment: one writer's or the other's."""

    def write(letter: bytes) -> None:
        for _ in range(40):
            with replacing(tmp_path / "table") as new:
                new.write(letter * 5000)
                found = (tmp_path / "table").read_bytes()
                assert found in (b"a" * 5000, b"b" * 5000)
            written.append(letter)

    written: list[bytes] = []
    (tmp_path / "table").write_bytes(b"a" * 5000)
    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 80
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


def test_what_a_kill_left_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    """Unfinished files of the dead go; one that is being written stays."""
    (tmp_path / ".ropewalk-0123456789abcdef.new").write_text("half")
    with replacing(tmp_path / "one") as one:
        with replacing(tmp_path / "other") as other:
            other.write(b"other")
        one.write(b"one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_a_name_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    """A zero byte in a path is no traceback."""
    with pytest.raises(UserError, match="cannot be made: embedded null byte"):
        make_folder(tmp_path / "a\0b")
