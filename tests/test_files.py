"""Files are written whole, over nobody else's."""

import os

import pytest

from ropewalk.harness.files import replacing


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_no_link_is_followed(link, tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    for name in ("table", "table.new"):
        link(tmp_path / "theirs", tmp_path / name)
    with replacing(tmp_path / "table") as new:
        new.write(b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "table").read_text() == "ours"
    assert not (tmp_path / "table").is_symlink()


def test_what_a_kill_left_is_removed_by_the_next_writer(tmp_path):
    (tmp_path / ".ropewalk-0123456789abcdef.new").write_text("half")
    with replacing(tmp_path / "one") as one:
        with replacing(tmp_path / "other") as other:
            other.write(b"other")
        one.write(b"one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
