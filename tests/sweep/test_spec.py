"""What is asked: flags, a sweep file, or both, and every mistake in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.plugins import load
from harness.sweep.spec import LENGTHS, SCALING, TASKS, Spec, parse

SETTINGS = (
    "adapter, allow_pickle, cluster, device, device_map, docs, dtype, length, max_memory, model, "
    "offline, out, published, revision, scaling, seed, task, track, trained_length, "
    "trust_remote_code, workers"
)


def refused(file: Path | None, flags: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse(file, flags)
    return str(caught.value)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return tmp_path / "sweep.yaml"


def test_nothing_asked_is_the_whole_default() -> None:
    """Without any flag, the reference model is swept over the default methods and lengths."""
    spec = parse(None, {})
    assert (spec.model, spec.docs, spec.seed) == ("reference", "embedded", 0)
    assert (spec.scaling, spec.task, spec.length) == (SCALING, TASKS, LENGTHS)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (("512",), (512,)),
        (("4k",), (4096,)),
        (("2x",), (512,)),
        (("1.5x", "1.5k", "12k", "4K", "0.3x"), (77, 384, 1536, 4096, 12_288)),
        (("2x", "64", "1k", "512", "1x"), (64, 256, 512, 1024)),
    ],
)
def test_lengths_are_tokens_ascending_each_once(
    given: tuple[str, ...], tokens: tuple[int, ...]
) -> None:
    """512 is tokens, 4k and 4K are 4096, 1.5x is one trained window and a half."""
    assert Spec(length=given).lengths(trained_length=256) == tokens


def test_a_sweep_file_has_the_flags_names(sweep: Path) -> None:
    """The keys of a sweep file are the flags, and its numbers are taken as they are."""
    sweep.write_text("scaling: [none, 'yarn:factor=8']\nlength: [512, 2x]\nseed: 7\nout: here\n")
    spec = parse(sweep, {})
    assert spec.scaling == ("none", "yarn:factor=8")
    assert spec.length == ("512", "2x")
    assert (spec.seed, spec.out) == (7, Path("here"))
    assert spec.task == TASKS


def test_flags_win_over_the_sweep_file(sweep: Path) -> None:
    """A flag replaces the file's setting whole, and the other settings stay."""
    sweep.write_text("scaling: [none, pi]\nseed: 7\n")
    spec = parse(sweep, {"scaling": ("yarn",)})
    assert (spec.scaling, spec.seed) == (("yarn",), 7)


def test_an_empty_name_is_no_run_folder() -> None:
    """A variable that is not set is refused when the sweep is planned, not when it is written."""
    assert refused(None, {"out": Path()}).startswith("out: name a folder; ")


def test_what_was_asked_can_be_told_from_defaults(sweep: Path) -> None:
    """Only settings that were given count as asked, for the record."""
    sweep.write_text("seed: 0\n")
    spec = parse(sweep, {"device": "cpu"})
    assert spec.model_dump(exclude_unset=True) == {"seed": 0, "device": "cpu"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "scalings: [none]\n",
            "no setting is called 'scalings'; did you mean 'scaling'? known: " + SETTINGS + ".",
        ),
        ("7: 1\n", f"no setting is called '7'; known: {SETTINGS}."),
        ("scaling: []\n", "scaling: name at least one (given: [])."),
        (
            "docs: ''\n",
            "docs: name a text file, a folder or a data set, or one for each task (TASK: NAME) "
            "(given: '').",
        ),
        ("model: ''\n", "model: String should have at least 1 character (given: '')."),
    ],
)
def test_a_mistake_in_a_sweep_file_is_answered_word_for_word(
    sweep: Path, text: str, message: str
) -> None:
    """The sentence names the file, the key, what was given and what is allowed."""
    sweep.write_text(text)
    assert refused(sweep, {}) == f"{sweep}, line 1: {message}"


@pytest.mark.parametrize(
    "text", ["512k1", "k", "0", "0k", "0.0x", "-1", "1.5", ".5x", "", " 5", "1e3"]
)
def test_what_is_no_length_is_refused(text: str) -> None:
    """A length is a number with k, x or nothing behind; parts are of a k or a window."""
    assert refused(None, {"length": (text,)}).startswith(f"length: {text!r} is not a length;")


@pytest.mark.parametrize("text", ["", "- none\n- pi\n", "yarn\n"])
def test_a_sweep_file_that_is_no_mapping_is_refused(sweep: Path, text: str) -> None:
    """An empty file, a list or a word holds no settings."""
    sweep.write_text(text)
    assert refused(sweep, {}) == (
        f"sweep file {sweep} must hold settings (model: …, scaling: […], …)."
    )


def test_a_sweep_file_that_is_no_yaml_is_refused(sweep: Path) -> None:
    """Broken YAML is answered in one line that names the place."""
    sweep.write_text("scaling: [none\nseed: 7\n")
    message = refused(sweep, {})
    assert message.startswith(f"sweep file {sweep} is not YAML: ")
    assert "line 2" in message
    assert "\n" not in message


def test_a_sweep_file_in_another_encoding_is_refused(sweep: Path) -> None:
    """A file that is not UTF-8 is no sweep file."""
    sweep.write_bytes("docs: façade\n".encode("latin-1"))
    assert refused(sweep, {}).startswith(f"sweep file {sweep} is not YAML: 'utf-8' codec")


def test_a_missing_sweep_file_is_named(sweep: Path) -> None:
    """A sweep file that is not there, or is a folder, is one sentence."""
    assert refused(sweep, {}) == f"sweep file {sweep} does not exist."
    assert refused(sweep.parent, {}) == (
        f"sweep file {sweep.parent} cannot be read: it is a folder, not a regular file."
    )


def test_one_thing_stands_for_a_list_of_one(tmp_path: Path) -> None:
    """`scaling: yarn` and `seed: 010`, which is 8 in YAML, mean what they look like."""
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "scaling: yarn\nlength: 512\ntask: passkey\nseed: 010\nout: null\noffline: yes\n"
    )
    spec = parse(file, {})
    assert (spec.scaling, spec.length, spec.task) == (("yarn",), ("512",), ("passkey",))
    assert (spec.seed, spec.out, spec.offline) == (10, None, True)


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        ({"dtype": "bf16"}, "did you mean 'bfloat16'?"),
        ({"dtype": "fp16"}, "did you mean 'float16'?"),
        ({"scaling": ("yarn", "factor=4")}, "yarn:factor=4"),
        ({"scaling": ("yarn:beta_fast=16", "factor=4")}, "yarn:beta_fast=16,factor=4"),
    ],
)
def test_what_was_meant_is_said(flags: dict[str, Any], hint: str) -> None:
    """A short name of a dtype, or an option without its colon, is answered with what to write."""
    assert hint in refused(None, flags)


def test_a_short_name_of_a_task_is_known_again() -> None:
    """Letters of a name in their order stand for it."""
    with pytest.raises(UserError, match="did you mean 'perplexity'"):
        load("task", "ppl")


def test_a_size_is_exact() -> None:
    """A limit of memory is a number of bytes of at most 18 digits and a unit."""
    assert Spec(max_memory="1.5KiB").memory == 1536
    assert "is not a size" in refused(None, {"max_memory": "9" * 5000 + "TB"})


def test_a_next_line_opens_the_same_model() -> None:
    """A revision, its own code and --offline are in what a command prints to be typed next."""
    asked = Spec(model="org/name", revision="abc", trust_remote_code=True, offline=True)
    switches = ["--trust-remote-code", "--offline"]
    assert asked.opened == ["org/name", "--revision", "abc", *switches]
    assert Spec(model="org/name").opened == ["org/name"]
