"""What is asked: flags, a sweep file, or both, and every mistake in words."""

from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.harness.data.documents import Documents
from ropewalk.harness.errors import UserError
from ropewalk.harness.sweep.spec import TASKS, Spec, parse


def refused(file: Path | None, flags: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse(file, flags)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (("512",), (512,)),
        (("4k",), (4096,)),
        (("2x",), (512,)),
        ("1x,2x", (256, 512)),
        (("1.5x", "1.5k", "12k", "4K", "0.3x"), (77, 384, 1536, 4096, 12_288)),
        (("2x", "64", "1k", "512", "1x"), (64, 256, 512, 1024)),
    ],
)
def test_lengths_are_tokens_ascending_each_once(given, tokens):
    """512 is tokens, 4k and 4K are 4096, 1.5x is one trained window and a half."""
    assert Spec(length=given).lengths(trained_length=256) == tokens


@pytest.mark.parametrize(
    "text", ["512k1", "k", "0", "0k", "0.0x", "-1", "1.5", ".5x", "", " 5", "1e3"]
)
def test_what_is_no_length_is_refused(text):
    assert refused(None, {"length": (text,)}).startswith(f"length: {text!r} is not a length;")


def test_a_sweep_file_has_the_flags_names_and_means_what_it_looks_like(tmp_path):
    """`scaling: yarn` is a list of one, and `seed: 010`, which is 8 in YAML, is ten."""
    file = tmp_path / "sweep.yaml"
    file.write_text("scaling: yarn\nlength: [512, 2x]\nseed: 010\nout: null\noffline: yes\n")
    spec = parse(file, {})
    assert (spec.scaling, spec.length, spec.task) == (("yarn",), ("512", "2x"), TASKS)
    assert (spec.seed, spec.out, spec.offline) == (10, None, True)


def test_a_wrong_name_is_told_before_documents_are_read(tiny):
    """Reading them may take minutes."""
    docs = Documents("counted", lambda: pytest.fail("a document was read"))
    with pytest.raises(UserError, match="'yran'"):
        rw.run(tiny, device="cpu", docs=docs, scaling=["yran"], length="2x")
