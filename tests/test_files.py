"""Files are written whole, over nobody else's."""

import os
import threading

import pytest

from harness.files import replacing


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


def test_two_writers_of_one_file_both_succeed(tmp_path):
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


def test_what_a_kill_left_is_removed_by_the_next_writer(tmp_path):
    (tmp_path / ".ropewalk-0123456789abcdef.new").write_text("half")
    with replacing(tmp_path / "one") as one:
        with replacing(tmp_path / "other") as other:
            other.write(b"other")
        one.write(b"one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
