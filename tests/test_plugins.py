"""Plug-ins by name, by file and by module: options typed, mistakes answered in a sentence."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from ropewalk import methods
from ropewalk.harness.errors import UserError
from ropewalk.harness.patching.resolve import resolve
from ropewalk.harness.plugins import (
    catalogue,
    load,
    names_code,
    packaged,
)
from ropewalk.scaling import yarn
from ropewalk.scaling.types import Rope

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:

    def file(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return file


def refused(function: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as caught:
        function()
    return str(caught.value)


MINE = """
    from ropewalk.scaling.types import Frequencies

    def frequencies(rope, length, *, factor: float = 2.0):
        return Frequencies(rope.inv_freq() / factor)
"""


def test_options_are_typed_and_defaults_filled_in():
    plugin = load("method", "yarn:factor=8,truncate=false,ramp=paper")
    assert plugin.options == {
        "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "ramp": "paper",
        "critical": None, "attention_factor": None, "mscale": None, "mscale_all_dim": None,
    }  # fmt: skip
    assert isinstance(plugin.options["factor"], float)
    assert plugin.label == "yarn:factor=8,truncate=false,ramp=paper"
    assert plugin.digest is None


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("method", "yran", "no method is called 'yran'; did you mean 'yarn'? known: "),
        ("task", "passkey:seed=3", "passkey has no option 'seed'; known: chat, depths, filler"),
        ("method", "log_n:on=yarn:factor=4,beta=2", "write + for a comma."),
        ("method", "pi:factor=two", "pi: factor=two should be a valid number"),
        ("method", "yarn:ramp=log", "yarn: ramp=log should be 'code' or 'paper'."),
        ("method", "pi:factor=", "pi: 'factor=' is not option=value."),
        ("method", "pi:factor=2,factor=4", "pi: option 'factor' is given twice."),
        ("method", "no/such.py", "method file no/such.py does not exist."),
        ("method", "./such", "no method is called './such'; known: "),
        ("method", "no.such", "method 'no.such' cannot be imported: No module named 'no'."),
        ("method", "ropewalk.tasks.passkey", "it does not define frequencies."),
        ("task", "ropewalk.scaling.pi", "it does not define ask, grade, score, VERSION, METRIC."),
    ],
)
def test_a_mistake_is_answered_with_what_there_is(kind, given, words):
    assert words in refused(lambda: load(kind, given))


def test_a_users_file_is_a_plugin_labelled_by_its_stem(write):
    path = write(MINE)
    plugin = load("method", f"{path}:factor=4")
    assert (plugin.label, plugin.options) == ("mine:factor=4", {"factor": 4.0})
    assert plugin.digest == sha256(path.read_bytes()).hexdigest()[:16]
    rope = Rope(8, 10_000.0, 64)
    assert torch.equal(resolve(plugin, rope, 128).inv_freq, rope.inv_freq() / 4)


def test_the_digest_of_a_users_file_follows_its_text(write, monkeypatch):
    """An edited file is another method, even within a second and where Python keeps bytecode."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    first = load("method", str(write(MINE)))
    second = load("method", str(write(MINE.replace("2.0", "3.0"))))
    assert first.digest != second.digest
    assert (first.options["factor"], second.options["factor"]) == (2.0, 3.0)


