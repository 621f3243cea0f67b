"""Files are written whole, over nobody else's."""

from ropewalk.harness.files import replacing


def test_no_link_is_followed_and_writers_do_not_meet(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "table").symlink_to(tmp_path / "theirs")
    with replacing(tmp_path / "table") as first, replacing(tmp_path / "table") as second:
        first.write(b"first")
        second.write(b"second")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "table").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "theirs"]
