"""The flags of a sweep are its settings, and every command has an example that can be typed."""

import shlex
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.cli import COMMANDS, EXAMPLES, USAGE
from harness.cli.app import app
from harness.cli.settings import FLAGS, KINDS, Whole
from harness.sweep.spec import Spec

TEXTS = {name: text for texts in FLAGS.values() for name, text in texts.items()}
READ = {"model_args", "limit"}  # flags that are read as other settings
NAMES = [name for name in Spec.model_fields if name != "published"]


def test_every_setting_but_that_of_sweep_files_is_a_flag():
    assert TEXTS.keys() == {*NAMES, *READ}


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_has_the_type_and_the_default_of_its_setting(name):
    """What help shows as the default begins with the value, where there is one."""
    field = Spec.model_fields[name]
    accepted: set[Any] = {field.annotation, *get_args(field.annotation)}
    several = isinstance(field.default, tuple) or name in ("model", "adapter")
    (kind,) = {bool, int, Path} & accepted or {tuple[str, ...] if several else str}
    assert KINDS.get(name, str) == (Whole if kind is int else kind)
    default = TEXTS[name].partition("[default: ")[2].removesuffix("]")
    if field.default is not None:
        words = field.default if isinstance(field.default, tuple) else [field.default]
        assert default.partition(", ")[0] == " ".join(map(str, words))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_is_understood(name, capsys):
    """Every option that it names is one of the command, and its help ends with it."""
    program, command, *words = shlex.split(EXAMPLES[name])
    assert (program, command) == ("ropewalk", name)
    app.parse_args([command, *words], exit_on_error=False, print_error=False)
    app.help_print([name])
    help_text = " ".join(capsys.readouterr().out.split())
    assert help_text.startswith(f"Usage: ropewalk {name} {USAGE[name]}")
    assert help_text.endswith(f"Example: {EXAMPLES[name]}")