PACKAGE = {
    "rope_extras/__init__.py": "",
    "rope_extras/shorter.py": dedent(MINE),
    "rope_extras/twice.py": "from ropewalk.tasks.passkey import *\n"
    "from ropewalk.tasks.passkey import METRIC, VERSION\n",
    "rope_extras/broken.py": "import no_such_module\n",
    "rope_extras/counted.py": "def make(frame):\n    return frame\n",
    "rope_extras/gentle.py": "class Encoding: ...\n",
    "rope_extras-1.5.dist-info/METADATA": "Name: rope-extras\nVersion: 1.5\n",
    "rope_extras-1.5.dist-info/entry_points.txt": """\
[ropewalk.methods]
shorter = rope_extras.shorter
broken = rope_extras.broken
yarn = rope_extras.shorter
[ropewalk.tasks]
twice = rope_extras.twice
[ropewalk.reports]
counted = rope_extras.counted
[ropewalk.encodings]
gentle = rope_extras.gentle
""",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with plug-ins: its modules and what pip writes beside them."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    packaged.cache_clear()
    yield tmp_path
    packaged.cache_clear()


@pytest.mark.usefixtures("package")
def test_an_installed_package_adds_plugins(ropewalk):
    assert catalogue("method")["shorter"] == "From rope-extras 1.5 (rope_extras.shorter)."
    assert "rope-extras 1.5" in ropewalk("list").out
    assert "factor" in ropewalk("list", "shorter").out
    plugin = load("method", "shorter:factor=4")
    assert (plugin.label, plugin.options) == ("shorter:factor=4", {"factor": 4.0})
    assert plugin.digest is not None
    assert names_code("method", "shorter")
    assert load("method", "yarn").digest is None
    assert load("task", "twice:trials=1").label == "twice:trials=1"
    assert methods.shorter is plugin.module.frequencies
    assert "did you mean 'shorter'?" in refused(lambda: load("method", "shrter"))
    assert refused(lambda: load("method", "broken")) == (
        "method 'broken' cannot be imported: No module named 'no_such_module'."
    )
    for kind, name in (("report", "counted"), ("encoding", "gentle")):
        assert load(kind, name).module.__name__ == f"rope_extras.{name}"


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("import math\n\nmath.sqrt(-1)\n", "", "ValueError: math domain error at mine.py:3."),
        ("def frequencies(:\n", "", "SyntaxError: invalid syntax at mine.py:1."),
        ("def frequencies(rope, length, factor=2.0): ...\n", ":factor=4", "no option 'factor'"),
        ("def frequencies(rope, length, *, base: float): ...\n", "", "write mine:base=…"),
        ("def frequencies(rope, length, *, a=float('nan')): ...\n", "", "must be finite numbers"),
        (
            "def frequencies(rope, length, *, a=object()): ...\n",
            "",
            "must be finite numbers, words",
        ),
    ],
)
def test_a_users_mistake_is_named_with_its_place(write, text, options, words):
    assert words in refused(lambda: load("method", f"{write(text)}{options}"))


@pytest.mark.parametrize(("returned", "told"), [
    ("rope.inv_freq()", "it returned Tensor, not Frequencies, PerLayerFrequencies or Bands."),
    ("Frequencies(rope.inv_freq(), __import__('random').uniform(1, 2))",
     "two calls returned different numbers. A method depends on the rope, the length and its "
     "options alone; seed its random numbers and keep no state."),
])  # fmt: skip
def test_frequencies_that_cannot_be_used_are_refused(write, returned, told):
    plugin = load(
        "method", str(write(MINE.replace("Frequencies(rope.inv_freq() / factor)", returned)))
    )
    message = refused(lambda: resolve(plugin, Rope(8, 1e4, 64), 128))
    assert message == f"scaling mine at length 128: {told}"


ROPE = Rope(8, 10_000.0, 64)


def test_a_file_names_a_method_with_its_options(write):
    given = str(write('{"scaling": "yarn:beta_fast=16,factor=4", "score": 3.0}', "found.json"))
    plugin = load("method", given)
    assert (plugin.label, plugin.given, plugin.options["beta_fast"]) == ("found", given, 16.0)
    wanted = yarn.frequencies(ROPE, 256, beta_fast=16.0, factor=4.0)
    assert resolve(plugin, ROPE, 256).fingerprint == wanted.fingerprint
    built = load("method", f"log_n:on={given}").arguments["on"]
    assert built(ROPE, 256).fingerprint == wanted.fingerprint
    assert not names_code("method", given)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("{", "cannot be read as JSON"),
        ('{"score": 3.0}', "names no method"),
        ('{"scaling": "./found.json"}', "names no method"),
        ('{"scaling": "yarn:beta=3"}', "has no option 'beta'"),
    ],
)
def test_a_file_that_names_nothing_is_refused(write, table, words):
    assert words in refused(lambda: load("method", str(write(table, "found.json"))))
